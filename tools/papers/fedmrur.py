"""The parts that FedMRUR is made of, and what it depends on: gamma, who takes part, alpha and rho.

    python -m tools.papers.fedmrur parts gamma participation constants --jobs 2
    python -m tools.papers.fedmrur parts --quick      # a look, in about two minutes: no results

The setting of ``tables``: MNIST-5000 in equal shares by Dirichlet(0.3), LeNet-5 with GroupNorm, 10 of 100 clients, 300
rounds, the paper's rate, weight decay and alpha, with a faster decay and a smaller rho.

Two things can turn what comes out, and the studies have both. One is the momentum: as Algorithm 1 is printed, it is
that of the normalised aggregate ("N", "FedMRUR"); "plain momentum" is that of the mean update. The other is gamma: with
the paper's 0.005 the gradient of the hyperbolic term is 3e-5 to 1e-4 of the loss's (``hyperbolic/gradient_ratio``, in
rounds 11 to 41 of H with seed 1000). With gamma = 1 it is 7e-3 to 2e-2 there. Tables have it at the end.

The studies share the runs that they have in common: all are made into one folder.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

from tools.papers.experiments import Outcome
from tools.papers.kept import Quantities, Quantity
from tools.papers.observers import LOSS, TrainingLoss, observer
from tools.papers.study import (
    Method,
    Overrides,
    Results,
    Study,
    drawn,
    final,
    parse,
    partitioned,
    per_run,
    rounds_to,
    run_studies,
)
from tools.papers.tables import FEDMRUR_SETTING, callback, measure_fedmrur, stack

_EVERY = 5  # rounds between evaluations
_DIAGNOSED = {"cosine of updates": ("diag/cosine", 3), "norm ratio": ("diag/norm_ratio", 3), "drift": ("diag/drift", 2)}
# The same in all studies, so that they share runs.
_METRICS = ("val_acc", LOSS, *(metric for metric, _ in _DIAGNOSED.values()))
_MEASURED = (
    callback("Diagnostics", every_n_rounds=_EVERY, trajectory=0),
    observer(TrainingLoss, every_n_rounds=_EVERY),
)
_RATIO = "hyperbolic/gradient_ratio"
_NORMALISED: Overrides = (("trainer.aggregator", "lfl.aggregation.NormalizedReaggregation"),)
_PAPERS_GAMMA, _FELT_GAMMA = 0.005, 1.0


def measure(results: Results) -> Quantities:
    """Accuracy, rounds to three accuracies, how far updates agree, training loss; of the term the mean gradient."""
    agreement = {
        name: per_run(results, partial(final, metric=metric), digits) for name, (metric, digits) in _DIAGNOSED.items()
    }
    felt = {name: outcomes for name, outcomes in results.items() if all(_RATIO in o.series for o in outcomes)}
    return {
        **measure_fedmrur(results),
        **agreement,
        "training loss": per_run(results, partial(final, metric=LOSS), 3),
        "gradient ratio": per_run(felt, lambda outcome: statistics.mean(outcome.series[_RATIO].values()), 5),
    }


# -- methods -----------------------------------------------------------------------------------------------------------


def averaged(*changed: tuple[str, object]) -> Method:
    """FedAvg, with something changed."""
    return Method("fedavg.yaml", (*stack(*_MEASURED), *changed))


def with_momentum(
    config: str, gamma: float = 0.0, rho: float = 0.1, alpha: float = 0.1, momentum_from: str = "updates"
) -> Method:
    """A method with client momentum: FedCM with rho = 0 and gamma = 0, MoFedSAM, or a part of FedMRUR.

    Args:
        config: the file, which says how updates are aggregated.
        gamma: weight of the hyperbolic term; 0 for none.
        rho: radius of SAM; 0 for none.
        alpha: weight of a client's own gradient.
        momentum_from: ``updates``, or ``aggregate`` as Algorithm 1 is printed.
    """
    # The ratio of gradients is measured in every round, and so in those of evaluations.
    term = callback("HyperbolicRegularization", layer="backbone.features", gamma=gamma, measure_every_n_rounds=1)
    sharpness = [callback("SharpnessAware", rho=rho)] if rho else []
    momentum = callback("ClientMomentum", alpha=alpha, momentum_from=momentum_from)
    stacked = stack(*([term] if gamma else []), *sharpness, momentum, *_MEASURED)
    return Method(config, stacked, metrics=(_RATIO,) if gamma else ())


_MOFEDSAM = with_momentum("mofedsam.yaml")
_PLAIN_N = with_momentum("fedmrur_n.yaml")


def fedmrur(gamma: float = _PAPERS_GAMMA, rho: float = 0.1, alpha: float = 0.1) -> Method:
    """FedMRUR with plain momentum."""
    return with_momentum("fedmrur.yaml", gamma, rho, alpha)


PARTS = {
    "FedAvg": averaged(),
    "FedAvg, normalised": averaged(*_NORMALISED),
    "MoFedSAM": _MOFEDSAM,
    "N": with_momentum("fedmrur_n.yaml", momentum_from="aggregate"),
    "N, plain momentum": _PLAIN_N,
    "H, gamma 0.005": with_momentum("fedmrur_h.yaml", _PAPERS_GAMMA),
    "H, gamma 1": with_momentum("fedmrur_h.yaml", _FELT_GAMMA),
    "FedMRUR": with_momentum("fedmrur.yaml", _PAPERS_GAMMA, momentum_from="aggregate"),
    "FedMRUR, plain momentum": fedmrur(),
    "FedMRUR, plain momentum, gamma 1": fedmrur(_FELT_GAMMA),
}

# -- what is not to depend on gamma, or on who takes part --------------------------------------------------------------

# Of curves that are called similar: a point of accuracy, and 2 % of the loss of the initial model, which is log 10.
_ALIKE = {"accuracy %": 1.0, "training loss": 0.05}


def room(measured: Quantity, alike: float, reference: str) -> Quantity:
    """The margin of a quantity within ``alike`` of another method's, by seed: above zero where it is alike."""
    theirs = measured.values[reference]
    return Quantity(
        {
            name: [alike - abs(a - b) for a, b in zip(ours, theirs, strict=True)]
            for name, ours in measured.values.items()
            if name != reference
        },
        measured.digits,
    )


