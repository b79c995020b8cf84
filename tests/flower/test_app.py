"""examples/flower as its users run it: in Flower's simulation, and on three nodes of which one is killed in a round."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

APP = Path(__file__).parents[2] / "examples" / "flower"
BIN = Path(sys.executable).parent
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@pytest.fixture
def flower(tmp_path):
    """Starts Flower's programs in sessions of their own, and ends them all."""
    started = []
    path = os.pathsep.join([str(BIN), os.environ["PATH"]])
    # a SuperLink of somebody else may have the usual ports
    ports = dict(zip(("FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", "FLWR_LOCAL_CONTROL_API_PORT"), free_ports(2), strict=True))
    env = {**os.environ, **OFFLINE, "FLWR_HOME": str(tmp_path / "home"), "PATH": path}
    env |= {name: str(port) for name, port in ports.items()}
    (tmp_path / "home").mkdir()

    def start(name, *args):
        with (tmp_path / f"{len(started)}-{name}.log").open("w") as log:
            command = [str(BIN / name), *map(str, args)]
            process = subprocess.Popen(command, stdout=log, stderr=log, env=env, cwd=tmp_path, start_new_session=True)
        process.log = Path(log.name)
        started.append(process)
        return process

    start.home = tmp_path / "home"
    yield start
    for process in started:
        kill(process)
    for pid in left_behind(start.home):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def left_behind(home):
    """The SuperLink that a simulation leaves behind for the next run; what it has started ends with it."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(home).encode() in (folder / "cmdline").read_bytes():
                yield int(folder.name)


def kill(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_for(process, text, seconds=300):
    end = time.monotonic() + seconds
    while text not in process.log.read_text():
        assert time.monotonic() < end, f"{text!r} did not come:\n{process.log.read_text()[-3000:]}"
        time.sleep(0.05)


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def final_loss(log):
    return float(re.search(r"loss after \d+ rounds: (\S+)", log)[1])


def test_the_simulation_is_the_experiment(flower, monkeypatch):
    from fatclip_ops import FatClipPI

    monkeypatch.syspath_prepend(str(APP))
    from quadratic.task import ETA_L, SERVER_LR, Quadratic, draw_noise

    x = Quadratic().x.detach().clone()
    for round_ in (1, 2):
        total = torch.zeros(3)
        for client in range(3):
            model = Quadratic()
            model.x.data.copy_(x)
            opt = FatClipPI(model.parameters(), lr=ETA_L, lam=3.0)
            opt.begin_round()
            for noise in draw_noise(7, client, round_):
                opt.zero_grad()
                model(noise).backward()
                opt.step()
            total += opt.end_round()
        x -= SERVER_LR * total
    settings = ["--run-config", "clients=3 rounds=2 seed=7", "--federation-config", "num-supernodes=3"]
    run = flower("flwr", "run", APP, "local", "--stream", *settings)
    assert run.wait(timeout=900) == 0
    assert final_loss(run.log.read_text()) == pytest.approx(float(x @ x) / 2, rel=1e-3)  # four digits are printed


def test_a_node_that_is_killed_in_a_round_does_not_end_the_run(flower):
    port, *node_ports = free_ports(4)
    connection = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (flower.home / "config.toml").write_text(connection)
    link = flower(
        "flower-superlink",
        "--insecure",
        "--host",
        "127.0.0.1",
        "--port",
        port,
        "--disable-runtime-dependency-installation",
    )
    wait_for(link, "Uvicorn running")
    nodes = [
        flower(
            "flower-supernode",
            "--insecure",
            "--superlink",
            f"127.0.0.1:{port}",
            "--port",
            node_port,
            "--node-config",
            f"partition-id={i} num-partitions=3",
        )
        for i, node_port in enumerate(node_ports)
    ]
    for node in nodes:
        wait_for(node, "SuperNode ID")  # it is connected: a run takes all that are
    run = flower("flwr", "run", APP, "here", "--stream", "--run-config", "clients=2 rounds=2 timeout=900")
    wait_for(nodes[2], "Receiving: train message")  # its work takes seconds: a process has to start
    kill(nodes[2])
    # The SuperLink gives a node up after a minute without a sign of life, and answers for it: nothing here depends on
    # how fast this machine is.
    assert run.wait(timeout=900) == 0
    log = run.log.read_text()
    assert "failed: no reply in time" in log
    assert final_loss(log) < 3.625  # where it began: the others went on
