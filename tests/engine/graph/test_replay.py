"""A recorded step as a Python function: the same bits."""

import torch
from recordings import NOTHING
from torch import Tensor
from torch.nn import functional as F

from lfl.client.step import StepInput, StepResult
from lfl.engine.graph.record import leaves_of, record
from lfl.engine.graph.replay import replay_of


def test_pooling_takes_the_same_numbers_and_of_equal_ones_the_first() -> None:
    """Forward and gradient, on images with many ties; the kernel is another one than torch's default."""

    def step(params: Tensor, input: StepInput) -> StepResult:
        images = params.detach().view(2, 3, 8, 8).requires_grad_()
        loss = (F.max_pool2d(images, 2) * input.batch).sum()
        (gradient,) = torch.autograd.grad(loss, images)
        return StepResult(gradient.view(2, -1), loss.detach().view(1), {})

    draws = torch.Generator().manual_seed(0)
    params = torch.randint(0, 3, (2, 3 * 64), generator=draws).float()
    input = NOTHING._replace(batch=torch.rand(2, 3, 4, 4, generator=draws))
    replay = replay_of(record(step, params, input)[0])
    gradients, losses = replay(*leaves_of(params, input))
    expected = step(params, input)
    assert torch.equal(gradients, expected.gradients)
    assert torch.equal(losses, expected.losses)
    assert 0 < int(gradients.count_nonzero()) <= 2 * 3 * 16


def test_short_cuts_give_the_same_bits() -> None:
    def step(params: Tensor, input: StepInput) -> StepResult:
        x, targets = input.batch
        flat = params.detach().requires_grad_()
        logits = F.linear(x, flat[0, :20].view(4, 5), flat[0, 20:])
        loss = F.cross_entropy(logits, targets) + 0.5 * flat.square().mean()
        (gradient,) = torch.autograd.grad(loss, flat)
        return StepResult(gradient, loss.detach().view(1), {"acc": (logits.argmax(1) == targets).float().mean()})

    draws = torch.Generator().manual_seed(0)
    input = NOTHING._replace(batch=(torch.randn(6, 5, generator=draws), torch.randint(4, (6,), generator=draws)))
    recorded, _ = record(step, torch.zeros(1, 24), input)
    replay = replay_of(recorded)
    assert any(node.target is torch.addmm for node in recorded.graph.nodes)
    for _ in range(3):
        params = torch.randn(1, 24, generator=draws)
        found, expected = replay(*leaves_of(params, input)), step(params, input)
        assert torch.equal(found[0], expected.gradients)
        assert torch.equal(found[1], expected.losses)
        assert torch.equal(found[2], expected.logs["acc"])
