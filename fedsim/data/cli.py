"""`python -m fedsim data`: gets data sets, and draws how they are dealt to clients."""

import argparse
import sys
from pathlib import Path

from ..arguments import Parser
from ..errors import StoppedError
from . import fetch, sets
from .files import default_root


def _parser() -> Parser:
    parser = Parser(
        prog="fedsim data",
        description="Gets and verifies data sets; `fedsim data show NAME` draws how one is dealt to clients.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(sets.NAMES)} (default: all)")
    _add_root(parser)
    return parser


def _add_root(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", type=Path, help="data folder (default: $FEDSIM_DATA, else ~/.cache/fedsim)")


def _show_parser() -> Parser:
    parser = Parser(prog="fedsim data show", description="Draws how a data set is dealt to clients.")
    parser.add_argument("name", metavar="NAME", help=", ".join(sets.NAMES))
    parser.add_argument(
        "--partition", choices=["classes", "dirichlet", "iid", "roles"], help="default: classes, or roles"
    )
    parser.add_argument("--clients", type=int, help="default: 100, or every role")
    parser.add_argument("--classes-per-client", type=int, default=2, metavar="P", help="for classes (default: 2)")
    parser.add_argument("--concentration", type=float, default=0.5, metavar="C", help="for dirichlet (default: 0.5)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="figure to write: .png, .svg or .pdf")
    _add_root(parser)
    return parser


class _Bar(fetch.FetchProgress):
    """On a terminal a line with the set, the current action and the time; elsewhere only messages."""

    def __init__(self, sets: int):
        from tqdm import tqdm

        form = "{desc} |{bar:24}| {percentage:3.0f}% of the sets [{elapsed}]"
        self.bar = tqdm(total=sets, disable=None, leave=False, bar_format=form, file=sys.stderr)
        self.name = ""

    def doing(self, text: str) -> None:
        self.bar.set_description_str(f"{self.name}: {text}")

    def tick(self) -> None:
        self.bar.refresh()

    def say(self, text: str) -> None:
        self.bar.write(f"fedsim: {text}", file=sys.stderr)


def get(names: list[str], root: Path) -> int:
    """Gets every named set; one that fails does not keep the others from being fetched."""
    wanted = {name: sets.module(name) for name in names or sets.NAMES}
    failed, bar = 0, _Bar(len(wanted))
    with bar.bar:
        for bar.name, data in wanted.items():
            bar.doing("verifying")
            try:
                whence = fetch.get(data, bar.name, root, sets.KNOWN, bar)
                bar.bar.write(f"{bar.name}: verified in {root}, {whence}", file=sys.stdout)
            except fetch.FetchError as error:
                failed = 1
                bar.say(str(error))
            bar.bar.update(1)
    return failed


def main(argv: list[str]) -> int:
    """`fedsim data ...`; returns the exit code."""
    try:
        if argv[:1] == ["show"]:
            from . import show

            print(show.draw(_show_parser().parse_args(argv[1:])))
            return 0
        options = _parser().parse_args(argv)
        return get(options.names, (options.root or default_root()).expanduser())
    except KeyboardInterrupt:
        raise StoppedError("stopped; run the same command again to start over") from None
