"""Tables that a first step makes are found; what depends on the batch, the parameters or the step is not."""

from collections.abc import Callable

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from lfl.client.caches import caches_of, fill
from lfl.client.model import ClientModel

BATCHES = [torch.randn(4, 3, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
KEYS = list(torch.arange(3))


class Lazy(LightningModule):
    """Makes an attribute in its step."""

    def __init__(self, make: Callable[["Lazy", Tensor], None]) -> None:
        super().__init__()
        self.part = nn.Linear(3, 1)
        self.part.table = None
        self.make = make

    def training_step(self, batch: Tensor) -> Tensor:
        self.make(self, batch)
        return (self.part(batch) * self.part.table.sum()).mean()


def lazily(value: Callable[[Lazy, Tensor], Tensor]) -> Callable[[Lazy, Tensor], None]:
    def make(module: Lazy, batch: Tensor) -> None:
        if module.part.table is None:
            module.part.table = value(module, batch)

    return make


def by_length(module: Lazy, batch: Tensor) -> None:
    if module.part.table is None or len(module.part.table) != batch.shape[1]:
        module.part.table = torch.arange(batch.shape[1])


def always(module: Lazy, batch: Tensor) -> None:
    module.part.table = torch.ones(3)


def counting(module: Lazy, batch: Tensor) -> None:
    module.part.table = torch.ones(()) if module.part.table is None else module.part.table.add_(1)


def found(make: Callable[[Lazy, Tensor], None]) -> dict[str, Tensor]:
    return caches_of(ClientModel(Lazy(make)), BATCHES, KEYS)


@pytest.mark.parametrize("make", [lazily(lambda *_: torch.arange(3)), by_length])
def test_a_table_is_found(make: Callable[[Lazy, Tensor], None]) -> None:
    caches = found(make)
    assert caches.keys() == {"part.table"}
    assert torch.equal(caches["part.table"], torch.arange(3))


@pytest.mark.parametrize(
    "make",
    [
        lazily(lambda _, batch: batch.mean()),
        lazily(lambda _, batch: torch.ones(len(batch) + int(batch.sum() > 0))),
        lazily(lambda module, _: module.part.weight.detach().sum()),
        lazily(lambda _, batch: torch.ones(3) * batch[0, 0]),
        lazily(lambda *_: torch.rand(3)),
        always,
        counting,
    ],
    ids=["batch", "size", "parameters", "example", "drawn", "anew", "counter"],
)
def test_what_depends_on_more_is_none(make: Callable[[Lazy, Tensor], None]) -> None:
    assert found(make) == {}


def test_the_module_gets_a_copy() -> None:
    module = Lazy(always)
    table = torch.arange(3)
    fill(module, {"part.table": table})
    assert torch.equal(module.part.table, table)
    assert module.part.table is not table


def test_the_search_leaves_no_trace() -> None:
    module = Lazy(by_length)
    caches_of(ClientModel(module), BATCHES, KEYS)
    assert module.part.table is None
