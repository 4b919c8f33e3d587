"""Items of any structure train as the same numbers in tuples do: in memory and read, on every engine."""

from typing import Any, NamedTuple

import pytest
import torch
from lightning import Trainer
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from lfl.callbacks import ClientEvaluation, Proximal
from lfl.data import (
    DatasetSource,
    FederatedDataModule,
    IIDPartitioner,
    NaturalPartitioner,
    Normalize,
    PadCollate,
    ShardPartitioner,
)
from lfl.data.columns import DataError
from lfl.participation import FullParticipation
from lfl.trainer import FederatedTrainer

COUNT = 46  # of six clients, which have 8 and 7 examples each: batches of 4, 3 and 4


class Named(NamedTuple):
    x: Any
    y: Any


def numbers(i: int) -> tuple[Tensor, int]:
    return torch.randn(3, generator=torch.Generator().manual_seed(i)), i % 3


# From an example to the item, and from a batch back to (x, y).
KINDS: dict[str, tuple[Any, Any]] = {
    "tuple": (lambda x, y: (x, y), lambda b: (b[0], b[1])),
    "dict": (lambda x, y: {"x": x, "labels": y}, lambda b: (b["x"], b["labels"])),
    "nested": (
        lambda x, y: ({"a": x[:2], "b": (x[2:].numpy(),)}, {"labels": torch.tensor([y])}),
        lambda b: (torch.cat([b[0]["a"], b[0]["b"][0]], -1), b[1]["labels"]),
    ),
    "three": (lambda x, y: (x, y, x + 1), lambda b: (b[2] - 1, b[1])),
    "lists": (lambda x, y: {"x": x.tolist(), "labels": y}, lambda b: (b["x"].float(), b["labels"])),
    "named": (lambda x, y: Named(x, y), lambda b: (b.x, b.y)),
    "names": (lambda x, y: {"labels": "abc"[y], "x": x}, lambda b: (b["x"], b["labels"])),
    "strings": (lambda x, y: {"text": f"text {y}", "x": x, "labels": y, "no": None}, lambda b: (b["x"], b["labels"])),
}
TARGETS = {"nested": "1.labels", "dict": "labels", "lists": "labels", "names": "labels", "strings": "labels"}


class Items(Dataset[Any]):
    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, i: int) -> Any:
        return KINDS[self.kind][0](*numbers(i))


class Net(LightningModule):
    """Logistic regression on whatever structure its batches have."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.net = nn.Linear(3, 3)
        self.shapes: set[Any] = set()

    def _loss(self, batch: Any) -> Tensor:
        x, y = KINDS[self.kind][1](batch)
        return F.cross_entropy(self.net(x), y)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self._loss(batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self._loss(batch))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.5)


def fit(root: Any, model: LightningModule, data: FederatedDataModule, **options: Any) -> FederatedTrainer:
    trainer = FederatedTrainer(
        max_rounds=3,
        participation=FullParticipation(),
        default_root_dir=str(root),
        enable_progress_bar=False,
        **options,
    )
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    trainer.fit(model, data)
    return trainer


def data_of(kind: str, in_memory: bool = True, num_workers: int = 0, **options: Any) -> FederatedDataModule:
    source = DatasetSource(Items(kind), Items(kind), 3, in_memory, target=TARGETS.get(kind), **options)
    return FederatedDataModule(source, ShardPartitioner(), num_clients=6, batch_size=4, num_workers=num_workers)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Any:
    trainer = fit(tmp_path_factory.mktemp("tuples"), Net("tuple"), data_of("tuple"), engine="sequential")
    return trainer.server.vector, trainer.summary.last("val_loss")[0]


WAYS = {
    "sequential": {"engine": "sequential"},
    "vectorized": {"engine": "vectorized"},
    "recorded": {"engine": "vectorized", "trace_steps": True},
    "recorded alone": {"engine": "sequential", "trace_steps": True, "callbacks": [Proximal(0.0)]},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("in_memory", [True, False], ids=["memory", "read"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_structure_of_items_changes_no_number(
    kind: str, in_memory: bool, way: str, expected: Any, tmp_path: Any
) -> None:
    trainer = fit(tmp_path, Net(kind), data_of(kind, in_memory), **WAYS[way])
    torch.testing.assert_close(trainer.server.vector, expected[0], rtol=1e-5, atol=1e-6)
    assert trainer.summary.last("val_loss")[0] == pytest.approx(expected[1], rel=1e-5)


@pytest.mark.parametrize("kind", ["nested", "strings"])
def test_workers_and_clients_evaluations_take_them_too(kind: str, expected: Any, tmp_path: Any) -> None:
    trainer = fit(
        tmp_path,
        Net(kind),
        data_of(kind, False, 1),
        engine="sequential",
        callbacks=[ClientEvaluation(every_n_rounds=3, name="each")],
    )
    assert torch.equal(trainer.server.vector, expected[0])
    assert trainer.summary.last("each/val_loss") is not None


@pytest.mark.parametrize("in_memory", [True, False])
def test_lightnings_own_trainer_gets_the_same_batches(in_memory: bool, tmp_path: Any) -> None:
    weights = []
    for kind in ("tuple", "dict"):
        model = Net(kind)
        torch.manual_seed(0)
        nn.init.normal_(model.net.weight)
        nn.init.zeros_(model.net.bias)
        options = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
        trainer = Trainer(max_epochs=2, default_root_dir=str(tmp_path), enable_checkpointing=False, **options)
        trainer.fit(model, data_of(kind, in_memory))
        weights.append(model.net.weight)
    assert torch.equal(*weights)


class Reader(Net):
    """Weighs examples by the lengths of their texts."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        lengths = torch.tensor([len(text) for text in batch["text"]], dtype=torch.float32)
        loss: Tensor = F.cross_entropy(self.net(batch["x"]), batch["labels"], reduction="none") @ lengths
        return loss / 60


