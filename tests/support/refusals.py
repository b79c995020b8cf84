"""What every refusal of a wrong argument must look like."""

import pytest


def assert_refused(world, snapshot, call, error, words):
    """call(world()) raises exactly `error`, in one line that has the words, and leaves the snapshot as it was."""
    w = world()
    before = snapshot(w)
    with pytest.raises(Exception) as caught:  # the type itself is compared below
        call(w)
    message = str(caught.value)
    assert type(caught.value) is error, f"{type(caught.value).__name__}: {message}"
    assert "\n" not in message
    for word in words:
        assert word in message
    assert snapshot(w) == before
