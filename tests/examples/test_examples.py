"""Every example runs as a user would run it, and prints what it promises."""

import importlib.util
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed

EXAMPLES = Path(__file__).parents[2] / "examples"
SHIM = Path(__file__).parents[1] / "support" / "with_torchvision"
TRAINERS = ("lightning_module.py", "huggingface_trainer.py")
RANKS = ("fsdp2.py",)  # as torchrun starts them


def run(name, *args, cwd):
    # One thread: the models are tiny, and threads that wait for each other slow a busy machine down.
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    if name in TRAINERS:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SHIM), env.get("PYTHONPATH")]))
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if name in RANKS else []
    command = [sys.executable, *launcher, str(EXAMPLES / name), *args]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)


def printed(name, *args, cwd):
    done = run(name, *args, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(cwd.iterdir()) == [], "an example leaves files behind"
    return done.stdout


def numbers(pattern, text):
    return [float(value) for value in re.findall(pattern, text)]


def needs(*modules):
    missing = [m for m in modules if importlib.util.find_spec(m) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def test_every_example_has_a_test():
    own = {"own_model.py", "own_transformer.py"}
    tested = {"synthetic_cauchy.py", "drop_in.py", "adamw_attach.py", "quantile.py", *own, *TRAINERS, *RANKS}
    assert {p.name for p in EXAMPLES.glob("*.py")} == tested


def test_cauchy_noise_breaks_fedavg_and_not_fat_clipping(tmp_path):
    text = printed("synthetic_cauchy.py", "--seeds", "8", cwd=tmp_path)
    rows = re.findall(r"^(FedAvg|FAT-Clipping-P[IR]) +(\S+) +(\S+)", text, re.M)
    lam = {name: float(value) for name, value, _ in rows}
    median = {name: float(value) for name, _, value in rows}
    assert lam == {"FedAvg": math.inf, "FAT-Clipping-PR": 5, "FAT-Clipping-PI": 3}
    # The loss starts at 3.625. A vectorised simulation of 4000 seeds ends at medians of 27, 0.85 (PR) and 0.52 (PI).
    assert median["FedAvg"] > 3.625
    assert median["FedAvg"] > 5 * median["FAT-Clipping-PR"]
    assert 2 > median["FAT-Clipping-PR"] > median["FAT-Clipping-PI"]


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (("--seeds", "0"), "--seeds"),
        (("--rounds", "-3"), "--rounds"),
        (("--seeds", "many"), "--seeds"),
        (("--colour", "red"), "--colour"),
    ],
)
def test_a_wrong_argument_gives_one_line(args, word, tmp_path):
    done = run("synthetic_cauchy.py", *args, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert word in done.stderr


def test_the_drop_in_survives_what_clip_grad_norm_does_not(tmp_path):
    text = printed("drop_in.py", cwd=tmp_path)
    (before,) = numbers(r"before +(\S+)", text)
    (theirs,) = numbers(r"after clip_grad_norm_ and SGD +(\S+)", text)
    (ours,) = numbers(r"after FatClipPI +(\S+)", text)
    assert math.isnan(theirs)
    assert ours < before / 4
    norms = numbers(r"gradient norm +(\S+)", text)
    assert any(1e8 < norm < math.inf for norm in norms), "the huge target was clipped, not skipped"
    assert numbers(r"skipped (\d+)", text)[-1] == 1, "only the infinite one was skipped"


def test_adamw_survives_a_huge_and_an_infinite_target(tmp_path):
    text = printed("adamw_attach.py", cwd=tmp_path)
    # the line is 3 x - 1 with noise of 0.1: 32 samples a step, and a rate of 0.05 leaves some of it
    assert numbers(r"y = (\S+) x \+ (?:\S+)", text) == [pytest.approx(3, abs=0.15)]
    assert numbers(r"x \+ (\S+)", text) == [pytest.approx(-1, abs=0.15)]
    (steps,), (clipped,), (skipped,) = (numbers(rf"(\d+) {word}", text) for word in ("steps", "clipped", "skipped"))
    assert (steps, skipped) == (300, 1)
    assert 0 < clipped < 300


def test_a_quantile_finds_its_threshold(tmp_path):
    text = printed("quantile.py", cwd=tmp_path)
    found = re.findall(r"^(.+?) +error +(\S+)  clipped +(\d+)%  last lam (\S+)$", text, re.M)
    error = {name: float(value) for name, value, _, _ in found}
    share = {name: int(value) for name, _, value, _ in found}
    assert max(error["quantile 0.5"], error["quantile 0.8"], error["cooling"]) < 0.5 < error["no clipping"]
    # lam moves by at most 22 % per step, and in 500 steps its share settles to a few percent
    assert share["quantile 0.5"] == pytest.approx(50, abs=5)
    assert share["quantile 0.8"] == pytest.approx(20, abs=5)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("lightning_module.py", marks=needs("pytorch_lightning")),
        pytest.param("huggingface_trainer.py", marks=needs("transformers", "accelerate")),
    ],
)
def test_a_trainer_learns_and_resumes(name, tmp_path):
    text = printed(name, cwd=tmp_path)
    whole, resumed = text[: text.index("resumed from")], text[text.index("resumed from") :]
    losses = numbers(r"loss (\S+)", whole)[:6]  # six lines, with the checkpoint after the third
    assert losses[-1] < losses[0] / 20
    # The resumed run goes on where the checkpoint was, number by number, and ends with the same weights.
    assert numbers(r"loss (\S+)", resumed) == losses[3:]
    assert "without a stop: yes" in resumed
    norms = numbers(r"last_norm (\S+)", text)
    assert norms
    assert all(0 < norm < math.inf for norm in norms)
    assert set(numbers(r"skipped (\d+)", text)) == {0}


def test_a_network_of_ones_own_runs_on_stand_in_data(tmp_path):
    text = printed("own_model.py", "--random", "--rounds", "2", cwd=tmp_path)
    assert re.search(r"^(sequential|stacked) engine \(trial of 10 clients", text, re.M)
    assert numbers(r"round +2  loss (\S+)", text)[0] < math.inf
    assert "84,442 parameters" in text


def test_a_transformer_of_ones_own_learns_a_rule(tmp_path):
    text = printed("own_transformer.py", "--random", "--clients", "4", "--rounds", "4", cwd=tmp_path)
    assert "sequential engine (not stacked: its forward pass draws random numbers" in text
    accuracy = numbers(r"accuracy (\S+)", text)
    assert accuracy[-1] > 0.5  # of 80 symbols; the next character follows from the one before it


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
def test_sharded_ranks_clip_and_skip_together(tmp_path):
    text = printed("fsdp2.py", cwd=tmp_path)
    seen = [re.findall(rf"rank {rank} +(step.*)", text) for rank in (0, 1)]
    assert seen[0] == seen[1]
    norms = numbers(r"gradient norm +(\S+)", "\n".join(seen[0]))
    assert len(norms) == 4
    assert 1e8 < norms[1] < math.inf == norms[2], "the huge target was clipped, the infinite one skipped"
    assert numbers(r"skipped (\d+)", "\n".join(seen[0])) == [0, 0, 1, 1]
    held = re.findall(r"holds (\d+) of (\d+)", text)
    assert sum(int(own) for own, _ in held) == int(held[0][1]) == 8 * 64 + 64 + 64 + 1
    assert all(loss < 0.1 for loss in numbers(r"loss (\S+)", text))
