"""Cohorts bound memory: ten thousand clients of the logistic regression."""

import json
import subprocess
import sys

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
    print(json.dumps({"extra": peak() - before, "stored": s._rounds.problem.x.nbytes, "norms": record["norms"]}))
"""


def test_ten_thousand_clients_need_no_matrix_of_ten_thousand_rows():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["norms"][0] > 0
    matrix = 10_000 * 7_850 * 4  # 314 MB
    assert found["extra"] < matrix / 2
