"""FatClipPI under Lightning's Trainer: training, a checkpoint, and a resumed run that ends with the same weights.

A small convolutional network learns to tell four synthetic patterns apart. Nothing is downloaded.

    pip install pytorch-lightning
    python examples/lightning_module.py
"""

import logging
import tempfile
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

try:
    import pytorch_lightning as pl
except ModuleNotFoundError:
    raise SystemExit("this example needs Lightning: pip install pytorch-lightning") from None

from fatclip_ops import FatClipPI

EPOCHS = 6


class Classifier(pl.LightningModule):
    """Two convolutions and a linear layer; the only line about fatclip is in configure_optimizers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(64, 4),
        )
        self.losses: list[float] = []

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """The loss of one batch."""
        x, y = batch
        loss = cross_entropy(self.net(x), y)
        self.losses.append(loss.item())
        return loss

    def on_train_epoch_end(self) -> None:
        """Prints the epoch's mean loss and what the optimizer saw last."""
        opt = self.optimizers(use_pl_optimizer=False)
        loss, norm = sum(self.losses) / len(self.losses), opt.last_norm.item()
        print(f"epoch {self.current_epoch}  loss {loss:.4f}  last_norm {norm:.4f}  skipped {opt.skipped}")
        self.losses.clear()

    def configure_optimizers(self) -> FatClipPI:
        """FatClipPI clips by itself: leave the Trainer's gradient_clip_val unset."""
        return FatClipPI(self.parameters(), lr=0.1, lam=1.0, momentum=0.9)


def data() -> DataLoader:
    """512 noisy 8x8 images of horizontal, vertical, diagonal and checkered patterns."""
    gen = torch.Generator().manual_seed(0)
    i, j = torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij")
    patterns = torch.stack([i // 2 % 2, j // 2 % 2, (i + j) // 2 % 2, (i // 2 + j // 2) % 2]).float()
    y = torch.randint(4, (512,), generator=gen)
    x = patterns[y].unsqueeze(1) + 0.5 * torch.randn(512, 1, 8, 8, generator=gen)
    # The order of the batches is fixed, so that a resumed run sees what the first one saw.
    return DataLoader(TensorDataset(x, y), batch_size=32)


def fit(folder: Path, epochs: int, checkpoint: Path | None = None) -> tuple[Classifier, Path]:
    """Trains up to `epochs`, from the start or from a checkpoint; returns the model and its own checkpoint."""
    pl.seed_everything(0, verbose=False)
    module = Classifier()
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(module, data(), ckpt_path=checkpoint)
    saved = folder / f"epoch{epochs}.ckpt"
    trainer.save_checkpoint(saved)
    return module, saved


def main() -> None:
    """One run without a stop, one that stops half way and resumes."""
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*LeafSpec.* is deprecated.*")  # Lightning's own, about torch
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(f"{EPOCHS} epochs without a stop")
        whole, _ = fit(folder, EPOCHS)
        print(f"{EPOCHS // 2} epochs, then a checkpoint")
        _, saved = fit(folder, EPOCHS // 2)
        print(f"resumed from {saved.name}")
        resumed, _ = fit(folder, EPOCHS, checkpoint=saved)
    same = all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))
    print(f"the resumed run has the weights of the one without a stop: {'yes' if same else 'no'}")


if __name__ == "__main__":
    main()
