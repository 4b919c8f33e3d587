"""The data module: what the training engine asks of it, what Lightning asks of it, and its messages."""

import json
from typing import Any

import lightning
import pytest
import torch
from jsonargparse import ArgumentParser
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

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
    Partition,
    Partitioner,
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
    with pytest.raises(
        ValueError, match="`num_workers=-1` of FederatedDataModule must be a whole number of at least 0"
    ):
        ramp(num_workers=-1)
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


class Users(Dataset[Any]):
    """Items (number of the user, label); ``counts`` says how many each user has, in order."""

    def __init__(self, counts: dict[Any, int]) -> None:
        self.groups = [user for user, count in counts.items() for _ in range(count)]
        self.numbers = [number for number, count in enumerate(counts.values()) for _ in range(count)]

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([float(self.numbers[i])]), i % 2


def users(train: Any, test: Any, in_memory: bool = True, **settings: Any) -> FederatedDataModule:
    settings = {"partitioner": NaturalPartitioner(), "num_clients": 4, "batch_size": 2, **settings}
    data = FederatedDataModule(DatasetSource(train, test, 2, in_memory), **settings)
    data.setup("fit")
    return data


def own_tests(data: FederatedDataModule) -> list[list[float]]:
    """The numbers of the users on whose examples each client is tested."""
    own = [data.partition.test.client(client) for client in range(data.num_clients)]
    return [data.gather_test(positions)[0].flatten().tolist() for positions in own]


class ByHand(Partitioner):
    """Uses groups, and does not say so."""

    def assign(self, targets: torch.Tensor, groups: Any, num_clients: int, seed: int) -> torch.Tensor:
        return groups.unique(return_inverse=True)[1] % num_clients


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("partitioner", [NaturalPartitioner(), ByHand()])
@pytest.mark.parametrize("ids", [[10, 20, 30, 40], ["ann", "bob", "cy", "dee"], [-7, 0, 5, 10**12]])
def test_clients_are_tested_on_their_own_users(ids, partitioner, in_memory):
    """The third user has no test examples; the test file has another order, and a user who is nobody's."""
    train = Users(dict(zip(ids, (5, 3, 4, 2), strict=True)))
    stranger = "zoe" if isinstance(ids[0], str) else 999
    test = Users({stranger: 3, ids[3]: 2, ids[1]: 1, ids[0]: 4})
    data = users(train, test, in_memory, partitioner=partitioner)
    assert own_tests(data) == [[3.0] * 4, [2.0], [], [1.0] * 2]
    assert data.users == tuple((user,) for user in ids)
    assert len(next(iter(data.test_dataloader()))[1]) == 10  # the server is tested on all


def test_examples_of_users_whom_nobody_trains_on_are_counted(caplog):
    with caplog.at_level("INFO"):
        users(Users({1: 3, 2: 3, 3: 3, 4: 3}), Users({1: 2, 9: 5}))
    assert "5 of 7 test examples belong to no client: no client trains on their groups." in caplog.text


def test_few_clients_share_users():
    data = users(Users(dict.fromkeys("abcdef", 3)), Users(dict.fromkeys("abcdef", 2)), num_clients=2)
    assert sorted(user for own in data.users for user in own) == list("abcdef")
    for own, tested in zip(data.users, own_tests(data), strict=True):
        assert sorted({"abcdef"[int(number)] for number in tested}) == list(own)
        assert len(tested) == 6


def test_without_groups_in_the_test_set_the_mix_of_classes_decides():
    with pytest.warns(UserWarning, match="the test set has no `groups`: clients are tested on their mix of classes"):
        data = users(Users({1: 4, 2: 4, 3: 4, 4: 4}), TensorDataset(torch.zeros(8, 1), torch.arange(8) % 2))
    assert data.client_test_sizes.tolist() == [2, 2, 2, 2]


def test_other_partitioners_leave_groups_alone():
    data = users(Users({1: 8, 2: 8}), Users({1: 8}), partitioner=IIDPartitioner(), num_clients=2)
    assert data.users is None
    assert data.client_test_sizes.tolist() == [4, 4]


