"""Ways to deal a training set to clients, each the variant of a published one that its docstring names.

A partitioner answers one question, "whose is example j?", so that client sets are disjoint and cover the data by
construction. Proportions are turned into whole examples by systematic sampling: the examples stand in a row in random
order, and client i takes the stretch that its share marks, from a random starting point. Each gets its quota rounded
up or down, and its quota on average.
"""

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
import torch
from jsonargparse.typing import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor
from typing_extensions import override

from lfl.data.partition import IndexSets
from lfl.randomness import derive_seed, generator

_HOPELESS = 100  # clients that a draw leaves with too few examples: the draws after it are spared


class Partitioner(ABC):
    """Base of the partitioners; a subclass implements ``assign`` and nothing else.

    Example:
        >>> sets = IIDPartitioner().split(torch.zeros(10), None, num_clients=4, seed=0)
        >>> sets.sizes
        tensor([3, 2, 3, 2])
    """

    @abstractmethod
    def assign(self, targets: Tensor, groups: Tensor | None, num_clients: int, seed: int) -> Tensor:
        """The client of each training example, [n] int64 in 0..num_clients-1.

        Args:
            targets: the examples' targets, (n, ...); class labels are [n] of an integer type.
            groups: natural ids (writers, users), [n] int64, or None where the data has none.
            num_clients: N, at most n.
            seed: two calls with the same arguments return the same.
        """

    def split(self, targets: Tensor, groups: Tensor | None, num_clients: int, seed: int) -> IndexSets:
        """Each client's set of examples: disjoint, covering, none empty. Arguments as in ``assign``.

        Raises:
            ValueError: there are more clients than examples, or ``assign`` left a client without any.
        """
        if not 1 <= num_clients <= len(targets):
            raise ValueError(
                f"`num_clients={num_clients}` but there are {len(targets)} training examples, and every client needs "
                f"one: choose 1 to {len(targets)} clients."
            )
        sets = IndexSets.from_owners(self.assign(targets, groups, num_clients, seed), num_clients)
        if len(sets) != num_clients or int(sets.sizes.min()) == 0:
            raise ValueError(f"{self!r} must give each of `num_clients={num_clients}` clients at least one example.")
        return sets

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in vars(self).items())})"


class IIDPartitioner(Partitioner):
    """Examples dealt uniformly at random, sizes equal to within one (McMahan et al. 2017, section 3, "IID")."""

    @override
    def assign(self, targets: Tensor, groups: Tensor | None, num_clients: int, seed: int) -> Tensor:
        del groups
        order = torch.randperm(len(targets), generator=generator(seed, "iid"))
        return order * num_clients // len(targets)


