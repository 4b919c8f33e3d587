"""What a step can reach outside of the module: seen, and put back."""

from typing import Any

import pytest
from torch import nn

from lfl.client.surroundings import Surroundings

COUNT = 0
LOG: list[int] = []
UNRELATED = 0


def count_up() -> None:
    global COUNT
    COUNT += 1


def closure() -> Any:
    calls, seen = 0, {"a": [1]}

    class Net(nn.Module):
        steps = 0
        table = {"a": 1}  # noqa: RUF012

        def training_step(self) -> None:
            nonlocal calls
            calls += 1
            seen["a"].append(2)
            count_up()
            LOG.append(1)
            type(self).steps += 1
            self.table["a"] = 2

        def validation_step(self) -> int:
            return UNRELATED

    return Net()


def test_changes_are_seen_and_put_back() -> None:
    module = closure()
    places = Surroundings(module)
    before, snapshot = places.state(), places.snapshot()
    module.training_step()
    changed = {name for name, value in places.state().items() if before[name] != value}
    assert changed == {"calls", "seen", "COUNT", "LOG", "Net.steps", "Net.table"}
    log = LOG
    places.restore(snapshot)
    assert places.state() == before
    assert (COUNT, LOG, type(module).steps, module.table) == (0, [], 0, {"a": 1})
    assert log is LOG


def test_only_what_the_step_can_reach_matters() -> None:
    module = closure()
    assert "UNRELATED" in Surroundings(module).state()
    assert "UNRELATED" not in Surroundings(module, ["training_step"]).state()
    assert "COUNT" in Surroundings(module, ["training_step"]).state()


@pytest.mark.parametrize("module", [nn.Linear(1, 1), nn.Sequential(nn.Dropout())])
def test_libraries_are_not_looked_at(module: nn.Module) -> None:
    assert Surroundings(module).state() == {}
