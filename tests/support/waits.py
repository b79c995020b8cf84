"""What a test forbids to show that nothing synchronizes."""

from contextlib import contextmanager

import pytest
import torch

_WAITS = ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__")


@contextmanager
def no_waiting():
    """No tensor's value may come to the host in here."""
    with pytest.MonkeyPatch.context() as patch:
        for name in _WAITS:

            def refuse(self, *args, name=name, **kwargs):
                raise AssertionError(f"Tensor.{name} waits for the device")

            patch.setattr(torch.Tensor, name, refuse)
        yield
