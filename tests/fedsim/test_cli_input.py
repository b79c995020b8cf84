"""Bad input: exit code 2, one line on stderr that says what and what would be right, and nothing is created."""

import pytest

from fedsim.cli import main

CASES = {
    "no command": ([], "COMMAND"),
    "unknown command": (["fly"], "fly"),
    "unknown experiment": (["run", "synthetic-couchy"], "did you mean synthetic-cauchy?"),
    "an experiment like none": (["run", "qqq"], "one of synthetic-cauchy, synthetic-alpha"),
    "unknown key": (["run", "synthetic-cauchy", "--set", "round=5"], "unknown key 'round'; did you mean rounds?"),
    "no value": (["run", "synthetic-cauchy", "--set", "rounds"], "key=value"),
    "a word for a number": (["run", "synthetic-cauchy", "--set", "rounds=many"], "rounds=many must be"),
    "negative rounds": (
        ["run", "synthetic-cauchy", "--set", "rounds=-1"],
        "rounds=-1 must be an integer of at least 0",
    ),
    "unknown value": (["run", "synthetic-cauchy", "--set", "noise=pink"], "noise=pink is not known; one of none,"),
    "nan": (["run", "synthetic-cauchy", "--set", "eta=nan"], "eta=nan must be"),
    "alpha of zero": (["run", "synthetic-cauchy", "--set", "noise_alpha=0"], "noise_alpha=0 must be"),
    "alpha above two": (["run", "synthetic-cauchy", "--set", "noise_alpha=2.5"], "noise_alpha=2.5 must be"),
    "more participants than clients": (
        ["run", "synthetic-cauchy", "--set", "participants=6"],
        "participants=6 is more than",
    ),
    "p that does not divide": (["run", "cifar10-failure", "--set", "clients=11", "participants=5"], "does not divide"),
    "an axis by --set": (["run", "cifar10-alpha", "--set", "classes_per_client=3"], '--only "p=1"'),
    "unknown axis": (["run", "cifar10-alpha", "--only", "q=1"], "has no axis 'q'; its axes are work, p"),
    "unknown level": (["run", "cifar10-alpha", "--only", "p=3"], "p has the levels 1, 2, 5, 10"),
    "only without =": (["run", "cifar10-alpha", "--only", "p"], "p has the levels 1, 2, 5, 10"),
    "unknown preset": (["run", "synthetic-cauchy", "--preset", "slow"], "quick"),
    "no seeds": (["run", "synthetic-cauchy", "--seeds", "0"], "--seeds must be at least 1, got 0"),
    "seeds of text": (["run", "synthetic-cauchy", "--seeds", "x"], "--seeds"),
    "no workers": (["run", "synthetic-cauchy", "--workers", "0"], "--workers must be at least 1, got 0"),
    "checkpoints never": (
        ["run", "synthetic-cauchy", "--checkpoint-every", "0"],
        "--checkpoint-every must be at least 1",
    ),
    "unknown client error": (["run", "synthetic-cauchy", "--on-client-error", "cry"], "reject"),
    "unknown option": (["run", "synthetic-cauchy", "--fast"], "--fast"),
    "no name": (["run"], "NAME"),
    "resume of nothing": (["run", "synthetic-cauchy", "--resume"], "--resume needs --out"),
    "report of nothing": (["report", "none"], "none holds no run"),
    "data that is not there": (["run", "mnist-alpha-error", "--data-root", "nowhere"], "fedsim data mnist"),
    "a GPU that is not there": (["run", "mnist-alpha-error", "--set", "device=cuda:99"], "device=cuda:99: torch "),
    "a GPU for a few numbers": (["run", "synthetic-cauchy", "--set", "device=cuda"], "quadratic is a few numbers"),
    "unknown device": (
        ["run", "mnist-alpha-error", "--set", "device=gpu"],
        "device=gpu is not known; one of cpu, cuda",
    ),
    "a million million clients": (
        ["run", "synthetic-cauchy", "--set", "clients=1000000000000"],
        "clients=1000000000000, local_steps=2, dim=3 and 100 seeds need about",
    ),
    "a dimension beyond memory": (["run", "synthetic-cauchy", "--set", "dim=10000000000000"], "TB of memory"),
    "local steps beyond memory": (["run", "synthetic-cauchy", "--set", "local_steps=100000000000"], "TB of memory"),
    "more digits than a float has": (["run", "synthetic-cauchy", "--set", f"clients={10**400}"], "TB of memory"),
    "clients of a data set beyond memory": (
        ["run", "mnist-alpha-error", "--set", "clients=1000000000000", "--data-root", "nowhere"],
        "TB of memory",
    ),
    "local steps on a data set beyond memory": (
        ["run", "cifar10-failure", "--set", "local_steps=100000000000", "--data-root", "nowhere"],
        "TB of memory",
    ),
    "seeds beyond memory": (["run", "synthetic-cauchy", "--seeds", "1000000000000"], "at most 1000000"),
    "unknown data set": (["data", "minst"], "minst"),
    "theory out of range": (
        ["theory", "--alpha", "2.5", "--clients", "1", "--local-steps", "1", "--rounds", "1"],
        "alpha must be in (1, 2]",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_one_line_and_creates_nothing(case, tmp_path, monkeypatch, capsys):
    arguments, words = CASES[case]
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("fedsim: ")
    assert captured.err.count("\n") == 1
    assert words in captured.err
    assert list(tmp_path.iterdir()) == []


def test_a_directory_with_other_files_is_refused(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("three years of work")
    assert main(["run", "synthetic-cauchy", "--out", str(tmp_path)]) == 2
    assert "is not empty and holds no run" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_is_no_directory(tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    assert main(["run", "synthetic-cauchy", "--out", str(tmp_path / "file")]) == 2
    assert "is a file, not a directory" in capsys.readouterr().err


def test_tensorboard_that_is_not_installed_is_said_before_anything_runs(tmp_path, monkeypatch, capsys):
    import sys

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert main(["run", "synthetic-cauchy", "--out", str(tmp_path / "run"), "--tensorboard"]) == 2
    assert capsys.readouterr().err == "fedsim: --tensorboard needs the package tensorboard: pip install tensorboard\n"
    assert not (tmp_path / "run").exists()