class DirichletPartitioner(Partitioner):
    """Label skew: each class is divided among the clients by proportions drawn from a Dirichlet distribution.

    For each class k, p_k ~ Dir(alpha, ..., alpha) over the N clients, and client i gets the share p_ki of the class:
    Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural Networks", ICML 2019, section 4; with
    ``balanced`` as in the code of Li et al., "Federated Learning on Non-IID Data Silos", ICDE 2022. Both the mix and
    the number of examples differ among clients. (Hsu et al. 2019 draw a mix for each client instead, at equal sizes:
    another variant.) All proportions are drawn again until every client has ``min_size`` examples; a draw that leaves
    more than a hundred clients short ends the search, for the next one would not do better.

    Args:
        alpha: concentration, positive: small means few classes a client, large means IID.
        min_size: examples that the smallest client must have, at least 1; Li et al. use 10.
        max_tries: draws before giving up.
        balanced: a client that has n / N examples already gets nothing of the classes that follow.

    Raises:
        ValueError: a setting is out of range, the targets are no class labels, or ``max_tries`` draws were in vain.
    """

    def __init__(
        self,
        alpha: PositiveFloat = 0.3,
        min_size: PositiveInt = 1,
        max_tries: PositiveInt = 100,
        balanced: bool = False,
    ) -> None:
        _check_positive(self, alpha=alpha, min_size=min_size, max_tries=max_tries)
        self.alpha = alpha
        self.min_size = min_size
        self.max_tries = max_tries
        self.balanced = balanced

    @override
    def assign(self, targets: Tensor, groups: Tensor | None, num_clients: int, seed: int) -> Tensor:
        del groups
        labels = _class_labels(targets, self)
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
            # Clients' sizes are all but independent: none short where 100 are expected has a chance of e^-100.
            if short > _HOPELESS:
                break
        raise ValueError(
            f"DirichletPartitioner with `alpha={self.alpha}` and `num_clients={num_clients}` left a client with fewer "
            f"than `min_size={self.min_size}` of {len(labels)} examples in each of {attempt + 1} draws of at most "
            f"`max_tries={self.max_tries}` (the last left {short} clients short, the best draw's smallest client has "
            f"{best}). Raise `alpha`, lower `num_clients` or `min_size`, or set `balanced=True`."
        )

    def _draw(self, labels: Tensor, num_clients: int, seed: int) -> Tensor:
        rng = np.random.default_rng(seed)
        rows = _ByClass.shuffled(labels, generator(seed, "order"))
        owners, sizes = torch.empty_like(labels), torch.zeros(num_clients, dtype=torch.int64)
        for members in torch.split(rows.order, rows.counts.tolist()):
            log_shares = self._log_gamma(rng, num_clients)
            if self.balanced:
                log_shares[sizes * num_clients >= len(labels)] = -math.inf
            owners[members] = dealt = _deal(log_shares.softmax(0), len(members), rng.random())
            sizes += torch.bincount(dealt, minlength=num_clients)
        return owners

    def _log_gamma(self, rng: np.random.Generator, count: int) -> Tensor:
        """Logarithms of Gamma(alpha) variates; normalised, they are Dirichlet.

        G(alpha) = G(alpha + 1) * U^(1/alpha) in distribution. In logarithms nothing underflows for a small alpha, where
        numpy's own Dirichlet divides 0 by 0.
        """
        boosted = np.log(rng.standard_gamma(self.alpha + 1, count))
        return torch.from_numpy(boosted + np.log1p(-rng.random(count)) / self.alpha)


