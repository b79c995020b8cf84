"""Every example in a docstring runs and shows what it says; the prose is complete, short and says nothing twice."""

import doctest
import importlib
import pkgutil
import re
from collections import Counter
from pathlib import Path

import pytest

import fatclip_ops

ROOT = Path(__file__).parents[2]
FOUND = pkgutil.walk_packages(fatclip_ops.__path__, "fatclip_ops.")
MODULES = [m.name for m in FOUND if not any(part.startswith("_") for part in m.name.split("."))]
PROSE = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md", *(ROOT / "docs").glob("*.md")]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder()
    modules = [importlib.import_module(name) for name in MODULES]
    assert sum(len(test.examples) for module in modules for test in finder.find(module)) > 15


def test_the_reference_has_every_public_name():
    listed = re.findall(r"^::: fatclip_ops\.(\w+)", (ROOT / "docs" / "api.md").read_text(), re.M)
    assert sorted(listed) == sorted(fatclip_ops.__all__)


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
