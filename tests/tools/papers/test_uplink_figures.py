"""Figures of uplink time on made-up results, and the search for step sizes."""

import math
from typing import Any

from tools.papers import experiments, ssgd
from tools.papers.kept import Numbers

INF = math.inf


def path_of(norms: dict[int, float], losses: dict[int, float] | None = None) -> Any:
    """A run with 10 s of uplink and 5 bytes a round."""
    series = {ssgd.NORM: norms, ssgd.LOSS: losses or dict.fromkeys(norms, 0.2)}
    sent = {ssgd.TIME: {n: 10.0 * n for n in norms}, ssgd.BYTES: {n: 5.0 * n for n in norms}}
    return experiments.Outcome(max(norms), 0.0, "", {**series, **sent})


def test_a_level_is_reached_when_first_met_and_not_where_the_loss_is_flat() -> None:
    outcome = path_of({5: 0.5, 10: 0.39, 15: 0.45, 20: 0.3})
    assert [ssgd.crossing(outcome, level) for level in ssgd.LEVELS] == [10, 20, None, None]
    assert ssgd.crossing(path_of({5: 0.05}, {5: 0.9}), 0.1) is None


def test_scores_prefer_the_harder_level_then_fewer_rounds() -> None:
    far = ssgd.Score.of([path_of({10: 0.4, 90: 0.1}), path_of({20: 0.4, 110: 0.1})])
    near = ssgd.Score.of([path_of({10: 0.1}), path_of({5: 0.3})])  # the second run stops at 0.3
    assert (far.unreached, far.rounds) == (0, 100.0)
    assert (near.unreached, near.rounds) == (2, 7.5)
    assert far < near < ssgd.Score.of([path_of({5: 0.5})])


def tried(*given: Any) -> tuple[list[float], list[int], float]:
    """The rates that a search tries when they score as given, its rounds, and what it chooses."""
    search, rounds = ssgd.Search((8.0, 4.0, 2.0, 1.0, 0.5, 0.25), cap=1000), []
    scores = iter(given)
    while (rate := search.next_rate) is not None:
        rounds.append(search.next_rounds)
        search.scores[rate] = next(scores)
    return list(search.scores), rounds, search.best


def test_a_search_ends_with_the_first_rate_that_is_no_better() -> None:
    """A slower rate that misses as many levels is not the end: a yet smaller one may get there."""
    score = ssgd.Score
    given = [score(4, INF), score(1, 50.0), score(1, 70.0), score(0, 100.0), score(0, 130.0)]
    assert tried(*given) == ([8.0, 4.0, 2.0, 1.0, 0.5], [1000, 1000, 1000, 1000, 150], 1.0)


def test_a_search_ends_when_a_rate_misses_more_levels() -> None:
    score = ssgd.Score
    given = [score(4, INF), score(1, 50.0), score(1, 70.0), score(2, 60.0)]
    assert tried(*given) == ([8.0, 4.0, 2.0, 1.0], [1000] * 4, 4.0)


def times_of(rounds: dict[Any, float]) -> Any:
    """Every level is reached after the given rounds, or never."""
    paths = {case: {int(n): 0.05} if math.isfinite(n) else {9: 0.9} for case, n in rounds.items()}
    return ssgd.Times({case: [path_of(norms)] for case, norms in paths.items()})


def test_numbers_are_seconds_and_rounds_of_every_run() -> None:
    """10 s a round: FL-SSVRG is there after 40 rounds, S-SNAG-EF never; Top-k pays 74 bits, or 64 without indices."""
    rounds = {ssgd.FEDAVG: 80, ssgd.SSGD: 50, ssgd.SSVRG: 40, ssgd.TOPK: 37, ssgd.SNAG: INF, ssgd.SEQUENCES: INF}
    times = times_of({ssgd.case_of(method, 16): count for method, count in rounds.items()})
    numbers = Numbers(times.numbers((16,)))
    assert numbers.settings == ["16 coordinates"]
    assert numbers.mean("FL-SSVRG", "s to 0.1", "16 coordinates") == 400.0
    assert numbers.mean("FL-SSVRG", "rounds to 0.1", "16 coordinates") == 40
    assert numbers.mean("S-SNAG-EF", "s to 0.4", "16 coordinates") == INF
    assert numbers.mean("Top-k EF", "s to 0.1", "16 coordinates") == 370.0
    assert numbers.mean("Top-k EF, indices free", "s to 0.1", "16 coordinates") == 320.0
    assert ssgd.sharing(None) == "time sharing"


def test_a_method_may_have_fewer_runs() -> None:
    figure = ssgd.TimeFigure("made up", (None,), {None: 9}, (1000,), methods=(ssgd.SSGD, ssgd.SNAG))
    outcomes = {
        ssgd.case_of(method, None): [path_of({5: 0.05})] * count for method, count in ((ssgd.SSGD, 3), (ssgd.SNAG, 2))
    }
    table = figure.tabulate(ssgd.Times(outcomes), dict.fromkeys(outcomes, 1.0), dict.fromkeys(outcomes, 9))
    assert table.title == "made up: simulated uplink time, 1e6 s, 3 runs"
    assert table.notes[0] == "Of S-SNAG-EF: 2 runs."
    fewer = ssgd.TARGETS["ssgd-fig2"].fewer
    assert {method.name: count for method, count in fewer.items()} == {"S-SNAG-EF": 10, "S-SNAG-EF, sequences": 10}


def test_times_are_told_by_median_and_quartiles() -> None:
    spread = ssgd.spread
    assert spread([1e6, 2e6, 3e6, 4e6, 5e6]) == "3.00 (2.00 to 4.00)"
    assert spread([1e6, 2e6, INF]) == "2.00 (1.00 to -)"
    assert spread([1e6, INF, INF]) == "not reached"
