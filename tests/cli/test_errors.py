"""Every bad input is one clear line, exit code 2, and leaves no run folder."""

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_world import World

from lfl.cli.errors import describe_error, one_line


def test_traceback_on_request(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LFL_TRACEBACK", "1")
    with pytest.raises(ValueError, match="max_round"):
        world.lfl("fit", "--config", "base.yaml", "--trainer.max_round=3")
    with pytest.raises(ValueError, match="has 10 clients"):
        world.lfl("fit", "--config", "base.yaml", "--trainer.participation.clients_per_round=11")


UNION = """Parser key "trainer.callbacks":
  Does not validate against any of the Union subtypes
  Subtypes: [list[lfl.callback.FederatedCallback], <class 'NoneType'>]
  Errors:
    - Problem with given class_path 'lfl.callbacks.SSF':
        Parser key "subspace":
          Problem with given class_path 'lfl.subspace.LayerwiseSubspace':
            Parser key "rank":
              Does not validate against any of the Union subtypes
              Subtypes: [<class 'int'>, <class 'float'>]
              Errors:
                - Expected a <class 'int'>
                - Expected a <class 'float'>
              Given value type: <class 'str'>
              Given value: abc
    - Expected a <class 'NoneType'>
  Given value type: <class 'list'>
  Given value: [{'class_path': 'SSF'}]"""

USER_CODE = """
from torch.utils.data import TensorDataset
import torch
from torch.nn.functional import cross_entropy
from lfl.callbacks import FederatedCallback
from lfl.models import Classifier


def numbers(seed: int = 0, bad: int = -1) -> TensorDataset:
    x = torch.randn(40, 64, generator=torch.Generator().manual_seed(seed))
    if bad >= 0:
        x[bad] = torch.nan
    return TensorDataset(x, torch.arange(40) % 4)


class Numbers(TensorDataset):
    def __init__(self, bad: int = -1) -> None:
        super().__init__(*numbers(bad=bad).tensors)


class Buggy(Classifier):
    def training_step(self, batch, batch_idx):
        return cross_entropy(self(batch[0]), batch[1][:-1])


class Choosy(FederatedCallback):
    def check(self, layout):
        raise ValueError(f"`user` does not like D={layout.dim}.")


class BuggyCallback(FederatedCallback):
    def on_round_start(self, round):
        raise RuntimeError("a bug of the user's")
"""

SSF = "--trainer.callbacks+=SSF"
RANK = "--trainer.callbacks.subspace.rank"
CLIENTS = "--trainer.participation.clients_per_round"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("--trainer.max_round 3", "unknown argument `--trainer.max_round`; did you mean `--trainer.max_rounds`?"),
        ("--trainer.max_r=3", "unknown argument `--trainer.max_r`; did you mean `--trainer.max_rounds`?"),
        ("--max_rounds=3", "unknown argument `--max_rounds`; did you mean `--trainer.max_rounds`?"),
        ("--alpha=3", "`--alpha`; it is an argument of ClientMomentum, ClusteredDirichletPartitioner, "),
        ("extra", "unknown argument `extra`."),
        ("--trainer.max_rounds", "`--trainer.max_rounds` needs a value."),
        ("--optimizer.lr", "`--optimizer.lr` needs a value."),
        ("--optimizer SGD --optimizer.lr --seed_everything=3", "`--optimizer.lr` needs a value."),
        ("--config", "`--config` needs a value."),
        ("--optimizer.lr=", "`--optimizer.lr` needs a value."),
        ("--optimizer.lr ", "`--optimizer.lr` needs a value."),
        ("--optimizer=", "`--optimizer` needs a value."),
        ("--trainer.max_rounds=", "`--trainer.max_rounds` needs a value."),
        ("--trainer.callbacks+=Proximal --trainer.callbacks.mu=", "`--trainer.callbacks.mu` needs a value."),
        ("--optimiser.lr 0.1", "unknown argument `--optimiser.lr`; did you mean `--optimizer.lr`?"),
        ("--optimiser=SGD", "unknown argument `--optimiser`; did you mean `--optimizer`?"),
        ("--trainr.max_rounds 3", "unknown argument `--trainr.max_rounds`; did you mean `--trainer.max_rounds`?"),
        (
            "--trainer.participaton.clients_per_round 3",
            "`--trainer.participaton.clients_per_round`; did you mean `--trainer.participation.clients_per_round`?",
        ),
        ("--trainer.max_rounds abc", "`trainer.max_rounds=abc` must be a whole number of at least 0."),
        ("--trainer.max_rounds=-1", "`trainer.max_rounds=-1` must be a whole number of at least 0."),
        ("--trainer.cohort_size=0", "`trainer.cohort_size=0` must be a whole number of at least 1."),
        ("--trainer.gradient_clip_val=-1.0", "`trainer.gradient_clip_val=-1.0` must be a number above 0."),
        ("--seed_everything=true", "`seed_everything=true` must be a whole number of at least 0."),
        (
            "--trainer.trace_steps=complie",
            "`trainer.trace_steps=complie` must be true or false or 'auto' or 'compile'; did you mean `compile`?",
        ),
        (
            "--trainer.engine vector",
            "`trainer.engine=vector` must be 'auto' or 'sequential' or 'vectorized'; did you mean `vectorized`?",
        ),
        ("--optimizer.lr abc", "`optimizer.lr=abc` must be a number"),
        (
            "--trainer.callbacks+=Proximal --trainer.callbacks.muu 1",
            "`trainer.callbacks.muu`: Proximal has no argument `muu`; did you mean `mu`?",
        ),
        (
            "--trainer.callbacks+=Proximal --trainer.callbacks.mu abc",
            "`trainer.callbacks.mu=abc` must be a number of at least 0.",
        ),
        ("--optimizer=Adam --optimizer.beta 3", "`optimizer.beta`: Adam has no argument `beta`; did you mean `betas`?"),
        (
            "--trainer.server_optimizer=SGD --trainer.server_optimizer.lrr 3",
            "`trainer.server_optimizer.lrr`: SGD has no argument `lrr`; did you mean `lr`?",
        ),
        (
            "--data.alpha 1",
            "`data.alpha`: FederatedDataModule has no argument `alpha`; it is an argument of ClientMomentum, ",
        ),
        (
            "--data.partitioner=ShardPartitioner --data.partitioner.zzz 3",
            "`data.partitioner.zzz`: ShardPartitioner has no argument `zzz`; it takes ",
        ),
        ("--trainer.callbacks+=Proximl", "`trainer.callbacks`: there is no Callback 'Proximl'; did you"),
        (
            "--trainer.callbacks+=lfl.callbacks.Proximl",
            "`trainer.callbacks`: module 'lfl.callbacks' has no attribute 'Proximl'; did you mean `Proximal`?",
        ),
        # Names of the file that was named, though another one of lfl (`Sign`) is nearer.
        (
            "--trainer.callbacks+=personal_toy.Simn",
            "`trainer.callbacks`: module 'personal_toy' has no attribute 'Simn'.",
        ),
        ("--trainer.callbacks+=EarlyStopping", "`trainer.callbacks`: EarlyStopping needs `monitor`."),
        ("--trainer.max_epochs=3", "unknown argument `--trainer.max_epochs`: use `max_rounds`: to a LightningModule"),
        ("--trainer.callbacks+=RichProgressBar", "`callbacks` has a RichProgressBar, which has no meaning here: lfl"),
        ("--trainer.callbacks+=torch.nn.Linear", "`trainer.callbacks`: torch.nn.Linear is not a Callback."),
        ("--trainer.callbacks+=nowhere.Thing", "`trainer.callbacks`: No module named 'nowhere'."),
        ("--model=Clasifier", "`model`: there is no LightningModule 'Clasifier'; did you mean `Classifier`?"),
        ("--model.backbone=MLPP", "`model.backbone`: there is no Backbone or Module 'MLPP'; did you mean `MLP`?"),
        ("--data.source=Digit", "`data.source`: there is no class 'Digit'; did you mean `Digits`?"),
        ("--optimizer=SDG", "`optimizer`: there is no Optimizer 'SDG'; did you mean `SGD`?"),
        ("--trainer.logger=WandLogger", "`trainer.logger`: there is no Logger 'WandLogger'; did you mean `WandbL"),
        ("--lr_scheduler=ReduceLROnPlateau", "`lr_scheduler`: ReduceLROnPlateau needs `monitor`."),
        ("--optimizer.lr=-1.0", "`optimizer` or `lr_scheduler` cannot be built: Invalid learning rate: -1.0."),
        ("--trainer.server_optimizer.lr=-1.0", "`server_optimizer` cannot be built: Invalid learning rate: -1.0."),
        ("--trainer.accelerator=cpu --trainer.devices=abc", "No trainer with these settings: `devices` selected with"),
        (f"{CLIENTS}=0", "`clients_per_round=0` must be at least 1."),
        (f"{CLIENTS}=11", "`clients_per_round=11` but the data module has 10 clients. Lower it, or raise `data.num"),
        (f"{CLIENTS}=1.5", "`clients_per_round=1.5` is a fraction of all clients and must be in (0, 1]"),
        (f"{CLIENTS}=0.0", "`clients_per_round=0.0` is a fraction of all clients and must be in (0, 1]"),
        (f"{CLIENTS}=-0.1", "`clients_per_round=-0.1` is a fraction of all clients and must be in (0, 1]"),
        (f"{CLIENTS}=abc", "clients_per_round=abc` must be a number or 'auto'."),
        (f"{SSF} {RANK}=0", "`rank=0` must be at least 1 (a number of coordinates) or a float in (0, 1] (a ratio)."),
        (f"{SSF} {RANK}=2.0", "`rank=2.0` is a float and so a ratio: it must be in (0, 1]. For a number of coord"),
        (f"{SSF} {RANK}=11", "`rank=11` of LayerwiseSubspace exceeds the rows of every layer (at most 10; D=610)"),
        (
            f"{SSF} --trainer.callbacks.subspace=DenseSubspace {RANK}=611",
            "`rank=611` must not exceed D=610, the number of parameters",
        ),
        (f"{SSF} --trainer.callbacks+=FedSub", "SSF and FedSub both want the local optimizer to run on their own"),
        ("--trainer.local_epochs=1 --trainer.local_steps=2", "Give `local_epochs=1` or `local_steps=2`, not both."),
        ("--model.backbone.norm=batch --trainer.engine=vectorized", "`engine=vectorized` cannot train Classifier: "),
        ("--data.partitioner.min_size=1000", "`min_size=1000` of DirichletPartitioner for `num_clients=10` needs"),
        ("--data.partitioner.alpha=0.001 --data.partitioner.min_size=20", "`min_size=20`"),
        ("--data.source=TorchvisionSource", "CIFAR10 is not at '"),
        ("--config nothere.yaml", "`config`: File does not exist: '"),
        ("--ckpt_path nothere.ckpt", "There is no checkpoint nothere.ckpt. Give the path of an existing file."),
        ("--ckpt_path last", "There is no last checkpoint: no run folder in runs has checkpoints/last.ckpt."),
        (
            "--trainer.system lfl.system.Straglers",
            "`trainer.system`: module 'lfl.system' has no attribute 'Straglers'; did you mean `Stragglers`?",
        ),
        ("--optimizer=Adam --optimizer.betas [0.5]", "`optimizer.betas=[0.5]` must be a list of 2 values."),
        (
            "--model.backbone=LeNet5 --model.backbone.hidden [32]",
            "`model.backbone.hidden=[32]` must be a list of 2 values.",
        ),
        (
            "--model.backbone MLP --model.backbone.hidden 8,16",
            "`model.backbone.hidden=8,16` must be a list, such as [8, 16].",
        ),
    ],
)
def test_bad_argument(world: World, args: str, message: str):
    assert message in world.error(*args.split(" "))
    assert not (world.folder / "runs").exists()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda c: c["trainer"].update(max_round=3), "unknown setting `trainer.max_round`; did you mean `trainer.max_"),
        (lambda c: c.update(max_rounds=3), "unknown setting `max_rounds`; did you mean `trainer.max_rounds`?"),
        (lambda c: c.update(trainers={"devices": 3}), "unknown setting `trainers.devices`; did you mean `trainer.dev"),
        (
            lambda c: c["data"]["init_args"].update(alpha=3),
            "`data.alpha`: FederatedDataModule has no argument `alpha`; it is an argument of ClientMomentum, ",
        ),
        (
            lambda c: c["data"]["init_args"]["partitioner"]["init_args"].update(alpha="x"),
            "`data.partitioner.alpha=x` must be a number above 0.",
        ),
        (
            lambda c: c["optimizer"].update(lr=0.1),
            "`optimizer` takes a `class_path` and, with all arguments of the class below it, `init_args`; got {",
        ),
        (
            lambda c: c["trainer"].update(callbacks=[{"class_path": "SSF", "init_args": {"refresh": 1}}]),
            "`trainer.callbacks.refresh`: SSF has no argument `refresh`; did you mean `refresh_every`?",
        ),
        (lambda c: c["trainer"].update(max_rounds=None), "`trainer.max_rounds=null` has no meaning: leave it out for"),
        (lambda c: c.pop("model"), "`lfl fit` needs a `model`: give `--config FILE` with one, or `--model CLASS`."),
        (lambda c: c.pop("data"), "`lfl fit` needs `data`: give `--config FILE` with it, or `--data CLASS`."),
        (
            lambda c: c.update(optimizer=None, lr_scheduler={"class_path": "StepLR", "init_args": {"step_size": 1}}),
            "`lr_scheduler` needs an `optimizer` beside it",
        ),
    ],
)
def test_bad_config(world: World, edit: Callable[[dict[str, Any]], object], message: str):
    assert world.refused("fit", "--config", world.write("bad.yaml", edit)).startswith(message)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            "--optimizer.lr 0.1",
            "`optimizer.lr`: {}, `--optimizer SGD --optimizer.lr 0.1`; a model with a rate of its own has it in "
            "`--model.lr 0.1`.",
        ),
        ("--optimizer.momentum 0.1", "`optimizer.momentum`: {}, `--optimizer SGD --optimizer.momentum 0.1`."),
        ("--optimizer.lrr=0.1", "`optimizer.lrr`: {}, `--optimizer CLASS`."),
        ("--lr_scheduler.gamma 0.5", "`lr_scheduler.gamma`: {}, `--lr_scheduler StepLR --lr_scheduler.gamma 0.5`."),
    ],
)
def test_setting_of_a_class_that_is_not_named(world: World, args: str, message: str):
    config = world.write("own.yaml", lambda c: c.pop("optimizer"))
    name = args.partition(".")[0].lstrip("-")
    said = world.refused("fit", "--config", config, *args.split(" "))
    assert said == message.format(f"no `{name}` is given that could have it: name its class first")


