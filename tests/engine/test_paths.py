"""What each way of computing steps needs of a step, and the reasons in words."""

from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import Dataset
from worlds import Stock, equal_data, mlp, ragged_data

from lfl.client.model import ClientModel
from lfl.client.probe import probe
from lfl.client.work import LocalWork
from lfl.data import DatasetSource, FederatedDataModule, IIDPartitioner, PadCollate
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


class Sequences(Dataset[Any]):
    """Of different lengths, 2 to 6."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"x": torch.sin(torch.arange(2.0 + i % 5) + i), "label": i % 2}


class Pooled(LightningModule):
    def __init__(self, masks: bool) -> None:
        super().__init__()
        self.layer, self.masks = nn.Linear(1, 2), masks

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        used = (batch["x"] != 9) if self.masks else torch.ones_like(batch["x"])
        pooled = (batch["x"] * used).sum(1, keepdim=True) / used.sum(1, keepdim=True)
        return nn.functional.cross_entropy(self.layer(pooled), batch["label"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_what_depends_on_padding_is_not_padded_to_the_longest_of_all_clients() -> None:
    source = DatasetSource(Sequences(), Sequences(), 2, target="label", collate_fn=PadCollate({"x": 9}))
    data = FederatedDataModule(source, IIDPartitioner(), num_clients=20, batch_size=2)
    data.setup("fit")
    reasons = []
    for masks in (True, False):
        model = ClientModel(Pooled(masks))
        reasons.append(why_not_vectorized(model, make_trial(model, data, seed=0)))
    assert reasons[0] is None
    assert str(reasons[1]).startswith("its loss depends on how far a batch is padded")


class RarelyLong(Sequences):
    """One item in forty is longer than the others, so that the batches of a trial are of one length as a rule."""

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"x": torch.sin(torch.arange(6.0 if i % 40 == 17 else 2.0) + i), "label": i % 2}


@pytest.mark.parametrize("in_memory", [False, True])
def test_padding_that_few_batches_have_is_sought(in_memory: bool) -> None:
    source = DatasetSource(RarelyLong(), RarelyLong(), 2, in_memory, target="label", collate_fn=PadCollate({"x": 9}))
    data = FederatedDataModule(source, IIDPartitioner(), num_clients=8, batch_size=2)
    data.setup("fit")
    model = ClientModel(Pooled(masks=True))
    trial = make_trial(model, data, seed=0)
    assert {leaf["x"].shape[2] for leaf in trial.alone} == {2, 6}
    assert why_not_vectorized(model, trial) is None
    model = ClientModel(Pooled(masks=False))
    reason = why_not_vectorized(model, make_trial(model, data, seed=0))
    assert str(reason).startswith("its loss depends on how far a batch is padded")


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
        assert (engine.steps.are_recorded, engine.descents) == (path.recording, path.descents)


def test_an_error_in_one_line() -> None:
    assert brief(KeyError("a\nb")) == r"KeyError: 'a\nb'"
    assert brief(ValueError("one\ntwo")) == "ValueError: one"
