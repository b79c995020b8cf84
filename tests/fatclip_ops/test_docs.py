"""Every example in a docstring runs and shows what it says."""

import doctest
import importlib
import pkgutil

import pytest

import fatclip_ops

MODULES = [m.name for m in pkgutil.iter_modules(fatclip_ops.__path__) if not m.name.startswith("_")]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert doctest.testmod(importlib.import_module(f"fatclip_ops.{name}")).failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder()
    modules = [importlib.import_module(f"fatclip_ops.{name}") for name in MODULES]
    assert sum(len(test.examples) for module in modules for test in finder.find(module)) > 15
