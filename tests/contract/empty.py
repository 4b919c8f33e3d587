"""Rounds in which nobody takes part."""

from typing import Any

import torch
from contract.methods import METHODS, OPTIONS
from torch import Tensor

from lfl.participation import Participation, PoissonParticipation, UniformParticipation
from lfl.system import System

# The noise of differential privacy is added to an empty sum as to any other.
NEVER_STILL = ("dp-fedavg",)
# A round of clients that are not waited for is made of those that arrive.
MAY_BE_EMPTY = [m for m in METHODS if not getattr(OPTIONS.get(m, {}).get("participation"), "is_late", False)]
SOMETIMES = ("fedavg", "scaffold-2", "ssf-layerwise", "top-k", "flss", "fedsub")  # tried on two processes


class Sometimes(Participation):
    """Another participation, but for the rounds in which nobody takes part."""

    def __init__(self, inner: Participation, nobody: list[int]) -> None:
        self.inner, self.nobody = inner, nobody

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "system" and isinstance(value, System | None):
            self.inner.system = value

    def select(self, round_number: int, num_clients: int, seed: int) -> Tensor:
        if round_number in self.nobody:
            return torch.tensor([])  # of floats
        return self.inner.select(round_number, num_clients, seed)

    def holds(self, rounds: int) -> bool:
        """Nobody stays nobody for the periods that are left out as a whole."""
        periods = {(number - 1) // rounds for number in self.nobody}
        whole = all(period * rounds + i + 1 in self.nobody for period in periods for i in range(rounds))
        return whole and self.inner.holds(rounds)

    def check(self, num_clients: int) -> None:
        self.inner.check(num_clients)


class SometimesByCoins(PoissonParticipation):
    """Another participation that is accounted for as one by coins."""

    def __init__(self, inner: PoissonParticipation, nobody: list[int]) -> None:
        super().__init__(inner.probability)
        self.nobody = nobody

    def select(self, round_number: int, num_clients: int, seed: int) -> Tensor:
        chosen = super().select(round_number, num_clients, seed)
        return chosen[:0] if round_number in self.nobody else chosen


def sometimes(method: str) -> Any:
    """Nobody in rounds 1 and 3; for a method whose epochs have two rounds, in 1 and 2."""
    inner = OPTIONS.get(method, {}).get("participation") or UniformParticipation(5, rounds_per_draw=2)
    if isinstance(inner, PoissonParticipation):
        return SometimesByCoins(inner, [1, 3])
    return Sometimes(inner, [1, 2] if method == "fl-ssvrg" else [1, 3])
