"""FL-SSGD, FL-SSVRG and Top-k against an independent float64 reference, golden/fl_ssgd.json."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from worlds import GOLDEN_FILES, Bystander, train

from lfl.aggregation import MeanAggregator
from lfl.callbacks import FLSSGD, FLSSVRG, TopK
from lfl.participation import FullParticipation
from lfl.problems import RobustRegression
from lfl.problems.base import ProblemData
from lfl.round import Cohort

GOLDEN = json.loads((GOLDEN_FILES / "fl_ssgd.json").read_text())
DRAWS = GOLDEN["draws"]
N, M, D = GOLDEN["n"], GOLDEN["m"], GOLDEN["d"]


def double(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def mask(indices: list[int]) -> Tensor:
    return torch.zeros(D, dtype=torch.bool).index_fill(0, torch.tensor(indices), True)


class GoldenData(ProblemData):
    """The reference's data, and its samples: one example a device and round; whole passes are left alone."""

    def __init__(self) -> None:
        super().__init__(N, M, batch_size=1)
        self.round_number = 0
        self.whole = True  # before the run
        self.examples = (double(GOLDEN["A"]), double(GOLDEN["y"]))

    def batches(self, plan: Any) -> Any:
        for indices, _ in list(plan):
            if indices.shape[0] == N and not self.whole:
                indices = torch.tensor(DRAWS["samples"][self.round_number - 1])[:, None] + M * torch.arange(N)[:, None]
            yield self.gather(indices)


class Tell(Bystander):
    """Tells the data module which round it is, and whether a whole pass is made."""

    def __init__(self, data: GoldenData, epoch_rounds: int | None = None) -> None:
        self.data, self.epoch_rounds, self.path = data, epoch_rounds, []

    def on_round_start(self, round) -> None:
        self.data.round_number = round.number
        self.data.whole = self.epoch_rounds is not None and (round.number - 1) % self.epoch_rounds == 0

    def on_server_step(self, round) -> None:
        self.path.append(self.run.server.vector.clone())


class GoldenWeights(MeanAggregator):
    def weights(self, num_examples: Tensor) -> Tensor:
        return double(GOLDEN["w"])


class GoldenSSGD(FLSSGD):
    def masks(self, cohort: Cohort, dim: int) -> Tensor:
        return torch.stack([mask(own) for own in DRAWS["subsets_ssgd"][cohort.round.number - 1]])


class GoldenSSVRG(FLSSVRG):
    def shared_mask(self, epoch: int, position: int) -> Tensor:
        return mask(DRAWS["subsets_common"][epoch * DRAWS["K"] + position])

    def own_masks(self, cohort: Cohort) -> Tensor:
        return torch.stack([mask(own) for own in DRAWS["subsets_own"][cohort.round.number - 1]])


STACKS: dict[str, Any] = {
    "fedavg": list,
    "fl_ssgd": lambda: [GoldenSSGD(DRAWS["l_ssgd"])],
    "fl_ssvrg": lambda: [GoldenSSVRG(DRAWS["l_common"], DRAWS["l_ssvrg"], DRAWS["K"])],
    "topk_ef": lambda: [TopK(DRAWS["k_topk"])],
}


@pytest.mark.parametrize("method", STACKS)
def test_iterates_and_dimensions(method: str, tmp_path: Path) -> None:
    data = GoldenData()
    module = RobustRegression(D, GOLDEN["tukey_threshold"], GOLDEN["squared"], lr=DRAWS["alpha"])
    module.point.data = double(GOLDEN["x_init"])
    tell = Tell(data, DRAWS["K"] if method == "fl_ssvrg" else None)
    options = {"engine": "vectorized", "participation": FullParticipation(), "aggregator": GoldenWeights()}
    sent = []

    class Count(Bystander):
        def on_round_end(self, round) -> None:
            # The reference counts numbers; ours sends an index of 3 bits with each of top-k's.
            sent.append(self.run.ledger.up_bits["update"] / (64 + 3 * (method == "topk_ef")))

    stack = [*STACKS[method](), tell, Count()]
    train(stack, tmp_path, module, data, max_rounds=DRAWS["T"], local_steps=1, logger=False, **options)
    expected = double(GOLDEN["iterates_after_each_step"][method])
    torch.testing.assert_close(torch.stack(tell.path), expected, rtol=0, atol=1e-10)
    assert sent == [sum(dims) for dims in GOLDEN["uplink_dims"][method]]


@pytest.mark.parametrize("method", ["ssgd", "ssvrg"])
def test_all_coordinates_is_full_gradients(method: str, tmp_path: Path) -> None:
    """l = l_i = d: FL-SSGD is SGD; FL-SSVRG with whole batches is gradient descent."""
    stacks = {"ssgd": [FLSSGD(float(D))], "ssvrg": [FLSSVRG(float(D), float(D), 3)]}
    paths = []
    for stack in ([], stacks[method]):
        data = ProblemData(N, M, batch_size=M)
        data.examples = (double(GOLDEN["A"]), double(GOLDEN["y"]))
        options = {"participation": FullParticipation(), "local_steps": 1, "max_rounds": 6, "logger": False}
        paths.append(train(stack, tmp_path, RobustRegression(D, 2.0, lr=0.1), data, **options).server.vector)
    torch.testing.assert_close(paths[1], paths[0], rtol=0, atol=1e-13)
