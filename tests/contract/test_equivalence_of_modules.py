"""Modules that people bring: each way in which their steps may be computed gives the same numbers, to rounding.

Where a way is not right for a module, it is refused with a reason.
"""

from pathlib import Path

import pytest
import torch
from contract.brought import BROUGHT
from contract.methods import also
from worlds import train

from lfl.trainer import FederatedTrainer


def fitted(name: str, folder: Path, engine: str, trace_steps: bool = False, is_even: bool = False) -> FederatedTrainer:
    torch.manual_seed(0)
    brought = BROUGHT[name]
    options = {"engine": engine, "trace_steps": trace_steps, "check_val_every_n_rounds": 1}
    return train([], folder, brought.make(), brought.data(is_even), **options)


@pytest.mark.parametrize(
    ("engine", "trace_steps"), [("sequential", True), ("vectorized", True), also("vectorized", False)]
)
@pytest.mark.parametrize("name", BROUGHT)
def test_each_way_is_right_or_refused(name: str, engine: str, trace_steps: bool, tmp_path: Path) -> None:
    way = " and ".join(["vectorized"] * (engine == "vectorized") + ["recorded"] * trace_steps)
    brought = BROUGHT[name]
    if way not in brought.ways:
        with pytest.raises((ValueError, RuntimeError), match=r"cannot (train|record the step of) \w+"):
            fitted(name, tmp_path, engine, trace_steps)
        return
    is_even = trace_steps and not brought.is_padded
    plain, fast = (fitted(name, tmp_path, *way, is_even) for way in (("sequential", False), (engine, trace_steps)))
    torch.testing.assert_close(fast.server.vector, plain.server.vector, rtol=0, atol=1e-9)
    for metric in plain.summary.state_dict()["records"]:
        if not metric.startswith("time/"):
            assert fast.summary.last(metric)[0] == pytest.approx(plain.summary.last(metric)[0], abs=1e-9), metric
    if engine == "vectorized" and not is_even:
        assert bool(fast.engine.padded_width) == brought.is_padded
