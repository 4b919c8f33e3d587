"""Adversaries: a share of the clients whose labels, or whose updates, are not what they should be.

To try robust aggregators with. Who they are is drawn from the run's seed: the same clients in every round and process,
for every attack, and a larger share has those of a smaller one.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from jsonargparse.typing import ClosedUnitInterval
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_number
from lfl.callback import FederatedCallback
from lfl.data.nests import part_of, path_to, with_part
from lfl.federation import Federation
from lfl.randomness import generator, normal
from lfl.round import Cohort, Round


class Adversary(FederatedCallback):
    """Base of attacks by a share of the clients, ``round(share N)`` of them.

    Logs ``adversary/NAME``, how many of them are among the round's clients. ``share=0`` is the stack without it, bit
    for bit.

    Attributes:
        name: the attack, in names of metrics.
        share: of the clients, 0 to 1.
    """

    is_unique = True

    name: ClassVar[str]

    def __init__(self, share: ClosedUnitInterval = 0.1) -> None:
        check_number(type(self).__name__, "share", share, least=0)
        if share > 1:
            raise ValueError(f"`share={share}` of {type(self).__name__} must be at most 1.")
        self.share = share

    @override
    def on_run_start(self, federation: Federation) -> None:
        order = torch.randperm(federation.num_clients, generator=generator(federation.seed, "adversaries"))
        self._is_adversary = torch.zeros(federation.num_clients, dtype=torch.bool)
        self._is_adversary[order[: round(self.share * federation.num_clients)]] = True

    @override
    def on_cohort_end(self, cohort: Cohort) -> None:
        cohort.round.accumulate(f"adversary/{self.name}", self._is_adversary[cohort.ids].sum())

    @override
    def on_round_end(self, round: Round) -> None:
        round.log(f"adversary/{self.name}", round.sums[f"adversary/{self.name}"])

    @property
    def ids(self) -> Tensor:
        """The adversaries' ids, ascending, once a run has started."""
        return self._is_adversary.nonzero().squeeze(1)


class UpdateAttack(Adversary):
    """Base of attacks on what is sent: adversaries train as the others do, and send something else.

    The attack replaces ``delta_i`` when local work is done: whatever follows from it is attacked, the encoded update of
    all codecs as well as what callbacks behind this one make of it (SCAFFOLD's controls, momentum). Callbacks before it
    see the honest movement. Buffers and logged values stay honest.

    Also logs ``adversary/NAME/norm``, the mean norm of what adversaries send, and ``honest_norm``, that of the others'
    updates.
    """

    @abstractmethod
    def attack(self, cohort: Cohort, ids: Tensor, updates: Tensor) -> Tensor:
        """Return what adversaries ``ids`` [A] send instead of their ``updates`` [A, n]."""

    @override
    def on_cohort_end(self, cohort: Cohort) -> None:
        super().on_cohort_end(cohort)
        mask = self._is_adversary[cohort.ids]
        rows = mask.nonzero().squeeze(1)
        if len(rows):
            at = rows.to(cohort.values.device)
            updates = cohort.delta[at]
            attacked = self.attack(cohort, cohort.ids[rows], updates)
            # The others' rows are not touched, so that their bits stay what they are.
            cohort.values[at] = attacked if cohort.round.basis is not None else cohort.start[at] + attacked
        norms = torch.linalg.vector_norm(cohort.delta, dim=1, dtype=torch.float64)
        weights = mask.to(norms)
        cohort.round.accumulate(f"adversary/{self.name}/norms", torch.stack([weights @ norms, (1 - weights) @ norms]))

    @override
    def on_round_end(self, round: Round) -> None:
        super().on_round_end(round)
        if not round.num_reported:
            return
        norms, count = round.sums[f"adversary/{self.name}/norms"], round.sums[f"adversary/{self.name}"]
        # Zero where there are none.
        round.log(f"adversary/{self.name}/norm", norms[0] / count.clamp(min=1))
        round.log(f"adversary/{self.name}/honest_norm", norms[1] / (round.num_reported - count).clamp(min=1))


class SignFlip(UpdateAttack):
    """Adversaries send ``-delta_i``: they pull the server back.

    Args:
        share: share of the clients that are adversaries.
    """

    name = "sign_flip"

    @override
    def attack(self, cohort: Cohort, ids: Tensor, updates: Tensor) -> Tensor:
        return -updates


