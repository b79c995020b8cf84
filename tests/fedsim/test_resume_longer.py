"""A finished run that is resumed with more rounds becomes the run of that length, wherever it is killed."""

import shutil

import pytest
from own_cases import simulate
from run_cases import SETTINGS, Counter, DyingOs, KilledError, command, contents, facts, finish, numbers, one_line, run

from fedsim.errors import InputError
from fedsim.run import runner

LONG = ("rounds=7", "eval_every=3")  # so that the short run evaluates a round that the long one does not
SHORT = ("rounds=4", "eval_every=3")


@pytest.fixture(autouse=True)
def no_drawing(monkeypatch):
    monkeypatch.setattr("fedsim.figures.save", lambda *_: [])


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_longer_run_ends_as_if_it_had_been_one(setting, tmp_path):
    expected = facts(tmp_path / "whole", run(setting, tmp_path / "whole", settings=LONG).table)
    run(setting, tmp_path / "run", settings=SHORT)
    counter = Counter()
    finished = run(setting, tmp_path / "run", resume=True, settings=LONG, watchers=[counter])
    assert [record["round"] for record in counter.records][:3] == [5, 6, 7]
    assert facts(tmp_path / "run", finished.table) == expected
    assert facts(tmp_path / "run", run(setting, tmp_path / "run", resume=True).table) == expected


def test_killed_at_any_call_on_the_disk_while_it_is_made_longer(tmp_path):
    expected = facts(tmp_path / "whole", run("quadratic", tmp_path / "whole", settings=LONG).table)
    run("quadratic", tmp_path / "short", settings=SHORT)
    shutil.copytree(tmp_path / "short", tmp_path / "counted")
    with DyingOs() as calls:
        run("quadratic", tmp_path / "counted", resume=True, settings=LONG)
    assert len(calls.seen) >= 25, len(calls.seen)
    for n in range(len(calls.seen)):
        out = tmp_path / str(n)
        shutil.copytree(tmp_path / "short", out)
        with DyingOs(n), pytest.raises(KilledError):
            run("quadratic", out, resume=True, settings=LONG)
        assert facts(out, run("quadratic", out, resume=True, settings=LONG).table) == expected, (n, calls.seen[n])


def test_the_result_of_the_shorter_run_does_not_pass_for_the_longer_ones(tmp_path):
    short, long = tmp_path / "short", tmp_path / "long"
    run("quadratic", short, settings=SHORT)
    expected = facts(long, run("quadratic", long, settings=LONG).table)
    for path in short.rglob("result.json"):
        shutil.copy(path, long / path.relative_to(short))
    assert facts(long, run("quadratic", long, resume=True).table) == expected


def test_the_command_needs_the_new_number_only(tmp_path, capsys):
    first = ("--seeds", "2", "--set", "eta_l=0.2", "rounds=4", "--quiet")
    assert command(tmp_path / "run", *first) == 0
    assert command(tmp_path / "whole", *first[:-2], "rounds=6", "--quiet") == 0
    table = finish(tmp_path / "run", capsys, "--set", "rounds=6")
    assert table == finish(tmp_path / "whole", capsys)
    assert numbers(tmp_path / "run") == numbers(tmp_path / "whole")
    assert finish(tmp_path / "run", capsys) == table  # the run has that length from now on


def test_a_run_is_not_made_shorter(tmp_path, capsys):
    assert command(tmp_path / "run", "--seeds", "2", "--set", "rounds=4", "--quiet") == 0
    before = contents(tmp_path / "run")
    assert command(tmp_path / "run", "--resume", "--set", "rounds=3") == 2
    assert "a run can be made longer, not shorter" in one_line(capsys)
    assert command(tmp_path / "run", "--resume", "--set", "rounds=5", "eta_l=0.2") == 2
    assert "eta_l=0.2 here, but eta_l=0.1" in one_line(capsys)
    assert contents(tmp_path / "run") == before


def test_cells_that_run_at_once_are_made_longer_at_once(tmp_path, capsys, monkeypatch):
    """All of them have a result already, of the shorter run."""
    begun, fork = [], runner.run_in_processes
    monkeypatch.setattr(runner, "run_in_processes", lambda n, *more: begun.append(n) or fork(n, *more))
    settings = ("--seeds", "2", "--processes", "2", "--quiet", "--set")
    assert command(tmp_path / "run", *settings, "rounds=3") == 0
    assert command(tmp_path / "whole", *settings, "rounds=5") == 0
    finish(tmp_path / "run", capsys, "--processes", "2", "--set", "rounds=5")
    assert numbers(tmp_path / "run") == numbers(tmp_path / "whole")
    assert begun == [2, 2, 2]
    finish(tmp_path / "run", capsys, "--processes", "2")
    assert begun == [2, 2, 2]  # nothing was left to do


def test_simulate_continues_with_more_rounds(tmp_path):
    whole = simulate(rounds=5, out=tmp_path / "whole", engine="stacked")
    simulate(rounds=3, out=tmp_path / "run", engine="stacked")
    longer = simulate(rounds=5, out=tmp_path / "run", engine="stacked")
    assert len(longer.history) == 5
    assert facts(tmp_path / "run") == facts(tmp_path / "whole")
    for name, value in whole.model.state_dict().items():
        assert value.equal(longer.model.state_dict()[name])
    with pytest.raises(InputError, match="a run can be made longer, not shorter"):
        simulate(rounds=4, out=tmp_path / "run", engine="stacked")
