"""`make fuzz`: hostile bytes for the kernels, the tensor reader and the files that fedsim reads.

The C++ targets of tests/fuzz/ are guided by coverage where clang++ has libFuzzer; with another compiler they run their
corpus and random changes of it. Both under AddressSanitizer and UndefinedBehaviorSanitizer. Inputs with new coverage,
and those that found something, stay in build/fuzz/.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "csrc"))
import build_graph  # noqa: E402 - the rules of the build

HERE = ROOT / "tests" / "fuzz"
LEARNT = ROOT / "build" / "fuzz"
SANITIZERS = "address,undefined"
FLAGS = f"-std=c++17 -g -ffp-contract=off -fno-sanitize-recover=all -fno-sanitize=vptr {build_graph.KERNEL_FLAGS}"
# The reader's file stands in for the few functions of Python that it reaches; nothing calls the others.
WITHOUT_PYTHON = "-no-pie -Wl,--unresolved-symbols=ignore-all"
FILES = ("runs", "data")


class Compiler(NamedTuple):
    command: str
    guided: bool
    optimize: str = "-O1"

    def flags(self) -> list[str]:
        return f"{FLAGS} {self.optimize} -fsanitize={SANITIZERS}{',fuzzer' if self.guided else ''}".split()


def find_compiler(folder: Path) -> Compiler:
    """clang++ with libFuzzer, or whatever builds the library."""
    probe = folder / "probe.cpp"
    probe.write_text('extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }\n')
    command = ["clang++", "-fsanitize=fuzzer,address", str(probe), "-o", str(folder / "probe")]
    if shutil.which("clang++") and subprocess.run(command, capture_output=True).returncode == 0:
        return Compiler("clang++", True)
    other = build_graph.find_compiler()
    if other is None:
        raise SystemExit("fatclip: fuzzing the kernels needs a C++ compiler")
    return Compiler(other, False)


def sources(target: Path) -> dict[str, build_graph.Object]:
    """What a target is made of: kernels.cpp needs the library and an oracle, others themselves alone."""
    found = {"target.o": build_graph.Object(target)}
    if target.name == "kernels.cpp":
        library = build_graph.objects(build_graph.MODULES["fatclip_ops._native"])
        found |= {name: o for name, o in library.items() if o.source.parent.name != "python"}
        found["oracle.o"] = build_graph.Object(ROOT / "tests" / "csrc" / "oracle.cpp")
    return found


def build(target: Path, compiler: Compiler, folder: Path) -> Path:
    """The program of a target, compiled two files at a time."""
    folder.mkdir(parents=True)
    objects = sources(target)
    if not compiler.guided:
        objects["standalone.o"] = build_graph.Object(HERE / "standalone.cpp")
    includes = shlex.split(build_graph.include_flags())

    def run(*command: str) -> None:
        done = subprocess.run([*compiler.command.split(), *compiler.flags(), *command], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"fatclip: {target.name} was not built:\n{done.stderr}")

    with ThreadPoolExecutor(2) as pool:
        jobs = [
            pool.submit(run, *o.flags.split(), *includes, "-c", str(o.source), "-o", str(folder / name))
            for name, o in objects.items()
        ]
        for job in jobs:
            job.result()
    program = folder / target.stem
    link = WITHOUT_PYTHON.split() if target.name == "reader.cpp" else []
    run(*(str(folder / name) for name in objects), *link, "-pthread", "-o", str(program))
    return program


def fuzz_native(target: Path, seconds: int, folder: Path, compiler: Compiler, learnt: Path = LEARNT) -> None:
    program = build(target, compiler, folder / target.stem)
    corpus = [str(path) for path in [HERE / "corpus" / target.stem] if path.exists()]
    kept = learnt / target.stem
    kept.mkdir(parents=True, exist_ok=True)
    limits = [f"-max_total_time={seconds}", "-max_len=512", f"-artifact_prefix={learnt}/finding-{target.stem}-"]
    guided = [str(program), *limits, str(kept), *corpus]
    command = guided if compiler.guided else [str(program), str(seconds), *corpus]
    how = "guided by coverage" if compiler.guided else f"random changes, by {compiler.command}"
    report(f"{target.stem} ({how})", command)


def fuzz_files(what: str, seconds: int, learnt: Path = LEARNT) -> None:
    options = [what, "--seconds", str(seconds), "--keep", str(learnt / what)]
    report(f"files: {what}", [sys.executable, str(HERE / "files.py"), *options])


def report(what: str, command: list[str]) -> None:
    """Runs a fuzzer; everything it printed is shown if it found something."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env={**os.environ, **ENVIRONMENT})
    printed = done.stdout + done.stderr
    runs = next((line.split()[1] for line in reversed(printed.splitlines()) if line.startswith("Done ")), None)
    if done.returncode or runs is None:
        raise SystemExit(f"{printed[-6000:]}\nfatclip: {what}: a finding; the input is in {LEARNT}")
    print(f"fatclip: {what}: {runs} inputs, nothing found", flush=True)


# A negative exit code of a sanitizer must not pass for one of ours; one thread is enough for small files.
ENVIRONMENT = {"ASAN_OPTIONS": "exitcode=99:detect_leaks=1", "OMP_NUM_THREADS": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=int, default=60, help="for all targets together")
    args = parser.parse_args()
    LEARNT.mkdir(parents=True, exist_ok=True)
    folder = LEARNT / "programs"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    compiler = find_compiler(folder)
    each = max(1, args.seconds // 4)
    for name in ("kernels", "reader"):
        fuzz_native(HERE / f"{name}.cpp", each, folder, compiler)
    for what in FILES:
        fuzz_files(what, each)


if __name__ == "__main__":
    main()