class ClassesPerClientPartitioner(Partitioner):
    """Label skew: each client has examples of exactly so many classes.

    The "#C = k" partition of Li et al., "Federated Learning on Non-IID Data Silos", ICDE 2022, section IV-B: clients
    that hold a class share its examples equally. Where they draw the classes of a client independently, ours are dealt
    from shuffled decks, so that each class has the same number of holders, to within one in the last deck.

    Args:
        classes_per_client: k, at least 1 and at most the number of classes in the data.

    Raises:
        ValueError: k is out of range, some class would have no holder (N k below the number of classes) or fewer
            examples than holders, or the targets are no class labels.
    """

    def __init__(self, classes_per_client: PositiveInt = 2) -> None:
        _check_positive(self, classes_per_client=classes_per_client)
        self.classes_per_client = classes_per_client

    @override
    def assign(self, targets: Tensor, groups: Tensor | None, num_clients: int, seed: int) -> Tensor:
        del groups
        labels = _class_labels(targets, self)
        draws = generator(seed, "classes_per_client")
        rows = _ByClass.shuffled(labels, draws)
        held = self._classes_of_clients(num_clients, len(rows.counts), draws)
        slots = _ByClass.shuffled(held.flatten(), draws)
        if bool((slots.counts > rows.counts).any()):
            worst = int((slots.counts - rows.counts).argmax())
            raise ValueError(
                f"`classes_per_client={self.classes_per_client}` with `num_clients={num_clients}` gives class "
                f"{int(_compact(labels)[0][worst])} to {int(slots.counts[worst])} clients, but it has "
                f"{int(rows.counts[worst])} training examples: lower one of the two."
            )
        # The r-th example of a class goes to its holder number r modulo the number of holders.
        holder = slots.starts[rows.classes] + rows.ranks % slots.counts[rows.classes]
        owners = torch.empty_like(labels)
        owners[rows.order] = slots.order[holder] // self.classes_per_client
        return owners

    def _classes_of_clients(self, num_clients: int, num_classes: int, draws: torch.Generator) -> Tensor:
        """[N, k]: windows of k that move along a shuffled circle of classes; a new circle once all windows align."""
        k = self.classes_per_client
        if k > num_classes:
            raise ValueError(f"`classes_per_client={k}` but the training set has {num_classes} classes: lower it.")
        if num_clients * k < num_classes:
            raise ValueError(
                f"`classes_per_client={k}` with `num_clients={num_clients}` covers {num_clients * k} classes, but the "
                f"training set has {num_classes}, and each must have a holder: raise one of the two."
            )
        clients = torch.arange(num_clients)
        period = num_classes // math.gcd(num_classes, k)
        decks = torch.rand(-(-num_clients // period), num_classes, generator=draws).argsort(dim=1)
        places = (clients % period * k).unsqueeze(1) + torch.arange(k)
        return decks[(clients // period).unsqueeze(1), places % num_classes]


class ShardPartitioner(Partitioner):
    """Label skew: examples sorted by label, cut into equal shards, a few random shards a client.

    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017, section
    3, "Non-IID": MNIST in 200 shards of 300, two for each of 100 clients. Shards are equal to within one example.
    Within a label the order is random, where the paper's is the data set's.

    Args:
        shards_per_client: at least 1; the paper's is 2.

    Raises:
        ValueError: there are more shards than examples, or the targets are no class labels.
    """

    def __init__(self, shards_per_client: PositiveInt = 2) -> None:
        _check_positive(self, shards_per_client=shards_per_client)
        self.shards_per_client = shards_per_client

    @override
    def assign(self, targets: Tensor, groups: Tensor | None, num_clients: int, seed: int) -> Tensor:
        del groups
        labels = _class_labels(targets, self)
        num_shards = self.shards_per_client * num_clients
        if num_shards > len(labels):
            raise ValueError(
                f"`shards_per_client={self.shards_per_client}` with `num_clients={num_clients}` makes {num_shards} "
                f"shards of {len(labels)} training examples: lower one of the two."
            )
        draws = generator(seed, "shards")
        owner_of_shard = torch.randperm(num_shards, generator=draws) // self.shards_per_client
        owners = torch.empty_like(labels)
        order = _ByClass.shuffled(labels, draws).order
        owners[order] = owner_of_shard[torch.arange(len(labels)) * num_shards // len(labels)]
        return owners


class QuantitySkewPartitioner(Partitioner):
    """Quantity skew: labels IID, numbers of examples log-normal.

    Client i's share is exp(sigma z_i), z_i standard normal, as for the unbalanced data of Acar et al., "Federated
    Learning Based on Dynamic Regularization", ICLR 2021. Each client gets one example first, and its share of the rest.

    Args:
        sigma: standard deviation of the logarithm of a client's share, at least 0 (equal sizes); Acar et al. use 0.3.
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
        dealt = _deal(shares, len(targets) - num_clients, rng.random())
        order = torch.randperm(len(targets), generator=generator(seed, "quantity_skew"))
        return torch.cat([torch.arange(num_clients), dealt])[order]


class NaturalPartitioner(Partitioner):
    """The data's own clients (writers, users, devices): no group is divided.

    With as many clients as groups, client i is the i-th group in the order of the ids, as in LEAF (Caldas et al.
    2018). With fewer, shuffled groups are dealt in turn, and clients' numbers of groups differ by one at most.

    Raises:
        ValueError: the data has no groups, or fewer than clients.
    """

    @override
    def assign(self, targets: Tensor, groups: Tensor | None, num_clients: int, seed: int) -> Tensor:
        del targets
        if groups is None:
            raise ValueError("NaturalPartitioner needs data with groups (one id per example); this source has none.")
        names, group = _compact(groups)
        if num_clients > len(names):
            raise ValueError(
                f"`num_clients={num_clients}` but the data has {len(names)} natural groups, and NaturalPartitioner "
                f"divides none: choose 1 to {len(names)} clients."
            )
        if num_clients == len(names):
            return group
        return (torch.randperm(len(names), generator=generator(seed, "natural")) % num_clients)[group]


def match_label_mix(train: IndexSets, targets: Tensor, test_targets: Tensor, seed: int) -> IndexSets:
    """Deals a test set so that each client is tested on the mix of classes on which it was trained.

    Of each class, client i gets the share of the test examples that it has of the training examples, rounded up or down
    at random (the share itself on average). A class that nobody trains on goes to all clients uniformly. Targets that
    are no class labels count as a single class: then clients' test sets are as large as their training sets are.

    Args:
        train: the clients' training examples; some may belong to nobody.
        targets: of the whole training set, (n, ...).
        test_targets: of the test set, (m, ...).
        seed: of the draws.

    Returns:
        Disjoint sets that cover 0..m-1. A client with few examples may have an empty one.
    """
    draws = generator(seed, "test_split")
    num_train = len(train.indices)
    labels = torch.cat([_labels_or_zeros(targets)[train.indices], _labels_or_zeros(test_targets)])
    compact = _compact(labels)[1]
    # Each class's training examples in a row, those of a client side by side, clients in random order.
    train_owners = train.owners
    place = torch.randperm(len(train), generator=draws)[train_owners]
    row = (compact[:num_train] * len(train) + place).argsort()
    num_classes = int(compact.max()) + 1
    counts = torch.bincount(compact[:num_train], minlength=num_classes)
    tests = _ByClass.shuffled(compact[num_train:], draws, num_classes)
    # The j-th test example of a class falls on the training example that stands at the same fraction of the row.
    start = torch.rand(num_classes, generator=draws, dtype=torch.float64)[tests.classes]
    count = counts[tests.classes]
    step = ((tests.ranks + start) / tests.counts[tests.classes] * count).long().clamp(max=num_train - 1)
    entry = (counts.cumsum(0) - counts)[tests.classes] + torch.minimum(step, (count - 1).clamp(min=0))
    anyone = torch.randint(len(train), (len(test_targets),), generator=draws)
    owners = torch.empty(len(test_targets), dtype=torch.int64)
    owners[tests.order] = torch.where(count > 0, train_owners[row[entry.clamp(max=num_train - 1)]], anyone)
    return IndexSets.from_owners(owners, len(train))


class _ByClass(NamedTuple):
    """Examples sorted by class, in random order within each."""

    order: Tensor  # [n] positions
    classes: Tensor  # [n] index of the class of order[j]
    ranks: Tensor  # [n] place of order[j] within its class
    counts: Tensor  # [classes] examples of each class
    starts: Tensor  # [classes] where a class begins in `order`

    @classmethod
    def shuffled(cls, labels: Tensor, draws: torch.Generator, num_classes: int | None = None) -> "_ByClass":
        """Classes are numbered as they occur, sorted, or are 0..num_classes-1 where that is given."""
        classes = _compact(labels)[1] if num_classes is None else labels
        counts = torch.bincount(classes, minlength=num_classes or 0)
        starts = counts.cumsum(0) - counts
        shuffle = torch.randperm(len(labels), generator=draws)
        order = shuffle[classes[shuffle].argsort(stable=True)]
        classes = classes[order]
        return cls(order, classes, torch.arange(len(labels)) - starts[classes], counts, starts)


def _deal(shares: Tensor, count: int, start: float) -> Tensor:
    """The owners of ``count`` examples in a row, ascending, [count]: systematic sampling of ``shares`` [N]."""
    edges = shares.cumsum(0)
    points = (torch.arange(count, dtype=shares.dtype) + start) / max(count, 1) * edges[-1]
    return torch.searchsorted(edges, points, right=True).clamp(max=len(shares) - 1)


def _compact(labels: Tensor) -> tuple[Tensor, Tensor]:
    """The different values, ascending, and for each entry the index of its value."""
    values, index = torch.unique(labels, return_inverse=True)
    return values, index


def _class_labels(targets: Tensor, partitioner: Partitioner) -> Tensor:
    if targets.dim() != 1 or targets.is_floating_point():
        raise ValueError(
            f"{partitioner!r} needs one integer class label per example, but the targets are {targets.dtype} of shape "
            f"{list(targets.shape)}; IIDPartitioner and QuantitySkewPartitioner need no labels."
        )
    return targets.long()


def _labels_or_zeros(targets: Tensor) -> Tensor:
    if targets.dim() != 1 or targets.is_floating_point():
        return torch.zeros(len(targets), dtype=torch.int64)
    return targets.long()


def _check_positive(owner: object, **settings: float) -> None:
    for name, value in settings.items():
        if not value > 0:
            raise ValueError(f"`{name}={value}` of {type(owner).__name__} must be greater than 0.")
