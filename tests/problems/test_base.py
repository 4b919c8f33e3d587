"""Data of a convex problem: equally many examples a client, all in memory."""

import torch

from lfl.problems.base import ProblemData


def two_clients() -> ProblemData:
    """Three examples each: the numbers 0 to 5, and their squares."""
    data = ProblemData(num_clients=2, examples_per_client=3, batch_size=2)
    numbers = torch.arange(6.0)
    data.examples = (numbers[:, None], numbers.square())
    return data


def test_clients_have_consecutive_rows() -> None:
    data = two_clients()
    indices, sizes = data.client_indices(torch.tensor([1, 0]))
    assert indices.tolist() == [[3, 4, 5], [0, 1, 2]]
    assert sizes.tolist() == [3, 3]
    inputs, squares = data.gather(indices[:, 1:])
    assert inputs.tolist() == [[[4.0], [5.0]], [[1.0], [2.0]]]
    assert squares.tolist() == [[16.0, 25.0], [1.0, 4.0]]
    assert torch.equal(data.gather_test(indices)[1], data.gather(indices)[1])


def test_batches_are_those_of_the_plan_also_where_shapes_change() -> None:
    data = two_clients()
    plan = [torch.tensor([[0, 1]]), torch.tensor([[5, 2]]), torch.tensor([[3], [4]]), torch.tensor([[0, 0]])]
    batches = list(data.batches((indices, None) for indices in plan))
    assert len(batches) == 4
    for indices, batch in zip(plan, batches, strict=True):
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(batch, data.gather(indices), strict=True))


def test_evaluation_sees_all_examples_at_once_in_the_type_asked_for() -> None:
    data = two_clients()
    data.place(torch.device("cpu"), torch.float64)
    for loader in (data.val_dataloader(), data.test_dataloader()):
        ((inputs, squares),) = loader
        assert (inputs.shape, squares.dtype) == ((6, 1), torch.float64)
    assert sum(len(squares) for _, squares in data.train_dataloader()) == 6
