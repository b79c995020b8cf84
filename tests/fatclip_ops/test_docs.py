"""Every example in a docstring runs and shows what it says; the prose is complete, short and says nothing twice."""

import doctest
import importlib
import importlib.util
import pkgutil
import re
from collections import Counter
from pathlib import Path

import pytest

import fatclip_ops

ROOT = Path(__file__).parents[2]
HAS_FLOWER = importlib.util.find_spec("flwr") is not None  # the only part that needs more than torch
FOUND = pkgutil.walk_packages(fatclip_ops.__path__, "fatclip_ops.", onerror=lambda name: None)
PUBLIC = [m.name for m in FOUND if not any(part.startswith("_") for part in m.name.split("."))]
MODULES = [name for name in PUBLIC if HAS_FLOWER or not name.startswith("fatclip_ops.flower")]
PROSE = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md", *(ROOT / "docs").glob("*.md")]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder()
    modules = [importlib.import_module(name) for name in MODULES]
    assert sum(len(test.examples) for module in modules for test in finder.find(module)) > 15


def test_the_reference_has_every_public_name():
    text = (ROOT / "docs" / "api.md").read_text()
    assert sorted(re.findall(r"^::: fatclip_ops\.(\w+)$", text, re.M)) == sorted(fatclip_ops.__all__)
    if HAS_FLOWER:
        names = importlib.import_module("fatclip_ops.flower").__all__
        assert sorted(re.findall(r"^::: fatclip_ops\.flower\.(\w+)$", text, re.M)) == sorted(names)


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().split()) <= 900


def sentences(path):
    """Sentences of six words or more, without code blocks, table rows and headings."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    lines = ["" if line.lstrip().startswith(("|", "#", "<")) else line for line in text.splitlines()]
    paragraphs = re.split(r"\n\s*\n|^\s*(?:\*|\d+\.) ", "\n".join(lines), flags=re.M)
    found = [" ".join(s.split()) for p in paragraphs for s in re.split(r"(?<=[.:;])\s+", p)]
    return {s for s in found if len(s.split()) >= 6}


def test_no_sentence_stands_twice():
    counts = Counter(s for path in PROSE for s in sentences(path))
    assert len(counts) > 100
    assert [s for s, n in counts.items() if n > 1] == []
