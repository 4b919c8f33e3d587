"""The reproduction: its tables and claims on made-up results, its step-size search, and runs from end to end."""

import csv
import importlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import train

from lfl.callbacks import FedSub, RandomK, TopK
from lfl.callbacks.topk import keep_largest
from lfl.checkpointing import Checkpointing
from lfl.participation import FixedParticipation, FullParticipation
from lfl.subspace import LayerwiseSubspace

TOOLS = Path(__file__).parent.parent / "tools"
INF, NAN = math.inf, math.nan


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a tool as it imports its neighbours."""
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# -- runs ----


@pytest.mark.filterwarnings("ignore")  # whatever Lightning deprecates; the runs are the subject
def test_quick_table_from_end_to_end(tool: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["ssf-noiseless", "--quick", "--rounds", "3", "--output", str(tmp_path)]
    tool("reproduce").main(arguments)
    first = capfd.readouterr()
    lines = rows(tmp_path / "ssf-noiseless.csv")
    assert [line["method"] for line in lines] == [str(m) for m in tool("reproduce_ssf").NOISELESS]
    assert all(0 < float(line["ours"]) < 2 for line in lines)
    assert len(rows(tmp_path / "ssf-noiseless-claims.csv")) == 9
    assert "NOT A REPRODUCTION" in (tmp_path / "ssf-noiseless.md").read_text()
    assert (tmp_path / "ssf-noiseless.png").read_bytes().startswith(b"\x89PNG")
    assert first.err.count("3 rounds") == 9
    assert [path.suffix for path in (tmp_path / "results").iterdir()] == [".json"] * 9  # and no run folder

    tool("reproduce").main(arguments)
    again = capfd.readouterr()
    assert again.err == ""  # nothing was run again
    assert again.out == first.out


@pytest.mark.filterwarnings("ignore")
def test_quick_figure_from_end_to_end(tool: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["ssgd-fig2", "--quick", "--rounds", "5", "--seeds", "1", "--output", str(tmp_path)]
    tool("reproduce").main(arguments)
    lines = rows(tmp_path / "ssgd-fig2.csv")
    names = ["FedAvg", "FL-SSGD", "FL-SSVRG", "Top-k EF", "Top-k EF, indices free", "S-SNAG-EF"]
    assert [line["method"] for line in lines] == names
    assert {line["to 0.1"] for line in lines} == {"not reached"}
    assert not any(line["here"] == "holds" for line in rows(tmp_path / "ssgd-fig2-claims.csv"))
    assert (tmp_path / "ssgd-fig2.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.filterwarnings("ignore")
def test_a_run_stops_when_it_is_there_and_when_it_diverges(tool: Any, tmp_path: Path) -> None:
    experiments, ssgd = tool("experiments"), tool("reproduce_ssgd")
    laboratory = experiments.Laboratory(TOOLS.parent / "configs" / "problems", tmp_path, tell=lambda said: None)
    small = (("model.init_args.dim", 20), ("data.init_args.dim", 20), ("trainer.callbacks", "null"))
    config, norms = ssgd.FEDAVG.config, (ssgd.NORM, ssgd.LOSS, ssgd.TIME)
    stop = ("trainer.callbacks+", "stopping.StopAtGradientNorm")
    limits = (("trainer.callbacks.init_args.norm", 0.5), ("trainer.callbacks.init_args.loss", 0.4))
    runs = {
        rate: experiments.Run(config, 100, 0, norms, (*small, ("model.init_args.lr", rate), stop, *limits))
        for rate in (100.0, 1e6)
    }
    good, bad = (laboratory.outcomes(runs.values())[run] for run in runs.values())
    assert 0 < good.last_round < 100
    assert ssgd.crossing(good, 0.5) == good.last_round
    assert bad.last_round == 5  # the first evaluation
    assert bad.series[ssgd.LOSS][5] > 0.4
    assert ssgd.crossing(bad, INF) is None


def test_a_result_belongs_to_its_settings_and_its_file(tool: Any, tmp_path: Path) -> None:
    experiments = tool("experiments")
    (tmp_path / "a.yaml").write_text("one: 1\n")
    run = experiments.Run("a.yaml", 5, 0, ("loss",), (("x", 1),))
    name = run.name(tmp_path)
    others = [
        experiments.Run("a.yaml", 6, 0, ("loss",), (("x", 1),)),
        experiments.Run("a.yaml", 5, 1, ("loss",), (("x", 1),)),
        experiments.Run("a.yaml", 5, 0, ("acc",), (("x", 1),)),
        experiments.Run("a.yaml", 5, 0, ("loss",), (("x", 2),)),
    ]
    assert len({name, *(other.name(tmp_path) for other in others)}) == 5
    (tmp_path / "a.yaml").write_text("one: 2\n")
    assert run.name(tmp_path) != name


def test_an_outcome_is_read_as_it_was_written(tool: Any, tmp_path: Path) -> None:
    experiments = tool("experiments")
    run = experiments.Run("a.yaml", 5, 0, ("loss",))
    outcome = experiments.Outcome(4, 1.5, "not finite", {"loss": {2: 0.1 + 0.2, 4: INF}})
    outcome.write(tmp_path / "a.json", run)
    assert experiments.Outcome.read(tmp_path / "a.json") == outcome
    assert json.loads((tmp_path / "a.json").read_text())["settings"]["seed_everything"] == 0


# -- the tables of errors ----


def errors_of(tool: Any, tails: dict[Any, list[float]], rounds: int = 10) -> Any:
    """Every run has error 1, and in the last of 10 rounds what ``tails`` says; nan for one that ended in round 5."""
    ssf, experiments = tool("reproduce_ssf"), tool("experiments")

    def outcome(value: float) -> Any:
        last = 5 if math.isnan(value) else rounds
        series = {n: value if n == rounds else 1.0 for n in range(1, last + 1)}
        return experiments.Outcome(last, 0.0, "NaN" if math.isnan(value) else "", {"val_error": series})

    return ssf.Errors({key: [outcome(value) for value in values] for key, values in tails.items()}, rounds)


def test_tail_is_the_root_mean_square_of_the_last_tenth(tool: Any) -> None:
    """Rounds 10 to 100 by tens: those after 90 count; of rounds 19 and 20 of 20, both, sqrt((9 + 16) / 2)."""
    ssf, experiments = tool("reproduce_ssf"), tool("experiments")
    place, method = ssf.Place(0.5, 20), ssf.FEDAVG
    series = dict.fromkeys(range(1, 19), 100.0) | {19: 3.0, 20: 4.0}
    errors = ssf.Errors({(place, method): [experiments.Outcome(20, 0.0, "", {"val_error": series})]}, 20)
    assert errors.tail(place, method) == pytest.approx(math.sqrt(12.5), rel=1e-15)
    assert errors.last(place, method) == 4.0
    assert errors.peak(place, method) == 100.0


def test_the_table_has_published_and_ours_side_by_side(tool: Any) -> None:
    ssf = tool("reproduce_ssf")
    target = ssf.TARGETS["ssf-table3"]
    place = ssf.Place(2.0, 50)
    tails = {(place, method): [3.0e-3, 5.0e-3] for method in ssf.METHODS}
    tails[place, ssf.Method("FedSub", "stale")] = [NAN, 5.0e-3]
    table = target.tabulate(errors_of(tool, tails), [place], seeds=2)
    lines = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    ssf_line = lines["SSF, sampled_mean"]
    assert (ssf_line["paper"], ssf_line["ours"], ssf_line["ours / paper"]) == ("3.03e-03", "4.00e-03", "1.32")
    assert (ssf_line["het"], ssf_line["r"], ssf_line["over seeds"]) == ("2", "50", "3.00e-03 to 5.00e-03")
    assert (lines["FedSub, public"]["paper"], lines["FedSub, public"]["ours / paper"]) == ("NaN", "")
    assert lines["FedSub, stale"]["ours"] == "NaN"
    assert len(lines) == 7


def test_claims_about_the_order(tool: Any) -> None:
    ssf = tool("reproduce_ssf")
    place = ssf.Place(0.5, 20)
    values = {"SCAFFOLD, increment": 1.0, "SSF, increment": 2.0, "SCAFFOLD, sampled_mean": 3.0}
    values |= {"SSF, sampled_mean": 2.5, "FedAvg": 4.0, "FedSub, public": 3.0, "FedSub, stale": NAN}
    errors = errors_of(tool, {(place, method): [values[str(method)]] for method in ssf.METHODS})
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


def test_claims_about_ranks_and_divergence(tool: Any) -> None:
    ssf = tool("reproduce_ssf")
    places = [ssf.Place(2.0, 5), ssf.Place(2.0, 50)]
    tails = {(place, method): [0.1 / place.rank] for place in places for method in ssf.METHODS}
    tails[places[1], ssf.Method("SSF", "sampled_mean")] = [0.5]
    tails[places[1], ssf.Method("FedSub", "stale")] = [NAN]
    errors = errors_of(tool, tails)
    assert [claim.holds for claim in ssf.claims_of_ranks(errors, places)] == [True, False]
    public, stale = ssf.claims_of_divergence(errors, places[1:])
    assert (public.holds, stale.holds) == (False, True)
    assert public.numbers == "0 run(s) not finite; largest error in the second half 1.00"


def test_published_numbers_stand_where_the_paper_prints_them(tool: Any) -> None:
    ssf = tool("reproduce_ssf")
    assert ssf.TABLE_2[ssf.Place(0.1, 20), "FedSub"] == 1.1295e-2
    assert ssf.TABLE_2[ssf.Place(0.5, 20), "FedAvg"] == 1.1197e-2
    assert ssf.TABLE_3[ssf.Place(2.0, 1), "SSF"] == 2.82e-1
    assert ssf.TABLE_4[ssf.Place(0.1, 50), "SCAFFOLD"] == 7.27e-3


def test_equal_runs_of_two_tables_are_one(tool: Any) -> None:
    ssf = tool("reproduce_ssf")
    two, three = ssf.TARGETS["ssf-table2"], ssf.TARGETS["ssf-table3"]
    place, method = ssf.Place(2.0, 20), ssf.Method("SSF", "increment")
    assert two.run(place, method, 0, 100) == three.run(place, method, 0, 100)
    assert three.run(place, ssf.FEDAVG, 0, 100) == three.run(ssf.Place(2.0, 5), ssf.FEDAVG, 0, 100)


# -- the figures of uplink time ----


def path_of(tool: Any, norms: dict[int, float], losses: dict[int, float] | None = None) -> Any:
    """A run with 10 s of uplink a round."""
    ssgd, experiments = tool("reproduce_ssgd"), tool("experiments")
    series = {ssgd.NORM: norms, ssgd.LOSS: losses or dict.fromkeys(norms, 0.2)}
    return experiments.Outcome(max(norms), 0.0, "", {**series, ssgd.TIME: {n: 10.0 * n for n in norms}})


def test_a_level_is_reached_when_first_met_and_not_where_the_loss_is_flat(tool: Any) -> None:
    ssgd = tool("reproduce_ssgd")
    outcome = path_of(tool, {5: 0.5, 10: 0.39, 15: 0.45, 20: 0.3})
    assert [ssgd.crossing(outcome, level) for level in ssgd.LEVELS] == [10, 20, None, None]
    assert ssgd.crossing(path_of(tool, {5: 0.05}, {5: 0.9}), 0.1) is None


def test_scores_prefer_the_harder_level_then_fewer_rounds(tool: Any) -> None:
    ssgd = tool("reproduce_ssgd")
    far = ssgd.Score.of([path_of(tool, {10: 0.4, 90: 0.1}), path_of(tool, {20: 0.4, 110: 0.1})])
    near = ssgd.Score.of([path_of(tool, {10: 0.1}), path_of(tool, {5: 0.3})])  # the second run stops at 0.3
    assert (far.unreached, far.rounds) == (0, 100.0)
    assert (near.unreached, near.rounds) == (2, 7.5)
    assert far < near < ssgd.Score.of([path_of(tool, {5: 0.5})])


def tried(tool: Any, *given: Any) -> tuple[list[float], list[int], float]:
    """The rates that a search tries when they score as given, its rounds, and what it chooses."""
    search, rounds = tool("reproduce_ssgd").Search((8.0, 4.0, 2.0, 1.0, 0.5, 0.25), cap=1000), []
    scores = iter(given)
    while (rate := search.next_rate) is not None:
        rounds.append(search.next_rounds)
        search.scores[rate] = next(scores)
    return list(search.scores), rounds, search.best


def test_a_search_ends_with_the_first_rate_that_is_no_better(tool: Any) -> None:
    """A slower rate that misses as many levels is not the end: a yet smaller one may get there."""
    score = tool("reproduce_ssgd").Score
    given = [score(4, INF), score(1, 50.0), score(1, 70.0), score(0, 100.0), score(0, 130.0)]
    assert tried(tool, *given) == ([8.0, 4.0, 2.0, 1.0, 0.5], [1000, 1000, 1000, 1000, 150], 1.0)


def test_a_search_ends_when_a_rate_misses_more_levels(tool: Any) -> None:
    score = tool("reproduce_ssgd").Score
    given = [score(4, INF), score(1, 50.0), score(1, 70.0), score(2, 60.0)]
    assert tried(tool, *given) == ([8.0, 4.0, 2.0, 1.0], [1000] * 4, 4.0)


def times_of(tool: Any, rounds: dict[Any, float]) -> Any:
    """Every level is reached after the given rounds, or never."""
    ssgd = tool("reproduce_ssgd")
    paths = {case: {int(n): 0.05} if math.isfinite(n) else {9: 0.9} for case, n in rounds.items()}
    return ssgd.Times({case: [path_of(tool, norms)] for case, norms in paths.items()})


def test_claims_of_time_sharing(tool: Any) -> None:
    ssgd = tool("reproduce_ssgd")
    rounds = {ssgd.FEDAVG: 50, ssgd.SSGD: 40, ssgd.SSVRG: 10, ssgd.TOPK: 12, ssgd.SNAG: INF}
    times = times_of(tool, {ssgd.case_of(method, None): n for method, n in rounds.items()})
    claims = ssgd.claims_of_figure_2(times, (None,))
    assert [claim.holds for claim in claims] == [True] * 10
    slow = times_of(tool, {ssgd.case_of(method, None): INF for method in rounds})
    assert not any(claim.holds for claim in ssgd.claims_of_figure_2(slow, (None,)))


def test_claims_of_channel_sharing(tool: Any) -> None:
    ssgd = tool("reproduce_ssgd")
    few = {ssgd.SSGD: INF, ssgd.SSVRG: 70, ssgd.TOPK: 60, ssgd.SNAG: 900}
    many = {ssgd.SSGD: 50, ssgd.SSVRG: 40, ssgd.TOPK: 50, ssgd.SNAG: 60}
    rounds = {ssgd.case_of(ssgd.FEDAVG, None): 80}
    rounds |= {ssgd.case_of(m, size): n for size, group in ((16, few), (1000, many)) for m, n in group.items()}
    claims = ssgd.claims_of_figure_3(times_of(tool, rounds), (16, 1000))
    assert [claim.holds for claim in claims] == [False, True, True, True]
    assert "FL-SSGD not reached, FL-SSVRG 1.75" in claims[2].numbers


def test_times_are_told_by_median_and_quartiles(tool: Any) -> None:
    spread = tool("reproduce_ssgd").spread
    assert spread([1e6, 2e6, 3e6, 4e6, 5e6]) == "3.00 (2.00 to 4.00)"
    assert spread([1e6, 2e6, INF]) == "2.00 (1.00 to -)"
    assert spread([1e6, INF, INF]) == "not reached"


def test_an_order_with_a_diverged_value(tool: Any) -> None:
    ordered = tool("claims").ordered
    assert ordered("", {"a": 1.0, "b": NAN}).holds
    assert not ordered("", {"a": NAN, "b": 1.0}).holds
    assert not ordered("", {"a": 1.0, "b": 1.0}).holds
    assert ordered("", {"a": 6.3e-3, "b": INF}).numbers == "a 6.30e-03, b diverged"
    assert ordered("", {"a": NAN, "b": INF}).holds is None  # nothing to compare


# -- the callbacks that the reproduction needs ----


def test_stale_duals_by_hand(tmp_path: Path) -> None:
    """Full rank, so that a basis is a rotation. Client 1 takes part in round 1 only, client 2 never.

    lambda_1 = (z_1 - zbar_1) + (z_1 - zbar_2), lambda_2 = -zbar_1 - zbar_2, with one basis for both rounds.
    """
    means = []

    class Watched(FedSub):
        def on_server_step(self, round) -> None:
            means.append(round.update_coordinates.clone())
            super().on_server_step(round)

    callback = Watched(LayerwiseSubspace(0.3), refresh_every=2, variant="stale")
    trainer = train([callback], tmp_path, max_rounds=2, participation=FixedParticipation([[0, 1], [0, 3]]))
    store = trainer.store
    ids = torch.tensor([1, 2])
    last = store.gather("fedsub/last", ids)
    assert not last[1].any()
    torch.testing.assert_close(store.gather("fedsub/dual", ids), 2 * last - means[0] - means[1], rtol=0, atol=1e-14)


def test_with_all_clients_stale_is_public(tmp_path: Path) -> None:
    vectors = [
        train(
            [FedSub(LayerwiseSubspace(0.3), refresh_every=2, variant=variant)],
            tmp_path,
            participation=FullParticipation(),
        ).server.vector
        for variant in ("public", "stale")
    ]
    assert torch.equal(*vectors)


def test_stale_duals_survive_a_restart(tmp_path: Path) -> None:
    checkpoint = Checkpointing(every_n_rounds=2, keep_all=True)
    stack = [FedSub(LayerwiseSubspace(0.3), refresh_every=2, variant="stale")]
    unbroken = train(stack, tmp_path / "unbroken", max_rounds=5, checkpoint=checkpoint)
    saved = Path(unbroken.log_dir) / "checkpoints" / "round_000002.ckpt"
    resumed = train(stack, tmp_path / "resumed", ckpt_path=str(saved), max_rounds=5, checkpoint=checkpoint)
    assert torch.equal(resumed.server.vector, unbroken.server.vector)


def test_random_k_with_error_feedback_loses_nothing(tmp_path: Path) -> None:
    """What the server moved, times the clients, and what they still hold is what they found, when x never moves."""
    found = []

    class Found(RandomK):
        def encode(self, cohort, payload):
            found.append(payload.values.clone())
            sent = super().encode(cohort, payload)
            assert ((sent.values != 0).sum(dim=1) <= sent.bits // 64).all()
            return sent

    schedule = FixedParticipation([[1, 4]])
    trainer = train([Found([3, 5, 3, 3, 7, 3, 3, 3])], tmp_path, participation=schedule)
    start = train([], tmp_path, max_rounds=0).server.vector
    held = trainer.store.gather("random-k/error", torch.tensor([1, 4])).sum(dim=0)
    total = torch.cat(found).sum(dim=0)
    moved = 2 * (trainer.server.vector - start)
    torch.testing.assert_close(moved + held, total, rtol=0, atol=1e-12)
    assert trainer.ledger.totals["up"] == 3 * (5 + 7) * 64


def test_random_k_without_error_feedback_is_scaled(tmp_path: Path) -> None:
    class Check(RandomK):
        def encode(self, cohort, payload):
            sent = super().encode(cohort, payload).values
            kept = sent != 0
            torch.testing.assert_close(sent[kept], payload.values[kept] * (sent.shape[1] / 30), rtol=1e-14, atol=0)
            assert (kept.sum(dim=1) <= 30).all()
            return type(payload)(sent, 0)

    trainer = train([Check(30, error_feedback=False)], tmp_path)
    assert not trainer.store.slots


def test_random_k_of_everything_is_fedavg(tmp_path: Path) -> None:
    both = [train(stack, tmp_path).server.vector for stack in ([], [RandomK(1.0)])]
    assert torch.equal(*both)


def test_a_number_of_entries_for_each_client(tmp_path: Path) -> None:
    values = torch.tensor([[1.0, -3.0, 2.0], [1.0, -1.0, 1.0]])
    kept = keep_largest(values, torch.tensor([2, 1]))
    assert kept.tolist() == [[0.0, -3.0, 2.0], [1.0, 0.0, 0.0]]
    trainer = train([TopK([3] * 4 + [7] * 4)], tmp_path, participation=FixedParticipation([[1, 4]]), max_rounds=1)
    index_bits = math.ceil(math.log2(trainer.layout.dim))
    assert trainer.ledger.totals["up"] == (3 + 7) * (64 + index_bits)
    with pytest.raises(ValueError, match="`k` lists 2 numbers, but there are 8 clients"):
        train([TopK([3, 3])], tmp_path)
    with pytest.raises(ValueError, match="`k=0` must be at least 1"):
        RandomK([1, 0])
    with pytest.raises(ValueError, match="`k=1000000` must not exceed D="):
        train([RandomK(1000000)], tmp_path)
