"""What a resumed run may change, what it may not, and that it goes on as if never interrupted."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from cli_world import World

FIRST = "runs/run_000/checkpoints/last.ckpt"


@pytest.fixture(scope="module")
def one_round(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs folder of the plain config, after its first round."""
    folder = tmp_path_factory.mktemp("one_round")
    with pytest.MonkeyPatch.context() as patch:
        World(folder, patch).lfl("fit", "--config", "base.yaml", "--trainer.max_rounds=1")
    return folder / "runs"


def weights(world: World, run: int) -> dict[str, torch.Tensor]:
    path = world.folder / f"runs/run_{run:03d}/checkpoints/last.ckpt"
    return torch.load(path, weights_only=True)["state_dict"]


@pytest.mark.parametrize(
    "method",
    [
        (),
        ("--trainer.callbacks+=Scaffold", "--trainer.aggregator.weighting=uniform"),
        ("--trainer.callbacks+=SSF", "--trainer.client_state=memmap"),
        ("--trainer.callbacks+=FedSub", "--trainer.engine=vectorized"),
        ("--optimizer=Adam", "--optimizer.lr=0.01", "--trainer.server_optimizer.momentum=0.9"),
        ("--lr_scheduler=MultiStepLR", "--lr_scheduler.milestones=[1,2]", "--model.backbone.norm=batch"),
    ],
)
def test_raised_max_rounds_equals_the_unbroken_run(world: World, method: tuple[str, ...]):
    world.fit("--trainer.max_rounds=1", *method)
    world.fit("--trainer.max_rounds=3", "--ckpt_path=last", *method)
    world.fit("--trainer.max_rounds=3", *method)
    assert world.metrics(1) == world.metrics(2)
    resumed, unbroken = weights(world, 1), weights(world, 2)
    assert all(torch.equal(resumed[name], value) for name, value in unbroken.items())


def test_a_finished_run_has_nothing_to_do(world: World):
    world.fit()
    out = world.fit("--ckpt_path=last")
    assert re.search(r"\nGoing on after round 2, from \S*runs/run_000/checkpoints/last\.ckpt\.\n", out)
    assert "Nothing to do: round 2 of `max_rounds=2` is done; raise `trainer.max_rounds` to go on.\n" in out
    assert "val_acc" in out.partition("Nothing to do")[2]  # the table
    assert world.metrics(1) == world.metrics(0)
    assert "Nothing to do: round 2 of `max_rounds=1`" in world.fit("--ckpt_path", FIRST, "--trainer.max_rounds=1")


@pytest.mark.parametrize(
    ("before", "after", "difference"),
    [
        ("", "--optimizer.lr=0.2", "lr: 0.1 then, 0.2 now"),
        ("", "--optimizer=Adam", "SGD then, Adam now"),
        ("--optimizer=Adam", "--optimizer=Adam --optimizer.betas=[0.8,0.9]", "betas[0]: 0.9 then, 0.8 now"),
        ("", "--data.partitioner.alpha=0.7", "data.partitioner.alpha: 0.5 then, 0.7 now"),
        ("", "--data.partitioner=IIDPartitioner", "data.partitioner: DirichletPartitioner then, IIDPartitioner now"),
        ("", "--data.batch_size=32", "data.batch_size: 64 then, 32 now"),
        ("", "--seed_everything=1", "seed: 0 then, 1 now"),
        (
            "",
            "--model.backbone.dropout=0.5",
            "Dropout(p=0.0, inplace=False)' then, 'Dropout(p=0.5, inplace=False)' now",
        ),
        ("", "--trainer.local_epochs=2", "then, 2 now"),
        ("", "--trainer.participation.clients_per_round=4", "participation.clients_per_round: 3 then, 4 now"),
        ("", "--trainer.server_optimizer.lr=0.5", "lr: 1.0 then, 0.5 now"),
        ("", "--trainer.callbacks+=Proximal", "callbacks: [] then, [Proximal] now"),
        ("--trainer.callbacks+=Scaffold", "", "callbacks: [Scaffold] then, [] now"),
        ("--trainer.callbacks+=SSF", "--trainer.callbacks+=FedSub", "callbacks[0]: SSF then, FedSub now"),
        (
            "--trainer.callbacks+=Proximal --trainer.callbacks.mu=0.5",
            "--trainer.callbacks+=Proximal --trainer.callbacks.mu=0.1",
            "callbacks[0].mu: 0.5 then, 0.1 now",
        ),
        (
            "--lr_scheduler=MultiStepLR --lr_scheduler.milestones=[3]",
            "--lr_scheduler=MultiStepLR --lr_scheduler.milestones=[4]",
            "milestones",
        ),
    ],
)
def test_a_change_that_matters_is_refused(world: World, one_round: Path, before: str, after: str, difference: str):
    if before:
        world.fit("--trainer.max_rounds=1", *before.split())
    else:
        shutil.copytree(one_round, world.folder / "runs")
    text = world.error("--ckpt_path=last", *after.split())
    assert text.startswith(f"Cannot resume `{FIRST}` with changed settings (")
    assert difference in text
    assert [path.name for path in (world.folder / "runs").iterdir()] == ["run_000"]


