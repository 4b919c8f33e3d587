"""The cohorts of a round."""

from collections.abc import Callable, Iterator

from torch import Tensor

from lfl.engine.base import LocalEngine
from lfl.round import Cohort, Round


def cohorts_of(
    engine: Callable[[], LocalEngine], round: Round, buffers: Tensor, counters: list[Tensor]
) -> Iterator[Cohort]:
    """Divide ``round.local_clients`` into cohorts, which the caller trains one after another.

    If a cohort did not fit the device's memory, or its steps could not be computed in the engine's way, nothing of it
    has been kept, and the same clients come again: fewer at a time, or for another engine.

    Args:
        engine: the engine of the moment, which may change between cohorts.
        round: the round.
        buffers: the server's floating-point buffers [B].
        counters: the server's integer buffers.
    """
    waiting = round.local_clients
    ordered_for = None
    while len(waiting):
        current = engine()
        if current is not ordered_for:
            waiting, ordered_for = current.in_order(waiting, round), current
        size = current.cohort_size
        yield current.cohort(round, waiting[:size], buffers, counters)
        # The caller has trained the cohort by now.
        if engine() is current and current.cohort_size == size:
            waiting = waiting[size:]
