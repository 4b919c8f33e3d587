"""The local work: counts, clipping, and phases that freeze parameters."""

from pathlib import Path

import pytest
import torch
from worlds import HEAD, head_of, mlp, train

from lfl.engine import LocalPhase, LocalWork


def test_clipping_is_per_client() -> None:
    gradients = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    clipped = LocalWork(clip_value=1.0).clip(gradients.clone())
    torch.testing.assert_close(clipped, torch.tensor([[0.6, 0.8], [0.3, 0.4]]), rtol=0, atol=1e-6)
    by_value = LocalWork(clip_value=1.0, clip_algorithm="value").clip(gradients.clone())
    assert torch.equal(by_value, torch.tensor([[1.0, 1.0], [0.3, 0.4]]))
    assert torch.equal(LocalWork().clip(gradients.clone()), gradients)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("optimizer", ["momentum", "adamw", "nesterov-by-parameter"])
def test_frozen_parameters_are_frozen(optimizer: str, engine: str, tmp_path: Path) -> None:
    """Neither momentum nor weight decay, of the optimizer or of an earlier phase, moves what a phase freezes."""
    module = mlp()
    makers = {
        "momentum": lambda: torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1),
        "adamw": lambda: torch.optim.AdamW(module.parameters(), lr=0.01, weight_decay=0.5),
        "nesterov-by-parameter": lambda: torch.optim.SGD(
            [{"params": [p]} for p in module.parameters()], lr=0.1, weight_decay=0.1, nesterov=True, momentum=0.5
        ),
    }
    module.configure_optimizers = makers[optimizer]  # type: ignore[method-assign]
    start = mlp().double()
    before = torch.cat([p.detach().flatten() for p in start.parameters()])
    trainer = train([], tmp_path, module, engine=engine, local_phases=[LocalPhase(HEAD, steps=3)], max_rounds=2)
    head = head_of(trainer)
    assert torch.equal(trainer.server.vector[~head], before[~head])
    assert not torch.equal(trainer.server.vector[head], before[head])


def test_an_optimizer_over_matrices_freezes_too(tmp_path: Path) -> None:
    """One that is not elementwise keeps the module's own parameters."""

    class Normed(torch.optim.SGD):
        pass

    module = mlp()
    module.configure_optimizers = lambda: Normed(module.parameters(), lr=0.1, weight_decay=0.1)  # type: ignore[method-assign]
    before = torch.cat([p.detach().flatten() for p in mlp().double().parameters()])
    trainer = train([], tmp_path, module, local_phases=[LocalPhase(HEAD, steps=3)], max_rounds=2)
    head = head_of(trainer)
    assert torch.equal(trainer.server.vector[~head], before[~head])
    assert not torch.equal(trainer.server.vector[head], before[head])


def test_steps_and_work_by_hand() -> None:
    """7 and 10 examples in batches of 5: 2 batches an epoch both."""
    sizes = torch.tensor([7, 10])
    assert LocalPhase(epochs=3).num_steps(sizes, 5).tolist() == [6, 6]
    assert LocalPhase(steps=3).num_steps(sizes, 5).tolist() == [3, 3]
    assert LocalPhase().num_steps(sizes, 4).tolist() == [2, 3]
    both = LocalWork([LocalPhase(epochs=1), LocalPhase(steps=1)])
    assert both.num_steps(sizes, 5).tolist() == [3, 3]
    # 3 steps cost 15; an epoch has all examples, 7 and 10, and the step after it 5 more.
    assert both.expected(sizes, 5).tolist() == [15 + 7 + 5, 15 + 10 + 5]
    assert LocalWork([LocalPhase(steps=3)], sampling="replacement").expected(sizes, 5).tolist() == [3, 3]
