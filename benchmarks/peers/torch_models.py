"""The paper's models as plain PyTorch modules, for the sides that are written with PyTorch."""

import numpy as np
import torch
from torch import Tensor, nn


class Logistic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(784, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 5)
        self.conv2 = nn.Conv2d(32, 64, 5)
        self.fc1 = nn.Linear(1600, 512)
        self.fc2 = nn.Linear(512, 128)
        self.fc3 = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)
        x = torch.relu(self.fc1(x.flatten(1)))
        return self.fc3(torch.relu(self.fc2(x)))


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(80, 8)
        self.lstm = nn.LSTM(8, 100, num_layers=2, batch_first=True)
        self.fc = nn.Linear(100, 80)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.lstm(self.embedding(x))
        return self.fc(out[:, -1])


MODELS = {"logistic": Logistic, "cnn": Cnn, "lstm": Lstm}


def build(name: str, start: np.ndarray) -> nn.Module:
    """The model with the given flat parameters."""
    model = MODELS[name]()
    nn.utils.vector_to_parameters(torch.from_numpy(start).clone(), model.parameters())
    return model


def flat(model: nn.Module) -> np.ndarray:
    return nn.utils.parameters_to_vector(model.parameters()).detach().numpy()


def tensors(x: np.ndarray, y: np.ndarray) -> tuple[Tensor, Tensor]:
    """The data as PyTorch wants it: characters as integers that an embedding takes."""
    data = torch.from_numpy(x)
    return (data if data.is_floating_point() else data.int()), torch.from_numpy(y).long()
