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
    assert both.examples(sizes, 5).tolist() == [7 + 5, 10 + 5]
    drawn = LocalWork([LocalPhase(steps=3)], sampling="replacement")
    assert drawn.expected(sizes, 5).tolist() == [3, 3]
    assert drawn.examples(sizes, 5).tolist() == [15, 15]


def test_epochs_are_drawn_by_client_and_round() -> None:
    """From `min_epochs` to `epochs`, all as likely; in a round the same in any company."""
    work = LocalWork([LocalPhase(epochs=5, min_epochs=2)])
    ids, sizes = torch.arange(4000), torch.full((4000,), 7)
    keys = work.keys(ids, seed=3, round_number=1)
    steps = work.num_steps(sizes, 5, keys)
    assert steps.unique().tolist() == [4, 6, 8, 10]
    # 1000 of each: the standard deviation is 27.
    assert all(abs(int((steps == count).sum()) - 1000) < 120 for count in (4, 6, 8, 10))
    assert work.epochs(steps, sizes, 5) / 4000 == pytest.approx(3.5, abs=0.1)
    some = torch.tensor([17, 3])
    assert torch.equal(work.num_steps(sizes[:2], 5, work.keys(some, 3, 1)), steps[some])
    for seed, number in ((3, 2), (4, 1)):
        assert not torch.equal(work.num_steps(sizes, 5, work.keys(ids, seed, number)), steps)
    assert work.num_steps(sizes[:1], 5).item() == 10  # at most
    assert LocalWork().keys(ids, 3, 1) is None


def test_some_clients_are_stragglers() -> None:
    work = LocalWork([LocalPhase(epochs=5, min_epochs=1, stragglers=0.25)])
    sizes = torch.full((4000,), 5)
    epochs = work.num_steps(sizes, 5, work.keys(torch.arange(4000), 0, 1))
    # A quarter draws, of which a fifth draws all 5: 3,200 clients; the standard deviation is 25.
    assert abs(int((epochs == 5).sum()) - 3200) < 110
    none = LocalWork([LocalPhase(epochs=5, min_epochs=1, stragglers=0.0)])
    assert none.num_steps(sizes, 5, none.keys(torch.arange(4000), 0, 1)).unique().tolist() == [5]


def test_the_log_says_the_mean_of_the_drawn_epochs(tmp_path: Path) -> None:
    phases = [LocalPhase(epochs=4, min_epochs=1)]
    trainer = train([], tmp_path, local_phases=phases, max_rounds=1)
    run = trainer.run
    clients = run.participation.select(1, 8, 0)
    sizes, work = run.data.client_sizes[clients], run.work
    steps = work.num_steps(sizes, 5, work.keys(clients, 0, 1))
    assert trainer.callback_metrics["local_epochs"] == pytest.approx(
        (steps / ((sizes + 4) // 5)).double().mean().item()
    )
    plain = train([], tmp_path, max_rounds=1)
    assert "local_epochs" not in plain.callback_metrics


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LocalPhase(min_epochs=2), "`min_epochs=2` of a local phase must be at most its `epochs`, got None."),
        (
            lambda: LocalPhase(epochs=2, min_epochs=3),
            "`min_epochs=3` of a local phase must be at most its `epochs`, got 2",
        ),
        (lambda: LocalPhase(epochs=2, min_epochs=0), "`min_epochs=0` of a local phase must be a whole number"),
        (lambda: LocalPhase(epochs=2, stragglers=0.5), "`stragglers=0.5` of a local phase must be a share"),
        (
            lambda: LocalPhase(epochs=2, min_epochs=1, stragglers=1.5),
            "`stragglers=1.5` of a local phase must be a share",
        ),
        (
            lambda: LocalWork([LocalPhase(epochs=2, min_epochs=1), LocalPhase()]),
            "`min_epochs` of a local phase needs it to be the only one, got 2 `local_phases`.",
        ),
    ],
)
def test_variation_that_has_no_meaning(make, message: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        make()
    assert message in str(refused.value)
