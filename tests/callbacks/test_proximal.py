"""FedProx: without strength it is FedAvg, and with more clients stay nearer."""

from pathlib import Path

import pytest
import torch
from worlds import mlp, train, train_quadratic

from lfl.callbacks import Proximal

ENGINES = ["sequential", "vectorized"]


@pytest.mark.parametrize("engine", ENGINES)
def test_fedprox_without_strength_is_fedavg_to_the_bit(engine: str, tmp_path: Path) -> None:
    runs = [train(stack, tmp_path, mlp(dropout=0.3), engine=engine) for stack in ([], [Proximal(mu=0.0)])]
    assert torch.equal(runs[0].server.vector, runs[1].server.vector)


def test_fedprox_first_step_is_fedavgs_and_clients_stay_nearer(tmp_path: Path) -> None:
    first = [train_quadratic(s, tmp_path, max_rounds=1, local_steps=1)[0] for s in ([], [Proximal(mu=0.5)])]
    assert torch.equal(first[0].server.vector, first[1].server.vector)
    moved = [
        train_quadratic([Proximal(mu)], tmp_path, max_rounds=1)[0].server.vector.norm() for mu in (0.0, 0.1, 1.0, 5.0)
    ]
    assert moved == sorted(moved, reverse=True)
