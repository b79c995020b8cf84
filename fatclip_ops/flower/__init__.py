"""FAT-Clipping in Flower: a strategy, a wrapper for any other strategy, and mods for clients.

`pip install "fatclip[flower]"` brings Flower; nothing else in fatclip imports it. Tested with Flower 1.41.0.
"""

from .client import answer_identity, clip_update_mod, traceback_mod
from .strategy import FatClipStrategy
from .wrapper import FatClipWrapper

__all__ = ["FatClipStrategy", "FatClipWrapper", "answer_identity", "clip_update_mod", "traceback_mod"]
