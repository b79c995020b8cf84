"""What is compared where gradients are clipped in place: clip_grad_norm_, attach, and a step that never clips.

A clip changes what it clips, so the threshold shrinks by a millionth per call: every call then has something to clip.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import Parameter
from torch.nn.utils import clip_grad_norm_

import fatclip_ops as fc

from .cases import LAM, LR, MODELS, Case, Side

SHRINK = 1 - 1e-6
SMALL = tuple(MODELS)[:3]
Work = Callable[[list[Parameter]], Callable[[], Any]]


def _case(op: str, model: str, goal: str, sides: dict[str, Work]) -> Case:
    """Every side on parameters and gradients of its own; its state is both."""
    torch.manual_seed(0)
    start = [torch.randn(s) for s in MODELS[model]]
    grads = [torch.randn(s) for s in MODELS[model]]
    elements = sum(t.numel() for t in start)
    case = Case(op, f"{model}: {len(start)} tensors, {elements:,} parameters", elements, goal=goal)
    case.tolerance = max(case.tolerance, 2e-12 * elements)  # torch sums squares in float32: 8e-5 off at 71 million
    for name, make in sides.items():
        params = [Parameter(t.clone()) for t in start]
        for p, g in zip(params, grads, strict=True):
            p.grad = g.clone()
        case.sides[name] = Side(make(params), _state_of(params))
    return case


def _state_of(params: list[Parameter]) -> Callable[[], list[torch.Tensor]]:
    return lambda: [t.detach() for p in params for t in (p, p.grad) if t is not None]


def clip_case(model: str, clips: bool) -> Case:
    """fatclip_ops.clip_grad_norm_ against torch's."""
    goal = 5.0 if model in SMALL else 1.1 if clips else 1.8

    def side(clip: Callable[..., Any], **how: bool) -> Work:
        def make(params: list[Parameter]) -> Callable[[], Any]:
            lam = LAM if clips else 1e9

            def run() -> None:
                nonlocal lam
                lam *= SHRINK
                clip(params, lam, **how)

            return run

        return make

    return _case(
        f"clip_grad_norm_, {'' if clips else 'not '}clipped",
        model,
        f">= {goal:g}x",
        {
            "fatclip": side(fc.clip_grad_norm_),
            "default": side(clip_grad_norm_),
            "foreach": side(clip_grad_norm_, foreach=True),
            "for loop": side(clip_grad_norm_, foreach=False),
        },
    )


def attach_case(model: str, kind: str) -> Case:
    """attach + AdamW against torch's clip + the same AdamW."""

    def ours(params: list[Parameter]) -> Callable[[], Any]:
        opt = torch.optim.AdamW(params, lr=LR, **{kind: True})
        handle = fc.attach(opt, lam=LAM)

        def run() -> None:
            handle.lam *= SHRINK
            opt.step()

        return run

    def theirs(**how: bool) -> Work:
        def make(params: list[Parameter]) -> Callable[[], Any]:
            opt, lam = torch.optim.AdamW(params, lr=LR, **{kind: True}), LAM

            def run() -> None:
                nonlocal lam
                lam *= SHRINK
                clip_grad_norm_(params, lam, **how)
                opt.step()

            return run

        return make

    sides = {"fatclip": ours, "default": theirs(), "for loop": theirs(foreach=False)}
    return _case(f"attach, AdamW {kind}", model, "", sides)


def unclipped_case(model: str) -> Case:
    """FatClipPI with lam=inf: in one pass where nothing has to be decided, against the two passes of "skip"."""

    def side(nonfinite: str) -> Work:
        return lambda params: fc.FatClipPI(params, lr=LR, lam=math.inf, nonfinite=nonfinite).step

    sides = {"one pass": side("propagate"), "two passes": side("skip")}
    return _case("step, lam=inf", model, ">= 1.3x", sides)
