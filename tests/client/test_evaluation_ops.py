"""Operations of evaluations under vmap: torch's numbers."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from lfl.client.evaluation_ops import EvaluationOps

DRAWS = torch.Generator().manual_seed(0)
X = torch.randn(3, 4, 2, 9, 8, generator=DRAWS)  # clients, examples, channels, height, width


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 2},
        {"kernel_size": (3, 2)},
        {"kernel_size": [2, 2], "stride": 2},
        {"kernel_size": 3, "stride": 1},
        {"kernel_size": 2, "padding": 1},
        {"kernel_size": 2, "ceil_mode": True},
        {"kernel_size": 4},
    ],
)
def test_pooling_to_the_bit(options: dict[str, Any]) -> None:
    x = X.clone()
    x[0, 0, 0, 0, 0], x[1, 0, 0, 0, 1] = float("nan"), float("inf")
    expected = torch.stack([F.max_pool2d(own, **options) for own in x])
    with EvaluationOps():
        found = vmap(vmap(lambda image: F.max_pool2d(image[None], **options)[0]))(x)
    assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))


def test_pooling_may_give_indices() -> None:
    with EvaluationOps():
        found, places = F.max_pool2d(X[0], 2, return_indices=True)
    assert torch.equal(found, F.max_pool2d(X[0], 2))
    assert places.dtype == torch.int64


class Net(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2, bias=bias)
        self.second = nn.Conv1d(4, 3, 2, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).flatten(-2))


@pytest.mark.parametrize("bias", [True, False])
def test_convolutions_of_every_client_by_itself(bias: bool) -> None:
    """Batches, single examples, and weights that all share."""
    nets = [Net(bias).double() for _ in range(3)]
    x = X.double()
    params = {name: torch.stack([dict(net.named_parameters())[name].detach() for net in nets]) for name, _ in
              nets[0].named_parameters()}  # fmt: skip

    def call(own: dict[str, Tensor], batch: Tensor) -> Tensor:
        return functional_call(nets[0], own, (batch,))

    with torch.no_grad():
        expected = torch.stack([net(batch) for net, batch in zip(nets, x, strict=True)])
        shared = torch.stack([nets[0](batch) for batch in x])
        with EvaluationOps():
            torch.testing.assert_close(vmap(call)(params, x), expected)
            torch.testing.assert_close(vmap(lambda own, b: vmap(call, (None, 0))(own, b))(params, x), expected)
            own = dict(nets[0].named_parameters())
            torch.testing.assert_close(vmap(call, (None, 0))(own, x), shared)


def test_attention_runs_under_vmap() -> None:
    layer = nn.MultiheadAttention(4, 2, batch_first=True).double().eval()
    x = torch.randn(3, 2, 5, 4, generator=DRAWS).double()
    with torch.no_grad(), EvaluationOps():
        found = vmap(lambda own: layer(own, own, own, need_weights=False)[0])(x)
    expected = torch.stack([layer(own, own, own, need_weights=False)[0] for own in x])
    torch.testing.assert_close(found, expected)
