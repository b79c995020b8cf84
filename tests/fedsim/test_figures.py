"""Figures and the report: from the same results the same bytes, nothing global touched, nothing fetched."""

import base64
import math
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import matplotlib
import numpy as np
import own_cases
import pytest

from fedsim import figures
from fedsim.cells import CellResult
from fedsim.cli import main
from fedsim.experiments import find, synthetic
from fedsim.figures.curves import series
from fedsim.figures.page import PAGE, panels, plain_log
from fedsim.plotting import ALGORITHMS, OTHERS, styled
from fedsim.run.directory import Request, RunDirectory
from fedsim.run.runner import Options, run


def results(name, result, records=lambda cell: []):
    return [CellResult(cell, records(cell), result(cell)) for cell in find(name).cells("quick", 1)]


def losses(cell):
    return [{"round": t, "loss": [2.0 / t, 3.0 / t], "accuracy": [None, None]} for t in range(1, 6)]


def started(cell):
    return {"loss": [1.0], "start": {"loss": [2.5, 3.5], "accuracy": [None, None]}}


def test_the_same_outcomes_give_the_same_bytes(tmp_path):
    experiment = find("synthetic-alpha")
    shown = results("synthetic-alpha", started, losses)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        paths = list(figures.save(experiment, shown, tmp_path / folder))
    assert [path.name for path in paths] == ["synthetic-alpha.png", "synthetic-alpha.svg"]
    for path in paths:
        assert path.read_bytes() == (tmp_path / "a" / path.name).read_bytes()


def test_drawing_changes_no_global_setting(tmp_path):
    before = dict(matplotlib.rcParams)
    assert len(list(figures.save(find("synthetic-alpha"), results("synthetic-alpha", started, losses), tmp_path))) == 2
    assert dict(matplotlib.rcParams) == before


def texts(figure):
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


def drawn(name, result, records=lambda cell: [], suffix=""):
    experiment = find(name)
    with styled():
        figure = {"": experiment.figure, **experiment.more}[suffix](results(name, result, records))
    assert figure.get_figwidth() <= PAGE
    return figure


def test_curves_have_labels_round_0_the_band_and_the_number_of_seeds():
    figure = drawn("synthetic-alpha", started, losses)
    found = texts(figure)
    assert {"communication round $t$", "loss $f(x_t) - f^*$", r"$\alpha$ = 0.5"} <= set(found)
    assert [len(ax.lines) for ax in figure.axes] == [3, 3]
    assert all(len(ax.collections) == 3 for ax in figure.axes)
    assert list(figure.axes[0].lines[0].get_xdata()) == [0, 1, 2, 3, 4, 5]
    assert figure.axes[0].lines[0].get_ydata()[0] == 3.0


def test_an_algorithm_has_one_colour_in_every_figure():
    def colours(figure):
        return {line.get_label(): line.get_color() for ax in figure.axes for line in ax.lines}

    first, last = drawn("synthetic-cauchy", started, losses), drawn("control", trial, rounds)
    assert colours(first).items() >= colours(last).items()
    assert len({style["color"] for style in (*ALGORITHMS.values(), *OTHERS)}) == len(ALGORITHMS) + len(OTHERS)


def test_the_median_of_a_curve_is_over_seeds():
    cell = find("synthetic-cauchy").cells("paper", 3)[0]
    rows = [
        {"round": 1, "loss": [1.0, 5.0, 3.0]},
        {"round": 2, "loss": [None] * 3},
        {"round": 3, "loss": [2.0, np.inf, 4.0]},
    ]
    at, values = series([CellResult(cell, rows, {})], "loss")
    assert at.tolist() == [1, 3]
    assert np.median(values, axis=0).tolist() == [3.0, 4.0]


@pytest.mark.parametrize(("values", "scale"), [((-1.0, -2.0), "linear"), ((0.0, 0.0), "linear"), ((-1.0, 2.0), "log")])
def test_losses_are_on_a_log_scale_where_one_is_positive(values, scale):
    with styled():
        figure = figures.overlay({"run": [{"round": t, "loss": v} for t, v in enumerate(values)]}, ["loss"])
        figure.draw_without_rendering()
    assert figure.axes[0].get_yscale() == scale


