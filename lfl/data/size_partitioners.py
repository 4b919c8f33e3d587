"""Partitioners whose clients have numbers of examples that differ by a given distribution, and few classes each.

Both are of "Straggler-Resilient Personalized Federated Learning", Appendix C, "imbalanced datasets", which names the
distributions of the sizes; how the classes are shared is as in ``ClassesPerClientPartitioner``.
"""

import numpy as np
import torch
from jsonargparse.typing import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_number
from lfl.data.partitioners import ClassesPerClientPartitioner, Partitioner, check_positive, class_labels
from lfl.data.sampling import ExamplesByClass, compact_labels, deal_by_shares
from lfl.randomness import derive_seed, generator


class UniformSizesPartitioner(Partitioner):
    """Client i has ``least + u_i`` examples, u_i uniform from 0 to ``spread``; the paper's ``100 + U[0, 50]``.

    The other examples are left out. With k classes a client has as many examples of each of its classes, up to one.

    Args:
        least: smallest number of examples of a client, at least 1.
        spread: how many more it may have.
        classes_per_client: number of classes of each client (k), dealt as by ``ClassesPerClientPartitioner``; none for
            examples drawn uniformly.

    Raises:
        ValueError: a value is out of range, or there are not as many examples, in all or of a class.
    """

    def __init__(
        self, least: PositiveInt = 100, spread: NonNegativeInt = 50, classes_per_client: PositiveInt | None = None
    ) -> None:
        check_number("UniformSizesPartitioner", "least", least, least=1, whole=True)
        check_number("UniformSizesPartitioner", "spread", spread, least=0, whole=True)
        if classes_per_client is not None:
            check_number("UniformSizesPartitioner", "classes_per_client", classes_per_client, least=1, whole=True)
        self.least = least
        self.spread = spread
        self.classes_per_client = classes_per_client

    @override
    def assign(self, targets: Tensor, groups: Tensor | None, num_clients: int, seed: int) -> Tensor:
        del groups
        draws = generator(seed, "uniform_sizes")
        sizes = self.least + torch.randint(self.spread + 1, (num_clients,), generator=draws)
        owners = torch.full((len(targets),), -1)
        if self.classes_per_client is None:
            self._check_enough(int(sizes.sum()), len(targets), "")
            order = torch.randperm(len(targets), generator=draws)
            owners[order[: int(sizes.sum())]] = torch.repeat_interleave(torch.arange(num_clients), sizes)
            return owners
        labels = class_labels(targets, self)
        by_class = ExamplesByClass.shuffled(labels, draws)
        k = self.classes_per_client
        held = ClassesPerClientPartitioner(k).classes_of_clients(num_clients, len(by_class.counts), draws)
        # Of the first of a client's classes one example more, where its number is no multiple of k.
        shares = sizes[:, None] // k + (torch.arange(k) < sizes[:, None] % k)
        wanted = torch.zeros(num_clients, len(by_class.counts), dtype=torch.int64).scatter_(1, held, shares)
        for number, name in enumerate(compact_labels(labels)[0].tolist()):
            self._check_enough(int(wanted[:, number].sum()), int(by_class.counts[number]), f" of class {name}")
            start = int(by_class.starts[number])
            own = torch.repeat_interleave(torch.arange(num_clients), wanted[:, number])
            owners[by_class.order[start : start + len(own)]] = own
        return owners

    def _check_enough(self, wanted: int, available: int, which: str) -> None:
        if wanted > available:
            raise ValueError(
                f"`least={self.least}` and `spread={self.spread}` of UniformSizesPartitioner need {wanted} training "
                f"examples{which}, there are {available}: lower them, or `num_clients`."
            )


class LogNormalPartitioner(Partitioner):
    """Label skew with log-normal sizes: each client has k classes, and of each a share like ``exp(sigma z_i)``.

    z_i is standard normal. The clients that have a class share its examples in proportion to their exp(sigma z), where
    ``ClassesPerClientPartitioner`` shares them equally; each of them gets one at least. All examples are dealt, so that
    a client's size also depends on who has the same classes.

    Args:
        classes_per_client: number of classes of each client (k).
        sigma: standard deviation of the logarithm of a share, at least 0.

    Raises:
        ValueError: a value is out of range, a class would have no client or fewer examples than clients, or the targets
            are not class labels.
    """

    def __init__(self, classes_per_client: PositiveInt = 3, sigma: NonNegativeFloat = 1.0) -> None:
        check_positive(self, classes_per_client=classes_per_client)
        check_number("LogNormalPartitioner", "sigma", sigma, least=0)
        self.classes_per_client = classes_per_client
        self.sigma = sigma

    @override
    def assign(self, targets: Tensor, groups: Tensor | None, num_clients: int, seed: int) -> Tensor:
        del groups
        labels = class_labels(targets, self)
        draws = generator(seed, "log_normal")
        rng = np.random.default_rng(derive_seed(seed, "log_normal"))
        by_class = ExamplesByClass.shuffled(labels, draws)
        held = ClassesPerClientPartitioner(self.classes_per_client).classes_of_clients(
            num_clients, len(by_class.counts), draws
        )
        shares = torch.from_numpy(self.sigma * rng.standard_normal(num_clients)).exp()
        owners = torch.empty_like(labels)
        for number, members in enumerate(by_class.order.split(by_class.counts.tolist())):
            holders = (held == number).any(dim=1).nonzero().flatten()
            if len(holders) > len(members):
                raise ValueError(
                    f"`classes_per_client={self.classes_per_client}` with `num_clients={num_clients}` gives class "
                    f"{int(compact_labels(labels)[0][number])} to {len(holders)} clients, but it has {len(members)} "
                    "training examples: lower one of the two."
                )
            dealt = deal_by_shares(shares[holders], len(members) - len(holders), rng.random())
            owners[members] = torch.cat([holders, holders[dealt]])
        return owners
