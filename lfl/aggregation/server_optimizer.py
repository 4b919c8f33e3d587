"""The base of the server's own optimizers."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override


class ServerOptimizer(Optimizer):
    """Moves every parameter that has a gradient, which is minus the aggregate of the clients' movements."""

    @abstractmethod
    def move(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Move a parameter in place; ``state`` is its own, and empty before the first step."""

    @override
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take a step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.move(parameter, parameter.grad, self.state[parameter], group)
        return loss
