"""The file of a W&B sweep over the same runs: ``wandb sweep FILE``."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from lfl.storage.files import write_file
from lfl.sweep.grid import Axis, GridError, argument

_LOGGER = "--trainer.logger=lfl.loggers.WandbLogger"


def write_files(path: Path, axes: Sequence[Axis], logs_to_wandb: bool) -> list[Path]:
    """Write the files of W&B sweeps that make the runs of ``axes``.

    W&B varies single settings, which stand at the end of its commands. Configs and variants stand before them: there is
    a file ``PATH_NAME.yaml`` for each of them, and only ``PATH`` where there is no choice.

    Args:
        path: the file.
        axes: what is fixed and what varies.
        logs_to_wandb: whether the runs log to W&B by their own settings, so that no logger is added.

    Returns:
        The files.

    Raises:
        GridError: nothing varies that W&B can vary, or something that must come after stands before it.
    """
    varied = [axis for axis in axes if axis.varies and _is_plain(axis)]
    fixed = [axis for axis in axes if not axis.varies or not _is_plain(axis)]
    _check_order(axes)
    if not varied:
        raise GridError("`--wandb` needs a setting with several values; configs and variants are none.")
    parameters = {axis.title: {"values": [_typed(choice.settings[0][1]) for choice in axis.choices]} for axis in varied}
    files = []
    for choices in itertools.product(*(axis.choices for axis in fixed)):
        names = [choice.name for axis, choice in zip(fixed, choices, strict=True) if axis.varies]
        words = [argument(*setting) for choice in choices for setting in choice.settings]
        content: dict[str, Any] = {
            "program": "lfl",
            "method": "grid",
            "command": ["${program}", "fit", *words, *([] if logs_to_wandb else [_LOGGER]), "${args}"],
            "parameters": parameters,
        }
        file = path.with_name("_".join([path.stem, *names]) + path.suffix)
        write_file(file, f"# wandb sweep {file}\n{yaml.safe_dump(content, sort_keys=False, width=120)}")
        files.append(file)
    return files


def _is_plain(axis: Axis) -> bool:
    return axis.is_setting and axis.title != "config"


def _check_order(axes: Sequence[Axis]) -> None:
    """Refuse what would have another meaning where W&B puts the settings that vary: after all others."""
    seen = ""
    for axis in axes:
        if axis.varies and _is_plain(axis):
            seen = axis.title
        elif seen:
            titles = [name for choice in axis.choices for name, _ in choice.settings]
            if later := [name for name in titles if name == "config" or name.endswith("+")]:
                raise GridError(
                    f"`--wandb`: W&B gives settings that vary after all others, but `--{later[0]}` comes after "
                    f"`--{seen}` here. Put it before."
                )


def _typed(value: str | None) -> Any:
    """A value as YAML has it: a number is a number on W&B's pages, too; but null, which would come back as `None`."""
    loaded = yaml.safe_load(value or "")
    return value if loaded is None else loaded
