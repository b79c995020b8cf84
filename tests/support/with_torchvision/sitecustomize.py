"""Put this folder on PYTHONPATH and a program finds torchvision imported, mended as fedsim mends it.

Lightning and transformers import torchvision wherever it is installed, and a build for another device than torch's
stops its own import. That is no matter of the examples, which run here as they are.
"""

import importlib.util
import sys
from pathlib import Path

if importlib.util.find_spec("torchvision"):
    sys.path.append(str(Path(__file__).parents[3]))  # last: an installed fedsim comes first
    from fedsim.data import fetch

    fetch.torchvision_datasets()
    sys.path.pop()
