"""FatClipPI under Hugging Face's Trainer: training, a checkpoint, and a resumed run that ends with the same weights.

A two-layer GPT-2 with random weights learns to continue a repeating sequence. Nothing is downloaded.

    pip install transformers accelerate
    python examples/huggingface_trainer.py
"""

import tempfile
from pathlib import Path

import torch

try:
    import accelerate  # noqa: F401  (the Trainer needs it)
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed
    from transformers.trainer_callback import PrinterCallback
    from transformers.utils import logging
except ModuleNotFoundError:
    raise SystemExit("this example needs Hugging Face: pip install transformers accelerate") from None

from fatclip_ops import FatClipPI

STEPS = 60
VOCABULARY, LENGTH = 16, 24


class Report(TrainerCallback):
    """Prints the loss of every log line, and what the optimizer saw last."""

    def on_log(self, args, state, control, logs=None, optimizer=None, **kwargs) -> None:
        """Called by the Trainer every `logging_steps`; accelerate has wrapped the optimizer."""
        if logs and "loss" in logs:
            opt: FatClipPI = optimizer.optimizer
            norm, loss = float(opt.last_norm), float(logs["loss"])
            print(f"step {state.global_step:2d}  loss {loss:.4f}  last_norm {norm:.4f}  skipped {opt.skipped}")


def data() -> list[dict[str, torch.Tensor]]:
    """256 sequences that count upwards in threes, modulo the vocabulary."""
    gen = torch.Generator().manual_seed(0)
    start = torch.randint(VOCABULARY, (256, 1), generator=gen)
    tokens = (start + 3 * torch.arange(LENGTH)) % VOCABULARY
    return [{"input_ids": row, "labels": row} for row in tokens]


def fit(folder: Path, steps: int, checkpoint: Path | None = None) -> GPT2LMHeadModel:
    """Trains up to `steps`, from the start or from a checkpoint; saves one half way."""
    set_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    # The Trainer makes the optimizer, over its groups with and without weight decay. One that you made yourself is
    # passed as optimizers=(opt, None) instead.
    recipe = (FatClipPI, {"lr": 0.1, "lam": 1.0, "momentum": 0.9})
    args = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=16,
        # The Trainer clips to 1.0 unless told otherwise. 0 switches that off: the optimizer must see the true gradient,
        # because it clips by itself and its last_norm is the norm before clipping.
        max_grad_norm=0,
        lr_scheduler_type="constant",
        logging_steps=10,
        save_steps=STEPS // 2,
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
        seed=0,
    )
    trainer = Trainer(
        model=model, args=args, train_dataset=data(), optimizer_cls_and_kwargs=recipe, callbacks=[Report()]
    )
    trainer.remove_callback(PrinterCallback)  # Report prints instead
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    return model


def main() -> None:
    """One run without a stop, then one that resumes from its checkpoint half way."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(f"{STEPS} steps without a stop")
        whole = fit(folder, STEPS)
        saved = folder / f"checkpoint-{STEPS // 2}"
        print(f"resumed from {saved.name}")
        resumed = fit(folder, STEPS, checkpoint=saved)
    same = all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))
    print(f"the resumed run has the weights of the one without a stop: {'yes' if same else 'no'}")


if __name__ == "__main__":
    main()
