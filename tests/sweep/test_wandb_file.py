"""The file of a W&B sweep makes the runs of the grid, by W&B's own reading of it."""

from pathlib import Path

import pytest
import yaml
from wandb_sweeps import expand

from lfl.sweep.grid import GridError, combine, read_axes
from lfl.sweep.wandb_file import write_files

LOGGER = "--trainer.logger=lfl.loggers.WandbLogger"


def test_the_commands_are_those_of_the_runs_with_a_logger(tmp_path: Path) -> None:
    axes = read_axes(["--config", "a.yaml", "--x=3", "--optimizer.lr", "0.05,1e-3,null", "--seed_everything", "0,1"])
    (path,) = write_files(tmp_path / "new" / "sweep.yaml", axes, logs_to_wandb=False)
    wanted = [["lfl", "fit", *run.arguments[:2], LOGGER, *run.arguments[2:]] for run in combine(axes)]
    assert expand(yaml.safe_load(path.read_text())) == wanted
    content = yaml.safe_load(path.read_text())
    assert (content["method"], content["parameters"]["seed_everything"]) == ("grid", {"values": [0, 1]})
    assert path.read_text().startswith(f"# wandb sweep {path}\n")


def test_configs_and_variants_have_a_file_each(tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").write_text("method: {near: {mu: 1}, far: {mu: 2, y: 3}}")
    grid = str(tmp_path / "grid.yaml")
    axes = read_axes(["--config", "a.yaml,b.yaml", "--grid", grid, "--seed_everything", "0,1"])
    files = write_files(tmp_path / "s.yaml", axes, logs_to_wandb=True)
    assert [file.name for file in files] == ["s_a_near.yaml", "s_a_far.yaml", "s_b_near.yaml", "s_b_far.yaml"]
    commands = [command for file in files for command in expand(yaml.safe_load(file.read_text()))]
    assert commands == [["lfl", "fit", *run.arguments] for run in combine(axes)]


def test_what_wandb_would_make_otherwise_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GridError, match="`--wandb` needs a setting with several values"):
        write_files(tmp_path / "s.yaml", read_axes(["--config", "a.yaml", "b.yaml"]), logs_to_wandb=False)
    for later in ("--config", "--trainer.callbacks+"):
        axes = read_axes(["--lr", "1,2", later, "x.yaml"])
        with pytest.raises(GridError, match=r"after all others, but `--.*` comes after `--lr` here"):
            write_files(tmp_path / "s.yaml", axes, logs_to_wandb=False)
    assert list(tmp_path.iterdir()) == []
