"""torch's random operations under a client's key."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from lfl.client.random_ops import ClientRandom
from lfl.randomness import client_keys


def under(key: int, function) -> Tensor:
    with ClientRandom(torch.tensor(key)):
        return function()


OPERATIONS = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout2d": lambda x: F.dropout2d(x.reshape(2, 3, 2, 2), 0.5).reshape(-1),
    "rand": lambda x: torch.rand(3, 4) + x.sum() * 0,
    "rand_like": lambda x: torch.rand_like(x),
    "randn": lambda x: torch.randn((5,)) + x.sum() * 0,
    "randn_like": lambda x: torch.randn_like(x) * x,
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "randperm": lambda x: torch.randperm(7) + (x.sum() * 0).long(),
    "two": lambda x: F.dropout(F.dropout(x, 0.5), 0.5) + torch.rand_like(x),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_same_alone_and_under_vmap(name: str) -> None:
    keys = client_keys(torch.arange(4), 7)
    inputs = torch.randn(4, 24, generator=torch.Generator().manual_seed(0))

    def one(key: Tensor, x: Tensor) -> Tensor:
        with ClientRandom(key):
            return OPERATIONS[name](x)

    state = torch.get_rng_state()
    together = vmap(one, randomness="error")(keys, inputs)
    alone = torch.stack([one(key, x) for key, x in zip(keys, inputs, strict=True)])
    assert torch.equal(together, alone)
    assert not torch.equal(together[0], together[1])
    assert torch.equal(state, torch.get_rng_state())


def test_dropout_keeps_the_mean_and_scales() -> None:
    dropped = under(1, lambda: F.dropout(torch.ones(100_000), 0.3))
    assert set(dropped.unique().tolist()) == {0.0, torch.tensor(1 / 0.7).item()}
    assert abs((dropped == 0).double().mean() - 0.3) < 5 * math.sqrt(0.21 / 100_000)
    assert torch.equal(under(1, lambda: F.dropout(torch.ones(4), 0.0)), torch.ones(4))
    assert torch.equal(under(1, lambda: F.dropout(torch.ones(4), 1.0)), torch.zeros(4))
    assert torch.equal(under(1, lambda: F.dropout(torch.ones(4), 0.5, training=False)), torch.ones(4))


def test_normal_moments() -> None:
    drawn = under(3, lambda: torch.randn(200_000))
    assert abs(drawn.mean()) < 5 / math.sqrt(200_000)
    assert abs(drawn.var() - 1) < 5 * math.sqrt(2 / 200_000)
    assert drawn.isfinite().all()


def test_dropout_that_drops_nothing_draws_nothing() -> None:
    with ClientRandom(torch.tensor(1)) as random:
        F.dropout(torch.ones(3), 0.0)
        F.dropout(torch.ones(3), 0.5, training=False)
        assert random.draws == 0
        F.dropout(torch.ones(3), 0.5)
        assert random.draws == 1
