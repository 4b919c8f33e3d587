"""A description of the settings that a run's numbers depend on; they must be equal for the run to be resumed."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
from torch.optim import Optimizer

from lfl.storage.checkpoint_file import CheckpointError

_PLAIN = (str, int, float, bool, type(None))
# Where the data lies does not matter: the fingerprint of the partition shows that the data is the same.
_IRRELEVANT = ("data.source.root:", "data.source.path:", "data.source.download:")


def describe(value: Any) -> Any:
    """Describe an object by its class and constructor arguments, in plain values that a checkpoint can hold.

    By convention an object keeps each constructor argument in an attribute of the same name. One that has read a file
    may add an attribute ``fingerprint``, a string that tells the file's contents from others.
    """
    if isinstance(value, np.generic):
        value = value.item()
    # jsonargparse's number types (`PositiveInt`) are subclasses, which a checkpoint cannot hold. `bool` comes before
    # `int`, of which it is a subclass.
    for plain in (bool, int, float, str):
        if isinstance(value, plain):
            return plain(value)
    if value is None:
        return None
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if isinstance(value, dict):
        return {str(key): describe(item) for key, item in value.items()}
    kind = type(value)
    described: dict[str, Any] = {"class": f"{kind.__module__}.{kind.__qualname__}"}
    for name in inspect.signature(kind.__init__).parameters:
        argument = getattr(value, name, None)
        if name != "self" and is_describable(argument):
            described[name] = describe(argument)
    if isinstance(content := getattr(value, "fingerprint", None), str):
        described["fingerprint"] = content
    return described


def differences(saved: Any, now: Any, where: str = "") -> list[str]:
    """The differences between two descriptions, each as its path with both values."""
    # Arguments are compared within one class only; two classes are one difference.
    if isinstance(saved, dict) and isinstance(now, dict) and saved.get("class") == now.get("class"):
        texts = []
        for key in sorted(saved.keys() | now.keys()):
            texts += differences(saved.get(key), now.get(key), f"{where}.{key}" if where else key)
        return texts
    if isinstance(saved, list) and isinstance(now, list) and len(saved) == len(now):
        return [
            text for i, pair in enumerate(zip(saved, now, strict=True)) for text in differences(*pair, f"{where}[{i}]")
        ]
    return [] if saved == now else [f"{where}: {_short(saved)} then, {_short(now)} now"]


def check_resumable(saved: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    """Check that a run continues under the settings of its checkpoint, since others would give other numbers.

    Raises:
        CheckpointError: settings differ; the message names every difference.
    """
    changes = [text for text in differences(saved, now) if not text.startswith(_IRRELEVANT)]
    if changes:
        raise CheckpointError(
            f"Cannot resume `{path}` with changed settings ({'; '.join(changes)}). Use the run's own settings, or "
            "start a new run without --ckpt_path."
        )


def is_describable(value: Any) -> bool:
    """Whether ``describe`` can describe a value; tensors, generators and functions it cannot."""
    if isinstance(value, list | tuple):
        return all(is_describable(item) for item in value)
    if isinstance(value, dict):
        return all(is_describable(item) for item in value.values())
    return isinstance(value, _PLAIN) or type(value).__module__.split(".")[0] not in ("torch", "builtins", "functools")


def _short(value: Any) -> str:
    if isinstance(value, list):
        text = f"[{', '.join(_short(item) for item in value)}]"
    else:
        text = value["class"].rsplit(".", 1)[-1] if isinstance(value, dict) and "class" in value else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def describe_optimizer(optimizer: Optimizer) -> dict[str, Any]:
    """Describe an optimizer by its class and hyperparameters, in plain values."""
    return {"class": type(optimizer).__name__, "groups": [describe_entries(group) for group in optimizer.param_groups]}


def describe_entries(values: dict[str, Any]) -> dict[str, Any]:
    """Describe those entries of a dictionary that can be described."""
    return {str(key): describe(value) for key, value in values.items() if is_describable(value)}
