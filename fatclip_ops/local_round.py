"""The local part of a federated round: what an optimizer remembers between begin_round() and end_round().

Per parameter, in the optimizer's state (so that it is saved, loaded, copied and moved with it):

    round_start    x_t, where the round began
    round_lr       the lr of the steps since
    round_sum      the sum of gradients up to the last change of lr, in float64
    round_segment  where the parameter stood at that change
    round_gradients  the sum of gradients of a 16-bit parameter under plain SGD, in float32: the parameter itself rounds
        most of a small step away. It costs 4 bytes per element and one pass per step.
"""

from typing import Any

import torch
from torch import Tensor

from .backends import read_number
from .backends.layout import as_real
from .backends.types import CLIPPED, COEF, NORM
from .checks import check_choice, check_flag, check_lam, check_lr, check_one_lam
from .functional import clip_rows_
from .optim_state import SavedOptimizer
from .sharding import local_part

_DELTAS = ("gradient", "displacement")
_NARROW = (torch.bfloat16, torch.float16)


class LocalRound(SavedOptimizer):
    """The part of FatClipOptimizer that keeps track of a round."""

    _clips_steps: bool

    @torch.no_grad()
    def begin_round(self) -> None:
        """Remembers where the model stands (x_t); calling it again starts the round anew from here."""
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                for key in ("round_segment", "round_sum", "round_lr", "round_gradients"):
                    state.pop(key, None)
                state["round_start"] = p.detach().clone()
        self._in_round = True

    @torch.no_grad()
    def end_round(self, delta: str = "gradient", full: bool = True) -> Tensor:
        """The round's pseudo-gradient as one flat tensor in parameter order; the next round begins here.

        delta: "gradient" gives (x_t - x) / lr, which under plain SGD is the sum of the (PI: clipped) gradients, also
            when lr changed on the way; "displacement" gives x_t - x. PR clips the result to lam. What a step of lr * g
            loses where x is rounded is missing from both; the gradients of 16-bit parameters are summed apart, in
            float32, unless there is momentum or weight decay.
        full: of sharded parameters, every rank returns the whole update; False returns this rank's part of it, clipped
            by the norm of the whole.
        """
        check_choice("delta", delta, _DELTAS)
        check_flag("full", full)
        if not self._in_round:
            raise RuntimeError("end_round() without begin_round(): there is no x_t to compare with")
        shards = self._shards
        if full and shards is not None:
            shards.check_full()
        flat, dtype = self._round_delta(delta)
        if self.nonfinite == "raise" and not (_is_finite(flat) if shards is None else shards.is_finite(flat)):
            raise ValueError("the round's update has nan or inf; nothing was changed")
        if not self._clips_steps:
            self._clip_round(flat)
        flat = flat.to(dtype)
        self.begin_round()
        return shards.gather(flat) if full and shards is not None else flat

    def _round_delta(self, delta: str) -> tuple[Tensor, torch.dtype]:
        """The update before any clip, and the dtype it is to be returned in.

        PR's is in float64: before its clip a sum may be out of float32's range.
        """
        params = [(p, group) for group in self.param_groups for p in group["params"]]
        dtype = torch.float32 if not params else params[0][0].dtype
        for p, _ in params:
            dtype = torch.promote_types(dtype, p.dtype)
        work_dtype = torch.promote_types(dtype, torch.float32 if self._clips_steps else torch.float64)
        total = sum(local_part(p).numel() for p, _ in params)
        flat = torch.empty(total, dtype=work_dtype, device=params[0][0].device if params else "cpu")
        at = 0
        for p, group in params:
            moved = local_part(self._moved(p, delta, check_lr(group["lr"])))
            flat[at : at + moved.numel()].copy_(moved.reshape(-1))
            at += moved.numel()
        return flat, dtype

    def _moved(self, p: Tensor, delta: str, lr: float) -> Tensor:
        """How far one parameter came in this round, in float64."""
        state = self.state[p]
        if delta == "displacement":
            return _wide(state["round_start"]) - _wide(p)
        if "round_gradients" in state:
            return _wide(state["round_gradients"])
        segment = _wide(state.get("round_segment", state["round_start"])) - _wide(p)
        lr = state.get("round_lr", lr)
        segment = segment / lr if lr > 0 else torch.zeros_like(segment)
        return segment + state["round_sum"] if "round_sum" in state else segment

    @torch.no_grad()
    def _folds(self) -> list[tuple[Tensor, dict[str, Any]]]:
        """What to remember once the step is applied: which lr it used and, where lr has changed, the sum so far."""
        folds: list[tuple[Tensor, dict[str, Any]]] = []
        for group in self.param_groups:
            lr = float(group["lr"])
            for p in group["params"]:
                before = self.state[p].get("round_lr")
                if before is None:
                    folds.append((p, {"round_lr": lr}))
                elif before != lr:
                    so_far, here = self._moved(p, "gradient", lr), p.detach().clone()
                    folds.append((p, {"round_lr": lr, "round_sum": so_far, "round_segment": here}))
        return folds

    @torch.no_grad()
    def _sum_gradients(self, scale: Any = 1.0) -> None:
        """Adds a step to the sums of the 16-bit parameters; a skipped one, where only a device knows of it, adds 0."""
        for group in self.param_groups:
            if group["momentum"] != 0 or group["weight_decay"] != 0:
                continue
            for p in group["params"]:
                if p.dtype in _NARROW and p.grad is not None:
                    coef = self._tally[COEF].to(p.device) / scale
                    step = p.grad.to(torch.float64) * (-coef if group["maximize"] else coef)
                    if self.nonfinite != "propagate":
                        step = torch.where(coef > 0, step, 0.0)
                    state = self.state[p]
                    if "round_gradients" not in state:
                        state["round_gradients"] = torch.zeros_like(p, dtype=torch.float32)
                    state["round_gradients"].add_(step)

    def _clip_round(self, flat: Tensor) -> None:
        """Clips the round's update in place, as PR does, and counts it."""
        check_one_lam([group["lam"] for group in self.param_groups])
        lam = read_number(self.param_groups[0]["lam"], check_lam)
        shards = self._shards
        norm = clip_rows_(as_real(flat).view(1, -1), lam)[0] if shards is None else shards.clip_(flat, lam)
        is_clipped = torch.isfinite(norm) & (norm > lam)
        self._tally[NORM].copy_(norm)
        self._tally[COEF].copy_(torch.where(is_clipped, lam / norm, 1.0))
        self._tally[CLIPPED].add_(is_clipped.to(self._tally.device))
        if self._is_followed:
            self._set_lam(self._follow(lam))


def _is_finite(flat: Tensor) -> bool:
    return bool(torch.isfinite(flat).all())


def _wide(t: Tensor) -> Tensor:
    return t.to(torch.complex128 if t.is_complex() else torch.float64)
