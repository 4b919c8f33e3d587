"""Links: seconds are bits over rate, per client and both ways; clocks in a row."""

from pathlib import Path

import pytest
import torch
from worlds import Rounds, ragged_data, train

from lfl.callbacks import TopK
from lfl.participation import FastestParticipation
from lfl.system import Consecutive, EqualSpeeds, ExponentialSpeeds, FixedTimes, Links, Unreliable, Workload

IDS = torch.tensor([0, 2])
UP, DOWN = torch.tensor([100.0, 600.0]), torch.tensor([1000.0, 30.0])


def test_seconds_are_bits_over_rate() -> None:
    links = Links(up=[10.0, 1.0, 20.0], down=5.0)
    links.check(3)
    times = links.client_times(IDS, UP, 1, 0, DOWN)
    assert [part.tolist() for part in (times.download, times.compute, times.upload)] == [[200, 6], [0, 0], [10, 30]]
    assert links.round_seconds(IDS, UP, 1, 0, DOWN) == {"time": 210.0}
    assert Links(up=10.0).client_seconds(IDS, UP, 1, 0, DOWN).tolist() == [10.0, 60.0]
    with pytest.raises(ValueError, match="`up` of Links lists 3 rates, but there are 4 clients"):
        links.check(4)
    for name in ("up", "down"):
        with pytest.raises(ValueError, match=f"`{name}=0` of Links must be a number greater than 0"):
            Links(**{name: 0})


def test_rates_of_one_client_differ_alike_both_ways() -> None:
    """The logarithms of 4000 clients' seconds have standard deviation sigma, within 4 sigma / sqrt(8000)."""
    ids = torch.arange(4000)
    links, ones = Links(up=2.0, down=4.0, sigma=0.7), torch.ones(4000)
    times = links.client_times(ids, ones, 1, 0, ones)
    torch.testing.assert_close(times.upload, 2 * times.download, rtol=1e-12, atol=0)
    assert float((2 * times.upload).log().std()) == pytest.approx(0.7, abs=4 * 0.7 / 8000**0.5)
    assert torch.equal(times.upload, links.client_times(ids, ones, 9, 0, ones).upload)


def test_before_bits_are_known_the_whole_model_is_expected_or_what_is_said() -> None:
    with pytest.raises(ValueError, match="needs to know the size of the model"):
        Links(up=1.0).client_seconds(IDS, None, 1, 0)
    links = Links(up=10.0, down=20.0)
    links.prepare(Workload(torch.ones(3), lambda *_: IDS, lambda: IDS, 640.0))
    assert links.client_seconds(IDS, None, 1, 0).tolist() == [96.0, 96.0]
    assert Links(10.0, 20.0, expected_up=10, expected_down=40).client_seconds(IDS, None, 1, 0).tolist() == [3.0, 3.0]


def test_clocks_in_a_row_add_up() -> None:
    parts = [FixedTimes([[1.0, 2.0, 3.0]], communication=0.25), Links(up=10.0), Links(down=5.0), EqualSpeeds(4.0)]
    both = Consecutive(parts)
    both.check(3)
    times = both.client_times(IDS, UP, 1, 0, DOWN)
    assert [part.tolist() for part in (times.download, times.compute)] == [[200, 6], [5, 7]]
    assert times.upload.tolist() == [10.25, 60.25]
    assert torch.equal(both.client_seconds(IDS, UP, 1, 0, DOWN), times.total)
    assert both.compute_seconds(IDS, 1, 0).tolist() == [5.0, 7.0]
    with pytest.raises(ValueError, match=r"`parts=\[\]` of Consecutive"):
        Consecutive([])
    with pytest.raises(ValueError, match="Unreliable inside Consecutive would lose nobody"):
        Consecutive([Unreliable(deadline=1.0)])
    with pytest.raises(ValueError, match="must list 2 numbers"):
        both.check(2)


def test_the_clock_of_a_run_has_the_ledgers_own_bits(tmp_path: Path) -> None:
    """``max_i down_i / d + T_i + up_i / u`` with what each client was charged, top-k's indices included.

    The three fastest of six are the participants, by what is expected of them.
    """
    kept = Rounds()
    speeds = ExponentialSpeeds(dynamic=True)
    system = Consecutive([speeds, Links(up=1e4, down=1e5, expected_up=1e4)])
    trainer = train(
        [TopK(0.1), kept], tmp_path, data=ragged_data(8), system=system, seed=4, max_rounds=4,
        participation=FastestParticipation(3, clients_per_round=6),
    )  # fmt: skip
    seconds, model = 0.0, trainer.layout.dim * 64
    for round in kept.kept:
        assert len(round.clients) == 3
        up = round.totals.uplink_bits
        assert len(set(up.tolist())) == 1
        assert float(up[0]) < 0.2 * model
        computing = speeds.compute_seconds(round.clients, round.number, 4)
        seconds += float((model / 1e5 + computing + up / 1e4).max())
        expected = {int(i): float(speeds.compute_seconds(i[None], round.number, 4)) for i in round.invited}
        assert sorted(sorted(expected, key=expected.__getitem__)[:3]) == round.clients.tolist()
    assert trainer.run.progress.simulated_seconds["time"] == pytest.approx(seconds, rel=1e-12)
