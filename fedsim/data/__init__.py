"""The data of the experiments: fetched, verified, loaded and dealt to clients.

from . import load, partition
data = load("mnist")
parts = partition.by_classes(data.y, clients=100, p=2, seed=0)
"""

from .dataset import Dataset
from .files import default_root
from .sets import NAMES, load

__all__ = ["NAMES", "Dataset", "default_root", "load"]
