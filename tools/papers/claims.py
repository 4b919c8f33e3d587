"""Claims of papers: in their words, with a rule that decides them by numbers of a study."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tools.papers.experiments import folder_of
from tools.papers.findings import Findings
from tools.papers.kept import KEPT, Number, Numbers, read, write
from tools.papers.readings import read_otherwise
from tools.papers.verdicts import Decision, Verdict, decide
from tools.table import Table

CLAIMS = Path(__file__).parent / "claims"
PAPERS = {"ssf": "SSF", "flss": "FLSS", "fl-ssgd": "FL-SSGD", "fedmrur": "FedMRUR", "srpfl": "SRPFL"}


@dataclass(frozen=True)
class Claim:
    """A claim of a paper.

    Attributes:
        place: where the paper makes it.
        words: the paper's own.
        setting: what was run here, and how it differs from what the paper ran.
        rule: how numbers decide it; see ``verdicts.decide``.
        study: the files of those numbers, without their endings, with a space between; empty for none. Of several the
            names are the settings.
        command: makes that file; empty for none.
        cost: what it would take to test it; empty where it was.
    """

    place: str
    words: str
    setting: str
    rule: Mapping[str, Any] = field(default_factory=dict)
    study: str = ""
    command: str = ""
    cost: str = ""

    @property
    def studies(self) -> list[str]:
        """The names of the studies whose numbers decide it."""
        return self.study.split()

    def decision(self, fresh: Mapping[str, Sequence[Number]] | None = None) -> Decision:
        """Decide the claim by numbers; a study that has left none decides nothing.

        Args:
            fresh: numbers of studies by name, to be taken in place of those that are kept.
        """
        numbers = self._numbers(fresh or {})
        return Decision(Verdict.OPEN, "") if numbers is None else decide(self.rule, numbers)

    def decisions_otherwise(self) -> list[tuple[str, str, Verdict]]:
        """Decide it by what is kept with other readings of its methods; see ``readings.read_otherwise``."""
        numbers = self._numbers({})
        return [] if numbers is None else list(read_otherwise(self.rule, numbers))

    def _numbers(self, fresh: Mapping[str, Sequence[Number]]) -> Numbers | None:
        """All numbers that decide it; None where a study has left none."""
        rows: list[Number] = []
        for study in self.studies:
            own = fresh.get(study) or kept(study)
            if not own:
                return None
            rows += own if len(self.studies) == 1 else [replace(row, setting=study) for row in own]
        return Numbers(rows)


@cache
def kept(study: str) -> Sequence[Number]:
    """The kept numbers of a study; none if it has left none."""
    path = KEPT / f"{study}.csv"
    return read(path) if path.exists() else []


def claims_of(paper: str) -> list[Claim]:
    """The claims of a paper, by the name of its file.

    Raises:
        TypeError: an entry has a field that claims do not have, or lacks one.
    """
    entries = yaml.safe_load((CLAIMS / f"{paper}.yaml").read_text(encoding="utf-8"))
    return [Claim(**entry) for entry in entries]


def decided_by(study: str, numbers: Sequence[Number]) -> Table:
    """A table of the claims that a study is for, as these numbers decide them."""
    table = Table("What the paper says", ["claim", "here", "numbers"])
    for paper in PAPERS:
        for claim in claims_of(paper):
            if study in claim.studies:
                decision = claim.decision({study: numbers})
                table.add(f"{claim.place}: {claim.words.strip()}", decision.verdict, decision.numbers)
    return table


def keep(numbers: Sequence[Number], path: Path) -> None:
    """Keep the numbers of a study, but for those that have fewer runs than what is kept of it.

    Raises:
        SystemExit: they have; the message says what to do.
    """
    before, now = (len({row.seed for row in rows}) for rows in (read(path) if path.exists() else (), numbers))
    if now < before:
        raise SystemExit(
            f"{path} has numbers of {before} seeds, these runs are of {now}: nothing was kept. Give `--seeds "
            f"{before}`, or remove the file first."
        )
    write(numbers, path)


def publish(name: str, found: Findings, options: argparse.Namespace) -> None:
    """Show a study's table and the claims that its numbers decide; write table and numbers, draw its figures.

    Numbers of runs that were cut short decide nothing, and are not kept.

    Args:
        name: of the study, and of its files.
        found: what it has found.
        options: of the command line, as ``experiments.add_options`` has them.
    """
    folder = folder_of(options)
    table, numbers = found.table, found.numbers
    is_short = bool(options.quick or options.rounds)
    if is_short:
        table.notes.append("Cut short, for a look: these numbers decide nothing.")
    table.write(folder, name)
    table.show()
    write(numbers, folder / f"{name}-numbers.csv")
    if found.draw is not None:
        found.draw(folder / f"{name}.png")
    if is_short:
        return
    if options.keep:
        keep(numbers, KEPT / f"{name}.csv")
    claims = decided_by(name, numbers)
    if claims.rows:
        claims.show()
