"""A callback that measures how far the toy problem of the SSF paper is from stationary, in every round."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from lfl.callbacks import FederatedCallback
from lfl.federation import Federation
from lfl.problems import MatrixRegression, MatrixRegressionData
from lfl.round import Round

SQUARE = "squared_gradient_norm"


class GradientNorm(FederatedCallback):
    """Logs the squared norm of F's gradient at x, as a multiple of that at X = 0, where runs start.

    F is the mean objective of all clients, a quadratic function: its gradient is ``H X - M``, of which H [d, d] and M
    [d, m] are computed once.

    Args:
        least: the run ends when the multiple is down to it; 0 for the end of all rounds.
        every: rounds between the values.
    """

    observes = True

    def __init__(self, least: float = 0.0, every: int = 1) -> None:
        self.least, self.every = least, every

    @override
    def on_run_start(self, federation: Federation) -> None:
        module, data = federation.model.module, federation.data
        assert isinstance(module, MatrixRegression)
        assert isinstance(data, MatrixRegressionData)
        self._federation = federation
        features, targets = data.examples
        self._hessian, self._moment = quadratic(features, targets, module.ridge)
        self._start = float(self._moment.square().sum())

    @override
    def on_round_end(self, round: Round) -> None:
        if round.number % self.every:
            return
        point = self._federation.server.vector.view_as(self._moment)
        square = float((self._hessian @ point - self._moment).square().sum()) / self._start
        round.log(SQUARE, square)
        if square <= self.least:
            self._federation.stop()


def quadratic(features: Tensor, targets: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """The H [d, d] and M [d, m] of the gradient ``H X - M`` of the objective on examples [n, d] and [n, m]."""
    count, dim = features.shape
    hessian = features.mT @ features / count + ridge * torch.eye(dim).to(features)
    return hessian, features.mT @ targets / count
