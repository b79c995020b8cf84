"""Hostile files where fedsim reads: `python tests/fuzz/files.py runs|data --seconds 60 --keep FOLDER`.

Every file of a run directory, or of a data set, is replaced, cut, or changed in places, as the fuzzer's bytes say. The
command that reads it must succeed with the result of the good files, or print one line and exit with 1 or 2. Anything
else is a finding. Guided by coverage where atheris is installed; otherwise by random bytes.
"""

import argparse
import contextlib
import io
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

try:
    import atheris
except ImportError:  # no wheel for this Python
    atheris = None

with atheris.instrument_imports(include=["fedsim"]) if atheris else contextlib.nullcontext():
    from fedsim.cli import main
    from fedsim.data import load
    from fedsim.data.shakespeare import WINDOW
    from fedsim.errors import InputError

RUN = ["run", "synthetic-cauchy", "--seeds", "1", "--set", "rounds=3", "--checkpoint-every", "1", "--json"]


class FoundError(Exception):
    """What the fuzzer looks for."""


def change(good: bytes, recipe: bytes) -> bytes:
    """A file after a change: the first byte says how, two say where, the rest is what is put there."""
    how, at, rest = recipe[:1], int.from_bytes(recipe[1:3], "big") % (len(good) + 1), recipe[3:]
    changes: list[Callable[[], bytes]] = [
        lambda: rest,
        lambda: good[:at] + rest + good[at + len(rest) :],
        lambda: good[:at] + rest + good[at:],
        lambda: good[:at],
        lambda: good[:at] + good[at + 1 + len(rest) :],
        lambda: good[:at] + bytes(b ^ (1 << (rest[0] % 8 if rest else 0)) for b in good[at : at + 1]) + good[at + 1 :],
    ]
    return changes[int.from_bytes(how, "big") % len(changes)]()


class Files:
    """Good files in a folder, a copy of them to damage, and a reader."""

    def __init__(self, folder: Path) -> None:
        self.good, self.copy = folder / "good", folder / "copy"
        self.make()
        self.names = sorted(p.relative_to(self.good) for p in self.good.rglob("*") if p.is_file())
        self.expected = self.result(self.good)

    def make(self) -> None:
        raise NotImplementedError

    def result(self, folder: Path) -> object:
        """What the reader makes of the files, or None where it refused them in one line."""
        raise NotImplementedError

    def one_input(self, data: bytes) -> None:
        name = self.names[int.from_bytes(data[:1], "big") % len(self.names)]
        shutil.copytree(self.good, self.copy)
        try:
            (self.copy / name).write_bytes(change((self.good / name).read_bytes(), data[1:]))
            found = self.result(self.copy)
            if found not in (None, self.expected):
                raise FoundError(f"{name}: accepted, with another result: {str(found)[:300]}")
        finally:
            shutil.rmtree(self.copy)


class RunFiles(Files):
    """A run directory whose cells lack their results: resuming reads everything else."""

    def make(self) -> None:
        self.result(self.good)
        for path in self.good.glob("cells/*/result.json"):
            path.unlink()

    def result(self, folder: Path) -> object:
        out, err = io.StringIO(), io.StringIO()
        resume = ["--resume"] if folder.exists() else []
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), patch("fedsim.figures.save", no_figure):
            code = main([*RUN, "--out", str(folder), *resume])
        if code == 0:
            return plain(json.loads(out.getvalue()))
        said = err.getvalue()
        if code not in (1, 2) or said.count("\n") != 1 or not said.startswith("fedsim: "):
            raise FoundError(f"exit code {code}, and on stderr: {said[:300]!r}")
        return None


def no_figure(*_: object) -> list[Path]:
    return []


def plain(value: object) -> object:
    """A result without what differs between two equal runs: times and places."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items() if k not in ("seconds", "out", "figures", "report")}
    return [plain(v) for v in value] if isinstance(value, list) else value


class DataFiles(Files):
    """LEAF's JSON, which no checksum protects."""

    def make(self) -> None:
        line = "".join(chr(ord("a") + i % 26) for i in range(WINDOW))
        for part in ("train", "test"):
            users = {f"{part[0]}{i}": {"x": [line] * 2, "y": ["a", "b"]} for i in range(2)}
            path = self.good / "shakespeare" / "leaf" / part / "all.json"
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps({"users": list(users), "user_data": users}))

    def result(self, folder: Path) -> object:
        try:
            data = load("shakespeare", folder)
        except InputError as error:
            if "\n" in str(error):
                raise FoundError(f"more than one line: {error}") from error
            return None
        # Other text is other data; only its form can be wrong.
        if folder == self.copy and not (data.x.shape[1] == WINDOW and len(data.x) == len(data.y) and data.x.max() < 80):
            raise FoundError(f"x {tuple(data.x.shape)}, y {tuple(data.y.shape)}")
        return self.expected if folder == self.copy else "data"


def fuzz_guided(files: Files, seconds: float, keep: Path) -> None:
    """Coverage picks the bytes; new ones are kept. Does not return: atheris ends the process."""
    options = [f"-max_total_time={max(1, round(seconds))}", f"-artifact_prefix={keep.parent}/finding-", "-max_len=400"]
    atheris.Setup(["files", *options, "-print_final_stats=1", str(keep)], files.one_input)
    atheris.Fuzz()


def fuzz_randomly(files: Files, seconds: float) -> None:
    chance, end, runs = random.Random(0), time.monotonic() + seconds, 0
    while runs < 20 or time.monotonic() < end:
        data = chance.randbytes(chance.choice((3, 4, 5, 6, 10, 100)))
        try:
            files.one_input(data)
        except Exception:
            print(f"fatclip: the bytes were {data.hex()}", file=sys.stderr)
            raise
        runs += 1
    print(f"Done {runs} runs", file=sys.stderr)


def fuzz() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("runs", "data"))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--keep", type=Path, required=True, help="where inputs with new coverage are kept")
    args = parser.parse_args()
    args.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        files = {"runs": RunFiles, "data": DataFiles}[args.what](Path(folder))
        if atheris:
            fuzz_guided(files, args.seconds, args.keep)
        else:
            fuzz_randomly(files, args.seconds)


if __name__ == "__main__":
    fuzz()
