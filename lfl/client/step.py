"""One client inside its loss: what a term of the loss may use."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Extras(NamedTuple):
    """What the loss terms use beside batch and parameters; per client, so that vmap maps over it.

    Attributes:
        global_features: outputs of submodules at x on the batch, without gradient, by name.
        rows: ``cohort.loss_rows``, by name.
    """

    global_features: dict[str, Tensor]
    rows: dict[str, Tensor]


NO_EXTRAS = Extras({}, {})


class ClientStep:
    """What ``client_loss`` may use: one client's batch, parameters and model, inside the loss.

    Attributes:
        batch: the batch of this step.
        params: its parameters [D], with gradient.
        anchor: x, the model it started from [D], without.
        features: outputs of the submodules named in the callbacks' ``features``, by name.
        global_features: outputs at x of those named in ``global_features``, on the same batch, without gradient.
        rows: this client's rows of ``cohort.loss_rows``.
    """

    def __init__(
        self,
        batch: Any,
        anchor: Tensor,
        features: dict[str, Tensor],
        extras: Extras,
        params: Callable[[], Tensor],
        forward: Callable[[Tensor, tuple[Any, ...]], Any],
        log: Callable[[str, Tensor], None],
    ) -> None:
        self.batch, self.anchor, self.features = batch, anchor, features
        self.global_features, self.rows = extras
        self._params, self._forward, self._log = params, forward, log

    @cached_property
    def params(self) -> Tensor:
        """Its parameters [D]; put together when they are first asked for."""
        return self._params()

    def log(self, name: str, value: Tensor) -> None:
        """Log a scalar of this batch, as the module's ``self.log`` does."""
        self._log(name, value)

    def call(self, *inputs: Any) -> Any:
        """The module's ``forward`` at ``params``."""
        return self._forward(self.params, inputs)

    def call_global(self, *inputs: Any) -> Any:
        """The module's ``forward`` at x: frozen, without gradient."""
        with torch.no_grad():
            return self._forward(self.anchor, inputs)


LossTerm = Callable[[ClientStep, Tensor], Tensor]
