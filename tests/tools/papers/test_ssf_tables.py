"""Tables of the SSF paper on made-up results."""

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


def test_numbers_of_a_table_are_tails_and_peaks() -> None:
    target, place = ssf.TARGETS["ssf-table2"], ssf.Place(0.5, 20)
    tails = {(place, method): [1.0e-3, 2.0e-3] for method in ssf.METHODS}
    tails[place, ssf.Method("FedSub", "stale")] = [NAN, 2.0e-3]
    rows = {(row.method, row.quantity, row.seed): row for row in target.numbers(errors_of(tails), [place])}
    assert rows["SSF, increment", "rms tail", 1].value == 2.0e-3
    assert rows["SSF, increment", "rms tail", 1].setting == "het 0.5, r = 20"
    assert math.isnan(rows["FedSub, stale", "rms tail", 0].value)
    assert rows["FedAvg", "peak of the second half", 0].value == 1.0
    assert len(rows) == 7 * 3


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
