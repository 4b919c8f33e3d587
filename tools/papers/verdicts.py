"""Verdicts: what numbers of runs say of a claim, by a rule that is written down beside it.

A claim compares: a method with others, or a method with itself in other settings. Runs are paired by seed, since a seed
stands for the same data, initial weights and draws. The statistic is the mean difference (or ratio) with its interval
of 95 % by Student's t, or the number of pairs in which the claim is true, with a sign test. A comparison that neither
confirms the claim nor its opposite leaves it open.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self

from scipy import stats

from tools.papers.kept import Number, Numbers

LEVEL = 0.95


class Verdict(StrEnum):
    """The outcome of a claim."""

    HOLDS = "holds"
    FAILS = "does not hold"
    OPEN = "not tested"
    OUTSIDE = "outside"


@dataclass(frozen=True)
class Comparison:
    """The difference between what is expected to be better and what it is compared with.

    Attributes:
        told: what is compared, and by how much.
        is_shown: whether it is better; None where the runs cannot tell.
    """

    told: str
    is_shown: bool | None


@dataclass(frozen=True)
class Decision:
    """A verdict and the numbers that decide it."""

    verdict: Verdict
    numbers: str

    @classmethod
    def of(cls, comparisons: Sequence[Comparison]) -> Decision:
        """Take the verdict of all comparisons together: a claim fails where one of them shows the opposite."""
        shown = [comparison.is_shown for comparison in comparisons]
        told = "; ".join(comparison.told for comparison in comparisons)
        if False in shown:
            return cls(Verdict.FAILS, told)
        if None in shown:
            return cls(Verdict.OPEN, f"{told}: these runs cannot tell")
        return cls(Verdict.HOLDS, told)

    @classmethod
    def all_of(cls, parts: Sequence[Self]) -> Self:
        """Take the verdict of a claim of several parts: it fails where one of them does, and holds where all do."""
        verdicts = [part.verdict for part in parts]
        worst = next((v for v in (Verdict.FAILS, Verdict.OUTSIDE, Verdict.OPEN) if v in verdicts), Verdict.HOLDS)
        return cls(worst, "; ".join(filter(None, (part.numbers for part in parts))))


def decide(rule: Mapping[str, Any], numbers: Numbers) -> Decision:
    """Decide a claim by its rule.

    A rule has one of these:

    - ``better`` (method or methods) ``than`` (method, methods, or ``others``), in a ``quantity``;
    - ``improves`` (method or methods): the quantity gets better in the order of the ``settings``, or of ``quantities``;
    - ``positive`` (method or methods): the quantity is above 0, with every setting;
    - ``order``: methods, the best one first;
    - ``near``: the paper's numbers (or those that ``told`` describes, which may be texts as for ``numbers``) by setting
      and method, met within a ``factor``;
    - ``all``: rules, of the parts of a claim;
    - ``verdict``, where a person decides.

    and beside it ``settings`` (all of the study by default), ``lower: true`` where less is better (or a list of the
    quantities of which it is), ``statistic``: ``difference`` (default), ``ratio``, ``wins``, or ``plain``, which
    believes the means; ``never``, the number that stands for what was not reached in a run, its length, which makes
    differences smaller than they are; and ``numbers``, a text in which ``<method; quantity; setting>`` is the mean (see
    ``filled``).

    Raises:
        KeyError: the numbers lack what the rule asks for.
        ValueError: there is no such rule.
    """
    said = filled(str(rule.get("numbers", "")), numbers)
    if "verdict" in rule:
        return Decision(Verdict(rule["verdict"]), said)
    if "all" in rule:
        decision = Decision.all_of([decide(part, numbers) for part in rule["all"]])
    elif "near" in rule:
        decision = _near(rule, numbers)
    elif "improves" in rule:
        decision = Decision.of(list(_improvements(rule, numbers)))
    elif "positive" in rule:
        decision = Decision.of(list(_signs(rule, numbers)))
    elif "better" in rule or "order" in rule:
        decision = Decision.of(list(_comparisons(rule, numbers)))
    else:
        raise ValueError(f"no rule in {dict(rule)}: one of better, improves, order, positive, near, all, verdict")
    if "never" in rule:
        length = f"(a run that never got there counts {rule['never']:g})"
        decision = replace(decision, numbers=f"{decision.numbers} {length}")
    return replace(decision, numbers="; ".join(filter(None, (said, decision.numbers))))


def kind_of(rule: Mapping[str, Any]) -> str:
    """The kind of a rule, for a sentence that says by what a claim was decided."""
    if "verdict" in rule:
        return "a person"
    if "all" in rule:
        return " and ".join(dict.fromkeys(kind_of(part) for part in rule["all"]))
    if "near" in rule:
        return f"a factor of {rule['factor']:g}"
    kinds = {"wins": "sign tests", "plain": "means as they are", "ratio": "intervals of ratios"}
    return kinds.get(str(rule.get("statistic", "")), "intervals of differences")


def filled(text: str, numbers: Numbers) -> str:
    """Put means where a text names them as ``<method; quantity>`` or ``<method; quantity; setting>``.

    ``median`` before the method gives the median instead.
    """

    def value(found: re.Match[str]) -> str:
        parts = [part.strip() for part in found[1].split(";")]
        method = parts[0].removeprefix("median ")
        read = numbers.mean if method == parts[0] else numbers.median
        return short(read(method, *parts[1:]))

    return re.sub(r"<([^<>]+;[^<>]+)>", value, text)


def _listed(value: Any) -> list[str]:
    return [str(entry) for entry in value] if isinstance(value, list) else [str(value)]


def _comparisons(rule: Mapping[str, Any], numbers: Numbers) -> Iterator[Comparison]:
    places = itertools.product(_listed(rule["quantity"]), _listed(rule.get("settings", numbers.settings)))
    for quantity, setting in places:
        several = isinstance(rule["quantity"], list), bool(setting) and len(numbers.settings) > 1
        where = ", ".join(name for name, is_told in zip((quantity, setting), several, strict=True) if is_told)
        for better, other in _pairs(rule, numbers.methods(quantity, setting)):
            ours, theirs = (numbers.of(method, quantity, setting) for method in (better, other))
            yield compare(f"{better} against {other}{f' ({where})' if where else ''}", ours, theirs, rule)


def _pairs(rule: Mapping[str, Any], methods: Sequence[str]) -> Iterator[tuple[str, str]]:
    if "order" in rule:
        yield from itertools.pairwise(_listed(rule["order"]))
        return
    chosen = _listed(rule["better"])
    others = [m for m in methods if m not in chosen] if rule["than"] == "others" else _listed(rule["than"])
    yield from itertools.product(chosen, others)


def _improvements(rule: Mapping[str, Any], numbers: Numbers) -> Iterator[Comparison]:
    settings = _listed(rule.get("settings", "")) if "quantities" in rule else _listed(rule["settings"])
    places = itertools.product(_listed(rule.get("quantities", rule.get("quantity"))), settings)
    for method, (worse, better) in itertools.product(_listed(rule["improves"]), itertools.pairwise(places)):
        ours, theirs = (numbers.of(method, *place) for place in (better, worse))
        names = (setting or quantity for quantity, setting in (better, worse))
        yield compare(f"{method}, {' against '.join(names)}", ours, theirs, rule)


def _signs(rule: Mapping[str, Any], numbers: Numbers) -> Iterator[Comparison]:
    """Compare methods with zero, in every quantity and setting."""
    places = itertools.product(_listed(rule["quantity"]), _listed(rule.get("settings", numbers.settings)))
    for method, (quantity, setting) in itertools.product(_listed(rule["positive"]), places):
        ours = numbers.of(method, quantity, setting)
        zeros = [replace(row, value=0.0, deviation=0.0) for row in ours]
        told = ", ".join(part for part in (method, quantity, setting) if part)
        yield compare(told, ours, zeros, rule)


def compare(told: str, better: Sequence[Number], other: Sequence[Number], rule: Mapping[str, Any]) -> Comparison:
    """Compare what is said to be better with what it is said to be better than, by the rule's statistic."""
    lower = rule.get("lower", False)
    sign = -1.0 if lower is True or (lower and better[0].quantity in _listed(lower)) else 1.0
    if "never" in rule:
        better, other = (
            [replace(row, value=min(row.value, float(rule["never"]))) for row in rows] for rows in (better, other)
        )
    statistic = rule.get("statistic", "difference")
    if statistic == "plain":
        return _plain(told, better, other, sign)
    if None in (row.seed for row in (*better, *other)):
        return _unpaired(told, better[0], other[0], sign)
    pairs = _paired(better, other)
    if statistic == "wins":
        return _wins(told, pairs, sign)
    if statistic == "ratio":
        logs = [(math.log(a), math.log(b)) for a, b in pairs]
        return _interval(told, logs, sign, lambda value: f"{math.exp(value):.3g}", "times ")
    return _interval(told, pairs, sign, lambda value: short(value, "+"))


