"""What frozen layers make of examples: computed once, and the numbers of a run stay."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from worlds import cnn, equal_data, ragged_data, train

from lfl.callbacks import PersonalParameters, Scaffold
from lfl.checkpointing import Checkpointing
from lfl.client.schedule import BatchPlan
from lfl.engine import LocalPhase
from lfl.engine.base import LocalEngine
from lfl.engine.trunk import PhaseTrunk
from lfl.models import Classifier

HEAD, FEATURES = ["backbone.head.*"], ["backbone.layers.*"]
PHASES = [LocalPhase(HEAD, epochs=3), LocalPhase(FEATURES, epochs=2)]


@pytest.fixture(autouse=True)
def _with_trunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalEngine, "keeps_trunks", True)


def plan(*indices: int) -> BatchPlan:
    return BatchPlan(0, 1, slice(0, 1), torch.tensor([indices]), None, float(len(indices)))


def test_values_are_kept_by_example() -> None:
    """Examples 7 and 9 are kept; those of a batch with 8 are computed."""
    trunk = PhaseTrunk(torch.tensor([[9, 7, 8, 0]]))
    computed: list[float] = []

    def of(*indices: int) -> Any:
        def compute() -> list[Tensor]:
            computed.extend(indices)
            return [10.0 * torch.tensor([indices])[..., None]]

        return trunk.values(plan(*indices), compute)[0].flatten().tolist()

    assert of(7, 9) == [70, 90]
    assert of(8, 7) == [80, 70]
    assert computed == [7, 9, 8, 7]
    assert of(9, 8) == [90, 80]  # the first that is read again is compared
    assert computed == [7, 9, 8, 7, 9, 8]
    assert of(7, 8) == [70, 80]
    assert len(computed) == 6


def test_an_example_that_sees_others_is_found_out() -> None:
    """Examples 0 and 2 were kept beside means of 0.5 and 1.5; their own is 1. From then on all is computed."""
    trunk = PhaseTrunk(torch.tensor([[0, 1, 2]]))

    def of(*indices: int) -> Any:
        values = torch.tensor([indices], dtype=torch.float64)[..., None]
        return trunk.values(plan(*indices), lambda: [values - values.mean()])[0].flatten().tolist()

    assert [of(0, 1), of(1, 2)] == [[-0.5, 0.5], [-0.5, 0.5]]
    assert not trunk.mixes
    assert of(0, 2) == [-1.0, 1.0]
    assert trunk.mixes
    assert of(2, 0) == [1.0, -1.0]


def test_only_batches_of_the_width_are_kept() -> None:
    assert PhaseTrunk(torch.arange(4)[None], width=2).at(plan(0, 1, 2)) is None
    assert PhaseTrunk(torch.arange(4)[None], width=2).at(plan(0, 1)) is not None


class Counted:
    """Counts the batches that are kept, and those that are computed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = self.computed = 0
        plain = PhaseTrunk.values

        def values(trunk: PhaseTrunk, plan: BatchPlan, compute: Any) -> list[Tensor]:
            def counted() -> list[Tensor]:
                self.computed += 1
                found: list[Tensor] = compute()
                return found

            self.asked += 1
            return plain(trunk, plan, counted)

        monkeypatch.setattr(PhaseTrunk, "values", values)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_heads_are_trained_on_features_that_are_computed_once(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """15 examples in batches of 5, three epochs: 3 of 9 steps compute, and one compares; features have no trunk."""
    counted = Counted(monkeypatch)
    runs = [
        train(
            [PersonalParameters(HEAD)], tmp_path, cnn(), equal_data(), engine=engine, local_phases=PHASES,
            max_rounds=2, trace_steps=trace,
        )
        for trace in (False, True)
    ]  # fmt: skip
    torch.testing.assert_close(runs[0].server.vector, runs[1].server.vector, rtol=0, atol=1e-12)
    rows = [run.store.gather("personal", torch.arange(8)) for run in runs]
    torch.testing.assert_close(*rows, rtol=0, atol=1e-12, equal_nan=True)  # of those that were never asked
    cohorts = 2 * (5 if engine == "sequential" else 1)
    assert (counted.asked, counted.computed) == (9 * cohorts, 4 * cohorts)


@pytest.mark.parametrize(
    "options",
    [
        {"callbacks": [Scaffold()]},  # which may ask for the gradient elsewhere
        {"callbacks": [], "local_phases": [LocalPhase(HEAD, epochs=1), LocalPhase(FEATURES)]},
        {"callbacks": [], "trace_steps": False},
    ],
    ids=["wrapped gradients", "one epoch", "not recorded"],
)
def test_nothing_is_kept(options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    settings = {"local_phases": PHASES, "trace_steps": True, "max_rounds": 1, **options}
    train(settings.pop("callbacks"), tmp_path, cnn(), equal_data(), **settings)
    assert counted.asked == 0


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_clients_of_different_sizes(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    runs = [
        train([], tmp_path, cnn(), ragged_data(), engine=engine, local_phases=PHASES, max_rounds=1, trace_steps=trace)
        for trace in (False, True)
    ]
    torch.testing.assert_close(runs[0].server.vector, runs[1].server.vector, rtol=0, atol=1e-12)
    assert 0 < counted.computed < counted.asked


class Centred(nn.Module):
    """Features from which the mean over the batch is taken."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.Linear(64, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        features = self.layers(x.flatten(1))
        return self.head(features - features.mean(0))


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_features_that_depend_on_the_batch_are_computed_at_each_step(
    engine: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def run(trace: bool) -> Any:
        torch.manual_seed(0)
        module = Classifier(Centred(), lr=0.1)
        phases = [LocalPhase(HEAD, epochs=3), LocalPhase(FEATURES)]
        return train([], tmp_path, module, equal_data(), engine=engine, local_phases=phases, trace_steps=trace)

    runs = [run(trace) for trace in (False, True)]
    torch.testing.assert_close(runs[0].server.vector, runs[1].server.vector, rtol=0, atol=1e-12)
    assert caplog.text.count("depends on the others of its batch") == 1


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_a_resumed_run_has_the_same_bits(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept follows from the round and the batch: in a run that waits with recording, too."""
    counted = Counted(monkeypatch)
    options: dict[str, Any] = {
        "engine": engine,
        "precision": "32-true",
        "local_phases": [LocalPhase(HEAD, epochs=8), LocalPhase(FEATURES)],
        "max_rounds": 6,
        "checkpoint": Checkpointing(every_n_rounds=2, keep_all=True),
    }
    whole = train([], tmp_path / "whole", cnn(), equal_data(), **options)
    asked = counted.asked
    assert asked > 0
    for round in (2, 4):
        checkpoint = Path(str(whole.log_dir)) / "checkpoints" / f"round_00000{round}.ckpt"
        resumed = train([], tmp_path / f"{round}", cnn(), equal_data(), ckpt_path=str(checkpoint), **options)
        assert torch.equal(resumed.server.vector, whole.server.vector)
    assert counted.asked > asked


class _WithoutOutliers(nn.Module):
    """Zeroes examples beyond twice the median length of their batch, of which few batches have one."""

    def forward(self, x: Tensor) -> Tensor:
        lengths = x.flatten(1).norm(dim=1)
        return x * (lengths <= 2 * lengths.median()).to(x)[:, None]


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_nothing_is_kept_by_default(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One comparison cannot find layers that mix examples in some batches only."""
    monkeypatch.setattr(LocalEngine, "keeps_trunks", False)
    count, vectors = Counted(monkeypatch), []
    for name, trace in ((engine, True), ("sequential", False)):
        torch.manual_seed(0)
        backbone = nn.Sequential()
        backbone.add_module("body", nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.ReLU(), _WithoutOutliers()))
        backbone.add_module("head", nn.Linear(3, 4))
        options: dict[str, Any] = {"engine": name, "trace_steps": trace, "local_phases": [LocalPhase(HEAD, epochs=3)]}
        vectors.append(train([], tmp_path, Classifier(backbone, lr=0.1), equal_data(), **options).server.vector)
    assert count.asked == 0
    torch.testing.assert_close(vectors[0], vectors[1], rtol=0, atol=1e-9)
