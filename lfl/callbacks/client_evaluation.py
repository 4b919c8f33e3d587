"""Evaluation of the clients' own models on the clients' own test examples."""

import math

import torch
from jsonargparse.typing import PositiveInt
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_number
from lfl.callback import FederatedCallback
from lfl.client.work import LocalPhase
from lfl.federation import Federation
from lfl.round import Round


class ClientEvaluation(FederatedCallback):
    """Runs ``validation_step`` for every client's model (x with its personal parameters) on its own test examples.

    Logs ``NAME/METRIC``, the mean over all test examples, and ``NAME/METRIC/worst_tenth``, the mean over the worst
    tenth of the clients: those with the lowest values if the metric's name ends in acc or accuracy, with the highest
    otherwise. The server's model on the whole test set is logged as ``METRIC``, with or without this callback.

    With ``fine_tune`` every client first trains a copy of its model on its own training examples. The copies are
    dropped after the evaluation; the run and its random numbers do not change.

    Args:
        every_n_rounds: rounds between evaluations; the last round is always evaluated.
        fine_tune: phases of local training before the evaluation, as in the trainer's ``local_phases``.
        max_clients: largest number of clients to evaluate, spread evenly over the ids; none for all.
        name: first part of the metrics' names.
    """

    observes = True

    def __init__(
        self,
        every_n_rounds: PositiveInt = 10,
        fine_tune: list[LocalPhase] | None = None,
        max_clients: PositiveInt | None = None,
        name: str = "personal",
    ) -> None:
        check_number("ClientEvaluation", "every_n_rounds", every_n_rounds, least=1, whole=True)
        if max_clients is not None:
            check_number("ClientEvaluation", "max_clients", max_clients, least=1, whole=True)
        self.every_n_rounds = every_n_rounds
        self.fine_tune = fine_tune
        self.max_clients = max_clients
        self.name = name

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
        self._fine_tuner = federation.fine_tuner(self.fine_tune) if self.fine_tune else None

    @override
    def on_round_end(self, round: Round) -> None:
        federation = self._federation
        if round.number % self.every_n_rounds and round.number != federation.max_rounds:
            return
        ids = self._clients()
        # Clients' rows are at their home process, so that only this one can evaluate their models.
        local_ids = ids[federation.processes.at_home(ids)]
        results: list[tuple[int, dict[str, float]]] = []
        for chunk in local_ids.split(federation.clients_at_once):
            results += self._evaluate(round, chunk)
        self._log(round, [result for gathered in federation.processes.gather(results) for result in gathered])

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

    def _log(self, round: Round, results: list[tuple[int, dict[str, float]]]) -> None:
        names = dict.fromkeys(name for _, metrics in results for name in metrics)
        for name in names:
            pairs = [(size, metrics[name]) for size, metrics in results if name in metrics]
            # `fsum` is exact but for one rounding: the order in which processes report does not matter.
            round.log(f"{self.name}/{name}", math.fsum(n * v for n, v in pairs) / sum(n for n, _ in pairs))
            values = sorted((v for _, v in pairs), reverse=not name.endswith(("acc", "accuracy")))
            worst = values[: math.ceil(len(values) / 10)]
            round.log(f"{self.name}/{name}/worst_tenth", math.fsum(worst) / len(worst))
