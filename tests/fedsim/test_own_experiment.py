"""An experiment of one's own, from a file or a module: the one in the docs, its resume and report, and refusals."""

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from fedsim.algorithms import ALGORITHMS
from fedsim.cells import Cell
from fedsim.cli import main
from fedsim.config import Config
from fedsim.experiments import find
from fedsim.experiments.grid import describe_batches

PAGE = Path(__file__).parents[2] / "docs" / "adding-an-experiment.md"
PROGRAM = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
SMALL = ("--seeds", "2", "--set", "rounds=4", "--quiet")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedsim.figures.save", lambda *_: [])
    (tmp_path / "mine.py").write_text(PROGRAM)
    yield
    find.cache_clear()
    sys.modules.pop("mine", None)


def test_the_one_of_the_docs_has_at_most_thirty_lines():
    assert len(PROGRAM.splitlines()) <= 30


@pytest.mark.parametrize("name", ["mine.py", "mine:EXPERIMENT"])
def test_it_runs_resumes_and_reports(name, tmp_path, capsys):
    out = str(tmp_path / "out")
    assert main(["run", name, *SMALL, "--out", out]) == 0
    journals = sorted((tmp_path / "out" / "cells").glob("*/journal.jsonl"))
    assert len(journals) == 4
    for path in journals[:2]:
        path.write_bytes(b"")  # lost
    assert main(["run", name, "--out", out, "--resume", "--quiet"]) == 0
    assert [path.read_bytes().count(b"\n") for path in journals] == [4] * 4
    assert main(["report", out]) == 0
    shown = capsys.readouterr().out
    assert "Quadratic with Pareto noise" in shown
    assert "Changed from the paper" not in shown  # it is not the paper's


def test_a_file_finds_the_modules_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "beside_it.py").write_text("TITLE = 'from beside'\n")
    (tmp_path / "sub" / "mine.py").write_text(f"from beside_it import TITLE\n{PROGRAM}")
    assert find("sub/mine.py").code == ""


def test_a_file_in_a_folder_with_a_space_can_be_swept(tmp_path, monkeypatch):
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "mine.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path / "a b")
    assert main(["sweep", "mine.py", "eta_l=0.1,0.2", *SMALL, "--out", "out"]) == 0
    assert main(["run", "mine.py", *SMALL, "--out", "b"]) == 0
    assert main(["report", "out"]) == 0


def test_a_run_with_another_algorithm_of_the_same_name_is_not_resumed(tmp_path, capsys, monkeypatch):
    text = (
        "import fedsim\n\n\n@fedsim.register('mine')\nclass Mine(fedsim.Algorithm):\n"
        "    def local_step(self, clients):\n        clients.sgd_(RATE * self.eta_l)\n\n\n"
        + PROGRAM.replace('"fatclip-pi"', '"mine"')
    )
    assert '"algorithm": "mine"' in text
    monkeypatch.setattr("fedsim.algorithms.ALGORITHMS", ALGORITHMS)
    for rate, code in (("1.0", 0), ("1.0", 0), ("0.5", 2)):
        (tmp_path / "mine.py").write_text(text.replace("RATE", rate))
        find.cache_clear()
        assert main(["run", "mine.py", *SMALL, "--out", "out", *["--resume"] * (tmp_path / "out").exists()]) == code
    assert "code=" in capsys.readouterr().err
    ALGORITHMS.pop("mine")


def test_without_out_the_directory_has_the_experiments_name(tmp_path):
    assert main(["run", str(tmp_path / "mine.py"), *SMALL]) == 0
    assert [path.name.startswith("pareto-clients-") for path in (tmp_path / "runs").iterdir()] == [True]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no file wrong.py"),
        ("x = 1", "has no EXPERIMENT that is a fedsim.experiments.Experiment"),
        ("x = 1 / 0", "wrong.py raised ZeroDivisionError: division by zero .*wrong.py, line 1"),
        ("import nothing_like_it", "raised ModuleNotFoundError: No module named 'nothing_like_it'"),
        ("def (", "wrong.py raised SyntaxError"),
    ],
)
def test_a_file_that_is_no_experiment_is_one_line(text, message, tmp_path, capsys):
    if text is not None:
        (tmp_path / "wrong.py").write_text(text)
    assert main(["run", "wrong.py"]) == 2
    said = capsys.readouterr().err.strip()
    assert re.search(message, said)
    assert "\n" not in said
    assert not (tmp_path / "runs").exists()


def test_an_unknown_name_is_answered_without_torch():
    program = (
        "import sys; from fedsim.cli import main; print(main(['run', 'synthetic-cauchi']), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "2 False\n"
    assert "did you mean synthetic-cauchy?" in done.stderr


def test_help_lists_every_key_with_default_and_range(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    shown = capsys.readouterr().out
    missing = {field.name for field in fields(Config)} - {"own", "options"} - set(re.findall(r"^  (\w+)=", shown, re.M))
    assert not missing
    assert "eta_l=0.1" in shown
    assert "fedadam: momentum, tau, beta2" in shown


def test_a_batch_of_all_samples_is_named():
    def cell(batch, samples):
        settings = {"problem": "mnist-logistic", "batch": batch, "samples_per_client": samples}
        return Cell({}, Config(**settings), (0,), Config())

    assert describe_batches([cell(64, 40)]) == ["Local steps are full-batch: batch 64 with 40 samples per client."]
    assert describe_batches([cell(64, 65), cell(64, None)]) == []
