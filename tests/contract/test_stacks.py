"""Stacks whose first rounds are derived by hand, that no single method's file has."""

import math
from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningModule
from quadratics import RepeatedData
from torch import Tensor, nn
from worlds import Quadratic, QuadraticData, train_quadratic

from lfl.aggregation import CoordinateMedian, FedExP, Krum, MeanAggregator, NormalizedReaggregation
from lfl.callbacks import FLSS, ClientMomentum, FedDyn, FedNova, PersonalParameters, Proximal, SharpnessAware, TopK
from lfl.engine import LocalPhase

ENGINES = pytest.mark.parametrize("engine", ["sequential", "vectorized"])


def corners() -> QuadraticData:
    """``F_i(y) = 1/2 |y - b_i|^2`` with b_1 = (5, 0) and b_2 = (0, 5)."""
    data = QuadraticData(num_clients=2, dim=2)
    data.curvature = torch.ones(2, 2, dtype=torch.float64)
    data.centre = torch.tensor([[5.0, 0.0], [0.0, 5.0]], dtype=torch.float64)
    return data


@ENGINES
def test_normalized_reaggregation_with_momentum_and_sam_in_a_subspace(engine: str, tmp_path: Path) -> None:
    """FedMRUR-N + FLSS: rho = 0.5, alpha = 0.5, one step of 0.1; the subspace is that of the first movement.

    Round 1, all numbers travel. g_1 = (-5, 0), at the top g~_1 = (-5.5, 0), v_1 = g~_1 / 2, delta_1 = (0.275, 0); and
    delta_2 = (0, 0.275). The mean of the norms along the mean: x = 0.275 p with p = (1, 1) / sqrt 2, m = -2.75 p.
    Round 2, p delta_i travel. With c = 0.275 / sqrt 2: g_1 = (c - 5, c), of norm n = sqrt((c - 5)^2 + c^2), and
    p g_1 = (2 c - 5) / sqrt 2; g~_1 = (1 + 0.5 / n) g_1, so z_1 = -0.1 (0.5 (1 + 0.5 / n) p g_1 - 0.5 * 2.75). By
    symmetry z_2 = z_1 = their normalised mean: x = (0.275 + z_1) p, and m = -10 z_1 p.
    """
    stack = [SharpnessAware(0.5), ClientMomentum(0.5, "aggregate"), FLSS(warmup_rounds=1, rank=1, sample_every=None)]
    trainer, _ = train_quadratic(
        stack, tmp_path, data=corners(), local_steps=1, max_rounds=2, engine=engine,
        module=Quadratic(2), aggregator=NormalizedReaggregation(),
    )  # fmt: skip
    c = 0.275 / math.sqrt(2)
    n = math.hypot(c - 5, c)
    z = -0.1 * (0.5 * (1 + 0.5 / n) * (2 * c - 5) / math.sqrt(2) - 0.5 * 2.75)
    assert trainer.server.vector.tolist() == pytest.approx([(0.275 + z) / math.sqrt(2)] * 2, abs=1e-13)
    assert stack[1].momentum.tolist() == pytest.approx([-10 * z / math.sqrt(2)] * 2, abs=1e-12)
    assert trainer.ledger.totals["up"] == 2 * (2 + 1) * 64


class Split(LightningModule):
    """``F_i(u, v) = 1/2 |u - b_i|^2 + 1/2 (v - |b_i|)^2``, u shared [2] and v personal."""

    def __init__(self) -> None:
        super().__init__()
        self.u, self.v = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        _, b = batch
        shared = (self.u - b).square().sum(dim=-1)
        return 0.5 * (shared + (self.v - b.norm(dim=-1)).square()).mean()

    validation_step = None  # type: ignore[assignment]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@ENGINES
