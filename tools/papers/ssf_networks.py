"""SSF on networks, where its paper puts it: few workers, all of them in every round, rates tuned for each method.

    python -m tools.papers.ssf_networks mlp lenet --jobs 2
    python -m tools.papers.ssf_networks mlp --quick     # a look, in about a minute: no results

Table 5 and Figure 4 of the paper have CIFAR-100, ResNet-110 and 4 workers. Here MNIST-5000 is dealt to 4 clients by
Dirichlet(0.1), all of whom take part in every round: two local epochs with batches of 50, 30 rounds. The learning rate
of each method is the one of the lowest training loss at the end of a seed that is not reported, out of 0.02, 0.05,
0.1, 0.2 and 0.5. A step of SSF or FedSub moves the fraction r/d of the directions, and the paper's own rates have the
factor d/r: so has the grid.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import replace

from tools.papers.experiments import Laboratory, Outcome, extent, opened
from tools.papers.kept import Quantities
from tools.papers.study import (
    BOTH_WAYS,
    LENET_NORM,
    Method,
    Overrides,
    Results,
    Study,
    accuracy_and_bytes,
    last,
    mlp,
    parse,
    partitioned,
    per_run,
    report_runs,
    show,
)

RATES = (0.02, 0.05, 0.1, 0.2, 0.5)
RANKS = (0.1, 0.2, 0.5)
TUNING_SEED = 1000
LOSS = "train/loss"
_RATE = "optimizer.init_args.lr"
RANK = "trainer.callbacks.init_args.subspace.init_args.rank"


def measure(results: Results) -> Quantities:
    """Accuracy at the end, the training loss then, and bytes."""
    accuracy, *traffic = accuracy_and_bytes(results).items()
    return dict([accuracy, ("train loss", per_run(results, lambda outcome: last(outcome, LOSS), 3)), *traffic])


def study(title: str, *network: tuple[str, object]) -> Study:
    """All methods on one network, with the rates of their files."""
    subspaces = {
        f"{name}, rank {rank:g}": Method(f"{name.lower()}.yaml", ((RANK, rank),))
        for name in ("SSF", "FedSub")
        for rank in RANKS
    }
    setting: Overrides = (
        ("data.init_args.source", "lfl.data.MNIST5000"),
        ("data.init_args.num_clients", 4),
        ("data.init_args.batch_size", 50),
        *partitioned("DirichletPartitioner", alpha=0.1),
        ("trainer.participation", "lfl.participation.FullParticipation"),
        ("trainer.local_epochs", 2),
        *network,
    )
    return Study(
        f"MNIST-5000, {title}, Dirichlet(0.1), all of 4 clients, rates tuned",
        {"FedAvg": Method("fedavg.yaml"), "SCAFFOLD": Method("scaffold.yaml"), **subspaces},
        setting,
        rounds=30,
        evaluate_every=2,
        metrics=("val_acc", LOSS, *BOTH_WAYS),
        measure=measure,
    )


def rates_of(method: Method) -> list[float]:
    """The rates that a method tries: those of all, times d/r in a subspace."""
    rank = float(str(dict(method.overrides).get(RANK, 1.0)))
    return [round(rate / rank, 6) for rate in RATES]


def with_rate(method: Method, rate: float) -> Method:
    """A method with another learning rate."""
    return replace(method, overrides=(*method.overrides, (_RATE, rate)))


def tuned(study: Study, rounds: int, laboratory: Laboratory, accelerator: str) -> Mapping[str, Method]:
    """The methods of a study, each with its best rate."""
    tried = {
        (name, rate): with_rate(method, rate) for name, method in study.methods.items() for rate in rates_of(method)
    }
    trial = replace(study, methods={f"{name} {rate:g}": method for (name, rate), method in tried.items()})
    outcomes = laboratory.by_group(trial.runs([TUNING_SEED], rounds, accelerator))
    best: dict[str, tuple[float, Method]] = {}
    for (name, rate), method in tried.items():
        (outcome,) = outcomes[f"{name} {rate:g}"]
        best[name] = min(best.get(name, (math.inf, method)), (loss_of(outcome), method), key=lambda pair: pair[0])
    return {name: method for name, (_, method) in best.items()}


def loss_of(outcome: Outcome) -> float:
    """The training loss at the end; inf for a run that diverged."""
    loss = math.inf if outcome.failure or not outcome.series[LOSS] else last(outcome, LOSS)
    return loss if math.isfinite(loss) else math.inf


STUDIES = {
    "mlp": study("MLP 784-100-10", *mlp(100)),
    "lenet": study("LeNet-5 with GroupNorm", *LENET_NORM),
}


def compare(name: str, study: Study, laboratory: Laboratory, options: argparse.Namespace) -> None:
    """Tune all methods, make the runs of one study, show and write its table and its report."""
    study = study.only(options.methods)
    rounds, count = extent(options, study.rounds, 3, quick_rounds=2)
    chosen = replace(study, methods=tuned(study, rounds, laboratory, options.accelerator))
    rates = (f"{key} {dict(method.overrides)[_RATE]}" for key, method in chosen.methods.items())
    title = f"{study.title}; {rounds} rounds; rates {', '.join(rates)}"
    runs = chosen.runs(range(options.first_seed, options.first_seed + count), rounds, options.accelerator)
    show(title, name, study.measure(laboratory.by_group(runs)), options)
    report_runs(name, laboratory, runs)


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    return parse(STUDIES, __doc__, "ssf", arguments)


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    with opened(options) as laboratory:
        for name in options.studies:
            compare(f"{options.tool}-{name}", STUDIES[name], laboratory, options)


if __name__ == "__main__":
    main()
