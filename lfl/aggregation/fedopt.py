"""Adaptive optimizers of the server: FedAdagrad, FedAdam and FedYogi.

S. J. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konecny, S. Kumar, H. B. McMahan, "Adaptive Federated
Optimization", ICLR 2021, https://arxiv.org/abs/2003.00295, Algorithm 2.

The paper's Delta_t is the aggregate of the clients' movements. Torch's optimizers step against a gradient, which is
minus Delta_t here; m then is minus the paper's, and v is the same.
"""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lfl.aggregation.server_optimizer import ServerOptimizer
from lfl.arguments import check_number


class _AdaptiveOptimizer(ServerOptimizer):
    """Base: ``x <- x + lr m / (sqrt(v) + tau)`` with ``m_0 = 0``, ``v_0 = tau^2``, and no correction of a bias."""

    def __init__(self, params: Iterable[torch.nn.Parameter], defaults: dict[str, Any]) -> None:
        owner = type(self).__name__
        check_number(owner, "lr", defaults["lr"], least=0)
        check_number(owner, "tau", defaults["tau"], above=0)
        for beta in defaults.get("betas", ()):
            if not 0 <= beta < 1:
                raise ValueError(f"`betas={defaults['betas']}` of {owner} must be at least 0 and below 1.")
        super().__init__(params, defaults)

    @abstractmethod
    def update(self, state: dict[str, Any], gradient: Tensor, group: dict[str, Any]) -> Tensor:
        """Update ``state["v"]`` in place, and return m."""

    @override
    def move(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        if not state:
            state["v"] = torch.full_like(parameter, group["tau"] ** 2)
        direction = self.update(state, gradient, group)
        parameter.addcdiv_(direction, state["v"].sqrt().add_(group["tau"]), value=-group["lr"])


class FedAdagrad(_AdaptiveOptimizer):
    """``v <- v + Delta^2``, ``x <- x + lr Delta / (sqrt(v) + tau)``, ``v_0 = tau^2``.

    The same as torch's Adagrad with ``initial_accumulator_value=tau^2`` and ``eps=tau``.

    Args:
        params: the server's one parameter.
        lr: the server's rate, a step per coordinate: not comparable with FedAvg's 1. 0.1 in the paper for CIFAR-100.
        tau: degree of adaptivity; the larger, the nearer to FedAvg.
    """

    def __init__(self, params: Iterable[torch.nn.Parameter], lr: float = 0.1, tau: float = 1e-2) -> None:
        super().__init__(params, {"lr": lr, "tau": tau})

    @override
    def update(self, state: dict[str, Any], gradient: Tensor, group: dict[str, Any]) -> Tensor:
        state["v"].addcmul_(gradient, gradient)
        return gradient


class FedAdam(_AdaptiveOptimizer):
    """``m <- b1 m + (1 - b1) Delta``, ``v <- b2 v + (1 - b2) Delta^2``, ``x <- x + lr m / (sqrt(v) + tau)``.

    torch's Adam corrects the bias of m and v, and starts v at 0: another method.

    Args:
        params: the server's one parameter.
        lr: the server's rate, a step per coordinate: not comparable with FedAvg's 1.
        betas: b1 and b2.
        tau: degree of adaptivity; the larger, the nearer to FedAvgM. v starts at its square.
    """

    def __init__(
        self,
        params: Iterable[torch.nn.Parameter],
        lr: float = 0.1,
        betas: tuple[float, float] = (0.9, 0.99),
        tau: float = 1e-3,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "tau": tau})

    @override
    def update(self, state: dict[str, Any], gradient: Tensor, group: dict[str, Any]) -> Tensor:
        keep = group["betas"][1]
        state["v"].mul_(keep).addcmul_(gradient, gradient, value=1 - keep)
        return _momentum(state, gradient, group)


class FedYogi(FedAdam):
    """FedAdam with ``v <- v - (1 - b2) Delta^2 sign(v - Delta^2)``: v changes by no more than Delta^2.

    v never gets negative: where it is larger than Delta^2, less than that is taken from it. The arguments are those of
    FedAdam.
    """

    @override
    def update(self, state: dict[str, Any], gradient: Tensor, group: dict[str, Any]) -> Tensor:
        square = gradient.square()
        state["v"].addcmul_(square, (state["v"] - square).sign_(), value=group["betas"][1] - 1)
        return _momentum(state, gradient, group)


def _momentum(state: dict[str, Any], gradient: Tensor, group: dict[str, Any]) -> Tensor:
    """``m <- b1 m + (1 - b1) g``; m is zero before the first step."""
    keep = group["betas"][0]
    if "m" not in state:
        state["m"] = torch.zeros_like(gradient)
    m: Tensor = state["m"]
    return m.mul_(keep).add_(gradient, alpha=1 - keep)
