"""Evaluation of the mean of the last iterates, for servers that oscillate, as FedExP's."""

from typing import Any

import torch
from jsonargparse.typing import PositiveInt
from lightning.pytorch import LightningModule
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_number
from lfl.callback import FederatedCallback
from lfl.federation import Federation
from lfl.round import Round


class AveragedEvaluation(FederatedCallback):
    """In a round's evaluation the server's model is the mean of its last iterates, x after each of the last rounds.

    Training, checkpoints and ``lfl test`` have x itself. In the first rounds there are fewer iterates, of which the
    initial model is one. State: ``last`` vectors [D] at the server.

    Args:
        last: number of iterates; 2 in FedExP's code, 1 for x itself.
    """

    observes = True
    is_unique = True

    def __init__(self, last: PositiveInt = 2) -> None:
        check_number("AveragedEvaluation", "last", last, least=1, whole=True)
        self.last = last
        self._iterates: list[Tensor] = []
        self._current: Tensor | None = None  # x while another model is evaluated
        self._is_evaluated = False  # whether an evaluation is that of a round

    @override
    def on_run_start(self, federation: Federation) -> None:
        self._server = federation.server
        self._iterates = [federation.server.vector.clone()]

    @override
    def on_server_step(self, round: Round) -> None:
        self._iterates = [*self._iterates, self._server.vector.clone()][-self.last :]
        self._is_evaluated = True

    @override
    def on_validation_start(self, trainer: Any, pl_module: LightningModule) -> None:
        if self._is_evaluated and self.last > 1:
            self._current = self._server.vector.clone()
            # The module's parameters are views of it.
            self._server.vector.copy_(torch.stack(self._iterates).double().mean(dim=0))

    @override
    def on_validation_end(self, trainer: Any, pl_module: LightningModule) -> None:
        if self._current is not None:
            self._server.vector.copy_(self._current)
            self._current = None

    @override
    def on_round_end(self, round: Round) -> None:
        self._is_evaluated = False

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"iterates": [x.cpu() for x in self._iterates]}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._iterates = [x.to(self._server.vector) for x in state_dict["iterates"]]
