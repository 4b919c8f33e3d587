"""Times of clients as they were measured, from a CSV file."""

from __future__ import annotations

import csv
import hashlib
import math
import os
from pathlib import Path

import torch
from jsonargparse.typing import NonNegativeFloat
from torch import Tensor
from typing_extensions import override

from lfl.system.speeds import ClientTimes, Speeds

_REQUIRED = ("client", "seconds")
_OPTIONAL = ("round", "up", "down")
_COLUMNS = (*_REQUIRED, *_OPTIONAL)
_LAST_ROUND = 2**31  # so that ids and rounds fit into one key of 64 bits


class TraceTimes(Speeds):
    """Clients whose times are in a file: ``T_i = seconds + down_bits_i / down + up_bits_i / up + C``.

    The file is CSV with a header, and one row for each client, or one for each change of a client's times:

    - ``client``: its id, 0 to N - 1; every client has a row, and rows of other ids are not used.
    - ``seconds``: for which it computes, at least 0.
    - ``round`` (optional): from which the row holds, until the client's next row; without it, or in a client's first
      row, from round 1.
    - ``up``, ``down`` (optional): its link's rates in bits per second; an empty cell, or no column, is a link that
      takes no time. Before bits are known, the whole model, uncompressed, is expected; see ``Links``.

    Rows may come in any order. Other columns are refused, as they may be misspelt ones. A run that is resumed needs
    the same times.

    Args:
        path: the file.
        communication: seconds of communication that every round takes besides (C).

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a cell is no such number, or a row, column or client is missing or there twice; the message names
            the file, and the line and column.
    """

    def __init__(self, path: str | os.PathLike[str], communication: NonNegativeFloat = 0.0) -> None:
        super().__init__(communication)
        self.path = os.fspath(path)
        rows = _read(Path(path))
        # One sorted key for each row, so that the row that holds is found by bisection: the last one with a key that
        # is not greater than (client, round).
        self._keys = torch.tensor([client * _LAST_ROUND + number for client, number in rows])
        self._values = torch.tensor(list(rows.values()), dtype=torch.float64)
        self._clients = {client for client, _ in rows}
        self.fingerprint = hashlib.blake2b(repr(rows).encode(), digest_size=6).hexdigest()

    @override
    def check(self, num_clients: int) -> None:
        missing = next((i for i in range(num_clients) if i not in self._clients), None)
        if missing is not None:
            raise ValueError(f"The trace {self.path!r} has no row for client {missing} of {num_clients}.")

    @override
    def compute_seconds(self, clients: Tensor, round_number: int, seed: int) -> Tensor:
        return self._held(clients, round_number)[:, 0]

    @override
    def client_times(
        self, clients: Tensor, bits: Tensor | None, round_number: int, seed: int, down_bits: Tensor | None = None
    ) -> ClientTimes:
        seconds, up, down = self._held(clients, round_number).unbind(1)
        return ClientTimes(
            self._link_seconds(down_bits, down), seconds, self._link_seconds(bits, up) + self.communication
        )

    def _held(self, clients: Tensor, round_number: int) -> Tensor:
        """The numbers that hold in a round: seconds, up, down [M, 3]."""
        places = torch.searchsorted(self._keys, clients * _LAST_ROUND + round_number, right=True)
        return self._values[places - 1]

    def _link_seconds(self, bits: Tensor | None, rates: Tensor) -> Tensor:
        if bool(rates.isinf().all()):
            return torch.zeros_like(rates)
        if bits is None and self.workload is None:
            raise ValueError(f"The trace {self.path!r} has rates, for which the size of the model must be known.")
        expected = self.workload.model_bits if self.workload is not None else 0.0
        return (torch.full_like(rates, expected) if bits is None else bits.double().cpu()) / rates


def _read(path: Path) -> dict[tuple[int, int], tuple[float, float, float]]:
    """Read seconds, up and down of each (client, round), sorted."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no trace at {str(path)!r}: CSV with the columns {','.join(_COLUMNS)}.")
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            reader = csv.reader(file)
            lines = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
        except (ValueError, csv.Error) as error:
            raise ValueError(f"The trace {str(path)!r} is no CSV, or damaged: {error}.") from error
    names = [name.lower() for name in lines[0][1]] if lines else []
    wrong = [name for name in names if name not in _COLUMNS or names.count(name) > 1]
    missing = [name for name in _REQUIRED if name not in names]
    if wrong or missing or len(lines) < 2:
        problem = f"the column {wrong[0]!r}" if wrong else f"no column {missing[0]!r}" if missing else "no rows"
        raise ValueError(
            f"The trace {str(path)!r} has {problem} (line 1): the columns are {', '.join(_REQUIRED)} and, if wanted, "
            f"{', '.join(_OPTIONAL)}, each once, and rows follow."
        )
    found: dict[tuple[int, int], tuple[float, float, float]] = {}
    first: dict[int, int] = {}
    for line, cells in lines[1:]:
        if len(cells) != len(names):
            raise ValueError(f"Line {line} of the trace {str(path)!r} has {len(cells)} cells instead of {len(names)}.")
        row = dict(zip(names, cells, strict=True))
        where = f"line {line} of the trace {str(path)!r}"
        client = int(_number(row, "client", where, least=0, below=_LAST_ROUND, whole=True))
        number = int(_number(row, "round", where, least=1, below=_LAST_ROUND, whole=True)) if "round" in row else 1
        if (client, number) in found:
            raise ValueError(f"Client {client} has a second row for round {number} in {where}, column 'client'.")
        # No rate, and a rate without end, are the same: 0 seconds.
        up, down = (_number(row, name, where, above=0) if row.get(name) else math.inf for name in ("up", "down"))
        found[client, number] = (_number(row, "seconds", where, least=0), up, down)
        first[client] = min(number, first.get(client, number))
    # A client's first row holds from round 1 on.
    return dict(sorted(((i, 1 if number == first[i] else number), row) for (i, number), row in found.items()))


def _number(
    row: dict[str, str],
    column: str,
    where: str,
    least: float | None = None,
    above: float | None = None,
    below: float = math.inf,
    whole: bool = False,
) -> float:
    """The finite number in a cell; raises ValueError with the line and the column."""
    text = row[column]
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    is_right = math.isfinite(value) and (least is None or value >= least) and (above is None or value > above)
    is_right = is_right and value < below
    if is_right and not (whole and not value.is_integer()):
        return value
    kind = "a whole number" if whole else "a number"
    bound = f"of at least {least:g}" if least is not None else f"greater than {above:g}"
    bound += f" and below {below:.0f}" if math.isfinite(below) else ""
    raise ValueError(f"{text!r} in {where}, column {column!r}, must be {kind} {bound}.")
