"""The command line does what a user of LightningCLI expects."""

import os
import sys

import pytest
import yaml
from cli_world import World

from lfl.cli import ResolvingCLI, run

CALLBACK = '''
from lfl.callbacks import FederatedCallback


class Announce(FederatedCallback):
    """Says how many clients take part.

    Args:
        text: what to say.
    """

    def __init__(self, text: str = "clients") -> None:
        self.text = text

    def on_round_start(self, round):
        print(self.text, len(round.clients))
'''


def printed(world: World, *args: str) -> dict:
    code, out, err = world.lfl("fit", "--config", "base.yaml", *args, "--print_config")
    assert (code, err) == (0, "")
    return yaml.safe_load(out)


def test_overrides_reach_into_objects(world: World):
    config = printed(
        world,
        *[
            "--trainer.callbacks+=lfl.callbacks.Proximal",
            "--trainer.callbacks.mu",
            "0.5",
            "--trainer.callbacks+=Scaffold",
        ],
        *["--trainer.participation.clients_per_round", "2", "--trainer.checkpoint.monitor=val_acc"],
        *["--data.partitioner.alpha", "0.7", "--data.source=MNIST5000", "--model.backbone=McMahanCNN"],
        *["--trainer.server_optimizer.lr", "0.5", "--optimizer=Adam", "--optimizer.lr", "1e-3"],
        *["--lr_scheduler=ExponentialLR", "--lr_scheduler.gamma", "0.998"],
    )
    trainer, data = config["trainer"], config["data"]["init_args"]
    assert trainer["callbacks"][0] == {"class_path": "lfl.callbacks.Proximal", "init_args": {"mu": 0.5}}
    assert trainer["callbacks"][1]["class_path"] == "lfl.callbacks.Scaffold"
    assert trainer["participation"]["init_args"]["clients_per_round"] == 2
    assert trainer["server_optimizer"]["init_args"]["lr"] == 0.5
    assert (
        trainer["checkpoint"]["init_args"] | {"every_n_rounds": 1, "monitor": "val_acc"}
        == (trainer["checkpoint"]["init_args"])
    )
    assert data["partitioner"]["init_args"]["alpha"] == 0.7
    assert data["source"]["class_path"] == "lfl.data.MNIST5000"
    assert config["model"]["init_args"]["backbone"]["class_path"] == "lfl.models.McMahanCNN"
    assert config["optimizer"]["class_path"] == "torch.optim.Adam"
    assert config["optimizer"]["init_args"]["lr"] == 1e-3
    assert config["lr_scheduler"]["init_args"]["gamma"] == 0.998


def test_null_is_null_at_any_depth(world: World):
    """Of a class, and of one within it whose argument takes texts, for which "None" would be one."""
    config = printed(
        world,
        *["--data.partition_path", "null", "--trainer.system", "null"],
        *["--data.source=lfl.data.Sent140Source", "--data.source.glove", "null"],
    )
    assert config["data"]["init_args"]["partition_path"] is None
    assert config["data"]["init_args"]["source"]["init_args"]["glove"] is None
    assert config["trainer"]["system"] is None


def test_callbacks_are_replaced_by_an_assignment(world: World):
    name = world.write("two.yaml", lambda c: c["trainer"].update(callbacks=["Proximal", {"class_path": "Scaffold"}]))
    _, out, _ = world.lfl("fit", "--config", name, "--trainer.callbacks=SSF", "--print_config")
    assert yaml.safe_load(out)["trainer"]["callbacks"]["class_path"] == "lfl.callbacks.SSF"


def test_later_configs_win(world: World):
    (world.folder / "more.yaml").write_text("seed_everything: 3\ntrainer: {max_rounds: 7}\n")
    config = printed(world, "--config", "more.yaml", "--trainer.local_steps", "5")
    assert config["seed_everything"] == 3
    assert [config["trainer"][key] for key in ("max_rounds", "local_steps", "engine")] == [7, 5, "sequential"]


def test_default_server_optimizer_is_printed_as_a_class(world: World):
    server = printed(world)["trainer"]["server_optimizer"]
    assert (server["class_path"], server["init_args"]["lr"]) == ("torch.optim.SGD", 1.0)


@pytest.mark.parametrize("name", ["MLP", "ResNet", "CifarResNet", "McMahanCNN", "LeNet5"])
def test_our_backbones_come_before_others_of_the_same_name(world: World, name: str):
    path = world.write("other.yaml", lambda c: c["model"]["init_args"].update(backbone=name))
    _, out, _ = world.lfl("fit", "--config", path, "--print_config")
    assert yaml.safe_load(out)["model"]["init_args"]["backbone"]["class_path"] == f"lfl.models.{name}"


