"""Every experiment: the paper's settings to the letter, and a run of a small size from one command."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsim import experiments, theory
from fedsim.algorithms import ALGORITHMS
from fedsim.cli import main
from fedsim.config import Config
from fedsim.data import Dataset
from fedsim.errors import InputError
from fedsim.experiments import NAMES, Axis, axis, find
from fedsim.experiments.grid import describe_changes, describe_reading
from fedsim.measure import FinalLoss
from fedsim.simulation import Simulation

# What the paper's experiments fix, key by key; every cell of the paper preset must agree.
CIFAR10 = {
    "problem": "cifar10-cnn",
    "batch": 500,
    "eta_l": 0.1,
    "eta": 1.0,
    "rounds": 4000,
    "partition": "classes",
    "samples_per_client": None,
}
SHAKESPEARE = {"problem": "shakespeare-lstm", "clients": 143, "partition": "roles", "batch": 10, "eta_l": 0.8}
QUADRATIC = {"problem": "quadratic", "clients": 5, "local_steps": 2, "rounds": 300, "eta_l": 0.1, "dim": 3}
SETTINGS = {
    "synthetic-cauchy": QUADRATIC
    | {"noise": "cauchy", "noise_scale": 2.1, "eta": 0.1, "reduce": "sum", "delta": "gradient"},
    "synthetic-alpha": QUADRATIC
    | {"noise": "stable", "noise_scale": 1.0, "eta": 0.1, "reduce": "sum", "delta": "gradient"},
    "cifar10-alpha": CIFAR10 | {"clients": 100, "participants": None, "algorithm": "fedavg"},
    "cifar10-failure": CIFAR10 | {"clients": 10, "participants": 5, "algorithm": "fedavg"},
    "cifar10-success": CIFAR10 | {"clients": 10, "participants": 5, "local_epochs": 2},
    "cifar10-stability": {key: value for key, value in CIFAR10.items() if key != "eta_l"} | {"participants": 5},
    "shakespeare-alpha": SHAKESPEARE | {"eta": 1.0, "rounds": 150, "samples_per_client": None},
    "mnist-alpha-error": {"problem": "mnist-logistic", "clients": 100, "rounds": 150, "batch": 64, "eta_l": 0.1},
    "tail-estimators": {"clients": 20, "local_steps": 1, "rounds": 10, "reduce": "mean"},
    "rates": {"problem": "quadratic", "noise": "stable", "noise_scale": 1.0, "reduce": "mean", "delta": "gradient"},
    "baselines": {},
    "control": {"clients": 10, "partition": "iid", "eta_l": 0.05, "local_epochs": 2},
}
GRID = {
    "synthetic-cauchy": {"algorithm": ["FedAvg", "FAT-Clipping-PR", "FAT-Clipping-PI"]},
    "synthetic-alpha": {"algorithm": ["FAT-Clipping-PR", "FAT-Clipping-PI"], "alpha": ["0.5", "1.0", "1.5"]},
    "cifar10-success": {
        "p": ["1", "2", "5", "10"],
        "algorithm": ["FedAvg", "FAT-Clipping-PR", "FAT-Clipping-PI"],
    },
}
WORK = ["one step", "1 epoch", "2 epochs", "5 epochs"]
GRID |= {name: {"work": WORK, "p": ["1", "2", "5", "10"]} for name in ("cifar10-alpha", "mnist-alpha-error")}
GRID["shakespeare-alpha"] = {"work": WORK}
GRID["cifar10-stability"] = {
    "rate": ["0.05", "0.1", "0.2", "0.35", "0.5"],
    "p": ["2", "10"],
    "algorithm": [
        *("FedAvg", "FAT-Clipping-PR", "FAT-Clipping-PI"),
        *("FAT-Clipping-PR, quantile", "FAT-Clipping-PI, quantile"),
    ],
}


@pytest.mark.parametrize("name", NAMES)
def test_the_paper_preset_is_the_papers_setting(name):
    cells = find(name).cells("paper")
    for cell in cells:
        config = cell.config.to_dict()
        assert {key: config[key] for key in SETTINGS[name]} == SETTINGS[name]
    assert describe_changes(cells) == []
    if name in ("cifar10-alpha", "cifar10-success", "shakespeare-alpha", "mnist-alpha-error"):
        assert {(c.config.delta, c.config.reduce) for c in cells} == {("displacement", "mean")}


@pytest.mark.parametrize("name", GRID)
def test_the_grid_is_the_papers(name):
    cells = find(name).cells("quick", 1)
    axes = {axis: list(dict.fromkeys(cell.levels[axis] for cell in cells)) for axis in GRID[name]}
    assert axes == GRID[name]
    assert len(cells) == math.prod(map(len, axes.values()))


def test_thresholds_are_the_papers():
    lams = {(name, c.config.algorithm): c.config.lam for name in NAMES[:5] for c in find(name).cells("paper", 1)}
    assert lams["synthetic-cauchy", "fatclip-pi"] == 3
    assert lams["synthetic-cauchy", "fatclip-pr"] == 5
    assert lams["cifar10-success", "fatclip-pi"] == 50
    assert lams["cifar10-success", "fatclip-pr"] == 2
    assert lams["synthetic-cauchy", "fedavg"] == lams["cifar10-success", "fedavg"] == math.inf


def test_five_trials_of_the_success_rates_each_whole_before_the_next():
    cells = find("cifar10-success").cells("paper")
    assert [cell.config.seed for cell in cells] == [seed for seed in range(5) for _ in range(4 * 3)]


@pytest.mark.parametrize("name", [name for name in NAMES if find(name).default == "quick"])
def test_the_quick_preset_says_what_it_reduced(name):
    cells = find(name).cells("quick")
    (text,) = describe_changes(cells)
    assert text.startswith("Changed from the paper: ")
    paper = cells[0].paper
    assert f"rounds {cells[0].config.rounds} (paper {paper.rounds})" in text


def test_the_reading_is_always_told():
    assert describe_reading(find("cifar10-alpha").cells("paper")) == (
        'Reading: Delta = displacement x_t - x (delta="displacement"), server factor 1 on the mean (reduce="mean").'
    )
    assert 'delta="gradient"' in describe_reading(find("rates").cells("paper"))
    assert "server factor" in describe_reading(find("rates").cells("paper", 1, ["eta=0.5"]))


def test_the_rates_take_the_theorems_parameters():
    for cell in find("rates").cells("paper", 1):
        c = cell.config
        sizes, convex = (c.clients, c.local_steps, c.rounds), cell.levels["case"] != "non-convex"
        free = {"c": c.clients * c.local_steps} if cell.levels["case"] == "strongly convex" else {}
        choice = theory.parameters(c.algorithm, c.noise_alpha, *sizes, convex, **free)
        lam = choice.lam or theory.parameters("fatclip-pi", c.noise_alpha, *sizes, convex).lam
        assert (c.lam, c.eta, c.eta_l) == (lam, choice.eta_eta_l, choice.eta_l_max)
        choice.check()  # eta * eta_L * K * L <= 1
    assert sorted({c.config.noise_alpha for c in find("rates").cells("paper", 1)}) == [1.2, 1.5, 1.8, 2.0]
    assert {c.config.lam for c in find("rates").cells("paper", 1, ["lam=7"])} == {7.0}


def test_the_error_of_the_strongly_convex_theorems_is_of_a_weighted_round():
    # step = eta K = 1: weights 1, 2 and 4 of 7; losses 7 and 14, 0 and 7, 7 and 0: (7 + 0 + 28) / 7 and (14 + 14) / 7
    rows = [{"loss": loss, "clipped": 0.0} for loss in ([7.0, 14.0], [0.0, 7.0], [7.0, 0.0])]
    with Simulation(Config(eta=0.5, local_steps=2)) as sim:
        found = find("rates").measure.result(sim, rows, None)
    assert found["weighted"] == pytest.approx([5.0, 4.0])
    assert found["squares"] == pytest.approx([28 / 3, 14.0])


def test_every_baseline_goes_through_three_settings_of_its_own_scale():
    cells = find("baselines").cells("paper", 1)
    assert len(cells) == 4 * 10 * 3
    for first, second, third in zip(*[iter(cells)] * 3, strict=True):
        lams, etas = ({cell.config.to_dict()[key] for cell in (first, second, third)} for key in ("lam", "eta"))
        assert sorted((len(lams), len(etas))) == [1, 3]
        swept = "eta" if len(etas) == 3 else "lam"
        values = [getattr(cell.config, swept) for cell in (first, second, third)]
        assert [value / values[0] for value in values] == pytest.approx([1, 3, 9])
    assert {cell.config.algorithm for cell in cells} == set(ALGORITHMS) - {"sgd", "gclip"}
    with pytest.raises(InputError, match='eta is an axis of baselines: pick its levels by --only "setting=low"'):
        find("baselines").cells("paper", 1, ["eta=1"])


def test_a_setting_that_only_some_levels_make_reaches_those_alone():
    cells = find("synthetic-cauchy").cells("paper", 1, ["lam=9", "rounds=5"])
    assert [(c.config.lam, c.config.rounds) for c in cells] == [(math.inf, 5), (9.0, 5), (9.0, 5)]


def test_steps_in_place_of_epochs_can_be_swept():
    cells = find("sweep control local_steps=1,2").cells("paper", 1, only=("task=MNIST, i.i.d.",))
    assert [(c.config.local_steps, c.config.local_epochs) for c in cells] == 3 * [(1, None), (2, None)]


def test_a_setting_that_only_the_chosen_level_has_can_be_set():
    chosen = ("problem=E1, Cauchy", "method=FedAvgM", "setting=low")
    (cell,) = find("baselines").cells("paper", 1, ["momentum=0.5"], chosen)
    assert cell.config.options == {"momentum": 0.5}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": "a/b"}, "name must be the name of a file, got 'a/b'"),
        ({"name": ""}, "name must be the name of a file, got ''"),
        ({"default": "papr"}, "default must be quick or paper, got 'papr'"),
        ({"axes": axis("c", "clients", (2, 3))}, "axes must be a tuple of Axis, got Axis"),
        ({"measure": FinalLoss}, "measure must be a Measurement, got <class"),
    ],
)
def test_an_experiment_that_cannot_run_is_refused_when_it_is_made(wrong, message):
    with pytest.raises(InputError, match=f"Experiment: {message}"):
        replace(find("synthetic-cauchy"), **wrong)


def test_levels_may_be_numbers_and_presets_may_be_left_out():
    numbers = replace(
        find("synthetic-cauchy"), axes=(Axis("c", {2: {"clients": 2}}, ("clients",)),), seeds={"paper": 7}
    )
    (cell,) = numbers.cells("quick", only=("c=2",))
    assert cell.levels == {"c": "2"}
    assert len(cell.seeds) == 1


def test_every_cell_has_a_folder_of_its_own():
    for name in NAMES:
        folders = [cell.folder for cell in find(name).cells("paper")]
        assert len(set(folders)) == len(folders)
        assert all("/" not in folder and " " not in folder for folder in folders)


def test_seeds_follow_the_first_one():
    assert find("synthetic-cauchy").cells("paper", 3, ["seed=10"])[0].seeds == (10, 11, 12)
    cells = find("cifar10-success").cells("paper", 2, ["seed=4"], ["p=1", "algorithm=FedAvg"])
    assert [(cell.seeds, cell.levels["seed"]) for cell in cells] == [((4,), "4"), ((5,), "5")]


def test_the_slip_of_the_paper_is_named():
    assert "its own theory says the opposite" in " ".join(find("synthetic-alpha").notes)


def test_experiments_of_a_kind_are_a_short_file():
    for path in Path(experiments.__file__).parent.glob("*.py"):
        assert len(path.read_text().splitlines()) <= 250, path.name


def images(name, root=None):
    """Random samples that look like the named data set, the least the experiments can be run on."""
    generator = torch.Generator().manual_seed(1)
    count, held = 240, 40
    if name == "shakespeare":
        x = torch.randint(0, 80, (count + held, 80), generator=generator).to(torch.uint8)
        y = torch.randint(0, 80, (count + held,), generator=generator)
        roles, test_roles = (np.array_split(np.arange(n), 20) for n in (count, held))
        return Dataset(name, x[:count], y[:count], x[count:], y[count:], 80, list(roles), list(test_roles))
    shape = (784,) if name == "mnist" else (3, 32, 32)
    x = torch.randn(count + held, *shape, generator=generator)
    y = torch.arange(count + held) % 10
    return Dataset(name, x[:count], y[:count], x[count:], y[count:], 10)


TINY = {
    "synthetic-cauchy": ["--seeds", "2", "--set", "rounds=3"],
    "synthetic-alpha": ["--seeds", "2", "--set", "rounds=3"],
    "cifar10-alpha": ["--set", "rounds=1", "clients=10", "samples_per_client=2", "batch=2", "--only", "work=one step"],
    "cifar10-failure": ["--set", "rounds=2", "samples_per_client=2", "batch=2", "--only", "p=2", "--only", "p=5"],
    "cifar10-success": ["--seeds", "2", "--set", "rounds=1", "samples_per_client=2", "batch=2", "--only", "p=2"],
    "cifar10-stability": ["--seeds", "1", "--set", "rounds=1", "samples_per_client=2", "batch=2", "--only", "rate=0.1"],
    "shakespeare-alpha": ["--set", "rounds=1", "clients=8", "samples_per_client=2"],
    "mnist-alpha-error": ["--set", "rounds=2", "clients=20", "batch=4"],
    "tail-estimators": ["--set", "rounds=1", "--only", "noise=Gaussian", "--only", "noise=Cauchy"],
    "rates": ["--seeds", "2", "--only", "point=T=125", "--only", "point=T=250", "--only", "alpha=1.5"],
    "baselines": ["--seeds", "2", "--set", "rounds=2", "samples_per_client=2", "batch=2", "--only", "setting=low"]
    + [word for name in ("E1, Cauchy", "CNN, eta_l 0.1") for word in ("--only", f"problem={name}")],
    "control": ["--seeds", "1", "--set", "rounds=1", "--only", "task=MNIST, i.i.d."],
}


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_runs_from_one_command(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("fedsim.data.load", images)
    out = tmp_path / "run"
    assert main(["run", name, "--out", str(out), *TINY[name]]) == 0
    text = capsys.readouterr().out
    assert f"{find(name).code}  {find(name).title}" in text
    assert "Reading: Delta =" in text
    assert "Changed from the paper: " in text or name in ("rates", "tail-estimators")
    for suffix in ("", *find(name).more):
        for kind in ("png", "svg"):
            assert (out / f"{name}{suffix}.{kind}").stat().st_size > 5000
    page = (out / "report.html").read_text()
    assert "data:image/svg+xml;base64," in page


def test_a_client_whose_update_is_not_finite_is_counted(tmp_path, monkeypatch):

    def broken(name, root=None):
        data = images(name)
        data.x[0] = math.nan
        return data

    monkeypatch.setattr("fedsim.data.load", broken)
    tiny = ["--quiet", "--set", "rounds=1", "clients=20", "batch=4", "--only", "work=1 epoch", "--only", "p=10"]
    assert main(["run", "mnist-alpha-error", "--out", str(tmp_path / "a"), *tiny, "--on-client-error", "reject"]) == 0
    (journal,) = (tmp_path / "a").rglob("journal.jsonl")
    assert len(json.loads(journal.read_text())["rejected"]) == 1


def test_a_failing_client_is_told_with_its_traceback(tmp_path, monkeypatch, capsys):
    from fedsim.errors import ClientError

    def step(self, observer=None):
        raise ClientError("client 3: Traceback (most recent call last): ...\nZeroDivisionError: division by zero")

    monkeypatch.setattr(Simulation, "step", step)
    assert main(["run", "synthetic-cauchy", "--out", str(tmp_path / "run"), *TINY["synthetic-cauchy"], "--quiet"]) == 1
    error = capsys.readouterr().err
    assert "client 3: Traceback" in error
    assert "ZeroDivisionError" in error
    command = f"python -m fedsim run synthetic-cauchy --out {tmp_path / 'run'} --resume --on-client-error reject"
    assert error.splitlines()[-1] == f"fedsim: a client failed; to continue without such clients: {command}"
    monkeypatch.undo()
    monkeypatch.setattr("fedsim.figures.save", lambda *_: [])
    assert main([*command.split()[3:], "--quiet"]) == 0


def test_unknown_names_are_refused():
    with pytest.raises(InputError, match="did you mean rates"):
        find("rate")
    with pytest.raises(InputError):
        Config.from_dict({"nonsense": 1})
