"""The content of a report, before it is a page or a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from lfl.report.clients import client_values
from lfl.report.costs import Costs, costs_of
from lfl.report.curves import Curve, curve_of
from lfl.report.groups import Comparison
from lfl.report.metrics import AXES, Target, choose_metrics, names_of_metrics, parse_target
from lfl.report.runs import Run
from lfl.report.settings import EVALUATIONS, MAX_ROUNDS, METHOD, WEIGHTING, short_names, shown
from lfl.report.styles import DRAWN, Style, style_of
from lfl.report.tables import Summary, payloads, phases, quantities_of, summary_of
from lfl.reporting.formats import direction_of

# What a reader wants to know first of what all runs share.
_MAIN = (
    "data.source",
    "data.partitioner",
    "data.num_clients",
    "data.batch_size",
    "model",
    "model.backbone",
    "optimizer",
    "optimizer.lr",
    "trainer.callbacks",
    "trainer.participation",
    "trainer.participation.clients_per_round",
    "trainer.local_epochs",
    "trainer.local_steps",
    MAX_ROUNDS,
)


@dataclass(frozen=True)
class Report:
    """A comparison, with what was asked of it.

    Attributes:
        comparison: the groups of runs.
        metrics: what is drawn; the first is in the table.
        targets: what runs were to reach.
        axis: what curves are drawn against at first.
        title: over the page.
        log: which axes of curves are logarithmic at first, of ``x`` and ``y``.
    """

    comparison: Comparison
    metrics: Sequence[str]
    targets: Sequence[Target] = ()
    axis: str = "round"
    title: str = ""
    log: str = ""

    @classmethod
    def of(
        cls,
        comparison: Comparison,
        metrics: Sequence[str],
        targets: Sequence[str],
        axis: str,
        title: str,
        log: str = "",
    ) -> Report:
        """Make a report of what was asked for, or of what is found.

        Raises:
            ReportError: no run has a metric of those that are asked for; or a target is none.
        """
        known = names_of_metrics(comparison.runs)
        parsed = [parse_target(text, known) for text in targets]
        return cls(comparison, choose_metrics(comparison.runs, metrics), parsed, axis, title or _title(comparison), log)

    @property
    def metric(self) -> str:
        """The metric of the table."""
        return self.metrics[0]

    @cached_property
    def summary(self) -> Summary:
        """The table of what groups reached, and at what cost."""
        return summary_of(self.comparison.groups, quantities_of(self.metric, self.targets))

    @cached_property
    def styles(self) -> dict[str, Style]:
        """The style of each group, by label."""
        labels = [group.label for group in self.comparison.groups]
        if len(labels) > DRAWN:  # then those that are drawn get what is told apart best
            labels.sort(key=lambda label: label not in self.drawn)
        return {label: style_of(number) for number, label in enumerate(labels)}

    @cached_property
    def drawn(self) -> list[str]:
        """Labels of the groups that are drawn at first: all, or those that end best."""
        labels = [group.label for group in self.comparison.groups]
        direction = direction_of(self.metric) or 1
        ends = [direction * row[0].mean for row in self.summary.cells]
        order = sorted(range(len(labels)), key=lambda row: -ends[row] if np.isfinite(ends[row]) else np.inf)
        kept = set(order[:DRAWN])
        return [label for row, label in enumerate(labels) if row in kept]

    @cached_property
    def curves(self) -> dict[str, dict[str, Curve]]:
        """Curves by metric and by label, where there are any."""
        found = {m: {g.label: curve_of(g, m) for g in self.comparison.groups} for m in self.metrics}
        return {m: {label: curve for label, curve in of.items() if curve is not None} for m, of in found.items()}

    @cached_property
    def axes(self) -> list[str]:
        """The axes that some curve has."""
        return [axis for axis in AXES if any(axis in c.axes for of in self.curves.values() for c in of.values())]

    @cached_property
    def costs(self) -> dict[str, dict[str, Costs]]:
        """The costs of targets by axis and label; empty where none was reached."""
        return costs_of(self.comparison.groups, self.targets)

    @cached_property
    def clients(self) -> tuple[str, dict[str, dict[str, np.ndarray]]]:
        """The metric of single clients, and its values by scope and label."""
        return client_values(self.comparison.groups, self.metric)

    @cached_property
    def payloads(self) -> pd.DataFrame:
        """The ledger by payload."""
        return payloads(self.comparison.groups)

    @cached_property
    def phases(self) -> pd.DataFrame:
        """Seconds of a round."""
        return phases(self.comparison.groups)

    @property
    def selection(self) -> str:
        """The groups that figures show, in a sentence; empty where it is all of them."""
        drawn, groups = len(self.drawn), len(self.comparison.groups)
        return f"Drawn are the best {drawn} of {groups} groups." if drawn < groups else ""

    @property
    def sentence(self) -> str:
        """A sentence on what was compared."""
        groups, names = self.comparison.groups, list(self.comparison.names.values())
        runs = len(self.comparison.runs)
        seeds = sorted({len(group.runs) for group in groups})
        each = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
        if len(groups) == 1:
            return "1 run." if runs == 1 else f"{runs} runs that differ in nothing but their seeds."
        by = f", which differ in {_listed(names)}" if names else ""
        return f"{_count(runs, 'run')} in {len(groups)} groups{by}; {each} {'seed' if each == '1' else 'seeds'} each."

    @property
    def shared(self) -> list[tuple[str, str]]:
        """The main settings that all runs share, by short names."""
        known = self.comparison.shared
        names = short_names([key for key in _MAIN if known.get(key) is not None])
        return [(name, shown(known[key])) for key, name in names.items()]

    @property
    def explanations(self) -> list[str]:
        """Sentences that say how the numbers of the table are to be read."""
        groups = self.comparison.groups
        several = any(len(group.counted) > 1 for group in groups)
        spread = " Means over seeds ± standard deviation (of a sample)." if several else ""
        if several and len({run.seeds.get("data.seed") for run in self.comparison.runs}) == 1:
            spread += " Seeds share one partition (data.seed): ± says nothing of others."
        counted = {run.path for group in groups for run in group.counted}
        left_out = [run for run in self.comparison.runs if run.path not in counted]
        kinds = " or ".join(sorted({run.state for run in left_out}))
        without = f" {_count(len(left_out), f'{kinds} run')} not counted." if left_out else ""
        direction = {1: "the highest", -1: "the lowest"}.get(direction_of(self.metric))
        best = f" Best: {direction} of all evaluations." if direction else ""
        named = f"{self.metric}."
        if self.metric.startswith("val_"):
            named = f"{self.metric} is of the test set, unless data.val_fraction holds out some training examples."
        said = [
            f"{named}{best} Last tenth: the mean of the last tenth of the evaluations.{spread}{without}",
            "Bytes are those of all clients together, as the ledger counted them; 1 MB is 10⁶ bytes.",
        ]
        if METHOD in self.comparison.names and self.comparison.shared.get(WEIGHTING) == "auto":
            said.append(
                "All weigh clients by weighting: auto: each method as it is stated, so that methods may differ in "
                "it. The first line that a run prints says what it came to."
            )
        if self.targets:
            every = self.comparison.shared.get(EVALUATIONS)
            one_in = f", of which there is one every {every} rounds" if isinstance(every, int) and every > 1 else ""
            said.append(f"Targets: the first evaluation that reached it{one_in}; means are over the runs that did.")
        return said

    @property
    def notes(self) -> list[str]:
        """Remarks on single runs."""
        lacking = [run for run in self.comparison.runs if self.metric not in run.metrics]
        without = [
            f"{_listed(names)} {did} {self.metric}."
            for is_finished, did in ((True, "did not log"), (False, "has not logged so far:"))
            if (names := [self._name(run) for run in lacking if run.is_finished is is_finished])
        ]
        return [*self.comparison.notes, *without, *filter(None, map(self._out_of_reach, self.targets))]

    def _out_of_reach(self, target: Target) -> str:
        """A remark on a target that no run has reached, as one in percent of a share; empty for others."""
        metric, sign = target.metric, target.direction
        runs = [run for run in self.comparison.runs if metric in run.metrics]
        bests = [best for run in runs if (best := float(run.metrics[metric].mul(sign).max())) == best]  # not NaN
        if not bests or max(bests) >= sign * target.value:
            return ""
        return f"No run has reached {target}; the closest came to {sign * max(bests):.4g}."

    @property
    def run_rows(self) -> list[tuple[str, str, str, str]]:
        """A row for each run: its folder, group, seed and how far it came."""
        return [
            (self._name(run), group.label, run.seed, _state(run))
            for group in self.comparison.groups
            for run in group.runs
        ]

    def _name(self, run: Run) -> str:
        return self.comparison.labels.get(run.path, str(run.path))


def curves_frame(report: Report) -> pd.DataFrame:
    """The curves with all their points: a row for each group, metric and round, with mean, range and axes."""
    pieces = [
        pd.DataFrame(
            {"group": label, "metric": metric, "round": curve.rounds, "runs": curve.seeds}
            | {"mean": curve.mean, "low": curve.low, "high": curve.high}
            | {name: values for name, values in curve.axes.items() if name != "round"}
        )
        for metric, of_groups in report.curves.items()
        for label, curve in of_groups.items()
    ]
    return pd.concat(pieces, ignore_index=True)


def _title(comparison: Comparison) -> str:
    labels = [group.label for group in comparison.groups]
    joined = " · ".join(labels)
    return joined if len(joined) <= 70 else f"{len(labels)} groups by {_listed(list(comparison.names.values()))}"


def _state(run: Run) -> str:
    told = f"{run.rounds} rounds" if run.max_rounds is None else f"{run.rounds} of {run.max_rounds} rounds"
    return told if run.is_finished else f"{told}, {run.state}"


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _listed(words: Sequence[str], most: int = 5) -> str:
    shown_words: Iterable[str] = [*words[:most], *([f"{len(words) - most} more"] if len(words) > most else [])]
    *first, last = list(shown_words) or [""]
    return f"{', '.join(first)} and {last}" if first else last
