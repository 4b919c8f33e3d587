"""The local work of a round: how many steps a client takes, and which parameters it trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from lfl.arguments import check_number
from lfl.client.schedule import steps_per_epoch_of
from lfl.randomness import client_keys, uniform


@dataclass(frozen=True)
class LocalPhase:
    """A part of a client's local work: some of the parameters are trained, the others are frozen.

    Frozen means left alone: no gradient is computed for them, and neither momentum nor weight decay moves them. Every
    phase has a fresh optimizer. Exactly one of ``epochs`` and ``steps`` counts; one epoch where neither is given.

    With ``min_epochs`` the work varies, as in the experiments of FedProx and FedNova: in every round each client draws
    its number of passes, all from ``min_epochs`` to ``epochs`` being as likely.

    Args:
        parameters: shell patterns of the names of those that are trained, such as ``backbone.head.*``.
        epochs: passes over the client's data.
        steps: optimizer steps; the data is shuffled anew whenever it is used up.
        lr: learning rate in the first round, instead of the module's own; follows the module's schedule over rounds.
        min_epochs: least number of passes that a client draws; none for ``epochs`` of all clients.
        stragglers: probability with which a client draws in a round, else it makes all ``epochs``; none for 1.
    """

    parameters: list[str] = field(default_factory=lambda: ["*"])
    epochs: int | None = None
    steps: int | None = None
    lr: float | None = None
    min_epochs: int | None = None
    stragglers: float | None = None

    def __post_init__(self) -> None:
        if not self.parameters:
            raise ValueError("`parameters=[]` of a local phase trains nothing: name some, or leave the phase out.")
        for name, value in (("epochs", self.epochs), ("steps", self.steps), ("min_epochs", self.min_epochs)):
            if value is not None:
                check_number("a local phase", name, value, least=1, whole=True)
        if self.epochs is not None and self.steps is not None:
            raise ValueError(f"Give `epochs={self.epochs}` or `steps={self.steps}` of a local phase, not both.")
        if self.lr is not None:
            check_number("a local phase", "lr", self.lr, above=0)
        self._check_variation()

    def _check_variation(self) -> None:
        if self.min_epochs is not None and (self.epochs is None or self.min_epochs > self.epochs):
            raise ValueError(
                f"`min_epochs={self.min_epochs}` of a local phase must be at most its `epochs`, got {self.epochs}."
            )
        if self.stragglers is not None:
            check_number("a local phase", "stragglers", self.stragglers, least=0)
            if self.stragglers > 1 or self.min_epochs is None:
                raise ValueError(
                    f"`stragglers={self.stragglers}` of a local phase must be a share, at most 1, and needs "
                    f"`min_epochs`, got {self.min_epochs}."
                )

    def num_steps(self, sizes: Tensor, batch_size: int, keys: Tensor | None = None) -> Tensor:
        """Local steps of each client [C].

        Args:
            sizes: their numbers of examples [C].
            batch_size: of all clients.
            keys: one for each client [C], for what it draws in a round; None for the most that it may have to do.
        """
        if self.steps is not None:
            return torch.full_like(sizes, self.steps)
        epochs: int | Tensor = self.epochs or 1
        if self.min_epochs is not None and keys is not None:
            draws = uniform(keys, 2, torch.float64)
            drawn = self.min_epochs + (draws[:, 0] * (epochs - self.min_epochs + 1)).long()
            is_late = draws[:, 1] < (1.0 if self.stragglers is None else self.stragglers)
            epochs = torch.where(is_late, drawn, epochs)
        return epochs * steps_per_epoch_of(sizes, batch_size)


@dataclass(frozen=True)
class LocalWork:
    """The work that a client does in a round.

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

    def __post_init__(self) -> None:
        # A cohort has one order, by the steps of its clients, in which those of each phase must not rise.
        if self.varies and len(self.phases) > 1:
            raise ValueError(
                f"`min_epochs` of a local phase needs it to be the only one, got {len(self.phases)} `local_phases`."
            )

    @property
    def varies(self) -> bool:
        """Whether clients draw how much they do."""
        return any(phase.min_epochs is not None for phase in self.phases)

    def keys(self, ids: Tensor, seed: int, round_number: int) -> Tensor | None:
        """Keys of clients ``ids`` [C] for what they draw in a round; None where they draw nothing."""
        return client_keys(ids, seed, "local work", round_number) if self.varies else None

    def num_steps(self, sizes: Tensor, batch_size: int, keys: Tensor | None = None) -> Tensor:
        """Local steps of each client [C], of all phases together; see ``LocalPhase.num_steps``."""
        total = torch.zeros_like(sizes)
        for phase in self.phases:
            total = total + phase.num_steps(sizes, batch_size, keys)
        return total

    def epochs(self, num_steps: Tensor, sizes: Tensor, batch_size: int) -> float:
        """Passes over their data that clients make with so many steps [C], all clients together."""
        return float((num_steps / steps_per_epoch_of(sizes, batch_size)).sum(dtype=torch.float64))

    def at_most(self, steps: int) -> LocalWork:
        """The same work with so many steps in each phase; 0 for the work as it is."""
        if not steps:
            return self
        phases = [replace(p, epochs=None, steps=steps, min_epochs=None, stragglers=None) for p in self.phases]
        return replace(self, phases=phases)

    def examples(self, sizes: Tensor, batch_size: int, keys: Tensor | None = None) -> Tensor:
        """The number of examples that each client goes through [C], each time that it sees one counting."""
        steps = self.num_steps(sizes, batch_size, keys)
        if self.sampling == "replacement":
            return steps * batch_size
        steps_per_epoch = steps_per_epoch_of(sizes, batch_size)
        # All of them in each whole epoch; then full batches, but no more than an epoch has.
        epochs, rest = steps // steps_per_epoch, steps % steps_per_epoch
        return epochs * sizes + torch.minimum(rest * batch_size, sizes)

    def expected(self, sizes: Tensor, batch_size: int, keys: Tensor | None = None) -> Tensor:
        """The expected cost of each client's work [C], in examples; a step costs as much as ``batch_size`` of them."""
        steps = self.num_steps(sizes, batch_size, keys)
        if self.sampling == "replacement":
            return steps
        return steps * batch_size + self.examples(sizes, batch_size, keys)

    def clip(self, gradients: Tensor) -> Tensor:
        """Clip gradients [A, D] in place, each client's by itself; returns them."""
        if self.clip_value is None:
            return gradients
        if self.clip_algorithm == "value":
            return gradients.clamp_(-self.clip_value, self.clip_value)
        norms = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
        # The same factor as torch.nn.utils.clip_grad_norm_, its 1e-6 included: the bits of Lightning's trainer.
        return gradients.mul_((self.clip_value / (norms + 1e-6)).clamp_(max=1.0))
