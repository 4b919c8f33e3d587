"""Aggregators: from the clients' updates and weights to one update."""

import copy
from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_choice

_TRIAL_CLIENTS = 6
Weighting = Literal["examples", "uniform"]
WeightingChoice = Literal["auto", "examples", "uniform"]


class Aggregator(ABC):
    """A running aggregate over the clients of a round: rows are added as they arrive and never kept.

    The weighting is part of the objective. ``examples`` with uniform sampling of clients minimises the mean over all
    examples; ``uniform`` the mean over clients, which is what drift correction (SCAFFOLD and its kin) is stated for.

    Args:
        weighting: weigh clients by their numbers of training examples (``examples``), or all alike (``uniform``).
            ``auto`` is what the stack of callbacks is stated for, ``examples`` where none of them says.

    Attributes:
        weighting: the same; in a run no longer ``auto``, but what was taken.
        sums: named sums over the round's clients; over all processes when ``result`` is called. An aggregator that
            keeps anything else works on one process, and is refused on several; what needs all rows at once, such as a
            median, derives from ``GatheringAggregator``.
        decoded: whether it must be given the clients' updates as the server understands them. Else those that linear
            codecs encoded are aggregated as they are, and decoded once, which is right for means. Where clients train
            coordinates, updates are coordinates.
    """

    decoded: bool = False

    def __init__(self, weighting: WeightingChoice = "auto") -> None:
        check_choice("", "weighting", weighting, ("auto", "examples", "uniform"))
        self.weighting = weighting
        self._asked = weighting
        self.sums: dict[str, Tensor] = {}

    @property
    def asked_weighting(self) -> WeightingChoice:
        """The argument ``weighting``, which may be ``auto``."""
        return self._asked

    def settle(self, stated: Weighting | None) -> None:
        """Take the weighting of a run: the one that was asked for or, with ``auto``, what the stack is stated for.

        Args:
            stated: what the callbacks of the stack are stated for; None where none of them says.
        """
        self.weighting = (stated or "examples") if self._asked == "auto" else self._asked

    def weights(self, num_examples: Tensor) -> Tensor:
        """Weights of a cohort [C], float64, not normalised."""
        return torch.ones(len(num_examples)).double() if self.weighting == "uniform" else num_examples.double()

    def start(self) -> None:
        """Begin a round: forget the sums of the last one."""
        self.sums = {}

    def accumulate(self, name: str, value: Tensor) -> None:
        """Add ``value`` to a named float64 sum.

        Sums are the only state of an aggregator, so that the loop can add up those of several processes.
        """
        if name in self.sums:
            self.sums[name] += value
        else:
            self.sums[name] = value.to(torch.float64, copy=True)  # the next one is added in place

    def add_to_mean(self, rows: Tensor, weights: Tensor) -> None:
        """Add updates [C, n] with weights [C] to the sums that ``mean`` needs."""
        self.accumulate("weight", weights.sum().to(rows.device))
        if len(rows) > 1:
            self.accumulate("update", weights.to(rows.device) @ rows.double())
            return
        # One client: `add_` converts while it adds, and saves a float64 copy of the row (D numbers a client).
        if "update" not in self.sums:
            self.sums["update"] = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
        self.sums["update"].add_(rows[0], alpha=float(weights[0]))

    def mean(self) -> Tensor:
        """The weighted mean [n], float64, of what ``add_to_mean`` was given."""
        return self.sums["update"] / self.sums["weight"]

    def metrics(self) -> dict[str, Tensor]:
        """Numbers of the round that are logged, by name; asked for after ``result``."""
        return {}

    def check(self, num_participants: int | None) -> None:
        """Raise ValueError if a setting does not fit the participants of a round (M); None where M changes."""
        del num_participants

    def on_arrival(self, rows: Tensor, staleness: Tensor, start: Tensor, server: Tensor) -> Tensor:
        """Return the updates of a cohort as they count for the server now: a new tensor [C, n], or ``rows`` itself.

        Args:
            rows: updates [C, n]: where the clients moved from what they were sent.
            staleness: steps that the server has taken since then [C] (int64, on the CPU); 0 for clients of this round.
            start: what they were sent of x, rows [C, D].
            server: x now [D].
        """
        del staleness, start, server
        return rows

    @abstractmethod
    def add(self, rows: Tensor, weights: Tensor) -> None:
        """Add the updates of a cohort [C, n] with their weights [C] (float64)."""

    def add_clients(self, rows: Tensor, weights: Tensor, places: Tensor, num_participants: int) -> None:
        """Add the updates of a cohort, and say of whom they are; for a sum that does not matter, and ``add`` does.

        Args:
            rows: updates [C, n].
            weights: their weights [C] (float64).
            places: the clients' positions [C] among the round's participants, who are in ascending order of id.
            num_participants: number of the round's participants (M).
        """
        del places, num_participants
        self.add(rows, weights)

    @abstractmethod
    def result(self) -> Tensor:
        """The aggregate [n], float64."""


class MeanAggregator(Aggregator):
    """The weighted mean: ``sum_i w_i delta_i`` with ``w_i`` normalised over the round's clients, in float64."""

    @override
    def add(self, rows: Tensor, weights: Tensor) -> None:
        self.add_to_mean(rows, weights)

    @override
    def result(self) -> Tensor:
        return self.mean()


def check_adds_up(aggregator: Aggregator, dim: int) -> None:
    """Check that an aggregate follows from ``sums`` alone, which is all that several processes exchange.

    It is tried: halves of some clients are given to two copies, and their sums to a third one, which must give what a
    fourth one gives for all.

    Args:
        aggregator: the aggregator; left as it is.
        dim: number of numbers of an update (D).

    Raises:
        ValueError: it does not.
    """
    if type(aggregator) is MeanAggregator:
        return
    draws = torch.Generator().manual_seed(0)
    rows = torch.randn(_TRIAL_CLIENTS, dim, generator=draws)
    weights = aggregator.weights(torch.arange(1, _TRIAL_CLIENTS + 1))
    places = torch.arange(_TRIAL_CLIENTS)
    half = _TRIAL_CLIENTS // 2
    try:
        whole, first, second, joined = (copy.deepcopy(aggregator) for _ in range(4))
        for part, clients in ((whole, slice(None)), (first, slice(half)), (second, slice(half, None))):
            part.start()
            part.add_clients(rows[clients], weights[clients], places[clients], _TRIAL_CLIENTS)
        joined.start()
        for part in (first, second):
            for name, value in part.sums.items():
                joined.sums[name] = joined.sums[name] + value if name in joined.sums else value
        found, expected = joined.result(), whole.result()
        adds_up, reason = torch.allclose(found, expected, rtol=1e-9, atol=1e-9, equal_nan=True), "gives another result"
    except Exception as error:
        adds_up, reason = False, f"raises {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    if not adds_up:
        raise ValueError(
            f"{type(aggregator).__name__} cannot be used on several processes, which exchange its `sums` and nothing "
            f"else: on the sums of two halves of some clients it {reason}. Keep what `result` needs in sums "
            "(`self.accumulate(name, value)` in `add`), derive from `GatheringAggregator`, which is given all rows, or "
            "use one process (`trainer.devices=1`)."
        )
