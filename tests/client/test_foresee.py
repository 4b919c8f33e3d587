"""Parameters that a hook will train later belong to the model from the start."""

from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn

from lfl.client.foresee import layout_of


class Net(LightningModule):
    def __init__(self, hook: Any) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(2, 2), nn.Linear(2, 1)
        self.body.requires_grad_(False)
        self.rounds: list[int] = []
        self.hook = hook

    def on_train_epoch_start(self) -> None:
        self.rounds.append(self.current_epoch)
        self.hook(self)


def unfreeze(module: Net) -> None:
    if module.current_epoch == 2:
        module.body.weight.requires_grad_(True)
        module.log("unfrozen", 1.0)
        print("unfrozen")


@pytest.mark.parametrize(("rounds", "has_body"), [(2, False), (3, True)])
def test_hooks_are_seen_ahead_without_a_trace(rounds: int, has_body: bool, capsys: pytest.CaptureFixture[str]) -> None:
    module = Net(unfreeze)
    layout = layout_of(module, rounds)
    assert layout.names == (("body.weight",) if has_body else ()) + ("head.weight", "head.bias")
    assert not module.body.weight.requires_grad
    assert module.rounds == []
    assert capsys.readouterr().out == ""


def test_a_hook_that_does_not_run_ends_the_search() -> None:
    def hook(module: Net) -> None:
        if module.current_epoch == 1:
            raise RuntimeError
        module.body.bias.requires_grad_(True)
        torch.rand(1)

    state = torch.get_rng_state()
    assert layout_of(Net(hook), 3).names == ("body.bias", "head.weight", "head.bias")
    torch.set_rng_state(state)


def test_where_all_is_trained_no_hook_runs() -> None:
    module = Net(lambda module: pytest.fail("called"))
    module.body.requires_grad_(True)
    assert layout_of(module, 3).dim == 9
