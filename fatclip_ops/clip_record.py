"""What clipping did, and the threshold that follows it: shared by everything that clips step by step."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .backends.types import CLIPPED, COEF, NORM, SKIPPED, STEPS, StepInputs, make_tally
from .checks import check_lam, name_parameter
from .sharding import parts_of_grads
from .thresholds import Threshold, is_threshold


class ClipRecord:
    """The counts of a sequence of clips, on the device of the gradients; reading one as a number synchronizes."""

    _tally: Tensor
    _threshold: Threshold | None
    _watchers: list[Callable[[Tensor, Any], None]]  # called after every clip with the tally and the lam it used
    _is_followed: bool  # whether there is a threshold or a watcher: one question per step

    def _start_record(self, lam: Any) -> Any:
        """Begins with no clips; returns lam as a number."""
        self._tally = make_tally()
        self._threshold = lam if is_threshold(lam) else None
        self._watchers = []
        self._is_followed = self._threshold is not None
        return lam if self._threshold is None else self._threshold.current()

    @property
    def last_norm(self) -> Tensor:
        """Norm before the last clip, a float64 tensor; nan before the first. `float(last_norm)` makes it a number."""
        return self._tally[NORM].clone()

    @property
    def last_coef(self) -> Tensor:
        """Factor of the last clip, min(1, lam / norm), a float64 tensor: 0 where skipped, nan before the first."""
        return self._tally[COEF].clone()

    @property
    def steps(self) -> int:
        """How many steps there were, skipped ones included."""
        return int(self._tally[STEPS])

    @property
    def clipped(self) -> int:
        """How many clips had a factor below 1; PR clips rounds, all others steps."""
        return int(self._tally[CLIPPED])

    @property
    def skipped(self) -> int:
        """How many steps were skipped, by nonfinite="skip" or by a GradScaler."""
        return int(self._tally[SKIPPED])

    def watch(self, watcher: Callable[[Tensor, Any], None]) -> None:
        """Calls `watcher(tally, lam)` after every clip; History does."""
        self._watchers.append(watcher)
        self._is_followed = True

    def _follow(self, lam: Any) -> Any:
        """Shows a clip by `lam` to whoever follows; returns the next lam."""
        for watcher in self._watchers:
            watcher(self._tally, lam)
        if self._threshold is None:
            return lam
        self._threshold.observe(self._tally[:1].clone())
        return self._check_current()

    def _check_current(self) -> Any:
        """The threshold's lam; one on a device stays there unchecked."""
        assert self._threshold is not None
        lam = self._threshold.current()
        return lam if isinstance(lam, Tensor) and not lam.is_cpu else check_lam(lam)

    def _refuse(self, inputs: StepInputs, param_groups: list[dict[str, Any]]) -> None:
        """Raises an error that names the parameter, unless it was a GradScaler that did not want the step."""
        if inputs.is_forbidden():
            return
        self._tally[STEPS] -= 1  # an error changes no count
        self._tally[SKIPPED] -= 1
        grads = parts_of_grads(inputs)
        bad = [p for p, g in zip(inputs.params, grads, strict=True) if not torch.isfinite(g).all()]
        name = name_parameter(param_groups, bad[0]) if bad else "a parameter on another rank"
        raise ValueError(f"{name} has a gradient with nan or inf; nothing was changed")

    def _save_record(self) -> dict[str, Any]:
        record: dict[str, Any] = {"tally": self._tally.clone()}
        save = getattr(self._threshold, "state_dict", None)
        return record if save is None else {**record, "threshold": save()}

    def _load_record(self, record: dict[str, Any]) -> None:
        """Takes over what was saved; a threshold that was not saved stays as it is here."""
        self._tally = record["tally"].to(torch.float64, copy=True)
        load = getattr(self._threshold, "load_state_dict", None)
        if load is not None and "threshold" in record:
            load(record["threshold"])
