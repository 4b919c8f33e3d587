"""Runs in groups: those of one group differ in nothing but their seeds."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from lfl.report.runs import ReportError, Run, find, names_of, read
from lfl.report.settings import MAX_ROUNDS, METHOD, Setting, differing, labels, shared, short_names, shown
from lfl.storage.files import told


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seeds alone.

    Attributes:
        label: what it is called.
        settings: its values of the settings that differ between groups.
        runs: all its runs.
    """

    label: str
    settings: Mapping[str, Setting]
    runs: Sequence[Run]

    @cached_property
    def counted(self) -> Sequence[Run]:
        """The runs that means are taken of: the finished ones; where none is, those that are not damaged, or all."""
        finished = [run for run in self.runs if run.is_finished]
        return finished or [run for run in self.runs if not run.is_damaged] or self.runs


@dataclass(frozen=True)
class Comparison:
    """Groups of runs, and what is to be said of them.

    Attributes:
        groups: in the order of their first runs.
        names: short names of the settings in which groups differ.
        shared: the settings that all runs have in common.
        labels: a short name for each run's folder.
        notes: sentences on runs that are left out, damaged, unfinished or without numbers.
    """

    groups: Sequence[Group]
    names: Mapping[str, str] = field(default_factory=dict)
    shared: Mapping[str, Setting] = field(default_factory=dict)
    labels: Mapping[Path, str] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def runs(self) -> list[Run]:
        """All runs, group after group."""
        return [run for group in self.groups for run in group.runs]

    def renamed(self, names: Sequence[str]) -> Comparison:
        """The same groups under other names, by their order.

        Raises:
            ReportError: there are not as many names as groups, or two are equal.
        """
        present = [group.label for group in self.groups]
        if len(names) != len(present) or len(set(names)) != len(names):
            raise ReportError(
                f"{len(names)} names ({', '.join(names)}) for {len(present)} groups: give each its own, in this order: "
                f"{'; '.join(present)}."
            )
        groups = [replace(group, label=name) for group, name in zip(self.groups, names, strict=True)]
        return replace(self, groups=groups)


def compare(paths: Sequence[str | Path]) -> Comparison:
    """Read the runs at and below some paths, and group them by the settings that differ between them.

    Raises:
        ReportError: there are no runs, or none has metrics.
    """
    places = find(paths)
    folders = places.runs
    names = dict(zip(folders, names_of(folders), strict=True))
    with ThreadPoolExecutor(2) as pool:  # reading CSV files and parsing YAML leave the interpreter free in part
        found = list(pool.map(_read, folders))
    notes = [f"{path} has no runs in it." for path in places.empty]
    if places.evaluations:
        count = len(places.evaluations)
        kind = "folder is that of an evaluation" if count == 1 else "folders are those of evaluations"
        notes.append(f"{count} {kind} or of predictions, and passed over.")
    notes += [
        f"{names[path]} is left out: {error}."
        for path, error in zip(folders, found, strict=True)
        if isinstance(error, str)
    ]
    runs = [run for run in found if isinstance(run, Run)]
    if not runs:
        raise ReportError(f"none of {len(folders)} runs has numbers. {' '.join(notes[:5])}")
    runs, again = _without_repeats(runs)
    notes += [
        f"{names[run.path]} is left out: {names[other.path]} has the same settings and seed." for run, other in again
    ]
    notes += [f"{names[run.path]} {remark}." for run in runs for remark in _remarks(run)]
    keys = differing([run.settings for run in runs])
    short = short_names(keys, reserved=("run", "round", "seed", "state", "metric", "value", "group"))
    return Comparison(_grouped(runs, short), short, shared([run.settings for run in runs]), names, notes)


def _read(path: Path) -> Run | str:
    """A run, or why there are no numbers of it."""
    try:
        run = read(path)
    except ReportError as error:
        return str(error)
    except OSError as error:
        return told(error)
    if run.rounds:
        return run
    if run.is_damaged:
        return f"its metrics.csv is damaged: it has no rounds, and timing.csv ends at round {run.timed}"
    return "it has no metrics, as it ended before its first round did"


def _remarks(run: Run) -> Iterator[str]:
    """Remarks on a run that has not all its rounds, or not all their times."""
    if run.timed > run.rounds:
        yield f"is damaged: metrics.csv ends at round {run.rounds}, timing.csv at round {run.timed}"
    elif run.is_damaged:
        yield f"is damaged: metrics.csv lacks {run.lost} of the rounds that timing.csv has"
    elif not run.is_finished:
        yield f"is unfinished: round {run.rounds} of {run.max_rounds}"
    if not run.is_timed:
        lacks = f"lacks {run.untimed} of the rounds that metrics.csv has" if run.timed else "is not there"
        yield f"has no seconds in this report: timing.csv {lacks}"


def _grouped(runs: Sequence[Run], names: Mapping[str, str]) -> list[Group]:
    members = _by(runs, lambda run: tuple((key, run.settings[key]) for key in names if key in run.settings))
    settings = [
        {key: group[0].settings[key] for key in names if key in group[0].settings} for group in members.values()
    ]
    # Where nothing differs, the one group is named by its method.
    names_of_groups = labels(settings, names) if names else [shown(runs[0].settings.get(METHOD, "all runs"))]
    found = zip(names_of_groups, settings, members.values(), strict=True)
    return [Group(label, values, group) for label, values, group in found]


def _without_repeats(runs: Sequence[Run]) -> tuple[list[Run], list[tuple[Run, Run]]]:
    """The runs without those that another one repeats or goes on from, and those, each with the other one."""
    kept, again = [], []
    same = _by(runs, _draw)
    for run in runs:
        others = same[_draw(run)]
        better = next((other for other in reversed(others) if _replaces(other, run, others)), None)
        if better is None:
            kept.append(run)
        else:
            again.append((run, better))
    return kept, again


def _draw(run: Run) -> Hashable:
    """Everything that determines a run's numbers, round by round."""
    return frozenset((key, value) for key, value in run.settings.items() if key != MAX_ROUNDS), tuple(run.seeds.items())


def _replaces(other: Run, run: Run, order: Sequence[Run]) -> bool:
    """Return whether a run has all that another one has, which has the same settings and seeds.

    Runs with equal settings are equal, round by round; so they are no two draws. A run with more ``max_rounds`` is one
    of its own, unless it was resumed.
    """
    is_later = order.index(other) > order.index(run)
    is_same = other.max_rounds == run.max_rounds or (other.resumed and is_later)
    return is_same and (other.rounds, is_later) > (run.rounds, not is_later) and bool(run.seeds or run.settings)


def _by(runs: Sequence[Run], key: Callable[[Run], Hashable]) -> dict[Hashable, list[Run]]:
    found: dict[Hashable, list[Run]] = {}
    for run in runs:
        found.setdefault(key(run), []).append(run)
    return found
