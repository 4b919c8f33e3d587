"""The command ``lfl sweep``."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout

from lfl.plain_parser import PlainParser, near
from lfl.sweep.folder import (
    LOG,
    RESULTS,
    SWEEP,
    Sweep,
    SweepError,
    check_same,
    existing_place,
    finished_folder,
    place_of,
    write_results,
)
from lfl.sweep.grid import GridError, PlannedRun, combine, count, read_axes
from lfl.sweep.jobs import Checked, Outcome, check, fit, prepare, prepare_data
from lfl.sweep.table import RunView, SweepDisplay
from lfl.sweep.wandb_file import write_files
from lfl.sweep.workers import Failure, WorkerPool

_ROOT = Path("sweeps")
_TICK = 0.5  # seconds between two drawings of the table
_MOST_RUNS = 100_000  # more are a slip of the pen
_TAKEN = {
    "trainer.default_root_dir": "the runs lie in the sweep's folder, which `--output` names",
    "print_config": "`lfl fit --print_config` prints the config of one run",
}
_DESCRIPTION = """\
Run `lfl fit` with every combination of the values of its settings.

A setting may have several values. Commas and spaces separate them; a comma within brackets or quotes belongs to its
value: `--optimizer.lr 0.1,0.2` and `--optimizer.lr 0.1 0.2` are two values, `--model.hidden [64,32]` is one, and
`--model.hidden [64,32],[8]` are two. The first setting with several values changes slowest.

`--config a.yaml b.yaml` (or a.yaml,b.yaml) are alternatives; `--config a.yaml --config more.yaml` still means that the
second is laid over the first.

The runs are in one folder, by names that say what differs. The same command again goes on where it was interrupted."""
_EPILOG = """\
A grid file holds settings with lists of values, and groups of variants whose settings change together; it stands in the
place of `--grid`:

  optimizer.lr: [0.05, 0.1]
  method:
    fedavg: {config: configs/fedavg.yaml}
    fedprox: {config: configs/fedprox.yaml, trainer.callbacks.mu: 0.1}

Everything else is as in `lfl fit --help`."""


@dataclass(frozen=True)
class _Options:
    """The sweep's own options."""

    jobs: int
    output: Path | None
    resume: Path | None
    print: bool
    wandb: Path | None


def main(words: Sequence[str]) -> None:
    """Run ``lfl sweep`` with the words after it; ends the process with an exit code unless all runs finish.

    The exit codes: 1 if a run failed, 2 for wrong settings or files, 130 and 143 for SIGINT and SIGTERM.
    """
    parser = _parser()
    known, rest = parser.parse_known_args(words)
    options = _Options(**vars(known))
    if options.jobs < 1:
        parser.error(f"`--jobs {options.jobs}` must be a whole number of at least 1.")
    try:
        code = _resume(options, rest) if options.resume is not None else _sweep(options, rest, words)
    except (GridError, SweepError, OSError) as error:
        parser.error(str(error))
    if code:
        sys.exit(code)


def _sweep(options: _Options, rest: Sequence[str], words: Sequence[str]) -> int:
    axes = read_axes(rest)
    for axis in axes:
        for setting, value in (pair for choice in axis.choices for pair in choice.settings):
            if setting in _TAKEN:
                raise GridError(f"`--{setting}` is not for sweeps: {_TAKEN[setting]}.")
            if value is None:
                raise GridError(f"`--{setting}` has no value.")
    if count(axes) > _MOST_RUNS:
        raise GridError(f"These are {count(axes):,} runs: at most {_MOST_RUNS:,} are made.")
    runs = combine(axes)
    with _pool(options.jobs) as pool:
        checked = _check(pool, runs)
        if options.wandb is not None:
            for file in write_files(options.wandb, axes, all(c.logs_to_wandb for c in checked)):
                print(f"wandb sweep {shlex.quote(str(file))}")
            return 0
        sweep = Sweep(tuple(words), tuple(runs), tuple(c.digest for c in checked))
        if options.print:
            # Where there is no sweep there may be runs: those of the same commands, printed and started before.
            if options.output is not None and (options.output / SWEEP).exists():
                check_same(sweep, options.output)
            for run in runs:
                print(shlex.join(["lfl", "fit", *run.arguments, *_own_folder(options.output, run)]))
            return 0
        _check_data(pool, sweep, checked, existing_place(sweep, options.output, _ROOT))
        return _make(pool, options, sweep, checked, place_of(sweep, options.output, _ROOT))


