"""The cost of FLSS's decomposition beside a client's training, in seconds.

    python -m tools.papers.flss_cost --keep      # alone on the machine
    python -m tools.papers.flss_cost --quick     # a look, in half a minute: no results

Two networks: the MLP of ``flss`` with R = 20, a client's 200 images in batches of 20 and 2 epochs, and the paper's CNN
for CIFAR-10 with R = 50 and a client's 2,250 images in batches of 128 and 5 epochs: 20 and 90 local steps in a round.
Images are random, and one client trains, since each client of the paper follows the subspace by itself.

A round of FedAvg is measured with few steps and with twice as many; the difference gives the seconds of a step, and
so those of a round of all steps, which would take minutes to run as often as warm-up needs. A projected and a sampled
round of FLSS take longer than FedAvg's by as much as they do with few steps. The decomposition is that of a sampled
round (SLDS), one in five, of a random move; the one at the end of the warm-up, of 80 or 200 moves, happens once.

All numbers are medians over a repeat's rounds, in one thread; a seed stands for a repeat.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from lfl.aggregation import MeanAggregator
from lfl.callbacks import FLSS
from lfl.data import DatasetSource, FederatedDataModule, IIDPartitioner
from lfl.models import MLP, Classifier
from lfl.participation import FullParticipation
from lfl.subspace.streaming import StreamingBasis
from tools.papers.claims import publish
from tools.papers.communication import NETWORKS
from tools.papers.experiments import add_output
from tools.papers.findings import Findings
from tools.papers.kept import Quantities, Quantity, numbers_of, tabulate
from tools.papers.runs import RunFolder
from tools.training import fitted

NAME = "flss-cost"
_SECONDS = "time/train_s"  # of a round, with the server's step and without evaluation
_SAMPLE_EVERY = 5
_SAMPLED = 5  # sampled rounds of a run
_COLD = 3  # first rounds of FedAvg, which are not counted
_NEGLIGIBLE = 5.0  # per cent of a client's training


@dataclass(frozen=True)
class Case:
    """A network and what a client does with it.

    Attributes:
        network: makes it.
        shape: of an image.
        batch: images of a step.
        steps: of a client's round.
        few: steps of the rounds that are measured.
        rank: R.
        warmup: moves that are decomposed at the warm-up's end.
    """

    network: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch: int
    steps: int
    few: int
    rank: int
    warmup: int


CASES = {
    "MLP": Case(lambda: MLP(784, [100], 10), (1, 28, 28), batch=20, steps=20, few=10, rank=20, warmup=80),
    "CNN": Case(lambda: NETWORKS["cnn"](10), (3, 32, 32), batch=128, steps=90, few=2, rank=50, warmup=200),
}


@dataclass(frozen=True)
class Seconds:
    """Seconds of one repeat.

    Attributes:
        short: a round of FedAvg with few steps.
        doubled: a round of FedAvg with twice as many.
        projected: a projected round of FLSS with few steps.
        sampled: a sampled round of FLSS with few steps.
        decomposition: of ``[P Sigma, g]``, in a sampled round.
        first: decomposition at the warm-up's end.
    """

    short: float
    doubled: float
    projected: float
    sampled: float
    decomposition: float
    first: float

    def training(self, case: Case) -> float:
        """A round of FedAvg with all steps."""
        return self.short + (self.doubled - self.short) / case.few * (case.steps - case.few)

    def share(self, case: Case) -> float:
        """The time of a round's part of the decomposition, in per cent of a client's training."""
        return 100 * self.decomposition / _SAMPLE_EVERY / self.training(case)


def rounds_of(case: Case, steps: int, last: int, callbacks: list[FLSS]) -> dict[int, float]:
    """Seconds of each round of a run of one client."""
    count = case.batch * steps
    images = TensorDataset(torch.randn(count, *case.shape), torch.randint(10, (count,)))
    with fitted(
        Classifier(case.network(), lr=0.01),
        FederatedDataModule(DatasetSource(images, images, 10), IIDPartitioner(), 1, batch_size=case.batch),
        engine="sequential",
        max_rounds=last,
        participation=FullParticipation(),
        local_steps=steps,
        aggregator=MeanAggregator("uniform"),
        callbacks=callbacks,
        check_val_every_n_rounds=last,
    ) as trainer:
        return RunFolder(Path(str(trainer.log_dir))).series(_SECONDS)


def measured(case: Case, sampled: int) -> Seconds:
    """Measure one repeat, with so many sampled rounds and the projected ones between them, and as many of FedAvg."""
    count, start = _SAMPLE_EVERY * sampled, case.rank  # as many moves as give a basis of the full rank
    short, doubled = (
        statistics.median(list(rounds_of(case, steps, _COLD + count, []).values())[_COLD:])
        for steps in (case.few, 2 * case.few)
    )
    flss = FLSS(warmup_rounds=start, rank=case.rank, sample_every=_SAMPLE_EVERY)
    found = rounds_of(case, case.few, start + count, [flss])
    after = {number - start: seconds for number, seconds in found.items() if number > start}
    decomposition, first = decompositions(case, sampled)
    return Seconds(
        short,
        doubled,
        projected=statistics.median(seconds for number, seconds in after.items() if number % _SAMPLE_EVERY),
        sampled=statistics.median(seconds for number, seconds in after.items() if number % _SAMPLE_EVERY == 0),
        decomposition=decomposition,
        first=first,
    )


def decompositions(case: Case, count: int) -> tuple[float, float]:
    """Median seconds of the decomposition of a sampled round, and those of the first one, of random moves."""
    dim = sum(parameter.numel() for parameter in case.network().parameters())
    basis = StreamingBasis(case.rank, torch.zeros(dim))
    first = timed(basis.start, torch.randn(case.warmup, dim))
    return statistics.median(timed(basis.update, torch.randn(dim)) for _ in range(count)), first


def timed(function: Callable[[torch.Tensor], object], argument: torch.Tensor) -> float:
    """Seconds of a call."""
    started = time.perf_counter()
    function(argument)
    return time.perf_counter() - started


def quantities(results: Mapping[str, list[Seconds]]) -> Quantities:
    """Seconds and ratios, by network, each by repeat."""

    def each(of: Callable[[Seconds, Case], float], digits: int) -> Quantity:
        return Quantity(
            {name: [of(found, CASES[name]) for found in repeats] for name, repeats in results.items()}, digits
        )

    return {
        "s FedAvg's round": each(lambda found, case: found.training(case), 3),
        "projected / FedAvg's": each(lambda s, case: 1 + (s.projected - s.short) / s.training(case), 3),
        "sampled / FedAvg's": each(lambda s, case: 1 + (s.sampled - s.short) / s.training(case), 3),
        "s decomposition": each(lambda found, _: found.decomposition, 4),
        "decomposition, % of training": each(lambda found, case: found.share(case), 2),
        f"{_NEGLIGIBLE:g} % less the decomposition": each(lambda found, case: _NEGLIGIBLE - found.share(case), 2),
        "s first decomposition": each(lambda found, _: found.first, 2),
    }


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, help="of everything, in this process; 5 by default")
    parser.add_argument("--quick", action="store_true", help="the MLP alone, once: no results")
    parser.add_argument("--keep", action="store_true", help="leave the numbers where docs/claims.md is made from them")
    add_output(parser, "flss_cost")
    parser.set_defaults(rounds=None)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    cases = {"MLP": CASES["MLP"]} if options.quick else CASES
    repeats = options.repeats or (1 if options.quick else 5)
    found = quantities({name: [measured(case, _SAMPLED) for _ in range(repeats)] for name, case in cases.items()})
    table = tabulate(f"FLSS beside one client's training, one thread, {repeats} repeat(s)", found, "network")
    publish(NAME, Findings(table, numbers_of(found)), options)


if __name__ == "__main__":
    main()
