"""SRPFL on linear representations: Algorithm 2 against an independent float64 reference, and the data."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from worlds import GOLDEN_FILES, Bystander, train

from lfl.callbacks import PersonalParameters
from lfl.checkpointing import Checkpointing
from lfl.engine import LocalPhase
from lfl.participation import DoublingParticipation, FullParticipation
from lfl.problems import LinearRepresentation, LinearRepresentationData, Orthonormalize
from lfl.problems.base import ProblemData
from lfl.problems.linear_representation import best_head, leading_subspace, orthonormal, principal_distance
from lfl.system import ExponentialSpeeds, FixedTimes

GOLDEN = json.loads((GOLDEN_FILES / "srpfl_linear.json").read_text())
SETTINGS = GOLDEN["settings"]
D, K, N, M = GOLDEN["d"], GOLDEN["k"], GOLDEN["N"], GOLDEN["m"]


def double(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(actual: Tensor, expected: Any, atol: float = 1e-10) -> None:
    torch.testing.assert_close(actual, double(expected), rtol=0, atol=atol)


class GoldenData(LinearRepresentationData):
    """The reference's samples: those of the start are stored, those of a round are handed out in it."""

    def __init__(self) -> None:
        super().__init__(N, M, D, K)
        self.round_number = 0

    def setup(self, stage: str) -> None:
        self.truth, self.heads = double(GOLDEN["B_star"]), double(GOLDEN["W_star"])
        self.x, self.y = double(GOLDEN["X"]), double(GOLDEN["Y"])
        self.examples = (self.x[0].flatten(0, 1), self.y[0].flatten())

    def gather(self, indices: Tensor, keys: Tensor | None = None) -> tuple[Tensor, ...]:
        return tuple(part[self.round_number].flatten(0, 1)[indices] for part in (self.x, self.y))


class Watch(Bystander):
    """Tells the data module which round it is, and keeps what the rounds did."""

    def __init__(self) -> None:
        self.rounds: list[dict[str, Any]] = []

    def on_round_start(self, round) -> None:
        if isinstance(self.run.data, GoldenData):
            self.run.data.round_number = round.number

    def on_round_end(self, round) -> None:
        matrix = self.run.server.vector.view(self.run.layout.shapes[0]).clone()
        metrics = {"dist": round.metrics["val_distance"], "clock": round.metrics.get("sim/time")}
        self.rounds.append({"B": matrix, "participants": round.clients.tolist(), **metrics})


def run(folder: Path, data: LinearRepresentationData, **options: Any) -> list[dict[str, Any]]:
    """What every round of Algorithm 2 did."""
    lr, start = options.pop("lr", 0.125), options.pop("start", "moments")
    watch = Watch()
    settings = {"engine": "vectorized", "local_steps": 1, "logger": False, "check_val_every_n_rounds": 1, **options}
    train([Orthonormalize(start), watch], folder, LinearRepresentation(data.dim, data.rank, lr), data, **settings)
    return watch.rounds


def golden_run(folder: Path, engine: str, speeds: str, participation: Any) -> list[dict[str, Any]]:
    times = SETTINGS["dynamic_times"] if speeds == "dynamic" else [SETTINGS["fixed_times"]]
    options = {"engine": engine, "system": FixedTimes(times, SETTINGS["C"]), "participation": participation}
    return run(folder, GoldenData(), lr=SETTINGS["eta"], max_rounds=6, **options)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("case", ["srpfl_fixed", "srpfl_dynamic", "fedrep_all"])
def test_rounds_of_the_reference(case: str, engine: str, tmp_path: Path) -> None:
    doubling = DoublingParticipation(N, SETTINGS["n0"], SETTINGS["stage_rounds"])
    participation = FullParticipation() if case == "fedrep_all" else doubling
    found = golden_run(tmp_path, engine, case.removeprefix("srpfl_"), participation)
    expected = GOLDEN[case] if case == "fedrep_all" else GOLDEN[case]["rounds"]
    for ours, theirs in zip(found, expected, strict=True):
        close(ours["B"], theirs["B"])
        close(ours["B"] @ ours["B"].mT, theirs["projector"])
        assert ours["dist"] == pytest.approx(theirs["dist"], abs=1e-10)
        assert ours["clock"] == pytest.approx(theirs["clock"], abs=1e-12)
        assert ours["participants"] == theirs.get("participants", list(range(N)))


def test_start_of_the_reference() -> None:
    data = GoldenData()
    data.setup("fit")
    expected = GOLDEN["srpfl_fixed"]
    start = leading_subspace(data.moments(), K)
    close(data.moments(), expected["mom_matrix"], 1e-14)
    close(start, expected["B0"], 1e-12)
    close(start @ start.mT, expected["mom_projector"], 1e-12)
    assert float(principal_distance(start, data.truth)) == pytest.approx(expected["dist0"], abs=1e-12)


