"""Scopes of evaluation: which models of which clients are tested, and the numbers that are made of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lfl.client.work import LocalPhase
from lfl.federation import Federation, FineTuner
from lfl.reporting.formats import direction_of
from lfl.round import Round

ScopeName = Literal["server", "personal", "fine_tuned", "new"]
CLIENTS, LEFT_OUT = "clients", "clients_left_out"


@dataclass(frozen=True)
class Scope:
    """One way of evaluating clients, each on its own test examples.

    Attributes:
        name: first part of its metrics' names.
        models: whether x is evaluated, or each client's own model.
        of_new: whether it is of the clients that are held out of all rounds, instead of the others.
        fine_tune: phases in which each client trains a copy of its model before; empty for none.
    """

    name: str
    models: Literal["server", "personal"] = "personal"
    of_new: bool = False
    fine_tune: Sequence[LocalPhase] = ()

    def clients(self, federation: Federation) -> Tensor:
        """Mask [N] of the clients it is of, with and without test examples."""
        mask = torch.full((federation.num_clients,), not self.of_new)
        mask[federation.held_out] = self.of_new
        return mask


@dataclass(frozen=True)
class ClientResult:
    """The evaluation of one client.

    Attributes:
        client: its id.
        examples: number of its test examples.
        metrics: by name, as the module logs them.
    """

    client: int
    examples: int
    metrics: dict[str, float]


class ScopeEvaluation:
    """Evaluates the clients of one scope.

    Args:
        scope: which models of which clients.
        federation: the run.
        max_clients: largest number of clients, spread evenly over the ids of those with test examples; None for all.
        directions: whether metrics should be large or small, by name, where the user says so.
    """

    def __init__(
        self,
        scope: Scope,
        federation: Federation,
        max_clients: int | None = None,
        directions: Mapping[str, Literal["max", "min"]] | None = None,
    ) -> None:
        self.scope = scope
        self._federation = federation
        self._directions = dict(directions or {})
        self._tuner: FineTuner | None = federation.fine_tuner(scope.fine_tune) if scope.fine_tune else None
        asked = scope.clients(federation)
        has_tests = federation.data.client_test_sizes > 0
        self.num_left_out = int((asked & ~has_tests).sum())
        self.ids = (asked & has_tests).nonzero().squeeze(1)
        if max_clients is not None and len(self.ids) > max_clients:
            places = torch.linspace(0, len(self.ids) - 1, max_clients, dtype=torch.float64)
            self.ids = self.ids[places.round().long()]

    def run(self, round: Round) -> list[ClientResult]:
        """Evaluate the clients; returns the results of all processes, by ascending id. Every process must call it."""
        federation = self._federation
        # Clients' rows are at their home process, so that only this one can evaluate their models.
        local_ids = self.ids[federation.processes.at_home(self.ids)]
        if self._tuner is None:  # which takes ascending ids; others are evaluated with clients of their size
            sizes = federation.data.client_test_sizes[local_ids]
            local_ids = local_ids[sizes.argsort(descending=True, stable=True)]
        results: list[ClientResult] = []
        # An empty tensor would be split into one empty part.
        for ids in local_ids.split(federation.evaluated_at_once) if len(local_ids) else ():
            examples = federation.data.client_test_sizes[ids].tolist()
            found = federation.evaluate_clients(ids, *self._models(round, ids))
            results += map(ClientResult, ids.tolist(), examples, found)
        # A Metric object is known to the processes that had something to measure: all of them must choose alike.
        parts = federation.processes.gather((results, dict(federation.directions)))
        for _, directions in parts:
            federation.directions.update({k: d for k, d in directions.items() if k not in federation.directions})
        return sorted((result for part, _ in parts for result in part), key=lambda result: result.client)

    def log(self, round: Round, results: list[ClientResult]) -> set[str]:
        """Log the numbers that are made of the results; returns the metrics of which nothing tells what is better."""
        name, federation = self.scope.name, self._federation
        round.log(f"{name}/{CLIENTS}", len(results))
        if self.num_left_out:
            round.log(f"{name}/{LEFT_OUT}", self.num_left_out)
        unknown = set()
        for metric in dict.fromkeys(metric for result in results for metric in result.metrics):
            direction = self._direction_of(metric)
            pairs = [(result.examples, result.metrics[metric]) for result in results if metric in result.metrics]
            for statistic, value in statistics(pairs, direction).items():
                logged = "/".join(filter(None, (name, metric, statistic)))
                round.log(logged, value)
                if direction and statistic != "client_std":  # for the summary's best value and `checkpoint.monitor`
                    federation.directions[logged] = direction
            if not direction:
                unknown.add(metric)
        return unknown

    def _models(self, round: Round, ids: Tensor) -> tuple[Tensor, Tensor | None]:
        """The models [C, D] of clients ``ids``, or x [D] for all of them, and buffers [C, B], if those have changed."""
        x = self._federation.server.vector
        if self.scope.models == "server" and self._tuner is None:
            return x, None
        models = self._federation.personal_models(ids) if self.scope.models == "personal" else x.repeat(len(ids), 1)
        buffers = None if self._tuner is None else self._tuner(round, ids, models)
        return models, None if self._federation.buffer_policy == "server" else buffers

    def _direction_of(self, metric: str) -> int:
        """1 if a metric should be large, -1 if small, 0 if nothing tells."""
        wanted = self._directions.get(metric)
        if wanted is not None:
            return 1 if wanted == "max" else -1
        return direction_of(metric, self._federation.directions)


def statistics(pairs: Sequence[tuple[int, float]], direction: int) -> dict[str, float]:
    """Numbers that are made of one metric of C clients, by what is added to its name.

    Args:
        pairs: of each client, its number n_i of test examples and its value v_i.
        direction: 1 if values should be large, -1 if small; 0 where nothing tells, without ``worst_tenth``.

    Returns:
        "": ``sum n_i v_i / sum n_i``; client_mean: ``m = sum v_i / C``; client_std: ``sqrt(sum (v_i - m)^2 / C)``;
        worst_tenth: the mean of the ``ceil(C / 10)`` worst values, of which NaN is the worst.
    """
    values = [value for _, value in pairs]
    mean = _sum(values) / len(values)
    found = {
        "": _sum([count * value for count, value in pairs]) / sum(count for count, _ in pairs),
        "client_mean": mean,
        "client_std": math.sqrt(_sum([(value - mean) * (value - mean) for value in values]) / len(values)),
    }
    if direction:
        # A client whose value is NaN is the worst of all, so that it is seen.
        ordered = sorted(values, key=lambda value: (not math.isnan(value), direction * value))
        worst = ordered[: math.ceil(len(ordered) / 10)]
        found["worst_tenth"] = _sum(worst) / len(worst)
    return found


def _sum(values: list[float]) -> float:
    """The sum, exact but for one rounding, so that the order in which processes report does not matter."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):  # beyond all floats, or of inf and -inf
        return sum(values)
