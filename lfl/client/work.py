"""The local work of a round: how many steps a client takes, and which parameters it trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from lfl.arguments import check_number
from lfl.client.schedule import steps_per_epoch_of


@dataclass(frozen=True)
class LocalPhase:
    """A part of a client's local work: some of the parameters are trained, the others are frozen.

    Frozen means left alone: no gradient is computed for them, and neither momentum nor weight decay moves them. Every
    phase has a fresh optimizer. Exactly one of ``epochs`` and ``steps`` counts; one epoch where neither is given.

    Args:
        parameters: shell patterns of the names of those that are trained, such as ``backbone.head.*``.
        epochs: passes over the client's data.
        steps: optimizer steps; the data is shuffled anew whenever it is used up.
        lr: learning rate in the first round, instead of the module's own; follows the module's schedule over rounds.
    """

    parameters: list[str] = field(default_factory=lambda: ["*"])
    epochs: int | None = None
    steps: int | None = None
    lr: float | None = None

    def __post_init__(self) -> None:
        if not self.parameters:
            raise ValueError("`parameters=[]` of a local phase trains nothing: name some, or leave the phase out.")
        for name, value in (("epochs", self.epochs), ("steps", self.steps)):
            if value is not None:
                check_number("a local phase", name, value, least=1, whole=True)
        if self.epochs is not None and self.steps is not None:
            raise ValueError(f"Give `epochs={self.epochs}` or `steps={self.steps}` of a local phase, not both.")
        if self.lr is not None:
            check_number("a local phase", "lr", self.lr, above=0)

    def num_steps(self, sizes: Tensor, batch_size: int) -> Tensor:
        """Local steps of each client [C]."""
        if self.steps is not None:
            return torch.full_like(sizes, self.steps)
        return (self.epochs or 1) * steps_per_epoch_of(sizes, batch_size)


@dataclass(frozen=True)
class LocalWork:
    """What a client does in a round.

    Args:
        phases: one after another.
        clip_value: clip the whole local gradient, corrections included; None for no clipping.
        clip_algorithm: clip its norm, or each entry.
        sampling: batches from shuffled epochs, or independent draws with replacement.
    """

    phases: Sequence[LocalPhase] = (LocalPhase(),)
    clip_value: float | None = None
    clip_algorithm: Literal["norm", "value"] = "norm"
    sampling: Literal["epochs", "replacement"] = "epochs"

    def num_steps(self, sizes: Tensor, batch_size: int) -> Tensor:
        """Local steps of each client [C], of all phases together."""
        total = torch.zeros_like(sizes)
        for phase in self.phases:
            total = total + phase.num_steps(sizes, batch_size)
        return total

    def at_most(self, steps: int) -> LocalWork:
        """The same work with so many steps in each phase; 0 for the work as it is."""
        if not steps:
            return self
        return replace(self, phases=[replace(phase, epochs=None, steps=steps) for phase in self.phases])

    def expected(self, sizes: Tensor, batch_size: int) -> Tensor:
        """The expected cost of each client's work [C], in examples; a step costs as much as ``batch_size`` of them."""
        if self.sampling == "replacement":
            return self.num_steps(sizes, batch_size)
        steps_per_epoch = steps_per_epoch_of(sizes, batch_size)
        steps = self.num_steps(sizes, batch_size)
        # Examples seen: all of them in each whole epoch; then full batches, but no more than an epoch has.
        epochs, rest = steps // steps_per_epoch, steps % steps_per_epoch
        return steps * batch_size + epochs * sizes + torch.minimum(rest * batch_size, sizes)

    def clip(self, gradients: Tensor) -> Tensor:
        """Clip gradients [A, D] in place, each client's by itself; returns them."""
        if self.clip_value is None:
            return gradients
        if self.clip_algorithm == "value":
            return gradients.clamp_(-self.clip_value, self.clip_value)
        norms = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
        # The same factor as torch.nn.utils.clip_grad_norm_, its 1e-6 included: the bits of Lightning's trainer.
        return gradients.mul_((self.clip_value / (norms + 1e-6)).clamp_(max=1.0))
