"""pFedMe: rounds by hand, the envelope's gradient, and engines."""

from pathlib import Path
from typing import Any

import pytest
import torch
from quadratics import quadratic_data
from torch import Tensor
from worlds import Quadratic, equal_data, mlp, ragged_data, train, train_quadratic

from lfl.callbacks import SSF, PFedMe
from lfl.participation import FullParticipation
from lfl.subspace import IdentitySubspace

ENGINES = ["sequential", "vectorized"]


def beta(value: float) -> Any:
    return lambda params: torch.optim.SGD(params, lr=value)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("server", [1.0, 2.0])
def test_a_round_by_hand(server: float, engine: str, tmp_path: Path) -> None:
    """``a/2 (y - b)^2`` with (a, b) = (1, 1) and (2, -1); lam = 2, two inner steps of 0.1, lr 0.25, two local steps.

    Client 1: theta: -1, 0.1; -0.9 + 0.2, 0.17; w = 0.5 * 0.17 = 0.085. theta: -0.83 + 0.17, 0.236;
    -0.764 + 0.302, 0.2822; w = 0.085 + 0.5 * 0.1972 = 0.1836.
    Client 2: theta: 2, -0.2; 1.6 - 0.4, -0.32; w = -0.16. theta: 1.36 - 0.32, -0.424; 1.152 - 0.528, -0.4864;
    w = -0.16 - 0.5 * 0.3264 = -0.3232. x = beta * (0.1836 - 0.3232) / 2.
    """
    data = quadratic_data([[1.0], [2.0]], [[1.0], [-1.0]])
    options = {"max_rounds": 1, "local_steps": 2, "module": Quadratic(dim=1, lr=0.25), "data": data, "engine": engine}
    trainer, _ = train_quadratic([PFedMe(2.0, 2, 0.1)], tmp_path, server_optimizer=beta(server), **options)
    assert trainer.server.vector.tolist() == pytest.approx([-0.0698 * server], abs=1e-14)
    rows = trainer.store.gather("pfedme", torch.arange(2)).flatten().tolist()
    assert rows == pytest.approx([0.2822, -0.4864], abs=1e-14)
    assert trainer.ledger.totals == {"up": 2 * 64, "down": 2 * 64}


def test_the_second_round_begins_at_x(tmp_path: Path) -> None:
    """theta too: with one inner step of 0.1, theta = x - 0.1 a (x - b), whatever it was before."""
    data = quadratic_data([[1.0], [2.0]], [[1.0], [-1.0]])
    first, second = (
        train_quadratic(
            [PFedMe(2.0, 1, 0.1)], tmp_path, max_rounds=n, local_steps=1, module=Quadratic(dim=1, lr=0.25), data=data
        )[0]
        for n in (1, 2)
    )
    x = first.server.vector
    expected = x - 0.1 * data.curvature * (x - data.centre)
    rows = second.store.gather("pfedme", torch.arange(2))
    torch.testing.assert_close(rows, expected, rtol=0, atol=1e-14)


def test_solved_to_the_end_it_is_the_gradient_of_the_envelope(tmp_path: Path) -> None:
    """Of ``a/2 (y - b)^2`` that is ``lam a / (lam + a) (w - b)``."""
    options = {"max_rounds": 1, "local_steps": 1, "engine": "vectorized"}
    trainer, data = train_quadratic([PFedMe(2.0, 200, 0.3)], tmp_path, **options)
    envelope = 2 * data.curvature / (2 + data.curvature)
    expected = (0.1 * envelope * data.centre).mean(dim=0)
    torch.testing.assert_close(trainer.server.vector, expected, rtol=0, atol=1e-12)


def test_engines_and_recordings_agree_with_ragged_clients(tmp_path: Path) -> None:
    def found(data: Any, **options: Any) -> list[Tensor]:
        trainer = train([PFedMe(5.0, 3, 0.05)], tmp_path, mlp(dropout=0.3), data, max_rounds=2, **options)
        return [trainer.server.vector, trainer.store.gather("pfedme", torch.arange(8))]

    alone = found(ragged_data(), local_epochs=2)
    together = found(ragged_data(), local_epochs=2, engine="vectorized", cohort_size=3)
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-10)
    for engine in ENGINES:
        options = {"engine": engine, "local_steps": 4}
        recorded = found(equal_data(), trace_steps=True, **options)
        torch.testing.assert_close(recorded, found(equal_data(), **options), rtol=0, atol=1e-12)


def test_the_logged_loss_is_that_at_the_first_pass(tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_rounds": 1, "local_steps": 1, "participation": FullParticipation()}
    runs = [train(s, tmp_path, mlp(), **options) for s in ([], [PFedMe()])]
    assert runs[0].summary.last("train/loss") == runs[1].summary.last("train/loss")


def test_settings_and_stacks_without_meaning(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"behind SSF .* put PFedMe before SSF"):
        train([SSF(IdentitySubspace()), PFedMe()], tmp_path)
    with pytest.raises(ValueError, match="`inner_steps=0` of PFedMe must be a whole number of at least 1"):
        PFedMe(inner_steps=0)
    with pytest.raises(ValueError, match="`lam=0` of PFedMe must be a number greater than 0"):
        PFedMe(lam=0)
