"""The server's adaptive optimizers: steps by hand, limits, and their state."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from worlds import mlp, train

from lfl.aggregation import FedAdagrad, FedAdam, FedYogi, Server
from lfl.checkpointing import Checkpointing

KINDS = [FedAdagrad, FedAdam, FedYogi]


def server(kind: Any, dim: int = 1, **settings: Any) -> Server:
    return Server(torch.zeros(dim).double(), lambda params: kind(params, **settings))


def state_of(server: Server) -> dict[str, Tensor]:
    return next(iter(server.optimizer.state.values()))


def test_two_steps_by_hand() -> None:
    """Delta = 3 and then 4, tau = 1, lr = 2, b1 = 1/2, b2 = 3/4, v_0 = 1, m_0 = 0.

    Adam: m = 1.5, v = (3 + 9) / 4 = 3; m = 2.75, v = (9 + 16) / 4 = 6.25: x = 2 * 1.5 / (sqrt 3 + 1), + 2 * 2.75 / 3.5.
    Yogi: v = 1 + 9/4 = 3.25, then 3.25 + 4 = 7.25, as both Delta^2 are larger. Adagrad: v = 10, 26, and Delta for m.
    """
    betas = (0.5, 0.75)
    cases: list[tuple[Any, dict[str, Any], list[tuple[float, float]]]] = [
        (FedAdam, {"betas": betas}, [(1.5, 3.0), (2.75, 6.25)]),
        (FedYogi, {"betas": betas}, [(1.5, 3.25), (2.75, 7.25)]),
        (FedAdagrad, {}, [(3.0, 10.0), (4.0, 26.0)]),
    ]
    for kind, settings, expected in cases:
        found, x = server(kind, lr=2.0, tau=1.0, **settings), 0.0
        for delta, (m, v) in zip((3.0, 4.0), expected, strict=True):
            found.step(torch.tensor([delta]).double())
            x += 2 * m / (v**0.5 + 1)
            assert found.vector.item() == pytest.approx(x, abs=1e-14), kind
            assert state_of(found)["v"].item() == v


def test_fedadagrad_is_torchs_adagrad_to_the_bit() -> None:
    draws = torch.Generator().manual_seed(0)
    ours = server(FedAdagrad, 50, lr=0.3, tau=0.1)
    torchs = Server(
        torch.zeros(50).double(),
        lambda p: torch.optim.Adagrad(p, lr=0.3, initial_accumulator_value=0.1**2, eps=0.1),
    )
    for _ in range(20):
        delta = torch.randn(50, generator=draws).double()
        ours.step(delta)
        torchs.step(delta)
        assert torch.equal(ours.vector, torchs.vector)


def test_yogis_v_is_never_negative_and_shrinks_slowly() -> None:
    draws, found = torch.Generator().manual_seed(0), server(FedYogi, 200, tau=1e-3, betas=(0.9, 0.5))
    for round_number in range(60):
        found.step(torch.randn(200, generator=draws).double() * 10.0 ** (-round_number % 7 - 3))
        assert state_of(found)["v"].min() >= 0
    big = state_of(found)["v"].max()
    found.step(torch.zeros(200).double())
    assert state_of(found)["v"].max() == big  # Delta = 0 changes nothing, where Adam halves it


def test_limits() -> None:
    """Without memory and tau, a step is the sign; with a large tau = lr, FedAdam is momentum; no update, no move."""
    delta = torch.tensor([5.0, -1e-3, 0.0]).double()
    signs = server(FedAdam, 3, lr=0.5, betas=(0.0, 0.0), tau=1e-12)
    signs.step(delta)
    torch.testing.assert_close(signs.vector, 0.5 * delta.sign(), rtol=1e-8, atol=1e-12)
    momentum = server(FedAdam, 3, lr=1e9, betas=(0.9, 0.0), tau=1e9)
    for t in range(4):
        momentum.step(delta)
        # v_1 is Delta^2, which is nothing beside tau: x moves by m = (1 - 0.9^t) Delta.
        moved = sum(1 - 0.9 ** (k + 1) for k in range(t + 1))
        torch.testing.assert_close(momentum.vector, moved * delta, rtol=1e-7, atol=0)
    for kind in KINDS:
        still = server(kind, 3)
        still.step(torch.zeros(3).double())
        assert still.vector.tolist() == [0.0] * 3
        assert not still.is_plain_sgd


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_goes_on_to_the_same_bits(kind: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "server_optimizer": lambda params: kind(params, lr=0.05, tau=1e-2),
        "checkpoint": Checkpointing(every_n_rounds=2, keep_all=True),
        "precision": "32-true",
        "max_rounds": 4,
    }
    unbroken = train([], tmp_path / "unbroken", mlp(), **options)
    saved = Path(unbroken.log_dir) / "checkpoints" / "round_000002.ckpt"
    resumed = train([], tmp_path / "resumed", mlp(), ckpt_path=str(saved), **options)
    assert torch.equal(resumed.server.vector, unbroken.server.vector)
    assert str(resumed.server.optimizer.state_dict()) == str(unbroken.server.optimizer.state_dict())
    with pytest.raises(ValueError, match="changed settings"):
        train(
            [], tmp_path / "other", mlp(), ckpt_path=str(saved),
            **{**options, "server_optimizer": lambda params: kind(params, lr=0.05, tau=1e-3)},
        )  # fmt: skip


def test_settings_are_checked() -> None:
    refused = [
        (FedAdam, {"tau": 0.0}, "`tau=0.0` of FedAdam must be a number greater than 0."),
        (FedYogi, {"lr": -1.0}, "`lr=-1.0` of FedYogi must be a number of at least 0."),
        (FedAdam, {"betas": (0.9, 1.0)}, r"`betas=\(0.9, 1.0\)` of FedAdam must be at least 0 and below 1."),
    ]
    for kind, settings, message in refused:
        with pytest.raises(ValueError, match=message):
            server(kind, **settings)
