"""FL-SSGD, FL-SSVRG and Top-k against an independent float64 reference; unbiasedness; uplink time; choosing l_i."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Bystander, train
from torch import Tensor

from lfl.aggregation import MeanAggregator
from lfl.callbacks import FLSSGD, FLSSVRG, FederatedCallback, TopK
from lfl.callbacks.topk import keep_largest
from lfl.callbacks.uplink_bound import (
    best_coordinates_channel_sharing,
    best_coordinates_time_sharing,
    bound_channel_sharing,
    bound_time_sharing,
)
from lfl.participation import FullParticipation
from lfl.problems import RobustRegression
from lfl.problems.base import ProblemData
from lfl.randomness import client_keys
from lfl.round import Cohort
from lfl.subspace.subsets import check_expected, random_subsets, subset_sizes
from lfl.system import ChannelSharing, TimeSharing

FOLDER = Path(__file__).parent / "golden"
GOLDEN = json.loads((FOLDER / "fl_ssgd.json").read_text())
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


class GoldenTopK(TopK):
    """The reference keeps 2, 1 and 3 entries."""

    def encode(self, cohort, payload):
        self._store.declare("e", D, torch.float64)
        rows = payload.values + self._store.gather("e", cohort.ids)
        counts = DRAWS["k_topk"] if not isinstance(DRAWS["k_topk"][0], list) else DRAWS["k_topk"][0]
        sent = torch.cat([keep_largest(row[None], k) for row, k in zip(rows, counts, strict=True)])
        self._store.scatter("e", cohort.ids, rows - sent)
        return type(payload)(sent, torch.tensor(counts) * 64)


STACKS: dict[str, Any] = {
    "fedavg": list,
    "fl_ssgd": lambda: [GoldenSSGD(DRAWS["l_ssgd"])],
    "fl_ssvrg": lambda: [GoldenSSVRG(DRAWS["l_common"], DRAWS["l_ssvrg"], DRAWS["K"])],
    "topk_ef": lambda: [GoldenTopK(3)],
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
            sent.append(self.run.ledger.up_bits["update"] // 64)

    stack = [*STACKS[method](), tell, Count()]
    train(stack, tmp_path, module, data, max_rounds=DRAWS["T"], local_steps=1, logger=False, **options)
    expected = double(GOLDEN["iterates_after_each_step"][method])
    torch.testing.assert_close(torch.stack(tell.path), expected, rtol=0, atol=1e-10)
    assert sent == [sum(dims) for dims in GOLDEN["uplink_dims"][method]]


def test_gradient_of_the_reference() -> None:
    module = RobustRegression(D, GOLDEN["tukey_threshold"], GOLDEN["squared"]).double()
    module.point.data = double(GOLDEN["x_init"])
    total = torch.zeros(D, dtype=torch.float64)
    for device, weight in enumerate(GOLDEN["w"]):
        rows = slice(device * M, (device + 1) * M)
        batch = (double(GOLDEN["A"])[rows], double(GOLDEN["y"])[rows])
        (gradient,) = torch.autograd.grad(module.training_step(batch), module.point)
        total += weight * gradient
    torch.testing.assert_close(total, double(GOLDEN["grad_at_x_init"]), rtol=0, atol=1e-12)


def test_the_estimate_is_unbiased_over_all_subsets() -> None:
    """d = 4, l = 2: the mean over all 6 subsets of (d/l) mask g is g; SSVRG's second term needs d/l, not d/l_i."""
    g = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    subsets = [torch.zeros(4).index_fill(0, torch.tensor(s), 1.0).double() for s in itertools.combinations(range(4), 2)]
    mean = torch.stack([4 / 2 * m * g for m in subsets]).mean(dim=0)
    torch.testing.assert_close(mean, g, rtol=0, atol=1e-14)
    misprint = torch.stack([4 / 1 * m * g for m in subsets]).mean(dim=0)  # with l_i = 1
    assert not torch.allclose(misprint, g)


