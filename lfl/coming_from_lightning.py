"""Replacements for those settings and attributes of Lightning's trainer that lfl's has not.

docs/coming-from-lightning.md shows these tables to people, and messages quote them.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import lightning

SETTINGS = {
    "max_epochs": "use `max_rounds`: to a LightningModule a round is an epoch",
    "min_epochs": "leave it out: a run has `max_rounds` rounds, unless a callback stops it",
    "max_steps": "use `max_rounds` for the rounds of the run, `local_steps` for a client's steps in a round",
    "min_steps": "leave it out: a run has `max_rounds` rounds, unless a callback stops it",
    "max_time": "use Lightning's callback `Timer`",
    "limit_train_batches": "use `local_steps`, a client's steps in a round",
    "limit_predict_batches": "predict on a smaller data set",
    "overfit_batches": "use `data.num_examples`",
    "val_check_interval": "use `check_val_every_n_rounds`",
    "check_val_every_n_epoch": "use `check_val_every_n_rounds`",
    "num_sanity_val_steps": "leave it out: steps and checkpoints are tried before round 1",
    "enable_checkpointing": "use `checkpoint=None` for no checkpoints",
    "enable_model_summary": "use Lightning's callback `ModelSummary` or `RichModelSummary`",
    "accumulate_grad_batches": "use `data.batch_size`: a client's step is one batch",
    "deterministic": "leave it out: a run depends on its seed alone; `torch.use_deterministic_algorithms` serves too",
    "benchmark": "set `torch.backends.cudnn.benchmark`",
    "inference_mode": "leave it out: evaluation runs without gradients",
    "use_distributed_sampler": "leave it out: clients are dealt to processes, not examples",
    "profiler": "put `torch.profiler.profile` around `fit`",
    "detect_anomaly": "call `torch.autograd.set_detect_anomaly(True)`",
    "barebones": "use `logger=False`, `checkpoint=None` and `enable_progress_bar=False`",
    "plugins": "use `strategy` and `precision`",
    "sync_batchnorm": "use `buffers`, which says what becomes of clients' statistics",
    "reload_dataloaders_every_n_epochs": "leave it out: clients' batches are made anew in every round",
    "model_registry": "upload `checkpoints/last.ckpt` yourself",
    "enable_autolog_hparams": "use `logger=False` for no logs",
}
"""Arguments of ``lightning.Trainer`` that ``FederatedTrainer`` has not, and what to do instead."""

_BATCHES = (
    "`num_training_batches` and `estimated_stepping_batches` count the batches of the largest client; `datamodule` has "
    "the data"
)
ATTRIBUTES = {
    "train_dataloader": f"every client has batches of its own: {_BATCHES}",
    "train_dataloaders": f"every client has batches of its own: {_BATCHES}",
    "is_last_batch": "clients' batches are run together, and none is the last of the round",
    "limit_train_batches": "`local_steps` of the constructor limits them",
    "predict_loop": "`predict` returns the outputs",
    "test_loop": "`num_test_batches` counts its batches",
    "validate_loop": "`num_val_batches` counts its batches",
    "tune": "`lfl sweep` makes a run for every combination of several values of settings",
    "profiler": "put `torch.profiler.profile` around `fit`",
    "precision_plugin": "`precision` names it, `fabric` has it",
    "print": "`LightningModule.print` works, and `display.message`",
    "scaler": "there is no precision that scales gradients",
    "received_sigterm": "`run.stop_request.signal` is the number of the signal",
}
"""Attributes of ``lightning.Trainer`` that ``FederatedTrainer`` has not, and what to ask for instead."""


def says_what_to_use(init: Callable[..., None]) -> Callable[..., None]:
    """Decorate a trainer's constructor to name, for an argument of Lightning's trainer, what takes its place.

    The constructor then raises TypeError, as for any argument that it does not have.
    """
    known = inspect.signature(init).parameters

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **options: Any) -> None:
        for name in options:
            if name not in known and name in SETTINGS:
                raise TypeError(f"{type(self).__name__} has no `{name}`: {SETTINGS[name]}.")
        init(self, *args, **options)

    return checked


def missing_attribute(owner: str, name: str) -> str:
    """The message for an attribute that ``FederatedTrainer`` has not.

    Args:
        owner: name of the trainer's class.
        name: the attribute.
    """
    if name in ATTRIBUTES:
        return f"{owner} has no `{name}`: {ATTRIBUTES[name]}."
    if name in SETTINGS:
        return f"{owner} has no `{name}`: {SETTINGS[name]}."
    if not name.startswith("_") and hasattr(lightning.Trainer, name):
        return (
            f"{owner} has no `{name}`, which Lightning's trainer has; docs/coming-from-lightning.md says what it has."
        )
    return f"{owner} has no attribute `{name}`."