def _plain(told: str, better: Sequence[Number], other: Sequence[Number], sign: float) -> Comparison:
    """Two means, as they are: of single long runs, or of runs whose spread is not known. What diverged is the worst."""
    means = [statistics.mean(row.value for row in rows) for rows in (better, other)]
    ours, theirs = (-math.inf if math.isnan(value) else sign * value for value in means)
    values = " and ".join(short(value) for value in means)
    return Comparison(f"{told}: {values}", None if ours == theirs else ours > theirs)


def _paired(better: Sequence[Number], other: Sequence[Number]) -> list[tuple[float, float]]:
    theirs = {row.seed: row.value for row in other}
    return [(row.value, theirs[row.seed]) for row in better if row.seed in theirs]


def _interval(told: str, pairs: Sequence[tuple[float, float]], sign: float, say: Any, unit: str = "") -> Comparison:
    """The mean of paired differences with its interval; what diverged, or never got there, leaves no interval."""
    differences = [a - b for a, b in pairs]
    if not all(map(math.isfinite, differences)) or len(differences) < 2:
        values = ", ".join(f"{say(a - b)}" if math.isfinite(a - b) else "not finite" for a, b in pairs)
        return Comparison(f"{told}: {unit}{values}", None)
    mean = statistics.mean(differences)
    half = stats.t.ppf((1 + LEVEL) / 2, len(differences) - 1) * stats.sem(differences)
    low, high = mean - half, mean + half
    shown = None if low <= 0 <= high else sign * mean > 0
    return Comparison(f"{told}: {unit}{say(mean)} [{say(low)}, {say(high)}]", shown)


