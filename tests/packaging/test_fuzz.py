"""`make fuzz` and `make soak` for a moment each, and what they say when something is wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools import fuzz, soak

ROOT = Path(__file__).parents[2]
PLANTED = """
#include "{input}"
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {{
  uint8_t* copy = new uint8_t[size];
  if (size) memcpy(copy, data, size);
  volatile uint8_t last = size > 2 ? copy[size{past}] : 0;
  delete[] copy;
  return last * 0;
}}
"""


@pytest.fixture(scope="module")
def compilers(tmp_path_factory):
    """libFuzzer's, where there is one, and the one that every machine has."""
    plain = fuzz.build_graph.find_compiler()
    assert plain, "a C++ compiler is needed"
    return {fuzz.find_compiler(tmp_path_factory.mktemp("probe")), fuzz.Compiler(plain, False)}


def planted(folder, past):
    path = folder / "planted.cpp"
    path.write_text(PLANTED.format(input=ROOT / "tests" / "fuzz" / "input.h", past=past))
    return path


def test_a_planted_overrun_is_found(compilers, tmp_path):
    for compiler in compilers:
        folder = tmp_path / f"{compiler.guided}"
        folder.mkdir()
        fuzz.fuzz_native(planted(folder, " - 1"), 1, folder / "good", compiler, folder)
        with pytest.raises(SystemExit, match="heap-buffer-overflow"):
            fuzz.fuzz_native(planted(folder, ""), 1, folder / "bad", compiler, folder)


@pytest.mark.parametrize("name", ["reader", "kernels"])
def test_native_targets(compilers, name, tmp_path, capsys):
    best = max(compilers, key=lambda compiler: compiler.guided)._replace(optimize="-O0")  # compiles in half the time
    fuzz.fuzz_native(fuzz.HERE / f"{name}.cpp", 1, tmp_path / "programs", best, tmp_path)
    assert "nothing found" in capsys.readouterr().out


@pytest.mark.parametrize("what", fuzz.FILES)
def test_files(what, tmp_path, capsys):
    fuzz.fuzz_files(what, 2, tmp_path)
    assert "nothing found" in capsys.readouterr().out


def test_soak_for_a_moment():
    done = subprocess.run(
        [sys.executable, "-m", "tools.soak", "--minutes", "0.02"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("descriptors") == 2


def test_soak_names_what_grows():
    first = soak.Usage(100 << 20, 5, 3)
    assert soak.grown(first, first) == []
    assert soak.grown(first, soak.Usage(200 << 20, 7, 4)) == [
        "memory grew by 100 MB",
        "there are 2 more descriptors",
        "there are 1 more threads",
    ]


def test_soak_sees_a_leak(monkeypatch):
    kept = []

    def turns(seconds):
        for turn in range(8):
            kept.append(os.open(os.devnull, os.O_RDONLY))
            yield turn

    monkeypatch.setattr(soak, "turns", turns)
    assert soak.soak(0) == ["there are 4 more descriptors"]
    for descriptor in kept:
        os.close(descriptor)


def test_corpus_is_small():
    sizes = [path.stat().st_size for path in (fuzz.HERE / "corpus").rglob("*") if path.is_file()]
    assert len(sizes) > 10
    assert sum(sizes) < 40_000
