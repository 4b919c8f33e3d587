"""The learning rates of each round, from the module's own schedulers."""

from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.pytorch import LightningModule

from lfl.client.optimizer import advance, build_optimizer, may_change, use_python_numbers
from lfl.storage.fingerprint import describe_entries, describe_optimizer


class LearningRates:
    """The learning rates of each round: the module's schedulers with interval "epoch" step once per round.

    Every client gets a fresh optimizer, so none of them can keep a schedule over rounds. It belongs to one more
    optimizer, which never steps a parameter.

    Args:
        module: the model, whose ``configure_optimizers`` returns optimizer and schedulers.

    Attributes:
        optimizer: that optimizer; hooks may set the rates of its groups.
        configs: its schedulers with interval "epoch".
        description: optimizer and schedulers in plain values; compared when a run is resumed.
    """

    def __init__(self, module: LightningModule) -> None:
        self._module = module
        self.optimizer, configs = build_optimizer(module)
        self.configs = [config for config in configs if config.interval == "epoch"]
        self._first = self._rates()
        self._built = self._first  # as the module last built the optimizer: others have been set by hooks
        self._others = self._other_settings()  # those of the first round, which all rounds have
        self._has_warned = False
        self._before = self._first  # the rates of the round before
        self._functions = [list(_functions(c.scheduler.state_dict())) for c in self.configs]
        self.description = {
            "optimizer": describe_optimizer(self.optimizer),
            "schedulers": [describe_entries(c.scheduler.state_dict()) for c in self.configs],
        }

    def start_round(self) -> None:
        """Ask the module for its optimizer again, where hooks may have changed it and no scheduler has the rates."""
        if self.configs or not may_change(self._module):
            return
        rebuilt, _ = build_optimizer(self._module)
        rates = [float(group["lr"]) for group in rebuilt.param_groups]
        if rates != self._built:
            self.optimizer, self._built = rebuilt, rates

    @property
    def schedulers(self) -> list[str]:
        """The classes of the schedulers, in the order of their states."""
        return [type(config.scheduler).__name__ for config in self.configs]

    @property
    def current(self) -> list[float] | None:
        """The rate of each parameter group for this round; None if neither a scheduler nor a hook sets them."""
        rates = self._rates()
        return rates if self.configs or rates != self._built else None

    def of_phase(self, lr: float | None, factor: float = 1.0) -> list[float] | None:
        """The rate of each parameter group for a phase.

        Args:
            lr: the phase's own rate in the first round; None for the module's rates.
            factor: multiplies all rates.
        """
        if factor != 1.0:
            return [factor * rate for rate in self.of_phase(lr) or self._rates()]
        if lr is None:
            return self.current
        # The schedule multiplies a phase's own rate by the same factor as the module's rates.
        rates = self.current or self._first
        return [lr * (now / first if first else 1.0) for now, first in zip(rates, self._first, strict=True)]

    @property
    def lr(self) -> float:
        """The rate of the first parameter group, for the log."""
        return float(self.optimizer.param_groups[0]["lr"])

    def step(self, round_number: int, metrics: dict[str, float], was_evaluated: bool = True) -> None:
        """Step the schedulers at the end of a round.

        Args:
            round_number: number of the round, from 1.
            metrics: the round's metrics, for schedulers that watch one.
            was_evaluated: whether the round ended with an evaluation.

        Raises:
            ValueError: the round was evaluated, and did not log the metric that a scheduler watches.
        """
        self._before = self._rates()
        # torch warns of schedulers that step before their optimizer, and this optimizer never steps.
        self.optimizer._opt_called = True  # type: ignore[attr-defined]
        for config in self.configs:
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
        use_python_numbers(self.optimizer)
        self._warn_of_other_settings()

    def go_back(self) -> None:
        """Return to the rates of the last finished round, whose models are evaluated once more."""
        for group, rate in zip(self.optimizer.param_groups, self._before, strict=True):
            group["lr"] = rate

    def state_dict(self) -> dict[str, Any]:
        """The schedulers' states and the current rates."""
        states = zip(self.configs, self._functions, strict=True)
        saved = [_without(known, config.scheduler.state_dict()) for config, known in states]
        return {"schedulers": saved, "rates": self._rates(), "built": self._built, "before": self._before}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that ``state_dict`` returned."""
        for config, saved in zip(self.configs, state["schedulers"], strict=True):
            config.scheduler.load_state_dict(saved)
        for group, rate in zip(self.optimizer.param_groups, state["rates"], strict=True):
            group["lr"] = rate
        self._built = state["built"]
        self._before = state.get("before", state["rates"])  # of 0.1.0: there are none

    def _rates(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def _other_settings(self) -> list[dict[str, Any]]:
        """The settings of the parameter groups besides parameters and rates, such as momentum."""
        kinds = (bool, int, float, tuple)
        groups = self.optimizer.param_groups
        return [{k: v for k, v in group.items() if k != "lr" and isinstance(v, kinds)} for group in groups]

    def _warn_of_other_settings(self) -> None:
        """Warn, once, of a scheduler that changes more than the rate: every client has the settings of round 1."""
        pairs = zip(self._others, self._other_settings(), strict=True)
        changed = sorted({key for first, now in pairs for key in first if first[key] != now.get(key)})
        if changed and not self._has_warned:
            self._has_warned = True
            rank_zero_warn(
                f"{' and '.join(self.schedulers)} changes {', '.join(changed)} over rounds, which clients do not "
                "follow: only learning rates do (`cycle_momentum=False` turns it off)."
            )


def _functions(value: Any) -> Iterator[Any]:
    """The functions in a scheduler's state."""
    if isinstance(value, FunctionType | BuiltinFunctionType | MethodType | np.ufunc):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        yield from _functions(item)


def _without(known: list[Any], value: Any) -> Any:
    """A scheduler's state without those entries that are ``known`` functions.

    Functions cannot be saved, as torch's LambdaLR has it. The scheduler of a resumed run is given the same ones when it
    is made; one that has changed since is left in, for the checkpoint to refuse.
    """
    if type(value) is dict:
        return {k: _without(known, v) for k, v in value.items() if not any(v is function for function in known)}
    return [_without(known, item) for item in value] if type(value) is list else value