def test_panels_that_share_an_axis_share_its_scale():
    with styled():
        _, [axes] = panels(1, 2, share_y=True)
        axes[1].plot([1, 2], [1.0, 10.0])
        plain_log(axes[0])
    assert [ax.get_yscale() for ax in axes] == ["log", "log"]


def test_a_run_of_no_rounds_has_empty_panels(tmp_path):
    run = own_cases.simulate(tmp_path / "run", rounds=0)
    assert run.history == []
    assert (tmp_path / "run" / "own.png").stat().st_size > 1000
    assert main(["report", str(tmp_path / "run")]) == 0


def index(alpha):
    nulls = {"gaussian_null": 2.1, "flipped_null": np.inf, "scaled_null": 1.6}
    return {"alpha": alpha, "low": alpha - 0.2, "high": alpha + 0.2, "hill": 3.0, "n": 9, **nulls}


def noise(cell):
    norms = {"edges": [0.0, 1.0, 2.0], "counts": [3, 1], "median": 0.5, "max": 2.0, "n": 4}
    return {"alpha": {"flattened": index(0.9), "vectors": index(4.0)}, "norms": norms}


def test_a_histogram_for_every_combination_on_shared_axes():
    figure = drawn("cifar10-alpha", noise, suffix="-norms")
    assert len(figure.axes) == 16
    assert sum("max 2" in text for text in texts(figure)) == 16
    assert len({ax.get_ylim() for ax in figure.axes}) == 1
    assert all(len({ax.get_xlim() for ax in figure.axes[i : i + 4]}) == 1 for i in range(0, 16, 4))
    assert len(drawn("shakespeare-alpha", noise, suffix="-norms").axes) == 4


def test_the_tail_index_is_drawn_with_interval_and_nulls_and_marks_at_the_edge():
    figure = drawn("cifar10-alpha", noise)
    vectors = figure.axes[1]
    assert [ax.get_title() for ax in figure.axes] == ["over flattened", "over vectors"]
    words = {"null: i.i.d. Gaussian", "null: random signs", "null: Gaussian, own scales"}
    assert words <= set(texts(figure))
    assert all(len(ax.containers) == 4 for ax in figure.axes)  # one line with error bars per amount of work
    arrows = [line for line in vectors.lines if line.get_marker() == "^" and len(line.get_xdata())]
    assert len(arrows) == 8  # alpha and the flipped null, four amounts of work
    assert all(set(line.get_ydata()) == {3.2} for line in arrows)


def trial(cell):
    failed = cell.config.algorithm == "fedavg"
    outcome = {"outcome": "collapses" if failed else "learns", "collapsed": 3 if failed else None}
    start = {"loss": [2.3], "accuracy": [0.1]}
    return outcome | {"unguarded": "collapses", "broken": 2, "best": 0.5, "last": 0.1, "start": start}


def rounds(cell):
    norms = [1.0, 1.0, 2.0, 3.0, 4.0]
    return [{"round": t, "accuracy": [0.3], "norms": norms, "rejected": [1] * (t == 2)} for t in range(1, 5)]


def test_failures_share_one_time_axis_and_everything_is_in_the_legend():
    figure = drawn("cifar10-failure", trial, rounds)
    assert len(figure.axes) == 8
    assert len({ax.get_xlim() for ax in figure.axes}) == 1
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["chance", "accuracy", "collapse", "median norm", "largest norm", "update not finite"]
    assert list(figure.axes[0].lines[1].get_xdata()) == [0, 1, 2, 3, 4]


