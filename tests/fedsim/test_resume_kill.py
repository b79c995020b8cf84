"""A run that is killed anywhere and resumes ends with the bits of one that was never killed."""

import functools
import multiprocessing
import random
import tempfile
from pathlib import Path

import pytest
import run_cases
from run_cases import SETTINGS, DyingOs, KilledError, facts, run


@functools.cache
def undisturbed(setting):
    """The facts of an uninterrupted run, and the calls on the disk that it made."""
    with tempfile.TemporaryDirectory() as folder, DyingOs() as calls:
        finished = run(setting, Path(folder) / "run")
        return facts(Path(folder) / "run", finished.table), list(calls.seen)


def go_on(setting, out):
    """Resumes a killed run, or starts it where the kill came before anything was there."""
    held = out.exists() and any(out.iterdir())
    return facts(out, run(setting, out, resume=held).table)


@pytest.mark.parametrize("setting", SETTINGS)
def test_killed_at_any_call_on_the_disk(setting, tmp_path):
    expected, calls = undisturbed(setting)
    deaths = [(n, how) for n in range(len(calls)) for how in ("before", "after")]
    deaths += [(n, "half") for n, name in enumerate(calls) if name == "write"]
    # Every call is walked in the cheapest setting; in the others every other one, at one of its moments.
    deaths = deaths if setting == "quadratic" else deaths[::2]
    assert len(deaths) >= 25, len(deaths)
    for n, how in deaths:
        out = tmp_path / f"{n}-{how}"
        with DyingOs(n, how), pytest.raises(KilledError):
            run(setting, out)
        assert go_on(setting, out) == expected, (n, how, calls[n])


@pytest.mark.parametrize("setting", SETTINGS)
def test_killed_again_and_again(setting, tmp_path):
    expected, calls = undisturbed(setting)
    rng = random.Random(7)
    kills = 0
    for trial in range(3):
        out = tmp_path / str(trial)
        while True:
            try:
                with DyingOs(rng.randrange(len(calls) // 2), rng.choice(("before", "after", "half"))):
                    run(setting, out, resume=out.exists() and any(out.iterdir()))
                break
            except KilledError:
                kills += 1
            if kills > 60:  # it always comes a little further, but slowly
                go_on(setting, out)
                break
        assert facts(out) | {"table": expected["table"]} == expected
    assert kills >= 3


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_process_killed_at_random_moments(setting, tmp_path):
    expected, _ = undisturbed(setting)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["run_cases", "fedsim.simulation", "fedsim.report"])
    rng = random.Random(11)
    out = tmp_path / "run"
    for _ in range(9):
        process = context.Process(target=run_cases.run_forever, args=(setting, out))
        process.start()
        process.join(rng.random() * 0.4)  # any moment will do: nothing below depends on how far it came
        process.kill()
        process.join()
        process.close()
    assert go_on(setting, out) == expected