def test_the_head_is_the_least_squares_solution() -> None:
    features, targets = torch.randn(20, 3, dtype=torch.float64), torch.randn(20, dtype=torch.float64)
    expected = torch.linalg.lstsq(features, targets[:, None]).solution[:, 0]
    torch.testing.assert_close(best_head(features, targets), expected, rtol=0, atol=1e-13)


def test_the_gradient_is_at_a_fixed_head() -> None:
    """And equal to that of the minimum over heads, whose derivative by the head is zero."""
    module = LinearRepresentation(4, 2).double()
    features, targets = torch.randn(9, 4, dtype=torch.float64), torch.randn(9, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(module.training_step((features, targets)), module.representation)
    projected = features @ module.representation.detach()
    head = best_head(projected, targets)
    expected = features.mT @ (projected @ head - targets)[:, None] @ head[None] / 9
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-14)


SMALL = {"num_clients": 12, "examples_per_client": 8, "dim": 6, "rank": 2, "noise": 0.3}


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("start", ["moments", "distance"])
def test_engines_agree(start: str, dynamic: bool, tmp_path: Path) -> None:
    options = {
        "system": ExponentialSpeeds(dynamic=dynamic, communication=0.5),
        "participation": DoublingParticipation(initial=2, rounds_per_stage=2),
        "max_rounds": 6,
        "start": start,
    }
    runs = [
        run(tmp_path, LinearRepresentationData(**SMALL), engine=engine, cohort_size=size, trace_steps=trace, **options)
        for engine, size, trace in (("sequential", None, False), ("vectorized", 5, False), ("vectorized", 64, True))
    ]
    for rounds in runs[1:]:
        for ours, theirs in zip(rounds, runs[0], strict=True):
            torch.testing.assert_close(ours["B"], theirs["B"], rtol=0, atol=1e-12)
            assert (ours["participants"], ours["clock"]) == (theirs["participants"], theirs["clock"])
    assert [len(found["participants"]) for found in runs[0]] == [2, 2, 4, 4, 8, 8]


def test_doubling_from_all_clients_is_fedrep(tmp_path: Path) -> None:
    """To the bit, clock included."""
    runs = [
        run(
            tmp_path,
            LinearRepresentationData(**SMALL),
            participation=participation,
            system=ExponentialSpeeds(dynamic=True),
            max_rounds=4,
        )
        for participation in (FullParticipation(), DoublingParticipation(initial=12, rounds_per_stage=1))
    ]
    for ours, theirs in zip(*runs, strict=True):
        assert torch.equal(ours["B"], theirs["B"])
        assert (ours["clock"], ours["participants"]) == (theirs["clock"], list(range(12)))


def test_without_noise_the_representation_is_found(tmp_path: Path) -> None:
    data = LinearRepresentationData(**{**SMALL, "noise": 0.0})
    rounds = run(tmp_path, data, participation=FullParticipation(), start="distance", lr=0.3, max_rounds=80)
    assert rounds[-1]["dist"] < 1e-6
    identity = torch.eye(2, dtype=torch.float64)
    assert all(torch.allclose(found["B"].mT @ found["B"], identity, rtol=0, atol=1e-14) for found in rounds)


class Regression(LightningModule):
    """``1/(2m) |X B w - y|^2`` with both as parameters."""

    def __init__(self, representation: Any, head: list[float], lr: float) -> None:
        super().__init__()
        self.representation, self.head = nn.Parameter(double(representation)), nn.Parameter(double(head))
        self.lr = lr

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        features, targets = batch
        return 0.5 * (features @ self.representation @ self.head - targets).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class WatchHeads(Watch):
    def on_round_end(self, round) -> None:
        trainer = self.run
        heads = trainer.store.gather("personal", torch.arange(N))
        shared = trainer.layout.views(trainer.server.vector)["representation"].clone()
        self.rounds.append({"B": shared, "heads": heads, "participants": round.clients.tolist()})


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_alternating_gradient_steps_of_the_reference(engine: str, tmp_path: Path) -> None:
    case, watch = GOLDEN["algorithm1_gradient"], WatchHeads()
    first = [case["head_init"]] * K
    train(
        [PersonalParameters(["head"]), watch],
        tmp_path,
        Regression(case["B_init"], first, case["eta"]),
        GoldenData(),
        engine=engine,
        max_rounds=6,
        local_phases=[LocalPhase(["head"], steps=case["tau_h"]), LocalPhase(["representation"], steps=case["tau_phi"])],
        participation=DoublingParticipation(N, SETTINGS["n0"], SETTINGS["stage_rounds"]),
        system=FixedTimes([SETTINGS["fixed_times"]]),
        logger=False,
    )
    for ours, theirs in zip(watch.rounds, case["rounds"], strict=True):
        close(ours["B"], theirs["B"])
        close(torch.where(ours["heads"].isnan(), double(first), ours["heads"]), theirs["heads"])
        assert ours["participants"] == theirs["participants"]


