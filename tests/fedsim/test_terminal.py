"""What a person sees while an experiment runs."""

import io
import math
import os
import pty
import re
import subprocess
import sys

import pytest
from run_cases import Screen, run

from fedsim.cells import CellResult
from fedsim.errors import StoppedError
from fedsim.experiments import find
from fedsim.table import Table, show
from fedsim.terminal import Progress, brief, profile


def drawn(screen):
    """Every state the bar was drawn in, without what moves the cursor."""
    return [re.sub(r"\x1b\[\w+", "", part).strip() for part in screen.getvalue().split("\r") if part.strip()]


def test_the_bar_tells_cell_round_loss_clipped_and_time_left(tmp_path):
    screen = Screen()
    run("quadratic", tmp_path / "run", watchers=[Progress(2, screen, redraw=0)])
    states = drawn(screen)
    for round_ in range(1, 5):
        found = [s for s in states if s.startswith(f"cell 1/2 PI: round {round_}/4, ")]
        assert found, (round_, states)
        assert re.search(r"loss \S+, clipped \d+ %, \S+ left \|", found[-1]), found
    assert any(s.startswith("cell 2/2 FedAvg: round 0/4") for s in states)
    assert screen.getvalue().count("[1/2] algorithm=PI: loss") == 1
    assert screen.getvalue().count("[2/2] algorithm=FedAvg: loss") == 1


def test_the_bar_tells_accuracy_where_there_is_one(tmp_path):
    screen = Screen()
    run("logistic", tmp_path / "run", watchers=[Progress(1, screen, redraw=0)])
    assert any(re.search(r"round 4/4, loss \S+, acc \S+, clipped", s) for s in drawn(screen))


def test_the_bar_of_a_resumed_cell_starts_where_the_cell_was(tmp_path):
    seen = []
    watcher = Progress(1, io.StringIO())
    watcher.round = lambda cell, record: seen.append(record)
    with pytest.raises(StoppedError):
        run("logistic", tmp_path / "run", watchers=[watcher], stopping=lambda: len(seen) == 3)
    screen = Screen()
    run("logistic", tmp_path / "run", resume=True, watchers=[Progress(1, screen, redraw=0)])
    assert "round 3/4" in drawn(screen)[0]


def test_a_finished_cell_says_that_it_was_done_before(tmp_path):
    run("quadratic", tmp_path / "run")
    stream = io.StringIO()
    run("quadratic", tmp_path / "run", resume=True, watchers=[Progress(2, stream)])
    assert stream.getvalue().count("(done earlier)") == 2


def read_to_the_end(terminal):
    """All that a program writes to its terminal until it has closed it."""
    parts = []
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # Linux answers so when the other side is closed
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts).decode()


def test_on_a_real_terminal_a_run_shows_its_bar_and_ends_with_the_table(tmp_path):
    terminal, side = pty.openpty()
    arguments = ["run", "synthetic-cauchy", "--out", str(tmp_path / "run"), "--seeds", "2", "--set", "rounds=3"]
    process = subprocess.Popen([sys.executable, "-m", "fedsim", *arguments], stdin=side, stdout=side, stderr=side)
    os.close(side)
    text = read_to_the_end(terminal)
    os.close(terminal)
    assert process.wait() == 0
    # a bar is drawn when it is made, however short its cell is
    for number, algorithm in enumerate(("FedAvg", "FAT-Clipping-PR", "FAT-Clipping-PI"), start=1):
        assert f"cell {number}/3 {algorithm}: round 0/3" in text
    assert "median loss" in text
    assert text.rstrip().endswith("report.html")


def test_a_record_in_a_few_words():
    record = {"loss": [1.0, math.nan, 3.0], "accuracy": [None, None, None], "clipped": 0.256, "rejected": [4, 7]}
    assert brief(record) == {"loss": "3.00", "clipped": "26 %", "rejected": "2"}
    assert brief({"loss": [None], "accuracy": [None], "clipped": None, "rejected": []}) == {}


def test_the_profile_adds_up_phases_logging_and_the_rest():
    cell = find("synthetic-cauchy").cells("paper", 1)[0]
    records = [
        {"seconds": 6.0, "phases": {"data": 1.0, "compute": 4.0}},  # a second for the measurement
        {"seconds": 2.0, "phases": {"data": 0.5, "compute": 1.5}},
    ]
    assert profile([CellResult(cell, records, {}, logging=2.0)]) == [
        ("compute", 5.5, 0.55),
        ("logging", 2.0, 0.2),
        ("data", 1.5, 0.15),
        ("other", 1.0, 0.1),
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0"),
        (1.0, "1.00"),
        (0.5664, "0.566"),
        (0.0794, "0.0794"),
        (19.254, "19.25"),
        (-0.2, "-0.200"),
        (123456.0, "1.23e+05"),
        (0.0001, "1.00e-04"),
        (9.999, "10.00"),
        (math.inf, "inf"),
        (math.nan, "nan"),
        (7, "7"),
        ("x", "x"),
        (True, "True"),
    ],
)
def test_values_as_a_person_reads_them(value, text):
    assert show(value) == text


def test_a_table_as_text_html_and_json():
    table = Table(["name", "loss"], [["a<b", 1.5], ["c", None]], ["a note & more"])
    assert table.text() == "name  loss\na<b   1.50\nc        -\na note & more"
    assert '<td class="text">a&lt;b</td><td class="number">1.50</td>' in table.html()
    assert "a note &amp; more" in table.html()
    assert table.to_dict()["rows"] == [{"name": "a<b", "loss": 1.5}, {"name": "c", "loss": None}]
    assert Table(["name"], []).text() == "name"