def test_a_setting_without_a_value_and_without_its_class(world: World):
    config = world.write("own.yaml", lambda c: c.pop("optimizer"))
    assert world.refused("fit", "--config", config, "--optimizer.lr=") == "`--optimizer.lr` needs a value."


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trainer:\n  max_rounds: [3\nmodel: x\n", "line 2, column 15"),
        ("- a\n- b\n", "Unexpected config: - a - b."),
    ],
)
def test_a_config_that_is_none(world: World, text: str, message: str):
    (world.folder / "bad.yaml").write_text(text)
    assert message in world.refused("fit", "--config", "bad.yaml")


def test_missing_data_say_where_and_how(world: World):
    text = world.error("--data.source=TorchvisionSource", "--data.source.root=here")
    assert str(world.folder / "here" / "cifar-10-batches-py") in text
    assert "`download: true`" in text
    assert "torchvision as tv; tv.datasets.CIFAR10('here', download=True)" in text


def test_subcommands(world: World):
    assert world.refused("fti") == "unknown subcommand 'fti'; did you mean 'fit'?"
    assert "needs a `model`" in world.refused("fit")
    text = world.refused("--config", "base.yaml")
    assert text.startswith('expected "subcommand" to be one of {fit,validate,test,predict}')


def test_files_that_are_no_checkpoint(world: World):
    path = world.folder / "some.ckpt"
    path.write_bytes(b"nonsense")
    assert "some.ckpt is not a checkpoint of lfl: it is no torch archive" in world.error("--ckpt_path", "some.ckpt")
    torch.save({"state_dict": {}, "pytorch-lightning_version": "2.6"}, path)
    assert "not a checkpoint of lfl but a checkpoint of lightning.Trainer" in world.error("--ckpt_path", "some.ckpt")
    torch.save({"weight": torch.ones(3)}, path)
    text = world.refused("validate", "--config", "base.yaml", "--ckpt_path", "some.ckpt")
    assert "not a checkpoint of lfl but a state_dict" in text
    world.fit("--trainer.max_rounds=1")
    whole = (world.folder / "runs/run_000/checkpoints/last.ckpt").read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "some.ckpt is damaged or truncated. Take an earlier checkpoint." in world.error("--ckpt_path", "some.ckpt")


