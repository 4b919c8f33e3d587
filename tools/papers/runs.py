"""Runs of `lfl fit` in this process, and the metrics they logged."""

from __future__ import annotations

import signal
import warnings
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from lfl.cli import FederatedCLI
from lfl.loggers.csv import read_rows
from lfl.storage.folders import METRICS_FILE, TIMING_FILE


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run, with its metrics."""

    path: Path

    def series(self, name: str) -> dict[int, float]:
        """A metric by round, where it was logged."""
        rows = read_rows(self.path / (TIMING_FILE if name.startswith("time/") else METRICS_FILE))
        return {number: metrics[name] for number, metrics in rows if name in metrics}

    @property
    def rounds(self) -> int:
        """The last round it finished."""
        return max((number for number, _ in read_rows(self.path / METRICS_FILE)), default=0)


def fit(config: Path, overrides: dict[str, object], root: Path) -> RunFolder:
    """Run ``lfl fit --config CONFIG --KEY VALUE ...``, with its run folder in ``root`` and no progress bar.

    Raises:
        RuntimeError: the command line refused the arguments; with its message.
        KeyboardInterrupt: a signal stopped the run after a round.
    """
    arguments = ["fit", "--config", str(config), "--trainer.default_root_dir", str(root)]
    arguments += [f"--{key}={value}" for key, value in {**overrides, "trainer.enable_progress_bar": False}.items()]
    said = StringIO()
    try:
        with warnings.catch_warnings(), redirect_stderr(said):
            warnings.simplefilter("ignore")  # Lightning's own deprecations, once a run
            cli = FederatedCLI(args=arguments)
    except SystemExit as error:
        if error.code == 128 + signal.SIGTERM:
            raise KeyboardInterrupt from error
        raise RuntimeError(f"`lfl {' '.join(arguments)}` failed: {said.getvalue().strip()}") from error
    return RunFolder(Path(str(cli.trainer.log_dir)))


def newest(root: Path) -> RunFolder | None:
    """The folder of the last run in ``root``; None for none."""
    folders = sorted(root.glob("run_*"))
    return RunFolder(folders[-1]) if folders else None
