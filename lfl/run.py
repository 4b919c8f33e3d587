"""What one run consists of; its state is the checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import lightning
from lightning.pytorch.loggers import Logger
from torch import Tensor
from typing_extensions import override

from lfl.callback import FederatedCallback, overrides
from lfl.checkpointing import Checkpointing
from lfl.client.work import LocalPhase
from lfl.engine.base import LocalEngine
from lfl.engine.fine_tuning import EngineFineTuner
from lfl.federation import Federation, FineTuner
from lfl.reporting.progress import ProgressDisplay
from lfl.reporting.summary import RunSummary
from lfl.storage.checkpoint_file import save_atomically
from lfl.storage.fingerprint import describe


class Stateful(Protocol):
    """Whatever outlives a round."""

    def state_dict(self) -> dict[str, Any]:
        """The state, as tensors, numbers, strings, lists and dicts."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The inverse of ``state_dict``."""


@dataclass
class Progress:
    """How far a run has come.

    Attributes:
        round: the last finished round; 0 before the first.
        refused: updates that were not finite, in all rounds.
        simulated_seconds: of the simulated system, by name, in all rounds.
    """

    round: int = 0
    refused: int = 0
    simulated_seconds: dict[str, float] = field(default_factory=dict)

    def state_dict(self) -> dict[str, Any]:
        """All of it."""
        return {"round": self.round, "refused": self.refused, "simulated_seconds": dict(self.simulated_seconds)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The inverse of ``state_dict``."""
        self.round, self.refused = state_dict["round"], state_dict["refused"]
        self.simulated_seconds = dict(state_dict["simulated_seconds"])


@dataclass(kw_only=True)
class Run(Federation):
    """One run: the federation that callbacks see, and what the loop needs besides. Built by ``fit``, once for each run.

    ``state_dict`` is what a checkpoint holds and ``load_state_dict`` resumes from it; both go through one list,
    ``stateful``. A part that outlives a round is in that list, in ``store``, or a setting.

    Attributes:
        callbacks: the stack, in the user's order.
        engine: trains the clients.
        on_nonfinite: what happens to updates that are not finite.
        check_val_every_n_rounds: rounds between evaluations.
        val_dataloaders: the server's validation data; None where the module has no validation step.
        checkpointing: when checkpoints are written; None for never.
        loggers: where metrics go.
        display: what people see.
        folder: the run's own.
        description: what the run's numbers depend on, but for rounding, in plain values.
        progress: how far the run has come.
        summary: best and last values of all metrics.
    """

    callbacks: list[FederatedCallback]
    engine: LocalEngine
    on_nonfinite: Literal["stop", "skip"]
    check_val_every_n_rounds: int
    val_dataloaders: Any
    checkpointing: Checkpointing | None
    loggers: list[Logger]
    display: ProgressDisplay
    folder: Path
    description: dict[str, Any]
    progress: Progress = field(default_factory=Progress)
    summary: RunSummary = field(default_factory=RunSummary)
    _live_tags: dict[str, str] = field(default_factory=dict)  # snapshots of the store, by the file that needs them

    # -- what callbacks may ask -------------------------------------------------------------------------------------

    @property
    @override
    def clients_at_once(self) -> int:
        return self.engine.cohort_size

    @override
    def personal_models(self, ids: Tensor) -> Tensor:
        params = self.server.vector.repeat(len(ids), 1)
        for callback in self._personalizing:
            callback.personalize(ids, params)
        return params

    @override
    def fine_tuner(self, phases: Sequence[LocalPhase]) -> FineTuner:
        return EngineFineTuner(self.engine, phases, self._personalizing, self.server, self.rates)

    @property
    def _personalizing(self) -> list[FederatedCallback]:
        return [callback for callback in self.callbacks if overrides(callback, "personalize")]

    # -- the server's model -----------------------------------------------------------------------------------------

    def load_server_model(self) -> None:
        """Make the module the server's model: its parameters are then x itself."""
        self.model.load(self.server.vector, self.server.buffers, self.server.counters)

    def server_state_dict(self) -> dict[str, Tensor]:
        """The module's state dict with the server's parameters and buffers."""
        return self.model.state_dict_of(self.server.vector, self.server.buffers, self.server.counters)

    def is_evaluation_due(self, round_number: int) -> bool:
        """Whether a round ends with an evaluation of the server's model."""
        if self.val_dataloaders is None:
            return False
        return round_number % self.check_val_every_n_rounds == 0 or round_number == self.max_rounds

    @property
    def engine_choice(self) -> dict[str, str | int]:
        """Which engine trains the clients, and how many together: rounding depends on it."""
        return {"name": self.engine.name, "cohort_size": int(self.engine.cohort_size)}

    # -- the state of a run -----------------------------------------------------------------------------------------

    @property
    def stateful(self) -> dict[str, Stateful]:
        """Everything that outlives a round but the clients' rows, by its name in a checkpoint."""
        parts: dict[str, Stateful] = {
            "progress": self.progress,
            "server": self.server,
            "callbacks": _Algorithms(self.callbacks),
            "observers": _Observers(self.callbacks),
            "ledger": self.ledger,
            "learning_rates": self.rates,
            "summary": self.summary,
            "loggers": _Loggers(self.loggers),
        }
        return parts if self.checkpointing is None else {**parts, "checkpointing": self.checkpointing}

    def state_dict(self, tag: str = "state") -> dict[str, Any]:
        """The run's whole state; every process must call it.

        Args:
            tag: names the snapshot of the client rows, until ``store.release(tag)``.
        """
        module = self.model.module
        return {
            **{name: part.state_dict() for name, part in self.stateful.items()},
            "store": self.processes.gather(self.store.snapshot(tag)),
            "settings": self.description,
            "engine": self.engine_choice,
            # For readers, Lightning, `lfl test`, and the parameters that are not trained.
            "round": self.progress.round,
            "state_dict": {name: value.detach().cpu().clone() for name, value in self.server_state_dict().items()},
            "model_class": f"{type(module).__module__}.{type(module).__qualname__}",
            "pytorch-lightning_version": lightning.__version__,
        }

    def load_state_dict(self, state: dict[str, Any], folder: Path) -> None:
        """Continue from the state of a run with the same settings.

        Args:
            state: what ``state_dict`` gave.
            folder: of the run that it is from: it has the client rows that were in files, and the metrics.
        """
        if state["engine"] != self.engine_choice:
            before, after = (
                f"{e['name']} (cohorts of {e['cohort_size']})" for e in (state["engine"], self.engine_choice)
            )
            self.display.message(f"The engine was {before} and is now {after}: equal up to rounding, not bit for bit.")
        self.model.bind(self.server.vector.clone())
        self.model.module.load_state_dict(state["state_dict"])
        for name, part in self.stateful.items():
            if name in state:
                part.load_state_dict(state[name])
        for shard in state["store"]:
            self.store.restore(shard, folder / "clients", mine=self.processes.at_home)
        if self.checkpointing is not None:
            self.checkpointing.saved_round = self.progress.round
        for logger in self.loggers:
            if hasattr(logger, "continue_from"):
                logger.continue_from(folder, self.progress.round)

    def save(self, name: str) -> None:
        """Write the checkpoint ``name`` into the run's folder, beside and then renamed; every process must call it."""
        tag = f"{name}@{self.progress.round}"
        state = self.state_dict(tag)
        if self.processes.is_first:
            save_atomically(state, self.folder / "checkpoints" / name)
        self.processes.barrier()
        # The file that was replaced no longer needs the rows that it referred to.
        if name in self._live_tags:
            self.store.release(self._live_tags[name])
        self._live_tags[name] = tag


class _Algorithms:
    """The states of callbacks that training depends on, in the stack's order."""

    def __init__(self, callbacks: list[FederatedCallback]) -> None:
        self._callbacks = [callback for callback in callbacks if not callback.observes]

    def state_dict(self) -> dict[str, Any]:
        return {"states": [callback.state_dict() for callback in self._callbacks]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for callback, saved in zip(self._callbacks, state_dict["states"], strict=True):
            callback.load_state_dict(saved)


class _Observers:
    """The states of callbacks that only look: they may come, go and change when a run is resumed."""

    def __init__(self, callbacks: list[FederatedCallback]) -> None:
        self._callbacks = [callback for callback in callbacks if callback.observes]

    def state_dict(self) -> dict[str, Any]:
        return {"states": [(describe(callback), callback.state_dict()) for callback in self._callbacks]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for callback in self._callbacks:
            for settings, saved in state_dict["states"]:
                if settings == describe(callback):  # one that is new or has changed starts anew
                    callback.load_state_dict(saved)


class _Loggers:
    """The states of loggers that have one, in order."""

    def __init__(self, loggers: list[Logger]) -> None:
        self._loggers: list[Any] = list(loggers)

    def state_dict(self) -> dict[str, Any]:
        return {"states": [dict(g.state_dict()) if hasattr(g, "state_dict") else {} for g in self._loggers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for logger, saved in zip(self._loggers, state_dict["states"], strict=False):
            if saved and hasattr(logger, "load_state_dict"):
                logger.load_state_dict(saved)
