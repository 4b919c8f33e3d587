"""All that a LightningModule, Lightning's own callbacks and users may ask of the trainer, as they ask Lightning's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from lightning.fabric import Fabric
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping
from lightning.pytorch.loggers import Logger
from lightning.pytorch.trainer.states import RunningStage, TrainerFn, TrainerState, TrainerStatus
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import Tensor
from torch.optim import Optimizer

from lfl.client.rates import LearningRates
from lfl.client.schedule import steps_per_epoch_of
from lfl.coming_from_lightning import missing_attribute
from lfl.data.base import FederatedData
from lfl.data.stores import limited
from lfl.facade import RunFacade
from lfl.lightning_callbacks import LightningCallbacks
from lfl.settings import Settings

_STAGES = {
    "fit": RunningStage.TRAINING,
    "validate": RunningStage.VALIDATING,
    "test": RunningStage.TESTING,
    "predict": RunningStage.PREDICTING,
}


class LightningFacade(RunFacade):
    """Those attributes of ``lightning.Trainer`` that have a meaning in federated training.

    To a LightningModule a round is an epoch, and one step. What concerns the batches of an epoch is that of the client
    with the most. An attribute without a meaning says what to use.
    """

    fabric: Fabric
    callbacks: list[Callback]
    loggers: list[Logger]
    default_root_dir: Path
    fast_dev_run: bool | int
    num_nodes: int
    ckpt_path: str | None = None  # the checkpoint of the last call
    _settings: Settings
    _datamodule: FederatedData | None = None
    _module: LightningModule | None = None
    _lightning: LightningCallbacks | None = None
    _rates: LearningRates | None = None  # of the run; steps that are tried before there is one ask for them, too
    _function = TrainerFn.FITTING
    _status = TrainerStatus.INITIALIZING

    if not TYPE_CHECKING:  # or every misspelt attribute would have a type

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(missing_attribute(type(self).__name__, name))

    # -- module and data ----------------------------------------------------------------------------------------------

    @property
    def lightning_module(self) -> LightningModule | None:
        """The module of the last call; None before the first."""
        return self._module

    @property
    def model(self) -> LightningModule | None:
        """The module of the last call; None before the first."""
        return self._module

    @property
    def datamodule(self) -> FederatedData | None:
        """The data module of the last call; None before the first."""
        return self._datamodule

    @property
    def val_dataloaders(self) -> Any:
        """The batches of validation; None before the first call."""
        return self._batches("val")

    @property
    def test_dataloaders(self) -> Any:
        """The batches of testing; None before the first call."""
        return self._batches("test")

    @property
    def predict_dataloaders(self) -> Any:
        """The batches of prediction; None before the first call."""
        return self._batches("predict")

    @property
    def num_training_batches(self) -> int:
        """Number of batches that the largest client has in an epoch; 0 before the first call."""
        if self._datamodule is None:
            return 0
        return int(steps_per_epoch_of(self._datamodule.client_sizes, self._datamodule.batch_size).max())

    @property
    def num_val_batches(self) -> list[int]:
        """Number of batches of validation, of each dataloader."""
        return _lengths(self.val_dataloaders)

    @property
    def num_test_batches(self) -> list[int]:
        """Number of batches of testing, of each dataloader."""
        return _lengths(self.test_dataloaders)

    @property
    def num_predict_batches(self) -> list[int]:
        """Number of batches of prediction, of each dataloader."""
        return _lengths(self.predict_dataloaders)

    @property
    def estimated_stepping_batches(self) -> int:
        """Number of steps that an optimizer takes: those of the largest client in a round, since it gets a new one.

        This is what schedulers with interval "step" need; those with interval "epoch" take ``max_rounds`` steps.
        """
        if self._datamodule is None:
            return 0
        sizes, batch_size = self._datamodule.client_sizes, self._datamodule.batch_size
        # Every phase of the local work has an optimizer of its own.
        return max(int(phase.num_steps(sizes, batch_size).max()) for phase in self._settings.work.phases)

    # -- metrics ------------------------------------------------------------------------------------------------------

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        """The last value of every metric, by name; the dictionary may be changed."""
        return {} if self._lightning is None else self._lightning.metrics

    @property
    def logged_metrics(self) -> dict[str, Tensor]:
        """The last value of every metric, by name: all are logged."""
        return self.callback_metrics

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        """The last value of every metric, as numbers."""
        return {name: float(value) for name, value in self.callback_metrics.items()}

    # -- how far the run has come -------------------------------------------------------------------------------------

    @property
    def current_epoch(self) -> int:
        """Number of completed rounds, since to a LightningModule a round is an epoch."""
        return self._run.progress.epoch if self._run is not None else 0

    @property
    def global_step(self) -> int:
        """Number of completed rounds, since metrics are logged per round."""
        return self.current_round

    @property
    def max_rounds(self) -> int:
        """The last round; settings are made by the constructor and cannot be changed."""
        return self._settings.max_rounds

    @property
    def max_epochs(self) -> int:
        """``max_rounds``, under the name that a LightningModule knows."""
        return self.max_rounds

    @property
    def min_epochs(self) -> None:
        """Always None: a run has ``max_rounds`` rounds."""

    @property
    def max_steps(self) -> int:
        """Always -1, as in Lightning where steps are not limited."""
        return -1

    @property
    def min_steps(self) -> None:
        """Always None: a run has ``max_rounds`` rounds."""

    @property
    def should_stop(self) -> bool:
        """Whether the run ends after the current round; may be set."""
        return self._run is not None and self._run.stop_request.should_stop

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        self.run.stop_request.should_stop = value

    @property
    def interrupted(self) -> bool:
        """Whether an exception or a signal ended the last call."""
        return self._status is TrainerStatus.INTERRUPTED

    @property
    def state(self) -> TrainerState:
        """The state of the trainer: ``fn`` (fit, test, ...), ``stage`` (training, validating, ...) and ``status``."""
        evaluating = self._run.evaluator.stage if self._run is not None else None
        stage = _STAGES[evaluating or self._function.value] if self._status is TrainerStatus.RUNNING else None
        return TrainerState(status=self._status, fn=self._function, stage=stage)

    @property
    def training(self) -> bool:
        """Whether clients are being trained."""
        return self.state.stage == RunningStage.TRAINING

    @property
    def validating(self) -> bool:
        """Whether validation steps are run."""
        return self.state.stage == RunningStage.VALIDATING

    @property
    def testing(self) -> bool:
        """Whether test steps are run."""
        return self.state.stage == RunningStage.TESTING

    @property
    def predicting(self) -> bool:
        """Whether prediction steps are run."""
        return self.state.stage == RunningStage.PREDICTING

    @property
    def evaluating(self) -> bool:
        """Whether validation or test steps are run."""
        return self.validating or self.testing

    @property
    def sanity_checking(self) -> bool:
        """Always False: steps are tried before round 1, on copies."""
        return False

    @property
    def num_sanity_val_steps(self) -> int:
        """Always 0: steps are tried before round 1, on copies."""
        return 0

    # -- optimizers ---------------------------------------------------------------------------------------------------

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizer whose learning rates all clients get in the next round; it takes no steps itself."""
        return [] if self._rates is None else [self._rates.optimizer]

    @property
    def lr_scheduler_configs(self) -> list[LRSchedulerConfig]:
        """The schedulers that step once a round."""
        return [] if self._rates is None else self._rates.configs

    @property
    def accumulate_grad_batches(self) -> int:
        """Always 1: a client's step is one batch."""
        return 1

    @property
    def gradient_clip_val(self) -> float | None:
        """The limit of local gradients; None for no clipping."""
        return self._settings.work.clip_value

    @property
    def gradient_clip_algorithm(self) -> str:
        """Whether the norm of a gradient is clipped, or each value."""
        return self._settings.work.clip_algorithm

    # -- settings -----------------------------------------------------------------------------------------------------

    @property
    def seed(self) -> int:
        """The seed of all draws of the training."""
        return self._settings.seed

    @property
    def precision(self) -> str:
        """The precision, such as 32-true."""
        return self._settings.precision

    @property
    def check_val_every_n_epoch(self) -> int:
        """``check_val_every_n_rounds``, under the name that Lightning's callbacks know."""
        return self._settings.check_val_every_n_rounds

    @property
    def check_val_every_n_rounds(self) -> int:
        """Number of rounds between evaluations."""
        return self._settings.check_val_every_n_rounds

    @property
    def val_check_interval(self) -> float:
        """Always 1.0: validation comes at the end of a round."""
        return 1.0

    @property
    def log_every_n_steps(self) -> int:
        """Number of rounds between rows in the logs."""
        return self._settings.log_every_n_steps

    @property
    def limit_val_batches(self) -> int | float:
        """The number of batches that validation takes, or their share."""
        return self._settings.limit_val_batches

    @property
    def limit_test_batches(self) -> int | float:
        """The number of batches that testing takes, or their share."""
        return self._settings.limit_test_batches

    @property
    def enable_validation(self) -> bool:
        """Whether there is anything to validate."""
        return bool(sum(self.num_val_batches))

    # -- callbacks and loggers ----------------------------------------------------------------------------------------

    @property
    def checkpoint_callbacks(self) -> list[Checkpoint]:
        """Lightning's checkpoint callbacks among ``callbacks``."""
        return [callback for callback in self.callbacks if isinstance(callback, Checkpoint)]

    @property
    def checkpoint_callback(self) -> Checkpoint | None:
        """The first of ``checkpoint_callbacks``; the trainer's own ``checkpoint`` is a setting, not a callback."""
        return next(iter(self.checkpoint_callbacks), None)

    @property
    def early_stopping_callbacks(self) -> list[EarlyStopping]:
        """The EarlyStopping callbacks among ``callbacks``."""
        return [callback for callback in self.callbacks if isinstance(callback, EarlyStopping)]

    @property
    def early_stopping_callback(self) -> EarlyStopping | None:
        """The first of ``early_stopping_callbacks``."""
        return next(iter(self.early_stopping_callbacks), None)

    @property
    def progress_bar_callback(self) -> None:
        """Always None; ``LightningModule.print`` asks for it."""

    @property
    def logger(self) -> Logger | None:
        """The first logger: the user's first, or the one that writes the CSV files."""
        return self.loggers[0] if self.loggers else None

    def save_checkpoint(self, filepath: str | Path, weights_only: bool = False) -> None:
        """Write a checkpoint: now, or at the end of the round where one is under way. Every process must call it.

        Args:
            filepath: the file.
            weights_only: leave out what resuming needs.

        Raises:
            RuntimeError: there was no run yet.
        """
        self.run.want(Path(filepath), weights_only)

    # -- processes and devices ----------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        return self.fabric.device

    @property
    def accelerator(self) -> Any:
        """Fabric's accelerator."""
        return self.fabric.accelerator

    @property
    def is_global_zero(self) -> bool:
        """Whether this is the process that writes files (rank 0)."""
        return bool(self.fabric.is_global_zero)

    @property
    def global_rank(self) -> int:
        """Rank of this process, from 0."""
        return self.fabric.global_rank

    @property
    def local_rank(self) -> int:
        """Rank of this process on its machine, from 0."""
        return self.fabric.local_rank

    @property
    def node_rank(self) -> int:
        """Rank of this machine, from 0."""
        return self.fabric.node_rank

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return self.fabric.world_size

    @property
    def num_devices(self) -> int:
        """Number of processes on each machine, one per device."""
        return self.world_size // self.num_nodes

    @property
    def strategy(self) -> Any:
        """Fabric's strategy, with what Lightning's own classes ask of a strategy besides."""
        return _Strategy(self)

    @property
    def fit_loop(self) -> Any:
        """The few counts that Lightning's own callbacks take from the training loop."""
        step = self.current_round + (1 if self._run is not None and self._run.progress.is_in_round else 0)
        validation = SimpleNamespace(_has_run=step > 0)
        batches = SimpleNamespace(is_last_batch=True)
        epoch_loop = SimpleNamespace(_batches_that_stepped=step, val_loop=validation, batch_progress=batches)
        return SimpleNamespace(epoch_loop=epoch_loop, max_epochs=self.max_rounds)

    def _batches(self, name: str) -> Any:
        if self._datamodule is None:
            return None
        limit = {"val": self.limit_val_batches, "test": self.limit_test_batches}.get(name, 1.0)
        return limited(getattr(self._datamodule, f"{name}_dataloader")(), limit, f"limit_{name}_batches")


class _Strategy:
    """Fabric's strategy, and what Lightning's classes ask of a strategy besides."""

    def __init__(self, trainer: LightningFacade) -> None:
        self._trainer = trainer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer.fabric.strategy, name)

    @property
    def _lightning_optimizers(self) -> list[Optimizer]:
        return self._trainer.optimizers

    def remove_checkpoint(self, filepath: str | Path) -> None:
        """Remove a checkpoint file; every process may call it."""
        if self._trainer.is_global_zero:
            Path(filepath).unlink(missing_ok=True)


def _lengths(dataloaders: Any) -> list[int]:
    if dataloaders is None:
        return []
    return [len(loader) for loader in (dataloaders if isinstance(dataloaders, list | tuple) else [dataloaders])]
