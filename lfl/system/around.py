"""Speeds made of other speeds: stragglers among them, time per example, and a correlation with the data."""

from __future__ import annotations

from typing import Literal

import torch
from jsonargparse.typing import PositiveFloat, PositiveInt
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_choice, check_number, fresh_default, lazy_default
from lfl.randomness import client_keys, uniform
from lfl.system.base import Workload
from lfl.system.exponential import ExponentialSpeeds
from lfl.system.speeds import ClientTimes, EqualSpeeds, Speeds


class AroundSpeeds(Speeds):
    """Base class of speeds that change the computing times of others, and leave their other times as they are.

    Args:
        speeds: the others.

    Raises:
        ValueError: the others lose clients, of which only the outermost system is asked.
    """

    def __init__(self, speeds: Speeds) -> None:
        super().__init__()
        self.speeds = fresh_default(speeds)
        refuse_losses(self, self.speeds)

    @override
    def prepare(self, workload: Workload) -> None:
        super().prepare(workload)
        self.speeds.prepare(workload)

    @override
    def check(self, num_clients: int) -> None:
        self.speeds.check(num_clients)

    @override
    def client_times(
        self, clients: Tensor, bits: Tensor | None, round_number: int, seed: int, down_bits: Tensor | None = None
    ) -> ClientTimes:
        others = self.speeds.client_times(clients, bits, round_number, seed, down_bits)
        return ClientTimes(others.download, self.compute_seconds(clients, round_number, seed), others.upload)

    def known_workload(self) -> Workload:
        """All that is known of the run; raises ValueError before one has begun."""
        if self.workload is None:
            raise ValueError(f"{type(self).__name__} needs to know the clients' data: call `prepare` first.")
        return self.workload


class Stragglers(AroundSpeeds):
    """Two classes of clients: some are slower than others by a factor, ``T_i = f_i T_i'`` with f_i = factor or 1.

    ``round(share N)`` clients, drawn once and uniformly, are the slow ones. "Straggler-Resilient Personalized Federated
    Learning", Appendix C, has 10 % and 30 % of clients with mean 10 and others with mean 0.1: ``factor: 100`` around
    ``ExponentialSpeeds(means=0.1)`` (its "lambda" must be the mean, as slow clients have the greater one).

    Args:
        share: of the clients that are slow, from 0 to 1.
        factor: how many times as long they compute.
        speeds: what T_i' is.
    """

    def __init__(
        self,
        share: float = 0.1,
        factor: PositiveFloat = 10.0,
        speeds: Speeds = lazy_default(ExponentialSpeeds),
    ) -> None:
        super().__init__(speeds)
        check_number("Stragglers", "share", share, least=0)
        check_number("Stragglers", "factor", factor, above=0)
        if share > 1:
            raise ValueError(f"`share={share}` of Stragglers must be at most 1.")
        self.share = share
        self.factor = factor
        self._slow: tuple[int, Tensor] = (-1, torch.empty(0))  # a seed, and who is slow [N]

    @override
    def prepare(self, workload: Workload) -> None:
        super().prepare(workload)
        self._slow = (-1, torch.empty(0))

    @override
    def compute_seconds(self, clients: Tensor, round_number: int, seed: int) -> Tensor:
        factors = torch.where(self.is_slow(seed)[clients], float(self.factor), 1.0)
        return factors * self.speeds.compute_seconds(clients, round_number, seed)

    def is_slow(self, seed: int) -> Tensor:
        """Whether each client is a slow one, [N] bool."""
        if self._slow[0] != seed:  # the same in all rounds
            num_clients = len(self.known_workload().sizes)
            slow = torch.zeros(num_clients, dtype=torch.bool)
            slow[_shuffled(num_clients, seed, "stragglers")[: round(self.share * num_clients)]] = True
            self._slow = (seed, slow)
        return self._slow[1]


class PerExample(AroundSpeeds):
    """Time grows with the work: ``T_i = m_i tau_i``, m_i the examples that a client goes through in a round.

    m_i is the number of its examples times local epochs, or local steps times the size of a batch; where clients draw
    their epochs (``min_epochs``), what they have drawn. tau_i, the seconds of one example, are what the other speeds
    say.

    Args:
        speeds: what tau_i is.
    """

    def __init__(self, speeds: Speeds = lazy_default(EqualSpeeds, seconds=0.001)) -> None:
        super().__init__(speeds)

    @override
    def compute_seconds(self, clients: Tensor, round_number: int, seed: int) -> Tensor:
        examples = self.known_workload().examples(clients, round_number, seed)
        return examples.double() * self.speeds.compute_seconds(clients, round_number, seed)


