"""Tables and claims of the SSF paper on made-up results."""

import math
from typing import Any

import pytest

from tools.papers import experiments, ssf

NAN = math.nan


def errors_of(tails: dict[Any, list[float]], rounds: int = 10) -> Any:
    """Every run has error 1, and in the last of 10 rounds what ``tails`` says; nan for one that ended in round 5."""

    def outcome(value: float) -> Any:
        last = 5 if math.isnan(value) else rounds
        series = {n: value if n == rounds else 1.0 for n in range(1, last + 1)}
        return experiments.Outcome(last, 0.0, "NaN" if math.isnan(value) else "", {"val_error": series})

    return ssf.Errors({key: [outcome(value) for value in values] for key, values in tails.items()}, rounds)


def test_tail_is_the_root_mean_square_of_the_last_tenth() -> None:
    """Rounds 10 to 100 by tens: those after 90 count; of rounds 19 and 20 of 20, both, sqrt((9 + 16) / 2)."""
    place, method = ssf.Place(0.5, 20), ssf.FEDAVG
    series = dict.fromkeys(range(1, 19), 100.0) | {19: 3.0, 20: 4.0}
    errors = ssf.Errors({(place, method): [experiments.Outcome(20, 0.0, "", {"val_error": series})]}, 20)
    assert errors.tail(place, method) == pytest.approx(math.sqrt(12.5), rel=1e-15)
    assert errors.last(place, method) == 4.0
    assert errors.peak(place, method) == 100.0


def test_the_table_has_published_and_ours_side_by_side() -> None:
    target = ssf.TARGETS["ssf-table3"]
    place = ssf.Place(2.0, 50)
    tails = {(place, method): [3.0e-3, 5.0e-3] for method in ssf.METHODS}
    tails[place, ssf.Method("FedSub", "stale")] = [NAN, 5.0e-3]
    table = target.tabulate(errors_of(tails), [place], seeds=2)
    lines = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    ssf_line = lines["SSF, sampled_mean"]
    assert (ssf_line["paper"], ssf_line["ours"], ssf_line["ours / paper"]) == ("3.03e-03", "4.00e-03", "1.32")
    assert (ssf_line["het"], ssf_line["r"], ssf_line["over seeds"]) == ("2", "50", "3.00e-03 to 5.00e-03")
    assert (lines["FedSub, public"]["paper"], lines["FedSub, public"]["ours / paper"]) == ("NaN", "")
    assert lines["FedSub, stale"]["ours"] == "NaN"
    assert len(lines) == 7


def test_claims_about_the_order() -> None:
    place = ssf.Place(0.5, 20)
    values = {"SCAFFOLD, increment": 1.0, "SSF, increment": 2.0, "SCAFFOLD, sampled_mean": 3.0}
    values |= {"SSF, sampled_mean": 2.5, "FedAvg": 4.0, "FedSub, public": 3.0, "FedSub, stale": NAN}
    errors = errors_of({(place, method): [values[str(method)]] for method in ssf.METHODS})
    claims = {claim.text.removeprefix("het 0.5, r = 20: "): claim for claim in ssf.claims_of_order(errors, [place])}
    assert {text: claim.holds for text, claim in claims.items()} == {
        "SCAFFOLD < SSF < FedAvg (increment)": True,
        "SCAFFOLD < SSF < FedAvg (sampled_mean)": False,
        "SSF < FedSub (sampled_mean, public)": True,
        "FedAvg < FedSub (public)": False,
        "SSF < FedSub (sampled_mean, stale)": True,
        "FedAvg < FedSub (stale)": True,
    }
    assert claims["FedAvg < FedSub (stale)"].numbers == "FedAvg 4.00, FedSub diverged"


def test_claims_about_ranks_and_divergence() -> None:
    places = [ssf.Place(2.0, 5), ssf.Place(2.0, 50)]
    tails = {(place, method): [0.1 / place.rank] for place in places for method in ssf.METHODS}
    tails[places[1], ssf.Method("SSF", "sampled_mean")] = [0.5]
    tails[places[1], ssf.Method("FedSub", "stale")] = [NAN]
    errors = errors_of(tails)
    assert [claim.holds for claim in ssf.claims_of_ranks(errors, places)] == [True, False]
    public, stale = ssf.claims_of_divergence(errors, places[1:])
    assert (public.holds, stale.holds) == (False, True)
    assert public.numbers == "0 run(s) not finite; largest error in the second half 1.00"


def test_published_numbers_stand_where_the_paper_prints_them() -> None:
    assert ssf.TABLE_2[ssf.Place(0.1, 20), "FedSub"] == 1.1295e-2
    assert ssf.TABLE_2[ssf.Place(0.5, 20), "FedAvg"] == 1.1197e-2
    assert ssf.TABLE_3[ssf.Place(2.0, 1), "SSF"] == 2.82e-1
    assert ssf.TABLE_4[ssf.Place(0.1, 50), "SCAFFOLD"] == 7.27e-3


def test_equal_runs_of_two_tables_are_one() -> None:
    two, three = ssf.TARGETS["ssf-table2"], ssf.TARGETS["ssf-table3"]
    place, method = ssf.Place(2.0, 20), ssf.Method("SSF", "increment")
    assert two.run(place, method, 0, 100) == three.run(place, method, 0, 100)
    assert three.run(place, ssf.FEDAVG, 0, 100) == three.run(ssf.Place(2.0, 5), ssf.FEDAVG, 0, 100)
