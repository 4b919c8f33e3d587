"""The clients' own models on their own data."""

from pathlib import Path

import pytest
import torch
from worlds import HEAD, accuracy_of, head_of, mlp, train

from lfl.callbacks import (
    ClientEvaluation,
    PersonalParameters,
)
from lfl.engine import LocalPhase


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_personal_accuracy(engine: str, tmp_path: Path) -> None:
    stack = [PersonalParameters(HEAD), ClientEvaluation(every_n_rounds=2)]
    trainer = train(stack, tmp_path, engine=engine, max_rounds=4)
    ids = (trainer.data.client_test_sizes > 0).nonzero().squeeze(1)
    head = head_of(trainer)
    params = trainer.server.vector.repeat(len(ids), 1)
    own = trainer.store.gather("personal", ids)
    seen = ~torch.isnan(own[:, 0])
    params[seen.nonzero(), head.nonzero().T] = own[seen]
    assert trainer.summary.last("personal/val_acc")[0] == pytest.approx(accuracy_of(trainer, ids, params), abs=1e-12)
    assert trainer.summary.last("personal/val_acc/worst_tenth")[0] <= trainer.summary.last("personal/val_acc")[0]


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_evaluation_leaves_the_training_alone(engine: str, tmp_path: Path) -> None:
    plain = train([], tmp_path, mlp(dropout=0.3), engine=engine)
    phases = [LocalPhase(HEAD, epochs=2, lr=0.05)]
    tuned = train([ClientEvaluation(1, fine_tune=phases)], tmp_path, mlp(dropout=0.3), engine=engine)
    assert torch.equal(tuned.server.vector, plain.server.vector)


def test_two_evaluations_of_different_names(tmp_path: Path) -> None:
    tuned = ClientEvaluation(1, fine_tune=[LocalPhase(HEAD, epochs=2)], name="tuned")
    trainer = train([ClientEvaluation(1), tuned], tmp_path, max_rounds=1)
    assert trainer.summary.last("personal/val_acc")[0] == trainer.summary.last("val_acc")[0]
    assert trainer.summary.last("tuned/val_loss")[0] < trainer.summary.last("personal/val_loss")[0]
