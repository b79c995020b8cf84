"""The data of the experiments: fetched, verified, loaded and dealt to clients.

from fedsim.data import load, partition
data = load("mnist")
parts = partition.by_classes(data.y, clients=100, p=2, seed=0)
"""

from fedsim.data.dataset import Dataset
from fedsim.data.files import default_root
from fedsim.data.sets import NAMES, load

__all__ = ["NAMES", "Dataset", "default_root", "load"]
