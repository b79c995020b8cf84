import json
import stat
import sys
from pathlib import Path

import pytest
from round_cases import tiny

from benchmarks import rounds, rounds_peers
from benchmarks.rounds_sides import SideError


def test_a_smoke_run_times_every_side_and_reports_a_peer_that_is_not_there(tmp_path, monkeypatch, capsys):
    workload, dataset = tiny("W1a")
    monkeypatch.setattr(rounds, "WORKLOADS", {"W1a": workload})
    monkeypatch.setattr("fedsim.data.load", lambda name: dataset)

    def unavailable(name, timeout):
        raise SideError("not installed: no such package")

    monkeypatch.setattr(rounds, "environment", unavailable)
    readme = tmp_path / "README.md"
    readme.write_text("<!-- rounds:begin -->\n<!-- rounds:end -->\n")
    command = "--smoke --workloads W1a --algorithms fatclip-pi --peers pfl --wait-policy passive --threads 1"
    assert rounds.main([*command.split(), "--out", str(tmp_path), "--readme", str(readme)]) == 0
    entry = json.loads((tmp_path / "rounds.json").read_text())["workloads"]["W1a"]["algorithms"]["fatclip-pi"]
    assert entry["sides"].keys() == {"loop", "fedsim"}
    assert entry["left_out"] == {"pfl": "not installed: no such package"}
    assert entry["peak_gflops"] > 0
    assert entry["sides"]["loop"]["ratio"] > 0
    assert entry["sides"]["fedsim"]["engine"] == "stacked"
    printed = capsys.readouterr().out
    assert "same round: " in printed
    assert "pfl        left out: not installed: no such package" in printed
    assert "| W1a: " in readme.read_text()
    assert (tmp_path / "rounds.png").exists()


def test_what_was_measured_is_kept_when_a_later_workload_fails(tmp_path, monkeypatch, capsys):
    def run(workload, args):
        if workload == "second":
            raise SideError("took more than 300 s to answer 'rounds'")
        if workload == "third":
            raise KeyboardInterrupt
        return {"title": "a round", "targets": {}, "algorithms": {}}

    monkeypatch.setattr(rounds, "WORKLOADS", {"W1a": "first", "W2": "second", "W3": "third"})
    monkeypatch.setattr(rounds, "run_workload", run)
    with pytest.raises(KeyboardInterrupt):
        rounds.main(["--workloads", "W1a,W2,W3", "--out", str(tmp_path)])
    assert json.loads((tmp_path / "rounds.json").read_text())["workloads"].keys() == {"W1a"}
    assert "W2 left out: the plain loop in float64 took more than 300 s" in capsys.readouterr().out


def test_the_experiment_of_w0_runs_with_all_its_algorithms():
    assert rounds.experiment_seconds(rounds=2) > 0


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--peers=leaf", "--peers: leaf is not known; of pfl, fedjax, flwr"),
        ("--workloads=W9", "--workloads: W9 is not known"),
        ("--algorithms=sgd", "--algorithms: sgd is not known"),
        ("--threads=0", "--threads must be positive, got 0"),
        ("--timeout=nan", "--timeout must be positive, got nan"),
    ],
)
def test_a_wrong_argument_is_named(argument, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        rounds.main([argument])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


FAKE_PYTHON = """#!/bin/sh
# as `python -m venv FOLDER` and `python -m pip install ...`; what was called is noted
echo "$@" >> {calls}
if [ "$2" = venv ]; then mkdir -p "$3/bin" && cp "$0" "$3/bin/python"; exit 0; fi
if [ -e {broken} ]; then echo "ERROR: no matching distribution" >&2; exit 1; fi
"""


@pytest.fixture
def fake_python(tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text(FAKE_PYTHON.format(calls=tmp_path / "calls", broken=tmp_path / "broken"))
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(python))
    return tmp_path


def test_an_environment_is_made_once_and_anew_after_a_failure(fake_python):
    def make() -> Path:
        return rounds_peers.environment("pfl", cache=fake_python / "cache", say=lambda text: None)

    (fake_python / "broken").touch()
    with pytest.raises(SideError, match="not installed: ERROR: no matching distribution"):
        make()
    (fake_python / "broken").unlink()
    python = make()
    assert python.exists()
    calls = (fake_python / "calls").read_text()
    assert make() == python
    assert (fake_python / "calls").read_text() == calls
    assert calls.count("-m venv") == 2
    assert f"-r {rounds_peers.HERE / 'requirements-pfl.txt'} -c {rounds_peers.HERE / 'constraints.txt'}" in calls


def test_an_interpreter_that_cannot_be_run_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(SideError, match="not installed"):
        rounds_peers.environment("fedjax", cache=tmp_path, say=lambda text: None)


def test_environments_live_in_the_cache_folder_that_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path))
    assert rounds_peers.cache_folder() == tmp_path
    monkeypatch.delenv("FEDSIM_CACHE")
    assert rounds_peers.cache_folder() == Path.home() / ".cache" / "fatclip" / "peers"


@pytest.mark.parametrize("name", rounds_peers.PEERS)
def test_every_peer_has_its_pins_and_its_side(name):
    pins = (rounds_peers.HERE / f"requirements-{name}.txt").read_text().splitlines()
    lines = [line for line in pins if not line.startswith("#")]
    assert all("==" in line for line in lines)
    assert any(line.startswith(f"{name}==") for line in lines)
    torch = [line for line in lines if line.startswith("torch==")]
    assert torch in ([], ["torch==2.13.0"])
    assert (rounds_peers.HERE / f"side_{name}.py").exists()
