"""FedExP's step: longer where updates disagree."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from worlds import mlp, ragged_data, train

from lfl.aggregation import FedExP, MeanAggregator
from lfl.aggregation.aggregator import check_adds_up
from lfl.loggers.csv import read_rows
from lfl.participation import FullParticipation


def aggregate(rows: Tensor, eps: float = 0.0, cohort: int = 2) -> tuple[Tensor, float]:
    aggregator = FedExP(eps)
    aggregator.start()
    for part in rows.split(cohort):
        aggregator.add(part, aggregator.weights(torch.ones(len(part))))
    return aggregator.result(), float(aggregator.metrics()["fedexp/eta_g"])


def test_step_by_hand() -> None:
    """(3, 0) and (-1, 2), mean (1, 1): squares 9 and 5, mean 7, over 2 (2 + eps): 7/4, or 1.4 with eps = 1/2."""
    rows = torch.tensor([[3.0, 0.0], [-1.0, 2.0]])
    for eps, step in ((0.0, 1.75), (0.5, 1.4)):
        found, eta = aggregate(rows, eps)
        assert eta == pytest.approx(step)
        assert found.tolist() == pytest.approx([step, step])


def test_orthogonal_updates_scale_and_weights() -> None:
    assert aggregate(torch.eye(8))[1] == pytest.approx(4.0)
    rows = torch.randn(5, 30, generator=torch.Generator().manual_seed(0))
    assert aggregate(7 * rows)[1] == pytest.approx(aggregate(rows)[1], rel=1e-6)
    by_examples = FedExP(0.0, "examples")
    by_examples.add(torch.tensor([[3.0, 0.0], [-1.0, 2.0]]), by_examples.weights(torch.tensor([1, 3])))
    # Mean (0, 1.5), squares (9 + 15) / 4 = 6, over 2 * 2.25.
    assert by_examples.result().tolist() == pytest.approx([0.0, 2.0])


def test_equal_updates_one_client_and_none_at_all_are_the_mean_to_the_bit() -> None:
    row = torch.randn(1, 9, generator=torch.Generator().manual_seed(0))
    for rows in (row, row.repeat(5, 1)):
        mean = MeanAggregator()
        for part in rows.split(2):
            mean.add(part, mean.weights(torch.ones(len(part))))
        found, eta = aggregate(rows)
        assert eta == 1.0
        assert torch.equal(found, mean.result())
    assert aggregate(torch.zeros(3, 4))[0].tolist() == [0.0] * 4
    opposite = torch.cat([row, -row])
    assert torch.equal(aggregate(opposite)[0], torch.zeros(9).double())
    assert aggregate(opposite, 1e-3)[0].isfinite().all()


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_a_single_client_is_fedavg_to_the_bit(engine: str, tmp_path: Path) -> None:
    """In float32, over rounds."""
    options = {"data": ragged_data(num_clients=1), "participation": FullParticipation(), "precision": "32-true"}
    runs = [
        train([], tmp_path, mlp(), engine=engine, aggregator=a, **options)
        for a in (MeanAggregator("uniform"), FedExP())
    ]
    assert torch.equal(runs[0].server.vector, runs[1].server.vector)


def test_sums_of_processes_and_the_log(tmp_path: Path) -> None:
    check_adds_up(FedExP(), 11)
    trainer = train([], tmp_path, aggregator=FedExP(), max_rounds=2)
    steps = [row["fedexp/eta_g"] for _, row in read_rows(Path(trainer.log_dir) / "metrics.csv")]
    assert len(steps) == 2
    assert min(steps) >= 1
    assert trainer.run.aggregator.weighting == "uniform"


def test_a_negative_eps_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`eps=-0.1` of FedExP must be a number of at least 0."):
        FedExP(-0.1)
