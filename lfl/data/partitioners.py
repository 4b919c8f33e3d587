"""Partitioners deal a training set to clients, each as in the publication that its docstring names.

A partitioner answers one question, "which client has example j?", so the clients' sets are disjoint by construction,
and cover the data unless the answer is "nobody". Shares of clients are turned into whole examples by systematic
sampling (``deal_by_shares``): each client gets its share rounded up or down, and exactly its share on average.
"""

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import torch
from jsonargparse.typing import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor
from typing_extensions import override

from lfl.data.partition import IndexSets
from lfl.data.sampling import ExamplesByClass, compact_labels, deal_by_mixes, deal_by_shares, log_gamma
from lfl.randomness import derive_seed, generator

_HOPELESS = 100  # if a draw leaves more clients than this with too few examples, no other draw is tried


class Partitioner(ABC):
    """Base class of partitioners; a subclass implements ``assign`` and, if groups decide, sets ``uses_groups``.

    Attributes:
        uses_groups: whether natural groups decide who gets which example. A client is then tested on examples of its
            own groups, else on its mix of classes.

    Example:
        >>> sets = IIDPartitioner().split(torch.zeros(10), None, num_clients=4, seed=0)
        >>> sets.sizes
        tensor([3, 2, 3, 2])
    """

    uses_groups: ClassVar[bool] = False

    @abstractmethod
    def assign(self, targets: Tensor, groups: Tensor | None, num_clients: int, seed: int) -> Tensor:
        """Choose the client of each training example.

        Args:
            targets: target of each example, (n, ...); class labels are [n] of an integer type.
            groups: natural group (writer, user) of each example, [n] int64; None if the data has no groups.
            num_clients: number of clients (N), at most n.
            seed: seed of all draws: equal arguments give equal results.

        Returns:
            The client of each example, [n] int64 in 0..num_clients-1; -1 for an example that nobody gets.
        """

    def split(self, targets: Tensor, groups: Tensor | None, num_clients: int, seed: int) -> IndexSets:
        """Deal the examples to clients; every client gets at least one. The arguments are those of ``assign``.

        Raises:
            ValueError: there are more clients than examples, or ``assign`` left a client without examples.
        """
        if not 1 <= num_clients <= len(targets):
            raise ValueError(
                f"`num_clients={num_clients}` but there are {len(targets)} training examples, and every client needs "
                f"one: choose 1 to {len(targets)} clients."
            )
        owners = self.assign(targets, groups, num_clients, seed)
        dealt = (owners >= 0).nonzero().flatten()
        sets = IndexSets.from_owners(owners[dealt], num_clients, dealt)
        if len(sets) != num_clients or int(sets.sizes.min()) == 0:
            raise ValueError(f"{self!r} must give each of `num_clients={num_clients}` clients at least one example.")
        return sets

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in vars(self).items())})"


class IIDPartitioner(Partitioner):
    """Deals examples uniformly at random; sizes differ by at most one (McMahan et al. 2017, section 3, "IID")."""

    @override
    def assign(self, targets: Tensor, groups: Tensor | None, num_clients: int, seed: int) -> Tensor:
        del groups
        # Example j has a random place among n; the n places are cut into N stretches of equal length.
        order = torch.randperm(len(targets), generator=generator(seed, "iid"))
        return order * num_clients // len(targets)