def _wins(told: str, pairs: Sequence[tuple[float, float]], sign: float) -> Comparison:
    """The number of pairs in which the claim is true; infinity, for what was never reached, is worse than any."""
    decided = [(a, b) for a, b in pairs if a != b and not (math.isnan(a) or math.isnan(b))]
    wins = sum(sign * a > sign * b for a, b in decided)
    p = stats.binomtest(wins, len(decided)).pvalue if decided else 1.0
    shown = None if p > 1 - LEVEL else wins > len(decided) / 2
    ties = f", {len(pairs) - len(decided)} more not decided" if len(pairs) > len(decided) else ""
    return Comparison(f"{told}: {wins} of {len(decided)}{ties} (sign test p = {p:.2g})", shown)


def _unpaired(told: str, better: Number, other: Number, sign: float) -> Comparison:
    """The difference of two means whose runs are not known one by one: Welch's interval."""
    variances = [row.deviation**2 / row.runs for row in (better, other)]
    mean = better.value - other.value
    spread = sum(variances)
    if not math.isfinite(mean) or not spread > 0:
        return Comparison(f"{told}: {short(mean, '+')} (means)", None)
    freedom = spread**2 / sum(v**2 / (row.runs - 1) for v, row in zip(variances, (better, other), strict=True))
    half = stats.t.ppf((1 + LEVEL) / 2, freedom) * math.sqrt(spread)
    shown = None if abs(mean) <= half else sign * mean > 0
    return Comparison(
        f"{told}: {short(mean, '+')} [{short(mean - half, '+')}, {short(mean + half, '+')}, unpaired]", shown
    )


def _near(rule: Mapping[str, Any], numbers: Numbers) -> Decision:
    factor, told, met = float(rule["factor"]), [], []
    for setting, published in rule["near"].items():
        for method, value in published.items():
            ratio = numbers.mean(method, str(rule["quantity"]), setting) / float(filled(str(value), numbers))
            met.append(1 / factor <= ratio <= factor)
            told.append(f"{method} ({setting}) {ratio:.2f}" if setting else f"{method} {ratio:.2f}")
    return Decision(
        Verdict.HOLDS if all(met) else Verdict.FAILS, f"ours / {rule.get('told', 'paper')}: {', '.join(told)}"
    )


def short(value: float, sign: str = "") -> str:
    """Write a number with three digits.

    >>> [short(x) for x in (0.00123, 12.34, 1234.5, 0.0)], short(1.0, "+")
    (['1.23e-03', '12.3', '1234', '0'], '+1.00')
    """
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "never"
    if value and not 1e-2 <= abs(value) < 1e4:
        return f"{value:{sign}.2e}"
    return f"{value:{sign}.0f}" if abs(value) >= 1000 or not value else f"{value:{sign}#.3g}".rstrip(".")
