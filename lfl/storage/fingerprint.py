"""What must be equal for a run to be resumed: a description of the settings that its numbers depend on."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from lfl.storage.checkpoint_file import CheckpointError

_PLAIN = (str, int, float, bool, type(None))
_IRRELEVANT = ("data.source.root:", "data.source.download:")  # where the data lies; the partition has its fingerprint


def describe(value: Any) -> Any:
    """An object as its class and constructor arguments, in plain values that a checkpoint can hold.

    Arguments are found by the convention that an object keeps them under their own names.
    """
    for plain in (bool, int, float, str):  # jsonargparse's number types are subclasses, which a checkpoint cannot hold
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
    return described


def differences(saved: Any, now: Any, where: str = "") -> list[str]:
    """The paths at which two descriptions differ, each with both values."""
    if isinstance(saved, dict) and isinstance(now, dict) and saved.get("class") == now.get("class"):
        found = []
        for key in sorted(saved.keys() | now.keys()):
            found += differences(saved.get(key), now.get(key), f"{where}.{key}" if where else key)
        return found
    if isinstance(saved, list) and isinstance(now, list) and len(saved) == len(now):
        return [
            text for i, pair in enumerate(zip(saved, now, strict=True)) for text in differences(*pair, f"{where}[{i}]")
        ]
    return [] if saved == now else [f"{where}: {_short(saved)} then, {_short(now)} now"]


def check_resumable(saved: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    """Refuse to resume under settings that would give other numbers.

    Raises:
        CheckpointError: names every difference.
    """
    found = [text for text in differences(saved, now) if not text.startswith(_IRRELEVANT)]
    if found:
        raise CheckpointError(
            f"Cannot resume `{path}` with changed settings ({'; '.join(found)}). Use the run's own settings, or start "
            "a new run without --ckpt_path."
        )


def is_describable(value: Any) -> bool:
    """Whether ``describe`` has something to say: of tensors, generators and functions it has not."""
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
    """Class and hyperparameters, in plain values."""
    return {"class": type(optimizer).__name__, "groups": [describe_entries(group) for group in optimizer.param_groups]}


def describe_entries(values: dict[str, Any]) -> dict[str, Any]:
    """Those entries of a dictionary that can be described."""
    return {str(key): describe(value) for key, value in values.items() if is_describable(value)}
