"""Look-back gradient multipliers: by hand, the projection, and who sends how much."""

from pathlib import Path

import pytest
import torch
from two_clients import path_of
from worlds import mlp, train

from lfl.callbacks import LBGM, PersonalParameters
from lfl.callbacks.lbgm import look_back
from lfl.participation import FixedParticipation

D = 832  # MLP 64-12-4, of four tensors


def test_multiplier_and_angle() -> None:
    """<u, l> = 3, |l|^2 = 1, |u|^2 = 25; an opposite update; u = 0 is 0 times l; with l = 0 there is nothing."""
    updates = torch.tensor([[3.0, 4.0], [-2.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    last = torch.tensor([[1.0, 0.0], [4.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    rho, sine = look_back(updates, last)
    assert rho.tolist() == [3.0, -0.5, 0.0, 0.0]
    torch.testing.assert_close(
        sine, torch.tensor([16 / 25, 0.0, 0.0, torch.inf], dtype=torch.float64), rtol=0, atol=1e-15
    )


def test_what_arrives_is_the_projection() -> None:
    draws = torch.Generator().manual_seed(0)
    updates, last = (torch.randn(5, 30, generator=draws, dtype=torch.float64) for _ in range(2))
    rho, sine = look_back(updates, last)
    error = (updates - rho[:, None] * last).square().sum(dim=1)
    torch.testing.assert_close(error, sine * updates.square().sum(dim=1))


def test_rounds_by_hand(tmp_path: Path) -> None:
    """Clients move by (4 - x_1, -x_2) / 2 and (0, 2 - x_2); threshold 0.2.

    1. (2, 0) = l_1 and (0, 2) = l_2 are sent whole: x = (1, 1).
    2. (1.5, -.5): rho = .75, sin^2 = .25 / 2.5 = .1: (1.5, 0) arrives. (0, 1): rho = .5, sin^2 = 0. x = (1.75, 1.5).
    3. (1.125, -.75): sin^2 = .31, sent whole. (0, .5): rho = .25. Mean (.5625, -.125): x = (2.3125, 1.375).

    Up, in round 3: a bit and two doubles, and a bit and one.
    """
    path, trainer = path_of([LBGM(0.2)], tmp_path, rounds=3)
    assert path == [[1.0, 1.0], [1.75, 1.5], [2.3125, 1.375]]
    assert trainer.store.gather("lbgm/look-back", torch.arange(2)).tolist() == [[1.125, -0.75], [0.0, 2.0]]
    assert trainer.ledger.up_bits == {"update": (1 + 128) + (1 + 64)}


@pytest.mark.parametrize(("scope", "parts"), [("global", 1), ("tensor", 4)])
def test_limits_of_the_threshold(scope: str, parts: int, tmp_path: Path) -> None:
    """Below 0 it is FedAvg, bit for bit; at 1 only a client's first update is whole."""
    options = {"participation": FixedParticipation([[0, 2]]), "max_rounds": 2}
    plain = train([], tmp_path, mlp(), **options)
    whole, numbers = (train([LBGM(limit, scope)], tmp_path, mlp(), **options) for limit in (-0.1, 1.0))  # type: ignore[arg-type]
    assert torch.equal(whole.server.vector, plain.server.vector)
    assert whole.ledger.up_bits == {"update": 2 * (parts + D * 64)}
    assert numbers.ledger.up_bits == {"update": 2 * parts * (1 + 64)}
    assert (numbers.server.vector - plain.server.vector).norm() > 1e-3


def test_each_tensor_decides_for_itself(tmp_path: Path) -> None:
    """Both weights (768, 48) turned by less than sin^2 = 0.4, both biases (12, 4) by more: 1 + 12 + 1 + 4 floats."""
    options = {"participation": FixedParticipation([[4]]), "max_rounds": 2}
    trainer = train([LBGM(0.4, "tensor")], tmp_path, mlp(), **options)
    assert trainer.ledger.up_bits == {"update": 4 + 18 * 64}


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`scope=layer` of LBGM must be one of global, tensor"):
        LBGM(scope="layer")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`scope=tensor` of LBGM needs updates of all parameters"):
        train([PersonalParameters(["*.head.*"]), LBGM(scope="tensor")], tmp_path)
