"""Two clients on the plane, for rounds that can be followed by hand."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from worlds import Bystander, Quadratic, QuadraticData, train_quadratic

from lfl.callbacks import FederatedCallback
from lfl.trainer import FederatedTrainer


class Points(Bystander):
    """x after every round."""

    def __init__(self) -> None:
        self.found: list[Tensor] = []

    def on_server_step(self, round: Any) -> None:
        self.found.append(self.run.server.vector.clone())


def two_clients(centre: tuple[float, float] = (4.0, 0.0)) -> QuadraticData:
    """``1/2 |y - centre|^2`` and ``(y_2 - 2)^2``: a step with lr 1/2 moves by (centre - y) / 2 and (0, 2 - y_2)."""
    data = QuadraticData(num_clients=2, dim=2)
    data.curvature = torch.tensor([[1.0, 1.0], [0.0, 2.0]])
    data.centre = torch.tensor([centre, [0.0, 2.0]])
    return data


def path_of(
    stack: list[FederatedCallback], folder: Path, rounds: int, data: QuadraticData | None = None, steps: int = 1
) -> tuple[list[list[float]], FederatedTrainer]:
    """X after each round, from zero, all clients alike."""
    points, module = Points(), Quadratic(dim=2, lr=0.5)
    options = {"module": module, "data": data or two_clients(), "max_rounds": rounds, "local_steps": steps}
    trainer, _ = train_quadratic([*stack, points], folder, **options)
    return torch.stack(points.found).tolist(), trainer
