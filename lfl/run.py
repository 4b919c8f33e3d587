"""A run: everything that one call of ``fit`` works with. Its state is the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

import lightning
from lightning.pytorch.loggers import Logger
from torch import Tensor
from typing_extensions import override

from lfl import hooks
from lfl.callback import FederatedCallback, overrides
from lfl.checkpointing import Checkpointing
from lfl.client.module_state import ModuleState
from lfl.client.work import LocalPhase
from lfl.engine import LocalEngine, LocalTraining
from lfl.engine.evaluation import ClientEvaluator
from lfl.engine.fine_tuning import EngineFineTuner
from lfl.federation import Federation, FineTuner
from lfl.generators import HostGenerators
from lfl.lightning_callbacks import LightningCallbacks
from lfl.reporting.progress import ProgressDisplay
from lfl.reporting.summary import RunSummary
from lfl.storage.checkpoint_file import save_atomically
from lfl.storage.fingerprint import describe
from lfl.storage.plain import check_savable, to_plain


class Stateful(Protocol):
    """A part of a run that changes from round to round, and so belongs into a checkpoint."""

    def state_dict(self) -> dict[str, Any]:
        """The state, as tensors, numbers, strings, lists and dicts."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state that ``state_dict`` returned."""


@dataclass
class Progress:
    """The point to which a run has come.

    Attributes:
        round: number of the last finished round; 0 before the first.
        epoch: the same, as Lightning counts: a finished round counts when all hooks of its end have been called.
        is_in_round: whether a round is under way.
        refused: number of updates, in all rounds so far, that were not finite.
        simulated_seconds: seconds of the simulated system in all rounds so far, by name.
    """

    round: int = 0
    epoch: int = 0
    is_in_round: bool = False
    refused: int = 0
    simulated_seconds: dict[str, float] = field(default_factory=dict)

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        return {"round": self.round, "refused": self.refused, "simulated_seconds": dict(self.simulated_seconds)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state that ``state_dict`` returned."""
        self.round = self.epoch = state_dict["round"]
        self.refused = state_dict["refused"]
        self.simulated_seconds = dict(state_dict["simulated_seconds"])


@dataclass(kw_only=True)
class Run(Federation):
    """One run: the federation that callbacks see, and what else the loop needs. ``fit`` builds a new one each time.

    ``state_dict`` is what a checkpoint holds, and ``load_state_dict`` resumes from it; both go through one list,
    ``stateful``. Everything that changes from round to round is in that list or in ``store``; the rest are settings.

    Attributes:
        callbacks: the stack, in the user's order.
        training: trains the clients.
        module_state: what hooks have changed in the module besides its parameters and buffers.
        generators: those that the module's hooks draw from.
        on_nonfinite: what to do with updates that are not finite: stop the run, or skip them.
        check_val_every_n_rounds: number of rounds between evaluations.
        log_every_n_steps: number of rounds between rows in the logs.
        val_dataloaders: the validation data; None if the module has no validation step.
        checkpointing: decides when checkpoints are written; None for never.
        loggers: where metrics are logged.
        display: shows the progress to the user.
        lightning: calls Lightning's hooks of the callbacks.
        folder: the run's own folder.
        description: the settings that the run's numbers depend on (except for rounding), in plain values.
        progress: how far the run has come.
        summary: the best and last values of all metrics.
        hyper_parameters: those of module and data, as Lightning saves them.
    """

    callbacks: list[FederatedCallback]
    training: LocalTraining
    module_state: ModuleState
    generators: HostGenerators
    on_nonfinite: Literal["stop", "skip"]
    check_val_every_n_rounds: int
    log_every_n_steps: int
    val_dataloaders: Any
    checkpointing: Checkpointing | None
    loggers: list[Logger]
    display: ProgressDisplay
    lightning: LightningCallbacks
    folder: Path
    description: dict[str, Any]
    progress: Progress = field(default_factory=Progress)
    summary: RunSummary = field(default_factory=RunSummary)
    hyper_parameters: dict[str, Any] = field(default_factory=dict)
    # The snapshot of the store that each checkpoint file refers to: tag by file.
    _live_tags: dict[Path, str] = field(default_factory=dict)
    _wanted: dict[Path, bool] = field(default_factory=dict)  # checkpoints to write when the round is finished

    @property
    def engine(self) -> LocalEngine:
        """The engine that computes the clients' steps now."""
        return self.training.engine

    # -- what callbacks may ask -------------------------------------------------------------------------------------

    @property
    @override
    def clients_at_once(self) -> int:
        return self.engine.cohort_size

    @override
    def personal_models(self, ids: Tensor) -> Tensor:
        params = self.server.vector.repeat(len(ids), 1)
        for callback in self.callbacks:
            if overrides(callback, "personalize"):
                hooks.personalize(callback, ids, params)
        return params

    @override
    def evaluate_clients(self, ids: Tensor, params: Tensor, buffers: Tensor | None = None) -> list[dict[str, float]]:
        if buffers is None:
            shared = self.server.buffers.expand(len(ids), -1)
            buffers = shared if params.dim() == 1 else self.client_buffers(ids)
        return self._client_evaluator(ids, params, buffers)

    @cached_property
    def _client_evaluator(self) -> ClientEvaluator:
        return ClientEvaluator(self.model, self.data, self.server, self.processes, self.seed)

    @override
    def fine_tuner(self, phases: Sequence[LocalPhase]) -> FineTuner:
        return EngineFineTuner(self.training, phases, self.server, self.rates, self.client_buffers)

    def start_callbacks(self) -> None:
        """Let callbacks make their state and declare slots, before a checkpoint is loaded."""
        for callback in self.callbacks:
            with self.store.claimed_by(callback):
                callback.on_run_start(self)

    # -- the server's model -----------------------------------------------------------------------------------------

    def load_server_model(self) -> None:
        """Bind the server's model to the module, whose parameters are then x itself, not a copy."""
        self.model.load(self.server.vector, self.server.buffers, self.server.counters)

    def call_hook(self, name: str) -> dict[str, Tensor]:
        """Call a hook of the callbacks and the module on the server's model; returns what they log."""
        self.load_server_model()
        self.generators.seed(self.seed, name, self.progress.round)
        logged = self.model.call_hook(name, self.lightning.call)
        # What the hook has changed is the server's.
        self.model.reclaim(self.server.vector)
        self.server.buffers = self.model.flat_buffers()
        self.server.counters = [counter.clone() for counter in self.model.counters]
        return logged

    def server_state_dict(self) -> dict[str, Tensor]:
        """The module's state dict with the server's parameters and buffers."""
        return self.model.state_dict_of(self.server.vector, self.server.buffers, self.server.counters)

    def is_evaluation_due(self, round_number: int) -> bool:
        """Whether the server's model is evaluated at the end of a round."""
        if self.val_dataloaders is None:
            return False
        return round_number % self.check_val_every_n_rounds == 0 or round_number == self.max_rounds

    def is_logging_due(self, round_number: int) -> bool:
        """Whether a round is logged; evaluated rounds are, always."""
        return round_number % self.log_every_n_steps == 0 or self.is_evaluation_due(round_number)

    @property
    def headline(self) -> str:
        """The run in one line: algorithm, clients, size of the model, what the server does, engine, device, folder."""
        cohort = f", cohorts of {self.engine.cohort_size}" if self.engine.name == "vectorized" else ""
        algorithms = [type(c).__name__ for c in self.callbacks if not c.observes] or ["FedAvg"]
        observers = [type(c).__name__ for c in self.callbacks if c.observes]
        return (
            f"{' + '.join(algorithms + observers)}: {self.num_clients} clients, D = {self.layout.dim:,}, "
            f"{type(self.aggregator).__name__} ({self.aggregator.weighting}), "
            f"{type(self.server.optimizer).__name__} at the server, "
            f"{self.engine.name} engine{cohort}, {self.device}; run folder {self.folder}"
        )

    @property
    def engine_choice(self) -> dict[str, Any]:
        """The engine, its cohort size, ...; the numbers depend on them by rounding only."""
        return self.training.choice

    # -- the state of a run -----------------------------------------------------------------------------------------

    @property
    def stateful(self) -> dict[str, Stateful]:
        """All parts that change from round to round, by their names in a checkpoint, except the clients' rows."""
        stateful: dict[str, Stateful] = {
            "progress": self.progress,
            "server": self.server,
            "module_state": self.module_state,
            "callbacks": _Algorithms(self.callbacks),
            "observers": _Observers(self.callbacks),
            "lightning": self.lightning,
            "ledger": self.ledger,
            "outbox": self.outbox,
            "learning_rates": self.rates,
            "summary": self.summary,
            "loggers": _Loggers(self.loggers),
        }
        return stateful if self.checkpointing is None else {**stateful, "checkpointing": self.checkpointing}

    def state_dict(self, tag: str = "state") -> dict[str, Any]:
        """The complete state of the run, for a checkpoint; every process must call it.

        Args:
            tag: name of the snapshot of the client rows, which lives until ``store.release(tag)``.
        """
        return {
            **{name: part.state_dict() for name, part in self.stateful.items()},
            "store": self.processes.gather(self.store.snapshot(tag)),
            "settings": self.description,
            "engine": self.engine_choice,
            # What follows serves people who read a checkpoint, Lightning's classes and `lfl test`. A resumed run takes
            # the parameters that are not trained from `state_dict`: the server has the others only.
            **self.weights(),
        }

    def weights(self) -> dict[str, Any]:
        """All that ``load_from_checkpoint`` and evaluation need: the server's model and hyper-parameters."""
        module = self.model.module
        state = {
            "round": self.progress.round,
            "epoch": self.progress.epoch,
            "global_step": self.progress.round,
            "state_dict": {name: _copied(value) for name, value in self.server_state_dict().items()},
            "model_class": f"{type(module).__module__}.{type(module).__qualname__}",
            "pytorch-lightning_version": lightning.__version__,
            **self.hyper_parameters,
        }
        self.lightning.call("on_save_checkpoint", state)
        module.on_save_checkpoint(state)
        return state

    def load_state_dict(self, state: dict[str, Any], folder: Path) -> None:
        """Continue from the state of a run with the same settings; every process must call it.

        Args:
            state: what ``state_dict`` returned.
            folder: folder of the run that the state is from, with its files of client rows and of metrics.
        """
        before, after = (f"{e['name']} (cohorts of {e['cohort_size']})" for e in (state["engine"], self.engine_choice))
        if before != after:
            self.display.message(f"The engine was {before} and is now {after}: equal up to rounding, not bit for bit.")
        # Bound to a copy: the module's parameters are views of x, and loading would write into the server's vector,
        # which gets its own state below.
        self.model.bind(self.server.vector.clone())
        self.model.module.load_state_dict(state["state_dict"])
        for name, part in self.stateful.items():
            # `checkpointing` may be missing: a run may be resumed with checkpoints that had none.
            if name in state:
                part.load_state_dict(state[name])
        # One snapshot from each process of the earlier run, which may have had another number of processes: every
        # process reads all of them and takes the rows of its own clients.
        for shard in state["store"]:
            self.store.restore(shard, folder / "clients", mine=self.processes.at_home)
        if self.checkpointing is not None:
            self.checkpointing.saved_round = self.progress.round
        for logger in self.loggers:
            if hasattr(logger, "continue_from"):
                logger.continue_from(folder, self.progress.round)
        self.lightning.call("on_load_checkpoint", state)
        self.model.module.on_load_checkpoint(state)

    def want(self, path: Path, weights_only: bool) -> None:
        """Write a checkpoint to ``path``: now, or at the end of the round where one is under way.

        Every process must call it. The middle of a round is no place to go on from.

        Args:
            path: the file.
            weights_only: leave out what resuming needs.
        """
        self._wanted[path] = weights_only
        if not self.progress.is_in_round:
            self.save_wanted()

    def save_wanted(self) -> None:
        """Write the checkpoints that were asked for in this round; every process must call it."""
        while self._wanted:
            path, weights_only = self._wanted.popitem()
            if weights_only:
                self._write({**self.weights(), "weights_only": True}, path)
            else:
                self.save(path)

    def save(self, path: Path) -> None:
        """Write a checkpoint to ``path``; every process must call it."""
        # The order matters: a process that is killed at any point must leave a checkpoint whose client rows are still
        # in the row files. The new snapshot keeps its rows, then the new file replaces the old one, and only then may
        # the rows of the old snapshot be overwritten. The barrier tells the other processes that it is replaced.
        is_inside = path.parent == self.folder / "checkpoints"
        tag = f"{path.name if is_inside else path.resolve()}@{self.progress.round}"
        while tag in self._live_tags.values():  # a ModelCheckpoint has saved `last.ckpt` in this round, too
            tag += "+"
        state = self.state_dict(tag)
        if not is_inside:
            state["folder"] = str(self.folder.resolve())  # where the client rows are
        self._write(state, path)
        if path in self._live_tags:
            self.store.release(self._live_tags.pop(path))
        self._live_tags[path] = tag
        # Lightning's ModelCheckpoint removes files that are no longer among the best.
        for gone in self.processes.ask_first(lambda: [path for path in self._live_tags if not path.exists()]):
            self.store.release(self._live_tags.pop(gone))

    def _write(self, state: dict[str, Any], path: Path) -> None:
        for where, part in self._named_parts(state):
            to_plain(part, where)
        if self.processes.is_first:
            save_atomically(state, path)
        self.processes.barrier()

    def try_checkpoint(self, is_begun: bool = True) -> None:
        """Check that a checkpoint could be written now; every process must call it. Nothing is written.

        Tried before the first round and after it, since a run may train for days before its first checkpoint is due.

        Args:
            is_begun: whether rounds have been run, so that every callback must have a state.

        Raises:
            TypeError: some part of the state cannot be saved or not be loaded; names the part, the place and the type.
        """
        if self.checkpointing is None:
            return
        for callback in self.callbacks:
            try:
                own = callback.state_dict()
            except Exception:
                if is_begun:
                    raise
                continue  # it may make its state in a round
            check_savable(own, f"`{type(callback).__name__}.state_dict()`")
        others = {name: part for name, part in self.stateful.items() if name not in ("callbacks", "observers")}
        state = {name: part.state_dict() for name, part in others.items()}
        state["state_dict"] = self.server_state_dict()
        for where, value in self._named_parts(state):
            check_savable(value, where)
        if is_begun:  # hooks of checkpoints may ask for what comes of a round
            for name, value in self.weights().items():
                check_savable(value, f"`checkpoint[{name!r}]`")

    def _named_parts(self, state: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        """The parts of a state that users may have written, each with the name by which they know it."""
        groups: list[tuple[str, str, list[str]]] = [
            ("callbacks", "states", [type(c).__name__ for c in self.callbacks if not c.observes]),
            ("observers", "states", [type(c).__name__ for c in self.callbacks if c.observes]),
            ("loggers", "states", [type(logger).__name__ for logger in self.loggers]),
            ("learning_rates", "schedulers", self.rates.schedulers),
        ]
        for group, key, owners in groups:
            for owner, part in zip(owners, state.get(group, {}).get(key, ()), strict=False):
                yield f"`{owner}.state_dict()`", part
        for owner, part in state.get("lightning", {}).items():
            yield f"`{owner.partition('{')[0]}.state_dict()`", part
        for name in ("server", "checkpointing", "state_dict"):
            owner = {"server": "server_optimizer", "state_dict": type(self.model.module).__name__}.get(name, name)
            if name in state:
                yield f"`{owner}.state_dict()`", state[name]


def _copied(value: Any) -> Any:
    """A tensor on the CPU; a module's state may have others too (``get_extra_state``)."""
    return value.detach().cpu().clone() if isinstance(value, Tensor) else value


class _Algorithms:
    """The states of the callbacks that training depends on, in the order of the stack."""

    def __init__(self, callbacks: list[FederatedCallback]) -> None:
        self._callbacks = [callback for callback in callbacks if not callback.observes]

    def state_dict(self) -> dict[str, Any]:
        return {"states": [callback.state_dict() for callback in self._callbacks]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for callback, saved in zip(self._callbacks, state_dict["states"], strict=True):
            callback.load_state_dict(saved)


class _Observers:
    """The states of observing callbacks, which may be added, removed and changed when a run is resumed."""

    def __init__(self, callbacks: list[FederatedCallback]) -> None:
        self._callbacks = [callback for callback in callbacks if callback.observes]

    def state_dict(self) -> dict[str, Any]:
        return {"states": [(describe(callback), callback.state_dict()) for callback in self._callbacks]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for callback in self._callbacks:
            for settings, saved in state_dict["states"]:
                # A callback that is new, or whose arguments have changed, finds no state and starts from scratch.
                if settings == describe(callback):
                    callback.load_state_dict(saved)


class _Loggers:
    """The states of the loggers that have one, in the order of the loggers."""

    def __init__(self, loggers: list[Logger]) -> None:
        self._loggers: list[Any] = list(loggers)

    def state_dict(self) -> dict[str, Any]:
        return {"states": [dict(g.state_dict() or {}) if hasattr(g, "state_dict") else {} for g in self._loggers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        # Not strict: other loggers are accepted when a run is resumed.
        for logger, saved in zip(self._loggers, state_dict["states"], strict=False):
            if saved and hasattr(logger, "load_state_dict"):
                logger.load_state_dict(saved)
