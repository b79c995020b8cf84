"""History: what it keeps, for whom, and what it draws."""

import copy
import json
import math
import subprocess
import sys

import pytest
import torch
from optim_cases import each_pi, give, gradients, parameters

from fatclip_ops import FatClipPI, FatClipPR, History, Quantile, attach


def run(opt, w, scales):
    for scale in scales:
        w.grad = torch.tensor([3.0, 4.0]) * scale
        opt.step()


@each_pi
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_it_keeps_the_last_clips_in_order(make, size):
    w = torch.nn.Parameter(torch.zeros(2))
    opt = make([w], lr=1.0, lam=5.0)
    history = History(opt, size)
    assert (len(history), history.norms) == (0, [])
    run(opt, w, (1.0, 2.0, 4.0, 10.0))
    assert history.norms == [5.0, 10.0, 20.0, 50.0][-size:]
    assert history.coefs == [1.0, 0.5, 0.25, 0.1][-size:]
    assert history.lams == [5.0] * min(size, 4)
    assert json.loads(json.dumps(history.norms)) == history.norms
    assert len(history) == min(size, 4)


def test_it_sees_the_threshold_that_was_used():
    w = torch.nn.Parameter(torch.zeros(2))
    opt = FatClipPI([w], lr=1.0, lam=Quantile(0.5, rate=2.0))
    history = History(opt, 10)
    run(opt, w, (1.0, 2.0, math.nan))
    # nothing clips the first; the second is above its lam: lam = 5 * exp(2 * 0.5)
    assert history.lams == [math.inf, 5.0, 5.0 * math.e]
    assert history.coefs == [1.0, 0.5, 0.0]


def test_of_pr_it_keeps_rounds():
    w = torch.nn.Parameter(torch.zeros(2))
    opt = FatClipPR([w], lr=0.5, lam=5.0)
    history = History(opt, 10)
    for _ in range(2):
        opt.begin_round()
        run(opt, w, (1.0, 1.0))
        opt.end_round()
    assert (history.norms, history.coefs) == ([10.0, 10.0], [0.5, 0.5])


def test_of_an_attached_optimizer_it_keeps_steps():
    w = torch.nn.Parameter(torch.zeros(2))
    opt = torch.optim.AdamW([w], lr=0.1)
    history = History(attach(opt, lam=Quantile(0.5)), 10)
    run(opt, w, (1.0, 10.0, math.nan))
    assert history.norms[:2] == [5.0, 50.0]
    assert history.coefs == [1.0, 0.1, 0.0]
    assert history.lams[:2] == [math.inf, 5.0]


def test_copies_and_saves_go_without_it():
    params = parameters(3)
    opt = FatClipPI(params, lam=1.0)
    history = History(opt, 10)
    other = copy.deepcopy(opt)
    give(other.param_groups[0]["params"], gradients(params))
    other.step()
    assert (other.steps, len(history)) == (1, 0)


def test_the_picture():
    w = torch.nn.Parameter(torch.zeros(2))
    opt = FatClipPI([w], lr=1.0, lam=Quantile(0.5))
    history = History(opt, 3)
    run(opt, w, (1.0, 2.0, math.nan, 3.0))
    ax = history.draw()
    lines = {line.get_label(): line for line in ax.get_lines()}
    assert list(lines["norm"].get_xdata()) == [1, 2, 3]
    assert list(lines["lam"].get_ydata()) == history.lams
    assert list(lines["skipped"].get_xdata()) == [2]
    assert history.draw(ax) is ax


def test_without_matplotlib_the_error_says_what_to_install():
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "import torch, fatclip_ops as f\n"
        "h = f.History(f.FatClipPI([torch.nn.Parameter(torch.zeros(2))], lam=1.0))\n"
        "try: h.draw()\n"
        "except ModuleNotFoundError as e: print(e)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "History.draw() needs matplotlib: pip install matplotlib", done.stderr


def test_bad_input():
    opt = FatClipPI(parameters(3), lam=1.0)
    with pytest.raises(TypeError, match=r"source must be a FatClip optimizer.*SGD"):
        History(torch.optim.SGD(parameters(3)), 3)
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        History(opt, 0)
    with pytest.raises(TypeError, match=r"size must be an integer, got 2\.5"):
        History(opt, 2.5)
    for size in (10**17, 10**400):
        with pytest.raises(ValueError, match=r"size must be .* memory has room for, got 1000"):
            History(opt, size)
    assert opt._watchers == []
