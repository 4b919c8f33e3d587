"""From a command line with lists to the runs of their product, in order and by name."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_CLOSING = {"(": ")", "[": "]", "{": "}"}
_LONGEST_NAME = 120  # characters; file systems allow 255 bytes, of which others want some


class GridError(ValueError):
    """Values of a sweep that have no meaning; the message is one line."""


@dataclass(frozen=True)
class Choice:
    """One of the values of an axis.

    Attributes:
        name: what stands for it in the name of a run.
        settings: names and values of the settings, in order; a value is None for an option without one.
    """

    name: str
    settings: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True)
class Axis:
    """A setting that varies, or one that does not: an axis with one choice.

    Attributes:
        title: the setting, such as ``optimizer.lr``, or the name of a group of variants.
        choices: in order.
        is_setting: whether every choice is one value of the setting ``title``.
    """

    title: str
    choices: tuple[Choice, ...]
    is_setting: bool = True

    @property
    def varies(self) -> bool:
        """True where there is a choice."""
        return len(self.choices) > 1 or not self.is_setting


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep.

    Attributes:
        name: says what differs from the other runs; the name of its folder.
        values: its choice on each axis that varies, by title.
        arguments: of ``lfl fit``.
    """

    name: str
    values: dict[str, str]
    arguments: tuple[str, ...]


def read_axes(words: Sequence[str]) -> list[Axis]:
    """Read the settings of a command line, and the grid files that it names.

    Args:
        words: options, each with its value in the same word after ``=`` or in the words after it. Several words, and
            commas outside of brackets and quotes, separate values. ``--grid FILE`` stands for what the file holds.

    Raises:
        GridError: a list or a file cannot be read.

    >>> [len(axis.choices) for axis in read_axes(["--lr", "0.1,0.2", "--x=[1,2]", "--seed", "0", "1"])]
    [2, 1, 2]
    """
    axes: list[Axis] = []
    for option, texts in _options(words):
        if option == "grid":
            if not texts:
                raise GridError("`--grid` has no value.")
            axes += [axis for text in texts for path in split_values(text) for axis in read_grid_file(Path(path))]
            continue
        values = [value for text in texts for value in _split(option, text)]
        axes.append(_axis(option, values or [None]))
    return axes


def split_values(text: str) -> list[str]:
    """Split a text at commas outside of brackets and quotes.

    Raises:
        GridError: a bracket or quote is not closed, or a value between commas is empty.

    >>> split_values("1,[2,3],'a,b'")
    ['1', '[2,3]', "'a,b'"]
    """
    parts, open_until = [""], ""
    for letter in text:
        if open_until and letter == open_until[-1]:
            open_until = open_until[:-1]
        elif open_until[-1:] not in ("'", '"'):  # within quotes, brackets and other quotes are letters
            if letter in "'\"":
                open_until += letter
            elif letter in _CLOSING:
                open_until += _CLOSING[letter]
            elif letter == "," and not open_until:
                parts.append("")
                continue
        parts[-1] += letter
    if open_until:
        raise GridError(f"{open_until[-1]} is missing")
    if len(parts) > 1 and "" in parts:
        raise GridError("a value between commas is empty; quote a comma that belongs to a value")
    return parts


def read_grid_file(path: Path) -> list[Axis]:
    """Read a YAML file: settings, each with a list of values, and groups of named variants.

    A group has a name of its own instead of a setting's, and a mapping from the names of its variants to their
    settings, which change together.

    Raises:
        GridError: the file cannot be read, or is of another form.
    """
    try:
        grid = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        raise GridError(f"`--grid {path}` cannot be read: {reason}.") from error
    if not isinstance(grid, dict) or not all(isinstance(title, str) for title in grid):
        raise GridError(f"`--grid {path}` must be a mapping from settings to lists of values.")
    return [_grid_axis(path, title, content) for title, content in grid.items()]


def combine(axes: Sequence[Axis]) -> list[PlannedRun]:
    """Make the product of all axes: the first one changes slowest, the last one with every run."""
    prefixes = _prefixes([axis for axis in axes if axis.varies])
    runs = []
    for choices in itertools.product(*(axis.choices for axis in axes)):
        chosen = [(axis, choice) for axis, choice in zip(axes, choices, strict=True) if axis.varies]
        names = [f"{prefix}{choice.name}" for prefix, (_, choice) in zip(prefixes, chosen, strict=True)]
        arguments = tuple(argument(*setting) for choice in choices for setting in choice.settings)
        values = {axis.title: _value(axis, choice) for axis, choice in chosen}
        runs.append(PlannedRun(_short(",".join(names)) or "run", values, arguments))
    return runs


