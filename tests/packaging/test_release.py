"""release-check fails on everything that does not agree, and on archives with too little or too much."""

import re
import shutil
import tarfile
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from tools import archives
from tools.release import archive_problems, read_version, text_problems

ROOT = Path(__file__).parents[2]
VERSION = read_version()


@pytest.fixture
def copy(tmp_path):
    for name in ("pyproject.toml", "CHANGELOG.md", "CITATION.cff"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def replace(path, pattern, text):
    before = path.read_text()
    after = re.sub(pattern, text, before, count=1, flags=re.M)
    assert after != before
    path.write_text(after)


def test_this_tree_agrees():
    assert text_problems(ROOT, VERSION, None) == []


@pytest.mark.parametrize(
    ("name", "pattern", "text"),
    [
        ("CHANGELOG.md", r"^## \S+", "## 9.9.9"),
        ("CHANGELOG.md", r"^## ", "# "),
        ("CITATION.cff", r"^version: .*", "version: 9.9.9"),
        ("CITATION.cff", r"^version: .*\n", ""),
        ("pyproject.toml", r'^version = ".*"', 'version = "9.9.9"'),
    ],
)
def test_a_mismatch_is_found(copy, name, pattern, text):
    replace(copy / name, pattern, text)
    assert [
        line for line in text_problems(copy, read_version(copy), None) if name.partition(".")[0] in line or "9" in line
    ]


def test_a_tag_needs_its_version_and_a_date(copy):
    replace(copy / "CHANGELOG.md", r"^## .*$", f"## {VERSION} (2030-01-31)")
    assert text_problems(copy, VERSION, f"v{VERSION}") == []
    assert text_problems(copy, VERSION, "v9.9.9") == [f"the tag is v9.9.9, not v{VERSION}"]
    replace(copy / "CHANGELOG.md", r"^## .*$", f"## {VERSION} (unreleased)")
    assert text_problems(copy, VERSION, f"v{VERSION}") == [f"CHANGELOG.md gives {VERSION} no date: (unreleased)"]


def make_wheel(folder, without=(), also=(), tag="manylinux_2_27_x86_64", version=VERSION):
    """A wheel with the right names in it, but for the changes."""
    path = folder / f"fatclip-{VERSION}-cp311-cp311-{tag}.whl"
    modules = [f"{module}{EXTENSION_SUFFIXES[0]}" for module in archives.MODULES]
    held = {*archives.python_files(), "fatclip_ops/py.typed", *modules, *also} - set(without)
    with zipfile.ZipFile(path, "w") as wheel:
        for name in sorted(held):
            wheel.writestr(name, "")
        wheel.writestr(f"fatclip-{VERSION}.dist-info/METADATA", f"Name: fatclip\nVersion: {version}\n")
    return path


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"without": ["fatclip_ops/py.typed"]}, "lacks fatclip_ops/py.typed"),
        ({"without": [f"fedsim/_models{EXTENSION_SUFFIXES[0]}"]}, "lacks the module fedsim/_models"),
        ({"also": ["tests/conftest.py"]}, "holds tests/conftest.py"),
        ({"also": ["fatclip_ops/__pycache__/x.pyc"]}, "holds fatclip_ops/__pycache__/x.pyc"),
        ({"tag": "linux_x86_64"}, "has no manylinux tag"),
        ({"tag": "manylinux_2_36_x86_64"}, "needs a newer glibc"),
    ],
)
def test_the_contents_of_a_wheel(tmp_path, changes, said):
    found = archives.wheel_problems(make_wheel(tmp_path, **changes))
    assert len(found) == bool(said)
    assert not said or said in found[0]


def test_the_sdist_of_this_tree_is_complete(tmp_path):
    sdist = archives.build_sdist(tmp_path)
    assert archives.sdist_problems(sdist) == []
    assert archives.version_inside(sdist) == VERSION
    make_wheel(tmp_path, version="9.9.9")
    (line,) = archive_problems(tmp_path, VERSION)
    assert "is of version 9.9.9" in line
    with tarfile.open(tmp_path / "fatclip-0.tar.gz", "w:gz") as empty:
        empty.add(ROOT / "LICENSE", f"fatclip-{VERSION}/LICENSE")
    assert f"fatclip-0.tar.gz lacks {archives.python_files()[0]}" in archives.sdist_problems(
        tmp_path / "fatclip-0.tar.gz"
    )


def test_missing_archives_are_named(tmp_path):
    assert [line.split(";")[0] for line in archive_problems(tmp_path, VERSION)] == [
        "dist/ has no sdist",
        "dist/ has no wheel",
    ]