def test_examples_are_as_the_model_says() -> None:
    """Normal features, heads of norm sqrt(k), and a residual of variance noise^2; within 5 standard errors."""
    data = LinearRepresentationData(num_clients=50, examples_per_client=400, dim=5, rank=2, noise=0.5)
    data.setup("fit")
    features, targets = data.examples
    count = len(targets)
    heads = data.heads.repeat_interleave(400, dim=0)
    residuals = targets - ((features @ data.truth) * heads).sum(dim=1)
    close(data.truth.mT @ data.truth, [[1.0, 0.0], [0.0, 1.0]], 1e-14)
    close(data.heads.norm(dim=1), [math.sqrt(2)] * 50, 1e-14)
    close(features.mT @ features / count, torch.eye(5).tolist(), 5 * math.sqrt(2 / count))
    assert float(residuals.var()) == pytest.approx(0.25, abs=5 * 0.25 * math.sqrt(2 / count))
    close(features.mT @ residuals / count, [0.0] * 5, 5 * 0.5 / math.sqrt(count))


def test_new_examples_are_drawn_by_their_keys_alone() -> None:
    data = LinearRepresentationData(**SMALL)
    data.setup("fit")
    indices, keys = torch.arange(16).view(2, 8), torch.arange(16).view(2, 8)
    features, targets = data.gather(indices, keys)
    assert torch.equal(data.gather(indices[1:], keys[1:])[0], features[1:])
    assert not torch.equal(data.gather(indices, keys + 100)[1], targets)
    assert torch.equal(data.gather(indices)[0], data.examples[0][:16].view(2, 8, 6))


def test_stored_examples_can_be_used_in_every_round(tmp_path: Path) -> None:
    data = LinearRepresentationData(**SMALL, fresh=False)
    assert not data.has_random_transforms
    data.setup("fit")
    assert torch.equal(data.gather(torch.arange(3), torch.arange(3))[0], data.examples[0][:3])
    assert run(tmp_path, data, participation=FullParticipation(), max_rounds=2)[-1]["dist"] < 1


@pytest.mark.parametrize("distance", [0.0, 0.8, 1.0])
def test_a_start_at_a_distance(distance: float, tmp_path: Path) -> None:
    data = LinearRepresentationData(**SMALL)
    callback = Orthonormalize("distance", distance)
    trainer = train([callback], tmp_path, LinearRepresentation(6, 2), data, max_rounds=0, logger=False)
    start = trainer.server.vector.view(6, 2)
    assert float(principal_distance(start, data.truth)) == pytest.approx(distance, abs=1e-14)
    torch.testing.assert_close(start, orthonormal(start), rtol=0, atol=1e-14)


def test_settings_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`rank=3` must be at most `dim=6`, and at most `examples_per_client=2`"):
        LinearRepresentationData(4, 2, 6, 3)
    with pytest.raises(ValueError, match="`distance=2` of Orthonormalize must be in"):
        Orthonormalize("distance", 2)
    with pytest.raises(ValueError, match="`start=moment` of Orthonormalize must be one of moments, distance"):
        Orthonormalize("moment")
    with pytest.raises(ValueError, match=r"needs `dim` of at least 2 \* `rank`, found 3 and 2"):
        train([Orthonormalize("distance")], tmp_path, LinearRepresentation(3, 2), LinearRepresentationData(9, 8, 3, 2))
    with pytest.raises(ValueError, match="a model of one matrix, B; this one has"):
        train([Orthonormalize()], tmp_path)
    data = ProblemData(9, 5, 5)
    data.examples = (torch.zeros(45, 6), torch.zeros(45))
    with pytest.raises(ValueError, match="from LinearRepresentationData, not from ProblemData"):
        train([Orthonormalize()], tmp_path, LinearRepresentation(6, 2), data)


def test_a_restart_does_not_start_again(tmp_path: Path) -> None:
    def fit(folder: Path, ckpt_path: str | None = None) -> Any:
        options = {"max_rounds": 4, "participation": FullParticipation(), "local_steps": 1, "ckpt_path": ckpt_path}
        checkpoint = Checkpointing(every_n_rounds=2, keep_all=True)
        data = LinearRepresentationData(**SMALL)
        return train([Orthonormalize()], folder, LinearRepresentation(6, 2), data, checkpoint=checkpoint, **options)

    unbroken = fit(tmp_path / "unbroken")
    saved = Path(unbroken.log_dir) / "checkpoints" / "round_000002.ckpt"
    assert torch.equal(fit(tmp_path / "resumed", str(saved)).server.vector, unbroken.server.vector)
