"""Small simulations whose clients are shared among the ranks of torchrun; rank 0 prints a digest of each."""

import hashlib
import json

import own_cases
import sim_cases

import fedsim
from fedsim.engines import cohorts
from fedsim.engines.ranks import Ranks
from fedsim.measure import NoiseObserver

PI = {"algorithm": "fatclip-pi", "lam": 0.4}


def own(**settings):
    """A module with BatchNorm and dropout on the sequential engine."""
    x, y = own_cases.images(60)
    dealt = fedsim.split((x, y), clients=6, classes=2)
    net = lambda: own_cases.Plain(norm=True, drop=0.2)  # noqa: E731
    return fedsim.prepare(net, dealt, (x, y), rounds=3, participants=5, batch=4, local_epochs=1, **PI, **settings)


CASES = {
    "stacked, unequal clients": lambda: sim_cases.simulation(local_epochs=2, participants=6, **PI),
    "sequential, odd number of chunks": lambda: sim_cases.simulation(
        "mnist-mlp", engine="sequential", participants=5, **PI
    ),
    "a threshold that follows": lambda: sim_cases.simulation(
        "mnist-mlp", engine="sequential", algorithm="fatclip-pi", lam="quantile:0.5", local_steps=3
    ),
    "blocks of several chunks": lambda: sim_cases.simulation("cifar10-cnn", engine="sequential", local_steps=2, **PI),
    "noise against the full gradient": lambda: sim_cases.simulation("mnist-mlp", engine="sequential", local_steps=2),
    "more ranks than chunks": lambda: sim_cases.simulation(clients=2, partition="iid", **PI),
    "buffers averaged": lambda: own(),
    "buffers local": lambda: own(buffers="local"),
}


def digest(name, ranks):
    """Of three rounds: the model, the records without their times, and what an observer saw."""
    cohorts.MOST_PARTIALS = 3 if name == "blocks of several chunks" else 256
    observer = NoiseObserver(("vectors",), wants_full=True) if name.startswith("noise") else None
    with CASES[name]() as simulation:
        if ranks is not None:
            simulation.share(ranks)
            if not ranks.leads:
                return simulation.follow()
        records = [simulation.step(observer) for _ in range(3)]
        found = hashlib.sha256(simulation.x.numpy().tobytes())
        seen = [{k: v for k, v in r.items() if k not in ("seconds", "phases")} for r in records]
        found.update(json.dumps(seen).encode())
        if observer is not None:
            found.update(observer.streams["full/vectors"].norms.numpy().tobytes())
    return found.hexdigest()


if __name__ == "__main__":
    with Ranks.joined() as ranks:
        assert ranks is not None
        digests = {name: digest(name, ranks) for name in CASES}
        if ranks.leads:
            print("digests", json.dumps(digests), flush=True)
