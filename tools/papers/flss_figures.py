"""The subjects of FLSS's figures: the directions of the server's moves, the loss about the warm-up's end, and features.

    python -m tools.papers.flss_figures directions loss features --jobs 2
    python -m tools.papers.flss_figures loss --quick      # a look, in about a minute: no results

- ``directions`` (Figures 2 and 5b to 5d): which share of the energy of FedAvg's 200 moves is in their first 50
  directions, for networks of four sizes.
- ``loss`` (Figure 5a): the loss of the server's model on all training data in every round.
- ``features`` (Figure 6): how distinct the classes are in the hidden layer's features of test images, as their mean
  silhouette. t-SNE, which the paper draws, keeps neighbours and not distances: a number of it would say little.

The setting of ``flss``: MNIST-5000 by Dirichlet(0.1), all of 20 clients in every round; an MLP of 100 units, and 160
rounds of which the first 80 are the warm-up, but for ``directions``.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from tools.papers.experiments import Outcome
from tools.papers.flss import DIRICHLET, ROUNDS, WARMUP
from tools.papers.kept import Quantities, Quantity
from tools.papers.observers import (
    LOSS,
    SHARE,
    SILHOUETTE,
    ClassSilhouette,
    TrainingLoss,
    TrajectoryShare,
    observer,
)
from tools.papers.study import LENET, Method, Overrides, Results, Study, final, last, mlp, parse, per_run, run_studies
from tools.papers.tables import FLSS_SETTING, callback, flss_setting, stack

_COMPONENTS, _MOVES = 50, 200


def network(overrides: Overrides, lr: float) -> Method:
    """FedAvg with a network, whose moves are followed."""
    follower = observer(TrajectoryShare, every_n_rounds=20, components=_COMPONENTS, rounds=_MOVES)
    return Method("fedavg.yaml", (*stack(follower), *flss_setting(overrides, lr)))


NETWORKS = {
    **{f"MLP, {units} units": network(mlp(units), lr=0.2) for units in (10, 100, 1000)},
    "LeNet-5": network(LENET, lr=0.1),
}


def pair(watcher: dict[str, object]) -> dict[str, Method]:
    """FedAvg and FLSS, watched."""

    def flss(warmup: int) -> Overrides:
        own = callback("FLSS", warmup_rounds=warmup, rank=20, sample_every=5, attenuation=1.0)
        return stack(own, watcher)

    return {"FedAvg": Method("fedavg.yaml", stack(watcher)), "FLSS": Method("flss.yaml", flss(WARMUP), short=flss(4))}


# -- quantities --------------------------------------------------------------------------------------------------------


def mean_of(outcome: Outcome, metric: str, rounds: Sequence[int]) -> float:
    """The mean of a metric over rounds; nan if the run has not all of them."""
    series = outcome.series[metric]
    return statistics.mean(series.get(number, math.nan) for number in rounds)


def change(outcome: Outcome, metric: str, before: Sequence[int], after: Sequence[int]) -> float:
    """The rise of a metric, on average, from some rounds to others."""
    return mean_of(outcome, metric, after) - mean_of(outcome, metric, before)


def measure_directions(results: Results) -> Quantities:
    """Accuracy, and the share of the first directions of all moves."""
    return {
        "accuracy %": per_run(results, _accuracy),
        f"share of {_COMPONENTS} directions %": per_run(results, lambda outcome: 100 * last(outcome, SHARE), 2),
    }


_CLIENTS_LOSS = "train/loss"
_NEAR = 5  # rounds on each side of the warm-up's end; behind it the last of them is sampled
_BEFORE, _AFTER = range(WARMUP - _NEAR + 1, WARMUP + 1), range(WARMUP + 1, WARMUP + _NEAR + 1)
_END = range(ROUNDS - _NEAR + 1, ROUNDS + 1)


def measure_loss(results: Results) -> Quantities:
    """The loss before the warm-up's end, its rise there and its fall after, and the rise of the clients' own loss."""
    looks = {
        "rise": partial(change, metric=LOSS, before=_BEFORE, after=_AFTER),
        "rise in the first round": partial(change, metric=LOSS, before=[WARMUP], after=[WARMUP + 1]),
        "fall to the end": partial(change, metric=LOSS, before=_END, after=_AFTER),
        "rise of the clients' loss": partial(change, metric=_CLIENTS_LOSS, before=_BEFORE, after=_AFTER),
    }
    return {
        "loss before": per_run(results, partial(mean_of, metric=LOSS, rounds=_BEFORE), 4),
        **{name: per_run(results, look, 4) for name, look in looks.items()},
        "accuracy %": per_run(results, _accuracy),
    }


_SEEN = (5, 40, 80, 160)  # rounds


def measure_features(results: Results) -> Quantities:
    """The silhouette in some rounds, what it gains from one to the next, and by how much FLSS's is above FedAvg's."""
    seen = {
        number: per_run(results, partial(mean_of, metric=SILHOUETTE, rounds=[number]), digits=3) for number in _SEEN
    }
    gains = {
        f"gain from {a} to {b}": per_run(results, partial(change, metric=SILHOUETTE, before=[a], after=[b]), digits=3)
        for a, b in pairwise(_SEEN)
    }
    flss, fedavg = (seen[_SEEN[-1]].values[name] for name in ("FLSS", "FedAvg"))
    above = {"FLSS": [a - b for a, b in zip(flss, fedavg, strict=True)]}
    return {
        **{f"silhouette, round {number}": quantity for number, quantity in seen.items()},
        **gains,
        f"above FedAvg's, round {_SEEN[-1]}": Quantity(above, digits=3),
        "accuracy %": per_run(results, _accuracy),
    }


def _accuracy(outcome: Outcome) -> float:
    return 100 * final(outcome, "val_acc")


# -- studies -----------------------------------------------------------------------------------------------------------

_WATCHED = "MNIST-5000, MLP 784-100-10, Dirichlet(0.1), all of 20 clients, warm-up of 80 rounds"
STUDIES = {
    "directions": Study(
        "MNIST-5000, FedAvg, Dirichlet(0.1), all of 20 clients",
        NETWORKS,
        DIRICHLET,
        rounds=_MOVES,
        evaluate_every=20,
        metrics=("val_acc", SHARE),
        measure=measure_directions,
    ),
    "loss": Study(
        _WATCHED,
        pair(observer(TrainingLoss)),
        (*FLSS_SETTING, *DIRICHLET),
        rounds=ROUNDS,
        evaluate_every=1,
        metrics=("val_acc", LOSS, _CLIENTS_LOSS),
        measure=measure_loss,
    ),
    "features": Study(
        _WATCHED,
        pair(observer(ClassSilhouette, every_n_rounds=5)),
        (*FLSS_SETTING, *DIRICHLET),
        rounds=ROUNDS,
        evaluate_every=5,
        metrics=("val_acc", SILHOUETTE),
        measure=measure_features,
        needs=("FedAvg", "FLSS"),
    ),
}


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    return parse(STUDIES, __doc__, "flss_figures", arguments)


def main(arguments: list[str] | None = None) -> None:
    run_studies(STUDIES, options_of(arguments))


if __name__ == "__main__":
    main()
