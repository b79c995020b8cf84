"""Cohorts bound memory: ten thousand clients of the logistic regression."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, torch
from types import SimpleNamespace
from fedsim.config import Config
from fedsim.simulation import Simulation

def peak():
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) * 1024

clients = 10_000
x = torch.ones(clients, 784)
y = torch.zeros(clients, dtype=torch.long)
data = SimpleNamespace(name="ones", x=x, y=y, test_x=x[:10], test_y=y[:10], classes=10, roles=None, test_roles=None)
few = Config(problem="mnist-logistic", clients=100, batch=1, local_steps=2)
with Simulation(few, dataset=data) as s:
    s.step()
before = peak()
with Simulation(few.with_values({"clients": clients}), dataset=data) as s:
    record = s.step()
    print(json.dumps({"extra": peak() - before, "stored": s._rounds.task.data[0].nbytes, "norms": record["norms"]}))
"""


def test_ten_thousand_clients_need_no_matrix_of_ten_thousand_rows():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["norms"][0] > 0
    matrix = 10_000 * 7_850 * 4  # 314 MB
    assert found["extra"] < matrix / 2


FAULTS = """
import resource, torch
from fedsim.engines.memory import keep_freed_memory
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def activations():
    return [torch.ones(1_250_000) for _ in range(3)]
print(keep_freed_memory())
for _ in range(20):
    activations()
before = faults()
for _ in range(20):
    activations()
print(faults() - before)
"""


def test_activations_are_not_fetched_from_the_system_at_every_step():
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    kept, faults = done.stdout.split()
    if kept == "False":
        pytest.skip("this C library cannot be told to keep memory")
    assert int(faults) < 20 * 3 * 1_250_000 * 4 // 4096 / 10  # of the pages that were asked for
