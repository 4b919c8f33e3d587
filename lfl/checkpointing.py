"""When checkpoints are written, and what is in them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import lightning
from jsonargparse.typing import PositiveInt
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.pytorch import LightningModule

from lfl.processes.deal import at_home
from lfl.reporting.formats import direction_of
from lfl.storage.checkpoint_file import CheckpointError, save_atomically
from lfl.storage.fingerprint import describe

if TYPE_CHECKING:
    from lfl.trainer import FederatedTrainer


class Checkpointing:
    """Writes checkpoints at the ends of rounds, each beside and then renamed: a crash leaves the last one usable.

    ``last.ckpt`` is written every ``every_n_rounds`` rounds and at the end; ``best.ckpt`` when ``monitor`` improves.

    Args:
        every_n_rounds: distance of checkpoints.
        monitor: a logged metric, such as ``val_acc``; none for no best checkpoint.
        mode: whether ``monitor`` should be large or small; auto goes by its name (loss and error small, acc large).
        keep_all: also keep ``round_000010.ckpt`` and so on.
    """

    def __init__(
        self,
        every_n_rounds: PositiveInt = 10,
        monitor: str | None = None,
        mode: Literal["auto", "max", "min"] = "auto",
        keep_all: bool = False,
    ) -> None:
        if monitor is not None and mode == "auto" and not direction_of(monitor):
            raise ValueError(f"The name `monitor={monitor}` does not say what is better: set `mode` to max or min.")
        self.every_n_rounds, self.monitor, self.mode, self.keep_all = every_n_rounds, monitor, mode, keep_all
        self.best: float | None = None
        self.saved_round = 0
        self._tags: dict[str, str] = {}

    def start(self) -> None:
        """Begin a run: one object may serve several."""
        self.best, self.saved_round, self._tags = None, 0, {}

    def after_round(
        self, trainer: FederatedTrainer, round_number: int, metrics: dict[str, float], is_final: bool
    ) -> None:
        """Write what is due."""
        improved = self._improves(metrics, round_number)
        due = is_final or round_number % self.every_n_rounds == 0
        if improved:
            self.best = metrics[str(self.monitor)]
            self.save(trainer, "best.ckpt")
        if due:
            self.save(trainer, "last.ckpt")
            self.saved_round = round_number
        if due and self.keep_all:
            self.save(trainer, f"round_{round_number:06d}.ckpt")

    def at_end(self, trainer: FederatedTrainer) -> None:
        """Write what is missing: a signal may have come after the last round decided that nothing is due."""
        if self.monitor is not None and self.best is None and trainer.current_round:
            rank_zero_warn(f"No round logged `checkpoint.monitor={self.monitor}`: there is no best checkpoint.")
        if trainer.current_round > self.saved_round:
            self.save(trainer, "last.ckpt")
            self.saved_round = trainer.current_round

    def save(self, trainer: FederatedTrainer, name: str) -> None:
        """Write one checkpoint into the run's folder."""
        path = Path(trainer.log_dir) / "checkpoints" / name
        tag = f"{name}@{trainer.current_round}"
        shards = trainer.gather_objects(trainer.store.snapshot(tag))
        if trainer.is_global_zero:
            path.parent.mkdir(exist_ok=True)
            save_atomically({**trainer_state(trainer), "store": shards}, path)
        trainer.fabric.barrier()
        # The checkpoint that is now replaced no longer needs the rows it referred to.
        if name in self._tags:
            trainer.store.release(self._tags[name])
        self._tags[name] = tag

    def _improves(self, metrics: dict[str, float], round_number: int) -> bool:
        if self.monitor is None:
            return False
        value = metrics.get(self.monitor, math.nan)
        if math.isnan(value):
            return False
        if self.best is None:
            return True
        is_larger_better = direction_of(str(self.monitor)) > 0 if self.mode == "auto" else self.mode == "max"
        return value > self.best if is_larger_better else value < self.best


