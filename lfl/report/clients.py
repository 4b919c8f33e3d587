"""Metrics of single clients, as ``clients.csv`` of a run has them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lfl.report.groups import Group
from lfl.report.runs import ReportError
from lfl.reporting.formats import direction_of

CLIENTS = "clients.csv"
_FIRST = ("round", "scope", "client", "examples")


def client_values(groups: Sequence[Group], metric: str) -> tuple[str, dict[str, dict[str, np.ndarray]]]:
    """The clients' values of a metric in the last evaluation of each run, by scope and by a group's label.

    Args:
        groups: whose runs may have ``clients.csv``; clients of all of a group's seeds are put together.
        metric: the metric; where clients have none of this name, their first whose name tells what is better is taken.

    Returns:
        The metric's name, and the values; empty where no run has any.
    """
    tables = {group.label: [table for run in group.counted for table in _read(run.path / CLIENTS)] for group in groups}
    columns = list(dict.fromkeys(name for found in tables.values() for table in found for name in table.columns))
    own = [name for name in columns if name not in _FIRST]
    if not own:
        return metric, {}
    chosen = metric if metric in own else next((name for name in own if direction_of(name) > 0), own[0])
    found: dict[str, dict[str, np.ndarray]] = {}
    for label, of_runs in tables.items():
        values = pd.concat([_last(table, chosen) for table in of_runs if chosen in table] or [pd.DataFrame()])
        if len(values):
            for scope, rows in values.groupby("scope", sort=False):
                found.setdefault(str(scope), {})[label] = rows[chosen].to_numpy()
    return chosen, found


def _read(path: object) -> list[pd.DataFrame]:
    try:
        return [pd.read_csv(str(path))]
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise ReportError(f"{path} is damaged, or no file of `lfl fit`: {str(error).splitlines()[0]}") from error


def _last(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The rows of each scope's last evaluated round that have the metric."""
    is_last = table["round"] == table.groupby("scope")["round"].transform("max")
    return table[is_last & table[metric].notna()][["scope", metric]]
