"""The batches of a cohort, in the order in which its clients see them."""

from typing import Any

import pytest
import torch
from torch import Tensor
from worlds import mlp

from lfl.callbacks import FederatedCallback
from lfl.client.model import ClientModel
from lfl.client.work import LocalWork
from lfl.engine.feed import BatchFeed
from lfl.problems.base import ProblemData
from lfl.randomness import client_keys
from lfl.round import Cohort, CohortPhase, Round

SEED, IDS = 5, torch.tensor([2, 0])


def feed_of(callbacks: Any = (), **work: Any) -> BatchFeed:
    """Three clients with the numbers 0 to 4, 5 to 9 and 10 to 14."""
    data = ProblemData(num_clients=3, examples_per_client=5, batch_size=2)
    data.examples = (torch.arange(15.0),)
    return BatchFeed(ClientModel(mlp()), data, LocalWork(**work), SEED, callbacks)


def cohort_of(steps: int) -> tuple[Cohort, CohortPhase]:
    counts = torch.tensor([steps, steps])
    round = Round(7, IDS, torch.zeros(1), IDS, IDS)
    cohort = Cohort(round, IDS, torch.tensor([5, 5]), counts, torch.zeros(2, 1), torch.zeros(2, 0))
    return cohort, CohortPhase(0, None, counts, None)  # type: ignore[arg-type]


def seen(batches: Any) -> Tensor:
    return torch.cat([batch[0] for _, batch in batches], dim=1)


def test_an_epoch_is_a_shuffle_of_each_clients_examples() -> None:
    batches = list(feed_of().of_phase(*cohort_of(steps=6), padding=None))
    assert [plan.sizes for plan, _ in batches] == [2, 2, 1] * 2
    first, second = seen(batches[:3]), seen(batches[3:])
    expected = torch.stack([torch.arange(10.0, 15.0), torch.arange(5.0)])
    assert torch.equal(first.sort(dim=1).values, expected)
    assert torch.equal(second.sort(dim=1).values, expected)
    assert not torch.equal(first, second)
    assert torch.equal(seen(feed_of().of_phase(*cohort_of(steps=6), padding=None)), torch.cat([first, second], dim=1))


def test_draws_with_replacement_are_full_batches_of_ones_own() -> None:
    batches = list(feed_of(sampling="replacement").of_phase(*cohort_of(steps=50), padding=None))
    assert [plan.sizes for plan, _ in batches] == [2] * 50
    assert [set(row.tolist()) for row in seen(batches)] == [set(range(10, 15)), set(range(5))]


def test_a_pass_over_all_examples_is_in_stored_order() -> None:
    cohort, _ = cohort_of(steps=1)
    ((plan, batch),) = feed_of().of_all_examples(cohort, 1, torch.zeros(1, dtype=torch.int64))
    assert (plan.sizes, plan.active) == (5, 1)
    assert batch[0].tolist() == [[10.0, 11.0, 12.0, 13.0, 14.0]]


def test_the_first_phase_draws_as_if_there_were_no_others() -> None:
    cohort, phase = cohort_of(steps=1)
    keys = feed_of().keys("shuffle", cohort, phase)
    assert torch.equal(keys, client_keys(IDS, SEED, "shuffle", 7))
    phase.index = 1
    assert torch.equal(feed_of().keys("shuffle", cohort, phase), client_keys(IDS, SEED, "shuffle", 7, 1))


class Thrice(FederatedCallback):
    batches_per_step = 3


class Negated(FederatedCallback):
    """Client 0 sees minus its numbers."""

    def change_batch(self, cohort: Any, rows: Any, batch: Any) -> Any:
        sign = torch.where(cohort.ids[rows] == 0, -1.0, 1.0)
        return (batch[0] * sign[:, None],)


@pytest.mark.parametrize("sampling", ["epochs", "replacement"])
def test_a_steps_independent_batches_are_other_shuffles_of_the_same_examples(sampling: str) -> None:
    alone = list(feed_of(sampling=sampling).of_phase(*cohort_of(steps=6), padding=None))
    found = list(feed_of([Thrice()], sampling=sampling).of_phase(*cohort_of(steps=6), padding=None))
    assert [(plan.step, plan.draw, plan.sizes) for plan, _ in found] == [
        (plan.step, draw, plan.sizes) for plan, _ in alone for draw in range(3)
    ]
    draws = [seen(found[draw::3]) for draw in range(3)]
    assert torch.equal(draws[0], seen(alone))
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert not torch.equal(draws[one], draws[other])
    if sampling == "epochs":
        for draw in draws:
            assert torch.equal(draw[:, :5].sort(dim=1).values, draws[0][:, :5].sort(dim=1).values)


def test_callbacks_change_what_clients_see_in_all_passes() -> None:
    feed, plain = feed_of([Negated()]), feed_of()
    changed = seen(feed.of_phase(*cohort_of(steps=6), padding=None))
    usual = seen(plain.of_phase(*cohort_of(steps=6), padding=None))
    assert torch.equal(changed, usual * torch.tensor([[1.0], [-1.0]]))
    cohort, _ = cohort_of(steps=1)
    ((_, batch),) = feed.of_all_examples(cohort, 2, torch.zeros(2, dtype=torch.int64))
    assert torch.equal(batch[0], torch.stack([torch.arange(10.0, 15.0), -torch.arange(5.0)]))
