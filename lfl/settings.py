"""The trainer's arguments that a run is made of, checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch.optim import Optimizer

from lfl.aggregation import Aggregator
from lfl.arguments import check_choice, check_number
from lfl.checkpointing import Checkpointing
from lfl.client.work import LocalPhase, LocalWork
from lfl.data.stores import Limit
from lfl.federation import BufferPolicy
from lfl.participation import Participation
from lfl.system import System

_CHOICES = {
    "precision": ("32-true", "64-true", "bf16-mixed"),
    "engine": ("auto", "sequential", "vectorized"),
    "trace_steps": ("auto", True, False, "compile"),
    "client_state": ("device", "host", "memmap"),
    "buffer_policy": ("average", "server", "client"),
    "on_nonfinite": ("stop", "skip"),
}
_KINDS: dict[str, tuple[type, str]] = {
    "participation": (Participation, "UniformParticipation(10)"),
    "aggregator": (Aggregator, "MeanAggregator('uniform')"),
    "system": (System, "ExponentialSpeeds()"),
    "checkpointing": (Checkpointing, "Checkpointing(every_n_rounds=5)"),
}
_THREADS = 1025  # without a limit, torch starts threads until the system ends it
_OPTIONAL = ("system", "checkpointing", "cohort_size", "num_threads")
_TRAINER_NAMES = {"buffer_policy": "buffers", "checkpointing": "checkpoint"}  # the names that users know, for messages


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The trainer's arguments that a run is made of; ``FederatedTrainer`` says what they mean.

    The command line checks values by their types; from Python only this class does.

    Raises:
        ValueError: a value is not allowed.
    """

    seed: int
    precision: str
    max_rounds: int
    participation: Participation
    work: LocalWork
    engine: Literal["auto", "sequential", "vectorized"]
    cohort_size: int | None
    trace_steps: bool | Literal["auto", "compile"]
    num_threads: int | None
    aggregator: Aggregator
    server_optimizer: Callable[[Iterable[torch.nn.Parameter]], Optimizer]
    system: System | None
    client_state: Literal["device", "host", "memmap"]
    buffer_policy: BufferPolicy
    on_nonfinite: Literal["stop", "skip"]
    check_val_every_n_rounds: int
    log_every_n_steps: int
    limit_val_batches: Limit
    limit_test_batches: Limit
    checkpointing: Checkpointing | None

    def __post_init__(self) -> None:
        for name, (kind, example) in _KINDS.items():
            value = getattr(self, name)
            if not isinstance(value, kind) and not (value is None and name in _OPTIONAL):
                trainer_name = _TRAINER_NAMES.get(name, name)
                raise ValueError(
                    f"`{trainer_name}={value!r}` must be of the kind {kind.__name__}, such as `{example}`."
                )
        for name, allowed in _CHOICES.items():
            check_choice("", _TRAINER_NAMES.get(name, name), getattr(self, name), allowed)
        names = ("cohort_size", "num_threads", "check_val_every_n_rounds", "log_every_n_steps")
        counts = {name: getattr(self, name) for name in names}
        for name, count in counts.items():
            if count is not None or name not in _OPTIONAL:
                below = _THREADS if name == "num_threads" else None
                check_number("", name, count, least=1, below=below, whole=True)
        check_number("", "max_rounds", self.max_rounds, least=0, whole=True)
        check_number("", "seed", self.seed, least=0, whole=True)
        for name in ("limit_val_batches", "limit_test_batches"):
            _check_limit(name, getattr(self, name))


def _check_limit(name: str, limit: Limit) -> None:
    check_number("", name, limit, least=0)
    if isinstance(limit, float) and limit > 1:
        raise ValueError(f"`{name}={limit}` must be a share from 0.0 to 1.0, or a whole number of batches.")


def local_work(
    epochs: int | None,
    steps: int | None,
    phases: list[LocalPhase] | None,
    clip_value: float | None,
    clip_algorithm: Literal["norm", "value"],
    sampling: Literal["epochs", "replacement"],
) -> LocalWork:
    """Make the local work of a client in a round from the trainer's arguments.

    Raises:
        ValueError: more than one of ``epochs``, ``steps`` and ``phases`` is given, or a value is not allowed.
    """
    check_choice("", "gradient_clip_algorithm", clip_algorithm, ("norm", "value"))
    check_choice("", "local_sampling", sampling, ("epochs", "replacement"))
    for name, count in {"local_epochs": epochs, "local_steps": steps}.items():
        if count is not None:
            check_number("", name, count, least=1, whole=True)
    if clip_value is not None and not (isinstance(clip_value, int | float) and clip_value > 0):
        raise ValueError(f"`gradient_clip_val={clip_value}` must be greater than 0, or none for no clipping.")
    if epochs is not None and steps is not None:
        raise ValueError(f"Give `local_epochs={epochs}` or `local_steps={steps}`, not both.")
    if phases is not None and (epochs is not None or steps is not None or not phases):
        raise ValueError(
            f"Give `local_phases`, at least one, or `local_epochs={epochs}` or `local_steps={steps}`, not both; on the "
            "command line `--trainer.local_epochs null` takes a config's away."
        )
    # A phase may be given as a dictionary of LocalPhase's arguments.
    given = [LocalPhase(**phase) if isinstance(phase, dict) else phase for phase in phases or ()]
    return LocalWork(given or [LocalPhase(epochs=epochs, steps=steps)], clip_value, clip_algorithm, sampling)
