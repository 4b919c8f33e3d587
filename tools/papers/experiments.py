"""Independent runs of ``lfl fit`` by a list: in several processes, each with a small result file that is kept."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

import torch

from lfl.hooks import NonFiniteUpdateError
from lfl.sweep.workers import Failure, WorkerPool
from tools.papers.runs import RunFolder, fit, newest

Series = dict[int, float]
K = TypeVar("K")


@dataclass(frozen=True)
class Run:
    """A run of ``lfl fit``: all that determines its numbers.

    Attributes:
        config: a file in the folder of configs.
        rounds: at most.
        seed: of the problem and of every draw.
        metrics: what is kept of it.
        overrides: what is changed in the file, as on the command line.
    """

    config: str
    rounds: int
    seed: int
    metrics: tuple[str, ...]
    overrides: tuple[tuple[str, object], ...] = ()

    @property
    def settings(self) -> dict[str, object]:
        """All overrides of the config."""
        own = {"trainer.max_rounds": self.rounds, "seed_everything": self.seed, "data.init_args.seed": self.seed}
        return {"trainer.accelerator": "cpu", **dict(self.overrides), **own, "trainer.checkpoint": "null"}

    def name(self, configs: Path) -> str:
        """The config's name with a hash of its content, the settings and the metrics."""
        content = [(configs / self.config).read_text(encoding="utf-8"), self.settings, self.metrics]
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
        return f"{Path(self.config).stem}_{digest}"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run.

    Attributes:
        last_round: the last one it finished.
        seconds: it took.
        failure: the message of the error that ended it; empty for none.
        series: the metrics by round, where all of them were logged.
    """

    last_round: int
    seconds: float
    failure: str = ""
    series: dict[str, Series] = field(default_factory=dict)

    def write(self, path: Path, run: Run) -> None:
        """Write the outcome as JSON, with the run's settings."""
        beside = path.with_suffix(f".{os.getpid()}")
        content = {"config": run.config, "settings": run.settings, **asdict(self)}
        beside.write_text(json.dumps(content) + "\n", encoding="utf-8")
        beside.replace(path)

    @classmethod
    def read(cls, path: Path) -> Outcome:
        """Read what ``write`` wrote."""
        content = json.loads(path.read_text(encoding="utf-8"))
        series = {name: {int(n): value for n, value in rows.items()} for name, rows in content["series"].items()}
        return cls(content["last_round"], content["seconds"], content["failure"], series)


