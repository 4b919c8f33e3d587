"""Readings of methods that their papers leave open, and what claims become of with the other one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from tools.papers.kept import Numbers
from tools.papers.verdicts import Verdict, decide

READINGS = (
    ("SCAFFOLD, increment", "SCAFFOLD, sampled_mean"),
    ("SSF, increment", "SSF, sampled_mean"),
    ("FedSub, stale", "FedSub, public"),
    ("S-SNAG-EF", "S-SNAG-EF, sequences"),
    ("Top-k EF", "Top-k EF, indices free"),
)


def read_otherwise(rule: Mapping[str, Any], numbers: Numbers) -> Iterator[tuple[str, str, Verdict]]:
    """Decide a claim with the other reading of a method, one at a time, where numbers of it are there.

    A rule that names both readings asks for both, and one that a person decides has no other.

    Args:
        rule: as ``verdicts.decide`` takes it.
        numbers: that decide it.

    Yields:
        The reading, the one of the rule in whose place it is taken, and the verdict with it.
    """
    if "verdict" in rule:
        return
    named = set(_words(rule))
    for ours, other in itertools.chain.from_iterable(itertools.permutations(pair) for pair in READINGS):
        if ours not in named or other in named:
            continue
        try:
            yield other, ours, decide(_renamed(rule, ours, other), numbers).verdict
        except KeyError:
            continue


def _words(part: Any) -> Iterator[str]:
    """All strings of a nest."""
    if isinstance(part, Mapping):
        part = [*part.keys(), *part.values()]
    if isinstance(part, list):
        yield from itertools.chain.from_iterable(map(_words, part))
    elif isinstance(part, str):
        yield part


def _renamed(part: Any, old: str, new: str) -> Any:
    """A copy of a nest in which one string stands for another."""
    if isinstance(part, Mapping):
        return {_renamed(key, old, new): _renamed(value, old, new) for key, value in part.items()}
    if isinstance(part, list):
        return [_renamed(entry, old, new) for entry in part]
    return new if part == old else part
