"""A pool of workers that is this process: the seconds in which a process imports everything are spared."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lfl.sweep.workers import Call, Event, Failure


class InlinePool:
    """Makes the calls of `lfl.sweep.workers.WorkerPool` one after another, here."""

    def __init__(self, size: int, prepare: Callable[[int, int], None]) -> None:
        self.is_stopping = False

    def events(self, calls: Sequence[Call], tick: float | None = None) -> Iterator[Event | None]:
        for number, (function, arguments) in enumerate(calls):
            yield Event(number)
            yield Event(number, has_ended=True, result=self._call(function, arguments))

    def results(self, calls: Sequence[Call]) -> Iterator[tuple[int, Any]]:
        for event in self.events(calls):
            if event is not None and event.has_ended:
                yield event.number, event.result

    def close(self) -> None:
        """There is nothing to end."""

    @staticmethod
    def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        try:
            return function(*arguments)
        except ValueError as error:
            return Failure(f"ValueError: {error}")
