"""The page of claims: every claim of the five papers, in their words, with a verdict and the numbers behind it.

    python -m tools.papers.claims_page             # writes docs/claims.md
    python -m tools.papers.claims_page --check     # only tells whether the page is what the kept numbers give

The claims and the rules that decide them are in ``tools/papers/claims/``, a file for each paper; the numbers are those
that studies left in ``docs/results/data/`` (``--keep``). So a page never says more than its numbers.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from lfl.report.tables import markdown
from lfl.storage.files import write_file
from tools import REPOSITORY
from tools.papers.claims import PAPERS, Claim, claims_of
from tools.papers.verdicts import Decision, Verdict, kind_of

PAGE = REPOSITORY / "docs" / "claims.md"
_HEAD = """\
# Claims

<!-- Made by `python -m tools.papers.claims_page`; change the claims in tools/papers/claims, not here. -->

What the five papers claim, in their words, and what became of it here. A verdict is one of

- **holds**: in our setting, which the entry describes, every comparison that it names shows what the paper says.
- **does not hold**: one of them, at least, shows the opposite.
- **not tested**: nothing was run, or what was run cannot tell; the entry says which, and what it would take.
- **outside**: we have numbers, but of a setting that the claim is not about.

Each entry says by what its comparisons are decided. *Intervals of differences* (or *of ratios*): the mean over runs
that are paired by seed is beyond its interval of 95 % (Student's t). "A against B: +1.2 [+0.8, +1.6]" is the mean of
A less B with its interval; where seeds are not known it is of unpaired runs (Welch), and says so. *Sign tests*: in so
many of the pairs that differ A is better, with p below 0.05. *Means as they are*: of single long runs, or of runs
whose spread is not known, so that a small difference tells little. *A factor*: a number is within it of the paper's;
1.01 stands for equality, 1.1 where the paper gives a range or a mean, 1.25 where it gives the last error of one run,
1.5 and 2 where it says "comparable" or names an order. *A person*: by the numbers that stand there. Intervals and
tests are those of one comparison each; none is widened for an entry that has many.

A method that its paper leaves open has several readings here. An entry takes the one that its numbers name, or both;
where the other one would change the verdict, *read otherwise* says so.

Numbers are of runs of `lfl fit`, made by the command of the entry in the repository's root, which leaves them in
`docs/results/data/` with `--keep`, by seed, but for some older ones of which only means are left; this page is made
from those files. The pages of [results](results/index.md) have the tables and figures, and say what the readings are
that methods are named by (`increment`, `sampled_mean`, `stale`, "10 + 1", "indices free").
"""
# The papers, as their own first pages have them.
_TITLES = {
    "ssf": "Zhu, Huang, Xu, Li: Subspace Optimization for Efficient Federated Learning under Heterogeneous Data "
    "(arXiv:2604.25467, 2026)",
    "flss": "Federated Learning in Streaming Subspace (anonymous, under review)",
    "fl-ssgd": "Shi, Eryilmaz: Communication-efficient Subspace Methods for High-dimensional Federated Learning",
    "fedmrur": "An, Shen, Hu, Luo: Federated Learning with Manifold Regularization and Normalized Update Reaggregation",
    "srpfl": "Tziotis, Shen, Pedarsani, Hassani, Mokhtari: Straggler-Resilient Personalized Federated Learning "
    "(Transactions on Machine Learning Research, 10/2023)",
}


def page() -> str:
    """The page of claims in Markdown."""
    decided = {paper: [(claim, claim.decision()) for claim in claims_of(paper)] for paper in PAPERS}
    sections = [_HEAD, *_summary(decided), "", _not_run([claim for claims in decided.values() for claim in claims])]
    for paper, claims in decided.items():
        sections += [f"\n## {PAPERS[paper]}\n", f"{_TITLES[paper]}.\n"]
        sections += [text for number, pair in enumerate(claims, 1) for text in _entry(number, *pair)]
    return "\n".join(sections).rstrip() + "\n"


def summary(decided: Mapping[str, Sequence[tuple[Claim, Decision]]]) -> list[list[str]]:
    """Rows of the summary: claims by paper and verdict, and their sums."""
    counts = {PAPERS[paper]: Counter(decision.verdict for _, decision in claims) for paper, claims in decided.items()}
    counts["all"] = sum(counts.values(), Counter())
    return [
        [paper, *(str(count[verdict]) for verdict in Verdict), str(count.total())] for paper, count in counts.items()
    ]


def _summary(decided: Mapping[str, Sequence[tuple[Claim, Decision]]]) -> list[str]:
    return list(markdown(["paper", *Verdict, "claims"], summary(decided)))


def _not_run(decided: Sequence[tuple[Claim, Decision]]) -> str:
    waiting = [decision for _, decision in decided if decision.verdict is Verdict.OPEN]
    never = sum(not decision.numbers for decision in waiting)
    return f"Of the {len(waiting)} that are not tested nothing was run for {never}; of the others the runs cannot tell."


def _entry(number: int, claim: Claim, decision: Decision) -> Iterator[str]:
    """An item of the list, in paragraphs."""
    yield f"{number}. **{decision.verdict}** · {claim.place}: “{claim.words.strip()}”"
    parts = [
        claim.setting.strip(),
        f"*Numbers*, decided by {kind_of(claim.rule)}: {decision.numbers}." if decision.numbers else "",
        _otherwise(claim, decision),
        "*Not run yet.*" if claim.command and not decision.numbers else "",
        f"*To test it:* {claim.cost.strip()}"
        if claim.cost and decision.verdict in (Verdict.OPEN, Verdict.OUTSIDE)
        else "",
        f"`{claim.command}`" if claim.command else "",
    ]
    for part in filter(None, parts):
        yield f"\n    {part}"
    yield ""


def _otherwise(claim: Claim, decision: Decision) -> str:
    """The other readings of its methods with which a claim has another verdict; empty if there are none."""
    found = [
        f"with `{reading}` in place of `{ours}` it is *{verdict}*"
        for reading, ours, verdict in claim.decisions_otherwise()
        if verdict is not decision.verdict
    ]
    return f"*Read otherwise:* {'; '.join(found)}." if found else ""


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is another one")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    made = page()
    if not options.check:
        write_file(PAGE, made)
    elif PAGE.read_text(encoding="utf-8") != made:
        sys.stderr.write(f"{PAGE} is not what the claims and their numbers give: run the command without --check.\n")
        raise SystemExit(1)


if __name__ == "__main__":
    main()