def test_changes_that_cannot_matter_are_accepted(world: World):
    world.fit("--trainer.max_rounds=1")
    changes = [
        "--trainer.default_root_dir=elsewhere",
        "--trainer.enable_progress_bar=false",
    ]
    changes += ["--trainer.checkpoint.every_n_rounds=5", "--trainer.checkpoint.monitor=val_acc"]
    changes += ["--trainer.client_state=memmap", "--trainer.logger=TensorBoardLogger", "--trainer.logger.save_dir=tb"]
    world.fit("--ckpt_path", FIRST, *changes)
    world.fit()
    assert world.metrics(0, "elsewhere") == world.metrics(1)


def test_another_evaluation_frequency_changes_no_weight(world: World):
    world.fit("--trainer.max_rounds=1")
    world.fit("--ckpt_path", FIRST, "--trainer.check_val_every_n_rounds=5", "--trainer.max_rounds=3")
    world.fit("--trainer.max_rounds=3")
    resumed, unbroken = weights(world, 1), weights(world, 2)
    assert all(torch.equal(resumed[name], value) for name, value in unbroken.items())


def test_another_engine_is_noted(world: World):
    world.fit("--trainer.max_rounds=1")
    out = world.fit("--ckpt_path=last", "--trainer.engine=vectorized", "--trainer.cohort_size=2")
    note = "The engine was sequential (cohorts of 1) and is now vectorized (cohorts of 2): equal up to rounding"
    assert note in out
    assert note not in world.fit("--ckpt_path", FIRST)


@pytest.mark.parametrize("state", ["host", "memmap"])
def test_a_run_that_was_moved(world: World, state: str):
    args = ["--trainer.callbacks+=Scaffold", f"--trainer.client_state={state}"]
    world.fit("--trainer.max_rounds=1", *args)
    world.fit(*args)
    (world.folder / "archive").mkdir()
    moved = shutil.move(world.folder / "runs/run_000", world.folder / "archive/old")
    before = {path: path.stat().st_mtime_ns for path in moved.rglob("*") if path.is_file()}
    for path in moved.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    world.fit("--ckpt_path", str(moved / "checkpoints/last.ckpt"), *args)
    assert world.metrics(2) == world.metrics(1)
    assert before == {path: path.stat().st_mtime_ns for path in moved.rglob("*") if path.is_file()}


def test_a_checkpoint_alone(world: World):
    world.fit("--trainer.max_rounds=1")
    (world.folder / "far/away").mkdir(parents=True)
    shutil.copy(world.folder / FIRST, world.folder / "far/away/my.ckpt")
    with pytest.warns(UserWarning, match=r"has no metrics\.csv"):
        world.fit("--ckpt_path=far/away/my.ckpt")
    assert [line.split(",")[0] for line in world.metrics(1).splitlines()] == ["round", "2"]
    world.fit()
    assert all(torch.equal(weights(world, 1)[name], value) for name, value in weights(world, 2).items())


def test_a_relative_path_from_within_the_folder(world: World, monkeypatch: pytest.MonkeyPatch):
    world.fit("--trainer.max_rounds=1")
    monkeypatch.chdir(world.folder / "runs/run_000/checkpoints")
    config, root = str(world.folder / "base.yaml"), str(world.folder / "runs")
    code, _, err = world.lfl("fit", "--config", config, "--ckpt_path=last.ckpt", "--trainer.default_root_dir", root)
    assert (code, err) == (0, "")
    assert [line.split(",")[0] for line in world.metrics(1).splitlines()] == ["round", "1", "2"]
