"""When a basis is drawn anew."""

import torch

from lfl.client.layout import ParameterLayout
from lfl.subspace.base import Basis, Subspace


class RefreshedBasis:
    """The basis of each round: drawn from the seed, and kept for ``refresh_every`` rounds.

    Args:
        subspace: how to draw.
        refresh_every: rounds between draws.
        layout: of the parameters.
        seed: of the run.
        device: where it is used.
    """

    def __init__(
        self, subspace: Subspace, refresh_every: int, layout: ParameterLayout, seed: int, device: torch.device
    ) -> None:
        self._subspace = subspace
        self._refresh_every = refresh_every
        self._layout = layout
        self._seed = seed
        self._device = device
        self._drawn: dict[int, Basis] = {}

    def period(self, round_number: int) -> int:
        """The number of refreshes before a round."""
        return (round_number - 1) // self._refresh_every

    def at(self, round_number: int) -> Basis:
        """The basis of a round."""
        return self.of_period(self.period(round_number))

    def of_period(self, period: int) -> Basis:
        """The basis after ``period`` refreshes; the last two drawn are kept."""
        if period not in self._drawn:
            self._drawn[period] = self._subspace.draw(
                self._layout, (self._seed, "subspace", period), self._device, self._layout.dtype
            )
            for old in list(self._drawn)[:-2]:
                del self._drawn[old]
        return self._drawn[period]
