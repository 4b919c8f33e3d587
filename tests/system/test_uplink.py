"""Devices that share an uplink."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor
from worlds import GOLDEN_FILES

from lfl.system import ChannelSharing, TimeSharing

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
