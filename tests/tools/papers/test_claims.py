"""Claims: every one is decided by what is kept, and the page says what they give."""

import argparse
from pathlib import Path

import pytest

from tools.papers import claims_page, flss_cost, grids, reproduce, ssf_networks, ssf_steps
from tools.papers.claims import PAPERS, Claim, claims_of, decided_by, keep, publish
from tools.papers.experiments import Outcome
from tools.papers.findings import Findings
from tools.papers.kept import KEPT, Number, numbers_of, read
from tools.papers.study import Study
from tools.papers.verdicts import Verdict
from tools.table import Table


def test_the_page_is_what_the_kept_numbers_give() -> None:
    claims_page.main(["--check"])


def test_the_page_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "claims.md").write_text("Everything holds.\n")
    monkeypatch.setattr(claims_page, "PAGE", tmp_path / "claims.md")
    with pytest.raises(SystemExit):
        claims_page.main(["--check"])
    assert "run the command without --check" in capsys.readouterr().err
    claims_page.main([])
    claims_page.main(["--check"])


@pytest.mark.parametrize("paper", PAPERS)
def test_claims_are_whole(paper: str) -> None:
    claims = claims_of(paper)
    assert len(claims) >= 10
    for claim in claims:
        assert claim.place
        assert claim.words
        assert claim.setting
        decision = claim.decision()
        assert bool(claim.study) == bool(claim.command) or decision.verdict in (Verdict.OPEN, Verdict.OUTSIDE), (
            claim.words
        )
        assert decision.numbers or decision.verdict in (Verdict.OPEN, Verdict.OUTSIDE), claim.words
        assert claim.cost or decision.verdict not in (Verdict.OPEN, Verdict.OUTSIDE), claim.words


def test_kept_numbers_are_of_claims() -> None:
    """A file that nothing is decided by would only grow old."""
    used = {study for paper in PAPERS for claim in claims_of(paper) for study in claim.studies}
    on_pages_of_results = {"communication", "stacks-compression"}
    assert used >= {path.stem for path in KEPT.glob("*.csv")} - on_pages_of_results


def test_studies_that_are_named_exist() -> None:
    """Those that have not been run yet, too: a wrong name would be taken for one of them."""
    names = {path.stem for path, _ in grids.grids()}
    names |= {f"ssf-{name}" for name in (*ssf_networks.STUDIES, *ssf_steps.STUDIES)}
    names |= {*reproduce.TARGETS, "compare", flss_cost.NAME}
    used = {study for paper in PAPERS for claim in claims_of(paper) for study in claim.studies}
    assert used <= names


def test_a_claim_may_be_of_several_studies() -> None:
    rule = {"better": "A", "than": "B", "quantity": "x"}
    claim = Claim("", "", "", rule, "first second")
    good, bad = (
        [Number("", name, "x", n, v + n * w) for name, v, w in rows for n in range(3)]
        for rows in ((("A", 3.0, 1.1), ("B", 1.0, 1.0)), (("A", 1.0, 1.1), ("B", 3.0, 1.0)))
    )
    assert claim.decision({"first": good, "second": good}).verdict is Verdict.HOLDS
    decision = claim.decision({"first": good, "second": bad})
    assert decision.verdict is Verdict.FAILS
    assert "(second): -1.90" in decision.numbers
    assert claim.decision({"first": good}).verdict is Verdict.OPEN


def options(**given: bool | int | Path | None) -> argparse.Namespace:
    return argparse.Namespace(**{"quick": False, "rounds": None, "keep": False, **given})


def test_a_study_shows_the_claims_that_it_decides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = "compressors-dirichlet0.1"
    numbers = read(KEPT / f"{study}.csv")
    assert decided_by(study, numbers).rows
    publish(study, Findings(Table("made up", ["method"]), numbers), options(output=tmp_path))
    said = capsys.readouterr().out
    assert "What the paper says" in said
    assert len(read(tmp_path / f"{study}-numbers.csv")) == len(numbers)


def test_what_was_cut_short_decides_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = Findings(Table("", ["method"]), [Number("", "A", "x", 0, 1.0)])
    publish("stacks-compression", found, options(output=tmp_path, quick=True, keep=True))
    assert "these numbers decide nothing" in capsys.readouterr().out
    assert read(KEPT / "stacks-compression.csv") != [Number("", "A", "x", 0, 1.0)]


def test_fewer_seeds_do_not_replace_what_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "study.csv"
    three = [Number("", "A", "x", seed, 1.0) for seed in range(3)]
    keep(three, path)
    with pytest.raises(SystemExit, match="numbers of 3 seeds, these runs are of 2: nothing was kept"):
        keep(three[:2], path)
    assert len(read(path)) == 3
    keep([*three, Number("", "A", "x", 3, 2.0)], path)
    assert len(read(path)) == 4


STUDIES = {
    f"{command.__name__.rpartition('.')[2]}-{name}": command.STUDIES[name]
    for commands in grids.STUDIES.values()
    for command, names in commands.items()
    for name in names
}


@pytest.mark.parametrize("paper", PAPERS)
def test_rules_ask_for_what_studies_measure(paper: str) -> None:
    """Of those that have not been run, too: with made-up runs every rule decides something."""
    for claim in claims_of(paper):
        if claim.studies and STUDIES.keys() >= set(claim.studies):
            found = {name: numbers_of(STUDIES[name].measure(made_up(STUDIES[name]))) for name in claim.studies}
            assert claim.decision(found).verdict in list(Verdict), claim.words


def made_up(study: Study) -> dict[str, list[Outcome]]:
    """Two runs of each method, whose metrics rise."""
    return {
        name: [
            Outcome(
                number := method.rounds or study.rounds * method.pace,
                0.0,
                "",
                {
                    metric: {n: n / number + seed / 100 for n in range(study.evaluate_every, number + 1)}
                    for metric in (*study.metrics, *method.metrics)
                },
            )
            for seed in range(2)
        ]
        for name, method in study.methods.items()
    }
