"""Runs as a data frame."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from lfl.report.groups import Comparison


def load(runs: str | Path | Sequence[str | Path]) -> pd.DataFrame:
    """Read runs into a tidy data frame: a row for each metric of each round of each run.

    Columns are ``run`` (its folder), ``group`` (a label for runs that differ in their seeds alone), ``seed``, ``state``
    (``finished``; ``unfinished``, where rounds are to come; ``damaged``, where rounds were lost), one for each setting
    that differs between the runs, ``round``, ``metric`` and ``value``. Measured times, of ``timing.csv``, are metrics
    too. Runs without any round, and runs that another one repeats, are left out, as in a report.

    Args:
        runs: run folders, folders with runs at any depth below, or patterns such as ``runs/*``.

    Raises:
        ValueError: there are no runs, or none has metrics.
    """
    from lfl.report.groups import compare

    return tidy(compare([runs] if isinstance(runs, str | Path) else list(runs)))


def tidy(comparison: Comparison, metrics: Sequence[str] | None = None) -> pd.DataFrame:
    """A row for each value of some metrics, or of all, as ``load`` describes them."""
    import numpy as np
    import pandas as pd

    runs = [(group, run) for group in comparison.groups for run in group.runs]
    known = list(dict.fromkeys(name for _, run in runs for name in run.metrics))
    names = [name for name in known if metrics is None or name in metrics]
    pieces = [
        (number, names.index(name), run.metrics[name])
        for number, (_, run) in enumerate(runs)
        for name in names
        if name in run.metrics
    ]
    lengths = [len(series) for _, _, series in pieces]
    which = np.repeat([number for number, _, _ in pieces], lengths).astype(int)

    def of_run(values: list[str]) -> pd.Categorical:
        """A column that has one value in all rows of a run."""
        kinds = list(dict.fromkeys(values))
        codes = np.array([kinds.index(value) for value in values], dtype=int)
        return pd.Categorical.from_codes(codes[which], kinds)

    columns: dict[str, object] = {
        "run": of_run([str(run.path) for _, run in runs]),
        "group": of_run([group.label for group, _ in runs]),
        "seed": of_run([run.seed for _, run in runs]),
        "state": of_run([run.state for _, run in runs]),
    }
    for key, name in comparison.names.items():
        columns[name] = pd.Series([group.settings.get(key) for group, _ in runs]).take(which).to_numpy()
    columns["round"] = np.concatenate([series.index.to_numpy() for _, _, series in pieces])
    columns["metric"] = pd.Categorical.from_codes(np.repeat([metric for _, metric, _ in pieces], lengths), names)
    columns["value"] = np.concatenate([series.to_numpy() for _, _, series in pieces])
    return pd.DataFrame(columns)
