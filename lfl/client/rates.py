"""The learning rates of each round, from the module's own schedulers."""

from collections import Counter
from typing import Any

from lightning.pytorch import LightningModule

from lfl.client.optimizer import advance, build_optimizer
from lfl.storage.fingerprint import describe_entries, describe_optimizer


def _without_counters(state: dict[str, Any]) -> dict[str, Any]:
    """A scheduler's state, with a dict in place of each Counter (MultiStepLR's milestones).

    A checkpoint cannot hold Counters.
    """
    return {key: dict(value) if isinstance(value, Counter) else value for key, value in state.items()}


class LearningRates:
    """The learning rates of each round: the module's schedulers with interval "epoch" step once per round.

    Every client gets a fresh optimizer, so none of them can keep a schedule over rounds. It belongs to one more
    optimizer, which never steps a parameter.

    Args:
        module: the model, whose ``configure_optimizers`` returns optimizer and schedulers.

    Attributes:
        description: optimizer and schedulers in plain values; compared when a run is resumed.
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
        """The rate of each parameter group for this round; None if there is no scheduler that changes them."""
        return [float(group["lr"]) for group in self._optimizer.param_groups] if self._schedulers else None

    def of_phase(self, lr: float | None) -> list[float] | None:
        """The rate of each parameter group for a phase.

        Args:
            lr: the phase's own rate in the first round; None for the module's rates.
        """
        if lr is None:
            return self.current
        # The schedule multiplies a phase's own rate by the same factor as the module's rates.
        rates = self.current or self._first
        return [lr * (now / first if first else 1.0) for now, first in zip(rates, self._first, strict=True)]

    @property
    def lr(self) -> float:
        """The rate of the first parameter group, for the log."""
        return float(self._optimizer.param_groups[0]["lr"])

    def step(self, round_number: int, metrics: dict[str, float], was_evaluated: bool = True) -> None:
        """Step the schedulers at the end of a round.

        Args:
            round_number: number of the round, from 1.
            metrics: the round's metrics, for schedulers that watch one.
            was_evaluated: whether the round ended with an evaluation.

        Raises:
            ValueError: the round was evaluated, and did not log the metric that a scheduler watches.
        """
        # torch warns of schedulers that step before their optimizer, and this optimizer never steps.
        self._optimizer._opt_called = True  # type: ignore[attr-defined]
        for config in self._schedulers:
            # As Lightning after epochs: with a frequency of 5 the scheduler steps after rounds 5, 10, ...
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
        """Restore the state that ``state_dict`` returned."""
        for config, saved in zip(self._schedulers, state["schedulers"], strict=True):
            counters = {key for key, value in config.scheduler.state_dict().items() if isinstance(value, Counter)}
            config.scheduler.load_state_dict({k: Counter(v) if k in counters else v for k, v in saved.items()})
        for group, rate in zip(self._optimizer.param_groups, state["rates"], strict=True):
            group["lr"] = rate
