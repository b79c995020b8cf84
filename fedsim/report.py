"""A finished run: what the terminal prints, and report.html, one self-contained file with all there is to know."""

import base64
import html
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cells import CellResult
from .experiments.grid import Experiment
from .run import files
from .table import Table

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; }
body { max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; line-height: 1.25; } h2 { font-size: 1.15rem; margin-top: 2rem; border-bottom: 1px solid #ccc; }
table { border-collapse: collapse; font-size: .9rem; } .wide { overflow-x: auto; }
th { border-bottom: 2px solid #333; } td { border-bottom: 1px solid #ddd; }
th, td { padding: .25rem .6rem; vertical-align: bottom; } td { white-space: nowrap; }
.text { text-align: left; } .number { text-align: right; font-variant-numeric: tabular-nums; }
.note { font-size: .85rem; color: #444; margin: .4rem 0; max-width: 50rem; }
pre { background: #f4f4f4; padding: .7rem; white-space: pre-wrap; overflow-wrap: anywhere; }
img { width: 100%; height: auto; max-width: 64rem; }
"""


@dataclass
class Finished:
    """A finished run: its results and files; failure: why a figure could not be drawn."""

    experiment: Experiment
    out: Path
    results: list[CellResult]
    table: Table
    figures: list[Path]
    failure: str = ""

    @property
    def report(self) -> Path:
        return self.out / "report.html"

    def text(self) -> str:
        paths = [f"{path.suffix[1:]:5} {path}" for path in [*self.figures, self.report]]
        title = f"{self.experiment.code}  {self.experiment.title}".strip()
        return "\n".join(["", title, "", self.table.text(), "", *paths])

    def write_report(self, preset: str, starts: list[dict[str, Any]]) -> None:
        """Writes report.html into the run directory; starts: every start's command and software."""
        title = html.escape(f"{self.experiment.code} {self.experiment.title}".strip())
        seeds = list(dict.fromkeys(seed for result in self.results for seed in result.cell.seeds))
        shown = {"seeds": str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"}
        settings = [result.cell.config.to_dict() | shown for result in self.results]
        machines = [{key: value for key, value in start.items() if key != "command"} for start in starts]
        drawn = [path for path in self.figures if path.suffix == ".svg"]
        images = [(html.escape(path.stem), base64.b64encode(path.read_bytes()).decode()) for path in drawn]
        parts = [
            f"<h1>{title}</h1>",
            f"<p>Experiment <code>{self.experiment.name}</code>, preset <code>{preset}</code>.</p>",
            f'<h2>Result</h2>\n<div class="wide">{self.table.html()}</div>',
            "<h2>Figure</h2>",
            f"<p>{html.escape(self.failure)}</p>" if self.failure else "",
            *(f'<p><img alt="{name}" src="data:image/svg+xml;base64,{data}"></p>' for name, data in images),
            "<h2>Command</h2>",
            "".join(f"<pre>{html.escape(start['command'])}</pre>" for start in starts),
            "<p class='note'>More than one command: the run was stopped and resumed.</p>" if len(starts) > 1 else "",
            f'<h2>Settings</h2>\n<div class="wide">{_values("setting", settings).html()}</div>',
            f"<h2>Environment</h2>\n{_values('', machines).html()}",
        ]
        head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
        top = f'<!doctype html>\n<html lang="en"><head>{head}<style>{STYLE}</style></head><body>'
        files.write_atomic(self.report, "\n".join([top, *parts, "</body></html>\n"]).encode())


def _values(name: str, dicts: list[dict[str, Any]]) -> Table:
    """Every key with its value where all agree, else with its values in their order."""
    keys = dict.fromkeys(key for one in dicts for key in one)
    rows = [[key, ", ".join(dict.fromkeys(str(one.get(key, "-")) for one in dicts))] for key in keys]
    return Table([name, "value"], rows)
