"""Callbacks that measure what claims are about, and that no method needs; they change nothing.

A study puts them into its runs by their class paths. Each logs in the same rounds, so that its numbers stand beside
those of the evaluations.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from jsonargparse.typing import PositiveInt
from torch import Tensor
from typing_extensions import override

from lfl.callback import FederatedCallback
from lfl.callbacks.pictures import FeaturePictures, TrajectoryPictures, cumulative_shares
from lfl.client.evaluation import Evaluator
from lfl.federation import Federation
from lfl.round import Round

LOSS = "training_set/loss"
SHARE = "trajectory/share"
SILHOUETTE = "features/silhouette"
_AT_ONCE = 1000  # examples of a batch


def observer(kind: type[Observer], **arguments: object) -> dict[str, object]:
    """One of these callbacks as a file of settings has it."""
    return {"class_path": f"{kind.__module__}.{kind.__name__}", "init_args": arguments}


class Observer(FederatedCallback):
    """Logs numbers in the rounds that ``every_n_rounds`` divides, and in the last."""

    observes = True
    is_unique = True

    every_n_rounds: int

    @override
    def on_run_start(self, federation: Federation) -> None:
        self.federation = federation

    @override
    def on_round_end(self, round: Round) -> None:
        if round.number % self.every_n_rounds == 0 or round.number == self.federation.max_rounds:
            for name, value in self.observed().items():
                round.log(name, value)

    @abstractmethod
    def observed(self) -> dict[str, float]:
        """Numbers by name, of the server's model after its step."""


class TrainingLoss(Observer):
    """Logs ``training_set/loss``, the mean loss of the server's model over all training examples.

    It is that of the module's ``validation_step``, which logs it as ``val_loss``: without what callbacks add to the
    clients' losses, and of one model, while ``train/loss`` is a mean over the clients' models on their way.

    Args:
        every_n_rounds: rounds from one to the next.
    """

    def __init__(self, every_n_rounds: PositiveInt = 1) -> None:
        self.every_n_rounds = every_n_rounds

    @override
    def observed(self) -> dict[str, float]:
        federation = self.federation
        model = federation.model.copy()  # what its steps keep is not the run's
        server = federation.server
        model.load(server.vector, server.buffers, server.counters)
        evaluator = Evaluator(model, federation.processes, federation.seed)
        return {LOSS: evaluator.run_alone("validate", self._batches())["val_loss"]}

    def _batches(self) -> Iterator[Any]:
        data = self.federation.data
        for positions in data.partition.train.indices.sort().values.split(_AT_ONCE):
            yield [tensor[0] for tensor in data.gather(positions[None])]


class TrajectoryShare(Observer):
    """Logs ``trajectory/share``, the share of the energy of the server's moves in their first directions.

    The moves are those of ``TrajectoryPictures``, all of them up to the round, not centred; of at most ``components``
    moves the share is 1.

    Args:
        every_n_rounds: rounds from one to the next.
        components: number of directions.
        rounds: largest number of moves, the last ones; as many models are kept in memory, twice while they are read.
    """

    def __init__(
        self, every_n_rounds: PositiveInt = 20, components: PositiveInt = 50, rounds: PositiveInt = 200
    ) -> None:
        self.every_n_rounds = every_n_rounds
        self.components = components
        self._pictures = TrajectoryPictures(rounds=rounds)

    @override
    def on_run_start(self, federation: Federation) -> None:
        super().on_run_start(federation)
        self._pictures.on_run_start(federation)

    @override
    def on_server_step(self, round: Round) -> None:
        self._pictures.on_server_step(round)

    @override
    def state_dict(self) -> dict[str, Any]:
        return self._pictures.state_dict()

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._pictures.load_state_dict(state_dict)

    @override
    def observed(self) -> dict[str, float]:
        shares = cumulative_shares(self._pictures.trajectory().values)
        return {SHARE: float(shares[min(self.components, len(shares)) - 1])}


class ClassSilhouette(Observer):
    """Logs ``features/silhouette``, how distinct the classes are in a layer's features of test examples.

    It is the mean silhouette (Rousseeuw, 1987) by Euclidean distance: 1 where examples of a class are close together
    and far from the next class, 0 where classes run into each other.

    Args:
        layer: the submodule whose output, flattened, are the features.
        every_n_rounds: rounds from one to the next.
        max_examples: how many test examples, the first ones.
    """

    def __init__(
        self, layer: str = "backbone.features", every_n_rounds: PositiveInt = 5, max_examples: PositiveInt = 1000
    ) -> None:
        self.every_n_rounds = every_n_rounds
        self._pictures = FeaturePictures(layer, max_examples=max_examples)

    @override
    def on_run_start(self, federation: Federation) -> None:
        super().on_run_start(federation)
        self._pictures.on_run_start(federation)

    @override
    def observed(self) -> dict[str, float]:
        return {SILHOUETTE: silhouette(*self._pictures.read_features())}


def silhouette(features: Tensor, classes: Tensor) -> float:
    """The mean silhouette of examples with features [n, d] by their classes [n]; nan for fewer than two classes."""
    from sklearn.metrics import silhouette_score

    if len(torch.unique(classes)) < 2:
        return float("nan")
    return float(silhouette_score(features.numpy(), classes.numpy()))
