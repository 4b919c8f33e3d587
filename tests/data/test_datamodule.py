"""The data module: what the training engine asks of it, what Lightning asks of it, and its messages."""

from typing import Any

import lightning
import pytest
import torch
from jsonargparse import ArgumentParser
from torch.nn import functional as F
from torch.utils.data import Dataset

from lfl.data import (
    MNIST5000,
    DatasetSource,
    Digits,
    DirichletPartitioner,
    FederatedData,
    FederatedDataModule,
    IIDPartitioner,
    NaturalPartitioner,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    Source,
    TensorData,
)
from lfl.randomness import client_keys, fold

CPU = torch.device("cpu")


class Ramp(Dataset[Any]):
    """Images whose pixels are their position, labels i modulo 4, natural groups of ten."""

    def __init__(self, length: int = 60) -> None:
        self.targets = torch.arange(length) % 4
        self.groups = torch.arange(length) // 10

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        return i + torch.arange(9.0).reshape(1, 3, 3) / 10, self.targets[i]


def ramp(in_memory: bool = True, **settings: Any) -> FederatedDataModule:
    source = DatasetSource(Ramp(), Ramp(16), num_classes=4, in_memory=in_memory)
    settings = {"partitioner": IIDPartitioner(), "num_clients": 5, "batch_size": 4, **settings}
    data = FederatedDataModule(source, **settings)
    data.prepare_data()
    data.setup("fit")
    return data


@pytest.mark.parametrize("in_memory", [True, False])
def test_gather_equals_indexing(in_memory):
    data = ramp(in_memory)
    indices = torch.tensor([[3, 59, 0], [7, 7, 12]])
    x, y = data.gather(indices)
    assert x.shape == (2, 3, 1, 3, 3)
    for c in range(2):
        for b in range(3):
            assert torch.equal(x[c, b], Ramp()[int(indices[c, b])][0])
    assert torch.equal(y, indices % 4)
    x, y = data.gather_test(torch.tensor([[15]]))
    assert torch.equal(x[0, 0], Ramp()[15][0])
    assert y.tolist() == [[3]]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_data_read_by_workers_equals_data_in_memory(num_workers):
    transforms = [Normalize([2.0], [3.0]), RandomCrop(1), RandomHorizontalFlip()]
    resident, read = (ramp(m, train_transforms=transforms, num_workers=num_workers) for m in (True, False))
    shapes = ((2, 3), (1, 5), (4, 1))
    indices = [torch.arange(s[0] * s[1]).reshape(s) for s in shapes]
    plan = [(i, client_keys(i, 9)) for i in indices]
    pairs = list(zip(resident.batches(iter(plan)), read.batches(iter(plan)), strict=True))
    assert [y.shape for (_, y), _ in pairs] == list(shapes)
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    torch.testing.assert_close(list(read.val_dataloader()), list(resident.val_dataloader()), rtol=0, atol=0)


def test_augmentation_depends_on_the_keys_alone():
    data = ramp(train_transforms=[RandomCrop(2), RandomHorizontalFlip()])
    assert data.has_random_transforms
    indices = torch.arange(12).reshape(3, 4)
    keys = client_keys(indices, 1)
    whole = data.gather(indices, keys)[0]
    assert torch.equal(torch.cat([data.gather(indices[c : c + 1], keys[c : c + 1])[0] for c in range(3)]), whole)
    assert torch.equal(data.gather(indices.T, keys.T)[0].transpose(0, 1), whole)
    assert not torch.equal(data.gather(indices, fold(keys, 1))[0], whole)
    with pytest.raises(ValueError, match=r"RandomCrop.* is random: the batch needs one key for each example"):
        data.gather(indices)


def test_deterministic_transforms_are_applied_once_and_testing_has_its_own():
    data = ramp(train_transforms=[Normalize([1.0], [2.0])], test_transforms=[Normalize([0.0], [4.0])])
    assert not data.has_random_transforms
    assert torch.equal(data.gather(torch.tensor([[5]]))[0][0, 0], (Ramp()[5][0] - 1) / 2)
    assert torch.equal(data.gather_test(torch.tensor([[5]]))[0][0, 0], Ramp()[5][0] / 4)
    with pytest.raises(ValueError, match=r"`test_transforms` holds RandomCrop\(padding=4, fill=0.0\), which is random"):
        ramp(test_transforms=[RandomCrop()])


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("transforms", [[], [RandomHorizontalFlip()]])
def test_place_sets_the_type_of_floating_point_numbers(in_memory, transforms):
    data = ramp(in_memory, train_transforms=transforms)
    for _ in range(2):
        data.place(CPU, torch.float64)
    x, y = data.gather(torch.tensor([[1, 2]]), client_keys(torch.tensor([[1, 2]]), 0))
    assert (x.dtype, y.dtype) == (torch.float64, torch.int64)
    assert next(iter(data.test_dataloader()))[0].dtype == torch.float64


