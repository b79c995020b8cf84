"""E2: the quadratic under symmetric alpha-stable noise of three tail indexes, PI against PR."""

from .. import figures
from ..measure import FinalLoss
from .grid import Axis, Experiment, axis
from .synthetic_cauchy import CLIPPED, QUADRATIC

SLIP = (
    "The paper's sentence says that convergence is slower as alpha increases; its own theory says the opposite: "
    "the fatter the tail (the smaller alpha), the slower. Shown here is what was measured."
)

EXPERIMENT = Experiment(
    name="synthetic-alpha",
    code="E2",
    title="Quadratic with alpha-stable noise",
    minutes=0.1,
    paper=QUADRATIC | {"noise": "stable", "noise_scale": 1.0},
    axes=(Axis("algorithm", CLIPPED, ("algorithm",)), axis("alpha", "noise_alpha", (0.5, 1.0, 1.5))),
    measure=FinalLoss(),
    figure=lambda results: figures.curves(
        results, colour="alpha", panel="algorithm", y="loss $f(x_t) - f^*$", label=r"$\alpha$ = {}"
    ),
    seeds={"quick": 100, "paper": 100},
    default="paper",
    notes=(SLIP,),
)
