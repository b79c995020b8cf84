"""Clients shared among the ranks of torchrun: the same bits for every number of them, and for one that dies."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import ranks_program

from fedsim.cli import main
from fedsim.engines.ranks import Ranks

PROGRAM = Path(ranks_program.__file__)
EXPERIMENT = str(PROGRAM.with_name("ranked.py"))


ENV = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}


def torchrun(world, *command):
    """Starts a program on so many ranks."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*launcher, *command], env=ENV, **pipes)


def ended(process):
    """What a program printed, and its exit code."""
    out, err = process.communicate(timeout=240)
    return out, err, process.returncode


def journals(out):
    """Every round of every cell, without its times."""
    found = {}
    for path in sorted((out / "cells").glob("*/journal.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        drop = ("seconds", "phases", "checksum")
        found[path.parent.name] = [{k: v for k, v in line.items() if k not in drop} for line in lines]
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run in one process, in a program of its own: its experiment takes the place of MNIST."""
    out = tmp_path_factory.mktemp("whole") / "run"
    subprocess.run(
        [sys.executable, "-m", "fedsim", "run", EXPERIMENT, "--out", str(out), "--quiet"], check=True, env=ENV
    )
    return journals(out)


@pytest.mark.parametrize("world", [2, 3])
def test_every_number_of_ranks_has_the_bits_of_one_process(world):
    out, err, code = ended(torchrun(world, str(PROGRAM)))
    assert code == 0, err[-3000:]
    (line,) = [line for line in out.splitlines() if line.startswith("digests")]
    alone = {name: ranks_program.digest(name, None) for name in ranks_program.CASES}
    assert json.loads(line.removeprefix("digests")) == alone


def wait_for_rounds(out, process, rounds):
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if sum(path.read_bytes().count(b"\n") for path in out.glob("cells/*/journal.jsonl")) >= rounds:
            return
        time.sleep(0.02)
    pytest.fail(f"no {rounds} rounds: {process.communicate()[1][-3000:]}")


def pid_of(rank, launcher):
    """The process of a rank, among the launcher's children."""
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    return next(int(p) for p in children if f"RANK={rank}" in Path(f"/proc/{p}/environ").read_text().split("\0"))


def test_a_run_survives_dead_ranks_and_other_numbers_of_them(tmp_path, whole):
    """Two ranks, of which the second is killed; three, of which the leader is killed; then one process to the end."""
    command = ["-m", "fedsim", "run", EXPERIMENT, "--out", str(tmp_path / "run"), "--checkpoint-every", "1"]
    for world, killed, rounds, resume in ((2, 1, 3, []), (3, 0, 9, ["--resume"])):
        launcher = torchrun(world, *command, *resume)
        wait_for_rounds(tmp_path / "run", launcher, rounds)
        begun = time.monotonic()
        os.kill(pid_of(killed, launcher), signal.SIGKILL)
        _, err, code = ended(launcher)
        assert code != 0
        assert time.monotonic() - begun < 60  # torchrun itself gives up on a rank after 30 seconds
        assert "fedsim: a rank has ended" in err
        assert ("resume with: python -m fedsim run" in err) == (killed == 1)
        assert "Traceback" not in err.partition("fedsim: a rank has ended")[0]
    subprocess.run([sys.executable, *command, "--resume", "--quiet"], check=True, env=ENV)
    assert journals(tmp_path / "run") == whole


def test_a_run_that_is_asked_to_stop_leaves_whole_rounds(tmp_path, whole):
    command = ["-m", "fedsim", "run", EXPERIMENT, "--out", str(tmp_path / "run")]
    launcher = torchrun(2, *command)
    wait_for_rounds(tmp_path / "run", launcher, 2)
    launcher.terminate()
    _, err, _ = ended(launcher)
    assert "fedsim: stopped; resume with: python -m fedsim run" in err
    assert "a rank has ended" not in err
    _, err, code = ended(torchrun(3, *command, "--resume", "--quiet"))
    assert code == 0, err[-3000:]
    assert journals(tmp_path / "run") == whole


def test_a_rank_with_other_settings_is_refused_on_all(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(f"""
import os, sys
from fedsim.cli import main
eta = "0.2" if os.environ["RANK"] == "1" else "0.1"
sys.exit(main(["run", {EXPERIMENT!r}, "--set", "eta_l=" + eta, "--out", {str(tmp_path / "run")!r}]))
""")
    _, err, code = ended(torchrun(2, str(program)))
    assert code != 0
    text = "settings=('eta_l=0.2',) on rank 1, but settings=('eta_l=0.1',) on rank 0; start all ranks with the same"
    assert err.count(text) == 2
    assert not (tmp_path / "run").exists()


def test_simulate_returns_the_same_run_on_every_rank(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("""
import hashlib, os, sys
import own_cases
with open(f"{sys.argv[0]}.{os.environ.get('RANK', 'alone')}", "w") as file:
    for again in range(2):  # with the group of the first time
        run = own_cases.simulate(rounds=3)
        weights = b"".join(t.numpy().tobytes() for t in run.model.state_dict().values())
        print(again, len(run.history), hashlib.sha256(weights).hexdigest(), file=file)
""")
    _, err, code = ended(torchrun(2, str(program)))
    assert code == 0, err[-3000:]
    subprocess.run([sys.executable, str(program)], check=True, env=ENV)
    assert len({Path(f"{program}.{who}").read_text() for who in ("0", "1", "alone")}) == 1


@pytest.mark.parametrize("world", [2, 3, 5])
def test_blocks_are_shared_by_work_and_stay_in_order(world):
    rng = np.random.default_rng(world)
    for work in ([1.0], [5.0, 1.0, 1.0, 1.0], rng.exponential(size=200), np.full(7, 3.0)):
        work = np.asarray(work)
        shares = Ranks(0, world).share(work)
        assert [i for share in shares for i in share] == list(range(len(work)))
        loads = [work[list(share)].sum() for share in shares]
        assert max(loads) <= work.sum() / world + work.max()


def test_without_torchrun_there_are_no_ranks():
    with Ranks.joined() as ranks:
        assert ranks is None
    assert main(["list"]) == 0
