"""DP-FedAvg on MNIST-5000 with 1,000 clients: accuracy against epsilon, for levels of noise and without any.

    python -m tools.papers.privacy --jobs 2
    python -m tools.papers.privacy --quick     # a look, in about a minute: no results

``configs/dp_fedavg.yaml``: every client takes part in a round with probability 0.1, and its clip follows the median of
the norms. Epsilon is what the run itself logs, at the delta of the config, for the neighbours of Poisson sampling: a
client's data is there or not. Each number comes from runs of ``lfl fit``; a seed stands for the partition, the initial
weights and every draw. The output folder gets the table (CSV, Markdown), and a small result file of every run: a run
whose settings have a result is not made again.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence

from tools import CONFIGS
from tools.papers.claims import publish
from tools.papers.experiments import Laboratory, Outcome, Run, add_options, extent, opened
from tools.papers.findings import Findings
from tools.papers.kept import Quantities, Quantity, numbers_of, tabulate
from tools.papers.study import final, last

Results = Mapping[float, Sequence[Outcome]]  # by noise multiplier

ROUNDS, SEEDS = 100, 3
NOISES = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
ACCURACY, EPSILON, CLIP = "val_acc", "privacy/epsilon", "privacy/clip"
_NOISE = "trainer.callbacks.init_args.noise_multiplier"


def runs_of(seeds: int, rounds: int) -> dict[float, list[Run]]:
    """All runs, by noise multiplier."""
    return {
        noise: [
            Run("dp_fedavg.yaml", rounds, seed, (ACCURACY, CLIP, *([EPSILON] if noise else [])), ((_NOISE, noise),))
            for seed in range(seeds)
        ]
        for noise in NOISES
    }


def accuracies(outcomes: Sequence[Outcome]) -> list[float]:
    """Accuracy of each run in percent."""
    return [100 * final(outcome, ACCURACY) for outcome in outcomes]


def measure(results: Results) -> Quantities:
    """Epsilon, accuracy and the clip at the end, by noise multiplier."""
    epsilons = {
        f"{noise:g}": [last(o, EPSILON) if noise else math.nan for o in found] for noise, found in results.items()
    }
    return {
        "epsilon": Quantity(epsilons, 2),
        "accuracy %": Quantity({f"{noise:g}": accuracies(outcomes) for noise, outcomes in results.items()}),
        "clip at the end": Quantity(
            {f"{noise:g}": [last(o, CLIP) for o in found] for noise, found in results.items()}, 2
        ),
    }


def study(laboratory: Laboratory, options: argparse.Namespace) -> None:
    """Make all runs; show and write the table."""
    rounds, seeds = extent(options, ROUNDS, SEEDS, quick_rounds=5)
    results = laboratory.by_group(runs_of(seeds, rounds))
    title = f"MNIST-5000, 1,000 clients, each in a round with probability 0.1; {rounds} rounds, {seeds} seed(s)"
    quantities = measure(results)
    table = tabulate(title, quantities, "noise multiplier")
    table.notes = [
        "Accuracy on the test set, mean of the last tenth of the evaluations, ± std over seeds. Epsilon of all rounds, "
        "at the config's delta; infinite without noise."
    ]
    publish("privacy", Findings(table, numbers_of(quantities)), options)


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, "privacy", CONFIGS)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    with opened(options) as laboratory:
        study(laboratory, options)


if __name__ == "__main__":
    main()
