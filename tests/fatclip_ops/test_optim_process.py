"""Nothing global changes, and the bits depend on neither threads, processes nor instruction sets."""

import hashlib
import math
import os
import subprocess
import sys
import threading

import pytest
import torch
from optim_cases import PATHS, each_optimizer, gradients, parameters, run_script, train

from fatclip_ops import FatClipPI, FatClipPR, backend
from fatclip_ops.backends import cpu

needs_native = pytest.mark.skipif(backend() != "native", reason="about the native extension")

# what a library may not change behind its user's back; the denormal mode shows in the product of two small numbers
GLOBALS = """
import random, torch

def state():
    tiny = (torch.tensor([1e-30]) * torch.tensor([1e-10])).item()
    return (torch.get_num_threads(), torch.get_num_interop_threads(), torch.get_default_dtype(),
            torch.is_grad_enabled(), torch.random.get_rng_state().tolist(), random.getstate(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_float32_matmul_precision(), tiny != 0, torch.get_default_device())
"""

USE = """
def use():
    from fatclip_ops import FatClipPI, FatClipPR
    for cls in (FatClipPI, FatClipPR):
        for fused, n in ((None, 400_000), (False, 1000)):
            for policy in ("skip", "propagate"):
                p = torch.nn.Parameter(torch.full((n,), 1e-39))
                opt = cls([p], lr=0.1, lam=1.0, momentum=0.9, fused=fused, nonfinite=policy)
                opt.begin_round()
                for value in (1.0, 1e-39, float("nan")):
                    p.grad = torch.full((n,), value)
                    opt.step()
                opt.end_round()
                opt.load_state_dict(opt.state_dict())
"""


def test_import_and_use_change_no_global_state():
    script = f"""{GLOBALS}
torch.manual_seed(5)
before = state()
import fatclip_ops
assert state() == before, "import"
{USE}
for setup in (lambda: None, lambda: torch.set_flush_denormal(True), lambda: torch.set_num_threads(3),
              lambda: torch.set_grad_enabled(False)):
    setup()
    before = state()
    use()
    assert state() == before, "use"
assert before[0] == 3 and not before[3] and not before[8]  # the settings were really in force
"""
    run_script(script)


def test_default_dtype_does_not_matter():
    results = []
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        try:
            for fused in PATHS:
                params = parameters(40)
                opt = FatClipPR(params, lr=0.1, lam=1.0, momentum=0.9, fused=fused)
                opt.begin_round()
                results.append((train(opt, params, range(3)), opt.last_norm.dtype, opt.end_round().dtype))
            assert torch.get_default_dtype() == dtype
        finally:
            torch.set_default_dtype(torch.float32)
    assert results[: len(PATHS)] == results[len(PATHS) :]


def test_without_the_extension_fused_true_says_why():
    run_script(
        """
import torch
from fatclip_ops import FatClipPI, backend
assert backend() == "python"
p = torch.nn.Parameter(torch.zeros(2))
try:
    FatClipPI([p], lam=1.0, fused=True)
except ValueError as error:
    assert "native" in str(error) and "FATCLIP_BACKEND=python" in str(error)
else:
    raise AssertionError("accepted")
opt = FatClipPI([p], lr=1.0, lam=5.0)
p.grad = torch.tensor([30.0, 40.0])
opt.step()
assert p.tolist() == [-3.0, -4.0]
""",
        env={**os.environ, "FATCLIP_BACKEND": "python"},
    )


# ---- threads


@pytest.fixture
def thread_count():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@each_optimizer
def test_same_bits_for_every_thread_count(make, thread_count):
    # 400,000 elements are work for 6 threads at 65,536 each
    grads = gradients(parameters(400_001, 33))
    results = []
    for threads in (1, 2, 3, 5):
        thread_count(threads)
        params = [torch.nn.Parameter(torch.zeros_like(g)) for g in grads]
        opt = make(params, lr=0.1, lam=3.0, momentum=0.9, weight_decay=0.1)
        for p, g in zip(params, grads, strict=True):
            p.grad = g
        for _ in range(2):
            opt.step()
        results.append((opt.last_norm.item(), [hashlib.sha256(p.detach().numpy()).hexdigest() for p in params]))
    assert results.count(results[0]) == 4


@each_optimizer
def test_optimizers_in_two_threads_do_not_disturb_each_other(make, thread_count):
    thread_count(2)

    def work(seed, steps=5):
        # the larger size gives up the lock of Python while it computes
        (p,) = parameters(200_003, seed=seed)
        (g,) = gradients([p], seed=seed + 10)
        opt = make([p], lr=0.1, lam=3.0, momentum=0.9)
        p.grad = g
        for _ in range(steps):
            opt.step()
        return hashlib.sha256(p.detach().numpy()).hexdigest(), opt.last_norm.item()

    alone = [work(0), work(1)]
    together = [None, None]

    def run(i):
        together[i] = work(i)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert together == alone


