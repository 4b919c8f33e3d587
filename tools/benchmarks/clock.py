"""Clocks for rounds."""

from __future__ import annotations

import cProfile
import math
import statistics
import time
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule
from typing_extensions import override

from lfl.callbacks import FederatedCallback
from lfl.data import FederatedData
from lfl.federation import Federation
from lfl.round import Round
from tools.training import fitted

WARM_UP, LEAST_ROUNDS = 3, 4


class RoundClock(FederatedCallback):
    """Times every round from the end of the one before: with logging, and all else that a user's run does.

    Args:
        device: is waited for before the clock is read.

    Attributes:
        started: when the first round began, by `time.perf_counter`.
        seconds: of each round, counted from its start for the first.
        cpu_seconds: of this process in each round.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self.seconds: list[float] = []
        self.cpu_seconds: list[float] = []
        self.started: float | None = None
        self._device = device
        self._last = self._cpu = 0.0

    @override
    def on_round_start(self, round: Round) -> None:
        if self.started is None:
            self._wait()
            self._last, self._cpu = time.perf_counter(), time.process_time()
            self.started = self._last

    @override
    def on_round_end(self, round: Round) -> None:
        self._wait()
        now, cpu = time.perf_counter(), time.process_time()
        self.seconds.append(now - self._last)
        self.cpu_seconds.append(cpu - self._cpu)
        self._last, self._cpu = now, cpu

    def _wait(self) -> None:
        if self._device is not None and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


class Stopwatch(RoundClock):
    """Times rounds until a limit, then stops the run; the first rounds, which record steps, do not count.

    Args:
        limit: seconds, and at least some rounds.
        profile: is enabled meanwhile.
    """

    def __init__(self, limit: float, profile: cProfile.Profile | None = None) -> None:
        super().__init__()
        self.limit, self.profile = limit, profile
        self._until = math.inf

    @override
    def on_run_start(self, federation: Federation) -> None:
        self._federation = federation

    @override
    def on_round_end(self, round: Round) -> None:
        super().on_round_end(round)
        if len(self.seconds) == WARM_UP:
            self._until = time.perf_counter() + self.limit
            if self.profile is not None:
                self.profile.enable()
        if time.perf_counter() > self._until and len(self.seconds) >= WARM_UP + LEAST_ROUNDS:
            self._federation.stop()
            if self.profile is not None:
                self.profile.disable()


def seconds_per_round(
    model: LightningModule,
    data: FederatedData,
    limit: float,
    clock: Literal["cpu", "wall"],
    profile: cProfile.Profile | None = None,
    **settings: Any,
) -> float:
    """Median of the rounds of a run that lasts ``limit`` seconds, without evaluation and checkpoints, with logging.

    Args:
        model: what is trained.
        data: what it is trained on.
        limit: seconds of the timed rounds.
        clock: count the seconds of the process, or those of a clock.
        profile: is enabled in the timed rounds.
        settings: of the trainer.
    """
    watch, many = Stopwatch(limit, profile), 10**6
    with fitted(model, data, max_rounds=many, check_val_every_n_rounds=many, callbacks=[watch], **settings):
        pass
    return statistics.median((watch.cpu_seconds if clock == "cpu" else watch.seconds)[WARM_UP:])
