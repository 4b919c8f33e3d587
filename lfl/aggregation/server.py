"""The server's side of a round: the global model as one vector, and the optimizer that moves it."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lfl.storage.fingerprint import describe_optimizer

ServerOptimizer = Callable[[Iterable[torch.nn.Parameter]], Optimizer]


class Server:
    """Holds the global model x and moves it along the aggregate: ``x+ = x + server_lr * update`` for SGD.

    Args:
        vector: the initial x [D]; copied.
        optimizer: builds a torch optimizer of the one flat parameter. SGD(lr=1) is FedAvg, SGD with momentum FedAvgM.
        buffers: the model's initial floating-point buffers [B]; none by default.
        counters: the model's initial integer buffers.

    Attributes:
        buffers: the model's floating-point buffers after the last round [B].
        counters: the model's integer buffers after the last round.
        frozen: parameters that stay as they are [D] (bool); None for none.
    """

    def __init__(
        self,
        vector: Tensor,
        optimizer: ServerOptimizer,
        buffers: Tensor | None = None,
        counters: Sequence[Tensor] = (),
    ) -> None:
        self._parameter = torch.nn.Parameter(vector.clone())
        self.buffers = vector.new_empty(0) if buffers is None else buffers
        self.counters = list(counters)
        self.frozen: Tensor | None = None
        try:
            self.optimizer = optimizer([self._parameter])
        except (TypeError, ValueError) as error:
            raise ValueError(f"`server_optimizer` cannot be built: {error}") from error
        self.description = describe_optimizer(self.optimizer)

    @property
    def vector(self) -> Tensor:
        """The model x [D]. Not a copy: writing into it changes the model."""
        return self._parameter.detach()

    @property
    def is_plain_sgd(self) -> bool:
        """True where a step is a multiple of the aggregate, so that a client that knows the aggregate can repeat it."""
        group = self.optimizer.param_groups[0]
        return type(self.optimizer) is torch.optim.SGD and not group["momentum"] and not group["weight_decay"]

    def step(self, update: Tensor) -> None:
        """Move x along ``update`` [D], the aggregate of the clients' movements; what is frozen stays as it is."""
        if self.frozen is not None:
            # Clients do not move it, but momentum of earlier rounds would.
            before = self.vector.clone()
        self._step(update)
        if self.frozen is not None:
            self.vector.copy_(before.where(self.frozen, self.vector))

    def _step(self, update: Tensor) -> None:
        if self._steps_by_hand:
            # What torch's SGD does, to the bit, without its bookkeeping.
            self.vector.add_(update, alpha=float(self.optimizer.param_groups[0]["lr"]))
            return
        # Torch's optimizers step against a gradient; the update points along the movement.
        self._parameter.grad = -update
        self.optimizer.step()
        self._parameter.grad = None

    def exact_step(self, update: Tensor) -> Tensor | None:
        """Return the step [D] along ``update`` before x rounds it to its own digits; None if it depends on more."""
        if not self._steps_by_hand or self.frozen is not None:
            return None
        return update * float(self.optimizer.param_groups[0]["lr"])

    @property
    def _steps_by_hand(self) -> bool:
        maximizes = self.optimizer.param_groups[0].get("maximize", False)
        return self.is_plain_sgd and not maximizes and not self.optimizer._optimizer_step_pre_hooks

    def move_buffers(self, movement: Tensor) -> None:
        """Add ``movement`` [B] (float64), the clients' mean change, to the floating-point buffers."""
        self.buffers = (self.buffers.double() + movement).to(self.buffers.dtype)

    def set_counters(self, values: Tensor) -> None:
        """Replace the integer buffers by the numbers in one vector [n], in the module's order."""
        flat_counters = zip(values.split([counter.numel() for counter in self.counters]), self.counters, strict=True)
        self.counters = [flat.reshape(counter.shape).to(counter.dtype) for flat, counter in flat_counters]

    def state_dict(self) -> dict[str, Any]:
        """The model x and its buffers, on the CPU, and the optimizer's state."""
        return {
            "vector": self.vector.cpu().clone(),
            "optimizer": self.optimizer.state_dict(),
            "buffers": self.buffers.cpu().clone(),
            "counters": [counter.cpu().clone() for counter in self.counters],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of ``state_dict``."""
        self.vector.copy_(state["vector"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.buffers = state["buffers"].to(self.vector.device)
        self.counters = [counter.to(self.vector.device) for counter in state["counters"]]