def _resume(options: _Options, rest: Sequence[str]) -> int:
    folder = options.resume
    assert folder is not None
    if rest or options.output or options.print or options.wandb:
        raise GridError(f"`--resume` takes all settings from {folder / SWEEP}: beside it there can only be `--jobs`.")
    recorded = Sweep.read(folder)
    with _pool(options.jobs) as pool:
        checked = _check(pool, recorded.runs)
        sweep = replace(recorded, digests=tuple(c.digest for c in checked))
        place = place_of(sweep, folder, _ROOT)
        _check_data(pool, sweep, checked, place)
        return _make(pool, options, sweep, checked, place)


def _check(pool: WorkerPool, runs: Sequence[PlannedRun]) -> list[Checked]:
    """Check the settings of all runs, before any begins.

    Raises:
        GridError: the settings of a run are wrong, or two runs are the same.
    """
    if sys.stderr.isatty():
        print(f"Checking the settings of {len(runs)} runs ...", file=sys.stderr)
    found: dict[int, Checked] = {}
    for number, result in pool.results([(check, (run.arguments,)) for run in runs]):
        if isinstance(result, Failure):
            message = result.message.removeprefix("ValueError: ")
            raise GridError(_own_option(message) or f"{runs[number].name}: {message}")
        found[number] = result
    checked = [found[number] for number in range(len(runs))]
    first: dict[str, str] = {}
    for run, settings in zip(runs, checked, strict=True):
        if (other := first.setdefault(settings.digest, run.name)) != run.name:
            raise GridError(
                f"{other} and {run.name} are the same settings: what differs is overridden by what comes later, "
                "such as a config."
            )
    return checked


def _own_option(message: str) -> str:
    """Say which option of the sweep may be meant, where `lfl fit` does not know one; empty where none is near."""
    unknown = re.match(r"unknown argument `(--\w+)`", message)
    hint = near(unknown[1], _parser().names) if unknown else ""
    return f"{unknown[0]}{hint}" if unknown and hint else ""


def _check_data(pool: WorkerPool, sweep: Sweep, checked: Sequence[Checked], place: Path | None) -> None:
    """Check that the data is there of all runs that are not finished, once for those that have the same.

    Raises:
        GridError: it is not.
    """
    wanted: dict[str, PlannedRun] = {}
    for run, settings in zip(sweep.runs, checked, strict=True):
        if place is None or finished_folder(place / run.name) is None:
            wanted.setdefault(settings.data, run)
    runs = list(wanted.values())
    for number, result in pool.results([(prepare_data, (run.arguments,)) for run in runs]):
        if isinstance(result, Failure):
            raise GridError(f"{runs[number].name}: {result.message.removeprefix('ValueError: ')}")


def _make(pool: WorkerPool, options: _Options, sweep: Sweep, checked: Sequence[Checked], folder: Path) -> int:
    """Make the runs that are not finished; returns the exit code."""
    try:
        with FileLock(folder / ".lock", timeout=0):
            sweep.write(folder)
            views = [
                RunView(run.name, folder / run.name, c.max_rounds) for run, c in zip(sweep.runs, checked, strict=True)
            ]
            for view in views:
                if finished_folder(view.folder) is not None:
                    view.state = "finished"
                    view.look()
            return _run(pool, options, sweep, views, folder)
    except Timeout as error:
        raise SweepError(f"Another `lfl sweep` is at work in {folder}.") from error