def test_failures_of_different_lengths_are_drawn_to_their_ends():
    lengths = {"1": 2, "2": 3, "5": 4, "10": 40}

    def unequal(cell):
        return [rounds(cell)[0] | {"round": t} for t in range(1, lengths[cell.levels["p"]] + 1)]

    figure = drawn("cifar10-failure", trial, unequal)
    assert {ax.get_xlim()[0] for ax in figure.axes} == {0.0}
    assert all(ax.get_xlim()[1] >= 40 for ax in figure.axes)


def test_outcomes_are_stacked_bars_with_numbers_of_trials():
    figure = drawn("cifar10-success", trial, rounds)
    guarded, unguarded, _ = figure.axes
    counts = lambda ax: [text.get_text() for text in ax.texts if text.get_text()]  # noqa: E731
    assert counts(guarded) == ["1"] * 12
    heights = [[bar.get_height() for bar in container] for container in guarded.containers]
    # of FedAvg, PR and PI: those that learn, never learn, collapse
    assert heights == [[0.0] * 4, [0.0] * 4, [1.0] * 4] + 2 * [[1.0] * 4, [0.0] * 4, [0.0] * 4]
    heights = [[bar.get_height() for bar in container] for container in unguarded.containers]
    assert heights == 3 * [[0.0] * 4, [0.0] * 4, [1.0] * 4]


def test_the_stability_map_writes_every_share():
    figure = drawn("cifar10-stability", trial, rounds)
    assert len(figure.axes) == 6
    learns, _, unguarded, _, last, _ = ([text.get_text() for text in ax.texts] for ax in figure.axes)
    assert learns == ["0/1"] * 5 + ["1/1"] * 20
    assert unguarded == ["0/1"] * 25
    assert last == ["10"] * 25


def test_errors_of_alpha_stand_next_to_the_papers():
    result = {"alpha": {"vectors": {"error": 1.25}}}
    paper, ours = drawn("mnist-alpha-error", lambda cell: result).axes
    assert all(set(line.get_ydata()) == {1.25} for line in ours.lines[:4])
    assert list(paper.lines[0].get_ydata()) == [-2.82, -1.09, -0.12, 3.12]


PR_AT_8 = ("non-convex", "2.0", "FAT-Clipping-PR", "m=8")


def rated(cell):
    m, k, t = cell.config.clients, cell.config.local_steps, cell.config.rounds
    error = m**-0.5 * k**0.25 * t**-1.0
    return {"squares": [error**2] * 3, "weighted": [error] * 3, "least": 2 / t, "clipped": 0.5}


def test_slopes_are_found_exactly_and_stand_next_to_theory():
    table = find("rates").tabulate(results("rates", rated))
    assert len(table.rows) == 3 * 4 * 2 * 3
    assert [row[4] for row in table.rows] == pytest.approx([-0.5, 0.25, -1.0] * 24)
    convex = {tuple(row[1:4]): row[6] for row in table.rows if row[0] == "strongly convex"}
    assert [convex["1.5", "FAT-Clipping-PR", x] for x in "mKT"] == pytest.approx([-2 / 3, 4 / 3, -2 / 3])
    at = {tuple(row[1:4]): row[1:] for row in table.rows if row[0] == "non-convex"}
    theory = [at["1.5", f"FAT-Clipping-{name}", x][5] for name in ("PI", "PR") for x in "mKT"]
    assert theory == pytest.approx([-0.2, -0.2, -0.2, -0.2, 0.2, -0.2])
    assert at["1.5", "FAT-Clipping-PI", "T"][4] == "-1.000, -1.000"  # all seeds are equal
    assert at["1.5", "FAT-Clipping-PI", "T"][6:] == pytest.approx([-1.0, 50.0])
    figure = drawn("rates", rated)
    assert len(figure.axes) == 9
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {"FAT-Clipping-PI: measured", "FAT-Clipping-PR: theory"} <= set(names)


