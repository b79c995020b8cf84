"""Figures and the report: from the same results the same bytes, nothing global touched, nothing fetched."""

import base64
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import matplotlib
import numpy as np
import pytest

from fedsim import figures
from fedsim.cells import CellResult
from fedsim.experiments import find
from fedsim.figures.curves import series
from fedsim.plotting import COLOURS, styled
from fedsim.run.directory import Request, RunDirectory
from fedsim.run.runner import Options, run


def results(name, result, records=lambda cell: []):
    return [CellResult(cell, records(cell), result(cell)) for cell in find(name).cells("quick", 1)]


def losses(cell):
    return [{"round": t, "loss": [2.0 / t, 3.0 / t], "accuracy": [None, None]} for t in range(1, 6)]


def test_the_same_outcomes_give_the_same_bytes(tmp_path):
    experiment = find("synthetic-alpha")
    shown = results("synthetic-alpha", lambda cell: {"loss": [1.0]}, losses)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        paths = figures.save(experiment, shown, tmp_path / folder)
    assert [path.name for path in paths] == ["synthetic-alpha.png", "synthetic-alpha.svg"]
    for path in paths:
        assert path.read_bytes() == (tmp_path / "a" / path.name).read_bytes()


def test_drawing_changes_no_global_setting(tmp_path):
    before = dict(matplotlib.rcParams)
    figures.save(find("synthetic-alpha"), results("synthetic-alpha", lambda cell: {"loss": [1.0]}, losses), tmp_path)
    assert dict(matplotlib.rcParams) == before


def texts(figure):
    return [text.get_text() for text in figure.figure.findobj(matplotlib.text.Text) if text.get_text()]


def test_curves_have_labels_median_band_and_the_number_of_seeds():
    with styled():
        figure = find("synthetic-alpha").figure(results("synthetic-alpha", lambda cell: {"loss": [1.0]}, losses))
    found = texts(figure)
    assert "communication round $t$" in found
    assert "loss $f(x_t) - f^*$" in found
    assert r"$\alpha$ = 0.5" in found
    assert len(figure.axes) == 2
    assert [len(ax.lines) for ax in figure.axes] == [3, 3]
    assert all(len(ax.collections) == 3 for ax in figure.axes)


def test_the_median_of_a_curve_is_over_seeds():
    cell = find("synthetic-cauchy").cells("paper", 3)[0]
    rows = [
        {"round": 1, "loss": [1.0, 5.0, 3.0]},
        {"round": 2, "loss": [None] * 3},
        {"round": 3, "loss": [2.0, np.inf, 4.0]},
    ]
    rounds, values = series([CellResult(cell, rows, {})], "loss")
    assert rounds.tolist() == [1, 3]
    assert np.median(values, axis=0).tolist() == [3.0, 4.0]


def index(alpha):
    keys = {"low": alpha - 0.2, "high": alpha + 0.2, "gaussian_null": 2.1, "flipped_null": np.inf, "hill": 3.0, "n": 9}
    return {"alpha": alpha, **keys}


def noise(cell):
    norms = {"edges": [0.0, 1.0, 2.0], "counts": [3, 1], "median": 0.5, "max": 2.0, "n": 4}
    return {"alpha": {name: index(1.5) for name in ("vectors", "coordinates", "norms")}, "norms": norms}


def test_a_histogram_for_every_combination_with_alpha_and_its_null():
    with styled():
        figure = find("cifar10-noise").figure(results("cifar10-noise", noise))
    assert len(figure.axes) == 16
    assert sum("1.50 (Gauss 2.10)" in text for text in texts(figure)) == 16
    rows = [[ax.get_xlim() for ax in figure.axes[i : i + 4]] for i in range(0, 16, 4)]
    assert all(len(set(row)) == 1 for row in rows)
    with styled():
        figure = find("shakespeare-noise").figure(results("shakespeare-noise", noise))
    assert len(figure.axes) == 4
    assert all(ax.get_xlim()[1] > 2 for ax in figure.axes)


def test_the_tail_index_is_drawn_with_interval_and_both_nulls():
    with styled():
        figure = find("cifar10-alpha").figure(results("cifar10-alpha", noise))
    assert [ax.get_title() for ax in figure.axes] == ["over vectors", "over coordinates", "over norms"]
    assert {"null: Gaussian noise", "null: random signs (at the edge: above 3.2)"} <= set(texts(figure))
    assert all(len(ax.containers) == 4 for ax in figure.axes)  # one line with error bars per amount of work


