"""Run by test_far_device.py in a process of its own: cases.py LIBRARY NAME prints one JSON line per case.

A device has to be registered before autograd starts its threads, and cannot be taken back.
"""

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
torch.ops.load_library(sys.argv[1])
torch.utils.rename_privateuse1_backend("far")
torch._register_device_module(
    "far",
    SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 1,
        current_device=lambda: 0,
        _is_in_bad_fork=lambda: False,
        manual_seed_all=lambda seed: None,
    ),
)

from sim_cases import MODELS, WORK, dataset, simulation, trained  # noqa: E402

from fatclip_ops import (  # noqa: E402
    FatClipPI,
    FatClipPR,
    FatClipServer,
    Quantile,
    attach,
    batched_clipped_sgd_,
    clip_and_aggregate,
    clip_grad_norm_,
    clip_rows_,
    global_norm,
    row_norms,
)
from fedsim import learning_task  # noqa: E402

FAR = torch.device("far:0")
here = learning_task.find_device
learning_task.find_device = lambda config: here(config) if config.device == "cpu" else FAR


def say(**line):
    print(json.dumps(line), flush=True)


def distance(a, b, start):
    return float((a - b).norm() / (b - start).norm())


def mixtures():
    """What CUDA refuses is refused here: otherwise nothing below would mean anything."""
    a, b = torch.ones(3, device=FAR), torch.ones(3)
    for name, operation in (
        ("add", lambda: a + b),
        ("cat", lambda: torch.cat([a, b])),
        ("numpy", lambda: a.numpy()),
        ("out", lambda: torch.add(a, 1, out=b)),
        ("index", lambda: a.index_select(0, torch.zeros(1, dtype=torch.long))),
    ):
        try:
            operation()
            say(name=name, refused=False)
        except (RuntimeError, TypeError) as error:
            say(name=name, refused=True, text=str(error))


def rounds():
    for name in MODELS:
        for engine in ("sequential", "stacked"):
            for work in WORK:
                for algorithm in ("fatclip-pi", "fatclip-pr") if name == "mnist-logistic" else ("fatclip-pi",):
                    settings = {"problem": name, "engine": engine, "algorithm": algorithm, "lam": 0.3, **work}
                    a, start, one = trained(2, device="cuda", workers=2, **settings)
                    b, _, other = trained(2, **settings)
                    off = max(abs(x - y) / abs(y) for x, y in zip(one["norms"], other["norms"], strict=True))
                    same = one["accuracy"] == other["accuracy"] and one["clipped"] == other["clipped"]
                    line = {"distance": distance(a, b, start), "norms": off, "same": same, "device": str(a.device)}
                    say(name=f"{name} {engine} {algorithm} {work}", **line)


class Watch:
    wants_full = True

    def __init__(self):
        self.rows, self.full = [], None

    def update(self, round_, clients, deltas):
        self.rows.append(deltas.clone())

    def end_round(self, round_, full):
        self.full = full


def observers():
    for engine in ("sequential", "stacked"):
        seen = []
        for device in ("cuda", "cpu"):
            with simulation("mnist-mlp", engine=engine, device=device, local_steps=2) as s:
                watch = Watch()
                s.step(watch)
                seen.append((torch.cat(watch.rows), watch.full))
        (rows, full), (want_rows, want_full) = seen
        off = max(distance(rows, want_rows, 0), distance(full, want_full, 0))
        say(name=f"observer {engine}", distance=off, device=str(rows.device))


def broken_clients():
    """A client whose samples are not finite is left out there as here."""
    for engine in ("sequential", "stacked"):
        ends = []
        for device in ("cuda", "cpu"):
            data = dataset("mnist-logistic")
            data.x[data.x.shape[0] // 2] = math.nan
            settings = {"engine": engine, "device": device, "local_epochs": 1, "on_client_error": "reject"}
            with simulation(data=data, **settings) as s:
                start, record = s.x.clone(), s.step()
                ends.append((s.x.clone(), start, record["rejected"]))
        (a, _, rejected), (b, start, want) = ends
        say(name=f"broken {engine}", distance=distance(a, b, start), same=rejected == want and len(want) == 1)


def resumed():
    with simulation("cifar10-cnn", device="cuda", local_steps=2) as s:
        s.step()
        state = s.state_dict()
        s.step()
        want = s.x.clone()
    with simulation("cifar10-cnn", device="cuda", local_steps=2) as s:
        s.load_state_dict(state)
        s.step()
        say(name="resumed", same=torch.equal(s.x, want), device=str(state["x"].device))


def library():
    g = torch.Generator().manual_seed(0)
    rows, x = torch.randn(5, 33, generator=g, dtype=torch.float64), torch.randn(5, 33, generator=g, dtype=torch.float64)

    def both(name, function):
        near, far = function(torch.device("cpu")), function(FAR)
        say(name=name, distance=distance(far.cpu(), near, 0), device=str(far.device))

    both("global_norm", lambda d: global_norm([rows.to(d)]))
    both("row_norms", lambda d: row_norms(rows.to(d)))
    both("clip_and_aggregate", lambda d: clip_and_aggregate(rows.to(d), 3.0))

    def clipped(d):
        m = rows.to(d, copy=True)
        clip_rows_(m, 3.0)
        return m

    def stepped(d):
        m = x.to(d, copy=True)
        batched_clipped_sgd_(m, rows.to(d), 0.1, 3.0)
        return m

    def server(d):
        p = [x[0].to(d, copy=True)]
        FatClipServer(p, lam=3.0).step(rows.to(d))
        return p[0]

    def optimizer(make):
        def run(d):
            p = torch.nn.Parameter(x.to(d, copy=True))
            opt = make([p], lr=0.1, lam=1.0, momentum=0.9, weight_decay=0.1)
            if isinstance(opt, FatClipPR):
                opt.begin_round()
            for _ in range(3):
                opt.zero_grad()
                (p * rows.to(d)).square().sum().backward()
                opt.step()
            return opt.end_round() if isinstance(opt, FatClipPR) else p.detach()

        return run

    def gradient(mixed):
        def run(d):
            params = [torch.nn.Parameter(t.to(d)) for t in (x, rows)]
            for p, g in zip(params, (rows, x), strict=True):
                p.grad = g.to(d, copy=True)
            if mixed:  # a model on two devices has one norm
                params.append(torch.nn.Parameter(x[0].clone()))
                params[-1].grad = rows[0].clone()
            norm = clip_grad_norm_(params, 3.0)
            return torch.cat([*(p.grad.reshape(-1).to(d) for p in params), norm.reshape(1).to(d)])

        return run

    def attached(d):
        p = torch.nn.Parameter(x.to(d, copy=True))
        opt = torch.optim.AdamW([p], lr=0.1, foreach=False)
        handle = attach(opt, lam=Quantile(0.5, start=1.0))
        for step in range(3):
            p.grad = rows.to(d) * (math.nan if step == 1 else 1.0)
            opt.step()
        assert (handle.steps, handle.clipped, handle.skipped) == (3, 2, 1)
        return torch.cat([p.detach().reshape(-1), torch.as_tensor(handle.lam, device=d).reshape(1)])

    both("clip_grad_norm_", gradient(False))
    both("clip_grad_norm_, two devices", gradient(True))
    both("attach", attached)
    both("clip_rows_", clipped)
    both("batched_clipped_sgd_", stepped)
    both("FatClipServer", server)
    both("FatClipPI", optimizer(FatClipPI))
    both("FatClipPR", optimizer(FatClipPR))


{f.__name__: f for f in (mixtures, rounds, observers, broken_clients, resumed, library)}[sys.argv[2]]()
