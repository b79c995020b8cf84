import copy
import json

import pytest
import torch

from benchmarks import cases, engines, growth, guard, kernels, rounds_report
from benchmarks.__main__ import COMMANDS, main
from benchmarks.reporting import rewrite

BEGIN, END = "<!-- rounds:begin -->", "<!-- rounds:end -->"
SIDE = {
    "seconds": 0.002,
    "ratio": 1.0,
    "samples_per_second": 1000.0,
    "peak_fraction": 0.5,
    "startup": 1.5,
    "memory": 2**28,
    "difference": 1e-7,
}
OURS = SIDE | {"engine": "stacked", "reason": "measured"}
RESULT = {
    "machine": {"cpu": "a processor", "cores": 2, "python": "3.11", "torch": "2.13.0"},
    "threads": 2,
    "wait_policy": "default",
    "workloads": {
        "W1a": {
            "title": "logistic regression",
            "targets": {"loop": 18, "flwr": 100},
            "algorithms": {
                "fatclip-pi": {
                    "peak_gflops": 100.0,
                    "sides": {"loop": SIDE | {"ratio": 20.0}, "fedsim": OURS},
                    "left_out": {"pfl": "not installed: no such package"},
                }
            },
        }
    },
}


def test_the_table_has_every_number_and_names_who_was_left_out():
    text = rounds_report.table("W1a", RESULT["workloads"]["W1a"])
    lines = {line.split("  ")[0]: line for line in text.splitlines()}
    for word in ("2.00", "20.00x", "18x", "1,000", "50.0%", "1.5 s", "256 MB", "1.0e-07"):
        assert word in lines["plain PyTorch loop"]
    assert "left out: not installed: no such package" in lines["pfl 0.6.0"]
    assert "engine: stacked (measured)" in text


def test_the_readme_is_rewritten_between_the_markers_only(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    table = rounds_report.readme_table(RESULT)
    for _ in range(2):
        rewrite(readme, "rounds", table)
        expected = f"before\n{BEGIN}\n{table}\n{END}\nafter\n"
        assert readme.read_text() == expected
    row = next(line for line in table.splitlines() if line.startswith("| W1a"))
    assert row == "| W1a: logistic regression | PI | 2.0 ms | **20.00x** (goal 18x) | left out |  |  |"


@pytest.mark.parametrize("text", ["no markers", f"{END}\n{BEGIN}"])
def test_a_readme_without_markers_is_refused_and_left_alone(text, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(text)
    with pytest.raises(ValueError, match=r"README\.md needs one line"):
        rewrite(readme, "rounds", "table")
    assert readme.read_text() == text


def test_the_results_are_written_as_json_text_and_chart(tmp_path):
    rounds_report.write(RESULT, tmp_path)
    assert json.loads((tmp_path / "rounds.json").read_text()) == RESULT
    assert "| W1a: logistic regression |" in (tmp_path / "rounds.md").read_text()
    assert (tmp_path / "rounds.png").read_bytes().startswith(b"\x89PNG")


def test_the_guard_tells_which_ratio_has_fallen_and_passes_over_noise(tmp_path):
    committed = tmp_path / "rounds.json"
    committed.write_text(json.dumps(RESULT))
    now = copy.deepcopy(RESULT)
    loop = now["workloads"]["W1a"]["algorithms"]["fatclip-pi"]["sides"]["loop"]
    loop["ratio"] = 16.0  # 0.8 of 20
    assert guard.compare(now, committed) == "guard: none of 1 ratios is below 0.75 of the committed one"
    loop["ratio"] = 10.0
    assert guard.compare(now, committed) == "guard: W1a fatclip-pi loop: ratio 10.00x, committed 20.00x"


@pytest.mark.parametrize("text", ["not json", '{"workloads": {"W1a": 3}}', "[]"])
def test_the_guard_survives_results_it_cannot_read(text, tmp_path):
    committed = tmp_path / "rounds.json"
    committed.write_text(text)
    assert guard.compare(RESULT, committed).startswith("guard: the committed results cannot be read")
    assert guard.compare(RESULT, tmp_path / "none.json") == "guard: no committed results to compare with"


def test_growth_is_a_table_and_one_figure(tmp_path):
    times = {"seconds": 0.004, "per_client_step": 4e-5, "memory": 2**28, "parameters": 7850}
    curves = {curve: [point | times for point in growth.points(curve, False)] for curve in growth.CURVES}
    assert [point["clients"] for point in curves["m"]] == [10, 100, 1_000, 10_000]
    row = growth.table("m", curves["m"]).splitlines()[-1].split()
    assert row == ["10,000", "4.00", "40.00", "5.096", "256", "MB"]
    growth.figure(curves, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")


def test_the_engines_row_says_what_auto_took_and_which_engine_failed():
    entry = {"title": "a model", "sequential": 0.004, "stacked": 0.002, "ratio": 2.0, "auto_took": "stacked"}
    assert engines.row("W1a", entry).split()[-4:] == ["4.00", "2.00", "2.00", "stacked"]
    assert "failed" in engines.row("W1a", {"title": "a model", "stacked": 0.002})


def test_the_kernels_table_has_a_line_per_row():
    rows = [
        {
            "operation": "step",
            "size": "2 x 3",
            "microseconds": 1234.5,
            "ratio": 2.0,
            "against": "foreach",
            "goal": ">= 5x",
        }
        | {"naive": naive}
        for naive in (None, 3.25)
    ]
    text = kernels.readme_table({"machine": RESULT["machine"], "threads": 2, "rows": rows})
    assert "| step | 2 x 3 | 1,234.5 us | **2.00x** (foreach) | >= 5x |  |" in text
    assert "| >= 5x | 3.25x |" in text
    assert text.endswith("2 cores (a processor), torch 2.13.0, 2 threads, float32.")


def test_of_several_processes_a_row_is_the_median_and_shows_the_range():
    fast, slow = ({"operation": "step", "size": "2 x 3", "naive": None, "goal": "", "ratio": r} for r in (2.0, 9.0))
    row = kernels.merge([slow, fast | {"against": "foreach", "microseconds": 1.0}])  # of two, the smaller
    text = kernels.readme_table({"machine": RESULT["machine"], "threads": 2, "rows": [row]})
    assert "| **2.00x** (foreach) |  |  | 2.00 to 9.00 |" in text
    columns = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert columns == {8}


def test_kernels_in_two_processes_write_one_table(tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, "all_cases", lambda compile_too: [lambda: cases.server_case(5, 3, compile_too)])
    monkeypatch.setattr(kernels.subprocess, "run", lambda command, **_: kernels.main(command[4:]))
    threads = torch.get_num_threads()
    asked = ["--processes", "2", "--seconds", "0", "--no-compile", "--only", "5 x 3", "--out", str(tmp_path)]
    assert kernels.main(["--threads", str(threads), *asked]) == 0
    (row,) = json.loads((tmp_path / "kernels.json").read_text())["rows"]
    low, high = row["range"]
    assert low == row["ratio"] <= high


def test_an_unknown_command_is_named_and_the_known_ones_listed(capsys):
    assert main(["kernel"]) == 2
    said = capsys.readouterr().err
    assert "unknown command 'kernel'" in said
    assert all(name in said for name in COMMANDS)


def test_without_a_command_the_commands_are_listed(capsys):
    assert main([]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in COMMANDS)
