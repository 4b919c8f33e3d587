"""argparse with one-line errors, for commands that do without jsonargparse, whose import takes seconds."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from typing_extensions import override


class PlainParser(argparse.ArgumentParser):
    """argparse's parser, which prints one line for a wrong option, as ``lfl fit`` does, and no usage.

    Args:
        speaker: the command that the line names.
        options: of ``argparse.ArgumentParser``.
    """

    def __init__(self, speaker: str = "lfl", **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)
        self._speaker = speaker

    @override
    def error(self, message: str) -> NoReturn:
        """Print one line, and end with exit code 2."""
        self.exit(2, f"{self._speaker}: error: {one_line(message, self.names)}\n")

    @property
    def names(self) -> list[str]:
        """All options, such as ``--output``."""
        return list(self._option_string_actions)


def one_line(message: str, names: Iterable[str]) -> str:
    """Rewrite a message of argparse; any other one is as it was.

    >>> one_line("unrecognized arguments: --wand", ["--wandb", "--title"])
    'unknown argument `--wand`; did you mean `--wandb`?'
    >>> one_line("argument --title: expected one argument", [])
    '`--title` needs a value.'
    >>> one_line("argument --x: invalid choice: 'bytes' (choose from 'round', 'mb')", [])
    "`--x bytes` must be one of 'round', 'mb'."
    >>> one_line("argument --jobs: invalid int value: 'two'", [])
    '`--jobs two` must be a whole number.'
    """
    if unknown := re.fullmatch(r"unrecognized arguments: (\S+).*", message):
        name = unknown[1].partition("=")[0]
        return f"unknown argument `{name}`{near(name, names) or '.'}"
    if alone := re.fullmatch(r"argument (\S+): expected (?:one|at least one) argument", message):
        return f"`{alone[1]}` needs a value."
    if choice := re.fullmatch(r"argument (\S+): invalid choice: '(.*)' \(choose from (.*)\)", message):
        return f"`{choice[1]} {choice[2]}` must be one of {choice[3]}."
    if number := re.fullmatch(r"argument (\S+): invalid int value: '(.*)'", message):
        return f"`{number[1]} {number[2]}` must be a whole number."
    return message


def near(name: str, names: Iterable[str]) -> str:
    """The rest of a sentence that names what may be meant; empty where nothing is near.

    >>> near("--job", ["--jobs", "--output"]), near("--lr", ["--jobs"])
    ('; did you mean `--jobs`?', '')
    """
    found = difflib.get_close_matches(name, list(names), 1, 0.7)
    return f"; did you mean `{found[0]}`?" if found else ""
