"""HF-MAML and first-order MAML against independent float64 references: hf_maml.json, objectives.json of golden/."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from worlds import GOLDEN_FILES, Bystander, Quadratic, QuadraticData, train_quadratic

from lfl.callbacks import MAML
from lfl.engine import LocalPhase
from lfl.participation import FixedParticipation

CUBIC = json.loads((GOLDEN_FILES / "hf_maml.json").read_text())
OBJECTIVES = json.loads((GOLDEN_FILES / "objectives.json").read_text())["Q"]
ENGINES = ["sequential", "vectorized"]


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


class Cubic(Quadratic):
    """``w^T A w / 2 - b^T w + c/3 sum_j w_j^3``; central differences of its gradient are exact."""

    def __init__(self) -> None:
        super().__init__(dim=3, lr=CUBIC["beta"])
        self.point.data = tensor(CUBIC["w0"])

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        w = self.point
        return 0.5 * w @ tensor(CUBIC["A"]) @ w - tensor(CUBIC["b"]) @ w + CUBIC["c"] / 3 * (w**3).sum()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize(("method", "first_order"), [("hf_maml", False), ("fo_maml", True)])
def test_steps_on_a_cubic(method: str, first_order: bool, steps: int, engine: str, tmp_path: Path) -> None:
    maml = MAML(CUBIC["alpha"], first_order, CUBIC["delta"])
    options = {"module": Cubic(), "data": QuadraticData(num_clients=1, dim=3), "max_rounds": 1, "local_steps": steps}
    trainer, _ = train_quadratic([maml], tmp_path, engine=engine, **options)
    close(trainer.server.vector, CUBIC["steps"][steps - 1][method])


class Coupled(Quadratic):
    """``(y - b_i)^T A_i (y - b_i) / 2`` with whole matrices."""

    def __init__(self, lr: float) -> None:
        super().__init__(lr=lr)
        self.point.data = tensor(OBJECTIVES["problem"]["x0"])

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        curvature, centre = batch
        moved = self.point - centre
        return 0.5 * torch.einsum("bi,bij,bj->b", moved, curvature, moved).mean()


class Adapted(Bystander):
    """x after every round, and what one step on each client's data makes of it."""

    def __init__(self, alpha: float) -> None:
        self.alpha, self.points, self.adapted = alpha, [], []

    def on_round_end(self, round: Any) -> None:
        everyone = torch.arange(self.run.num_clients)
        params = self.run.personal_models(everyone)
        self.run.fine_tuner([LocalPhase(steps=1, lr=self.alpha)])(round, everyone, params)
        self.points.append(self.run.server.vector.clone())
        self.adapted.append(params)


@pytest.mark.parametrize("engine", ENGINES)
def test_rounds_of_first_order_on_quadratics(engine: str, tmp_path: Path) -> None:
    entry = OBJECTIVES["entries"]["fomaml/spec_partial"]
    hyper, rounds = entry["hp"], entry["rounds"]
    data = QuadraticData()
    data.curvature, data.centre = tensor(OBJECTIVES["problem"]["A"]), tensor(OBJECTIVES["problem"]["b"])
    adapted = Adapted(hyper["alpha"])
    train_quadratic(
        [MAML(hyper["alpha"], hyper["first_order"], hyper["delta"]), adapted],
        tmp_path,
        module=Coupled(hyper["beta"]),
        data=data,
        engine=engine,
        max_rounds=len(rounds),
        local_steps=entry["K"][0],
        participation=FixedParticipation([found["S"] for found in rounds]),
    )
    for found, point, rows in zip(rounds, adapted.points, adapted.adapted, strict=True):
        close(point, found["x"])
        close(rows, found["aux"]["adapted"])


def close(actual: Tensor, expected: Any) -> None:
    torch.testing.assert_close(actual, tensor(expected), rtol=0, atol=1e-10)
