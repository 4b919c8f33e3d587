"""Batches by position, from memory and from a data set that stays where it is."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lfl.data import Normalize, TensorData, ToFloat
from lfl.data.examples import ItemData
from lfl.data.stores import DatasetStore, Loader, PartStore, Store, TensorStore, make_store

CPU = torch.device("cpu")


class Tens(Dataset[Any]):
    """Items ``(10 i, i)``, the inputs as bytes of shape [1, 1, 1]."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return torch.full((1, 1, 1), 10 * i, dtype=torch.uint8), i


def in_memory() -> TensorData:
    return TensorData(torch.arange(0, 50, 10, dtype=torch.uint8).view(5, 1, 1, 1), torch.arange(5))


def items() -> ItemData:
    return ItemData(Tens(), "tens", torch.arange(5), has_labels=True)


@pytest.fixture(params=["memory", "items"])
def store(request: pytest.FixtureRequest) -> Store:
    data = in_memory() if request.param == "memory" else items()
    return make_store(data, [ToFloat(), Normalize([10 / 255], [10 / 255])], workers=None, seed=0)


def test_the_store_that_fits() -> None:
    assert type(make_store(in_memory(), [], None, 0)) is TensorStore
    assert type(make_store(items(), [], None, 0)) is DatasetStore


def test_examples_by_position(store: Store) -> None:
    """Byte 10 i, divided by 255 and normalised by 10/255, is i - 1."""
    store.place(CPU, torch.float64)
    indices = torch.tensor([[4, 0, 2], [1, 1, 3]])
    inputs, targets = store.gather(indices, None)
    assert inputs.shape == (2, 3, 1, 1, 1)
    assert inputs.dtype == torch.float64
    torch.testing.assert_close(inputs.flatten(2)[..., 0], indices.double() - 1, rtol=0, atol=1e-6)
    assert torch.equal(targets, indices)


def test_batches_come_in_the_order_of_the_plan(store: Store) -> None:
    plan = [(torch.tensor([[1, 2]]), None), (torch.tensor([[0], [4]]), None)]
    assert [targets.tolist() for _, targets in store.batches(plan)] == [[[1, 2]], [[0], [4]]]


def test_the_last_batch_may_be_short(store: Store) -> None:
    assert len(store) == 5
    assert [targets.tolist() for _, targets in store.in_order(2)] == [[0, 1], [2, 3], [4]]


def test_what_is_not_random_is_applied_once_in_memory() -> None:
    store = TensorStore(in_memory(), [ToFloat()])
    torch.testing.assert_close(store.gather(torch.arange(5), None)[0].flatten(), torch.arange(0, 50, 10) / 255)
    assert not store.pipeline.transforms


def test_a_loader_begins_anew_each_time() -> None:
    loader = Loader(lambda: iter([(torch.zeros(1),)]), 1)
    assert len(loader) == len(list(loader)) == len(list(loader)) == 1


def test_a_part_goes_by_the_positions_of_the_whole(store: Store) -> None:
    """Examples 1, 3 and 4 of the whole; example 0 is padding."""
    positions = torch.tensor([1, 3, 4])
    data = in_memory() if type(store) is TensorStore else items()
    part = PartStore(make_store(data.subset(positions), [ToFloat()], None, 0), positions, total=5)
    part.place(CPU, torch.float64)
    indices = torch.tensor([[3, 1], [4, 0]])
    assert part.gather(indices, None)[1].flatten()[:3].tolist() == [3, 1, 4]
    ((_, labels),) = part.batches([(indices, None)])
    assert labels.flatten()[:3].tolist() == [3, 1, 4]
    assert [batch[1].tolist() for batch in part.in_order(2)] == [[1, 3], [4]]
    assert len(part) == 3
    assert part.is_read == store.is_read == (type(store) is DatasetStore)
