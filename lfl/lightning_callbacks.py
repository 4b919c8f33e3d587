"""Lightning's own callbacks beside federated ones: which have a meaning here, and when their hooks are called.

A round is an epoch. Local steps are taken for many clients at once, so that hooks of training batches are never called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.pytorch import Callback, LightningModule, callbacks
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.callbacks.timer import Interval
from lightning.pytorch.cli import SaveConfigCallback
from torch import Tensor

from lfl.callback import FederatedCallback

_OF_BATCHES = (
    "on_train_batch_start",
    "on_train_batch_end",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_before_zero_grad",
)
# Lightning's callbacks that have no meaning here, by class name (some are missing in older versions), and why.
_REFUSED = {
    "StochasticWeightAveraging": "every client has a fresh optimizer in every round, so that there is no one path of "
    "weights to average; a `server_optimizer` with momentum averages updates over rounds",
    "WeightAveraging": "it follows one optimizer's steps, and every client has its own; keep an average of "
    "`trainer.server.vector` in a FederatedCallback's `on_server_step`",
    "GradientAccumulationScheduler": "a client's step is one batch: set `data.batch_size`",
    "BatchSizeFinder": "it tries steps of one model on pooled data: set `data.batch_size`",
    "LearningRateFinder": "it trains one model on pooled data: try rates with `--optimizer.lr`, or a sweep",
    "BaseFinetuning": "it adds parameters to one optimizer, and every client has a fresh one: set `requires_grad` in "
    "the module's `on_train_epoch_start`",
    "ModelPruning": "it replaces parameters during training, and clients send all of them",
    "ProgressBar": "lfl shows its own progress; `enable_progress_bar=False` hides it",
    "OnExceptionCheckpoint": "the middle of a round is no place to go on from; `checkpoints/last.ckpt` of the last "
    "finished round stays, whatever happens",
    "DeviceStatsMonitor": "it reads the device at every training batch",
    "ThroughputMonitor": "it counts training batches; `time/train_s` is logged in every round",
    "BasePredictionWriter": "`predict` returns the predictions, and writes them to `predictions.pt`",
}
_FOLDER = "_lfl_dirpath"  # attribute of a ModelCheckpoint: the folder that `prepare` gave it


class LightningCallbacks:
    """All callbacks of a trainer, as Lightning calls them: with the trainer and the module.

    Callbacks that watch metrics to stop a run or to save it (EarlyStopping, ModelCheckpoint) come after all others,
    when a round is finished.

    Args:
        trainer: passed to the hooks.
        module: passed to the hooks.
        callbacks: the callbacks, in the user's order.
    """

    def __init__(self, trainer: Any, module: LightningModule, callbacks: Sequence[Callback]) -> None:
        self._trainer = trainer
        self._module = module
        self._callbacks = list(callbacks)
        # Those that save come last, as in Lightning: their files hold what the others have come to in this round.
        self._watching = sorted(filter(is_watching, callbacks), key=lambda c: isinstance(c, Checkpoint))
        self._calls: dict[str, list[Callable[..., Any]]] = {}
        self._latest: dict[str, Any] = {}  # published since the metrics were asked for
        self._metrics: dict[str, Tensor] = {}

    def publish(self, metrics: Mapping[str, Any]) -> None:
        """Make metrics known to the callbacks."""
        self._latest.update(metrics)

    @property
    def metrics(self) -> dict[str, Tensor]:
        """The last value of each metric, by name; callbacks may add some."""
        self._metrics.update(
            {name: torch.tensor(float(value), dtype=torch.float64) for name, value in self._latest.items()}
        )
        self._latest.clear()
        return self._metrics

    @property
    def watch(self) -> bool:
        """Whether a callback may stop the run after a round is finished."""
        return any(not isinstance(callback, FederatedCallback) for callback in self._callbacks)

    def call(self, hook: str, *args: Any) -> None:
        """Call a hook of all callbacks that have it, in order; of those that watch metrics only where they set up."""
        if hook not in self._calls:  # looked up once: most callbacks have few hooks
            waits = hook in ("on_validation_end", "on_train_epoch_end")
            chosen = [c for c in self._callbacks if has_hook(c, hook) and not (waits and is_watching(c))]
            self._calls[hook] = [self._function(callback, hook) for callback in chosen]
        for function in self._calls[hook]:
            function(self._trainer, self._module, *args)

    def _function(self, callback: Callback, hook: str) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(callback, hook)
        if not isinstance(callback, callbacks.ModelSummary):
            return function

        # It runs `example_input_array` through the module, by means of a trainer's inner parts if there is one.
        def alone(trainer: Any, module: LightningModule, *args: Any) -> None:
            module.trainer = None
            try:
                function(trainer, module, *args)
            finally:
                module.trainer = trainer

        return alone

    def end_round(self, was_evaluated: bool) -> None:
        """Show a finished round to the callbacks that watch metrics."""
        for callback in self._watching:
            if was_evaluated:
                callback.on_validation_end(self._trainer, self._module)
            callback.on_train_epoch_end(self._trainer, self._module)

    def state_dict(self) -> dict[str, Any]:
        """The states of Lightning's callbacks, by the key that each gives itself."""
        return {callback.state_key: state for callback in self._lightning if (state := callback.state_dict())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the states; a callback that is new starts from scratch."""
        for callback in self._lightning:
            if callback.state_key in state_dict:
                callback.load_state_dict(state_dict[callback.state_key])

    @property
    def _lightning(self) -> list[Callback]:
        return [callback for callback in self._callbacks if not isinstance(callback, FederatedCallback)]


def listed(callbacks: list[Callback] | Callback | None) -> list[Callback]:
    """The argument ``callbacks`` as a list; raises ValueError for callbacks that have no meaning here."""
    listed = callbacks if isinstance(callbacks, list) else [callbacks] if callbacks else []
    for callback in listed:
        check_callback(callback)
    _check_keys(listed)
    return list(listed)


def with_those_of(model: LightningModule, callbacks: list[Callback]) -> list[Callback]:
    """The callbacks, and those of the module, which replace others of their type, as in Lightning."""
    found = model.configure_callbacks()
    own = listed(list(found) if isinstance(found, Sequence) else [found])
    kinds = {type(callback) for callback in own}
    joined = [callback for callback in callbacks if type(callback) not in kinds] + own
    _check_keys(joined)
    return joined


def has_hook(callback: Callback, hook: str) -> bool:
    """Whether a callback implements a hook, in its class or as an attribute."""
    own = getattr(callback, hook, None)
    return own is not None and getattr(own, "__func__", own) is not getattr(Callback, hook, None)


def is_watching(callback: Callback) -> bool:
    """Whether a callback watches the metrics of finished rounds, to stop the run or to save it."""
    return isinstance(callback, callbacks.EarlyStopping | Checkpoint)


def check_callback(callback: Any) -> None:
    """Refuse what has no meaning here; warn of hooks that are never called.

    Raises:
        ValueError: it is not a callback, or one of Lightning's that cannot work here.
    """
    if isinstance(callback, FederatedCallback | SaveConfigCallback):
        return  # a stack has checks of its own
    if not isinstance(callback, Callback):
        raise ValueError(f"`callbacks` takes FederatedCallbacks and Lightning's callbacks, not {callback!r}.")
    for name, reason in _REFUSED.items():
        if any(kind.__name__ == name and kind.__module__.startswith("lightning.") for kind in type(callback).__mro__):
            raise ValueError(f"`callbacks` has a {type(callback).__name__}, which has no meaning here: {reason}.")
    _check_settings(callback)
    if type(callback).__module__.startswith("lightning.") and not isinstance(callback, callbacks.LambdaCallback):
        return
    uncalled = [hook for hook in _OF_BATCHES if has_hook(callback, hook)]
    if uncalled:
        rank_zero_warn(
            f"{type(callback).__name__} has {', '.join(uncalled)}, which lfl does not call: local steps are taken for "
            "many clients at once. A FederatedCallback sees them (`wrap_gradient`, `on_step_end`)."
        )


def _check_keys(callbacks: list[Callback]) -> None:
    """Refuse callbacks with a state under one key, of which a checkpoint would hold one state only."""
    keys: set[str] = set()
    for callback in callbacks:
        if isinstance(callback, FederatedCallback) or not has_hook(callback, "state_dict"):
            continue
        if callback.state_key in keys:
            raise ValueError(
                f"`callbacks` has more than one {type(callback).__name__} with the `state_key` "
                f"{callback.state_key!r}, and a checkpoint would hold the state of one only: leave one out, or let "
                "each have a `state_key` of its own."
            )
        keys.add(callback.state_key)


def _check_settings(callback: Callback) -> None:
    """Refuse settings of Lightning's callbacks that would silently do nothing."""
    if isinstance(callback, callbacks.LearningRateMonitor) and callback.logging_interval == "step":
        raise ValueError(
            "`LearningRateMonitor(logging_interval='step')` would log nothing: use 'epoch', since a round is an epoch."
        )
    if isinstance(callback, callbacks.ModelCheckpoint):
        every, interval = callback._every_n_train_steps, callback._train_time_interval
        if every or interval is not None:
            given = f"every_n_train_steps={every}" if every else f"train_time_interval={interval!r}"
            raise ValueError(
                f"`ModelCheckpoint({given})` would save nothing: use `every_n_epochs`, a number of rounds."
            )
        if callback.save_last and callback.save_weights_only and callback.dirpath is None:
            raise ValueError(
                "`ModelCheckpoint(save_last=True, save_weights_only=True)` would put weights in the place of "
                "`checkpoints/last.ckpt`, from which a run goes on: give it a `dirpath`, or leave out `save_last`."
            )
        if getattr(callback, "save_on_exception", False):
            raise ValueError(f"`ModelCheckpoint(save_on_exception=True)`: {_REFUSED['OnExceptionCheckpoint']}.")


def prepare(callback: Callback, folder: Path, stage: str = "fit") -> None:
    """Give one of Lightning's callbacks what it would otherwise ask Lightning's trainer for.

    Args:
        callback: any callback.
        folder: the run's folder.
        stage: what is run: fit, test, ...
    """
    if isinstance(callback, callbacks.ModelCheckpoint):
        # A folder that it was given here is that of an earlier run or evaluation, and no place for files of this one.
        given = vars(callback).get(_FOLDER)
        if callback.dirpath is None or (stage == "fit" and callback.dirpath == given):
            callback.dirpath = vars(callback)[_FOLDER] = str(folder / "checkpoints")
    if isinstance(callback, callbacks.Timer):  # it looks at the clock after every batch, unless it is told otherwise
        callback._interval = Interval.epoch