class ScaledUpdate(UpdateAttack):
    """Adversaries send ``factor delta_i``: beside LabelFlip, of the same share, it is model replacement.

    Args:
        share: share of the clients that are adversaries.
        factor: what updates are multiplied by; negative to flip their signs too, 0 to send nothing.
    """

    name = "scaled_update"

    def __init__(self, share: ClosedUnitInterval = 0.1, factor: float = 10.0) -> None:
        super().__init__(share)
        if not math.isfinite(factor):
            raise ValueError(f"`factor={factor}` of ScaledUpdate must be finite.")
        self.factor = factor

    @override
    def attack(self, cohort: Cohort, ids: Tensor, updates: Tensor) -> Tensor:
        return updates * self.factor


class GaussianUpdate(UpdateAttack):
    """Adversaries send noise, N(0, std^2) in every entry, drawn for each client and round.

    Args:
        share: share of the clients that are adversaries.
        std: standard deviation of an entry.
    """

    name = "gaussian_update"

    def __init__(self, share: ClosedUnitInterval = 0.1, std: float = 1.0) -> None:
        super().__init__(share)
        check_number("GaussianUpdate", "std", std, least=0)
        self.std = std

    @override
    def on_run_start(self, federation: Federation) -> None:
        super().on_run_start(federation)
        self._keys = federation.keys

    @override
    def attack(self, cohort: Cohort, ids: Tensor, updates: Tensor) -> Tensor:
        keys = self._keys(ids, "gaussian update", cohort.round.number)
        return normal(keys, updates.shape[1], updates.dtype) * float(self.std)


class LabelFlip(Adversary):
    """Adversaries train on wrong labels, ``C - 1 - label`` of C classes, or those of a map.

    Labels are changed in the batches of local work: evaluations, of clients too, and fine-tuning for them are on the
    data as it is. The logged training loss and accuracy contain the adversaries', on their own labels.

    Args:
        share: share of the clients that are adversaries.
        labels: new labels by old ones, such as ``{1: 7}``; others stay. None for ``C - 1 - label`` of all.
        target: the part of a batch that has the labels, by name or place, as a source's ``target``; none for the second
            part of a tuple.

    Raises:
        ValueError: the data has no classes, or ``labels`` names one that is not there.
    """

    name = "label_flip"

    def __init__(
        self,
        share: ClosedUnitInterval = 0.1,
        labels: dict[int, int] | None = None,
        target: str | int | None = None,
    ) -> None:
        super().__init__(share)
        self.labels = labels
        self.target = target

    @override
    def on_run_start(self, federation: Federation) -> None:
        super().on_run_start(federation)
        count = federation.data.num_classes
        if not count:
            raise ValueError("LabelFlip needs class labels, and `data` has none (`num_classes=0`).")
        known = torch.arange(count)
        new = count - 1 - known if self.labels is None else known.clone()
        for old, label in (self.labels or {}).items():
            if not (0 <= old < count and 0 <= label < count):
                raise ValueError(f"`labels={{{old}: {label}}}` of LabelFlip: there are the classes 0 to {count - 1}.")
            new[old] = label
        self._new = new.to(federation.device)

    @override
    def on_cohort_start(self, cohort: Cohort) -> None:
        mask = self._is_adversary[cohort.ids]
        if bool(mask.any()):  # on the CPU; most small cohorts have none
            cohort.rows[self.name] = mask.to(cohort.values.device)

    @override
    def change_batch(self, cohort: Cohort, rows: slice | Tensor, batch: Any) -> Any:
        if self.name not in cohort.rows:
            return batch
        path = path_to(batch, 1 if self.target is None and not isinstance(batch, Mapping) else self.target or "")
        labels = None if path is None else part_of(batch, path)
        if path is None or not isinstance(labels, Tensor) or labels.is_floating_point():
            raise ValueError(
                f"`target={self.target}` of LabelFlip must name the part of a batch that has the class labels: "
                "a key of a dict, or a place in a tuple."
            )
        is_label = (labels >= 0) & (labels < len(self._new))  # others are ignored by the loss, such as -100
        flips = cohort.rows[self.name][rows].reshape(-1, *[1] * (labels.dim() - 1)) & is_label
        new = self._new[labels.clamp(0, len(self._new) - 1).long()].to(labels.dtype)
        return with_part(batch, path, new.where(flips, labels))
