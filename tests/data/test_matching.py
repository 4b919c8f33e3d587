"""Test sets follow training sets: by classes, or by users."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lfl.data import ClassesPerClientPartitioner, IIDPartitioner, IndexSets, NaturalPartitioner, match_label_mix
from lfl.data.matching import keeps_groups_whole, match_groups, split_each


@settings(max_examples=50, deadline=None)
@given(num_clients=st.integers(1, 12), num_test=st.integers(0, 200), seed=st.integers(0, 1000))
def test_test_sets_are_quotas_rounded_up_or_down(num_clients, num_test, seed):
    labels = torch.randint(4, (300,), generator=torch.Generator().manual_seed(seed))
    test_labels = torch.randint(5, (num_test,), generator=torch.Generator().manual_seed(seed))  # class 4: test only
    train = IIDPartitioner().split(labels, None, num_clients, seed)
    test = match_label_mix(train, labels, test_labels, seed)
    assert torch.equal(test.indices.sort().values, torch.arange(num_test))
    counts = train.label_counts(labels, 4).double()
    quota = counts / counts.sum(0) * torch.bincount(test_labels, minlength=5)[:4]
    assert float((test.label_counts(test_labels, 5)[:, :4] - quota).abs().max()) < 1


def test_test_set_of_a_client_has_only_its_classes():
    labels, test_labels = torch.arange(2000) % 10, torch.arange(500) % 10
    train = ClassesPerClientPartitioner(2).split(labels, None, 20, 0)
    test = match_label_mix(train, labels, test_labels, 0)
    held = train.label_counts(labels, 10) > 0
    assert torch.equal(test.label_counts(test_labels, 10) > 0, held)
    assert not torch.equal(match_label_mix(train, labels, test_labels, 1).indices, test.indices)


def test_rounding_is_unbiased():
    """One test example, clients with 3 and 1 of 4 training examples: it goes to the first three times out of four."""
    train = IndexSets(torch.arange(4), torch.tensor([0, 3, 4]))
    zeros = torch.zeros(4, dtype=torch.int64)
    first = sum(int(match_label_mix(train, zeros, zeros[:1], seed).sizes[0]) for seed in range(400))
    assert first == pytest.approx(300, abs=35)  # four standard deviations


def test_regression_targets_split_by_size():
    train = IndexSets(torch.arange(40), torch.tensor([0, 30, 40]))
    assert match_label_mix(train, torch.rand(40, 2), torch.rand(8, 2), 0).sizes.tolist() == [6, 2]


@settings(max_examples=30, deadline=None)
@given(num_clients=st.integers(1, 8), seed=st.integers(0, 1000))
def test_test_examples_follow_their_groups(num_clients, seed):
    """Each group lies with one client, so all its test examples do; those of groups without training are nobody's."""
    draws = torch.Generator().manual_seed(seed)
    groups = torch.randint(8, (200,), generator=draws) * 1000 + 5
    test_groups = torch.randint(12, (100,), generator=draws) * 1000 + 5
    train = NaturalPartitioner().split(groups, groups, min(num_clients, len(groups.unique())), seed)
    test = match_groups(train, groups, test_groups, seed)
    owner = dict(zip(groups[train.indices].tolist(), train.owners.tolist(), strict=True))
    got = dict(zip(test.indices.tolist(), test.owners.tolist(), strict=True))
    assert got == {j: owner[g] for j, g in enumerate(test_groups.tolist()) if g in owner}
    assert keeps_groups_whole(train, groups) == (len(train) > 1)


def test_a_group_that_is_divided_is_tested_by_its_shares():
    """Clients 0 and 1 have 3 and 1 of the 4 examples of group 7; client 1 has group 8."""
    train, groups = IndexSets(torch.arange(6), torch.tensor([0, 3, 6])), torch.tensor([7, 7, 7, 7, 8, 8])
    test = match_groups(train, groups, torch.tensor([7] * 8 + [8, 9]), 0)
    assert test.sizes.tolist() == [6, 3]
    assert 8 in test.client(1).tolist()
    assert not keeps_groups_whole(train, groups)
    assert not keeps_groups_whole(train, torch.arange(6))  # nothing to keep together


@settings(max_examples=50, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=8), fraction=st.floats(0.01, 0.99), seed=st.integers(0, 99)
)
def test_a_clients_examples_are_split_without_one_left_over(sizes, fraction, seed):
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    whole = IndexSets(torch.randperm(sum(sizes), generator=torch.Generator().manual_seed(seed)) * 3, offsets)
    train, test = split_each(whole, fraction, seed)
    expected = [min(round(fraction * n), max(n - 1, 0)) for n in sizes]
    assert test.sizes.tolist() == expected
    for client in range(len(sizes)):
        both = torch.cat([train.client(client), test.client(client)])
        assert torch.equal(both.sort().values, whole.client(client).sort().values)
    again = split_each(whole, fraction, seed)
    assert torch.equal(again[0].indices, train.indices)
    assert torch.equal(again[1].indices, test.indices)


def test_which_examples_a_client_is_tested_on_is_drawn():
    whole = IndexSets(torch.arange(400), torch.tensor([0, 200, 400]))
    first, second = (split_each(whole, 0.25, seed)[1] for seed in (0, 1))
    assert first.sizes.tolist() == [50, 50]
    assert not torch.equal(first.indices, second.indices)
    # 50 of 200 at random: their mean place is 99.5 with a deviation of 7.1.
    assert abs(float(first.client(0).double().mean()) - 99.5) < 28
