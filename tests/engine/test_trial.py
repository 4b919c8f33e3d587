"""The batches on which steps are tried: of several clients, of several classes, of several lengths."""

import torch
from worlds import mlp, ragged_data

from lfl.client.model import ClientModel
from lfl.data import ClassesPerClientPartitioner, FederatedDataModule, ShardPartitioner
from lfl.engine.trial import Trial, make_trial


def trial_of(data: FederatedDataModule) -> Trial:
    data.setup("fit")
    data.place(torch.device("cpu"), torch.float32)
    return make_trial(ClientModel(mlp()), data, seed=0)


def test_it_has_clients_of_different_classes() -> None:
    trial = trial_of(ragged_data(partitioner=ClassesPerClientPartitioner(1)))
    assert len(trial) == 4
    assert trial.width == 5
    assert len({tuple(row) for row in trial.batch[1].tolist()}) > 1
    assert len(set(trial.keys.tolist())) == 4


def test_a_batch_is_drawn_from_all_of_a_clients_examples() -> None:
    """The stored order may go by class: the first examples would be of one."""
    trial = trial_of(ragged_data(2, partitioner=ShardPartitioner(4), batch_size=16))
    assert all(len(set(row)) > 1 for row in trial.batch[1].tolist())


def test_few_clients_come_more_than_once_with_other_examples() -> None:
    trial = trial_of(ragged_data(1, partitioner=ShardPartitioner(1)))
    assert len(trial) >= 3
    assert not torch.equal(trial.batch[0][0], trial.batch[0][1])


def test_points_are_away_from_the_model_and_from_each_other() -> None:
    trial = trial_of(ragged_data())
    assert not torch.equal(trial.params[0], trial.anchor)
    assert not torch.equal(trial.params[0], trial.params[1])


def test_ragged_batches_have_several_lengths_down_to_one_or_two() -> None:
    trial = trial_of(ragged_data(partitioner=ShardPartitioner(1)))
    weights = trial.ragged({}).weights
    assert (weights > 0).sum(dim=1).tolist() == [5, 4, 3, 2][: len(trial)] or (weights > 0).sum(1).unique().numel() > 2
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(len(trial)))
