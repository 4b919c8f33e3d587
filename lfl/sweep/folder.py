"""The folder of a sweep: what it is, which runs it has, and how far they have come."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lfl.storage.files import write_file
from lfl.storage.folders import METRICS_FILE, TIMING_FILE, check_writable, new_run_folder
from lfl.sweep.grid import PlannedRun
from lfl.version import __version__

SWEEP = "sweep.yaml"
RESULTS = "results.csv"
FINISHED = "finished.json"
LOG = "log.txt"


class SweepError(ValueError):
    """A folder that a sweep cannot use; the message is one line."""


@dataclass(frozen=True)
class Sweep:
    """A sweep, as its folder records it.

    Attributes:
        command: the words of ``lfl sweep`` that began it.
        runs: in order.
        digests: of all settings of each run.
    """

    command: tuple[str, ...]
    runs: tuple[PlannedRun, ...]
    digests: tuple[str, ...]

    @property
    def digest_of(self) -> dict[str, str]:
        """The digest of each run's settings, by name."""
        return {run.name: digest for run, digest in zip(self.runs, self.digests, strict=True)}

    def write(self, folder: Path) -> None:
        """Write ``sweep.yaml``."""
        runs = {
            run.name: {"values": run.values, "arguments": list(run.arguments), "digest": digest}
            for run, digest in zip(self.runs, self.digests, strict=True)
        }
        content = {"lfl": __version__, "command": list(self.command), "runs": runs}
        write_file(folder / SWEEP, yaml.safe_dump(content, sort_keys=False, width=120))

    @classmethod
    def read(cls, folder: Path) -> Sweep:
        """Read what ``write`` wrote.

        Raises:
            SweepError: the folder has no sweep.
        """
        try:
            content = yaml.safe_load((folder / SWEEP).read_text(encoding="utf-8"))
        except OSError as error:
            raise SweepError(f"{folder} is not the folder of a sweep: {folder / SWEEP} cannot be read.") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise SweepError(f"{folder / SWEEP} is damaged: {' '.join(str(error).split())}.") from error
        try:
            runs = content["runs"].items()
            planned = tuple(PlannedRun(name, run["values"], tuple(run["arguments"])) for name, run in runs)
            return cls(tuple(content["command"]), planned, tuple(run["digest"] for _, run in runs))
        except (AttributeError, KeyError, TypeError) as error:
            raise SweepError(f"{folder / SWEEP} was not written by `lfl sweep`.") from error


def place_of(sweep: Sweep, output: Path | None, root: Path) -> Path:
    """The folder in which a sweep is made, or goes on.

    Args:
        sweep: the sweep.
        output: the folder that the user asked for; None for the newest one in ``root`` with the same runs, or
            a new one.
        root: where folders of sweeps are numbered.

    Raises:
        SweepError: ``output`` has other runs, or settings have changed since.
        OSError: the folder cannot be made.
    """
    existing = existing_place(sweep, output, root)
    if output is None:
        if existing is not None:
            return existing
        check_writable(root)
        return new_run_folder(root, "sweep")
    if existing is None and output.exists() and any(output.iterdir()):
        raise SweepError(f"`--output {output}` holds something else than a sweep: name a new or an empty folder.")
    check_writable(output)
    output.mkdir(parents=True, exist_ok=True)
    return output


def existing_place(sweep: Sweep, output: Path | None, root: Path) -> Path | None:
    """The folder in which a sweep was begun; None for a new sweep. The arguments are those of ``place_of``.

    Raises:
        SweepError: ``output`` has other runs, or settings have changed since.
    """
    if output is None:
        same = [folder for folder in sorted(root.glob(f"sweep_*/{SWEEP}")) if _is_of(sweep, folder.parent)]
        return same[-1].parent if same else None
    if not (output / SWEEP).exists():
        return None
    check_same(sweep, output)
    return output


def check_same(sweep: Sweep, folder: Path) -> None:
    """Check that a sweep has all runs that its folder was begun with, with the same settings; it may have more.

    Raises:
        SweepError: it has not.
    """
    recorded = Sweep.read(folder)
    now = sweep.digest_of
    if missing := [name for name in recorded.digest_of if name not in now]:
        raise SweepError(
            f"{folder} holds another sweep, with a run {missing[0]!r} that this one has not: take another `--output`."
        )
    if changed := [name for name, digest in recorded.digest_of.items() if now[name] != digest]:
        before, after = ({run.name: run.arguments for run in of.runs}[changed[0]] for of in (recorded, sweep))
        said = _differences(before, after)
        raise SweepError(
            f"The settings of {changed[0]!r} are not those that {folder} was begun with: "
            + (said or "a config has changed since, or a default")
            + ". Put it back, or take another `--output`."
        )


def attempts(folder: Path) -> list[Path]:
    """The folders that ``lfl fit`` has made in a run's folder, in order; more than one where it went on."""
    return sorted(folder.glob("run_*"))