_GAMMAS = {f"gamma {gamma:g}": fedmrur(gamma) for gamma in (_PAPERS_GAMMA, 0.05, 0.5)}
GAMMA = {"gamma 0": _PLAIN_N, **_GAMMAS}  # the same runs as N's


def measure_gamma(results: Results) -> Quantities:
    """Measure also how much closer accuracy and training loss are to those of the paper's gamma than what is alike."""
    found = measure(results)
    rooms = {
        f"{name}: {alike:g} less the change": room(found[name], alike, f"gamma {_PAPERS_GAMMA:g}")
        for name, alike in _ALIKE.items()
    }
    return {**found, **rooms}


_PARTICIPANTS = (2, 5, 10, 20)
_FAMILIES = {"FedMRUR": fedmrur(), "MoFedSAM": _MOFEDSAM}
_TARGET = 0.85  # the lowest of those that are counted: with 2 clients a round learning is slow


def of_so_many(family: str, clients: int) -> str:
    """Name of a method with so many participants."""
    return f"{family}, {clients} clients"


PARTICIPATION = {
    of_so_many(name, clients): replace(method, overrides=(*method.overrides, drawn(clients)))
    for name, method in _FAMILIES.items()
    for clients in _PARTICIPANTS
}


def measure_participation(results: Results) -> Quantities:
    """Measure also what more participants change: rounds saved against the next fewer, accuracy against the fewest."""
    found = measure(results)
    rooms: dict[str, Sequence[float]] = {}
    rounds: dict[str, Sequence[float]] = {}
    for family in _FAMILIES:
        fewest = of_so_many(family, _PARTICIPANTS[0])
        for fewer, more in pairwise(_PARTICIPANTS):
            name = of_so_many(family, more)
            pair = Quantity({key: found["accuracy %"].values[key] for key in (fewest, name)})
            rooms |= room(pair, _ALIKE["accuracy %"], fewest).values
            before, after = (map(rounds_at_most, results[of_so_many(family, count)]) for count in (fewer, more))
            rounds[name] = [a - b for a, b in zip(before, after, strict=True)]
    return {
        **found,
        f"rounds to {100 * _TARGET:g} % saved": Quantity(rounds, 0),
        f"accuracy %: {_ALIKE['accuracy %']:g} less the change": Quantity(rooms),
    }


def rounds_at_most(outcome: Outcome) -> float:
    """Rounds to the accuracy, or all of the run if it never gets there, so that no more is saved than was seen."""
    return min(rounds_to(outcome, _TARGET), max(outcome.series["val_acc"], default=0))


CONSTANTS = {
    **{f"FedCM, alpha {alpha}": with_momentum("fedcm.yaml", rho=0.0, alpha=alpha) for alpha in (0.1, 0.3)},
    **{
        f"{name}, alpha {alpha}, rho {rho}": with_momentum(config, gamma, rho, alpha)
        for name, config, gamma in (("MoFedSAM", "mofedsam.yaml", 0.0), ("FedMRUR", "fedmrur.yaml", _PAPERS_GAMMA))
        for alpha, rho in ((0.1, 0.1), (0.1, 0.2), (0.1, 0.5), (0.3, 0.1))
    },
}


def study(
    title: str,
    methods: Mapping[str, Method],
    measure: Callable[[Results], Quantities] = measure,
    needs: tuple[str, ...] = (),
    participants: int | None = 10,
) -> Study:
    """A study of methods; with ``participants`` None they say themselves how many clients take part."""
    people = () if participants is None else (drawn(participants),)
    return Study(
        f"MNIST-5000, LeNet-5 with GroupNorm, equal-size Dirichlet(0.3), {title}",
        methods,
        (*FEDMRUR_SETTING, *people, *partitioned("EqualDirichletPartitioner", alpha=0.3)),
        rounds=300,
        evaluate_every=_EVERY,
        metrics=_METRICS,
        measure=measure,
        needs=needs,
    )


_TEN = "10 of 100 clients"
STUDIES = {
    "parts": study(_TEN, PARTS),
    "gamma": study(f"{_TEN}, plain momentum", GAMMA, measure_gamma, (f"gamma {_PAPERS_GAMMA:g}",)),
    "participation": study(
        "2 to 20 of 100 clients, plain momentum", PARTICIPATION, measure_participation, tuple(PARTICIPATION), None
    ),
    "constants": study(f"{_TEN}, plain momentum", CONSTANTS),
}


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    return parse(STUDIES, __doc__, "fedmrur", arguments)


def main(arguments: list[str] | None = None) -> None:
    run_studies(STUDIES, options_of(arguments))


if __name__ == "__main__":
    main()
