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
    for waiting in _groups(round, engine().has_loss_terms):
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


def _groups(round: Round, has_loss_terms: bool) -> list[Tensor]:
    """Those of ``round.local_clients`` [n] that may be trained together.

    Clients that were sent x in different rounds start from different rows, and may be. But what else they were sent,
    and what terms of the loss read of x, is one for all clients of a cohort.
    """
    clients = round.local_clients
    if round.sent_in is None:
        return [clients]
    sent_to = round.sent_to(clients)
    numbers: list[int] = sent_to.unique().tolist()
    if not has_loss_terms and all(len(round.sent(number).contents) == 1 for number in numbers):
        return [clients]
    return [clients[sent_to == number] for number in numbers]
