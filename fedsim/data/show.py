"""A picture of a partition: how many samples of each class every client holds."""

import argparse
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..plotting import COLOURS, new_figure, styled
from . import partition, sets
from .dataset import Dataset
from .partition import Parts

TITLES = {"cifar10": "CIFAR-10", "mnist": "MNIST", "shakespeare": "Shakespeare"}
SUFFIXES = (".png", ".svg", ".pdf")


def deal(data: Dataset, options: argparse.Namespace) -> tuple[Parts, Parts, str]:
    """The parts of training and test set, and the rule in words."""
    kind = options.partition or ("roles" if data.roles else "classes")
    if (kind == "roles") != (data.roles is not None):
        right = (
            "comes with its clients; use --partition roles"
            if data.roles
            else "has no roles; use classes, dirichlet or iid"
        )
        raise InputError(f"--partition {kind}: {data.name} {right}")
    if data.roles is not None and data.test_roles is not None:
        count = len(data.roles) if options.clients is None else options.clients
        if not 1 <= count <= len(data.roles):
            raise InputError(f"--clients must be from 1 to {len(data.roles)}, the number of roles, got {count}")
        return data.roles[:count], data.test_roles[:count], "one role per client"
    count, seed = 100 if options.clients is None else options.clients, options.seed
    p, c = options.classes_per_client, options.concentration
    names = {"classes": f"{p} class{'es' * (p > 1)} per client", "dirichlet": f"Dirichlet({c:g})", "iid": "i.i.d."}
    cut = partition.choose_cut(kind, count, p=p, concentration=c, seed=seed)
    return *partition.train_and_test(data.y, data.test_y, cut), f"{names[kind]}, seed {seed}"


def counts(labels: npt.NDArray[np.int64], parts: Parts, classes: int) -> npt.NDArray[np.int64]:
    """Samples of every class (rows) that every client (columns) holds."""
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts], axis=1)


def _by_class(figure: Any, table: npt.NDArray[np.int64]) -> Any:
    """Above, the size of every client; below, its samples of every class as a shade."""
    top, below = figure.subplots(2, 1, sharex=True, height_ratios=[1, 3])
    top.bar(np.arange(table.shape[1]), table.sum(axis=0), width=1.0, color=COLOURS[0], linewidth=0)
    top.set_ylabel("training\nsamples")
    held = np.ma.masked_equal(table, 0)  # none at all stays white
    shades = below.imshow(held, aspect="auto", cmap="Blues", vmin=0, interpolation="nearest", origin="lower")
    below.set_yticks(range(len(table)))
    below.set_ylabel("class")
    bar = figure.colorbar(shades, ax=[top, below], fraction=0.03, pad=0.02)
    bar.set_label("training samples of a class")
    bar.outline.set_linewidth(0.6)
    below.set_xlim(-0.5, table.shape[1] - 0.5)
    below.set_xlabel("client")
    below.xaxis.get_major_locator().set_params(integer=True)
    figure.align_ylabels([top, below])
    return top


def _by_size(figure: Any, train: npt.NDArray[np.int64], test: npt.NDArray[np.int64]) -> Any:
    """Clients by size, on a logarithmic scale: roles differ by four orders of magnitude."""
    axes = figure.subplots()
    order = np.argsort(-train, kind="stable")
    for sizes, color, label in ((train, COLOURS[0], "training"), (test, COLOURS[1], "test")):
        axes.step(np.arange(1, len(sizes) + 1), sizes[order], where="mid", color=color, linewidth=1.2, label=label)
    axes.set(yscale="log", ylim=(0.7, None), xlim=(0, len(train) + 1))
    axes.set(xlabel="client, largest first", ylabel="samples")
    axes.legend(frameon=False)
    return axes


def draw(options: argparse.Namespace) -> str:
    """Writes the figure and returns one line on what is in it."""
    if options.out.suffix.lower() not in SUFFIXES:
        raise InputError(f"--out must end in {', '.join(SUFFIXES)}, got {str(options.out)!r}")
    data = sets.load(options.name, options.root)
    train, test, words = deal(data, options)
    sizes, test_sizes = (np.array([len(part) for part in parts]) for parts in (train, test))
    with styled(axes_grid=False, svg_fonttype="none", pdf_fonttype=42):  # text stays text
        figure = new_figure(6.5, 3.4)
        by_class = data.roles is None
        table = counts(data.y.numpy(), train, data.classes) if by_class else None
        top = _by_size(figure, sizes, test_sizes) if table is None else _by_class(figure, table)
        top.set_title(f"{TITLES[data.name]}, {len(train)} clients, {words}", fontsize=9)
        try:
            figure.savefig(options.out, dpi=300)
        except OSError as error:
            raise InputError(f"--out {options.out} cannot be written: {error.strerror}") from None
    return (
        f"{options.out}: {data.name}, {len(train)} clients, {words}; {sizes.min()} to {sizes.max()} training and "
        f"{test_sizes.min()} to {test_sizes.max()} test samples per client"
    )