@pytest.mark.parametrize("expected", [1.0, 2.5, 0.25, 6.0])
def test_random_subsets_have_the_expected_size_and_no_favourites(expected: float) -> None:
    """20,000 draws over d = 6: the share of each coordinate is l/d within 5 standard errors."""
    keys = client_keys(torch.arange(20_000), 1)
    masks = random_subsets(keys, torch.full((20_000,), expected, dtype=torch.float64), 6)
    sizes = masks.sum(dim=1)
    assert set(sizes.tolist()) <= {math.ceil(expected) - 1, math.ceil(expected)}
    assert torch.equal(sizes, subset_sizes(keys, torch.full((20_000,), expected).double()))
    share = expected / 6
    error = 5 * math.sqrt(max(share * (1 - share), 1e-12) / 20_000)
    assert ((masks.double().mean(dim=0) - share).abs() <= error).all()


class Estimates(FederatedCallback):
    def on_aggregate(self, round) -> None:
        self.update = round.update.clone()


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


def test_storage_is_the_sum_of_the_stored_sizes(tmp_path: Path) -> None:
    data = ProblemData(N, M, batch_size=1)
    data.examples = (double(GOLDEN["A"]), double(GOLDEN["y"]))
    options = {"participation": FullParticipation(), "local_steps": 1, "max_rounds": 5, "logger": False}
    trainer = train([FLSSVRG(2.0, 3.0, 4)], tmp_path, RobustRegression(D, 2.0, lr=0.1), data, **options)
    assert trainer.store.nbytes == N * (3 * 2) * 8  # K - 1 = 3 rounds of 2 floats, not 3 * 6


@pytest.mark.parametrize("value", [0.0, -1.0, 7.0, float("nan")])
def test_sizes_that_cannot_be(value: float) -> None:
    with pytest.raises(ValueError, match="must be greater than 0 and at most D=6"):
        check_expected(value, 6, 3)
    with pytest.raises(ValueError, match="lists 2 numbers, but there are 3 clients"):
        check_expected([1.0, 2.0], 6, 3)


def test_uplink_time() -> None:
    example = GOLDEN["uplink_time_example"]
    for system, expected in (
        (TimeSharing([float(rate) for rate in example["r"]]), example["time_sharing"]),
        (ChannelSharing(300.0, split="equal"), example["channel_C=300_equal_shares"]),
    ):
        for method, seconds in expected.items():
            rounds = [double(dims) * example["B"] for dims in GOLDEN["uplink_dims"][method]]
            assert sum(system.uplink_seconds(torch.arange(3), bits) for bits in rounds) == pytest.approx(seconds), (
                method
            )
    assert ChannelSharing(300.0).uplink_seconds(torch.arange(3), torch.tensor([100.0, 200.0, 300.0])) == 2.0
    with pytest.raises(ValueError, match="lists 2 rates, but there are 3 clients"):
        TimeSharing([1.0, 2.0]).check(3)


LI = json.loads((FOLDER / "li_chooser.json").read_text())["examples"]


@pytest.mark.parametrize("example", LI, ids=[e["name"] for e in LI])
def test_best_coordinates(example: dict[str, Any]) -> None:
    p = example["params"]
    scale = p.get("B", 1000.0) / p.get("eps", 1.0) ** 2
    arguments = (p["F0"], p["L"], p["G"], p["w"])
    if example["scheme"] == "time_sharing":
        found = best_coordinates_time_sharing(*arguments, p["r"], p["d"])
        bound = bound_time_sharing(found, *arguments, p["r"], p["d"]) * scale
    else:
        found = best_coordinates_channel_sharing(*arguments, p["d"])
        bound = bound_channel_sharing(found, *arguments, p["d"]) * scale / p["C"]
    assert found == pytest.approx(example["l"], rel=1e-10)
    assert bound == pytest.approx(example["bound"], rel=1e-10)