def count(axes: Sequence[Axis]) -> int:
    """The number of runs that ``combine`` gives."""
    return math.prod(len(axis.choices) for axis in axes)


def argument(setting: str, value: str | None) -> str:
    """The word of a command line that gives a setting its value."""
    return f"--{setting}" if value is None else f"--{setting}={value}"


def _options(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """The options of a command line, each with its words."""
    found: list[tuple[str, list[str]]] = []
    for word in words:
        # A value may begin with a minus: -0.5.
        if word.startswith("--") or word == "-c":
            name, equals, value = word.removeprefix("--").partition("=")
            found.append(("config" if word == "-c" else name, [value] if equals else []))
        elif not found:
            raise GridError(f"{word!r} stands before every setting: a setting begins with `--`.")
        else:
            found[-1][1].append(word)
    yield from found


def _split(option: str, text: str) -> list[str]:
    try:
        return split_values(text)
    except GridError as error:
        raise GridError(f"`--{option} {shlex.quote(text)}`: {error}.") from error


def _axis(setting: str, values: Sequence[str | None]) -> Axis:
    """The axis of one setting."""
    if twice := [value for value, times in Counter(values).items() if times > 1]:
        raise GridError(f"`--{setting}` has the value {twice[0]} twice.")
    names = _value_names([value or "" for value in values], stands_alone=setting == "config")
    choices = (Choice(name, ((setting, value),)) for name, value in zip(names, values, strict=True))
    return Axis(setting, tuple(choices))


def _grid_axis(path: Path, title: str, content: Any) -> Axis:
    where = f"`{title}` in {path}"
    if not isinstance(content, dict):
        values = content if isinstance(content, list) else [content]
        if not values:
            raise GridError(f"{where} has no values.")
        return _axis(title, [_text(value) for value in values])
    if not content or not all(isinstance(settings, dict | None) for settings in content.values()):
        raise GridError(f"{where} must be a list of values, or a mapping from names of variants to their settings.")
    names = _value_names([str(name) for name in content], stands_alone=True)
    settings = (tuple((key, _text(value)) for key, value in (own or {}).items()) for own in content.values())
    return Axis(title, tuple(map(Choice, names, settings)), is_setting=False)


def _text(value: Any) -> str:
    """A value of YAML as a word of the command line."""
    return value if isinstance(value, str) else json.dumps(value)


def _value(axis: Axis, choice: Choice) -> str:
    return choice.name if not axis.is_setting else choice.settings[0][1] or ""


def _value_names(values: Sequence[str], *, stands_alone: bool) -> list[str]:
    """Short names of values, no two alike and fit for folders: of a file its stem, of a class its name.

    Args:
        values: the values.
        stands_alone: whether the name of a run may begin with them, so that a dot at the start would hide its folder.
    """
    hiding = "._" if stands_alone else "_"
    for shorten in (_last_part, str):
        names = [re.sub(r"[^\w.+-]+", "_", shorten(value)).lstrip(hiding).rstrip("_") for value in values]
        if len(set(names)) == len(names):
            return names
    return [f"{name}_{number}" for number, name in enumerate(names)]


def _last_part(value: str) -> str:
    if value.endswith((".yaml", ".yml", ".json")):
        return Path(value).stem
    return value.rpartition(".")[2] if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", value) else value


def _prefixes(axes: Sequence[Axis]) -> list[str]:
    """The text before each value in a run's name: as much of the setting's end as tells it from the others."""
    paths = [[part for part in axis.title.rstrip("+").split(".") if part != "init_args"] for axis in axes]
    depths = [1] * len(axes)
    while True:
        names = [".".join(path[-depth:]) for path, depth in zip(paths, depths, strict=True)]
        times = Counter(names)
        deeper = [n for n, name in enumerate(names) if times[name] > 1 and depths[n] < len(paths[n])]
        if not deeper:
            break
        for number in deeper:
            depths[number] += 1
    # Names of files and of variants say what they are.
    return ["" if not a.is_setting or a.title == "config" else f"{n}=" for a, n in zip(axes, names, strict=True)]


def _short(name: str) -> str:
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - 9]}~{hashlib.sha256(name.encode()).hexdigest()[:8]}"
