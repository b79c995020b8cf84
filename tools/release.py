"""`make release-check`: what must agree before a version is published.

pyproject.toml has the version. The changelog must have a section for it, the citation must name it, the archives in
dist/ must carry it and hold what they should. With a tag (`--tag v0.1.0`, or one at HEAD), that is the version's, and
the section has a date.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

from tools.archives import DIST, ROOT, sdist_problems, version_inside, wheel_problems

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_version(root: Path = ROOT) -> str:
    return str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])


def text_problems(root: Path, version: str, tag: str | None) -> list[str]:
    """What does not agree in the changelog, the citation and the tag."""
    found = []
    heading = re.search(r"^## (\S+)(?: \((.*)\))?$", (root / "CHANGELOG.md").read_text(), re.M)
    if heading is None or heading[1] != version:
        found.append(f"CHANGELOG.md begins with {heading[1] if heading else 'nothing'}, not with {version}")
    elif tag and not re.fullmatch(r"\d{4}-\d\d-\d\d", heading[2] or ""):
        found.append(f"CHANGELOG.md gives {version} no date: ({heading[2]})")
    cited = re.search(r"^version: (.*)$", (root / "CITATION.cff").read_text(), re.M)
    if cited is None or cited[1].strip("\"'") != version:
        found.append(f"CITATION.cff has version {cited[1] if cited else 'none'}, not {version}")
    if tag and tag != f"v{version}":
        found.append(f"the tag is {tag}, not v{version}")
    return found


def archive_problems(dist: Path, version: str) -> list[str]:
    """What is wrong with the archives, or that they are not there."""
    sdists, wheels = sorted(dist.glob("fatclip-*.tar.gz")), sorted(dist.glob("fatclip-*.whl"))
    found = [] if sdists else ["dist/ has no sdist; `make sdist` makes it"]
    found += [] if wheels else ["dist/ has no wheel; `make wheel` makes one"]
    for archive in [*sdists, *wheels]:
        if (inside := version_inside(archive)) != version:
            found.append(f"{archive.name} is of version {inside}, not {version}")
        found += wheel_problems(archive) if archive.suffix == ".whl" else sdist_problems(archive)
    return found


def tag_at_head() -> str | None:
    """The version tag of the commit that is checked out, if it has one."""
    command = ["git", "-C", str(ROOT), "tag", "--points-at", "HEAD", "--list", "v*"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip().partition("\n")[0] or None
    except FileNotFoundError:  # no git
        return None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__.split("\n")[0])
    parser.add_argument("--tag", help="the tag of the release (default: that of HEAD, if any)")
    tag = parser.parse_args().tag or tag_at_head()
    version = read_version()
    if problems := text_problems(ROOT, version, tag) + archive_problems(DIST, version):
        raise SystemExit("\n".join(f"fatclip: {line}" for line in problems))
    print(f"fatclip: {version} can be released" if tag else f"fatclip: {version} agrees everywhere; it has no tag yet")


if __name__ == "__main__":
    main()
