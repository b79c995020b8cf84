"""Runs of one's own: history, files, resume after a kill, report, and that a non-picklable model has workers."""

import csv
import doctest
import json
import math
import os
import signal
import subprocess
import sys
import time
from functools import partial

import own_cases
import pytest
import torch
from own_cases import images, simulate
from run_cases import facts
from torch import nn
from torch.nn import functional

import fedsim
from fedsim import research, table
from fedsim.cli import main
from fedsim.data import samples
from fedsim.identity import describe_code
from fedsim.models import base


class Squared(own_cases.Plain):
    """The same weights, and another output."""

    def forward(self, x):
        return super().forward(x).square()


class Again(Squared):
    """Another output by the class that it inherits from."""


def algorithm(local_step):
    """Always of the same name, as when its file has been edited."""
    return type("Mine", (fedsim.Algorithm,), {"local_step": local_step})(eta_l=0.1)


@pytest.mark.parametrize("module", [research, samples, table, base])
def test_the_examples_in_the_docstrings_run(module):
    done = doctest.testmod(module)
    assert (done.failed, done.attempted > 0) == (0, True)


def test_a_run_has_history_files_plot_and_model(tmp_path):
    run = simulate(rounds=4, eval_every=2)
    assert [row["round"] for row in run.history] == [1, 2, 3, 4]
    assert [row["accuracy"] is None for row in run.history] == [True, False, True, False]
    assert run.history[0]["norm_median"] > 0
    run.to_csv(tmp_path / "run.csv")
    rows = list(csv.DictReader((tmp_path / "run.csv").open()))
    assert [float(row["loss"]) for row in rows if row["loss"]] == [r["loss"] for r in run.history if r["loss"]]
    assert len(run.plot("loss", "accuracy").axes[0].lines) == 2
    with pytest.raises(fedsim.InputError, match=r"plot\('acc'\): there is no such column"):
        run.plot("acc")
    x, y = images(30, seed=1)
    with torch.no_grad():
        right = (run.model(x).argmax(1) == y).double().mean().item()
    assert right == run.history[-1]["accuracy"]


def test_pandas_takes_the_history(monkeypatch):
    class Pandas:
        DataFrame = staticmethod(len)

    monkeypatch.setitem(sys.modules, "pandas", Pandas)
    assert simulate(rounds=2).to_pandas() == 2


def test_a_run_directory_has_everything_and_the_same_call_finds_it_finished(tmp_path, capsys):
    out = tmp_path / "mine"
    kept = simulate(out)
    plain = simulate(engine=kept.engine)  # a second trial may end otherwise
    assert all(torch.equal(a, b) for a, b in zip(plain.model.parameters(), kept.model.parameters(), strict=True))
    names = {path.name for path in out.iterdir()}
    assert {"config.json", "environment.json", "own.png", "own.svg", "report.html"} <= names
    again = simulate(out)
    assert again.history == kept.history
    assert all(torch.equal(a, b) for a, b in zip(again.model.buffers(), kept.model.buffers(), strict=True))
    assert main(["report", str(out)]) == 0
    assert "last accuracy" in capsys.readouterr().out
    engine = json.loads((out / "cells" / "the-run" / "result.json").read_text())["measured"]
    assert engine["engine"] == kept.engine
    assert engine["reason"] == kept.engine_reason


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"lam": 0.6}, "lam=0.6 here, but lam=0.5"),
        ({"seed": 1}, "seed=1 here"),
        ({"metrics": {}}, "own=.* here, but own="),
        ({"metrics": {"share": fedsim.accuracy}}, "own=.* here, but own="),
        ({"metrics": {"accuracy": lambda o, y: (o.argmax(1) != y).float()}}, "own=.* here, but own="),
        ({"loss": lambda o, y: 2 * functional.cross_entropy(o, y)}, "own=.* here, but own="),
        ({"model": lambda: Squared(norm=True)}, "own=.* here, but own="),
    ],
)
def test_another_run_does_not_resume_this_one(tmp_path, changes, text):
    out = tmp_path / "mine"
    simulate(out)
    with pytest.raises(fedsim.InputError, match=text):
        simulate(out, **changes)


def scaled(factor):
    return lambda output, y: factor * functional.cross_entropy(output, y)


def smoothed(output, y, by=0.1):
    return functional.cross_entropy(output, y, label_smoothing=by)


