"""Ditto: the shared model is untouched, personal ones by hand, and limits."""

from pathlib import Path
from typing import Any

import pytest
import torch
from quadratics import quadratic_data
from torch import Tensor
from worlds import Quadratic, equal_data, head_of, mlp, ragged_data, train, train_quadratic

from lfl.callbacks import (
    SSF,
    Ditto,
    FederatedCallback,
    PersonalParameters,
    PFedMe,
    Proximal,
    Scaffold,
    SharpnessAware,
    TopK,
)
from lfl.engine import LocalPhase
from lfl.models import Classifier
from lfl.participation import FullParticipation
from lfl.subspace import LayerwiseSubspace
from lfl.trainer import FederatedTrainer

ENGINES = ["sequential", "vectorized"]


def with_optimizer(name: str) -> Classifier:
    module = mlp(dropout=0.2)
    makers = {
        "momentum": lambda: torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1),
        "adam": lambda: torch.optim.Adam(module.parameters(), lr=0.01),
        "adafactor": lambda: torch.optim.Adafactor(module.parameters(), lr=0.01),  # not elementwise
    }
    module.configure_optimizers = makers[name]  # type: ignore[method-assign]
    return module


def rows_of(trainer: FederatedTrainer, slot: str = "ditto") -> Tensor:
    return trainer.store.gather(slot, torch.arange(trainer.num_clients))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("make", [list, lambda: [Scaffold()], lambda: [SSF(LayerwiseSubspace(0.3))]])
def test_the_shared_model_is_that_of_the_stack_without_it(
    make: Any, optimizer: str, engine: str, tmp_path: Path
) -> None:
    if optimizer == "adam" and make is not list:
        optimizer = "momentum"
    runs = [
        train([*first, *make()], tmp_path, with_optimizer(optimizer), engine=engine, gradient_clip_val=1.0)
        for first in ([], [Ditto(0.5)])
    ]
    assert torch.equal(runs[0].server.vector, runs[1].server.vector)
    assert runs[0].ledger.metrics() == runs[1].ledger.metrics()
    assert runs[0].summary.last("train/loss") == runs[1].summary.last("train/loss")


@pytest.mark.parametrize("engine", ENGINES)
def test_two_rounds_by_hand(engine: str, tmp_path: Path) -> None:
    """``a/2 (y - b)^2`` with (a, b) = (1, 1) and (2, -1), lr 0.1, K = 2, lam = 0.5.

    Round 1, x = 0. Client 1: v: -1, v = 0.1; -0.9 + 0.05, v = 0.185. y: 0.1, 0.19.
    Client 2: v: 2, v = -0.2; 1.6 - 0.1, v = -0.35. y: -0.2, -0.36. x = -0.085.
    Round 2. Client 1: v: -0.815 + 0.135 = -0.68, v = 0.253; -0.747 + 0.169 = -0.578, v = 0.3108. y: 0.0235, 0.12115.
    Client 2: v: 1.3 - 0.1325, v = -0.46675; 1.0665 - 0.190875, v = -0.5543125. y: -0.268, -0.4144. x = -0.146625.
    """
    data = quadratic_data([[1.0], [2.0]], [[1.0], [-1.0]])
    options = {"max_rounds": 2, "local_steps": 2, "module": Quadratic(dim=1), "data": data, "engine": engine}
    trainer, _ = train_quadratic([Ditto(0.5)], tmp_path, **options)
    assert trainer.server.vector.tolist() == pytest.approx([-0.146625], abs=1e-14)
    assert rows_of(trainer).flatten().tolist() == pytest.approx([0.3108, -0.5543125], abs=1e-14)
    assert trainer.ledger.totals == {"up": 2 * 2 * 64, "down": 2 * 2 * 64}


@pytest.mark.parametrize(
    "optimizer",
    [
        "momentum",
        "adam",
        pytest.param(
            "adafactor", marks=pytest.mark.skipif(not hasattr(torch.optim, "Adafactor"), reason="since torch 2.5")
        ),
    ],
)
@pytest.mark.parametrize("behind", [list, lambda: [SharpnessAware(0.3)], lambda: [TopK(0.1)]])
def test_without_the_pull_it_is_local_training(behind: Any, optimizer: str, tmp_path: Path) -> None:
    """Whatever is done to the shared model behind it, also if that takes the gradient twice."""
    options: dict[str, Any] = {"participation": FullParticipation(), "max_rounds": 2}
    ditto = train([Ditto(0.0), *behind()], tmp_path, with_optimizer(optimizer), **options)
    local = train([PersonalParameters(["*"])], tmp_path, with_optimizer(optimizer), **options)
    torch.testing.assert_close(rows_of(ditto), rows_of(local, "personal"), rtol=0, atol=1e-12)


def test_engines_and_recordings_agree_with_ragged_clients(tmp_path: Path) -> None:
    def rows(data: Any, **options: Any) -> Tensor:
        return rows_of(train([Ditto(0.3)], tmp_path, with_optimizer("momentum"), data, **options))

    options: dict[str, Any] = {"local_epochs": 2, "max_rounds": 2}
    alone = rows(ragged_data(), **options)
    together = rows(ragged_data(), engine="vectorized", cohort_size=3, **options)
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-10)
    for engine in ENGINES:
        options = {"engine": engine, "local_steps": 4, "max_rounds": 2}
        recorded = rows(equal_data(), trace_steps=True, **options)
        torch.testing.assert_close(recorded, rows(equal_data(), **options), rtol=0, atol=1e-12)


def test_phases_hold_for_personal_models_too(tmp_path: Path) -> None:
    """What a phase does not train stays at x, where v began."""
    phases = [LocalPhase(["*.head.*"], steps=2, lr=0.3)]
    trainer = train([Ditto(0.3)], tmp_path, max_rounds=1, participation=FullParticipation(), local_phases=phases)
    start = train([], tmp_path, max_rounds=0).server.vector
    moved = rows_of(trainer) - start
    head = head_of(trainer)
    assert bool((moved[:, ~head] == 0).all())
    assert bool((moved[:, head] != 0).any(dim=1).all())


@pytest.mark.parametrize(
    ("stack", "message"),
    [
        (
            [Proximal(0.1), Ditto()],
            "follow the gradient of the loss, which Proximal changes: put Ditto before Proximal",
        ),
        ([PersonalParameters(["*.head.*"]), Ditto()], "PersonalParameters and Ditto have no meaning together"),
        ([Ditto(), PFedMe()], "Ditto and PFedMe both say what a client's own model is"),
        ([Ditto(), Ditto()], "`callbacks` has two Ditto"),
    ],
)
def test_stacks_without_meaning(stack: list[FederatedCallback], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        train(stack, tmp_path)


def test_the_weight_is_not_negative() -> None:
    with pytest.raises(ValueError, match="`lam=-1` of Ditto must be a number of at least 0"):
        Ditto(-1)
