"""Lists of classes on the command line and in configs: a list that is given anew has nothing of the one before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml


def without_remains(words: Sequence[str]) -> list[str]:
    """Empty a list of classes before a later one takes its place.

    jsonargparse keeps the arguments of an entry that the new entry in its place does not name, where both are of one
    class and the lists are of one length: a callback would have arguments of a config that another one replaced.

    Args:
        words: of a command line.

    Returns:
        The words, with ``--SETTING=[]`` before each word, or config, that gives a list of classes once more.
    """
    known: set[str] = set()
    found: list[str] = []
    for word, setting, value in _settings(words):
        lists = _lists_of_file(value) if setting in ("config", "c") else _lists(_parsed(value), setting)
        # A setting has two names: with init_args, as in a config, and without, as on the command line.
        again = [name for name in lists if name.replace(".init_args", "") in known]
        known |= {name.replace(".init_args", "") for name in lists}
        found += [f"--{name}=[]" for name in again]
        found += word
    return found


def _settings(words: Sequence[str]) -> Iterator[tuple[list[str], str, str]]:
    """The words of each setting, its name and its value; of other words the name is empty."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            yield [word], "", ""
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if equals or not rest or rest[0].startswith("--"):
            yield [word], name, value
        else:
            value = rest.pop(0)
            yield [word, value], name, value


def _lists_of_file(path: str) -> list[str]:
    try:
        return _lists(yaml.safe_load(Path(path).read_text(encoding="utf-8")), "")
    except (OSError, yaml.YAMLError, UnicodeDecodeError):
        return []  # the parser says what is wrong


def _parsed(value: str) -> Any:
    try:
        return yaml.safe_load(value) if value.lstrip().startswith(("[", "{")) else None
    except yaml.YAMLError:
        return None


def _lists(value: Any, name: str) -> list[str]:
    """The names of all lists of classes in a value that has a name, those in lists left out."""
    if isinstance(value, list):
        is_of_classes = any(isinstance(entry, dict) and "class_path" in entry for entry in value)
        return [name] if is_of_classes else []
    if not isinstance(value, dict):
        return []
    return [found for key, own in value.items() for found in _lists(own, f"{name}.{key}" if name else str(key))]
