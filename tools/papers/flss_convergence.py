"""The rate at which FLSS converges on a strongly convex problem, and what more participants change.

    python -m tools.papers.flss_convergence matrix --jobs 2
    python -m tools.papers.flss_convergence matrix --quick      # a look, in half a minute: no results

Corollary 3.4.2 of the paper is of smooth, strongly convex functions and of rates that fall as 1/t. The matrix
regression of ``configs/problems/`` is such a problem, with an optimum in closed form: 20 clients, heterogeneity 0.5, 5
local steps, a rate of 1 / (100 + t), 10,000 rounds. FLSS has a warm-up of 100 rounds, R = 20 of 1,000 directions and
s = 5. The relative error e of X goes into F as its square: O(1/T) is a slope of -1 of log e^2 in log t. It is fitted to
all evaluations but those of the first tenth of the rounds.
"""

from __future__ import annotations

import argparse
import math
import statistics
from functools import partial
from itertools import pairwise

from tools.papers.experiments import Outcome
from tools.papers.kept import Quantities, Quantity
from tools.papers.study import Method, Overrides, Results, Study, drawn, final, parse, per_run, report_runs, run_studies
from tools.papers.tables import callback, stack

_ERROR = "val_error"
_CONFIG = "problems/matrix_regression_fedavg.yaml"
_PARTICIPANTS = (5, 10, 20)
_SLOPE = -0.9  # where a slope is -1, fits of it are as often above as below


def flss(warmup: int) -> Overrides:
    """Overrides that put FLSS into a file."""
    return stack(callback("FLSS", warmup_rounds=warmup, rank=20, sample_every=5, attenuation=1.0))


def of_so_many(name: str, clients: int) -> str:
    """Name of a method with so many participants."""
    return f"{name}, {clients} clients"


METHODS = {
    **{of_so_many("FedAvg", count): Method(_CONFIG, (drawn(count),)) for count in _PARTICIPANTS},
    **{
        of_so_many("FLSS", count): Method(_CONFIG, (*flss(100), drawn(count)), short=flss(4)) for count in _PARTICIPANTS
    },
}


def slope(outcome: Outcome) -> float:
    """The slope of the logarithm of the squared error in that of the round, without the first tenth of the rounds."""
    errors = {n: e for n, e in outcome.series[_ERROR].items() if n > outcome.last_round / 10}
    if len(errors) < 2:
        return math.nan
    fitted = statistics.linear_regression([math.log(n) for n in errors], [2 * math.log(e) for e in errors.values()])
    return fitted.slope


def measure(results: Results) -> Quantities:
    """Error at the end, its slope, and the factor that participants save of it against the next fewer."""
    errors = per_run(results, partial(final, metric=_ERROR), 5)
    slopes = per_run(results, slope, 2)
    saved = {
        of_so_many(name, more): [
            math.log(a / b)
            for a, b in zip(errors.values[of_so_many(name, fewer)], errors.values[of_so_many(name, more)], strict=True)
        ]
        for name in ("FedAvg", "FLSS")
        for fewer, more in pairwise(_PARTICIPANTS)
    }
    return {
        "error": errors,
        "slope": slopes,
        f"{_SLOPE} less the slope": per_run(results, lambda outcome: _SLOPE - slope(outcome), 2),
        "log of the error saved": Quantity(saved, 2),
    }


STUDIES = {
    "matrix": Study(
        "Matrix regression, heterogeneity 0.5, of 20 clients, rates as 1/t",
        METHODS,
        (
            ("optimizer", "torch.optim.SGD"),
            ("optimizer.init_args.lr", 0.01),
            ("lr_scheduler", "tools.papers.schedules.InverseTime"),
            ("lr_scheduler.init_args.offset", 100.0),
        ),
        rounds=10_000,
        evaluate_every=100,
        metrics=(_ERROR,),
        measure=measure,
        report=partial(report_runs, looks=("--metric", _ERROR, "--log", "xy")),
        needs=tuple(METHODS),
    )
}


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    return parse(STUDIES, __doc__, "flss_convergence", arguments)


def main(arguments: list[str] | None = None) -> None:
    run_studies(STUDIES, options_of(arguments))


if __name__ == "__main__":
    main()
