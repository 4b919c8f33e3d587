"""What a round costs, from timed steps: by the numbers of calls and of clients in them."""

import pytest
import torch
from worlds import mlp, ragged_data

from lfl.client.model import ClientModel
from lfl.client.work import LocalWork
from lfl.engine.paths import Path
from lfl.engine.timing import StepCost, StepTimer, largest_batch

SIZES, STEPS = torch.tensor([10, 7, 5]), torch.tensor([2, 2, 1])  # batches of 5: 5 5 | 5 2 | 5


def timer() -> StepTimer:
    data = ragged_data()
    data.setup("fit")
    return StepTimer(ClientModel(mlp()), data, LocalWork(), [], seed=0)


@pytest.mark.parametrize(
    ("path", "seconds"),
    [
        (Path(), 5 * 1.0),  # five batches, one after another
        (Path("vectorized", 3), 3 * 1.0 + 2 * 0.1),  # three of 5 together, then one of 5 and one of 2
        (Path("vectorized", 3, padded_width=5), 2 * 1.0 + 3 * 0.1),  # two steps of all
        (Path("vectorized", 1), 5 * 1.0),
    ],
)
def test_a_round_costs_its_calls_and_their_clients(path: Path, seconds: float) -> None:
    parts = timer()
    engine = path.engine(parts.model, parts.data, parts.work, [], 0)
    assert StepCost(engine, 5, 1.0, 0.1).of_round(SIZES, STEPS) == pytest.approx(seconds)
    assert StepCost(engine, 5, 1.0, 0.1).of_round(SIZES[:0], STEPS[:0]) == 0.0


def test_costs_are_taken_from_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepTimer, "_times", lambda self, engine, count, repeats=5: [9.0, 1.0 + 0.5 * count])
    together, alone = timer().costs((Path("vectorized", 4), 4), (Path(), 1))
    assert (together.alone, together.each) == (1.5, 0.5)
    assert (alone.alone, alone.each) == (1.5, 0.0)
    assert timer().step_time(Path(), 3) == (2.5, False)


def test_a_busy_moment_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def times(self: StepTimer, engine: object, count: int, repeats: int = 5) -> list[float]:
        asked.append(count)
        return [1.0 + 0.5 * count + (100.0 if len(asked) < 4 else 0.0)]  # busy in the first turn

    monkeypatch.setattr(StepTimer, "_times", times)
    together, alone = timer().costs((Path("vectorized", 4), 4), (Path(), 1))
    assert (together.alone, together.each, alone.alone) == (1.5, 0.5, 1.5)


@pytest.mark.parametrize("path", [Path(recording=True), Path("vectorized", 3, padded_width=5), Path("vectorized", 3)])
def test_timing_leaves_the_model_alone(path: Path) -> None:
    parts = timer()
    before = parts.model.flat_parameters()
    (cost,) = parts.costs((path, path.cohort_size))
    assert cost.alone > 0
    assert torch.equal(parts.model.flat_parameters(), before)


def test_the_largest_batch() -> None:
    parts = timer()
    batch, keys = largest_batch(parts.data, parts.model, 0, 3)
    assert batch[0].shape[:2] == (3, 5)
    assert len(set(keys.tolist())) == 3
