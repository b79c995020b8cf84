"""The recurrent network of the paper's Shakespeare experiments: next-character prediction."""

import torch
from torch import Tensor, nn

from .base import Classifier
from .recurrent import Recurrence


class LstmModule(nn.Module):
    """Embedding, two LSTM layers, a linear layer on the last state."""

    def __init__(self, classes: int, embedding: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=2, batch_first=True)
        self.fc = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(x))
        return self.fc(states[:, -1])  # type: ignore[no-any-return]


class Lstm(Classifier):
    """80 symbols, embedding 8, two layers of 100: 133,520 parameters."""

    name = "lstm"
    chunk = 36

    def __init__(self, classes: int = 80, embedding: int = 8, hidden: int = 100) -> None:
        self.classes, self.embedding, self.hidden = classes, embedding, hidden
        self._recurrence = Recurrence()

    def build(self) -> nn.Module:
        return LstmModule(self.classes, self.embedding, self.hidden)

    def store(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return x.to(torch.uint8).contiguous()

    def inputs(self, rows: Tensor) -> Tensor:
        return rows.long()

    def gradients(self, rows: Tensor, x: Tensor, y: Tensor, weights: Tensor, out: Tensor) -> None:
        self._recurrence.gradients(self.split(rows), x, y, weights, self.split(out))
