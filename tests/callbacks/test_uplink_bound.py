"""How many coordinates each device sends: the reference's choices, and brute force."""

import itertools
import json
from typing import Any

import pytest
import torch
from worlds import GOLDEN_FILES

from lfl.callbacks.uplink_bound import (
    best_coordinates_channel_sharing,
    best_coordinates_time_sharing,
    bound_channel_sharing,
    bound_time_sharing,
)

LI = json.loads((GOLDEN_FILES / "li_chooser.json").read_text())["examples"]


@pytest.mark.parametrize("example", LI, ids=[e["name"] for e in LI])
def test_best_coordinates(example: dict[str, Any]) -> None:
    p = example["params"]
    scale = p.get("B", 1000.0) / p.get("eps", 1.0) ** 2
    arguments = (p["F0"], p["L"], p["G"], p["w"])
    if example["scheme"] == "time_sharing":
        found = best_coordinates_time_sharing(*arguments, p["r"], p["d"])
        bound = bound_time_sharing(found, *arguments, p["r"], p["d"]) * scale
    else:
        found = best_coordinates_channel_sharing(*arguments, p["d"])
        bound = bound_channel_sharing(found, *arguments, p["d"]) * scale / p["C"]
    assert found == pytest.approx(example["l"], rel=1e-10)
    assert bound == pytest.approx(example["bound"], rel=1e-10)


@pytest.mark.parametrize("seed", range(6))
def test_best_coordinates_by_brute_force(seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    weights = torch.rand(3, generator=draws).add(0.1)
    weights = (weights / weights.sum()).tolist()
    gap = float(torch.rand(1, generator=draws)) * 3
    arguments = (gap, 1.0, 1.0, weights)
    dim = 9
    whole = min(
        itertools.product(range(1, dim + 1), repeat=3), key=lambda sizes: bound_channel_sharing(sizes, *arguments, dim)
    )
    found = best_coordinates_channel_sharing(*arguments, dim)
    assert bound_channel_sharing(found, *arguments, dim) == pytest.approx(bound_channel_sharing(whole, *arguments, dim))
    rates = torch.rand(3, generator=draws).mul(100).add(1).tolist()
    grid = [dim * (i + 1) / 30 for i in range(30)]
    best = best_coordinates_time_sharing(*arguments, rates, dim)
    lowest = min(bound_time_sharing(sizes, *arguments, rates, dim) for sizes in itertools.product(grid, repeat=3))
    value = bound_time_sharing(best, *arguments, rates, dim)
    assert value <= lowest * (1 + 1e-12)
    for i, step in itertools.product(range(3), (0.99, 1.01)):
        moved = [min(v * (step if i == j else 1), dim) for j, v in enumerate(best)]
        assert bound_time_sharing(moved, *arguments, rates, dim) >= value * (1 - 1e-12)
