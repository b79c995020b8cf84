"""The server step by what it meets: no row clipped, half of them, no threshold; updates one by one; a busy machine."""

from collections.abc import Callable, Iterator

import torch

import fatclip_ops as fc

from .cases import LR, Case, Side, server_case

LARGE = ((100, 7_850), (10, 940_362), (100, 940_362))
PLAIN_GOALS = dict(zip(LARGE, (2.8, 1.6, 1.5), strict=True))
HALF_GOALS = dict(zip(LARGE, (1.3, 1.0, 1.0), strict=True))


def unclipped_case(m: int, d: int) -> Case:
    """lam=inf against torch's plain mean, which takes no norms and rejects nobody."""
    torch.manual_seed(0)
    deltas = torch.randn(m, d)
    x, y = torch.zeros(d), torch.zeros(d)
    server = fc.FatClipServer([x], lr=LR)
    sides = {
        "fatclip": Side(lambda: server.step(deltas), lambda: [x]),
        "mean(0)": Side(lambda: y.sub_(deltas.mean(0), alpha=LR), lambda: [y]),
    }
    return Case("server, lam=inf", f"{m} x {d:,}", m * d, sides, goal=">= 0.9x")


def stream_case(m: int, d: int) -> Case:
    """add() and finish() against step() on the same rows."""
    torch.manual_seed(0)
    rows = list(torch.randn(m, d))
    lam = float(rows[0].norm())
    x, y = torch.zeros(d), torch.zeros(d)
    step, stream = fc.FatClipServer([x], lr=LR, lam=lam), fc.FatClipServer([y], lr=LR, lam=lam)

    def add() -> None:
        for row in rows:
            stream.add(row)
        stream.finish()

    sides = {"step": Side(lambda: step.step(rows), lambda: [x]), "add": Side(add, lambda: [y])}
    return Case("server, add / step", f"{m} x {d:,}", m * d, sides, goal="<= 1.2x")


def crowded_case(m: int, d: int) -> Case:
    """The same step while another process keeps one core busy."""
    case = server_case(m, d, compile_too=False, op="server, busy")
    case.goal, case.beside_busy = ">= 1x", True
    return case


def all_cases() -> Iterator[Callable[[], Case]]:
    for m, d in LARGE:
        yield lambda m=m, d=d: server_case(m, d, False, "server, 0 % clipped", 0.0, PLAIN_GOALS[m, d])
    for m, d in LARGE:
        yield lambda m=m, d=d: server_case(m, d, False, "server, 50 % clipped", 0.5, HALF_GOALS[m, d])
    for m, d in LARGE:
        yield lambda m=m, d=d: unclipped_case(m, d)
    for m, d in LARGE:
        yield lambda m=m, d=d: stream_case(m, d)
    for m, d in LARGE[:2]:
        yield lambda m=m, d=d: crowded_case(m, d)
