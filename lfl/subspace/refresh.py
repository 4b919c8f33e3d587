"""The basis of each round, which is drawn again every few rounds."""

import torch

from lfl.client.layout import ParameterLayout
from lfl.subspace.base import Basis, Subspace


class RefreshedBasis:
    """The basis of each round: drawn from the seed, and kept for ``refresh_every`` rounds.

    Args:
        subspace: draws the bases.
        refresh_every: rounds between draws.
        layout: layout of the parameters.
        seed: seed of the run.
        device: device on which the bases are used.
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
        """Number of draws between the first round and this one: 0 in rounds 1 .. ``refresh_every``."""
        return (round_number - 1) // self._refresh_every

    def at(self, round_number: int) -> Basis:
        """The basis of a round."""
        return self.of_period(self.period(round_number))

    def of_period(self, period: int) -> Basis:
        """The basis of a period (see ``period``)."""
        # Drawing is slow, and a function of the address: bases are kept, but not saved in checkpoints. Two of them, as
        # FedSub converts its duals from one period's basis to the next one's.
        if period not in self._drawn:
            self._drawn[period] = self._subspace.draw(
                self._layout, (self._seed, "subspace", period), self._device, self._layout.dtype
            )
            for old in list(self._drawn)[:-2]:
                del self._drawn[old]
        return self._drawn[period]
