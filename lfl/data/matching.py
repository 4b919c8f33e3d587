"""Test sets that match training sets: whose test examples are whose, given who trains on what."""

import itertools

import torch
from torch import Tensor

from lfl.data.examples import Examples
from lfl.data.partition import IndexSets
from lfl.data.sampling import ExamplesByClass, compact_labels
from lfl.randomness import generator


def match_label_mix(train: IndexSets, targets: Tensor, test_targets: Tensor, seed: int) -> IndexSets:
    """Deal a test set so that each client is tested on the mix of classes on which it is trained.

    A client that has a certain share of the training examples of a class gets the same share of the test examples of
    that class, rounded up or down at random (exactly the share on average). Test examples of a class on which no client
    trains go to clients at random. Targets that are not class labels count as one class: then the sizes of test sets
    are proportional to those of training sets.

    Args:
        train: training examples of each client; some examples may belong to no client.
        targets: targets of the whole training set, (n, ...).
        test_targets: targets of the test set, (m, ...).
        seed: seed of the draws.

    Returns:
        Disjoint sets that cover 0..m-1. A client with few training examples may have an empty set.
    """
    draws = generator(seed, "test_split")
    owners = _deal_alike(train, _labels_or_zeros(targets), _labels_or_zeros(test_targets), draws)
    anyone = torch.randint(len(train), (len(test_targets),), generator=draws)  # for classes on which nobody trains
    return IndexSets.from_owners(torch.where(owners < len(train), owners, anyone), len(train))


def split_each(sets: IndexSets, fraction: float, seed: int) -> tuple[IndexSets, IndexSets]:
    """Divide each client's examples at random into those it trains on and those it is tested on.

    Args:
        sets: examples of each client.
        fraction: share of a client's examples that it is tested on, rounded to a whole number of them; but every client
            keeps one to train on.
        seed: seed of the draws.

    Returns:
        The training sets and the test sets, disjoint. A client with few examples may have an empty test set.
    """
    owners = sets.owners
    ranks = torch.empty_like(owners)
    shuffled = ExamplesByClass.shuffled(owners, generator(seed, "client_test_split"), len(sets))
    ranks[shuffled.order] = shuffled.ranks
    counts = torch.minimum((sets.sizes.double() * fraction).round().long(), (sets.sizes - 1).clamp(min=0))
    is_test = ranks < counts[owners]
    train, test = (IndexSets.from_owners(owners[m], len(sets), sets.indices[m]) for m in (~is_test, is_test))
    return train, test


def match_groups(train: IndexSets, groups: Tensor, test_groups: Tensor, seed: int) -> IndexSets:
    """Deal a test set so that each client is tested on examples of the natural groups (users) on which it is trained.

    Where a group's training examples are divided among clients, so are its test examples, by the same shares.

    Args:
        train: training examples of each client; some examples may belong to no client.
        groups: natural group of each example of the training set, [n] int64.
        test_groups: natural group of each test example, [m] int64.
        seed: seed of the draws.

    Returns:
        Disjoint sets. Test examples of groups on which no client trains are in none; a client whose groups have no test
        examples has an empty set.
    """
    owners = _deal_alike(train, groups, test_groups, generator(seed, "test_split"))
    is_owned = owners < len(train)
    return IndexSets.from_owners(owners[is_owned], len(train), is_owned.nonzero().flatten())


def _deal_alike(train: IndexSets, kinds: Tensor, test_kinds: Tensor, draws: torch.Generator) -> Tensor:
    """Deal the test examples of each kind as its training examples are dealt.

    Args:
        train: training examples of each client.
        kinds: class or group of each training example, [n] int64.
        test_kinds: class or group of each test example, [m] int64.
        draws: generator of the draws.

    Returns:
        The client of each test example, [m]; N for kinds on which no client trains.
    """
    num_train = len(train.indices)
    compact = compact_labels(torch.cat([kinds[train.indices], test_kinds]))[1]
    # The training examples in one row, sorted by kind, and within a kind by client. Clients come in random order, so
    # that rounding favours none of them.
    train_owners = train.owners
    place = torch.randperm(len(train), generator=draws)[train_owners]
    row = (compact[:num_train] * len(train) + place).argsort()
    num_kinds = int(compact.max()) + 1
    counts = torch.bincount(compact[:num_train], minlength=num_kinds)
    tests = ExamplesByClass.shuffled(compact[num_train:], draws, num_kinds)
    # Systematic sampling in each kind: of its m_k test examples, the j-th is the point (j + start) / m_k of the
    # kind's stretch of the row, and goes to the client of the training example there. The limits are for points that
    # are rounded up to the end of a stretch, and for empty stretches, of kinds without training examples.
    start = torch.rand(num_kinds, generator=draws, dtype=torch.float64)[tests.classes]
    count = counts[tests.classes]
    step = ((tests.ranks + start) / tests.counts[tests.classes] * count).long().clamp(max=num_train - 1)
    entry = (counts.cumsum(0) - counts)[tests.classes] + torch.minimum(step, (count - 1).clamp(min=0))
    owners = torch.empty(len(test_kinds), dtype=torch.int64)
    owners[tests.order] = torch.where(count > 0, train_owners[row[entry.clamp(max=num_train - 1)]], len(train))
    return owners


def keeps_groups_whole(train: IndexSets, groups: Tensor) -> bool:
    """Whether no natural group with several examples is divided among clients, though there are several clients.

    Args:
        train: training examples of each client.
        groups: natural group of each example of the training set, [n] int64.
    """
    _, group, counts = torch.unique(groups[train.indices], return_inverse=True, return_counts=True)
    pairs = torch.unique(group * len(train) + train.owners)
    return len(train) > 1 and len(pairs) == len(counts) and bool((counts > 1).any())


def users_of(sets: IndexSets, train: Examples) -> tuple[tuple[int | str, ...], ...]:
    """Ids of the natural groups of each client's training examples, ascending; names where they have some.

    Args:
        sets: training examples of each client.
        train: the training set, which has groups.
    """
    assert train.groups is not None
    ids, group = compact_labels(train.groups[sets.indices])
    pairs = torch.unique(sets.owners * len(ids) + group)  # of client and group, in this order
    counts = torch.bincount(pairs // max(len(ids), 1), minlength=len(sets)).tolist()
    owned = iter(ids[pairs % len(ids)].tolist())
    rows = [tuple(itertools.islice(owned, count)) for count in counts]
    return tuple(tuple(train.users[i] for i in row) if train.users else row for row in rows)


def _labels_or_zeros(targets: Tensor) -> Tensor:
    """The class labels; zeros for targets that are not class labels."""
    if targets.dim() != 1 or targets.is_floating_point():
        return torch.zeros(len(targets), dtype=torch.int64)
    return targets.long()