class DirichletPartitioner(Partitioner):
    """Label skew: each class is divided among the clients by shares drawn from a Dirichlet distribution.

    For each class k, p_k ~ Dir(alpha, ..., alpha) over the N clients, and client i gets the share p_ki of the class:
    Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural Networks", ICML 2019, section 4; with
    ``balanced`` as in the code of Li et al., "Federated Learning on Non-IID Data Silos", ICDE 2022. Both the mix of
    classes and the number of examples differ among clients. (The other variant, of Hsu et al. 2019, is
    EqualDirichletPartitioner.) All shares are drawn again until every client has ``min_size``
    examples. If a draw leaves more than a hundred clients with fewer, the search ends, since no draw would succeed.

    Args:
        alpha: concentration, positive; small means few classes per client, large means IID.
        min_size: number of examples that every client must have, at least 1; Li et al. use 10.
        max_tries: number of draws before giving up.
        balanced: a client that already has n / N examples gets nothing of the remaining classes.

    Raises:
        ValueError: a setting is out of range, the targets are not class labels, or no draw succeeded.
    """

    def __init__(
        self,
        alpha: PositiveFloat = 0.3,
        min_size: PositiveInt = 1,
        max_tries: PositiveInt = 100,
        balanced: bool = False,
    ) -> None:
        check_positive(self, alpha=alpha, min_size=min_size, max_tries=max_tries)
        self.alpha = alpha
        self.min_size = min_size
        self.max_tries = max_tries
        self.balanced = balanced

    @override
    def assign(self, targets: Tensor, groups: Tensor | None, num_clients: int, seed: int) -> Tensor:
        del groups
        labels = class_labels(targets, self)
        if self.min_size * num_clients > len(labels):
            raise ValueError(
                f"`min_size={self.min_size}` of DirichletPartitioner for `num_clients={num_clients}` needs "
                f"{self.min_size * num_clients} training examples, there are {len(labels)}: lower one of the two."
            )
        best = 0
        for attempt in range(self.max_tries):
            owners = self._draw(labels, num_clients, derive_seed(seed, "dirichlet", attempt))
            sizes = torch.bincount(owners, minlength=num_clients)
            short = int((sizes < self.min_size).sum())
            if not short:
                return owners
            best = max(best, int(sizes.min()))
            # The sizes of clients are almost independent: if 100 clients are expected to have too few examples, the
            # probability that none has is about e^-100.
            if short > _HOPELESS:
                break
        raise ValueError(
            f"DirichletPartitioner with `alpha={self.alpha}` and `num_clients={num_clients}` left a client with fewer "
            f"than `min_size={self.min_size}` of {len(labels)} examples in each of {attempt + 1} draws of at most "
            f"`max_tries={self.max_tries}` (the last left {short} clients short, the best draw's smallest client has "
            f"{best}). Raise `alpha`, lower `num_clients` or `min_size`, or set `balanced=True`."
        )

    def _draw(self, labels: Tensor, num_clients: int, seed: int) -> Tensor:
        """Draw all shares once, and deal the examples by them; returns the client of each example [n]."""
        rng = np.random.default_rng(seed)
        by_class = ExamplesByClass.shuffled(labels, generator(seed, "order"))
        owners = torch.empty_like(labels)
        sizes = torch.zeros(num_clients, dtype=torch.int64)
        for members in torch.split(by_class.order, by_class.counts.tolist()):
            log_shares = log_gamma(rng, self.alpha, num_clients)
            if self.balanced:
                # Some client stays: as long as examples are left, somebody has fewer than n / N.
                log_shares[sizes * num_clients >= len(labels)] = -math.inf
            # Gamma variates divided by their sum are a Dirichlet variate; `softmax` divides, given their logarithms.
            owners[members] = dealt = deal_by_shares(log_shares.softmax(0), len(members), rng.random())
            sizes += torch.bincount(dealt, minlength=num_clients)
        return owners


class EqualDirichletPartitioner(Partitioner):
    """Label skew at equal sizes: each client draws its examples by a mix of classes of its own.

    q_i ~ Dir(alpha p) for each client i, p the classes' shares of the data, and client i draws its examples from the
    classes by q_i, without replacement: Hsu, Qi & Brown, "Measuring the Effects of Non-Identical Data Distribution for
    Federated Visual Classification", 2019, section 3. Every example is dealt, so that sizes differ by at most one.

    Clients are served in random order. When a class has run out, the rest of a client's examples are drawn by its mix
    of the classes that are left. So the last clients may have other mixes than they have drawn, the more the smaller
    alpha is.

    Args:
        alpha: concentration, positive; small means few classes per client, large means IID.
        per_class: q_i ~ Dir(alpha, ..., alpha) over the K classes, as in the code of FedDyn (Acar et al. 2021) and of
            those who follow it: with equal classes, alpha is K times as large in Hsu et al.'s form.

    Raises:
        ValueError: ``alpha`` is not positive, or the targets are not class labels.
    """

    def __init__(self, alpha: PositiveFloat = 0.3, per_class: bool = False) -> None:
        check_positive(self, alpha=alpha)
        self.alpha = alpha
        self.per_class = per_class

    @override
    def assign(self, targets: Tensor, groups: Tensor | None, num_clients: int, seed: int) -> Tensor:
        del groups
        labels = class_labels(targets, self)
        rng = np.random.default_rng(derive_seed(seed, "equal_dirichlet"))
        by_class = ExamplesByClass.shuffled(labels, generator(seed, "equal_dirichlet"))
        counts = by_class.counts.numpy()
        concentration = np.full(len(counts), self.alpha) if self.per_class else self.alpha * counts / counts.sum()
        return deal_by_mixes(by_class, num_clients, rng, lambda _: log_gamma(rng, concentration, len(counts)))