def trial(cell):
    return {"failed": 3 if cell.config.algorithm == "fedavg" else None, "best": 0.5, "last": 0.1}


def rounds(cell):
    return [{"round": t, "accuracy": [0.3], "norms": [1.0, 1.0, 2.0, 3.0, 4.0 * t]} for t in range(1, 5)]


def test_failures_share_one_time_axis_and_are_marked():
    with styled():
        figure = find("cifar10-failure").figure(results("cifar10-failure", trial, rounds))
    assert len(figure.axes) == 8
    assert texts(figure).count(" failed") == 4
    assert figure.axes[0].get_xlim() == figure.axes[4].get_xlim()


def test_success_rates_are_bars():
    with styled():
        figure = find("cifar10-success").figure(results("cifar10-success", trial, rounds))
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    assert heights == [0.0] * 4 + [100.0] * 8


def test_errors_of_alpha_stand_next_to_the_papers():
    result = {"alpha": {"vectors": {"error": 1.25}}}
    with styled():
        figure = find("mnist-alpha-error").figure(results("mnist-alpha-error", lambda cell: result))
    ours, paper = figure.axes
    assert all(set(line.get_ydata()) == {1.25} for line in ours.lines[:4])
    assert list(paper.lines[0].get_ydata()) == [-2.82, -1.09, -0.12, 3.12]


def rated(cell):
    m, k, t = cell.config.clients, cell.config.local_steps, cell.config.rounds
    return {"error": m**-0.5 * k**0.25 * t**-1.0}


def test_slopes_are_found_exactly_and_stand_next_to_theory():
    shown = results("rates", rated)
    table = find("rates").tabulate(shown)
    assert [row[:2] for row in table.rows] == [[a, x] for a in ("FAT-Clipping-PI", "FAT-Clipping-PR") for x in "mKT"]
    assert [row[2] for row in table.rows] == pytest.approx([-0.5, 0.25, -1.0] * 2)
    assert [row[3] for row in table.rows] == pytest.approx([-0.2, -0.2, -0.2, -0.2, 0.2, -0.2])
    with styled():
        figure = find("rates").figure(shown)
    assert len(figure.axes) == 3
    found = [text.get_text() for ax in figure.axes for text in ax.get_legend().get_texts()]
    assert "PI: slope -0.50, theory -0.20" in found
    assert "PR: slope +0.25, theory +0.20" in found


def test_colours_are_all_different():
    assert len(set(COLOURS)) == len(COLOURS)


class Page(HTMLParser):
    """Collects the tags of a page, and checks that they close in order."""

    VOID = ("meta", "img", "br")

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.links = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for key, value in attrs if key in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "run"
    request = Request("synthetic-cauchy", "paper", 2, ("rounds=3",))
    run(request, request.cells(find("synthetic-cauchy")), out, Options(command="python -m fedsim run 'a & <b>'"))
    return out, (out / "report.html").read_text()


def test_the_report_is_one_file_that_needs_no_other(page):
    out, text = page
    parser = Page()
    parser.feed(text)
    assert parser.open == []
    assert parser.tags.count("h1") == 1
    assert parser.links
    assert all(link.startswith("data:image/svg+xml;base64,") for link in parser.links)
    assert not re.search(r"https?://", re.sub(r'src="[^"]*"', "", text))
    image = base64.b64decode(parser.links[0].partition(",")[2])
    assert image == (out / "synthetic-cauchy.svg").read_bytes()
    assert ElementTree.fromstring(image).tag.endswith("svg")


def test_the_report_tells_table_command_settings_and_environment(page):
    text = page[1]
    assert "python -m fedsim run &#x27;a &amp; &lt;b&gt;&#x27;" in text
    for words in (
        "median loss",
        "does not converge",
        "Changed from the paper",
        "Reading: Delta",
        "noise_scale",
        "torch",
    ):
        assert words in text
    assert '<td class="text">rounds</td><td class="text">3</td>' in text


def test_a_run_that_went_on_shows_both_commands(page):
    out, _ = page
    request = RunDirectory(out).request()
    run(request, request.cells(find("synthetic-cauchy")), out, Options(command="python -m fedsim run --resume"))
    text = (out / "report.html").read_text()
    assert text.count("<pre>") == 2
    assert "the run was stopped and resumed" in text
