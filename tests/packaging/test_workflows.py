"""What the workflows run can be run by hand: each step is a target of the Makefile or a published action."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([\w-]+):(?!=)", (ROOT / "Makefile").read_text(), re.M))
VARIABLES = set(re.findall(r"^(\w+) [?:]?=", (ROOT / "Makefile").read_text(), re.M))


def steps(path):
    for job in yaml.safe_load(path.read_text())["jobs"].values():
        yield from job["steps"]


def test_there_are_three():
    assert [path.stem for path in WORKFLOWS] == ["docs", "tests", "wheels"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.stem)
def test_every_step_is_a_target_or_an_action(path):
    for step in steps(path):
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@[\w./]+", step["uses"]), step
            continue
        command, target, *settings = re.sub(r"\$\{\{.*?\}\}", "x", step["run"]).split()
        assert command == "make"
        assert target in TARGETS, f"the Makefile has no target {target}"
        given = [setting.partition("=")[0] for setting in settings] + list(step.get("env", {}))
        assert set(given) <= VARIABLES, f"the Makefile has no variable {given}"


def test_every_python_that_is_promised_is_tested():
    project = (ROOT / "pyproject.toml").read_text()
    promised = re.findall(r"Programming Language :: Python :: (3\.\d+)", project)
    tested = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())["jobs"]["test"]["strategy"]["matrix"]
    assert tested["python"] == promised
    wheels = re.findall(r'"cp(3\d+)-\*"', project)
    assert wheels == [version.replace(".", "") for version in promised]


def test_the_range_of_torch_is_what_is_tested():
    """torch>=A,<B: the first tested version is A, the last is below B by one minor version."""
    (low, high) = re.search(r'"torch>=(\d+\.\d+\.\d+),<(\d+\.\d+)"', (ROOT / "pyproject.toml").read_text()).groups()
    matrix = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())["jobs"]["torch"]["strategy"]["matrix"]
    assert matrix["torch"][0] == low
    major, minor, _ = matrix["torch"][-1].split(".")
    assert f"{major}.{int(minor) + 1}" == high


def test_help_names_every_target():
    helped = (ROOT / "Makefile").read_text().partition("\nhelp:")[2].partition("\n\n")[0]
    assert {t for t in TARGETS if not re.search(rf"\b{t}\b", helped)} <= {"help", "always"}