class Laboratory:
    """Makes runs, or finds what they gave before.

    Args:
        configs: the folder of the runs' configs.
        output: results go to ``results/`` in it.
        jobs: processes, of one torch thread each; 1 for this process.
        reuse: take the result file of a run with the same settings as it is.
        tell: is told about every run that ends.
    """

    def __init__(
        self, configs: Path, output: Path, jobs: int = 1, reuse: bool = True, tell: Callable[[str], None] = print
    ) -> None:
        self.configs, self.output, self.jobs, self.tell = configs, output, jobs, tell
        self._reuse = reuse
        self._made: dict[Run, Outcome] = {}
        self._pool: WorkerPool | None = None  # that of `lfl sweep`, started when it is needed

    @property
    def _results(self) -> Path:
        return self.output / "results"

    def folder(self, run: Run) -> Path:
        """The folder that a run's own folder is in."""
        return self._results / run.name(self.configs)

    def close(self) -> None:
        """End the processes, and the runs that they are in; those that are repeated begin anew."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def outcomes(self, runs: Iterable[Run]) -> dict[Run, Outcome]:
        """Make some runs, equal ones once; returns their outcomes."""
        wanted = list(dict.fromkeys(runs))
        self._results.mkdir(parents=True, exist_ok=True)
        missing = []
        for run in wanted:
            path = self.folder(run).with_suffix(".json")
            if self._reuse and run not in self._made and path.exists():
                self._made[run] = Outcome.read(path)
            if run not in self._made:
                missing.append((run, path))
        for number, (run, outcome) in enumerate(self._make(missing), 1):
            self._made[run] = outcome
            ended = f", ended by: {outcome.failure}" if outcome.failure else ""
            spent = f"{outcome.last_round} rounds, {outcome.seconds:.0f} s"
            self.tell(f"[{number}/{len(missing)}] {describe(run)}: {spent}{ended}")
        return {run: self._made[run] for run in wanted}

    def by_group(self, runs: Mapping[K, Sequence[Run]]) -> dict[K, list[Outcome]]:
        """Make groups of runs; returns their outcomes, by group."""
        found = self.outcomes(run for group in runs.values() for run in group)
        return {key: [found[run] for run in group] for key, group in runs.items()}

    def _make(self, missing: list[tuple[Run, Path]]) -> Iterator[tuple[Run, Outcome]]:
        if self.jobs == 1 or not missing:
            for run, path in missing:
                yield run, make(run, self.configs, path)
            return
        if self._pool is None:
            self._pool = WorkerPool(self.jobs, one_thread)
        for number, result in self._pool.results([(make, (run, self.configs, path)) for run, path in missing]):
            run, _ = missing[number]
            if isinstance(result, Failure):
                raise RuntimeError(f"{describe(run)}: {result.message}")
            yield run, result


def extent(options: argparse.Namespace, rounds: int, seeds: int, quick_rounds: int) -> tuple[int, int]:
    """Rounds of every run, and the number of seeds: what the options say, else those of the results, or of a look."""
    return options.rounds or (quick_rounds if options.quick else rounds), seeds_of(options, seeds)


def seeds_of(options: argparse.Namespace, seeds: int, quick: int = 1) -> int:
    """The number of seeds: what the options say, else that of the results, or of a look."""
    asked: int | None = options.seeds
    return asked or (quick if options.quick else seeds)


def add_options(parser: argparse.ArgumentParser, tool: str, configs: Path) -> None:
    """Add the options of every command that makes such runs.

    Args:
        parser: of the command.
        tool: its name.
        configs: the folder of its runs' configs, by default.
    """
    parser.add_argument("--seeds", type=int, help="runs of every method; by default as many as the results have")
    parser.add_argument("--rounds", type=int, help="of every run, at most; by default as many as the results have")
    parser.add_argument("--quick", action="store_true", help="few rounds and seeds: everything once, no results")
    parser.add_argument("--jobs", type=int, default=1, help="processes, of one thread each")
    parser.add_argument("--reuse", action=argparse.BooleanOptionalAction, default=True, help="take earlier results")
    parser.add_argument("--keep", action="store_true", help="leave the numbers where docs/claims.md is made from them")
    parser.add_argument("--configs", type=Path, default=configs, help="folder of the runs' configs")
    add_output(parser, tool)


def add_output(parser: argparse.ArgumentParser, tool: str) -> None:
    """Add the option that names a command's folder, which ``folder_of`` reads beside ``--quick``."""
    parser.add_argument("--output", type=Path, help=f"runs/{tool}, or runs/{tool}_quick")
    parser.set_defaults(tool=tool)


def folder_of(options: argparse.Namespace) -> Path:
    """The folder of a command's results; a look has one of its own, and writes over nothing."""
    return options.output or Path("runs") / (f"{options.tool}_quick" if options.quick else options.tool)


@contextmanager
def opened(options: argparse.Namespace) -> Iterator[Laboratory]:
    """Open a laboratory by a command's options; it is closed at the end of the block."""
    torch.set_num_threads(1)
    laboratory = Laboratory(options.configs, folder_of(options), options.jobs, options.reuse, _tell)
    try:
        yield laboratory
    finally:
        laboratory.close()


def _tell(said: str) -> None:
    print(said, file=sys.stderr, flush=True)


def one_thread(size: int, place: int) -> None:
    """Prepare a process for runs of one thread, whatever their number and its place are."""
    del size, place
    torch.set_num_threads(1)


def make(run: Run, configs: Path, path: Path) -> Outcome:
    """Make a run; its outcome is kept in ``path``, its run folder beside it, for ``lfl report``."""
    root = path.with_suffix("")
    shutil.rmtree(root, ignore_errors=True)
    started, failure = time.perf_counter(), ""
    try:
        folder = fit(configs / run.config, run.settings, root)
    except NonFiniteUpdateError as error:
        failure = str(error).partition(":")[0]
        folder = newest(root) or RunFolder(root)
    seconds = time.perf_counter() - started
    outcome = Outcome(folder.rounds, seconds, failure, common_series(folder, run.metrics))
    outcome.write(path, run)
    return outcome


def common_series(folder: RunFolder, metrics: tuple[str, ...]) -> dict[str, Series]:
    """The metrics at the rounds in which all of them were logged."""
    series = {name: folder.series(name) for name in metrics}
    rounds = [n for n in series[metrics[0]] if all(n in rows for rows in series.values())]
    return {name: {n: rows[n] for n in rounds} for name, rows in series.items()}


def describe(run: Run) -> str:
    """Describe a run in a few words."""
    changed = [f"{key.rpartition('.')[2]}={value}" for key, value in run.overrides if not key.endswith("+")]
    return " ".join([Path(run.config).stem, f"seed={run.seed}", *changed])