def _run(pool: WorkerPool, options: _Options, sweep: Sweep, views: Sequence[RunView], folder: Path) -> int:
    todo = [(run, view) for run, view in zip(sweep.runs, views, strict=True) if view.state != "finished"]
    kept = len(views) - len(todo)
    print(f"{len(views)} runs in {folder}" + (f", of which {kept} are finished" if kept else ""), flush=True)
    failures: list[tuple[RunView, str]] = []
    with _signals() as received, SweepDisplay(views, options.jobs, sys.stdout) as display:
        for event in pool.events([(fit, (run.arguments, view.folder)) for run, view in todo], _TICK):
            if event is None:
                display.draw()
            elif not event.has_ended:
                display.begun(todo[event.number][1])
            else:
                view = todo[event.number][1]
                outcome = _outcome(event.result, is_stopped=bool(received))
                if outcome.state == "failed":
                    failures.append((view, outcome.message))
                display.ended(view, outcome.state, outcome.message)
                write_results(folder, sweep, {v.name: v.state for v in views})
            _obey(received, pool, display)
    write_results(folder, sweep, {view.name: view.state for view in views})
    return _report(views, failures, folder, received[0] if received else 0)


def _outcome(result: Outcome | Failure, is_stopped: bool) -> Outcome:
    """The end of a run, whose process may be lost."""
    if isinstance(result, Outcome):
        return result
    return Outcome("interrupted") if is_stopped else Outcome("failed", result.message)


def _report(views: Sequence[RunView], failures: Sequence[tuple[RunView, str]], folder: Path, received: int) -> int:
    """Say how the sweep has ended; returns the exit code."""
    finished = sum(view.state == "finished" for view in views)
    again = f"lfl sweep --resume {shlex.quote(str(folder))}"
    if failures:
        print(f"{len(failures)} of {len(views)} runs failed:")
    for view, message in failures:
        print(f"  {view.name}: {message} ({view.folder / LOG})")
    if received:
        print(f"Interrupted: {finished} of {len(views)} runs are finished. To go on: {again}")
        return 128 + received
    if failures:
        print(f"{finished} of {len(views)} runs are finished: {folder / RESULTS}. To try the others again: {again}")
        return 1
    print(f"All {len(views)} runs are finished: {folder / RESULTS}")
    return 0


@contextmanager
def _pool(jobs: int) -> Iterator[WorkerPool]:
    pool = WorkerPool(jobs, prepare)
    try:
        yield pool
    finally:
        pool.close()


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Note SIGINT and SIGTERM instead of being ended by them."""
    received: list[int] = []
    before = {
        number: signal.signal(number, lambda number, frame: received.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _obey(received: list[int], pool: WorkerPool, display: SweepDisplay) -> None:
    """Stop after a first signal, and at once after a second."""
    if received and not pool.is_stopping:
        display.message("Stopping after the rounds that run, with checkpoints; once more to stop at once.")
        pool.stop(received[0])
    elif len(received) > 1:
        pool.kill()


def _own_folder(output: Path | None, run: PlannedRun) -> list[str]:
    return [] if output is None else [f"--trainer.default_root_dir={os.path.join(output, run.name)}"]


def _parser() -> PlainParser:
    parser = PlainParser(
        prog="lfl sweep",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="lfl sweep --config FILE [FILE ...] [--SETTING VALUE[,VALUE ...] ...] [--grid FILE] [options]\n"
        "       lfl sweep --resume FOLDER [--jobs N]",
    )
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="runs at a time, each in a process (default 1)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="folder of the sweep; by default the newest one in sweeps/ of the same runs, or a new one",
    )
    parser.add_argument("--resume", type=Path, metavar="FOLDER", help="go on with the sweep in this folder")
    parser.add_argument(
        "--print",
        action="store_true",
        help="print the commands `lfl fit ...`, one a line, instead of running them; with "
        "`--output`, each with a folder of its own there",
    )
    parser.add_argument(
        "--wandb", type=Path, metavar="FILE", help="write the file of a W&B sweep over the same settings instead"
    )
    return parser