def test_personal_heads_and_a_subspace_of_the_shared_part(engine: str, tmp_path: Path) -> None:
    """FedRep + FLSS of rank 1 on the shared two numbers; v steps with rate 0.5, then u with 0.1.

    Round 1: delta_1 = (0.5, 0), delta_2 = (0, 0.5), u = (0.25, 0.25), along p = (1, 1) / sqrt 2; v_i = 2.5.
    Round 2, p delta_i travel: delta_i = 0.1 (b_i - u), whose mean 0.1 ((2.5, 2.5) - u) lies along p:
    u = (0.475, 0.475); v_i = 3.75. Up: 2 numbers a client, then 1.
    """
    trainer, _ = train_quadratic(
        [PersonalParameters(["v"]), FLSS(warmup_rounds=1, rank=1, sample_every=None)], tmp_path, data=corners(),
        module=Split(), local_steps=None, max_rounds=2, engine=engine,
        local_phases=[LocalPhase(["v"], steps=1, lr=0.5), LocalPhase(["u"], steps=1)],
    )  # fmt: skip
    assert trainer.server.vector.tolist() == pytest.approx([0.475, 0.475, 0.0], abs=1e-14)
    assert trainer.store.gather("personal", torch.arange(2)).flatten().tolist() == pytest.approx([3.75, 3.75])
    assert trainer.ledger.totals["up"] == 2 * (2 + 1) * 64


@ENGINES
def test_drift_in_a_subspace(engine: str, tmp_path: Path) -> None:
    """FedDyn + FLSS of rank 1, alpha = 1/2, one step of 0.1; h follows what arrives.

    Round 1: delta_1 = (0.5, 0), delta_2 = (0, 0.5), mean and h (0.25, 0.25): x = (0.5, 0.5), along p = (1, 1) / sqrt 2.
    Round 2, p delta_i travel: delta_1 = 0.1 ((4.5, -0.5) - (0.25, 0)) = (0.425, -0.05), and delta_2 its mirror image:
    both are 0.1875 (1, 1) along p. h = (0.4375, 0.4375), x = (1.125, 1.125). The clients keep what they moved,
    h_1 = (0.925, -0.05). In round 3 they are told of round 2: x has moved by more than one coefficient says.
    """
    dyn, options = FedDyn(0.5), {"local_steps": 1, "engine": engine, "module": Quadratic(2)}
    flss = FLSS(warmup_rounds=1, rank=1, sample_every=None)
    trainer, _ = train_quadratic([dyn, flss], tmp_path, data=corners(), max_rounds=2, **options)
    assert trainer.server.vector.tolist() == pytest.approx([1.125, 1.125], abs=1e-14)
    assert dyn.drift.tolist() == pytest.approx([0.4375, 0.4375], abs=1e-14)
    assert trainer.store.gather("feddyn/moved", torch.arange(2))[0].tolist() == pytest.approx([0.925, -0.05])
    assert trainer.ledger.totals["up"] == 2 * (2 + 1) * 64
    for stack, floats in ((lambda: [FedDyn(0.5)], 2), (list, 1)):
        flss = FLSS(warmup_rounds=1, rank=1, sample_every=None)
        longer, _ = train_quadratic([*stack(), flss], tmp_path, data=corners(), max_rounds=3, **options)
        assert longer.ledger.down_bits["model"] == 2 * floats * 64


@ENGINES
def test_proximal_terms_in_the_normaliser(engine: str, tmp_path: Path) -> None:
    """FedProx + FedNova: mu = 1, rate 1/2; (y - 4)^2 / 2 in one step, (y - 2)^2 / 2 in two, weights 1/3 and 2/3.

    Client 1: 2. Client 2: 1, then 1 + (1 - 1) / 2 = 1. A unit gradient moves 1/2, and 1/2 + (1 - 1/2) / 2 = 3/4: tau =
    (1/2 + 3/2) / 3 = 2/3, the mean (2 / (1/2) + 2 * 1 / (3/4)) / 3 = (4 + 8/3) / 3 = 20/9; x = 40/27.
    """
    data = RepeatedData([1, 2], dim=1)
    data.curvature, data.centre = torch.ones(3, 1).double(), torch.tensor([[4.0], [2.0], [2.0]]).double()
    trainer, _ = train_quadratic(
        [Proximal(1.0), FedNova()], tmp_path, data=data, module=Quadratic(1, lr=0.5), max_rounds=1, engine=engine,
        local_steps=None, local_epochs=1, aggregator=MeanAggregator(),
    )  # fmt: skip
    assert trainer.server.vector.item() == pytest.approx(40 / 27, abs=1e-14)


