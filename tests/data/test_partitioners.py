"""Partitioners: what holds for all of them, and what each promises."""

import re
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lfl.data import (
    ClassesPerClientPartitioner,
    DirichletPartitioner,
    EqualDirichletPartitioner,
    IIDPartitioner,
    NaturalPartitioner,
    Partitioner,
    QuantitySkewPartitioner,
    ShardPartitioner,
)

PARTITIONERS = [
    IIDPartitioner(),
    DirichletPartitioner(alpha=0.5),
    DirichletPartitioner(alpha=0.5, balanced=True),
    EqualDirichletPartitioner(alpha=0.5),
    ClassesPerClientPartitioner(classes_per_client=2),
    ShardPartitioner(shards_per_client=2),
    QuantitySkewPartitioner(sigma=1.0),
    NaturalPartitioner(),
]


def labels_and_groups(n: int, seed: int) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    labels = torch.cat([torch.arange(4), torch.randint(4, (n - 4,), generator=draws)])
    return labels, torch.randint(50, (n,), generator=draws) * 7 + 3


@pytest.mark.parametrize("partitioner", PARTITIONERS, ids=repr)
@settings(max_examples=25, deadline=None)
@given(n=st.integers(200, 400), num_clients=st.integers(2, 10), seed=st.integers(0, 1000))
def test_every_example_goes_to_one_client_and_no_client_is_empty(partitioner, n, num_clients, seed):
    labels, groups = labels_and_groups(n, seed)
    sets = partitioner.split(labels, groups, num_clients, seed)
    assert torch.equal(sets.indices.sort().values, torch.arange(n))
    assert len(sets) == num_clients
    assert int(sets.sizes.min()) >= 1
    again = partitioner.split(labels, groups, num_clients, seed)
    assert torch.equal(again.indices, sets.indices)
    assert torch.equal(again.offsets, sets.offsets)


@pytest.mark.parametrize("partitioner", PARTITIONERS, ids=repr)
def test_another_seed_gives_another_partition_and_the_global_generator_is_untouched(partitioner):
    labels, groups = labels_and_groups(300, seed=1)
    state = torch.random.get_rng_state()
    first, second = (partitioner.split(labels, groups, 5, seed) for seed in (0, 1))
    assert not torch.equal(first.owners[first.indices.argsort()], second.owners[second.indices.argsort()])
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("partitioner", PARTITIONERS, ids=repr)
def test_more_clients_than_examples_is_an_error_that_names_both(partitioner):
    with pytest.raises(ValueError, match="`num_clients=21` but there are 20 training examples"):
        partitioner.split(torch.arange(20) % 4, torch.arange(20), 21, 0)


@pytest.mark.parametrize("partitioner", PARTITIONERS[1:6], ids=repr)
def test_label_skew_needs_labels(partitioner):
    with pytest.raises(ValueError, match=r"needs one integer class label per example.*float32 of shape \[20\]"):
        partitioner.split(torch.zeros(20), None, 2, 0)


def test_iid_sizes_differ_by_one_at_most_and_labels_may_be_anything():
    sizes = IIDPartitioner().split(torch.zeros(103, 2), None, 10, 0).sizes
    assert sorted(sizes.tolist()) == [10] * 7 + [11] * 3


def test_a_million_clients_take_seconds():
    labels = torch.arange(2_000_000) % 10
    start = time.perf_counter()
    sets = IIDPartitioner().split(labels, None, 1_000_000, 0)
    indices, sizes = sets.padded(torch.randint(1_000_000, (1000,), generator=torch.Generator().manual_seed(0)))
    assert time.perf_counter() - start < 5
    assert indices.shape == (1000, 2)
    assert sizes.eq(2).all()


def test_a_partitioner_that_leaves_a_client_empty_is_refused():
    class Greedy(Partitioner):
        def assign(self, targets, groups, num_clients, seed):
            return torch.zeros(len(targets), dtype=torch.int64)

    with pytest.raises(ValueError, match=r"Greedy\(\) must give each of `num_clients=3` clients"):
        Greedy().split(torch.zeros(5), None, 3, 0)


@pytest.mark.parametrize("k", [1, 2, 3, 7, 10])
@pytest.mark.parametrize("num_clients", [10, 13, 40])
def test_each_client_holds_exactly_so_many_classes_and_classes_have_equally_many_holders(k, num_clients):
    labels = torch.arange(2000) % 10 * 3  # labels need not be 0..K-1
    sets = ClassesPerClientPartitioner(k).split(labels, None, num_clients, 3)
    held = sets.label_counts(labels, 30) > 0
    assert held.sum(1).tolist() == [k] * num_clients
    holders = held.sum(0)[::3]
    assert int(holders.max() - holders.min()) <= 1