def test_a_step_that_reads_strings_is_taken_one_client_at_a_time(tmp_path: Any, expected: Any) -> None:
    with pytest.warns(
        UserWarning, match="is trained one client at a time .* it reads strings of its batch, which only"
    ):
        trainer = fit(tmp_path, Reader("strings"), data_of("strings"))
    # Every text has six letters; a batch of four has the weight 24 / 60, one of three 18 / 60.
    assert trainer.engine.name == "sequential"
    assert not torch.equal(trainer.server.vector, expected[0])
    with pytest.raises(ValueError, match=r"`engine=vectorized` cannot train Reader: .* it reads strings of its batch"):
        fit(tmp_path, Reader("strings"), data_of("strings"), engine="vectorized")


class LateReader(Net):
    """Looks at its strings from round 2 on."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self.trainer.current_epoch >= 1:
            assert all(isinstance(text, str) for text in batch["text"])
        return self._loss(batch)


def test_one_that_begins_to_read_them_is_noticed(tmp_path: Any) -> None:
    with pytest.raises(
        RuntimeError, match=r"cannot train LateReader from round 2 on: .* it reads strings of its batch"
    ):
        fit(tmp_path, LateReader("strings"), data_of("strings"), engine="vectorized")


# -- sequences of different lengths ---------------------------------------------------------------------------------


class Sentences(Dataset[Any]):
    """Sequences of 1 to 9 numbers, whose label is whether their sum is even; three writers."""

    def __init__(self) -> None:
        self.groups = [i % 3 for i in range(48)]

    def __len__(self) -> int:
        return 48

    def __getitem__(self, i: int) -> Any:
        ids = torch.randint(1, 20, (1 + i * 7 % 9,), generator=torch.Generator().manual_seed(i))
        return {"ids": ids, "mask": torch.ones_like(ids), "label": int(ids.sum()) % 2}


class Bag(LightningModule):
    """The mean of embeddings, without padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 4), nn.Linear(4, 2)
        self.widths: list[int] = []

    def forward(self, batch: Any) -> Tensor:
        mask = batch["mask"][..., None].float()
        logits: Tensor = self.head((self.embedding(batch["ids"]) * mask).sum(-2) / mask.sum(-2))
        return logits

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(batch), batch["label"])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", F.cross_entropy(self(batch), batch["label"]))
        self.widths.append(batch["ids"].shape[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.5)


def sentences(collate: Any, in_memory: bool = True, num_workers: int = 0, num_clients: int = 6) -> FederatedDataModule:
    source = DatasetSource(Sentences(), Sentences(), 2, in_memory, target="label", collate_fn=collate)
    partitioner = NaturalPartitioner() if num_clients == 3 else IIDPartitioner()
    options = {"num_clients": num_clients, "batch_size": 3, "num_workers": num_workers}
    return FederatedDataModule(source, partitioner, eval_batch_size=1, **options)


PAD = {"ids": 0, "mask": 0}


def test_padding_changes_no_number_on_any_engine(tmp_path: Any) -> None:
    vectors = [
        fit(tmp_path, Bag(), sentences(PadCollate(PAD, multiple), in_memory, workers), **options).server.vector
        for multiple, in_memory, workers, options in (
            (1, True, 0, {"engine": "sequential"}),
            (1, False, 0, {"engine": "sequential"}),
            (4, False, 1, {"engine": "sequential"}),
            (1, True, 0, {"engine": "vectorized"}),
            (4, False, 0, {"engine": "vectorized", "trace_steps": True}),
        )
    ]
    for vector in vectors[1:]:
        torch.testing.assert_close(vector, vectors[0], rtol=1e-4, atol=1e-6)


def test_multiples_make_few_shapes_and_users_keep_their_sentences(tmp_path: Any) -> None:
    model = Bag()
    data = sentences(PadCollate(PAD, multiple_of=5), num_clients=3)
    fit(tmp_path, model, data)
    assert set(model.widths) == {5, 10}
    assert data.users == ((0,), (1,), (2,))


def masked(items: list[Any]) -> Any:
    """Hides a number of each sentence at random, as for a masked language model."""
    batch = PadCollate(PAD, multiple_of=16)(items)
    batch["ids"] = batch["ids"] * (torch.rand(batch["ids"].shape) < 0.8)
    return batch


def test_a_collate_function_that_draws_does_so_for_each_client(tmp_path: Any) -> None:
    vectors = [
        fit(tmp_path, Bag(), sentences(masked, in_memory, workers), **options).server.vector
        for in_memory, workers, options in (
            (True, 0, {"engine": "sequential"}),
            (False, 1, {"engine": "sequential"}),
            (True, 0, {"engine": "vectorized"}),
            (True, 0, {"engine": "vectorized", "cohort_size": 2}),
        )
    ]
    assert torch.equal(vectors[0], vectors[1])
    for vector in vectors[2:]:
        torch.testing.assert_close(vector, vectors[0], rtol=1e-4, atol=1e-6)


def test_what_a_collate_function_does_wrong_is_said() -> None:
    def ragged(items: list[Any]) -> Any:
        batch = PadCollate(PAD)(items)
        return {**batch, "ids": batch["ids"] * (torch.rand(batch["ids"].shape) < 0.8)}

    def whole(items: list[Any]) -> Any:
        return {**PadCollate(PAD)(items), "longest": torch.tensor(9)}

    data = sentences(ragged)
    data.setup("fit")
    with pytest.raises(DataError, match="draws random numbers, and is therefore called for one client at a time"):
        data.gather(torch.tensor([[0], [1], [2]]), torch.tensor([[0], [1], [2]]))
    with pytest.raises(DataError, match=r"`collate_fn` made a part 'longest' of shape \[\] of 1 items of `train`"):
        sentences(whole).setup("fit")


# -- settings -------------------------------------------------------------------------------------------------------


def test_transforms_are_for_the_input_that_is_named() -> None:
    for in_memory in (True, False):
        source = DatasetSource(Items("dict"), Items("dict"), 3, in_memory, target="labels", input="x")
        data = FederatedDataModule(source, num_clients=2, train_transforms=[Normalize([0.0], [2.0])])
        data.setup("fit")
        torch.testing.assert_close(data.gather(torch.tensor([[5]]))["x"][0, 0], numbers(5)[0] / 2)
        assert data.gather(torch.tensor([[5]]))["labels"].tolist() == [[2]]


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize(
    ("options", "transforms", "message"),
    [
        ({"target": "labels"}, [Normalize([0.0], [2.0])], "items have the parts x, labels: name one of them, a tensor"),
        (
            {"target": "label"},
            [],
            "`target='label'` is no part of the items of `train` of DatasetSource, which have: x",
        ),
        ({}, [], "nobody says which part of the items of `train` of DatasetSource is the class label"),
        ({"target": "labels", "input": "y"}, [Normalize([0.0], [2.0])], "`input='y'` is no part of the items"),
    ],
)
def test_what_is_not_named_is_asked_for(in_memory: bool, options: Any, transforms: Any, message: str) -> None:
    source = DatasetSource(Items("dict"), Items("dict"), 3, in_memory, **options)
    with pytest.raises(DataError) as refused:
        FederatedDataModule(source, num_clients=2, train_transforms=transforms).setup("fit")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_items_without_a_target_are_dealt_by_number() -> None:
    """As of an autoencoder: a bare tensor is a batch, too."""

    class Bare(Items):
        def __getitem__(self, i: int) -> Any:
            return numbers(i)[0]

    for in_memory in (True, False):
        source = DatasetSource(Bare("tuple"), Bare("tuple"), 0, in_memory)
        data = FederatedDataModule(source, IIDPartitioner(), num_clients=2)
        data.setup("fit")
        torch.testing.assert_close(data.gather(torch.tensor([[5, 6]]))[0, 1], numbers(6)[0])
        assert data.client_sizes.tolist() == [23, 23]
