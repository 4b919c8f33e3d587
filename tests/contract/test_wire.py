"""What clients know came by the wire: the server's side is poisoned while they work, and the numbers stay."""

from pathlib import Path
from typing import Any

import pytest
import torch
from contract.methods import METHODS, dealt, train_method
from torch import Tensor
from worlds import Bystander, mlp, ragged_data

from lfl.callbacks import FederatedCallback
from lfl.comm import Message
from lfl.federation import Federation


def poisoned(value: Any) -> Any:
    """A nest with NaN in place of every floating-point number."""
    if isinstance(value, dict):
        return {key: poisoned(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(poisoned(item) for item in value)
    if isinstance(value, Tensor) and value.is_floating_point():
        return torch.full_like(value, torch.nan)
    return float("nan") if isinstance(value, float) else value


class Poison(Bystander):
    """Last in a stack: from the download until an update is decoded, nothing that the server knows can be read.

    That is: x, the model's buffers at the server, what callbacks put into their ``state_dict``, and whatever tensor of
    theirs has changed since the run began. Clients have their rows, the message, and settings.
    """

    observes = True

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch = patch

    def on_run_start(self, federation: Federation) -> None:
        super().on_run_start(federation)
        self.others = [callback for callback in self.run.callbacks if callback is not self]
        self.first = [tensors_of(callback) for callback in self.others]
        self.antidote: list[Any] = []
        self.windows = 0
        for callback in self.others:
            self._heal_before(callback, "decode")
        self._heal_before(federation.aggregator, "result")

    def on_download(self, message: Message) -> None:
        server = self.run.server
        self.antidote = [(server.vector.clone(), server.buffers)]
        server.vector.fill_(torch.nan)
        server.buffers = poisoned(server.buffers)
        for callback, first in zip(self.others, self.first, strict=True):
            now = tensors_of(callback)
            changed = {name: t for name, t in now.items() if not same(t, first.get(name))}
            state = callback.state_dict()
            self.antidote.append((callback, state, changed))
            if state:
                callback.load_state_dict(poisoned(state))
            vars(callback).update(poisoned(changed))
        self.windows += 1

    def heal(self) -> None:
        if not self.antidote:
            return
        (vector, buffers), *states = self.antidote
        self.antidote = []
        self.run.server.vector.copy_(vector)
        self.run.server.buffers = buffers
        for callback, state, changed in states:
            if state:
                callback.load_state_dict(state)
            vars(callback).update(changed)

    def _heal_before(self, owner: Any, method: str) -> None:
        original = getattr(owner, method)

        def healed(*args: Any) -> Any:
            self.heal()
            return original(*args)

        self.patch.setattr(owner, method, healed)


def tensors_of(callback: FederatedCallback) -> dict[str, Tensor]:
    return {name: value for name, value in vars(callback).items() if isinstance(value, Tensor)}


def same(a: Tensor, b: Tensor | None) -> bool:
    return b is not None and a.shape == b.shape and torch.equal(a, b)


@pytest.mark.parametrize(("method", "engine"), dealt(METHODS, ("sequential",), ("vectorized",)))
def test_clients_know_what_came_by_the_wire(method: str, engine: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"engine": engine, "cohort_size": 2, "max_rounds": 3}
    plain = train_method(method, tmp_path, mlp(), ragged_data(), **options)
    with pytest.MonkeyPatch.context() as patch:
        poison = Poison(patch)
        patch.setitem(METHODS, method, lambda stack=METHODS[method]: [*stack(), poison])
        found = train_method(method, tmp_path, mlp(), ragged_data(), **options)
    assert poison.windows == 3
    assert torch.equal(found.server.vector, plain.server.vector)
    assert found.ledger.metrics() == plain.ledger.metrics()
    everyone = torch.arange(plain.num_clients)
    for name in plain.store.slots:
        rows = found.store.gather(name, everyone), plain.store.gather(name, everyone)
        torch.testing.assert_close(*rows, rtol=0, atol=0, equal_nan=True)  # nan: never written
