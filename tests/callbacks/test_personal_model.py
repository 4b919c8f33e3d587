"""Personal models beside the shared one: who has them, how they are evaluated, and when they are refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from quadratics import quadratic_data
from torch import Tensor
from worlds import ONE_ROUND, Bystander, Quadratic, accuracy_of, batch_norm, even_data, train, train_quadratic

from lfl.callbacks import ClientEvaluation, Ditto, PFedMe
from lfl.engine import LocalPhase
from lfl.hooks import NonFiniteUpdateError
from lfl.participation import FixedParticipation

METHODS = [lambda: Ditto(0.3), lambda: PFedMe(5.0, 2, 0.05)]


@pytest.mark.parametrize("make", METHODS)
def test_clients_that_were_seen_have_one_and_others_have_x(make: Any, tmp_path: Path) -> None:
    schedule = FixedParticipation([[0, 3], [3, 5]])
    method = make()
    evaluation = ClientEvaluation(every_n_rounds=2)
    trainer = train([method, evaluation], tmp_path, participation=schedule, max_rounds=2)
    everyone = torch.arange(8)
    models = trainer.run.personal_models(everyone)
    rows = trainer.store.gather(method.slot, everyone)
    seen = [0, 3, 5]
    assert trainer.store.rows_in_use(method.slot) == 3
    assert torch.equal(models[seen], rows[seen])
    assert torch.equal(models[[1, 2]], trainer.server.vector.expand(2, -1))
    ids = (trainer.data.client_test_sizes > 0).nonzero().squeeze(1)
    expected = accuracy_of(trainer, ids, models[ids])
    assert trainer.summary.last("personal/val_acc")[0] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("make", METHODS)
def test_absent_clients_keep_theirs(make: Any, tmp_path: Path) -> None:
    schedule = FixedParticipation([[0, 3], [3, 5]])
    rows = []
    for rounds in (1, 2):
        trainer = train([method := make()], tmp_path, participation=schedule, max_rounds=rounds)
        rows.append(trainer.store.gather(method.slot, torch.tensor([0, 3])))
    assert torch.equal(rows[0][0], rows[1][0])
    assert not torch.equal(rows[0][1], rows[1][1])


class Tuned(Bystander):
    """What one step of fine-tuning makes of the clients' own models."""

    def on_round_end(self, round: Any) -> None:
        ids = torch.arange(2)
        self.before: Tensor = self.run.personal_models(ids)
        self.after = self.before.clone()
        self.run.fine_tuner([LocalPhase(steps=1, lr=0.25)])(round, ids, self.after)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_fine_tuning_goes_on_from_the_personal_model(engine: str, tmp_path: Path) -> None:
    """``v - 0.25 a (v - b)``."""
    data, tuned = quadratic_data([[1.0], [2.0]], [[1.0], [-1.0]]), Tuned()
    options = {"max_rounds": 2, "module": Quadratic(dim=1), "data": data, "engine": engine}
    train_quadratic([Ditto(0.5), tuned], tmp_path, **options)
    expected = tuned.before - 0.25 * data.curvature * (tuned.before - data.centre)
    torch.testing.assert_close(tuned.after, expected, rtol=0, atol=1e-14)
    assert not torch.equal(tuned.before[0], tuned.before[1])


def test_a_model_that_is_not_finite_is_named(tmp_path: Path) -> None:
    """The shared model is; the personal one is thrown further away at every step."""
    with pytest.raises(NonFiniteUpdateError, match=r"personal model of client\(s\) 0 in round 1 is not finite"):
        train_quadratic([Ditto(1e200)], tmp_path, max_rounds=1)


@pytest.mark.parametrize("make", METHODS)
def test_batch_norm_sees_each_batch_once(make: Any, tmp_path: Path) -> None:
    """Its statistics stand before what is trained, and are those of the data."""
    runs = [train(s, tmp_path, batch_norm(), even_data(5), **ONE_ROUND) for s in ([], [make()])]
    states = [run.server_state_dict() for run in runs]
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.equal(states[0][f"backbone.norm.{name}"], states[1][f"backbone.norm.{name}"]), name
