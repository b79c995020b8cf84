"""`python -m fedsim data`: gets data sets, and draws how they are dealt to clients."""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arguments import Parser
from ..errors import InputError, StoppedError
from ..plotting import COLOURS, new_figure, styled
from . import NAMES, SETS, check_name, default_root, fetch, load, partition
from .partition import Parts
from .samples import Dataset

TITLES = {"cifar10": "CIFAR-10", "mnist": "MNIST", "shakespeare": "Shakespeare"}
ROOT: Any = {"type": Path, "help": "data folder (default: $FEDSIM_DATA, else ~/.cache/fedsim)"}
SUFFIXES = (".png", ".svg", ".pdf")
# Everything that may lie in the data folder by right, downloads put there by hand included.
KNOWN = frozenset(name for data in SETS.values() for name in data.KNOWN)


def main(argv: list[str]) -> int:
    """`fedsim data ...`; returns the exit code."""
    try:
        if argv[:1] == ["show"]:
            print(show(_show_parser().parse_args(argv[1:])))
            return 0
        about = "Gets and verifies data sets; `fedsim data show NAME` draws how one is dealt to clients."
        parser = Parser(prog="fedsim data", description=about)
        parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(NAMES)} (default: all)")
        parser.add_argument("--root", **ROOT)
        options = parser.parse_args(argv)
        return get(options.names, (options.root or default_root()).expanduser())
    except KeyboardInterrupt:
        raise StoppedError("stopped; run the same command again to start over") from None


def _show_parser() -> Parser:
    parser = Parser(prog="fedsim data show", description="Draws how a data set is dealt to clients.")
    parser.add_argument("name", metavar="NAME", help=", ".join(NAMES))
    kinds = ["classes", "dirichlet", "iid", "roles"]
    parser.add_argument("--partition", choices=kinds, help="default: classes, or roles")
    parser.add_argument("--clients", type=int, help="default: 100, or every role")
    parser.add_argument("--classes-per-client", type=int, default=2, metavar="P", help="for classes (default: 2)")
    parser.add_argument("--concentration", type=float, default=0.5, metavar="C", help="for dirichlet (default: 0.5)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="figure to write: .png, .svg or .pdf")
    parser.add_argument("--root", **ROOT)
    return parser


def get(names: list[str], root: Path) -> int:
    """Gets every named set; one that fails does not keep the others from being fetched."""
    from tqdm import tqdm

    for name in names:
        check_name(name)
    wanted = dict.fromkeys(names or NAMES)  # each once
    failed, form = 0, "{desc} |{bar:24}| {percentage:3.0f}% of the sets [{elapsed}]"
    with tqdm(total=len(wanted), disable=None, leave=False, bar_format=form, file=sys.stderr) as bar:
        for name in wanted:
            bar.set_description_str(f"{name}: verifying")
            try:
                whence = fetch.get(SETS[name], name, root, KNOWN, bar)
                bar.write(f"{name}: verified in {root}, {whence}", file=sys.stdout)
            except fetch.FetchError as error:
                failed = 1
                bar.write(f"fedsim: {error}", file=sys.stderr)
            bar.update(1)
    return failed


def show(options: argparse.Namespace) -> str:
    """Draws how many samples of each class every client holds, and returns one line on what is in the figure."""
    if options.out.suffix.lower() not in SUFFIXES:
        raise InputError(f"--out must end in {', '.join(SUFFIXES)}, got {str(options.out)!r}")
    data = load(options.name, options.root)
    train, test, words = _deal(data, options)
    sizes, test_sizes = (np.array([len(part) for part in parts]) for parts in (train, test))
    with styled(axes_grid=False, svg_fonttype="none", pdf_fonttype=42):  # text stays text
        figure = new_figure(6.5, 3.4)
        if data.roles is None:
            top = _draw_classes(figure, counts(data.y.numpy(), train, data.classes))
        else:
            top = _draw_sizes(figure, sizes, test_sizes)
        top.set_title(f"{TITLES[data.name]}, {len(train)} clients, {words}", fontsize=9)
        try:
            figure.savefig(options.out, dpi=300)
        except OSError as error:
            raise InputError(f"--out {options.out} cannot be written: {error.strerror}") from None
    return (
        f"{options.out}: {data.name}, {len(train)} clients, {words}; {sizes.min()} to {sizes.max()} training and "
        f"{test_sizes.min()} to {test_sizes.max()} test samples per client"
    )


def _deal(data: Dataset, options: argparse.Namespace) -> tuple[Parts, Parts, str]:
    """The parts of training and test set, and the rule in words."""
    kind = options.partition or ("roles" if data.roles else "classes")
    if data.roles is not None and data.test_roles is not None:
        if kind != "roles":
            raise InputError(f"--partition {kind}: {data.name} comes with its clients; use --partition roles")
        count = len(data.roles) if options.clients is None else options.clients
        if not 1 <= count <= len(data.roles):
            raise InputError(f"--clients must be from 1 to {len(data.roles)}, the number of roles, got {count}")
        return data.roles[:count], data.test_roles[:count], "one role per client"
    if kind == "roles":
        raise InputError(f"--partition roles: {data.name} has no roles; use classes, dirichlet or iid")
    count, seed = 100 if options.clients is None else options.clients, options.seed
    p, c = options.classes_per_client, options.concentration
    names = {"classes": f"{p} class{'es' * (p > 1)} per client", "dirichlet": f"Dirichlet({c:g})", "iid": "i.i.d."}
    cut = partition.choose_cut(kind, count, p=p, concentration=c, seed=seed)
    return *partition.train_and_test(data.y, data.test_y, cut), f"{names[kind]}, seed {seed}"


def counts(labels: npt.NDArray[np.int64], parts: Parts, classes: int) -> npt.NDArray[np.int64]:
    """Samples of every class (rows) that every client (columns) holds."""
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts], axis=1)


def _draw_classes(figure: Any, table: npt.NDArray[np.int64]) -> Any:
    """Above, the size of every client; below, its samples of every class as a shade."""
    top, below = figure.subplots(2, 1, sharex=True, height_ratios=[1, 3])
    top.bar(np.arange(table.shape[1]), table.sum(axis=0), width=1.0, color=COLOURS[0], linewidth=0)
    top.set_ylabel("training\nsamples")
    held = np.ma.masked_equal(table, 0)  # none at all stays white
    shades = below.imshow(held, aspect="auto", cmap="Blues", vmin=0, interpolation="nearest", origin="lower")
    bar = figure.colorbar(shades, ax=[top, below], fraction=0.03, pad=0.02)
    bar.set_label("training samples of a class")
    bar.outline.set_linewidth(0.6)
    below.set(xlabel="client", ylabel="class", xlim=(-0.5, table.shape[1] - 0.5), yticks=range(len(table)))
    below.xaxis.get_major_locator().set_params(integer=True)
    figure.align_ylabels([top, below])
    return top


def _draw_sizes(figure: Any, train: npt.NDArray[np.int64], test: npt.NDArray[np.int64]) -> Any:
    """Clients by size, on a logarithmic scale: roles differ by four orders of magnitude."""
    axes = figure.subplots()
    order = np.argsort(-train, kind="stable")
    for sizes, color, label in ((train, COLOURS[0], "training"), (test, COLOURS[1], "test")):
        axes.step(np.arange(1, len(sizes) + 1), sizes[order], where="mid", color=color, linewidth=1.2, label=label)
    axes.set(yscale="log", ylim=(0.7, None), xlim=(0, len(train) + 1), xlabel="client, largest first", ylabel="samples")
    axes.legend(frameon=False)
    return axes
