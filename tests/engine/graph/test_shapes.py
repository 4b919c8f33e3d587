"""Shapes are those of the values, from one mode for all of them."""

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from lfl.engine.graph.shapes import one_fake_mode


def step(x: Tensor) -> Tensor:
    return (x @ x.T).relu().sum(0)


def test_the_operations_are_the_same_and_their_shapes(monkeypatch) -> None:
    modes = []
    made = FakeTensorMode.__init__
    monkeypatch.setattr(FakeTensorMode, "__init__", lambda self, *a, **o: modes.append(0) or made(self, *a, **o))
    x = torch.randn(3, 2)
    alone = make_fx(step)(x)
    before = len(modes)
    with one_fake_mode():
        together = make_fx(step)(x)
    assert len(modes) - before < before
    assert [node.target for node in together.graph.nodes] == [node.target for node in alone.graph.nodes]
    shapes = [[n.meta["val"].shape for n in g.graph.nodes if "val" in n.meta] for g in (alone, together)]
    assert shapes[0] == shapes[1]
    assert torch.equal(together(x), step(x))
