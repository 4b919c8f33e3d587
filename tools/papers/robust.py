"""Robust aggregators on MNIST-5000, with a fifth of the clients attacking: one table.

    python -m tools.papers.robust --jobs 2
    python -m tools.papers.robust --quick      # a look, in about a minute: no results

An MLP, 100 clients by Dirichlet(1) of the classes, 20 per round, five local epochs. 20 of the 100 clients send the
opposite of their updates (``lfl.callbacks.SignFlip``), or five times the opposite (``lfl.callbacks.ScaledUpdate``): how
many of them are among the 20 of a round is chance, 4 on average, and 6 are expected by the trimmed mean and Krum. With
signs flipped alone the mean of a fifth of attackers still points the right way, 0.6 times as far; with five times the
opposite it points backwards, -0.2 times.

Each number comes from runs of ``lfl fit`` with files of ``configs/`` and overrides; a seed stands for the partition,
the initial weights, the attackers and every draw. The output folder gets the table (CSV, Markdown), and
a small result file of every run: a run whose settings have a result is not made again.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from tools import CONFIGS
from tools.papers.claims import publish
from tools.papers.experiments import Laboratory, Outcome, Run, add_options, extent, opened
from tools.papers.findings import Findings
from tools.papers.kept import Quantities, Quantity, numbers_of, tabulate
from tools.papers.study import Overrides, final

Results = Mapping[tuple[str, str], Sequence[Outcome]]  # by method and attack

ROUNDS, SEEDS = 40, 3
_AGGREGATOR = "trainer.aggregator.init_args"
_SHARE = (("trainer.callbacks.init_args.share", 0.2),)

METHODS: dict[str, tuple[str, Overrides]] = {
    "mean": ("fedavg.yaml", ()),
    "median": ("median.yaml", ()),
    "trimmed mean": ("trimmed_mean.yaml", ((f"{_AGGREGATOR}.share", 0.3),)),
    "geometric median": ("geometric_median.yaml", ()),
    "Krum": ("krum.yaml", ((f"{_AGGREGATOR}.byzantine", 0.3), (f"{_AGGREGATOR}.selected", 1))),
    "Multi-Krum": ("krum.yaml", ((f"{_AGGREGATOR}.byzantine", 0.3), (f"{_AGGREGATOR}.selected", 10))),
    "norms clipped to their median": ("norm_clipping.yaml", ()),
}
ATTACKS: dict[str, Overrides] = {
    "no attack": (),
    "signs flipped": (("trainer.callbacks+", "lfl.callbacks.SignFlip"), *_SHARE),
    "flipped, times 5": (
        ("trainer.callbacks+", "lfl.callbacks.ScaledUpdate"),
        *_SHARE,
        ("trainer.callbacks.init_args.factor", -5.0),
    ),
}
_COMMON: Overrides = (
    ("model.init_args.backbone", "lfl.models.MLP"),
    ("data.init_args.partitioner.init_args.alpha", 1.0),
    ("trainer.participation.init_args.clients_per_round", 20),
    ("optimizer.init_args.lr", 0.1),
    ("trainer.check_val_every_n_rounds", 2),
)


def runs_of(seeds: int, rounds: int) -> dict[tuple[str, str], list[Run]]:
    """All runs, by method and attack."""
    return {
        (method, attack): [Run(config, rounds, seed, ("val_acc",), (*_COMMON, *own, *theirs)) for seed in range(seeds)]
        for method, (config, own) in METHODS.items()
        for attack, theirs in ATTACKS.items()
    }


def accuracies(outcomes: Sequence[Outcome]) -> list[float]:
    """Accuracy of each run in percent."""
    return [100 * final(outcome, "val_acc") for outcome in outcomes]


def measure(results: Results) -> Quantities:
    """Accuracy by aggregator, for each attack."""
    return {attack: Quantity({method: accuracies(results[method, attack]) for method in METHODS}) for attack in ATTACKS}


def study(laboratory: Laboratory, options: argparse.Namespace) -> None:
    """Make all runs; show and write the table."""
    rounds, seeds = extent(options, ROUNDS, SEEDS, quick_rounds=3)
    results = laboratory.by_group(runs_of(seeds, rounds))
    title = f"MNIST-5000, MLP, Dirichlet(1), 20 of 100 clients, 20 of which attack; {rounds} rounds, {seeds} seed(s)"
    quantities = measure(results)
    table = tabulate(title, quantities, "aggregator")
    table.notes = ["Accuracy on the test set in percent, mean of the last tenth of the evaluations, ± std over seeds."]
    publish("robust", Findings(table, numbers_of(quantities)), options)


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, "robust", CONFIGS)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    with opened(options) as laboratory:
        study(laboratory, options)


if __name__ == "__main__":
    main()
