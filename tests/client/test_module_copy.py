"""A copy of a module shares nothing that a step can change."""

import collections
import functools
import math
import threading
import weakref
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from lfl.client.module_copy import copy_of


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False)
        self.tied = self.first
        self.kept: list[Tensor] = []
        self.lock = threading.Lock()  # cannot be copied
        self.features: dict[str, Tensor] = {}
        self.first.register_forward_hook(lambda _layer, _inputs, output: self.keep(output))

    def keep(self, output: Tensor) -> None:
        self.features["first"] = output

    def training_step(self, batch: Any) -> Tensor:
        self.kept.append(self.first(batch).sum())
        return self.kept[-1]


def test_a_step_of_the_copy_leaves_no_trace() -> None:
    module = Net()
    twin = copy_of(module)
    twin.training_step(torch.ones(1, 2))
    twin.first.weight.data.zero_()
    assert module.kept == []
    assert module.features == {}  # the hook closes over the module; the copy's, over the copy
    assert "first" in twin.features
    assert bool(module.first.weight.any())
    assert twin.tied is twin.first
    assert twin.lock is module.lock


def test_frozen_numbers_are_its_own() -> None:
    """Also where the module holds a view of their memory, by which it writes."""
    module = Net()
    module.second.weight.data = torch.from_numpy(np.ones((2, 2), np.float32))
    module.view = module.second.weight.numpy()
    twin = copy_of(module)
    twin.second.weight.data.mul_(2)
    assert module.second.weight.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    module.view[:] = 3
    assert module.second.weight.tolist() == [[3.0, 3.0], [3.0, 3.0]]
    assert twin.second.weight.tolist() == [[2.0, 2.0], [2.0, 2.0]]
    twin.second.requires_grad_(True)
    assert not module.second.weight.requires_grad


class Functions(LightningModule):
    """Reaches its parameters by functions that it holds in all sorts of places."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("shift", torch.tensor(10.0))
        scale, shift = self.scale, self.shift

        def doubled() -> Tensor:
            return 2 * self.scale

        self.by_closure = lambda: scale + shift
        self.by_name = {"self": lambda: self.scale, "others": [(lambda: doubled() + 1,)]}
        self.by_partial = functools.partial(torch.mul, self.scale, other=3)
        self.by_default = lambda value=scale: value * 4
        self.lock = threading.Lock()  # cannot be copied; shares nothing else

    def found(self) -> list[float]:
        first, (second,) = self.by_name["self"], self.by_name["others"][0]
        functions = self.by_closure, first, second, self.by_partial, self.by_default
        return [function().item() for function in functions]


def test_functions_of_the_copy_reach_the_copy() -> None:
    module = Functions()
    twin = copy_of(module)
    twin.scale.data.fill_(1.0)
    twin.shift.zero_()
    assert module.found() == [12.0, 2.0, 5.0, 6.0, 8.0]
    assert twin.found() == [1.0, 1.0, 3.0, 3.0, 4.0]
    (gradient,) = torch.autograd.grad(twin.by_name["others"][0][0](), twin.scale)
    assert gradient.item() == 2.0


def test_functions_that_know_nothing_of_the_module_and_circles_stay_what_they_are() -> None:
    def forever() -> Any:
        return forever

    module = Functions()
    module.forever, module.sine, module.circle = forever, [math.sin, abs], []
    module.circle.append(module.circle)
    twin = copy_of(module)
    assert twin.forever is forever
    assert twin.sine == [math.sin, abs]
    assert twin.circle[0] is twin.circle


def test_it_has_the_trainer_and_a_step_that_was_put_there() -> None:
    class Trainer:
        current_epoch = 3

    module = Net()
    trainer = Trainer()
    vars(module)["_trainer"] = trainer
    plain = module.training_step
    module.training_step = lambda batch, plain=plain: 2 * plain(batch) + 0 * module.first.weight.sum()
    twin = copy_of(module)
    assert twin.current_epoch == 3
    loss = twin.training_step(torch.ones(1, 2))
    (gradient,) = torch.autograd.grad(loss, twin.first.bias)
    assert gradient.tolist() == [2.0, 2.0]
    assert module.kept == []


class Pair(NamedTuple):
    first: Any
    second: Any


class Holder:
    """An object of the user's, with functions of its own."""

    def __init__(self, read: Any) -> None:
        self.read = read


class Places(LightningModule):
    """Holds functions that read its weight in all sorts of places, some of which share what they close over."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(1.0))
        read = lambda: self.weight  # noqa: E731
        self.by_object = Holder(read)
        self.by_order = collections.OrderedDict(read=read)
        self.by_pair = Pair(read, 1)
        self.by_keyword = _keyword(self)
        self.by_reference = weakref.ref(self)
        self.kept = kept = {"sum": 0.0}
        count = 0

        def add() -> int:
            nonlocal count
            count += 1
            kept["sum"] += self.weight.item()
            return count

        def counted() -> int:
            return count if add is None else count + 0 * len(kept)

        self.add, self.counted = add, counted
        self.losses = [2 * self.weight]  # computed, so that it cannot be copied as it is
        self.weight.register_hook(lambda gradient: gradient * self.weight.detach())

    def found(self) -> list[float]:
        owner = self.by_reference()
        assert owner is not None
        reads = self.by_object.read, self.by_order["read"], self.by_pair.first, self.by_keyword
        return [read().item() for read in reads] + [owner.weight.item()]


def _keyword(module: Places) -> Any:
    def read(*, module: Places = module) -> Tensor:
        return module.weight

    return read


def test_functions_are_found_wherever_they_are() -> None:
    module = Places()
    twin = copy_of(module)
    twin.weight.data.fill_(3.0)
    assert module.found() == [1.0] * 5
    assert twin.found() == [3.0] * 5
    assert type(twin.by_pair) is Pair
    assert type(twin.by_order) is collections.OrderedDict


def test_functions_share_what_they_shared() -> None:
    module = Places()
    twin = copy_of(module)
    twin.weight.data.fill_(3.0)
    assert [twin.add(), twin.add()] == [1, 2]
    assert (twin.counted(), twin.kept) == (2, {"sum": 6.0})
    assert (module.counted(), module.kept) == (0, {"sum": 0.0})


def test_what_was_computed_is_copied_without_its_graph() -> None:
    module = Places()
    twin = copy_of(module)
    assert twin.losses[0].item() == 2.0
    twin.losses.clear()
    assert len(module.losses) == 1


def test_hooks_of_parameters_are_those_of_the_copy() -> None:
    module = Places()
    twin = copy_of(module)
    twin.weight.data.fill_(3.0)
    assert torch.autograd.grad(twin.weight * 1, twin.weight)[0].item() == 3.0
    assert torch.autograd.grad(module.weight * 1, module.weight)[0].item() == 1.0
