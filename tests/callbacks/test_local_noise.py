"""Noise that clients add before they send anything."""

import math
from pathlib import Path

import dp_accounting as dp
import pytest
import torch
from contract.test_stacks import corners
from dp_accounting.rdp import RdpAccountant
from torch import Tensor
from worlds import Quadratic, QuadraticData, Rounds, batch_norm, even_data, train, train_quadratic

from lfl.aggregation import CoordinateMedian
from lfl.callbacks import FLSS, FederatedCallback, LocalNoise, Scaffold, TopK
from lfl.comm import Payload
from lfl.participation import FixedParticipation, FullParticipation
from lfl.round import Cohort


class Sent(FederatedCallback):
    """Stands last, and keeps what is sent, by client."""

    linear = False

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int], Tensor] = {}

    def encode(self, cohort: Cohort, payload: Payload) -> Payload:
        for client, row in zip(cohort.ids.tolist(), payload.values, strict=True):
            self.rows[cohort.round.number, client] = row.clone()
        return payload


def sent(folder: Path, engine: str = "sequential", seed: int = 0, dim: int = 20_000) -> dict[tuple[int, int], Tensor]:
    keeper, data = Sent(), QuadraticData(3, dim)
    data.centre = torch.zeros_like(data.centre)
    stack = [LocalNoise(0.4, clip=0.5), keeper]
    # Nobody is where he would stay, but for the first round: x is noise from then on, and moves with rate 0 only.
    options = {"module": Quadratic(dim, lr=0.0), "data": data, "local_steps": 1, "max_rounds": 2, "engine": engine}
    train_quadratic(stack, folder, seed=seed, **options)
    return keeper.rows


def test_noise_has_its_variance_and_differs_between_clients_rounds_and_seeds(tmp_path: Path) -> None:
    rows = sent(tmp_path)
    stacked = torch.stack(list(rows.values())) / (0.4 * 0.5)
    assert len(stacked) == 6
    count = stacked.shape[1]
    assert bool((stacked.mean(dim=1).abs() < 5 / math.sqrt(count)).all())
    assert bool(((stacked.var(dim=1) - 1).abs() < 5 * math.sqrt(2 / count)).all())
    assert float((torch.corrcoef(stacked) - torch.eye(6)).abs().max()) < 5 / math.sqrt(count)
    again, together, other = sent(tmp_path), sent(tmp_path, "vectorized"), sent(tmp_path, seed=1)
    for key, row in rows.items():
        assert torch.equal(again[key], row)
        assert torch.equal(together[key], row)
        assert not torch.equal(other[key], row)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_updates_are_shortened(engine: str, tmp_path: Path) -> None:
    """(0.5, 0) and (0, 0.5) to 0.3, without noise; any aggregator will do."""
    options = {"data": corners(), "module": Quadratic(2), "local_steps": 1, "max_rounds": 1, "engine": engine}
    trainer, _ = train_quadratic([LocalNoise(0.0, clip=0.3)], tmp_path, aggregator=CoordinateMedian(), **options)
    assert trainer.server.vector.tolist() == pytest.approx([0.15, 0.15], abs=1e-15)
    assert "privacy/local_epsilon" not in trainer.callback_metrics


def test_epsilon_is_that_of_who_reported_most_often(tmp_path: Path) -> None:
    """Client 2 takes part in rounds 1, 3 and 4; a report is a Gaussian mechanism of sigma / 2 for a replaced one."""
    kept = Rounds()
    participation = FixedParticipation([[0, 2], [1], [2], [2, 3]])
    stack = [LocalNoise(3.0, delta=1e-3), kept]
    trainer, _ = train_quadratic(stack, tmp_path, participation=participation, max_rounds=4, local_steps=1)
    for round, reports in zip(kept.kept, (1, 1, 2, 3), strict=True):
        accountant = RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
        expected = accountant.compose(dp.GaussianDpEvent(1.5), reports).get_epsilon(1e-3)
        assert round.metrics["privacy/local_epsilon"] == pytest.approx(expected)
    assert trainer.ledger.totals["up"] == 6 * 12 * 64


def test_what_it_would_not_cover_is_refused(tmp_path: Path) -> None:
    for stack, message in (
        ([LocalNoise(), Scaffold()], "Scaffold and LocalNoise have no meaning together"),
        ([FLSS(1, 2), LocalNoise()], "FLSS and LocalNoise have no meaning together"),
    ):
        with pytest.raises(ValueError, match=message):
            train(stack, tmp_path)
    with pytest.raises(ValueError, match="LocalNoise does not cover the model's buffers"):
        train([LocalNoise()], tmp_path, batch_norm(), even_data(), participation=FullParticipation())
    assert train([LocalNoise(), TopK(0.1)], tmp_path, max_rounds=1).current_round == 1


@pytest.mark.parametrize("options", [{"noise_multiplier": -1.0}, {"clip": 0.0}, {"delta": 0.0}, {"delta": 1.0}])
def test_values_that_cannot_be_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="of LocalNoise must be"):
        LocalNoise(**options)
