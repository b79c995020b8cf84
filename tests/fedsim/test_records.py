"""docs/figures.py: runs packed into records, and the page's figures drawn from them."""

import importlib.util
from pathlib import Path

import pytest

from fedsim.experiments import find
from fedsim.run.directory import Request
from fedsim.run.runner import Options, run

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("docs_figures", DOCS / "figures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def packed(tool, tmp_path_factory):
    """Two small runs, one of them unfinished, and the records made from them."""
    folder = tmp_path_factory.mktemp("records")
    for name, settings in (("synthetic-cauchy", ("rounds=4", "eval_every=2")), ("rates", ())):
        only = () if name == "synthetic-cauchy" else ("point=T=125", "point=T=250", "alpha=1.5", "case=non-convex")
        request = Request(name, "paper", 3, settings, only)
        finished = run(request, request.cells(find(name)), folder / name, Options(command=f"run {name}"))
        if name == "synthetic-cauchy":
            whole = finished.results
            (folder / name / "cells" / whole[1].cell.folder / "result.json").unlink()
        tool.add(folder / name, folder / "results")
    return folder / "results", whole


def test_a_record_holds_what_has_finished_to_four_digits(tool, packed):
    results, whole = packed
    _, found = tool.unpack("synthetic-cauchy", (results / "synthetic-cauchy.jsonl").read_bytes())
    assert [r.cell.levels["algorithm"] for r in found] == ["FedAvg", "FAT-Clipping-PI"]
    assert found[1].cell == whole[2].cell
    assert [r["round"] for r in found[1].records] == [2, 4]  # rounds without evaluation hold nothing to draw
    assert found[1].records[1]["loss"] == pytest.approx(whole[2].records[3]["loss"], rel=5e-4)
    assert found[1].measured["start"]["loss"] == [3.625] * 3


def test_a_cell_packed_again_takes_the_place_of_the_old_one(tool, packed, tmp_path):
    results, _ = packed
    (tmp_path / "rates.jsonl").write_bytes((results / "rates.jsonl").read_bytes())
    tool.add(results.parent / "rates", tmp_path)
    assert (tmp_path / "rates.jsonl").read_bytes() == (results / "rates.jsonl").read_bytes()


@pytest.mark.parametrize(("before", "after", "runs"), [(1, 2, ["run 2"]), (2, 1, ["run 2", "run 1"])])
def test_the_same_seed_alone_and_among_several_is_one_cell(tool, tmp_path, before, after, runs):
    """A run whose cells have all been replaced is no longer named."""
    for seeds in (before, after):
        settings = ("clients=2", "samples_per_client=4", "batch=2", "rounds=1")
        request = Request("control", "quick", seeds, settings, ("task=MNIST, i.i.d.", "algorithm=FedAvg"))
        run(request, request.cells(find("control")), tmp_path / str(seeds), Options(command=f"run {seeds}"))
        tool.add(tmp_path / str(seeds), tmp_path)
    data = (tmp_path / "control.jsonl").read_bytes()
    _, found = tool.unpack("control", data)
    assert [result.cell.seeds for result in found] == [(0,), (1,)]
    assert [run["command"] for run in tool.decode(data.splitlines()[0])["runs"]] == runs


def test_the_same_records_give_the_same_bytes(tool, packed, tmp_path):
    for folder in ("a", "b"):
        assert tool.draw_all(packed[0], tmp_path / folder) == 0
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == ["rates-bounds.svg", "rates.svg", "synthetic-cauchy.png", "synthetic-cauchy.svg"]
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in names)


@pytest.mark.parametrize("word", ["missing", "altered"])
def test_a_record_that_is_missing_or_altered_is_named_and_the_rest_drawn(tool, packed, tmp_path, capsys, word):
    results = tmp_path / "results"
    results.mkdir()
    for path in packed[0].iterdir():
        (results / path.name).write_bytes(path.read_bytes())
    if word == "missing":
        (results / "rates.jsonl").unlink()
    else:
        (results / "rates.jsonl").write_bytes((results / "rates.jsonl").read_bytes().replace(b"1.5", b"1.6"))
    assert tool.draw_all(results, tmp_path / "out") == 1
    assert capsys.readouterr().err == f"figures: {results / 'rates.jsonl'} is {word}; not drawn\n"
    assert (tmp_path / "out" / "synthetic-cauchy.svg").is_file()


def test_the_committed_records_are_whole_and_every_figure_of_the_pages_is_theirs(tool):
    sums = tool.read_sums(DOCS / "results")
    assert sums
    assert {path.name for path in (DOCS / "results").glob("*.jsonl")} == set(sums)
    drawn = set()
    for name, digest in sums.items():
        data = (DOCS / "results" / name).read_bytes()
        assert tool.hashlib.sha256(data).hexdigest() == digest
        experiment, results = tool.unpack(Path(name).stem, data)
        assert results
        drawn |= {f"{experiment.name}{suffix}.svg" for suffix in ("", *experiment.more)}
    pages = "".join((DOCS / f"{name}.md").read_text() for name in ("reproduction", "tail-index"))
    shown = {part.partition(")")[0] for part in pages.split("(images/")[1:]}
    assert shown == drawn == {path.name for path in (DOCS / "images").glob("*.svg")}
