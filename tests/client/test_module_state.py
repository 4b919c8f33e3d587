"""Flags and attributes that hooks have changed, in a checkpoint."""

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn

from lfl.client.module_state import ModuleState


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(2, 2), nn.Dropout(0.0)
        self.noise, self.history, self.first = 0.0, [], "same"
        self.table = {"a": torch.zeros(2)}


def changed() -> tuple[Net, ModuleState]:
    module = Net()
    state = ModuleState(module)
    module.body.weight.requires_grad_(False)
    module.head.eval()
    module.head.p = 0.5
    module.noise = 0.1
    module.history.append((1, torch.ones(1, requires_grad=True) * 2))
    module.table["a"] += 3
    return module, state


def test_round_trip() -> None:
    _, state = changed()
    saved = state.state_dict()
    assert set(saved["attributes"]) == {"head.p", "noise", "history", "table"}
    module = Net()
    ModuleState(module).load_state_dict(saved)
    assert not module.body.weight.requires_grad
    assert module.body.bias.requires_grad
    assert not module.head.training
    assert (module.head.p, module.noise, module.first) == (0.5, 0.1, "same")
    assert module.history == [(1, torch.tensor([2.0]))]
    assert module.table["a"].tolist() == [3.0, 3.0]


def test_what_is_saved_does_not_change_later() -> None:
    module, state = changed()
    saved = state.state_dict()
    module.table["a"] += 1
    module.history.append(5)
    assert saved["attributes"]["table"]["a"].tolist() == [3.0, 3.0]
    assert len(saved["attributes"]["history"]) == 1


def test_what_cannot_be_saved_is_warned_of_once() -> None:
    module, state = changed()
    module.noise = object()
    with pytest.warns(UserWarning, match="do not hold the attribute 'noise' of Net"):
        assert "noise" not in state.state_dict()["attributes"]
    state.state_dict()
