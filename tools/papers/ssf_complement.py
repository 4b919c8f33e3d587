"""SSF that keeps nothing of its controls outside of the round's subspace, beside SSF (section 5.2.2 of its paper).

The paper explains Table 3 by the residual dual information that SSF keeps in the orthogonal complement. Without it the
method is SSF with c and all c_i cut to the subspace whenever that changes, as FedSub's dual variables are: what a round
has found in its subspace is projected onto that of the next one, and the rest is lost. A projection is linear, so that
c stays the mean of the c_i, and the optimum would still be a fixed point if the controls could come to it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from typing_extensions import override

from lfl.callbacks import SSF, FederatedCallback
from lfl.federation import Federation
from lfl.round import Round
from lfl.subspace import Basis
from tools.papers.experiments import Laboratory
from tools.papers.findings import Findings
from tools.papers.kept import Number
from tools.papers.ssf import WHOLE_BATCHES, ErrorTable, Method, Place
from tools.table import Table

_SLOT = "ssf/control"


class CutControls(FederatedCallback):
    """Cuts c and the c_i of all clients to the round's subspace; stands behind ``SSF``.

    At the round's end: in the round itself only their components in the subspace count.
    """

    @override
    def check_stack(self, stack: list[FederatedCallback]) -> None:
        (self._ssf,) = (callback for callback in stack if isinstance(callback, SSF))

    @override
    def on_run_start(self, federation: Federation) -> None:
        self._store, self._clients = federation.store, torch.arange(federation.num_clients)

    @override
    def on_server_step(self, round: Round) -> None:
        assert round.basis is not None
        self._ssf.control = _cut(self._ssf.control, round.basis)
        self._store.scatter(_SLOT, self._clients, _cut(self._store.gather(_SLOT, self._clients), round.basis))


def _cut(vectors: Tensor, basis: Basis) -> Tensor:
    return basis.lift(basis.project(vectors))


@dataclass(frozen=True)
class CutMethod(Method):
    """SSF with ``CutControls``."""

    @override
    def __str__(self) -> str:
        return f"{super().__str__()}, controls cut"

    @override
    def overrides(self, rank: int) -> list[tuple[str, object]]:
        return [*super().overrides(rank), ("trainer.callbacks+", "tools.papers.ssf_complement.CutControls")]


@dataclass(frozen=True)
class Parts:
    """Tables of errors that are one study.

    Attributes:
        title: of the study.
        tables: by what their settings have more in their names than places; "" for nothing.
    """

    title: str
    tables: Mapping[str, ErrorTable]

    def reproduce(self, laboratory: Laboratory, options: argparse.Namespace) -> Findings:
        """Make the runs of all tables; give one table, all numbers, and the figures."""
        joined = Table(f"{self.title}: relative error", ["method", "het", "r", "error", "over seeds"])
        numbers: list[Number] = []
        figures: dict[str, Callable[[Path], object]] = {}
        for more, part in self.tables.items():
            found = part.reproduce(laboratory, options)
            for method, het, r, _, error, spread, *_ in found.table.rows:
                joined.add(", ".join(filter(None, (method, more))), het, r, error, spread)
            joined.notes.append(f"{found.table.title}.")
            numbers += [replace(row, setting=", ".join(filter(None, (row.setting, more)))) for row in found.numbers]
            if found.draw is not None:
                figures[more.replace(" ", "-")] = found.draw
        joined.notes.append("Errors are root mean squares over the last 10 % of the rounds, means over seeds.")
        return Findings(joined, numbers, lambda path: draw_all(figures, path))


def draw_all(figures: Mapping[str, Callable[[Path], object]], path: Path) -> None:
    """Draw figures, each in a file whose name ends in its own; "" for none."""
    for name, draw in figures.items():
        draw(path.with_stem("-".join(filter(None, (path.stem, name)))))


_RANKS = (5, 20, 50)
_METHODS = [kind("SSF", "increment") for kind in (Method, CutMethod)]
TARGETS = {
    "ssf-complement": Parts(
        "SSF with and without its controls in the complement",
        {
            "": ErrorTable(
                "with noise",
                {},
                [Place(heterogeneity, rank) for heterogeneity in (0.5, 2.0) for rank in _RANKS],
                seeds=3,
                methods=_METHODS,
                quick_places=[Place(0.5, 20)],
            ),
            "no noise": ErrorTable(
                "without noise, whole batches",
                {},
                [Place(0.5, rank) for rank in _RANKS],
                rounds=6000,
                seeds=3,
                methods=_METHODS,
                overrides=WHOLE_BATCHES,
                quick_places=[Place(0.5, 20)],
            ),
        },
    )
}
