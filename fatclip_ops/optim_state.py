"""How an optimizer is saved, loaded, pickled and copied."""

from typing import Any

from torch.optim import Optimizer

from .clip_record import ClipRecord
from .sharding import Shards, Zero, find_shards

# Keys that another optimizer's state_dict may bring and that must not steer this one.
_FOREIGN = ("foreach", "fused", "differentiable", "capturable")


class SavedOptimizer(ClipRecord, Optimizer):
    """The part of FatClipOptimizer that outlives a process.

    state_dict() is torch's with one more entry, "clipping": the counts and the state of a threshold.
    """

    nonfinite: str
    fused: bool | None
    _in_round = False
    _zero: Zero | None = None  # set where a ZeroRedundancyOptimizer gave this optimizer one rank's parameters
    _shards: Shards | None = None  # set where parameters are spread over ranks

    def state_dict(self) -> dict[str, Any]:
        """As in torch, and the counts and the threshold's state under "clipping"."""
        return {**super().state_dict(), "clipping": self._save_record()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in torch; an unfinished round, the counts and a threshold resume with the same bits."""
        super().load_state_dict(state_dict)
        saved = [state_dict["state"].get(i, {}) for group in state_dict["param_groups"] for i in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        for p, state in zip(params, saved, strict=True):
            for key in {"round_sum", "round_gradients"} & state.keys():  # torch has cast them to the parameter's dtype
                self.state[p][key] = state[key].to(p.device, copy=True)
        if "clipping" in state_dict:
            self._load_record(state_dict["clipping"])
        if self._threshold is not None:
            self._set_lam(self._check_current())

    def _set_lam(self, lam: Any) -> None:
        for group in self.param_groups:
            group["lam"] = lam

    def __getstate__(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("nonfinite", "fused", "_tally", "_threshold", "_zero")}
        return {**super().__getstate__(), **own, "_watchers": [], "_is_followed": self._threshold is not None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Unpickles, and takes in a loaded state_dict: what it lacks stays as it is here."""
        lam = self.param_groups[0]["lam"] if "param_groups" in self.__dict__ else None
        super().__setstate__(state)
        for group in self.param_groups:
            for key in _FOREIGN:
                group.pop(key, None)
            if lam is not None:
                group.setdefault("lam", lam)
            for key, value in self.defaults.items():
                if key not in _FOREIGN:
                    group.setdefault(key, value)
        self._in_round = any("round_start" in s for s in self.state.values())
        self._shards = find_shards(self.param_groups, self._zero)