def test_weights_of_another_model(world: World):
    world.fit("--trainer.max_rounds=1")
    for stage in ("validate", "test", "predict"):
        text = world.refused(stage, "--config", "base.yaml", "--ckpt_path", "last", "--model.backbone.hidden", "[9]")
        assert "last.ckpt" in text
        assert "backbone.features" in text


def test_a_file_in_the_way_of_the_run_folder(world: World):
    text = world.error("--trainer.default_root_dir", "base.yaml/runs")
    assert text.startswith("Cannot make a run folder in base.yaml/runs: ")
    assert text.endswith("base.yaml is a file. Choose a folder that you may write to.")


def test_no_permission_to_write(world: World, monkeypatch: pytest.MonkeyPatch):
    # The tests may run as root, who may do all.
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode, **options: mode != os.W_OK | os.X_OK and access(path, mode))
    text = world.error()
    assert text == "Cannot make a run folder in runs: no permission to write. Choose a folder that you may write to."


def test_full_disk_keeps_the_previous_checkpoint(world: World, monkeypatch: pytest.MonkeyPatch):
    save, last = torch.save, Path("runs/run_000/checkpoints/last.ckpt")

    def full(*args: Any, **options: Any) -> None:
        if last.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        save(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        text = world.error()
    assert text.startswith("Cannot write runs/run_000/checkpoints/last.ckpt: No space left on device. ")
    assert "MiB are free" in text
    assert "run_001" in world.fit("--ckpt_path=runs/run_000/checkpoints/last.ckpt")
    assert [line.split(",")[0] for line in world.metrics(1).splitlines()] == ["round", "1", "2"]


def numbers(world: World, bad: int = -1) -> str:
    """A config of 40 examples of numbers, the one at ``bad`` not finite."""
    (world.folder / "user_code.py").write_text(USER_CODE)
    source = {
        "class_path": "DatasetSource",
        "init_args": {
            "train": {"class_path": "user_code.Numbers", "init_args": {"bad": bad}},
            "test": {"class_path": "user_code.Numbers"},
            "num_classes": 4,
        },
    }

    def edit(config: dict[str, Any]) -> None:
        config["data"]["init_args"].update(source=source, partitioner="IIDPartitioner", num_clients=4)
        config["trainer"]["participation"] = "FullParticipation"

    return world.write("numbers.yaml", edit)


def test_nan_in_the_data_of_a_client(world: World):
    config = numbers(world, bad=7)
    text = world.refused("fit", "--config", config, code=1)
    assert text.startswith("The update of client(s) ")
    assert "in round 1 is not finite (NaN or inf)" in text
    code, out, err = world.lfl("fit", "--config", config, "--trainer.on_nonfinite=skip")
    assert (code, err) == (0, "")
    assert "Skipped the update of client(s) " in out
    header, *rows = (row.split(",") for row in world.metrics(1).splitlines())
    assert [dict(zip(header, row, strict=True))["clients_refused"] for row in rows] == ["1.0", "1.0"]


def test_bugs_of_the_user_keep_their_traceback(world: World):
    config = numbers(world)
    with pytest.raises(ValueError, match="batch_size"):
        world.lfl("fit", "--config", config, "--model.class_path=user_code.Buggy")
    with pytest.raises(RuntimeError, match="a bug of the user's"):
        world.lfl("fit", "--config", config, "--trainer.callbacks+=user_code.BuggyCallback")

    text = world.refused("fit", "--config", config, "--trainer.callbacks+=user_code.Choosy")
    assert text == "`user` does not like D=610."


def test_no_gpu(world: World):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert world.error("--trainer.accelerator=cuda").startswith("No trainer with these settings: ")


def test_condensing_follows_the_first_branch():
    assert one_line(UNION) == "`trainer.callbacks.subspace.rank=abc` must be a number."
    assert one_line("something\n  else") == "something else."


def test_an_extra_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch):
    error = ModuleNotFoundError(
        "Requirement 'wandb>=0.12.10' not met. HINT: Try running `pip install -U 'wandb>=0.12.10'`"
    )
    assert describe_error(error).startswith("Requirement 'wandb")
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert describe_error(error) == "wandb is not installed: `pip install wandb` brings it."
