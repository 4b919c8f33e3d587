"""SSF on networks: every method has the best of its own rates."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tools.papers import ssf_networks
from tools.papers.experiments import Outcome, Run

STUDY = ssf_networks.STUDIES["mlp"]


def test_rates_in_a_subspace_are_those_of_all_times_its_ratio() -> None:
    assert ssf_networks.rates_of(STUDY.methods["FedAvg"]) == [0.02, 0.05, 0.1, 0.2, 0.5]
    assert ssf_networks.rates_of(STUDY.methods["SSF, rank 0.1"]) == [0.2, 0.5, 1.0, 2.0, 5.0]


class Pretended:
    """A laboratory in which the loss is the distance of a run's rate from 0.2, and 5 diverges."""

    def __init__(self) -> None:
        self.seeds: set[int] = set()

    def by_group(self, runs: Mapping[str, Sequence[Run]]) -> dict[str, list[Outcome]]:
        return {name: [self.made(run) for run in group] for name, group in runs.items()}

    def made(self, run: Run) -> Outcome:
        self.seeds.add(run.seed)
        rate: Any = dict(run.overrides)["optimizer.init_args.lr"]
        return Outcome(2, 0.0, "not finite" if rate == 5 else "", {"train/loss": {2: abs(rate - 0.2)}})


def test_the_rate_of_the_lowest_loss_is_chosen_on_a_seed_of_its_own() -> None:
    laboratory: Any = Pretended()
    methods = ssf_networks.tuned(STUDY, 2, laboratory, "cpu")
    rates = {name: dict(method.overrides)["optimizer.init_args.lr"] for name, method in methods.items()}
    assert rates["FedAvg"] == 0.2
    assert rates["SSF, rank 0.1"] == 0.2
    assert rates["FedSub, rank 0.5"] == 0.2
    assert laboratory.seeds == {ssf_networks.TUNING_SEED}
    assert list(methods) == list(STUDY.methods)


def test_a_run_that_diverged_has_no_loss() -> None:
    assert ssf_networks.loss_of(Outcome(2, 0.0, "not finite", {"train/loss": {2: 0.1}})) == math.inf
    assert ssf_networks.loss_of(Outcome(2, 0.0, "", {"train/loss": {2: math.nan}})) == math.inf
    assert ssf_networks.loss_of(Outcome(2, 0.0, "", {"train/loss": {2: 0.1}})) == 0.1
