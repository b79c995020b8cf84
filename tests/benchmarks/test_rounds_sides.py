import time
from pathlib import Path

import pytest
from round_cases import START, side

from benchmarks.peers.protocol import descendants, peak_memory
from benchmarks.rounds_compare import compare
from benchmarks.rounds_sides import Side, SideError, begin

WRONG = {
    "crashes": "ended with exit code 1: RuntimeError: broken on purpose",
    "something else": "computes something else: ",
    "smaller": "computes something else: 3 parameters instead of 4",
    "babbles": "answered 'hello', which is not a JSON object",
    "crashes later": "ended with exit code 1: RuntimeError: broken in the second round",
}


def gone(pid: int) -> bool:
    """Ended, or waiting for its parent to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def all_gone(pids: list[int]) -> bool:
    """Whether all of them end: a killed process takes a moment to go, and a busy machine makes it long."""
    deadline = time.monotonic() + 300
    while not all(gone(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    return all(gone(pid) for pid in pids)


def test_wrong_sides_are_left_out_by_name_and_the_others_go_on(tmp_path):
    said: list[str] = []
    sides = [side("good", tmp_path), *(side(how, tmp_path) for how in WRONG)]
    sides.append(Side("missing", [str(tmp_path / "no-such-program")], tmp_path, 300.0))
    alive, left_out = compare(side("exact", tmp_path), sides, START, 0.0, True, said.append)
    assert list(alive) == ["good"]
    assert len(alive["good"].blocks) == 1
    assert alive["good"].memory > 2**20
    assert left_out.keys() == {how.replace(" ", "-") for how in WRONG} | {"missing"}
    for how, why in WRONG.items():
        assert left_out[how.replace(" ", "-")].startswith(why), how
    assert left_out["missing"].startswith("cannot be started")
    for name in left_out:
        assert any(name in line and "left out" in line for line in said)
    assert all_gone([s._process.pid for s in sides[:-1]])


def test_a_side_that_is_never_ready_does_not_hold_up_the_others(tmp_path):
    sides = [side("never ready", tmp_path, timeout=0.2), side("good", tmp_path)]
    alive, left_out = compare(side("exact", tmp_path), sides, START, 0.0, True, lambda text: None)
    assert list(alive) == ["good"]
    assert left_out == {"never-ready": "took more than 0.2 s to get ready"}
    assert all_gone([sides[0]._process.pid])


def test_a_side_that_hangs_in_a_round_is_ended_with_its_children(tmp_path):
    hanging = side("hangs", tmp_path)
    hanging.start()
    family = [hanging._process.pid, *descendants(hanging._process.pid)]
    assert len(family) == 2
    hanging.timeout = 0.2
    with pytest.raises(SideError, match=r"^took more than 0\.2 s to answer 'rounds'$"):
        hanging.rounds(1)
    hanging.close(patience=0.1)
    assert all_gone(family)


def test_a_run_without_its_reference_is_refused(tmp_path):
    with pytest.raises(SideError, match="broken on purpose"):
        compare(side("crashes", tmp_path), [side("good", tmp_path)], START, 0.0, True, lambda text: None)


def test_rounds_are_timed_inside_the_side_and_the_model_comes_back(tmp_path):
    one = side("good", tmp_path)
    try:
        times, x = begin(one)
        assert one.about["how"] == "good"
        assert x.tolist() == [1.0] * 4
        assert len(one.rounds(3)) == 3
        assert one.state().tolist() == [4.0] * 4
        assert times.startup > 0
        assert one.memory() >= peak_memory(one._process.pid) // 2
    finally:
        one.close()
    assert one._process.returncode == 0


def test_closing_a_side_that_was_never_started_does_nothing(tmp_path):
    side("good", tmp_path).close()
