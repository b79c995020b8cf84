"""The programs on the page about one's own research run as they are printed; the reference is complete."""

import re
from pathlib import Path

import pytest
import torch
from own_cases import Plain, images

import fedsim
from fedsim import tail
from fedsim.algorithms import ALGORITHMS

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / name for name in ("fedsim.md", "own-research.md", "tail-index.md")]
PROGRAMS = [
    (page.name, text)
    for page in PAGES
    for text in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    if 'find("cifar10' not in text  # minutes of training
]


@pytest.mark.parametrize(("page", "program"), PROGRAMS, ids=[f"{page}-{i}" for i, (page, _) in enumerate(PROGRAMS)])
def test_a_program_of_the_docs_runs(page, program, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedsim.figures.save", lambda *_: [])
    known = dict(ALGORITHMS)
    samples = images(300)
    names = {"MyNet": Plain, "train_set": samples, "test_set": images(30), "x": torch.randn(400, 3), "fedsim": fedsim}
    short = (
        program.replace("classes=2", "classes=3")
        .replace("rounds=100", "rounds=2")
        .replace("range(100)", "range(2)")
        .replace("range(200)", "range(1)")
    )
    if "simulate" in short and "rounds=" not in short:
        short = short.replace("lam=3.0)", "lam=3.0, rounds=2)")
    try:
        exec(short, names | {"train": fedsim.split(samples, clients=10)})
    finally:
        ALGORITHMS.clear()
        ALGORITHMS.update(known)


def test_the_reference_has_every_public_name():
    names = re.findall(r"^::: fedsim\.[\w.]*?(\w+)$", (DOCS / "fedsim-api.md").read_text(), re.M)
    assert set(names) >= {*fedsim.__all__, *tail.__all__} - {"OVER"}