def test_what_computes_something_else_is_told_apart():
    known = [
        scaled(1.0), scaled(2.0), smoothed, partial(smoothed, by=0.2), partial(smoothed, by=0.3),
        nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.1), functional.cross_entropy, functional.mse_loss,
        lambda o, y: (o - y).square().mean(), lambda o, y: (o - y).abs().mean(), own_cases.Plain(), Squared(),
        Again(), torch.no_grad()(smoothed), algorithm(lambda self, clients: clients.sgd_(0.5)),
        algorithm(lambda self, clients: clients.sgd_(0.25)),
        own_cases.Plain(drop=0.1), own_cases.Plain(drop=0.2),
    ]  # fmt: skip
    texts = [describe_code(thing) for thing in known]
    assert len(set(texts)) == len(known)
    assert describe_code(scaled(2.0)) == texts[1]
    assert "0x" not in "".join(texts)  # no address, which another process would not have


HELD = torch.ones(3)


def helper(output, y):
    return (HELD * (output - y)).square().mean()


def by_name(output, y, *, power=2):
    return helper(output, y) ** power


class Tuned(fedsim.Algorithm):
    rate = 0.5

    @property
    def half(self):
        return self.rate / 2


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (sys.modules[__name__], "HELD", torch.full((3,), 2.0)),
        (sys.modules[__name__], "helper", lambda output, y: (output - y).abs().mean()),
        (by_name, "__kwdefaults__", {"power": 3}),
        (Tuned, "rate", 0.25),
        (Tuned, "half", property(lambda self: self.rate / 4)),
    ],
)
def test_a_change_of_what_code_uses_is_seen(owner, name, value, monkeypatch):
    weighted = nn.CrossEntropyLoss(weight=torch.ones(3))
    things = [
        by_name,
        Tuned(0.1),
        partial(functional.cross_entropy, weight=HELD),
        lambda o, y: weighted(o, y) + by_name(o, y),
    ]
    before = [describe_code(thing) for thing in things]
    monkeypatch.setattr(owner, name, value)
    assert [describe_code(thing) for thing in things] != before


@pytest.mark.parametrize("frozen", [False, True])
def test_a_run_with_other_frozen_parameters_or_loss_weights_is_another(tmp_path, frozen):
    def model(scale=1.0):
        module = own_cases.Plain(frozen=True)
        with torch.no_grad():
            module.conv.weight.fill_(scale)
        return module

    simulate(tmp_path / "mine", model=model, loss=nn.CrossEntropyLoss(weight=torch.ones(3)))
    changed = {"model": partial(model, 2.0)} if frozen else {"loss": nn.CrossEntropyLoss(weight=torch.full((3,), 2.0))}
    with pytest.raises(fedsim.InputError, match=r"own=.* here, but own="):
        simulate(tmp_path / "mine", **{"model": model, "loss": nn.CrossEntropyLoss(weight=torch.ones(3)), **changed})


def test_a_killed_run_ends_as_if_it_had_not_been_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("fedsim.figures.save", lambda *_: [])
    monkeypatch.setattr("fedsim.run.runner.SECONDS_BETWEEN_CHECKPOINTS", 0.05)
    settings = {"rounds": 60, "engine": "sequential"}
    whole = simulate(tmp_path / "whole", **settings)
    # in a process of its own: OpenMP has run in this one, and does not survive a fork
    program = f"""
from fedsim.run import runner
from own_cases import simulate
runner.SECONDS_BETWEEN_CHECKPOINTS = 0.05
simulate({str(tmp_path / "killed")!r}, workers=2, **{settings!r})
"""
    env = {**os.environ, "PYTHONPATH": os.path.dirname(own_cases.__file__)}
    process = subprocess.Popen([sys.executable, "-c", program], env=env)
    journal = tmp_path / "killed" / "cells" / "the-run" / "journal.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (journal.exists() and journal.read_bytes().count(b"\n") >= 20):
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    resumed = simulate(tmp_path / "killed", **settings)
    assert facts(tmp_path / "killed") == facts(tmp_path / "whole")
    assert all(
        torch.equal(a, b)
        for a, b in zip(resumed.model.state_dict().values(), whole.model.state_dict().values(), strict=True)
    )


def test_a_bar_is_shown_and_closed(capsys):
    simulate(progress=True, rounds=2)
    shown = capsys.readouterr().err
    assert "the run: loss" in shown
    assert math.isfinite(float(shown.split("loss ")[-1].split(",")[0]))


def test_the_front_door_is_found_without_torch():
    program = "import fedsim, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        fedsim.simulat  # noqa: B018
