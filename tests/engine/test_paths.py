"""What each way of computing steps needs of a step, and the reasons in words."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from worlds import Stock, equal_data, mlp, ragged_data

from lfl.client.model import ClientModel
from lfl.client.probe import probe
from lfl.client.work import LocalWork
from lfl.engine.paths import Path, brief, why_not_padded, why_not_recorded, why_not_vectorized
from lfl.engine.trial import Trial, make_trial


def world(step: Any) -> tuple[ClientModel, Trial]:
    torch.manual_seed(0)
    module = type("Net", (Stock,), {"training_step": step})()
    data = equal_data()
    data.setup("fit")
    model = ClientModel(module)
    trial = make_trial(model, data, seed=0)
    model.traits = probe(model, [trial.batch_of(0)], [trial.keys[0]])
    return model, trial


def entropy(self: Stock, batch: Any, **options: Any) -> Tensor:
    return nn.functional.cross_entropy(self.layers(batch[0]), batch[1], **options)


def with_buffer(self: Stock, batch: Any) -> Tensor:
    self.layers.kept = self.layers(batch[0]).detach()
    return entropy(self, batch)


def weighted(self: Stock, batch: Any) -> Tensor:
    return entropy(self, batch, weight=torch.tensor([0.1, 0.2, 0.3, 0.4]))


def data_dependent(self: Stock, batch: Any) -> Tensor:
    loss = entropy(self, batch)
    return loss if loss > 1 else 2 * loss


def epoch(self: Stock, batch: Any, batch_idx: int) -> Tensor:
    return entropy(self, batch) * (1 + batch_idx)


def test_a_plain_step_may_be_computed_in_any_way() -> None:
    model, trial = world(lambda self, batch: entropy(self, batch))
    assert why_not_vectorized(model, trial) is None
    assert why_not_padded(model, trial) is None
    assert why_not_recorded(model) is None


@pytest.mark.parametrize(
    ("step", "vectorized", "padded", "recorded"),
    [
        (
            with_buffer,
            "its training step changes the module's attribute 'layers.kept'",
            None,
            "it changes the module's",
        ),
        (weighted, None, "", None),
        (data_dependent, "its training step does not run under vmap", None, None),
        (epoch, None, None, "it reads `batch_idx`, which is not the same at every step"),
    ],
)
def test_reasons(step: Any, vectorized: str | None, padded: str | None, recorded: str | None) -> None:
    model, trial = world(step)
    for reason, expected in (
        (why_not_vectorized(model, trial), vectorized),
        (why_not_recorded(model), recorded),
        (why_not_padded(model, trial) if vectorized is None else None, padded),
    ):
        assert (reason is None) == (expected is None)
        assert (reason or "").startswith(expected or "")


def test_an_optimizer_that_mixes_entries_keeps_clients_apart() -> None:
    model, trial = world(lambda self, batch: entropy(self, batch))
    model.module.configure_optimizers = lambda: Mixing(model.module.parameters(), lr=0.1)
    assert why_not_vectorized(model, trial) == "its optimizer Mixing does not treat every entry alone"


class Mixing(torch.optim.SGD):
    pass


def test_a_path_builds_its_engine() -> None:
    data = ragged_data()
    data.setup("fit")
    for path in (Path(), Path("vectorized", 3, padded_width=5, recording=True, descents=None)):
        engine = path.engine(ClientModel(mlp()), data, LocalWork(), [], 0)
        assert (engine.name, engine.cohort_size, engine.padded_width) == (
            path.name,
            path.cohort_size,
            path.padded_width,
        )
        assert (engine.is_recorded, engine.descents) == (path.recording, path.descents)


def test_an_error_in_one_line() -> None:
    assert brief(KeyError("a\nb")) == r"KeyError: 'a\nb'"
    assert brief(ValueError("one\ntwo")) == "ValueError: one"
