"""What callbacks may know of a run, and what they may ask for."""

from pathlib import Path
from typing import Any

import pytest
import torch
from worlds import ONE_ROUND, QuadraticData, batch_norm, even_data, mlp, train, train_quadratic

from lfl.callbacks import SSF, FedDC, FedDyn, FederatedCallback, FedSub, PersonalParameters, Scaffold
from lfl.data.partition import IndexSets, Partition
from lfl.participation import FixedParticipation, FullParticipation, HeldOutParticipation
from lfl.randomness import client_keys, generator
from lfl.subspace import DenseSubspace


def test_draws_are_addressed_by_seed_purpose_and_round(tmp_path: Path) -> None:
    run = train([], tmp_path, max_rounds=0, seed=7).run
    ids = torch.tensor([3, 1])
    assert torch.equal(run.keys(ids, "basis", 2), client_keys(ids, 7, "basis", 2))
    ours, expected = run.generator("basis", 2), generator(7, "basis", 2)
    assert torch.equal(torch.rand(3, generator=ours), torch.rand(3, generator=expected))
    assert not torch.equal(run.keys(ids, "basis", 2), run.keys(ids, "basis", 3))


def test_what_is_told_of_a_run(tmp_path: Path) -> None:
    run = train([], tmp_path, mlp(), max_rounds=0, engine="vectorized", cohort_size=3).run
    assert run.num_clients == 8
    assert run.layout is run.model.layout
    assert run.clients_at_once == 3
    assert run.device == torch.device("cpu")


def test_stop_ends_the_run_after_this_round(tmp_path: Path) -> None:
    class Stop(FederatedCallback):
        def on_run_start(self, federation) -> None:
            self.federation = federation

        def on_round_start(self, round) -> None:
            if round.number == 2:
                self.federation.stop()

    assert train([Stop()], tmp_path, max_rounds=5).current_round == 2


def test_clients_start_from_the_buffers_they_have(tmp_path: Path) -> None:
    """Rows that were never written stand for the server's."""
    run = train([], tmp_path, batch_norm(), even_data(), buffers="client", **ONE_ROUND).run
    found = run.client_buffers(torch.tensor([0, 1]))
    assert torch.equal(found[0], run.store.gather("buffers", torch.tensor([0]))[0])
    assert torch.equal(found[1], run.server.buffers)
    own = torch.full_like(found[:1], float("nan"))
    run.store.scatter("buffers", torch.tensor([1]), own)
    assert run.client_buffers(torch.tensor([1])).isnan().all()
    assert not torch.equal(found[0], found[1])
    shared = train([], tmp_path, batch_norm(), even_data(), **ONE_ROUND).run
    assert torch.equal(shared.client_buffers(torch.tensor([0, 1])), shared.server.buffers.expand(2, -1))


def test_clients_are_evaluated_on_their_own_examples(tmp_path: Path) -> None:
    """A model whose bias decides: it says class c for all examples."""
    run = train([], tmp_path, mlp(), max_rounds=0).run
    ids = (run.data.client_test_sizes > 0).nonzero().squeeze(1)
    for label in (0, 3):
        params = torch.zeros(len(ids), run.layout.dim, dtype=torch.float64)
        run.layout.views(params)["backbone.head.bias"][:, label] = 5.0
        found = run.evaluate_clients(ids, params)
        indices, sizes = run.data.client_test_indices(ids)
        for metrics, positions, size in zip(found, indices, sizes.tolist(), strict=True):
            targets = run.data.gather_test(positions[None, :size])[1][0]
            assert metrics["val_acc"] == float((targets == label).double().mean())


def test_personal_models_are_x_with_what_belongs_to_each(tmp_path: Path) -> None:
    run = train([PersonalParameters(["*.head.*"])], tmp_path, max_rounds=1).run
    seen = (run.participation.select(1, 8, run.seed))[:1]
    (model,) = run.personal_models(seen)
    head = run.layout.select(["*.head.*"])
    assert torch.equal(model[~head], run.server.vector[~head])
    assert torch.equal(model[head], run.store.gather("personal", seen)[0])
    assert not torch.equal(model[head], run.server.vector[head])


DIVIDE_BY_ALL = pytest.mark.parametrize(
    "make",
    [
        *(Scaffold, lambda: SSF(DenseSubspace(5)), lambda: FedDyn(0.1), FedDC, lambda: FedSub(DenseSubspace(5))),
        lambda: FedSub(DenseSubspace(5), variant="stale"),
    ],
)


@DIVIDE_BY_ALL
def test_clients_that_are_held_out_count_nowhere(make: Any, tmp_path: Path) -> None:
    """N in the server's state is the number of those that may take part, as if there were no others."""
    vectors = []
    for count, participation in ((5, HeldOutParticipation([4], FullParticipation())), (4, FullParticipation())):
        data = QuadraticData(5)
        data.num_clients = count
        sets = IndexSets(torch.arange(count), torch.arange(count + 1))
        data.partition = Partition(sets, sets)
        trainer, _ = train_quadratic([make()], tmp_path, data=data, max_rounds=3, participation=participation)
        assert trainer.run.num_joining == 4
        assert trainer.run.held_out.tolist() == [4][: count - 4]
        vectors.append(trainer.server.vector)
    torch.testing.assert_close(*vectors, rtol=0, atol=1e-14)


@DIVIDE_BY_ALL
def test_clients_without_data_count_nowhere(make: Any, tmp_path: Path) -> None:
    """As if they were not there: c and h are means over the clients that have data."""
    vectors, schedule = [], FixedParticipation([[0, 1, 3], [1, 2], [0, 4]])
    for places in ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 5]):  # two more, which have nothing
        data = QuadraticData(5)
        data.num_clients = len(places)
        sets = IndexSets(torch.arange(5), torch.tensor([*places, 5]))
        data.partition = Partition(sets, sets)
        trainer, _ = train_quadratic([make()], tmp_path, data=data, max_rounds=3, participation=schedule)
        assert trainer.run.num_joining == 5
        assert trainer.run.joining.tolist() == [True] * 5 + [False] * (len(places) - 5)
        vectors.append(trainer.server.vector)
    torch.testing.assert_close(*vectors, rtol=0, atol=1e-14)