class ClassesPerClientPartitioner(Partitioner):
    """Label skew: each client has examples of exactly k classes.

    The "#C = k" partition of Li et al., "Federated Learning on Non-IID Data Silos", ICDE 2022, section IV-B: the
    clients that have a class share its examples equally. Li et al. draw the classes of each client independently. Here
    they are dealt from shuffled decks of classes, so that all classes have equally many clients (the last deck may be
    used in part).

    Args:
        classes_per_client: number of classes of each client (k), from 1 to the number of classes in the data.

    Raises:
        ValueError: k is out of range, a class would have no client (N k is below the number of classes) or fewer
            examples than clients, or the targets are not class labels.
    """

    def __init__(self, classes_per_client: PositiveInt = 2) -> None:
        check_positive(self, classes_per_client=classes_per_client)
        self.classes_per_client = classes_per_client

    @override
    def assign(self, targets: Tensor, groups: Tensor | None, num_clients: int, seed: int) -> Tensor:
        del groups
        labels = class_labels(targets, self)
        draws = generator(seed, "classes_per_client")
        by_class = ExamplesByClass.shuffled(labels, draws)
        held = self.classes_of_clients(num_clients, len(by_class.counts), draws)
        # Client i has the slots i k to i k + k - 1, one for each of its classes: here they are sorted by class.
        slots = ExamplesByClass.shuffled(held.flatten(), draws)
        if bool((slots.counts > by_class.counts).any()):
            worst = int((slots.counts - by_class.counts).argmax())
            raise ValueError(
                f"`classes_per_client={self.classes_per_client}` with `num_clients={num_clients}` gives class "
                f"{int(compact_labels(labels)[0][worst])} to {int(slots.counts[worst])} clients, but it has "
                f"{int(by_class.counts[worst])} training examples: lower one of the two."
            )
        # The r-th example of a class goes to the slot number r modulo the number of slots of that class.
        slot = slots.starts[by_class.classes] + by_class.ranks % slots.counts[by_class.classes]
        owners = torch.empty_like(labels)
        owners[by_class.order] = slots.order[slot] // self.classes_per_client
        return owners

    def classes_of_clients(self, num_clients: int, num_classes: int, draws: torch.Generator) -> Tensor:
        """Choose the classes of each client, [N, k].

        The classes stand in random order on a circle, the deck. Each client takes the next k of them.
        """
        k = self.classes_per_client
        if k > num_classes:
            raise ValueError(f"`classes_per_client={k}` but the training set has {num_classes} classes: lower it.")
        if num_clients * k < num_classes:
            raise ValueError(
                f"`classes_per_client={k}` with `num_clients={num_clients}` covers {num_clients * k} classes, but the "
                f"training set has {num_classes}, and each must have a holder: raise one of the two."
            )
        clients = torch.arange(num_clients)
        # After this many clients the deck has been dealt a whole number of times, each class equally often, and a newly
        # shuffled one takes its place.
        period = num_classes // math.gcd(num_classes, k)
        decks = torch.rand(-(-num_clients // period), num_classes, generator=draws).argsort(dim=1)
        places = (clients % period * k).unsqueeze(1) + torch.arange(k)
        return decks[(clients // period).unsqueeze(1), places % num_classes]


class ShardPartitioner(Partitioner):
    """Label skew: the examples are sorted by label and cut into equal shards; each client gets a few random shards.

    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017, section
    3, "Non-IID": MNIST in 200 shards of 300, two for each of 100 clients. The sizes of shards differ by at most one.
    Within a label the order is random, while the paper keeps the order of the data set.

    Args:
        shards_per_client: number of shards of each client, at least 1; 2 in the paper.

    Raises:
        ValueError: there are more shards than examples, or the targets are not class labels.
    """

    def __init__(self, shards_per_client: PositiveInt = 2) -> None:
        check_positive(self, shards_per_client=shards_per_client)
        self.shards_per_client = shards_per_client

    @override
    def assign(self, targets: Tensor, groups: Tensor | None, num_clients: int, seed: int) -> Tensor:
        del groups
        labels = class_labels(targets, self)
        num_shards = self.shards_per_client * num_clients
        if num_shards > len(labels):
            raise ValueError(
                f"`shards_per_client={self.shards_per_client}` with `num_clients={num_clients}` makes {num_shards} "
                f"shards of {len(labels)} training examples: lower one of the two."
            )
        draws = generator(seed, "shards")
        owner_of_shard = torch.randperm(num_shards, generator=draws) // self.shards_per_client
        owners = torch.empty_like(labels)
        order = ExamplesByClass.shuffled(labels, draws).order
        owners[order] = owner_of_shard[torch.arange(len(labels)) * num_shards // len(labels)]
        return owners


class QuantitySkewPartitioner(Partitioner):
    """Quantity skew: labels are IID, and the number of examples of a client is log-normal.

    Client i's share is proportional to exp(sigma z_i), z_i standard normal, as for the unbalanced data of Acar et al.,
    "Federated Learning Based on Dynamic Regularization", ICLR 2021. Each client first gets one example, and then its
    share of the rest.

    Args:
        sigma: standard deviation of the logarithm of a share, at least 0 (equal sizes); Acar et al. use 0.3.
    """

    def __init__(self, sigma: NonNegativeFloat = 0.3) -> None:
        if not sigma >= 0:
            raise ValueError(f"`sigma={sigma}` of QuantitySkewPartitioner must be at least 0.")
        self.sigma = sigma

    @override
    def assign(self, targets: Tensor, groups: Tensor | None, num_clients: int, seed: int) -> Tensor:
        del groups
        rng = np.random.default_rng(derive_seed(seed, "quantity_skew"))
        shares = torch.from_numpy(self.sigma * rng.standard_normal(num_clients)).softmax(0)
        dealt = deal_by_shares(shares, len(targets) - num_clients, rng.random())
        # The first N places, one of each client, and then the dealt ones; the examples take the places at random.
        order = torch.randperm(len(targets), generator=generator(seed, "quantity_skew"))
        return torch.cat([torch.arange(num_clients), dealt])[order]


class NaturalPartitioner(Partitioner):
    """Keeps natural groups of examples (writers, users, devices) together: no group is divided among clients.

    With as many clients as groups, client i is the i-th group in ascending order of the ids, as in LEAF (Caldas et al.
    2018). With fewer clients, the groups are shuffled and dealt in turn; the clients' numbers of groups differ by at
    most one. A client is tested on the test examples of its own groups.

    Raises:
        ValueError: the data has no groups, or fewer groups than clients.
    """

    uses_groups: ClassVar[bool] = True

    @override
    def assign(self, targets: Tensor, groups: Tensor | None, num_clients: int, seed: int) -> Tensor:
        del targets
        if groups is None:
            raise ValueError("NaturalPartitioner needs data with groups (one id per example); this source has none.")
        names, group = compact_labels(groups)
        if num_clients > len(names):
            raise ValueError(
                f"`num_clients={num_clients}` but the data has {len(names)} natural groups, and NaturalPartitioner "
                f"divides none: choose 1 to {len(names)} clients."
            )
        if num_clients == len(names):
            return group
        return (torch.randperm(len(names), generator=generator(seed, "natural")) % num_clients)[group]


def class_labels(targets: Tensor, partitioner: Partitioner) -> Tensor:
    """The targets as class labels [n]; raises ValueError if they are none."""
    if targets.dim() != 1 or targets.is_floating_point():
        raise ValueError(
            f"{partitioner!r} needs one integer class label per example, but the targets are {targets.dtype} of shape "
            f"{list(targets.shape)}: give whole numbers (`.long()`), or take IIDPartitioner or "
            "QuantitySkewPartitioner, which need no labels."
        )
    return targets.long()


def check_positive(owner: object, **settings: float) -> None:
    """Raise ValueError unless all settings are greater than 0."""
    for name, value in settings.items():
        if not value > 0:
            raise ValueError(f"`{name}={value}` of {type(owner).__name__} must be greater than 0.")
