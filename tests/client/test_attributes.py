"""What a module holds, as values that tell whether it has changed."""

import types
from collections import Counter, deque
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn

from lfl.client.attributes import attributes_of, comparable, flags_of


class Meter:
    def __init__(self) -> None:
        self.values = [1.0]


CHANGES: dict[str, tuple[Any, Any]] = {
    "list": ([1, [2]], lambda value: value[1].append(3)),
    "dict": ({"a": {"b": 1}}, lambda value: value["a"].update(b=2)),
    "deque": (deque([1]), lambda value: value.append(2)),
    "counter": (Counter("ab"), lambda value: value.update("a")),
    "set": ({1}, lambda value: value.add(2)),
    "tensor": (torch.zeros(2), lambda value: value.add_(1)),
    "tensor in a list": ([torch.zeros(2)], lambda value: value[0].mul_(1)),
    "array": (np.zeros(2), lambda value: value.__setitem__(0, 1)),
    "object": (Meter(), lambda value: value.values.append(2.0)),
    "module in a list": ([nn.Linear(1, 1)], lambda value: value[0].weight.data.add_(1)),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_is_seen_and_no_change_is_none(kind: str) -> None:
    value, change = CHANGES[kind]
    before = comparable(value)
    assert comparable(value) == before
    change(value)
    assert comparable(value) != before


@pytest.mark.parametrize(("one", "other"), [(1.0, 2.0), ("a", "b"), (None, 0), (torch.zeros(1), torch.zeros(1))])
def test_other_values_differ(one: Any, other: Any) -> None:
    assert comparable(one) != comparable(other)
    assert comparable(float("nan")) == comparable(float("nan"))


def test_only_what_the_user_put_there_is_an_attribute() -> None:
    class Net(LightningModule):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.layer = nn.Dropout(0.5)
            self.seen: list[float] = []

    names = dict(attributes_of(Net(3)))
    assert names["seen"] == []
    assert names["layer.p"] == 0.5
    assert names["_hparams"] == {"width": 3}
    assert "_trainer" not in names
    assert "training" not in names


def test_flags_are_modes_and_what_is_trained() -> None:
    module = nn.Sequential(nn.Linear(1, 1), nn.Dropout())
    module[0].bias.requires_grad_(False)
    module[1].eval()
    before = flags_of(module)
    module[0].weight.register_hook(lambda gradient: gradient)
    module[1].register_forward_hook(lambda *_: None)
    flags = flags_of(module)
    assert [name for name, flag in flags.items() if flag is False][:2] == ["1.training", "0.bias.requires_grad"]
    assert [name for name, flag in flags.items() if flag != before[name]] == ["0.weight.hooks", "1.hooks"]


def test_it_sees_what_lies_deep_late_or_in_another_order() -> None:
    def deep() -> Any:
        config = types.SimpleNamespace()
        node = config
        for _ in range(8):
            node.below = types.SimpleNamespace()
            node = node.below
        return config, lambda: setattr(node, "rate", 1.0)

    def late() -> Any:
        rates = [0.1] * 5000
        return rates, lambda: rates.__setitem__(4900, 0.2)

    def permuted() -> Any:
        tensor = torch.arange(6.0)
        return tensor, lambda: tensor.numpy().__setitem__(slice(0, 2), [1.0, 0.0])

    def taught() -> Any:
        teacher = [nn.Sequential(nn.Sequential(nn.Linear(2, 2)))]
        return teacher, lambda: teacher[0][0][0].weight.data.add_(1.0)

    def circle() -> Any:
        one = types.SimpleNamespace(value=1)
        one.other = types.SimpleNamespace(first=one, value=2)
        return one, lambda: setattr(one.other, "value", 3)

    for make in (deep, late, permuted, taught, circle):
        value, change = make()
        before = comparable(value)
        assert comparable(value) == before, make
        change()
        assert comparable(value) != before, make


def test_so_much_as_cannot_be_looked_at_is_compared_as_far_as_it_can() -> None:
    many = [types.SimpleNamespace(number=number) for number in range(50_000)]
    before = comparable(many)
    assert comparable(many) == before
    many[10].number = -1
    assert comparable(many) != before