def test_printed_and_saved_configs_give_the_same_run(world: World):
    args = ["--trainer.callbacks+=Proximal", "--trainer.callbacks.mu=0.5", "--seed_everything=3"]
    args += ["--lr_scheduler=ExponentialLR", "--lr_scheduler.gamma=0.9"]
    _, out, _ = world.lfl("fit", "--config", "base.yaml", *args, "--print_config")
    (world.folder / "printed.yaml").write_text(out)
    world.fit(*args)
    saved = world.folder / "runs/run_000/config.yaml"
    for config in ("printed.yaml", str(saved)):
        assert world.lfl("fit", "--config", config)[0] == 0
    assert world.metrics(0) == world.metrics(1) == world.metrics(2)
    assert saved.read_text() == (world.folder / "runs/run_002/config.yaml").read_text()


def test_settings_are_resolved_without_a_run(world: World) -> None:
    cli = run(["fit", "--config", "base.yaml", "--trainer.callbacks+=Proximal"], ResolvingCLI)
    world.fit("--trainer.callbacks+=Proximal")
    saved = (world.folder / "runs/run_000/config.yaml").read_text()
    assert yaml.safe_load(cli.settings) == yaml.safe_load(saved)
    assert [path.name for path in (world.folder / "runs").iterdir()] == ["run_000"]


def test_the_seed_matters(world: World):
    world.fit("--seed_everything=1")
    world.fit("--seed_everything=2")
    assert world.metrics(0) != world.metrics(1)


def test_plateau_scheduler_watches_a_metric(world: World):
    world.fit("--lr_scheduler=ReduceLROnPlateau", "--lr_scheduler.monitor=val_loss", "--lr_scheduler.patience=5")
    assert "val_loss" in world.metrics()


def test_a_callback_of_the_users_own_file(world: World):
    (world.folder / "my_callback.py").write_text(CALLBACK)
    out = world.fit("--trainer.callbacks+=my_callback.Announce", "--trainer.callbacks.text=participants:")
    assert out.count("participants: 3\n") == 2


def test_evaluation_subcommands(world: World):
    world.fit()
    last = world.metrics().splitlines()
    accuracy = dict(zip(last[0].split(","), last[-1].split(","), strict=True))["val_acc"]
    for stage, name in (("validate", "val_acc"), ("test", "test_acc")):
        for checkpoint in ("last", "runs/run_000/checkpoints/last.ckpt"):
            code, out, err = world.lfl(stage, "--config", "base.yaml", "--ckpt_path", checkpoint)
            assert (code, err) == (0, "")
            assert name in out
            assert f"{float(accuracy):.6g}" in out  # validation uses the test set here
    code, out, err = world.lfl("predict", "--config", "base.yaml", "--ckpt_path", "last")
    assert (code, err) == (0, "")
    assert "predictions.pt" in out
    assert world.lfl("validate", "--config", "base.yaml")[0] == 0


def test_runs_never_share_a_folder(world: World):
    world.fit("--trainer.max_rounds=1")
    world.fit("--trainer.max_rounds=1")
    assert sorted(path.name for path in (world.folder / "runs").iterdir()) == ["run_000", "run_001"]


def test_the_current_folder_is_searched_once(world: World):
    world.lfl("fit", "--config", "base.yaml", "--print_config")
    world.lfl("fit", "--config", "base.yaml", "--print_config")
    assert sys.path.count(os.getcwd()) == 1


def test_a_rate_of_the_model_that_an_optimizer_replaces(world: World) -> None:
    with pytest.warns(
        UserWarning, match="`model.lr=0.5` has no effect: `optimizer` takes the place of the model's own"
    ):
        world.fit("--model.lr=0.5", "--trainer.max_rounds=1")


def test_lightnings_callbacks_by_name(world: World) -> None:
    stopping = ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=val_loss"]
    stopping += ["--trainer.callbacks.patience=1", "--trainer.callbacks.min_delta=100.0"]
    world.fit(*stopping, "--trainer.max_rounds=9", "--trainer.checkpoint.monitor=val_acc")
    assert len(world.metrics().splitlines()) == 1 + 2
    world.fit("--trainer.callbacks+=ModelCheckpoint", "--ckpt_path=best", "--trainer.max_rounds=3")
    assert (world.folder / "runs" / "run_001" / "checkpoints" / "epoch=2-step=3.ckpt").exists()