def test_users_and_classes_are_in_the_saved_partition(tmp_path):
    train = Users(dict.fromkeys("badc", 3))
    train.targets = ["no", "yes"] * 6
    data = users(train, Users({"a": 2}))
    assert (data.users, data.classes) == ((("a",), ("b",), ("c",), ("d",)), ("no", "yes"))
    data.partition.save(tmp_path / "partition.pt")
    saved = Partition.load(tmp_path / "partition.pt")
    assert (saved.users, saved.classes) == (data.users, data.classes)
    again = users(train, Users({"a": 2}), partition_path=str(tmp_path / "partition.pt"))
    assert again.partition.fingerprint() == data.partition.fingerprint()
    train.targets = ["maybe", "yes"] * 6
    with pytest.raises(ValueError, match=r"is for the classes \('no', 'yes'\), the data has \('maybe', 'yes'\)"):
        users(train, Users({"a": 2}), partition_path=str(tmp_path / "partition.pt"))


def test_part_of_the_examples():
    data = ramp(num_examples=20, val_fraction=0.5, seed=3)
    dealt = data.partition.train.indices
    assert data.client_sizes.tolist() == [4] * 5
    assert data.client_test_sizes.sum() == 16
    held_out = torch.cat([x[:, 0, 0, 0] for x, _ in data.val_dataloader()]).long()
    assert len({*dealt.tolist(), *held_out.tolist()}) == 50
    assert ramp(num_examples=20, val_fraction=0.5, seed=3).partition.fingerprint() == data.partition.fingerprint()
    assert not torch.equal(ramp(num_examples=20, val_fraction=0.5, seed=4).partition.train.indices, dealt)
    with pytest.raises(ValueError, match="`num_examples=31` but there are 30 training examples: lower it"):
        ramp(num_examples=31, val_fraction=0.5)
    with pytest.raises(ValueError, match="`num_examples=0` of FederatedDataModule must be at least 1"):
        ramp(num_examples=0)
    with pytest.raises(ValueError, match="`num_examples=5` and `partition_path` both say which examples to use"):
        ramp(num_examples=5, partition_path="p.json")


