"""The step of the server's own optimizers."""

from typing import Any

import torch
from torch import Tensor, nn

from lfl.aggregation.server_optimizer import ServerOptimizer


class Against(ServerOptimizer):
    """Moves against the gradient by the number of the step."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    def move(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        state["step"] = state.get("step", 0) + 1
        parameter.sub_(gradient, alpha=state["step"])


def test_parameters_with_a_gradient_are_moved_and_a_closure_is_called_with_gradients() -> None:
    x, still = nn.Parameter(torch.tensor([3.0])), nn.Parameter(torch.ones(1))
    optimizer = Against([x, still])

    def closure() -> float:
        optimizer.zero_grad()
        loss = x.square().sum()
        loss.backward()
        return float(loss.detach())

    assert optimizer.step(closure) == 9.0
    assert float(x.detach()) == 3 - 6
    assert optimizer.step() is None
    assert float(x.detach()) == -3 - 2 * 6
    assert float(still.detach()) == 1
    assert list(optimizer.state) == [x]
