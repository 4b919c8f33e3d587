"""Nesterov's accelerated method for the server, in its three sequences."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lfl.aggregation.server_optimizer import ServerOptimizer
from lfl.arguments import check_number


class ThreeSequenceSGD(ServerOptimizer):
    """Short steps x, long steps z, and the model y between them, at which gradients are taken.

    In step t = 0, 1, ..., with C the aggregate of the clients' movements:
    ``x <- y + lr C``, ``z <- z + (lr / a_t) C``, ``y <- (1 - a_{t+1}) x + a_{t+1} z``. All three start at the model.
    Clients are sent y. ``a_t = 2 / (t + 2)`` is Nesterov's schedule for convex problems, as in "Linear Coupling"
    (Z. Allen-Zhu, L. Orecchia, ITCS 2017). A constant a is ``torch.optim.SGD`` with ``nesterov=True`` and momentum
    1 - a, at the same rate.

    Args:
        params: the server's one parameter.
        lr: the server's rate.
        alpha: a constant a in (0, 1]; none for Nesterov's schedule.
    """

    def __init__(self, params: Iterable[torch.nn.Parameter], lr: float = 1.0, alpha: float | None = None) -> None:
        check_number("ThreeSequenceSGD", "lr", lr, least=0)
        if alpha is not None:
            check_number("ThreeSequenceSGD", "alpha", alpha, above=0)
            if alpha > 1:
                raise ValueError(f"`alpha={alpha}` of ThreeSequenceSGD must be at most 1.")
        super().__init__(params, {"lr": lr, "alpha": alpha})

    @override
    def move(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        if not state:
            state["step"], state["long"] = 0, parameter.clone()
        number = state["step"]
        # The gradient is minus C.
        short = parameter.add(gradient, alpha=-group["lr"])
        state["long"].add_(gradient, alpha=-group["lr"] / _share(group, number))
        parameter.copy_(short.lerp_(state["long"], _share(group, number + 1)))
        state["step"] = number + 1


def _share(group: dict[str, Any], number: int) -> float:
    """The share of z in y, a_t."""
    return 2 / (number + 2) if group["alpha"] is None else group["alpha"]