class CorrelatedSpeeds(AroundSpeeds):
    """Speeds that go with the data: ``T_i = T'_{pi(i)}``, the same times as of others, dealt anew to groups of clients.

    Clients are put into groups by their data, and within a group into random order; pi sends the i-th client in that
    order to the i-th fastest of the others (by their times in round 1). So the first group has the fastest speeds, the
    last one the slowest, and the times of all clients together stay what they were. "Straggler-Resilient Personalized
    Federated Learning", Appendix C, "correlated heterogeneity": three groups by label.

    Args:
        by: ``labels``: the K classes are cut into groups in ascending order, and a client is in the group of which it
            has the most examples. ``sizes``: by the number of examples, the smallest first.
        groups: how many groups; for sizes, as many as clients make the order of sizes that of times.
        speeds: what T' is; it must not depend on the data itself.

    Raises:
        ValueError: a value is out of range, or the data has no class labels.
    """

    def __init__(
        self,
        by: Literal["labels", "sizes"] = "labels",
        groups: PositiveInt = 3,
        speeds: Speeds = lazy_default(ExponentialSpeeds),
    ) -> None:
        super().__init__(speeds)
        check_choice("CorrelatedSpeeds", "by", by, ("labels", "sizes"))
        check_number("CorrelatedSpeeds", "groups", groups, least=1, whole=True)
        if isinstance(self.speeds, PerExample):
            raise ValueError(
                "`speeds` of CorrelatedSpeeds are dealt anew to clients, and PerExample depends on whose examples they "
                "are: put CorrelatedSpeeds into PerExample."
            )
        self.by = by
        self.groups = groups
        self._dealt: tuple[int, Tensor] = (-1, torch.empty(0))  # a seed, and pi [N]

    @override
    def prepare(self, workload: Workload) -> None:
        super().prepare(workload)
        self._dealt = (-1, torch.empty(0))

    @override
    def check(self, num_clients: int) -> None:
        super().check(num_clients)
        self.group_of_clients()

    @override
    def compute_seconds(self, clients: Tensor, round_number: int, seed: int) -> Tensor:
        if self._dealt[0] != seed:
            self._dealt = (seed, self._deal(seed))
        return self.speeds.compute_seconds(self._dealt[1][clients], round_number, seed)

    def group_of_clients(self) -> Tensor:
        """The group of each client [N], from 0."""
        workload = self.known_workload()
        if self.by == "sizes":
            num_clients = len(workload.sizes)
            ranks = torch.empty(num_clients, dtype=torch.int64)
            ranks[workload.sizes.argsort(stable=True)] = torch.arange(num_clients)
            return ranks * int(self.groups) // num_clients
        counts = workload.label_counts()
        num_classes = counts.shape[1]
        group_of_class = torch.arange(num_classes) * self.groups // num_classes
        in_groups = torch.zeros(len(counts), self.groups, dtype=counts.dtype).index_add_(1, group_of_class, counts)
        return in_groups.argmax(dim=1)

    def _deal(self, seed: int) -> Tensor:
        groups = self.group_of_clients()
        order = _shuffled(len(groups), seed, "correlated speeds")
        order = order[groups[order].argsort(stable=True)]
        clients = torch.arange(len(groups))
        fastest_first = self.speeds.compute_seconds(clients, 1, seed).argsort(stable=True)
        dealt = torch.empty_like(order)
        dealt[order] = fastest_first
        return dealt


def refuse_losses(owner: Speeds, speeds: Speeds) -> None:
    """Refuse speeds that lose clients inside others; raises ValueError."""
    if speeds.loses_clients:
        raise ValueError(
            f"{type(speeds).__name__} inside {type(owner).__name__} would lose nobody, as only the outermost system is "
            f"asked: put {type(owner).__name__} into {type(speeds).__name__}."
        )


def _shuffled(num_clients: int, seed: int, purpose: str) -> Tensor:
    """All clients in random order [N]."""
    keys = client_keys(torch.arange(num_clients), seed, purpose)
    order: Tensor = uniform(keys, 1, torch.float64).squeeze(1).argsort(stable=True)
    return order
