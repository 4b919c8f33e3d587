"""Evaluation of models on the clients' own test examples, in the scopes that personalised learning needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jsonargparse.typing import PositiveInt
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.pytorch import LightningModule
from typing_extensions import override

from lfl.arguments import check_choice, check_number
from lfl.callback import FederatedCallback
from lfl.client.work import LocalPhase
from lfl.federation import Federation
from lfl.loggers import CSVLogger
from lfl.reporting.client_table import FILE, ClientRow, ClientTable
from lfl.reporting.figures import FOLDER, save_figure
from lfl.round import Round
from lfl.scopes import ClientResult, Scope, ScopeEvaluation, ScopeName
from lfl.storage.checkpoint_file import run_folder_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAME = "personal"
_SCOPES = ("server", "personal", "fine_tuned", "new")
_TUNED = {"fine_tuned", "new"}


class ClientEvaluation(FederatedCallback):
    """Runs ``validation_step`` on each client's own test examples, of the models that ``scopes`` names.

    - ``server``: x, as it is for all.
    - ``personal``: each client's own model, x with its personal parameters.
    - ``fine_tuned``: that, after ``fine_tune`` on the client's training examples (the head alone, or all parameters).
    - ``new``: the same for clients that never took part (``lfl.participation.HeldOutParticipation``): x with what each
      of them makes of it. The other scopes are of the clients that may take part.

    Without ``scopes`` there is one, of personal models, after ``fine_tune`` where that is given; ``name`` is its name.
    Copies that are fine-tuned are dropped after the evaluation; the run and its random numbers do not change.

    Logs ``SCOPE/METRIC``, the mean over all test examples; ``SCOPE/METRIC/client_mean`` and ``client_std``, mean and
    standard deviation over clients; ``SCOPE/METRIC/worst_tenth``, the mean over the worst tenth of the clients: those
    with the lowest values where a metric should be large, with the highest where it should be small. Which it is,
    ``direction`` says, or the Metric object that the module logs (``higher_is_better``), or the metric's name; without
    any of them there is no ``worst_tenth``, and a warning says so. Clients without test examples are left out:
    ``SCOPE/clients`` is the number of those evaluated, ``SCOPE/clients_left_out`` of those that have none. The server's
    model on the whole test set is logged as ``METRIC``, with or without this callback.

    Each client's values are rows of ``clients.csv`` in the run's folder, where the run writes CSV files. ``lfl test``
    and ``lfl validate`` evaluate the clients of a checkpoint so, too.

    Args:
        every_n_rounds: rounds between evaluations; the last round is always evaluated.
        fine_tune: phases of local training before the evaluation, as in the trainer's ``local_phases``.
        max_clients: largest number of clients to evaluate, spread evenly over the ids; none for all.
        name: first part of the metrics' names, where ``scopes`` is not given.
        direction: whether a metric should be large or small (max or min), by its name as the module logs it.
        scopes: what is evaluated: any of server, personal, fine_tuned and new.
        histogram: draw how the clients' values are spread, in the last evaluation, as ``pictures/clients_ROUND.png``.
    """

    observes = True

    def __init__(
        self,
        every_n_rounds: PositiveInt = 10,
        fine_tune: list[LocalPhase] | None = None,
        max_clients: PositiveInt | None = None,
        name: str = _NAME,
        direction: dict[str, Literal["max", "min"]] | None = None,
        scopes: list[ScopeName] | None = None,
        histogram: bool = False,
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
        self.scopes = scopes
        self.histogram = histogram
        self._check_scopes()
        self._warned: set[str] = set()  # metrics whose direction nothing tells, or which are not there; warned of once
        self._waiting: list[ClientRow] = []  # rows that could not be written yet
        self._table: ClientTable | None = None

    def _check_scopes(self) -> None:
        scopes = self.scopes
        if scopes is None:
            return
        for scope in scopes:
            check_choice("ClientEvaluation", "scopes", scope, _SCOPES)
        if not scopes or len(set(scopes)) < len(scopes):
            raise ValueError(f"`scopes={scopes}` of ClientEvaluation must name at least one scope, and none twice.")
        if self.name != _NAME:
            raise ValueError(
                f"`name={self.name}` of ClientEvaluation is that of its one scope, and `scopes={scopes}` have names of "
                "their own: leave one of them out."
            )
        tuned = [scope for scope in scopes if scope in _TUNED]
        if tuned and not self.fine_tune:
            raise ValueError(
                f"The scope {tuned[0]!r} of ClientEvaluation needs `fine_tune`, the phases in which clients train: "
                '`fine_tune: [{parameters: ["*.head.*"], epochs: 10}]`, say.'
            )
        if self.fine_tune and not tuned:
            raise ValueError(
                f"`fine_tune` of ClientEvaluation is of no use to `scopes={scopes}`: add `fine_tuned` or `new`."
            )

    @property
    def _own_scopes(self) -> list[Scope]:
        tune = tuple(self.fine_tune or ())
        if self.scopes is None:
            return [Scope(self.name, fine_tune=tune)]
        known = {
            "server": Scope("server", models="server"),
            "personal": Scope("personal"),
            "fine_tuned": Scope("fine_tuned", fine_tune=tune),
            "new": Scope("new", of_new=True, fine_tune=tune),
        }
        return [known[name] for name in self.scopes]

    # -- a run ------------------------------------------------------------------------------------------------------

    @override
    def check_stack(self, stack: list[FederatedCallback]) -> None:
        own = {scope.name for scope in self._own_scopes}
        for other in stack:
            if isinstance(other, ClientEvaluation) and other is not self:
                for name in sorted(own & {scope.name for scope in other._own_scopes}):
                    raise ValueError(
                        f"Two ClientEvaluations of one stack are named {name!r} and would log the same metrics: give "
                        "one of them another `name`."
                    )

    @override
    def setup(self, trainer: Any, pl_module: LightningModule, stage: str) -> None:
        self._folder, self._stage = Path(trainer.log_dir), stage
        self._loggers = list(trainer.loggers)
        writes = any(isinstance(logger, CSVLogger) for logger in self._loggers) and trainer.is_global_zero
        self._table = ClientTable(self._folder / FILE) if writes else None

    @override
    def on_run_start(self, federation: Federation) -> None:
        self._federation = federation
        self._warned = set()
        self._evaluations = [
            ScopeEvaluation(scope, federation, self.max_clients, self.direction) for scope in self._own_scopes
        ]
        for evaluation in self._evaluations:
            if evaluation.scope.of_new and not len(federation.held_out):
                raise ValueError(
                    "The scope 'new' of ClientEvaluation is of clients that never take part, and there are none: hold "
                    "some out by `participation: lfl.participation.HeldOutParticipation`."
                )
            if not len(evaluation.ids):
                raise ValueError(
                    "ClientEvaluation needs test examples of the clients, and no client of `data` has any"
                    f"{f' among those of the scope {evaluation.scope.name!r}' if evaluation.num_left_out else ''}."
                )

    @override
    def on_load_checkpoint(self, trainer: Any, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self._table is not None and self._stage == "fit" and trainer.ckpt_path:
            source = run_folder_of(Path(trainer.ckpt_path), checkpoint) / FILE
            self._table.continue_from(source, int(checkpoint["round"]))

    @override
    def on_round_end(self, round: Round) -> None:
        is_last = round.number == self._federation.max_rounds
        if is_last or round.number % self.every_n_rounds == 0:
            self._evaluate(round, is_last)

    @override
    def on_test(self, round: Round) -> None:
        self._evaluate(round, is_last=True)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"waiting": [[*row[:4], dict(row[4])] for row in self._waiting]}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._waiting = [(*row[:4], dict(row[4])) for row in state_dict["waiting"]]

    # -- an evaluation ----------------------------------------------------------------------------------------------

    def _evaluate(self, round: Round, is_last: bool) -> None:
        found: dict[str, list[ClientResult]] = {}
        unknown: set[str] = set()
        for evaluation in self._evaluations:
            results = found[evaluation.scope.name] = evaluation.run(round)
            unknown |= evaluation.log(round, results)
        logged = {name for results in found.values() for result in results for name in result.metrics}
        self._warn(set(self.direction or ()) - logged, "which the module does not log")
        for name in sorted(unknown):
            place = f"{next(iter(found))}/{name}/worst_tenth"
            advice = f"give `direction: {{{name}: max}}`, or min, for `{place}`"
            self._warn({name}, f"of which nothing tells whether it should be large or small: {advice}")
        self._write(round.number, found)
        if self.histogram and is_last and self._federation.processes.is_first:
            figure = histogram_of(found, round.number)
            save_figure(figure, self._folder / FOLDER, self._loggers, "clients", round.number)

    def _write(self, number: int, found: Mapping[str, Sequence[ClientResult]]) -> None:
        if self._table is None:
            return
        self._waiting += [(number, name, r.client, r.examples, r.metrics) for name, rs in found.items() for r in rs]
        try:
            self._table.append(self._waiting)
            self._waiting = []
        except OSError as error:
            # As when a log cannot be written: the run ends with a checkpoint, which has the rows.
            rank_zero_warn(f"{error} The run ends after this round, and goes on with `--ckpt_path last`.")
            self._federation.stop()

    def _warn(self, names: set[str], problem: str) -> None:
        for name in sorted(names - self._warned):
            self._warned.add(name)
            rank_zero_warn(f"ClientEvaluation: {name!r}, {problem}.")


def histogram_of(found: Mapping[str, Sequence[ClientResult]], number: int) -> Figure:
    """Draw how many clients have which value: a panel for each metric, in it a line for each scope.

    Args:
        found: the clients' results, by scope.
        number: the round.
    """
    from matplotlib.figure import Figure  # not pyplot, which would keep the figure, and may ask for a display

    metrics = list(dict.fromkeys(name for results in found.values() for result in results for name in result.metrics))
    figure = Figure(figsize=(max(4.0, 4.5 * len(metrics)), 3.6), layout="constrained")
    panels = figure.subplots(1, max(1, len(metrics)), squeeze=False)[0]
    for panel, metric in zip(panels, metrics, strict=False):
        scopes = {
            scope: [result.metrics[metric] for result in results if metric in result.metrics]
            for scope, results in found.items()
        }
        drawn = {scope: [v for v in values if abs(v) < float("inf")] for scope, values in scopes.items()}  # nan neither
        every = [value for values in drawn.values() for value in values] or [0.0]
        ends = (min(every), max(every)) if min(every) < max(every) else (min(every) - 0.5, max(every) + 0.5)
        for place, (scope, values) in enumerate(drawn.items()):
            panel.hist(values, bins=20, range=ends, histtype="step", lw=1.8, color=f"C{place}", label=scope)
            if values:
                panel.axvline(sum(values) / len(values), color=f"C{place}", ls=":")
        panel.set(xlabel=metric, ylabel="clients")
        panel.legend(fontsize=8, title="scope; dots: mean", title_fontsize=7)
    figure.suptitle(f"clients' own test examples, round {number}")
    return figure