@pytest.mark.parametrize("in_memory", [True, False])
def test_held_out_examples_are_nobodys(in_memory):
    data = ramp(in_memory, val_fraction=0.25)
    held_out = torch.cat([x[:, 0, 0, 0] for x, _ in data.val_dataloader()]).long()
    assert len(held_out) == 15
    everything = torch.cat([held_out, data.partition.train.indices]).sort().values
    assert torch.equal(everything, torch.arange(60))
    assert len(next(iter(data.test_dataloader()))[1]) == 16
    x, _ = data.gather(data.partition.client(0))
    assert torch.equal(x[:, 0, 0, 0].long(), data.partition.client(0))


def test_without_a_held_out_part_validation_uses_the_test_set():
    data = ramp(eval_batch_size=6)
    assert [len(y) for _, y in data.val_dataloader()] == [6, 6, 4]
    assert len(data.val_dataloader()) == len(data.predict_dataloader()) == 3


def test_client_access():
    data = ramp(num_clients=7)
    assert isinstance(data, FederatedData)
    assert data.client_sizes.sum() == 60
    assert data.client_test_sizes.sum() == 16
    indices, sizes = data.client_indices(torch.tensor([6, 0]))
    assert indices[0, : sizes[0]].tolist() == data.partition.client(6).tolist()
    tested, counts = data.client_test_indices(torch.tensor([6, 0]))
    assert tested[1, : counts[1]].tolist() == data.partition.test.client(0).tolist()


def test_natural_groups_reach_the_partitioner():
    data = ramp(partitioner=NaturalPartitioner(), num_clients=6)
    assert data.partition.client(2).tolist() == list(range(20, 30))


def test_describe_is_for_the_log():
    facts = ramp(num_clients=7).describe()
    assert facts.pop("partition")
    assert facts == {
        "data": "DatasetSource(train=Ramp, test=Ramp, in_memory=True)",
        "clients": 7,
        "train_examples": 60,
        "test_examples": 16,
        "smallest_client": 8,
        "median_client": 9,
        "largest_client": 9,
        "partitioner": "IIDPartitioner()",
    }


def test_a_saved_partition_is_used(tmp_path):
    path = str(tmp_path / "partition.pt")
    ramp(seed=3).partition.save(path)
    assert ramp(partition_path=path).partition.fingerprint() == ramp(seed=3).partition.fingerprint()
    with pytest.raises(ValueError, match="is for 5 clients, but `num_clients=6`: set it to 5"):
        ramp(partition_path=path, num_clients=6)
    with pytest.raises(
        ValueError, match="deals 60 training examples, but 15 of them are not among the 45 that `source`"
    ):
        ramp(partition_path=path, val_fraction=0.25)


def test_errors():
    with pytest.raises(ValueError, match="`num_clients=61` but there are 60 training examples"):
        ramp(num_clients=61)
    with pytest.raises(ValueError, match="`batch_size=0` of FederatedDataModule must be at least 1"):
        ramp(batch_size=0)
    with pytest.raises(ValueError, match=r"`val_fraction=1\.0` must be at least 0 and less than 1"):
        ramp(val_fraction=1.0)
    with pytest.raises(ValueError, match=r"`val_fraction=0\.001` of 60 training examples is 0 examples"):
        ramp(val_fraction=0.001)
    with pytest.raises(RuntimeError, match="has no data yet: call `setup` first"):
        FederatedDataModule().gather(torch.tensor([[0]]))


def test_missing_data_is_told_before_any_work():
    class Missing(Source):
        num_classes = 2

        def check(self):
            raise FileNotFoundError("not here")

        def load(self):
            raise AssertionError("loaded")

    for start in (lambda d: d.prepare_data(), lambda d: d.setup("fit")):
        with pytest.raises(FileNotFoundError, match="not here"):
            start(FederatedDataModule(Missing()))


def test_pooled_training_sees_each_example_once_in_a_new_order_each_epoch():
    loader = ramp(val_fraction=0.1).train_dataloader()
    first, second = (torch.cat([x[:, 0, 0, 0] for x, _ in loader]).long() for _ in range(2))
    assert len(loader) == 14
    assert torch.equal(first.sort().values, second.sort().values)
    assert len(first) == 54
    assert not torch.equal(first, second)


