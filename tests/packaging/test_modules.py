"""What the native modules ask of the system that loads them."""

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from tools.archives import MODULES

ROOT = Path(__file__).parents[2]
# Defined in csrc/python/older_libraries.cpp, because systems as old as manylinux_2_28 lack them.
OWN = {
    "__libc_single_threaded",
    "_ZSt28__throw_bad_array_new_lengthv",
    "_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv",
    "_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv",
}


@pytest.fixture(params=MODULES)
def module(request):
    path = ROOT / f"{request.param}{EXTENSION_SUFFIXES[0]}"
    assert path.exists(), "`make .venv/built` compiles the modules"
    with path.open("rb") as file:
        yield ELFFile(file)


def test_no_openmp_runtime_is_named(module):
    """torch brings its own, under a name that depends on the version; a second one would compete with it."""
    needed = [tag.needed for tag in module.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")]
    assert needed
    assert [name for name in needed if "omp" in name] == []


def test_symbols_of_newer_systems_are_not_imported(module):
    symbols = list(module.get_section_by_name(".dynsym").iter_symbols())
    imported = {s.name for s in symbols if s["st_shndx"] == "SHN_UNDEF"}
    exported = {s.name for s in symbols if s["st_shndx"] != "SHN_UNDEF"}
    assert "memcpy" in imported
    assert OWN.isdisjoint(imported)
    assert OWN.isdisjoint(exported)