FORK = """
import hashlib, os, signal, sys, torch
from fatclip_ops import FatClipPI

n = 1_200_000
gen = torch.Generator().manual_seed(0)
x, g = torch.randn(n, generator=gen), torch.randn(n, generator=gen)

def prepare():
    p = torch.nn.Parameter(x.clone())
    p.grad = g
    return p, FatClipPI([p], lr=0.1, lam=3.0, momentum=0.9, fused=True)

def work(p, opt):
    for _ in range(3):
        opt.step()
    return hashlib.sha256(p.detach().numpy()).hexdigest()

torch.set_num_threads(2)
if sys.argv[1] == "torch first":  # the threads the child lacks were torch's; this library starts to work in the child
    (x + g).sum()
    ready = prepare()
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        torch.set_num_threads(3)
        work(*ready)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, "the child waits for threads it does not have"
expected = work(*prepare())
for threads in (3, 1, 2):
    ready = prepare()  # here, because a forked child must not enter the parent's OpenMP pool: torch itself would hang
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)  # ends a child that waits for threads it does not have
        torch.set_num_threads(threads)
        os._exit(0 if work(*ready) == expected else 3)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, (threads, status)
assert work(*prepare()) == expected  # and the parent goes on
"""


@needs_native
@pytest.mark.parametrize("first", ["torch first", "library first"])
def test_forked_child_with_another_thread_count(first):
    run_script(FORK, first)


# ---- instruction sets

HASHES = """
import hashlib, sys, torch
from fatclip_ops import FatClipPI, FatClipPR
from fatclip_ops.backends import cpu

def case(cls, dtype, sizes, scale, hyper, lam):
    gen = torch.Generator().manual_seed(len(sizes))
    draw = lambda n, s: (s * torch.randn(n, generator=gen, dtype=torch.float64)).to(dtype)
    params = [torch.nn.Parameter(draw(n + 1, 1.0)[1:]) for n in sizes]
    opt = cls(params, lr=0.1, lam=lam, fused=True, **hyper)
    opt.begin_round()
    digest = hashlib.sha256()
    for _ in range(2):
        for p in params:
            p.grad = draw(p.numel(), scale)
        opt.step()
        digest.update(repr(opt.last_norm.item()).encode())
    for t in [*params, *(opt.state[p].get("momentum_buffer", p) for p in params), opt.end_round()]:
        digest.update(t.detach().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()

small = (0, 1, 7, 8, 9, 15, 17, 31, 33, 64, 1000)
every = {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True, "maximize": True}
scales = {torch.float32: (1.0, 1e-40, 1e-20, 1e37), torch.float64: (1.0, 1e-310, 1e-160, 1e200, 1e307),
          torch.bfloat16: (1.0, 1e-40, 1e37), torch.float16: (1.0, 1e-6, 1e4)}
print(cpu.MODULE.isa())
for threads in (1, 2, 3, 5):
    torch.set_num_threads(threads)
    for dtype, values in scales.items():
        for scale in values:
            for cls, hyper in ((FatClipPI, {}), (FatClipPI, every), (FatClipPR, {"momentum": 0.5, "dampening": 0.3})):
                if threads == 1:
                    print("small", dtype, scale, cls.__name__, len(hyper), case(cls, dtype, small, scale, hyper, 2.0))
        if threads in (1, 5) or dtype == torch.float32:
            print("large", dtype, case(FatClipPI, dtype, (330_001, 33), 1.0, every, 2.0))
"""


@needs_native
def test_same_bits_for_every_instruction_set_and_thread_count():
    outputs = {}
    for isa in cpu.MODULE.isas():
        env = {**os.environ, "FATCLIP_ISA": isa}
        done = subprocess.run([sys.executable, "-c", HASHES], capture_output=True, text=True, env=env, check=False)
        if done.returncode and f"FATCLIP_ISA={isa} is not supported by this CPU" in done.stderr:
            continue
        assert done.returncode == 0, done.stderr[-3000:]
        name, *lines = done.stdout.splitlines()
        assert name == isa
        outputs[isa] = lines
    assert "portable" in outputs
    assert len(outputs["portable"]) == 15 * 3 + 4 + 3 * 2
    large = {line for line in outputs["portable"] if line.startswith("large")}
    assert len(large) == 4, "a thread count changes the bits"
    for isa, lines in outputs.items():
        different = [(a, b) for a, b in zip(lines, outputs["portable"], strict=True) if a != b]
        assert not different, f"{isa} and portable differ: {different}"


def test_two_runs_have_the_same_bits():
    results = []
    for _ in range(2):
        for cls in (FatClipPI, FatClipPR):
            params = parameters(100_003, 7)
            results.append(train(cls(params, lr=0.1, lam=math.inf, momentum=0.9), params, range(2)))
    assert results[:2] == results[2:]