def write_finished(attempt: Path) -> None:
    """Write ``finished.json`` beside the folder of a run that is through: its name, and the last round it logged."""
    write_json(attempt.parent / FINISHED, {"folder": attempt.name, "round": _last_round(attempt)})


def finished_folder(folder: Path) -> Path | None:
    """The folder of a finished run's results; None for one that is not finished, or whose results are not whole."""
    finished = _read_finished(folder)
    if finished is None:
        return None
    attempt, last = finished
    return attempt if attempt.is_dir() and _last_round(attempt) >= last and not _has_lost_rounds(attempt) else None


def remove_incomplete(folder: Path) -> None:
    """Remove those results of a run that have lost rounds, so that they are made again.

    Their last checkpoint has all rounds: going on from there would not bring back those that ``metrics.csv`` lacks.
    """
    if finished_folder(folder) is not None:
        return
    finished = _read_finished(folder)
    for attempt in attempts(folder):
        if _has_lost_rounds(attempt) or (finished is not None and attempt == finished[0]):
            shutil.rmtree(attempt)
    (folder / FINISHED).unlink(missing_ok=True)


def last_metrics(attempt: Path) -> dict[str, float]:
    """The last value of each metric of a run, with ``round``; empty where nothing was logged."""
    try:
        text = (attempt / METRICS_FILE).read_text(encoding="utf-8")
    except OSError:
        return {}
    last: dict[str, float] = {}
    whole = text[: text.rfind("\n") + 1]  # a row that is being written has no end yet
    for row in csv.DictReader(whole.splitlines()):
        # A row that was written over may be padded with spaces.
        last.update({name: _number(cell.strip()) for name, cell in row.items() if name and cell and cell.strip()})
    return last


def write_results(folder: Path, sweep: Sweep, states: Mapping[str, str]) -> None:
    """Write ``results.csv``: a row for each run, with its values, its state and the last value of each metric."""
    titles = list(dict.fromkeys(title for run in sweep.runs for title in run.values))
    rows: list[dict[str, str | float]] = []
    metrics = []
    for run in sweep.runs:
        attempt = finished_folder(folder / run.name) or next(reversed(attempts(folder / run.name)), None)
        last = last_metrics(attempt) if attempt is not None else {}
        where = str(attempt.relative_to(folder)) if attempt is not None else ""
        rows.append({"run": run.name, **run.values, "state": states[run.name], "folder": where, **last})
        metrics.append(last)
    names = dict.fromkeys(["round", *(name for last in metrics for name in last)])
    text = io.StringIO()
    table = csv.DictWriter(text, ["run", *titles, "state", "folder", *names], lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_file(folder / RESULTS, text.getvalue())


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file, whole or not at all."""
    write_file(path, json.dumps(content) + "\n")


def _read_finished(folder: Path) -> tuple[Path, int] | None:
    """Read ``finished.json``; None where there is none, or where it was damaged, as by a power cut."""
    try:
        content = json.loads((folder / FINISHED).read_text(encoding="utf-8"))
        return folder / str(content["folder"]), int(content.get("round", 1))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _has_lost_rounds(attempt: Path) -> bool:
    """Return whether ``metrics.csv`` lacks rounds of ``timing.csv``, which gets a round's times after its metrics."""
    return not _rounds(attempt, TIMING_FILE) <= _rounds(attempt, METRICS_FILE)


def _last_round(attempt: Path) -> int:
    """The round of the last whole row of ``metrics.csv``; 0 where there is none."""
    return max(_rounds(attempt, METRICS_FILE), default=0)


def _rounds(attempt: Path, file: str) -> set[int]:
    """The rounds of the whole rows of a file of a run; none where it is damaged."""
    try:
        text = (attempt / file).read_text(encoding="utf-8")
        return {int(row.partition(",")[0]) for row in text[: text.rfind("\n") + 1].splitlines()[1:]}
    except (OSError, ValueError):
        return set()


def _number(cell: str) -> float:
    return int(cell) if cell.isdigit() else float(cell)


def _is_of(sweep: Sweep, folder: Path) -> bool:
    """Return whether a folder is that of the same sweep."""
    try:
        return Sweep.read(folder).digest_of == sweep.digest_of
    except SweepError:
        return False


def _differences(before: Sequence[str], after: Sequence[str]) -> str:
    """Name the settings that differ between the arguments of two runs; empty if there are none."""
    old, new = _by_setting(before), _by_setting(after)
    changed = [name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name)]
    if changed:
        values = ((name, *(of.get(name, "not given") for of in (old, new))) for name in changed)
        return ", ".join(f"`{name}` was {was} and is now {now}" for name, was, now in values)
    return "" if list(before) == list(after) else "they stand in another order"


def _by_setting(arguments: Sequence[str]) -> dict[str, str]:
    """The values of each setting, in order: a setting may be given several times, as configs are."""
    found: dict[str, str] = {}
    for word in arguments:
        name, _, value = word.partition("=")
        found[name] = f"{found[name]} {value}" if name in found else value
    return found
