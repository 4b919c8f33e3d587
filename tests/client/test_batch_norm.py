"""BatchNorm uses its running statistics only where a channel has a single value."""

import pytest
import torch
from torch import Tensor, nn

from lfl.client.batch_norm import use_running_statistics_of_single_values


def fresh(kind: type[nn.Module]) -> nn.Module:
    norm = kind(2)
    norm.running_mean.fill_(0.5)
    return norm


@pytest.mark.parametrize(
    ("kind", "shape", "is_single"),
    [
        (nn.BatchNorm1d, (1, 2), True),
        (nn.BatchNorm1d, (2, 2), False),
        (nn.BatchNorm1d, (1, 2, 3), False),
        (nn.BatchNorm2d, (1, 2, 3, 3), False),
        (nn.BatchNorm2d, (1, 2, 1, 1), True),
        (nn.BatchNorm3d, (1, 2, 1, 1, 2), False),
    ],
)
def test_single_values_only(kind: type[nn.Module], shape: tuple[int, ...], is_single: bool) -> None:
    x: Tensor = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    norm, plain = fresh(kind), fresh(kind)
    for _ in range(2):  # once is enough, and twice is once
        use_running_statistics_of_single_values(norm)
    if is_single:
        plain.eval()
    assert torch.equal(norm(x), plain(x))
    assert torch.equal(norm.running_mean, plain.running_mean)
    assert int(norm.num_batches_tracked) == int(not is_single)
    assert norm.training


def test_after_an_error_it_is_in_training_mode_again() -> None:
    norm = fresh(nn.BatchNorm2d)
    use_running_statistics_of_single_values(norm)
    with pytest.raises(ValueError, match="4D"):
        norm(torch.zeros(1, 2))
    assert norm.training
    norm(torch.zeros(1, 2, 2, 2))
    assert int(norm.num_batches_tracked) == 1