@pytest.mark.parametrize("world_size", [2, 7])
def test_ranks_of_a_central_trainer_share_an_epoch(world_size):
    class OneOfMany(lightning.Trainer):
        """What the data module asks of a trainer in its first epoch, without the processes."""

        current_epoch, world_size, global_rank = 0, 0, 0

        def __init__(self, rank):
            type(self).global_rank, type(self).world_size = rank, world_size

    data, seen = ramp(), []
    for rank in range(world_size):
        data.trainer = OneOfMany(rank)
        seen.append(torch.cat([x[:, 0, 0, 0] for x, _ in data.train_dataloader()]).long())
        assert len(list(data.train_dataloader())) == len(data.train_dataloader())
    assert {len(share) for share in seen} == {-(-60 // world_size)}
    assert torch.equal(torch.cat(seen).unique(), torch.arange(60))


class Central(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 10)
        self.seen: list[torch.Tensor] = []

    def training_step(self, batch, batch_idx):
        self.seen.append(batch[0].flatten(1).sum(1))
        return F.cross_entropy(self.linear(batch[0].flatten(1)), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("val/loss", F.cross_entropy(self.linear(batch[0].flatten(1)), batch[1]))

    def test_step(self, batch, batch_idx):
        self.log("test/acc", (self.linear(batch[0].flatten(1)).argmax(1) == batch[1]).float().mean())

    def predict_step(self, batch, batch_idx):
        return self.linear(batch[0].flatten(1)).argmax(1)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


def central_trainer(tmp_path, **settings):
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    return lightning.Trainer(accelerator="cpu", default_root_dir=tmp_path, **quiet, **settings)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # Lightning 2.6 with torch 2.14
@pytest.mark.parametrize("transforms", [[], [RandomCrop(1)]])
def test_the_same_module_trains_centrally(tmp_path, transforms):
    data = FederatedDataModule(Digits(), batch_size=32, train_transforms=transforms)
    model, trainer = Central(), central_trainer(tmp_path, max_epochs=2)
    trainer.fit(model, datamodule=data)
    assert trainer.test(model, datamodule=data, verbose=False)[0]["test/acc"] > 0.7
    assert sum(map(len, trainer.predict(model, datamodule=data))) == len(data.source.load()[1])
    assert len(model.seen) == 2 * len(data.train_dataloader())


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # Lightning 2.6 with torch 2.14
def test_fast_dev_run(tmp_path):
    central_trainer(tmp_path, fast_dev_run=True).fit(Central(), datamodule=FederatedDataModule(Digits()))


def test_defaults_are_real_objects_from_python():
    data = FederatedDataModule()
    assert type(data.source) is MNIST5000
    assert type(data.partitioner) is DirichletPartitioner
    assert (data.source.test_fraction, data.partitioner.alpha) == (0.2, 0.3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # jsonargparse renamed a method
def test_defaults_can_be_printed_and_changed_in_part_on_the_command_line():
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(FederatedData, "data")
    arguments = ["--data=FederatedDataModule", "--data.partitioner.alpha=0.1", "--data.source=Digits"]
    arguments += ["--data.train_transforms+=RandomCrop", "--data.train_transforms.padding=2"]
    config = parser.parse_args(arguments)
    assert "class_path: lfl.data.MNIST5000" in parser.dump(parser.parse_args(["--data=FederatedDataModule"]))
    data = parser.instantiate_classes(config).data
    assert repr(data.source) == "Digits(test_fraction=0.2)"
    assert data.partitioner.alpha == 0.1
    assert repr(data.train_transforms) == "[RandomCrop(padding=2, fill=0.0)]"


def test_regression_data_is_welcome():
    class Line(Source):
        num_classes = 0

        def load(self):
            x = torch.arange(20.0).reshape(-1, 1)
            return TensorData(x, 2 * x), TensorData(x[:5], 2 * x[:5])

    data = FederatedDataModule(Line(), IIDPartitioner(), num_clients=4)
    data.setup()
    data.place(CPU, torch.float64)
    x, y = data.gather(data.client_indices(torch.arange(4))[0])
    assert torch.equal(y, 2 * x)
    assert y.dtype == torch.float64


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # jsonargparse renamed a method
def test_a_dataset_can_be_named_in_a_config():
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(FederatedData, "data")
    named = {"class_path": f"{__name__}.Ramp", "init_args": {"length": 20}}
    source = {"class_path": "DatasetSource", "init_args": {"train": named, "test": named, "num_classes": 4}}
    config = {"data": {"class_path": "FederatedDataModule", "init_args": {"source": source, "num_clients": 2}}}
    data = parser.instantiate_classes(parser.parse_object(config)).data
    data.setup()
    assert data.client_sizes.sum() == 20
    assert data.num_classes == 4
