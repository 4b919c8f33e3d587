"""Simulated seconds: speeds, and devices that share an uplink."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor
from worlds import GOLDEN_FILES

from lfl.system import ChannelSharing, ExponentialSpeeds, FixedTimes, TimeSharing


def test_order_statistics_of_the_speeds() -> None:
    """The n-th fastest of 100 unit exponentials takes sum_{j=101-n..100} 1/j: 0.105, 0.222, 0.508, 1.590, 5.187."""
    system, ids = ExponentialSpeeds(dynamic=True), torch.arange(100)
    draws = torch.stack([system.compute_seconds(ids, number, 0) for number in range(1, 2001)]).sort(dim=1).values
    for n, expected in ((10, 0.105), (20, 0.222), (40, 0.508), (80, 1.590), (100, 5.187)):
        error = float(draws[:, n - 1].std()) / len(draws) ** 0.5
        assert float(draws[:, n - 1].mean()) == pytest.approx(expected, abs=4 * error + 5e-4)


def test_fixed_speeds_stay_and_ranges_are_kept() -> None:
    ids = torch.arange(2000)
    fixed = ExponentialSpeeds(rates=2.0)
    assert torch.equal(fixed.compute_seconds(ids, 1, 0), fixed.compute_seconds(ids, 9, 0))
    assert float(fixed.compute_seconds(ids, 1, 0).mean()) == pytest.approx(0.5, abs=4 * 0.5 / 2000**0.5)
    means = ExponentialSpeeds(means=[1.0, 100.0], dynamic=True)
    drawn = torch.stack([means.compute_seconds(ids[:50], number, 0) for number in range(2000)]).mean(dim=0)
    assert float(drawn.min()) >= 1.0
    assert float(drawn.max()) < 100 * 1.1
    assert FixedTimes([[1.0, 2.0], [3.0, 4.0]]).compute_seconds(torch.tensor([1]), 4, 0).tolist() == [4.0]


GOLDEN = json.loads((GOLDEN_FILES / "fl_ssgd.json").read_text())


def double(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_uplink_time() -> None:
    example = GOLDEN["uplink_time_example"]
    for system, expected in (
        (TimeSharing([float(rate) for rate in example["r"]]), example["time_sharing"]),
        (ChannelSharing(300.0, split="equal"), example["channel_C=300_equal_shares"]),
    ):
        for method, seconds in expected.items():
            rounds = [double(dims) * example["B"] for dims in GOLDEN["uplink_dims"][method]]
            assert sum(system.uplink_seconds(torch.arange(3), bits) for bits in rounds) == pytest.approx(seconds), (
                method
            )
    assert ChannelSharing(300.0).uplink_seconds(torch.arange(3), torch.tensor([100.0, 200.0, 300.0])) == 2.0
    with pytest.raises(ValueError, match="lists 2 rates, but there are 3 clients"):
        TimeSharing([1.0, 2.0]).check(3)
