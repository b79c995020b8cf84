"""Which reading of the paper a run uses, and how its settings differ from the paper's: printed below every result."""

from collections.abc import Sequence
from typing import Any

from ..cells import Cell

# Settings in which a resumed run may differ from its start: how fast a result comes (never what it is, as is tested for
# every engine), and how a client's error is treated, which a run that can be resumed has not met or was stopped by.
FREE = ("workers", "cohort", "on_client_error")
# Settings in which a run may differ from the paper's without being a smaller one.
PLUMBING = (*FREE, "seed", "engine", "device", "dtype", "eval_every")


def describe_reading(cells: Sequence[Cell]) -> str:
    """Which reading of the paper's update the cells use: what Delta is, and what stands in front of it."""
    names = {"gradient": "sum of the local gradients", "displacement": "displacement x_t - x"}
    texts = []
    for delta, reduce in sorted({(c.config.delta, c.config.reduce) for c in cells}):
        factors = sorted({c.config.eta for c in cells if (c.config.delta, c.config.reduce) == (delta, reduce)})
        factor = f"{factors[0]:g}" if len(factors) == 1 else f"{factors[0]:.3g} to {factors[-1]:.3g}"
        texts.append(
            f'Delta = {names[delta]} (delta="{delta}"), server factor {factor} on the {reduce} (reduce="{reduce}")'
        )
    return "Reading: " + "; ".join(texts) + "."


def describe_changes(cells: Sequence[Cell]) -> list[str]:
    """What differs from the paper's setting, key by key; empty where nothing does."""
    changed: dict[str, list[str]] = {}
    for cell in cells:
        ours, paper = cell.config.to_dict(), cell.paper.to_dict()
        for key in ours:
            if key not in PLUMBING and ours[key] != paper[key]:
                texts = changed.setdefault(key, [])
                text = f"{key} {_shown(ours[key])} (paper {_shown(paper[key])})"
                if text not in texts:
                    texts.append(text)
    texts = [text for group in changed.values() for text in group]
    return ["Changed from the paper: " + ", ".join(texts) + "."] if texts else []


def _shown(value: Any) -> str:
    """A setting as a reader knows it: without a limit, all take part."""
    return "all" if value is None else str(value)


def describe_batches(cells: Sequence[Cell]) -> list[str]:
    """Says so where a batch is all that a client has."""
    whole = {(c.config.batch, c.config.samples_per_client) for c in cells if not c.config.about.stacks_seeds}
    texts = [f"batch {b} with {n} samples per client" for b, n in sorted(whole, key=str) if n is not None and b >= n]
    return [f"Local steps are full-batch: {', '.join(texts)}."] if texts else []