def test_a_file_may_leave_examples_out_and_the_test_set_to_us(tmp_path, caplog):
    path = tmp_path / "p.json"
    path.write_text(json.dumps({str(client): [client, client + 5] for client in range(5)}))
    with caplog.at_level("INFO"):
        data = ramp(partition_path=str(path))
    assert "50 of 60 training examples belong to no client: `partition_path=" in caplog.text
    assert data.client_sizes.tolist() == [2] * 5
    assert data.client_test_sizes.sum() == 16
    path.write_text(json.dumps({"train": [[0], [1], [2], [3], []], "test": [[7], [], [], [], [8]]}))
    data = ramp(partition_path=str(path))
    assert data.client_sizes.tolist() == [1, 1, 1, 1, 0]
    assert data.client_test_sizes.tolist() == [1, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ([[0], [1], [2], [3], [60]], "training example 60 of client 4 does not exist: there are 60, counted from 0"),
        ([[0], [1], [2], [3], [0]], "training example 0 is dealt twice, to client 0 and to client 4"),
        ([[0], [1]], "is for 2 clients, but `num_clients=5`: set it to 2"),
        ({"train": [[0]] + [[]] * 4, "test": [[16]] + [[]] * 4}, "test example 16 of client 0 does not exist"),
    ],
)
def test_files_that_do_not_fit_the_data(tmp_path, lists, message):
    path = tmp_path / "p.json"
    path.write_text(json.dumps(lists))
    with pytest.raises(ValueError, match=message) as refused:
        ramp(partition_path=str(path))
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_natural_partition_of_a_file_tests_users_too(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("\n".join(f"{i // 3},{i}" for i in range(12)))
    data = users(Users(dict.fromkeys("abcd", 3)), Users({"d": 2, "b": 1}), partition_path=str(path))
    assert own_tests(data) == [[], [1.0], [], [0.0, 0.0]]
    assert data.users == (("a",), ("b",), ("c",), ("d",))


def test_items_that_are_read_get_keys():
    assert ramp(in_memory=False).has_random_transforms
    assert not ramp().has_random_transforms


@pytest.mark.parametrize("in_memory", [True, False])
def test_each_client_is_tested_on_a_share_of_its_own_examples(in_memory):
    """60 training and 16 test examples merged: 5 clients of 15 or 16, of which 4 are for testing."""
    data = ramp(in_memory, client_test_fraction=0.25)
    train, test = data.partition.train, data.partition.test
    assert sorted(torch.cat([train.indices, test.indices]).tolist()) == list(range(76))
    assert data.client_test_sizes.tolist() == [4] * 5
    assert sorted(data.client_sizes.tolist()) == [11, 11, 11, 11, 12]
    pixels = torch.cat([torch.arange(60.0), torch.arange(16.0)])  # by position in the merged set
    for client in range(5):
        for sets, gather in ((train, data.gather), (test, data.gather_test)):
            x, y = gather(sets.client(client)[None])
            assert torch.equal(x[0, :, 0, 0, 0], pixels[sets.client(client)])
            assert torch.equal(y[0], pixels[sets.client(client)].long() % 4)
    # The server's test set, and the pool of central training, are those of all clients.
    for loader, indices in ((data.test_dataloader(), test.indices), (data.train_dataloader(), train.indices)):
        seen = torch.cat([x[:, 0, 0, 0] for x, _ in loader])
        assert torch.equal(seen.sort().values, pixels[indices].sort().values)
    assert len(data.val_dataloader()) == len(data.test_dataloader()) == 1
    again = ramp(in_memory, client_test_fraction=0.25)
    assert again.partition.fingerprint() == data.partition.fingerprint()
    assert ramp(in_memory, client_test_fraction=0.25, seed=1).partition.fingerprint() != data.partition.fingerprint()


def test_a_split_of_the_merged_set_leaves_validation_out():
    data = ramp(client_test_fraction=0.5, val_fraction=0.25)
    held_out = sum(len(x) for x, _ in data.val_dataloader())
    assert held_out == 19
    assert len(data.partition.train.indices) + len(data.partition.test.indices) == 76 - 19


def test_a_partition_of_the_merged_set_is_saved_and_loaded(tmp_path):
    data = ramp(client_test_fraction=0.25, seed=3)
    data.partition.save(tmp_path / "partition.pt")
    again = ramp(client_test_fraction=0.25, partition_path=str(tmp_path / "partition.pt"))
    assert again.partition.fingerprint() == data.partition.fingerprint()
    assert torch.equal(again.gather_test(again.partition.test.client(2)[None])[0], data.gather_test(
        data.partition.test.client(2)[None])[0])  # fmt: skip
    with pytest.raises(ValueError, match="does not exist: there are 60, counted from 0"):
        ramp(partition_path=str(tmp_path / "partition.pt"))
    path = tmp_path / "p.json"
    path.write_text(json.dumps([[0, 1, 2, 3], [70], [71], [72], [73]]))  # the split is drawn here
    assert ramp(client_test_fraction=0.25, partition_path=str(path)).client_test_sizes.tolist() == [1, 0, 0, 0, 0]
    path.write_text(json.dumps({"train": [[0], [1], [2], [3], [4]], "test": [[70], [1], [], [], []]}))
    with pytest.raises(ValueError, match="merged example 1 is dealt twice"):
        ramp(client_test_fraction=0.25, partition_path=str(path))


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5])
def test_a_share_to_test_on_is_between_nothing_and_all(fraction):
    with pytest.raises(ValueError, match=f"`client_test_fraction={fraction}` must be greater than 0 and less than 1"):
        ramp(client_test_fraction=fraction)
    with pytest.raises(ValueError, match=r"`client_test_fraction=0.01` leaves no client an example to be tested on"):
        ramp(client_test_fraction=0.01)
