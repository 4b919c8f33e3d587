"""Run folders: finding them, and reading what is in them."""

from __future__ import annotations

import glob
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from lfl.report.settings import MAX_ROUNDS, METHOD, Setting, flatten, is_seed, of_description
from lfl.reporting.formats import DOWN, UP
from lfl.storage.folders import CONFIG_FILE, HPARAMS_FILE, METRICS_FILE, TIMING_FILE

SECONDS, TRAINING = "time/round_s", "time/train_s"
_STOPPING = ("EarlyStopping", "Timer")  # callbacks by which a run may end before its last round
# The parser in C is ten times as fast, where PyYAML was built with it.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Numbers are to be those that were written. pandas 3.1 reads them so by itself, and warns where it is asked to.
_EXACT: Any = {} if tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1) else {"float_precision": "round_trip"}


class ReportError(ValueError):
    """A report that cannot be made. The message says what is wrong, and what would be right."""


@dataclass(frozen=True)
class Run:
    """A run, as its folder tells it.

    Attributes:
        path: its folder.
        settings: its settings by dotted names, without seeds.
        seeds: its seeds by dotted names.
        metrics: each metric by round, where it was logged; those of ``timing.csv`` too.
        rounds: the last round of ``metrics.csv``; 0 for none.
        timed: the last round of ``timing.csv``; 0 for none.
        lost: how many rounds of ``timing.csv`` are not in ``metrics.csv``.
        untimed: how many rounds of ``metrics.csv`` are not in ``timing.csv``.
        resumed: whether it went on from a checkpoint.
    """

    path: Path
    settings: Mapping[str, Setting] = field(default_factory=dict)
    seeds: Mapping[str, Setting] = field(default_factory=dict)
    metrics: Mapping[str, pd.Series] = field(default_factory=dict)
    rounds: int = 0
    timed: int = 0
    lost: int = 0
    untimed: int = 0
    resumed: bool = False

    @property
    def max_rounds(self) -> int | None:
        """The rounds that it was to make; None where no config tells."""
        found = self.settings.get(MAX_ROUNDS)
        return found if isinstance(found, int) else None

    @property
    def is_damaged(self) -> bool:
        """True where rounds are lost: a round's metrics are written before its times."""
        return self.lost > 0

    @property
    def is_timed(self) -> bool:
        """True where the time of every round is known; that of a run's last one may be still to be written."""
        return self.untimed <= (0 if self.is_finished or self.is_damaged else 1)

    @property
    def is_finished(self) -> bool:
        """True where it has all its rounds, or a callback that may have ended it earlier."""
        if self.is_damaged:
            return False
        may_stop = any(name in str(self.settings.get(METHOD, "")) for name in _STOPPING)
        return self.rounds > 0 and (self.max_rounds is None or self.rounds >= self.max_rounds or may_stop)

    @property
    def state(self) -> str:
        """One word: ``finished``, ``unfinished`` or ``damaged``."""
        return "damaged" if self.is_damaged else "finished" if self.is_finished else "unfinished"

    @property
    def seed(self) -> str:
        """Its seeds; one number where they are equal."""
        values = list(dict.fromkeys(str(value) for value in self.seeds.values() if value is not None))
        return "/".join(values)

    @cached_property
    def axes(self) -> dict[str, pd.Series]:
        """The axes against which curves may be drawn, by the names of ``AXES``: each since the start, by round."""
        found = {}
        up, down = self.metrics.get(UP), self.metrics.get(DOWN)
        if up is not None and down is not None:
            found = {"mb": (up + down) / 1e6, "mb_up": up / 1e6, "mb_down": down / 1e6}
        clock = next((name for name in sorted(self.metrics) if name.startswith("sim/")), None)
        if clock is not None:
            found["sim"] = self.metrics[clock]
        if SECONDS in self.metrics and self.is_timed:
            found["seconds"] = total(self.metrics[SECONDS])
        return found

    def at(self, axis: str, rounds: Sequence[int] | pd.Index) -> pd.Series | None:
        """An axis at some rounds, or at the last ones logged before them; None where the run has no such axis."""
        if axis == "round":
            return pd.Series(list(rounds), index=list(rounds), dtype=float)
        series = self.axes.get(axis)
        return None if series is None else series.reindex(rounds, method="ffill")


def total(series: pd.Series) -> pd.Series:
    """Sums since the start of what was logged for single rounds; a logged round stands for those since the last one.

    >>> total(pd.Series([1.0, 3.0], index=[1, 3])).tolist()
    [1.0, 7.0]
    """
    return (series * series.index.to_series().diff().fillna(series.index[0] if len(series) else 0)).cumsum()


@dataclass(frozen=True)
class Found:
    """The runs and evaluations in some paths, and the paths that have no run.

    Attributes:
        runs: run folders, each once.
        empty: the paths that have none.
        evaluations: folders that ``lfl validate``, ``test`` and ``predict`` left, which are no runs.
    """

    runs: Sequence[Path]
    empty: Sequence[str]
    evaluations: Sequence[Path]