def test_bounds_are_drawn_against_errors_and_left_out_where_there_are_none():
    figure = drawn("rates", rated, suffix="-bounds")
    first = figure.axes[0]
    (pi, pr, diagonal) = first.lines
    assert len(pi.get_xdata()) == len(pr.get_xdata()) == 4 * 17
    assert np.isnan(pi.get_ydata()).sum() == 39  # the theorems' steps that are too long for the inequality
    assert np.array_equal(diagonal.get_xdata(), diagonal.get_ydata())
    # alpha 2: f(x_0) = 7.25 / 2 and G^2 = E||x_0 + xi||^2 = 7.25 + 3 * 2
    cell = next(c for c in find("rates").cells("paper", 1) if tuple(c.levels.values()) == PR_AT_8)
    error, bound = synthetic.compare_with_bound(CellResult(cell, [], rated(cell)))
    step, lam, sent = cell.config.eta * 4, cell.config.lam, 4 * math.sqrt(13.25)
    bias = sent**2 / lam + math.sqrt(13.25) * cell.config.eta_l * 6
    noise = 0.75 * (bias / 4) ** 2 + step * sent**2 / (2 * 8 * 16)
    assert error == pytest.approx(8**-0.5 * 4**0.25 / 500)
    assert bound == pytest.approx(math.sqrt(4 * 3.625 / (step * 500) + 4 * noise), rel=0.01)  # G is from samples


def test_the_interval_of_a_slope_is_that_of_the_seeds():
    generator, shown = np.random.default_rng(0), results("rates", rated)
    for one in shown:
        # the mean of 400 exponentials deviates by 5 %: over the six sizes of m, slope * log 2 by 0.025 / sqrt(17.5)
        one.measured["squares"] = generator.exponential(rated(one.cell)["squares"][0], 400).tolist()
    line = figures.lines(shown, ["m"])["non-convex", "1.5", "FAT-Clipping-PI", "m"]
    assert line.low < line.slope < line.high
    assert (line.high - line.low) / (2 * 1.96) == pytest.approx(0.025 / math.sqrt(17.5) / math.log(2), rel=0.3)


def ended(cell):
    """The middle setting is the best everywhere; FedAvg's losses on E1 are beyond the figure."""
    worse = {"low": 2.0, "middle": 1.0, "high": 3.0}[cell.levels["setting"]]
    if cell.config.problem == "quadratic":
        far = 1e6 if cell.name.startswith("problem=E1, Cauchy, method=FedAvg,") else 1.0
        return {"loss": [far * worse, 3 * far * worse], "accuracy": [None, None]}
    return {"loss": [1.0], "accuracy": [0.6 / worse], "outcome": "learns"}


def test_baselines_are_shown_at_their_best_setting():
    table = find("baselines").tabulate(results("baselines", ended))
    assert len(table.rows) == 4 * 10
    rows = {tuple(row[:2]): row[2:] for row in table.rows}
    assert rows["E1, Cauchy", "FAT-Clipping-PI"] == ["lam 0.1", "loss", 2, 2.0, 1.5, 2.5, None, None, None]
    assert rows["CNN, eta_l 0.1", "FedAdam"] == ["eta 0.003", "accuracy", 1, 0.6, 0.6, 0.6, 1, 0, 0]
    figure = drawn("baselines", ended)
    assert [ax.get_title() for ax in figure.axes] == [
        "E1, Cauchy",
        "E2, alpha 1.5",
        "CNN, eta_l 0.1",
        "CNN, eta_l 0.35",
    ]
    medians = [
        [line.get_ydata()[0] for line in ax.lines if line.get_label().startswith("median")] for ax in figure.axes
    ]
    assert medians == [[1000.0] + [2.0] * 9, [2.0] * 10, [60.0] * 10, [60.0] * 10]
    arrows = [line for line in figure.axes[0].lines if line.get_marker() == "^"]
    assert [list(line.get_ydata()) for line in arrows] == [[1000.0] * 2] * 3


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
    request, _ = RunDirectory(out).saved()
    run(request, request.cells(find("synthetic-cauchy")), out, Options(command="python -m fedsim run --resume"))
    text = (out / "report.html").read_text()
    assert text.count("<pre>") == 2
    assert "the run was stopped and resumed" in text
