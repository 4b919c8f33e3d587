"""The values that a phase's frozen layers make of a cohort's examples, kept from the first step that sees each.

FedRep trains heads for several epochs on a frozen representation, and fine-tuning does: the representation of an
example is the same in all of them.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from lfl.client.schedule import BatchPlan
from lfl.client.step import Trunk
from lfl.engine.frozen import KEPT_BYTES, FeatureTable, are_close


class PhaseTrunk:
    """Keeps what the frozen layers make of the examples of a cohort in one phase.

    Args:
        indices: positions of each client's examples in the training data [C, n], padded.
        width: number of examples of the batches of which something is kept; 0 for any.

    Attributes:
        mixes: whether an example was found to have other values beside other examples: nothing is kept from then on.
    """

    def __init__(self, indices: Tensor, width: int = 0) -> None:
        self._table, self._width = FeatureTable(indices), width
        self._is_checked = self.mixes = False

    def at(self, plan: BatchPlan) -> Trunk | None:
        """The trunk on one batch; None where nothing is kept of it."""
        # A padded batch repeats examples of its clients, whose values are what they are.
        return partial(self.values, plan) if self._width in (0, plan.indices.shape[1]) else None

    def values(self, plan: BatchPlan, compute: Callable[[], list[Tensor]]) -> list[Tensor]:
        """The values of a batch ``[G, b, ...]``, kept or computed."""
        if self.mixes:
            return compute()
        kept = self._table.find(plan)
        if kept is None:
            return self._keep(plan, compute())
        found = list(kept.values())
        if self._is_checked:
            return found
        # In the first batch that is read again an example stands beside others than it stood before.
        computed = compute()
        self.mixes = not all(are_close(one, other) for one, other in zip(found, computed, strict=True))
        self._is_checked = True
        return computed if self.mixes else found

    def _keep(self, plan: BatchPlan, computed: list[Tensor]) -> list[Tensor]:
        size = sum(value[0, 0].numel() * value.element_size() for value in computed)
        if size * self._table.places <= KEPT_BYTES:
            self._table.keep(plan, {str(place): value for place, value in enumerate(computed)})
        return computed
