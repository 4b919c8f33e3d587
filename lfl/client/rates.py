"""The learning rates of a round, by the module's own schedulers."""

from collections import Counter
from typing import Any

from lightning.pytorch import LightningModule

from lfl.client.optimizer import advance, build_optimizer
from lfl.storage.fingerprint import describe_entries, describe_optimizer


def _without_counters(state: dict[str, Any]) -> dict[str, Any]:
    """A scheduler's state with dicts for Counters (MultiStepLR's milestones), which a checkpoint cannot hold."""
    return {key: dict(value) if isinstance(value, Counter) else value for key, value in state.items()}


class LearningRates:
    """The learning rates of a round: ``configure_optimizers``' schedulers with interval "epoch" step once a round.

    Clients have fresh optimizers; schedules over rounds belong to one more optimizer, which never steps a parameter.

    Args:
        module: the model.

    Attributes:
        description: optimizer and schedulers as plain values, for a checkpoint to compare.
    """

    def __init__(self, module: LightningModule) -> None:
        self._optimizer, configs = build_optimizer(module)
        self._schedulers = [config for config in configs if config.interval == "epoch"]
        self._first = [float(group["lr"]) for group in self._optimizer.param_groups]
        self.description = {
            "optimizer": describe_optimizer(self._optimizer),
            "schedulers": [describe_entries(c.scheduler.state_dict()) for c in self._schedulers],
        }

    @property
    def current(self) -> list[float] | None:
        """One rate per parameter group for this round; None where no scheduler changes them."""
        return [float(group["lr"]) for group in self._optimizer.param_groups] if self._schedulers else None

    def of_phase(self, lr: float | None) -> list[float] | None:
        """Rates of a phase with a rate of its own, which follows the schedule as the module's do."""
        if lr is None:
            return self.current
        # Relative to the module's first rates: what the schedule makes of them it makes of this one.
        rates = self.current or self._first
        return [lr * (now / first if first else 1.0) for now, first in zip(rates, self._first, strict=True)]

    @property
    def lr(self) -> float:
        """The rate of the first group, for the log."""
        return float(self._optimizer.param_groups[0]["lr"])

    def step(self, round_number: int, metrics: dict[str, float], was_evaluated: bool = True) -> None:
        """End a round; ``metrics`` serve schedulers that watch one, in rounds that were evaluated."""
        self._optimizer._opt_called = True  # type: ignore[attr-defined]  # it never steps itself; silences torch
        for config in self._schedulers:
            # Rounds are counted from 1: a frequency of 5 steps after rounds 5, 10, .., as Lightning's after epochs.
            if round_number % config.frequency:
                continue
            if not config.reduce_on_plateau:
                advance(config)
            elif config.monitor in metrics:
                advance(config, metrics[config.monitor])
            elif config.strict and was_evaluated:
                raise ValueError(
                    f"The learning-rate scheduler watches {config.monitor!r}, which round {round_number} did not log; "
                    f"it logged: {', '.join(sorted(metrics))}."
                )

    def state_dict(self) -> dict[str, Any]:
        """The schedulers' states and the current rates."""
        rates = [float(group["lr"]) for group in self._optimizer.param_groups]
        return {"schedulers": [_without_counters(c.scheduler.state_dict()) for c in self._schedulers], "rates": rates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to what ``state_dict`` returned."""
        for config, saved in zip(self._schedulers, state["schedulers"], strict=True):
            counters = {key for key, value in config.scheduler.state_dict().items() if isinstance(value, Counter)}
            config.scheduler.load_state_dict({k: Counter(v) if k in counters else v for k, v in saved.items()})
        for group, rate in zip(self._optimizer.param_groups, state["rates"], strict=True):
            group["lr"] = rate