def find(paths: Iterable[str | Path]) -> Found:
    """The run folders at and below some paths, which may be patterns.

    Raises:
        ReportError: there is no run at all.
    """
    runs: dict[Path, None] = {}
    evaluations: dict[Path, None] = {}
    empty = []
    given = [str(path) for path in paths]
    for path in given:
        matches = [path] if Path(path).exists() else sorted(glob.glob(path, recursive=True), key=_natural)
        folders = [folder for match in matches for folder in _below(Path(match))]
        others = [folder for folder in folders if _is_evaluation(folder)]
        found = [folder for folder in folders if folder not in others]
        if not found:
            empty.append(path)
        runs |= dict.fromkeys(found)
        evaluations |= dict.fromkeys(others)
    if not runs:
        looked = ", ".join(f"{path!r}{'' if glob.glob(path) else ' (does not exist)'}" for path in given[:5])
        more = f" and {len(given) - 5} more" if len(given) > 5 else ""
        raise ReportError(
            f"no runs in {looked}{more}: a run's folder, as `lfl fit` leaves it, has a {METRICS_FILE} and a "
            f"{CONFIG_FILE}."
        )
    return Found(list(runs), empty, list(evaluations))


def read(path: Path) -> Run:
    """Read a run's folder.

    Raises:
        ReportError: a file in it is damaged.
    """
    config = _read_config(path / CONFIG_FILE) or of_description(_read_config(path / HPARAMS_FILE))
    settings = flatten(config)
    if not config:
        settings = {"folder": path.name}  # nothing else tells it from others
    timing = read_metrics(path / TIMING_FILE)  # first: a run that is writing now must not look damaged
    metrics = read_metrics(path / METRICS_FILE)
    logged, timed = _rounds(metrics), _rounds(timing)
    return Run(
        path,
        {key: value for key, value in settings.items() if not is_seed(key)},
        {key: value for key, value in settings.items() if is_seed(key)},
        {**metrics, **timing},
        max(logged, default=0),
        max(timed, default=0),
        len(timed - logged),
        len(logged - timed),
        config.get("ckpt_path") is not None,
    )


def read_metrics(path: Path) -> dict[str, pd.Series]:
    """The metrics of a CSV file of a run by name, each by round where it was logged, without an incomplete last line.

    Raises:
        ReportError: the file is damaged.
    """
    content = path.read_bytes() if path.exists() else b""
    content = re.sub(rb" +\n", b"\n", content[: content.rfind(b"\n") + 1])  # its run may be writing
    body = content.partition(b"\n")[2]
    if not body.strip():
        return {}
    try:
        frame = pd.read_csv(io.BytesIO(content), index_col="round", dtype=float, **_EXACT)
        frame.index = frame.index.astype(int)
        if not (frame.index.is_unique and frame.index.is_monotonic_increasing):
            raise ValueError("its rounds are not in order")
        logged = frame.notna()
        if b"nan" in body:  # which was logged, while an empty cell was not
            text = pd.read_csv(io.BytesIO(content), index_col="round", dtype=str, keep_default_na=False)
            logged = (text != "").set_axis(frame.index)
    except (ValueError, KeyError) as error:
        raise ReportError(f"{path} is damaged, or no file of `lfl fit`: {str(error).splitlines()[0]}") from error
    mask, index = logged.to_numpy(), frame.index.to_numpy()
    values = frame.to_numpy()
    return {
        str(name): pd.Series(values[mask[:, column], column], index=index[mask[:, column]])
        for column, name in enumerate(frame.columns)
        if mask[:, column].any()
    }


def names_of(paths: Sequence[Path]) -> list[str]:
    """Short names of folders: what is behind the parts that all have in common."""
    parts = [path.absolute().parts for path in paths]
    common = 0
    while len({part[: common + 1] for part in parts}) == 1 and all(len(part) > common + 1 for part in parts):
        common += 1
    return ["/".join(part[common:]) for part in parts]


def _rounds(metrics: Mapping[str, pd.Series]) -> set[int]:
    return {number for series in metrics.values() for number in series.index.tolist()}


def _read_config(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        found = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:
        raise ReportError(f"{path} is no YAML: {str(error).splitlines()[0]}") from error
    return found if isinstance(found, dict) else {}


def _below(path: Path) -> Iterator[Path]:
    """The run folders at and below a folder, in natural order."""
    if (path / METRICS_FILE).is_file():
        yield path
        return
    folders = [entry for entry in path.iterdir() if entry.is_dir()] if path.is_dir() else []
    found = [run for entry in sorted(folders, key=_natural) for run in _below(entry)]
    if not found and _is_config_of_run(path / CONFIG_FILE):
        found = [path]  # it ended before its first round did
    yield from found


def _is_evaluation(path: Path) -> bool:
    """Return whether a folder is that of an evaluation or of predictions: only rounds of training count bytes."""
    if (path / "predictions.pt").exists():
        return True
    if not (path / METRICS_FILE).is_file() or (path / TIMING_FILE).exists():
        return False
    with (path / METRICS_FILE).open(encoding="utf-8", errors="replace") as file:
        header = file.readline().strip()
    return bool(header) and UP not in header.split(",")


def _is_config_of_run(path: Path) -> bool:
    return path.is_file() and re.search(r"^trainer:", path.read_text(encoding="utf-8"), re.MULTILINE) is not None


def _natural(path: str | Path) -> list[tuple[str, float]]:
    """run_2 before run_10, and lr=0.05 before lr=0.1."""
    return [(text, float(number or 0)) for text, number in re.findall(r"(\D*)(\d+(?:\.\d+)?)?", str(path))]
