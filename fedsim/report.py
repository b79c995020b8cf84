"""report.html: a whole run in one self-contained file: table, figures, command, settings, environment."""

import base64
import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .cells import CellResult
from .experiments.grid import Experiment
from .run import files
from .table import Table, show

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


def write(
    experiment: Experiment,
    out: Path,
    results: list[CellResult],
    table: Table,
    figures: Sequence[Path],
    preset: str,
    starts: list[dict[str, Any]],
) -> Path:
    """Writes report.html into the run directory and returns its path; starts: every start's command and software."""
    title = html.escape(f"{experiment.code} {experiment.title}".strip())
    parts = [
        f"<h1>{title}</h1>",
        f"<p>Experiment <code>{experiment.name}</code>, preset <code>{preset}</code>.</p>",
        f'<h2>Result</h2>\n<div class="wide">{table.html()}</div>',
        "<h2>Figure</h2>",
        *(_image(path) for path in figures if path.suffix == ".svg"),
        "<h2>Command</h2>",
        "".join(f"<pre>{html.escape(start['command'])}</pre>" for start in starts),
        "<p class='note'>More than one command: the run was stopped and resumed.</p>" if len(starts) > 1 else "",
        f'<h2>Settings</h2>\n<div class="wide">{_settings(results).html()}</div>',
        f"<h2>Environment</h2>\n{_environment(starts).html()}",
    ]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    top = f'<!doctype html>\n<html lang="en"><head>{head}<style>{STYLE}</style></head><body>'
    page = out / "report.html"
    files.write_atomic(page, "\n".join([top, *parts, "</body></html>\n"]).encode())
    return page


def _image(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<p><img alt="{html.escape(path.stem)}" src="data:image/svg+xml;base64,{data}"></p>'


def _settings(results: list[CellResult]) -> Table:
    """Every setting once where all cells agree, else its values in the order of the cells."""
    configs = [result.cell.config.to_dict() for result in results]
    rows: list[list[Any]] = []
    for key in configs[0]:
        values = list(dict.fromkeys(str(config[key]) for config in configs))
        rows.append([key, ", ".join(values)])
    seeds = list(dict.fromkeys(seed for result in results for seed in result.cell.seeds))
    rows.append(["seeds", str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"])
    return Table(["setting", "value"], rows)


def _environment(starts: list[dict[str, Any]]) -> Table:
    keys = dict.fromkeys(key for start in starts for key in start if key != "command")
    return Table(
        ["", "value"], [[key, ", ".join(dict.fromkeys(show(start.get(key)) for start in starts))] for key in keys]
    )