@ENGINES
def test_extrapolation_of_sharpness_aware_updates(engine: str, tmp_path: Path) -> None:
    """FedExP + SAM: g_i = -5 e_i, at the top -5.5 e_i with rho = 0.5, so delta_i = 0.55 e_i for the four clients.

    Four orthogonal updates of one length: eta_g = 4 / 2, and x = 2 * 0.55 / 4 in each of the four dimensions.
    """
    data = QuadraticData(num_clients=4, dim=4)
    data.curvature, data.centre = torch.ones(4, 4).double(), 5 * torch.eye(4).double()
    trainer, _ = train_quadratic(
        [SharpnessAware(0.5)], tmp_path, data=data, module=Quadratic(4), local_steps=1, max_rounds=1, engine=engine,
        aggregator=FedExP(eps=0.0),
    )  # fmt: skip
    assert trainer.server.vector.tolist() == pytest.approx([0.275] * 4, abs=1e-14)


def around_one(*others: list[float]) -> QuadraticData:
    """``F_i(y) = 1/2 |y - b_i|^2`` with b = (4, 1), (5, -1), (1, 7), and those of the others."""
    data = QuadraticData(num_clients=3 + len(others), dim=2)
    data.curvature = torch.ones(data.num_clients, 2, dtype=torch.float64)
    data.centre = torch.tensor([[4.0, 1.0], [5.0, -1.0], [1.0, 7.0], *others], dtype=torch.float64)
    return data


@ENGINES
def test_krum_of_the_largest_entries(engine: str, tmp_path: Path) -> None:
    """Top-1 with error feedback and Krum with f = 1 of five: one step of 0.5 towards b_i, from 0 and so from x.

    Round 1: delta = b / 2, of which (2, 0), (2.5, 0), (0, 3.5), (-40, 0), (0, 45) arrive. The two nearest of each:
    (2, 0) has 0.25 and 4 + 12.25; (2.5, 0) has 0.25 and 6.25 + 12.25; (0, 3.5) has 16.25 and 18.5. So x = (2, 0).
    What is kept: (0, 0.5), (0, -0.5), (0.5, 0), nothing of the last two.
    Round 2: delta = (b - x) / 2 = (1, 0.5), (1.5, -0.5), (-0.5, 3.5), (-41, 0), (-1, 45); with what was kept (1, 1),
    (1.5, -1), (0, 3.5), (-41, 0), (-1, 45), of which arrive (1, 0), (1.5, 0), (0, 3.5), (-41, 0), (0, 45). Again the
    first has the least score, 0.25 + 13.25, before 0.25 + 14.5: x = (3, 0). Of (1, 1) the first entry is the largest,
    by its index.
    """
    trainer, _ = train_quadratic(
        [TopK(1)], tmp_path, data=around_one([-80.0, 0.0], [0.0, 90.0]), local_steps=1, max_rounds=2, engine=engine,
        module=Quadratic(2, lr=0.5), aggregator=Krum(1),
    )  # fmt: skip
    assert trainer.server.vector.tolist() == [3.0, 0.0]
    kept = trainer.store.gather("top-k/error", torch.arange(5))
    assert kept.tolist() == [[0.0, 1.0], [0.0, -1.0], [0.0, 0.0], [0.0, 0.0], [-1.0, 0.0]]


@ENGINES
def test_median_of_the_shared_part(engine: str, tmp_path: Path) -> None:
    """A linear codec is decoded for each client: of u the median, of three clients the middle one in each coordinate.

    delta = 0.1 b: (0.4, 0.1), (0.5, -0.1), (0.1, 0.7). The personal part is sent by nobody.
    """
    trainer, _ = train_quadratic(
        [PersonalParameters(["v"])], tmp_path, data=around_one(), local_steps=1, max_rounds=1, engine=engine,
        module=Split(), aggregator=CoordinateMedian(),
    )  # fmt: skip
    assert trainer.server.vector.tolist() == pytest.approx([0.4, 0.1, 0.0], abs=1e-15)
    assert trainer.ledger.totals["up"] == 3 * 2 * 64


def test_what_wants_rows_is_refused_beside_a_subspace_that_clients_follow(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="FLSS and CoordinateMedian have no meaning together"):
        train_quadratic([FLSS(warmup_rounds=1, rank=1)], tmp_path, aggregator=CoordinateMedian())
    with pytest.raises(ValueError, match="FedNova and CoordinateMedian have no meaning together"):
        train_quadratic([FedNova()], tmp_path, aggregator=CoordinateMedian())


def test_too_few_participants_are_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"`byzantine=2` of Krum needs more than 2 f \+ 2 = 6 participants"):
        train_quadratic([], tmp_path, aggregator=Krum(2))
    assert not list(tmp_path.glob("run_*"))