def trainer_state(trainer: FederatedTrainer) -> dict[str, Any]:
    """Everything that outlives a round, but the client store."""
    module = trainer.client_model.module
    return {
        "round": trainer.current_round,
        "state_dict": {name: value.detach().cpu().clone() for name, value in trainer.server_state_dict().items()},
        "pytorch-lightning_version": lightning.__version__,
        "model_class": f"{type(module).__module__}.{type(module).__qualname__}",
        "server": trainer.server.state_dict(),
        "server_buffers": trainer.server_buffers.cpu().clone(),
        "server_counters": [counter.cpu().clone() for counter in trainer.server_counters],
        "callback_states": [callback.state_dict() for callback in trainer.stack if not callback.observes],
        "observer_states": [(describe(c), c.state_dict()) for c in trainer.stack if c.observes],
        "ledger": trainer.ledger.state_dict(),
        "learning_rates": trainer.learning_rates.state_dict(),
        "summary": trainer.summary.state_dict(),
        "loggers": [_logger_state(logger) for logger in trainer.loggers],
        "best": trainer.checkpoint.best if trainer.checkpoint else None,
        "total_refused": trainer.total_refused,
        "simulated_seconds": dict(trainer.simulated_seconds),
        "engine": {"name": trainer.engine.name, "cohort_size": int(trainer.engine.cohort_size)},
        "settings": trainer.settings,
    }


def restore_trainer(trainer: FederatedTrainer, state: dict[str, Any], path: Path) -> None:
    """Continue from a checkpoint: fill the trainer's state, and carry the earlier metrics into the new run's folder.

    Args:
        trainer: built with the same settings.
        state: what the checkpoint holds.
        path: where it lies: the rows of clients that were in files, and the metrics, are in the folder above.
    """
    run_folder = path.resolve().parent.parent
    _note_other_engine(trainer, state["engine"])
    trainer.current_round = state["round"]
    trainer.server.load_state_dict(state["server"])
    trainer.load_frozen_state(state["state_dict"])
    trainer.server_buffers = state["server_buffers"].to(trainer.fabric.device)
    trainer.server_counters = [counter.to(trainer.fabric.device) for counter in state["server_counters"]]
    algorithms = (callback for callback in trainer.stack if not callback.observes)
    for callback, saved in zip(algorithms, state["callback_states"], strict=True):
        callback.load_state_dict(saved)
    for observer in (callback for callback in trainer.stack if callback.observes):
        for settings, saved in state["observer_states"]:
            if settings == describe(observer):  # one that is new or has changed starts anew
                observer.load_state_dict(saved)
    trainer.ledger.load_state_dict(state["ledger"])
    trainer.learning_rates.load_state_dict(state["learning_rates"])
    trainer.summary.load_state_dict(state["summary"])
    trainer.total_refused = state["total_refused"]
    trainer.simulated_seconds = dict(state["simulated_seconds"])
    if trainer.checkpoint:
        trainer.checkpoint.best = state["best"]
        trainer.checkpoint.saved_round = state["round"]
    for shard in state["store"]:
        trainer.store.restore(shard, run_folder / "clients", mine=lambda ids: at_home(ids, trainer.fabric))
    for logger, saved in zip(trainer.loggers, state["loggers"], strict=False):
        if saved and hasattr(logger, "load_state_dict"):
            logger.load_state_dict(saved)
        if hasattr(logger, "continue_from"):
            logger.continue_from(run_folder, state["round"])


def load_weights(module: LightningModule, state: dict[str, Any], path: Path | None) -> None:
    """Take the weights of a checkpoint, for evaluation.

    Raises:
        CheckpointError: they are those of another model.
    """
    try:
        module.load_state_dict(state["state_dict"])
    except RuntimeError as error:
        reason = " ".join(str(error).split("\n\t")[1:2]).rstrip(". ")
        raise CheckpointError(
            f"The weights of {path} do not fit {type(module).__name__}: {reason}. Use the run's own config.yaml."
        ) from error


def _logger_state(logger: Any) -> dict[str, Any]:
    return dict(logger.state_dict()) if hasattr(logger, "state_dict") else {}


def _note_other_engine(trainer: FederatedTrainer, saved: dict[str, Any]) -> None:
    now = {"name": trainer.engine.name, "cohort_size": trainer.engine.cohort_size}
    if now != saved:
        before, after = (f"{e['name']} (cohorts of {e['cohort_size']})" for e in (saved, now))
        trainer.display.message(f"The engine was {before} and is now {after}: equal up to rounding, not bit for bit.")
