"""Which values of a recorded step share memory."""

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from lfl.engine.graph.alias import owner_of


def results_of(function, x: Tensor) -> tuple[fx.Node, tuple[fx.Node, ...]]:
    """The argument, and the results."""
    graph = make_fx(function)(x).graph
    nodes = list(graph.nodes)
    return nodes[0], tuple(nodes[-1].args[0])


def test_views_of_views_belong_to_the_argument() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        first, second = x.view(2, 6).split([2, 4], dim=1)
        return x.view(3, 4).t(), first, second[0].unsqueeze(0), x.detach()

    argument, results = results_of(function, torch.zeros(12))
    assert [owner_of(result) for result in results] == [argument] * 4


def test_what_is_computed_has_memory_of_its_own() -> None:
    argument, (total, view, same) = results_of(lambda x: (x + 1, (2 * x).view(4), x.clone()), torch.zeros(2, 2))
    assert owner_of(total) is total
    assert owner_of(view) is view.args[0]
    assert owner_of(same) is same
    assert owner_of(argument) is argument
