"""Evaluation of the clients' own models on the clients' own test examples."""

import math
from typing import Literal

import torch
from jsonargparse.typing import PositiveInt
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_choice, check_number
from lfl.callback import FederatedCallback
from lfl.client.work import LocalPhase
from lfl.federation import Federation
from lfl.reporting.formats import direction_of
from lfl.round import Round


class ClientEvaluation(FederatedCallback):
    """Runs ``validation_step`` for every client's model (x with its personal parameters) on its own test examples.

    Logs ``NAME/METRIC``, the mean over all test examples, and ``NAME/METRIC/worst_tenth``, the mean over the worst
    tenth of the clients: those with the lowest values where a metric should be large, with the highest where it should
    be small. Which it is, ``direction`` says, or the Metric object that the module logs (``higher_is_better``), or the
    metric's name; without any of them there is no ``worst_tenth``, and a warning says so. The server's model on the
    whole test set is logged as ``METRIC``, with or without this callback.

    ``lfl test`` evaluates the clients of a checkpoint so, too.

    With ``fine_tune`` every client first trains a copy of its model on its own training examples. The copies are
    dropped after the evaluation; the run and its random numbers do not change.

    Args:
        every_n_rounds: rounds between evaluations; the last round is always evaluated.
        fine_tune: phases of local training before the evaluation, as in the trainer's ``local_phases``.
        max_clients: largest number of clients to evaluate, spread evenly over the ids; none for all.
        name: first part of the metrics' names.
        direction: whether a metric should be large or small (max or min), by its name as the module logs it.
    """

    observes = True

    def __init__(
        self,
        every_n_rounds: PositiveInt = 10,
        fine_tune: list[LocalPhase] | None = None,
        max_clients: PositiveInt | None = None,
        name: str = "personal",
        direction: dict[str, Literal["max", "min"]] | None = None,
    ) -> None:
        check_number("ClientEvaluation", "every_n_rounds", every_n_rounds, least=1, whole=True)
        if max_clients is not None:
            check_number("ClientEvaluation", "max_clients", max_clients, least=1, whole=True)
        for metric, wanted in (direction or {}).items():
            check_choice("ClientEvaluation", f"direction[{metric!r}]", wanted, ("max", "min"))
        self.every_n_rounds = every_n_rounds
        self.fine_tune = fine_tune
        self.max_clients = max_clients
        self.name = name
        self.direction = direction

    @override
    def check_stack(self, stack: list[FederatedCallback]) -> None:
        twins = [c for c in stack if isinstance(c, ClientEvaluation) and c.name == self.name]
        if len(twins) > 1:
            raise ValueError(
                f"Two ClientEvaluations of one stack are named {self.name!r} and would log the same metrics: give one "
                "of them another `name`."
            )

    @override
    def on_run_start(self, federation: Federation) -> None:
        if not bool((federation.data.client_test_sizes > 0).any()):
            raise ValueError("ClientEvaluation needs test examples of the clients, and no client of `data` has any.")
        self._federation = federation
        self._unnamed: set[str] = set()  # metrics whose direction nothing tells, or which are not there; warned of once
        self._fine_tuner = federation.fine_tuner(self.fine_tune) if self.fine_tune else None

    @override
    def on_round_end(self, round: Round) -> None:
        if round.number % self.every_n_rounds == 0 or round.number == self._federation.max_rounds:
            self._evaluate_all(round)

    @override
    def on_test(self, round: Round) -> None:
        self._evaluate_all(round)

    def _evaluate_all(self, round: Round) -> None:
        federation = self._federation
        ids = self._clients()
        # Clients' rows are at their home process, so that only this one can evaluate their models.
        local_ids = ids[federation.processes.at_home(ids)]
        results: list[tuple[int, dict[str, float]]] = []
        for chunk in local_ids.split(federation.clients_at_once):
            results += self._evaluate(round, chunk)
        # A Metric object is known to the processes that had something to measure: all of them must choose alike.
        parts = federation.processes.gather((results, dict(federation.directions)))
        known = {name: direction for _, directions in parts for name, direction in directions.items()}
        self._log(round, [result for gathered, _ in parts for result in gathered], known)

    def _clients(self) -> Tensor:
        """Ids of the clients to evaluate, ascending."""
        ids = (self._federation.data.client_test_sizes > 0).nonzero().squeeze(1)
        if self.max_clients is not None and len(ids) > self.max_clients:
            ids = ids[torch.linspace(0, len(ids) - 1, self.max_clients, dtype=torch.float64).round().long()]
        return ids

    def _evaluate(self, round: Round, ids: Tensor) -> list[tuple[int, dict[str, float]]]:
        """Number of test examples and metrics of each of the clients ``ids`` [C]."""
        federation = self._federation
        params = federation.personal_models(ids)
        if self._fine_tuner is not None:
            self._fine_tuner(round, ids, params)
        sizes = federation.data.client_test_sizes[ids].tolist()
        return list(zip(sizes, federation.evaluate_clients(ids, params), strict=True))

    def _log(self, round: Round, results: list[tuple[int, dict[str, float]]], known: dict[str, int]) -> None:
        names = dict.fromkeys(name for _, metrics in results for name in metrics)
        self._warn(set(self.direction or ()) - names.keys(), "which the module does not log")
        for name in names:
            pairs = [(size, metrics[name]) for size, metrics in results if name in metrics]
            # `fsum` is exact but for one rounding: the order in which processes report does not matter.
            mean = math.fsum(n * v for n, v in pairs) / sum(n for n, _ in pairs)
            self._log_one(round, f"{self.name}/{name}", mean, direction := self._direction_of(name, known))
            if not direction:
                advice = f"give `direction: {{{name}: max}}`, or min, for `{self.name}/{name}/worst_tenth`"
                self._warn({name}, f"of which nothing tells whether it should be large or small: {advice}")
                continue
            # A client whose value is NaN is the worst of all, so that it is seen.
            values = sorted((v for _, v in pairs), key=lambda value: (not math.isnan(value), direction * value))
            worst = values[: math.ceil(len(values) / 10)]
            self._log_one(round, f"{self.name}/{name}/worst_tenth", math.fsum(worst) / len(worst), direction)

    def _direction_of(self, name: str, known: dict[str, int]) -> int:
        """1 if a metric should be large, -1 if small, 0 if nothing tells."""
        wanted = (self.direction or {}).get(name)
        return direction_of(name, known) if wanted is None else 1 if wanted == "max" else -1

    def _log_one(self, round: Round, name: str, value: float, direction: int) -> None:
        round.log(name, value)
        if direction:  # for the summary's best value and `checkpoint.monitor`
            self._federation.directions[name] = direction

    def _warn(self, names: set[str], problem: str) -> None:
        for name in sorted(names - self._unnamed):
            self._unnamed.add(name)
            rank_zero_warn(f"ClientEvaluation: {name!r}, {problem}.")