def test_holders_share_a_class_equally():
    labels = torch.arange(1000) % 10
    counts = ClassesPerClientPartitioner(2).split(labels, None, 15, 0).label_counts(labels, 10)
    assert set(counts[counts > 0].tolist()) == {33, 34}


@pytest.mark.parametrize(
    ("k", "num_clients", "message"),
    [
        (5, 2, "`classes_per_client=5` but the training set has 4 classes"),
        (1, 3, "`classes_per_client=1` with `num_clients=3` covers 3 classes, but the training set has 4"),
        (4, 6, "`classes_per_client=4` with `num_clients=6` gives class 0 to 6 clients, but it has 5"),
    ],
)
def test_impossible_classes_per_client(k, num_clients, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ClassesPerClientPartitioner(k).split(torch.arange(20) % 4, None, num_clients, 0)


def test_shards_are_as_in_mcmahan_et_al():
    """200 shards of 3 from 600 sorted labels: a label has whole shards, so a client has two labels at most."""
    labels = torch.arange(600) % 10
    sets = ShardPartitioner(2).split(labels, None, 100, 0)
    counts = sets.label_counts(labels, 10)
    assert sets.sizes.eq(6).all()
    assert set(counts.flatten().tolist()) == {0, 3, 6}


def test_too_many_shards():
    message = "`shards_per_client=3` with `num_clients=7` makes 21 shards of 20 training examples"
    with pytest.raises(ValueError, match=message):
        ShardPartitioner(3).split(torch.arange(20) % 4, None, 7, 0)


def test_quantity_skew_is_log_normal():
    sizes = QuantitySkewPartitioner(0.8).split(torch.zeros(400_000), None, 400, 0).sizes
    logs = (sizes - 1).double().log()
    assert float(logs.std()) == pytest.approx(0.8, rel=0.1)  # 400 draws: standard error 3.5 %
    assert float(logs.diff().mean().abs()) < 0.05
    equal = QuantitySkewPartitioner(0.0).split(torch.zeros(103), None, 10, 0).sizes
    assert set(equal.tolist()) == {10, 11}


def test_natural_clients_are_the_groups():
    groups = torch.tensor([30, 10, 20, 10, 30, 30])
    sets = NaturalPartitioner().split(torch.zeros(6), groups, 3, 0)
    assert [sets.client(i).tolist() for i in range(3)] == [[1, 3], [2], [0, 4, 5]]


def test_natural_groups_are_dealt_whole():
    groups = torch.arange(100) % 10
    sets = NaturalPartitioner().split(torch.zeros(100), groups, 4, 0)
    owned = [set(groups[sets.client(i)].tolist()) for i in range(4)]
    assert sorted(map(len, owned)) == [2, 2, 3, 3]
    assert sorted(g for one in owned for g in one) == list(range(10))


def test_natural_errors():
    with pytest.raises(ValueError, match="needs data with groups"):
        NaturalPartitioner().split(torch.zeros(6), None, 3, 0)
    with pytest.raises(ValueError, match="`num_clients=3` but the data has 2 natural groups"):
        NaturalPartitioner().split(torch.zeros(6), torch.arange(6) % 2, 3, 0)


def test_dirichlet_proportions_have_the_variance_of_their_distribution():
    """p_ki of a symmetric Dirichlet with N = 20, alpha = 0.5: mean 1/20, variance (N - 1) / (N^2 (N alpha + 1))."""
    labels = torch.arange(100_000) % 100
    counts = DirichletPartitioner(0.5).split(labels, None, 20, 0).label_counts(labels, 100)
    assert float((counts / 1000).var()) == pytest.approx(19 / (400 * 11), rel=0.2)


def test_dirichlet_limits():
    labels = torch.arange(10_000) % 10
    nearly_iid = DirichletPartitioner(1e6).split(labels, None, 20, 0).label_counts(labels, 10)
    assert int((nearly_iid - 50).abs().max()) <= 2
    # So small an alpha gives a class to one client; numpy's own Dirichlet gives NaN here.
    one_each = DirichletPartitioner(1e-5).split(labels, None, 2, 0).label_counts(labels, 10)
    assert set(one_each.flatten().tolist()) == {0, 1000}


def test_balanced_dirichlet_keeps_clients_small():
    labels = torch.arange(10_000) % 10
    plain, balanced = (
        DirichletPartitioner(0.3, balanced=b).split(labels, None, 50, 0).sizes.max() for b in (False, True)
    )
    assert balanced < plain


def test_dirichlet_min_size_is_kept_or_explained():
    labels = torch.arange(4000) % 10
    assert int(DirichletPartitioner(0.5, min_size=10).split(labels, None, 20, 0).sizes.min()) >= 10
    message = (
        "DirichletPartitioner with `alpha=0.01` and `num_clients=100` left a client with fewer than `min_size=1` of "
        "4000 examples in each of 3 draws of at most `max_tries=3` (the last left 55 clients short, the best draw's "
        "smallest client has 0). Raise `alpha`"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        DirichletPartitioner(0.01, max_tries=3).split(labels, None, 100, 0)
    with pytest.raises(
        ValueError, match=r"in each of 1 draws of at most `max_tries=100` \(the last left \d{3} clients"
    ):
        DirichletPartitioner(0.01).split(labels, None, 1000, 0)
    with pytest.raises(ValueError, match="`min_size=50` of DirichletPartitioner for `num_clients=100` needs 5000"):
        DirichletPartitioner(0.5, min_size=50).split(labels, None, 100, 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DirichletPartitioner(0.0), "`alpha=0.0` of DirichletPartitioner must be greater than 0"),
        (lambda: DirichletPartitioner(float("nan")), "`alpha=nan` of DirichletPartitioner"),
        (lambda: DirichletPartitioner(min_size=0), "`min_size=0` of DirichletPartitioner"),
        (lambda: ShardPartitioner(0), "`shards_per_client=0` of ShardPartitioner"),
        (lambda: ClassesPerClientPartitioner(0), "`classes_per_client=0` of ClassesPerClientPartitioner"),
        (lambda: QuantitySkewPartitioner(-1.0), "`sigma=-1.0` of QuantitySkewPartitioner must be at least 0"),
    ],
)
def test_settings_out_of_range(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


@pytest.mark.parametrize("alpha", [1e-5, 0.1, 10.0])
@pytest.mark.parametrize("num_clients", [7, 20])
def test_equal_dirichlet_gives_equal_sizes(alpha, num_clients):
    labels = torch.arange(1000) % 10
    sets = EqualDirichletPartitioner(alpha).split(labels, None, num_clients, 0)
    size = 1000 // num_clients
    assert sorted(sets.sizes.tolist()) == [size] * (num_clients - 1000 % num_clients) + [size + 1] * (
        1000 % num_clients
    )


def test_equal_dirichlet_is_iid_for_large_alpha_and_one_class_for_small():
    labels = torch.arange(20_000) % 10
    iid = EqualDirichletPartitioner(1e6).split(labels, None, 20, 0).label_counts(labels, 10).double()
    # 100 of 1000 with a deviation of 9.5; 200 counts, and the last clients take what is left.
    assert float((iid[:10] - 100).abs().mean()) < 12
    pure = EqualDirichletPartitioner(1e-3).split(labels, None, 10, 0).label_counts(labels, 10)
    # As many clients as classes, each of which is enough for one: whose class has run out has the one that is next.
    assert torch.equal(pure.max(dim=1).values, torch.full((10,), 2000))


def test_equal_dirichlet_draws_by_the_classes_shares_of_the_data():
    """With ``alpha p`` a class of 1 in 10 examples is that of 1 in 10 clients; ``per_class`` draws classes alike."""
    labels = (torch.arange(40_000) % 10 == 0).long()
    counts = [
        EqualDirichletPartitioner(0.01, per_class=p).split(labels, None, 400, 0).label_counts(labels, 2)
        for p in (False, True)
    ]
    first = [int((c[:, 1] > 50).sum()) for c in counts]
    assert 28 <= first[0] <= 52  # 40 of 400
    assert abs(first[1] - 40) <= 12  # all that there are: the class runs out, and the others get what is left


def test_equal_dirichlet_variance_is_that_of_its_mixes():
    """Var of a share of Dir(alpha p): ``p (1 - p) / (alpha + 1)``, as long as no class runs out."""
    labels = torch.arange(200_000) % 2
    for per_class, total in ((False, 4.0), (True, 8.0)):
        sets = EqualDirichletPartitioner(4.0, per_class).split(labels, None, 1000, 0)
        shares = sets.label_counts(labels, 2)[:, 0] / 200
        # A draw of 200 adds 1/800 at most, the last clients, who have one class, some 0.003, and the estimate errs 5 %.
        assert float(shares.var()) == pytest.approx(0.25 / (total + 1), abs=0.008)


def test_equal_dirichlet_needs_a_positive_alpha():
    with pytest.raises(ValueError, match="`alpha=0` of EqualDirichletPartitioner must be greater than 0"):
        EqualDirichletPartitioner(0)