@pytest.mark.parametrize("seed", range(6))
def test_best_coordinates_by_brute_force(seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    weights = torch.rand(3, generator=draws).add(0.1)
    weights = (weights / weights.sum()).tolist()
    gap = float(torch.rand(1, generator=draws)) * 3
    arguments = (gap, 1.0, 1.0, weights)
    dim = 9
    whole = min(
        itertools.product(range(1, dim + 1), repeat=3), key=lambda sizes: bound_channel_sharing(sizes, *arguments, dim)
    )
    found = best_coordinates_channel_sharing(*arguments, dim)
    assert bound_channel_sharing(found, *arguments, dim) == pytest.approx(bound_channel_sharing(whole, *arguments, dim))
    rates = torch.rand(3, generator=draws).mul(100).add(1).tolist()
    grid = [dim * (i + 1) / 30 for i in range(30)]
    best = best_coordinates_time_sharing(*arguments, rates, dim)
    lowest = min(bound_time_sharing(sizes, *arguments, rates, dim) for sizes in itertools.product(grid, repeat=3))
    value = bound_time_sharing(best, *arguments, rates, dim)
    assert value <= lowest * (1 + 1e-12)
    for i, step in itertools.product(range(3), (0.99, 1.01)):
        moved = [min(v * (step if i == j else 1), dim) for j, v in enumerate(best)]
        assert bound_time_sharing(moved, *arguments, rates, dim) >= value * (1 - 1e-12)


def test_topk_keeps_the_largest_and_remembers_the_rest(tmp_path: Path) -> None:
    rows = torch.tensor([[3.0, -5.0, 5.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    assert keep_largest(rows, 1).tolist() == [[0.0, -5.0, 0.0, 0.0], [0.0] * 4]  # a tie: the lowest index
    assert keep_largest(rows, 3).tolist()[0] == [3.0, -5.0, 5.0, 0.0]

    class Identity(FederatedCallback):
        """Sum of what was sent plus what is kept equals the sum of the updates."""

        def __init__(self) -> None:
            self.came, self.sent = 0.0, 0.0

        def on_cohort_end(self, cohort) -> None:
            self.came += cohort.delta.sum(dim=0)

        def on_aggregate(self, round) -> None:
            self.sent += round.update * round.num_reported

    identity = Identity()
    trainer = train([TopK(0.1), identity], tmp_path, max_rounds=4)
    kept = trainer.store.gather("top-k/error", torch.arange(8)).sum(dim=0)
    torch.testing.assert_close(identity.sent + kept, identity.came, rtol=0, atol=1e-12)
    k = math.ceil(0.1 * trainer.layout.dim)
    assert trainer.ledger.up_bits == {"update": 5 * k * (64 + 10)}  # D = 832: 10 bits an index
    whole, plain = train([TopK(1.0)], tmp_path), train([], tmp_path)
    assert torch.equal(whole.server.vector, plain.server.vector)
    with pytest.raises(ValueError, match="`k=0` must be at least 1"):
        TopK(0)


@pytest.mark.parametrize("system", [TimeSharing([100.0, 200.0, 300.0]), ChannelSharing(300.0)])
def test_auto_takes_the_minimiser(system: Any, tmp_path: Path) -> None:
    data = ProblemData(N, M, batch_size=1)
    data.examples = (double(GOLDEN["A"]), double(GOLDEN["y"]))
    callback = FLSSGD("auto", gap=1.0, smoothness=1.0, gradient_bound=1.0)
    options = {"participation": FullParticipation(), "local_steps": 1, "max_rounds": 2, "system": system}
    trainer = train([callback], tmp_path, RobustRegression(D, 2.0, lr=0.1), data, **options)
    bound: Any = (1.0, 1.0, 1.0, [1 / 3] * 3)
    if isinstance(system, TimeSharing):
        expected: Any = best_coordinates_time_sharing(*bound, system.rates, D)
    else:
        expected = best_coordinates_channel_sharing(*bound, D)
    assert callback._expected.tolist() == pytest.approx(expected)
    assert trainer.run.progress.simulated_seconds["uplink_time"] == trainer.summary.last("sim/uplink_time")[0] > 0
    with pytest.raises(ValueError, match="`l=auto` of FLSSGD needs `gap`"):
        FLSSGD("auto")
    with pytest.raises(ValueError, match="needs a `system`"):
        train([callback], tmp_path, RobustRegression(D, 2.0, lr=0.1), data, **{**options, "system": None})
