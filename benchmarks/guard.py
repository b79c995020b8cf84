"""Reports where ratios are worse than the committed ones; ratios, because times belong to a machine. It never fails."""

import json
from pathlib import Path
from typing import Any

NOISE = 0.75  # a ratio may fall to three quarters of the committed one before it is worth a word


def ratios(result: dict[str, Any]) -> dict[tuple[str, str, str], float]:
    """(workload, algorithm, side) -> how many times longer the side takes than ours."""
    found = {}
    for name, workload in result.get("workloads", {}).items():
        for algorithm, entry in workload["algorithms"].items():
            for side, numbers in entry["sides"].items():
                if side != "fedsim" and numbers.get("ratio"):
                    found[name, algorithm, side] = float(numbers["ratio"])
    return found


def compare(result: dict[str, Any], committed: Path) -> str:
    """One line per ratio that has fallen, or one line that says that none has."""
    try:
        before = ratios(json.loads(committed.read_text()))
    except FileNotFoundError:
        return "guard: no committed results to compare with"
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        return f"guard: the committed results cannot be read ({type(error).__name__})"
    now = ratios(result)
    both = [key for key in now if key in before]
    lines = [
        f"guard: {' '.join(key)}: ratio {now[key]:.2f}x, committed {before[key]:.2f}x"
        for key in both
        if now[key] < NOISE * before[key]
    ]
    return "\n".join(lines) or f"guard: none of {len(both)} ratios is below {NOISE:g} of the committed one"
