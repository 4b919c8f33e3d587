"""Pictures of a run: how many directions the server moves in, its path, and what its features look like.

They are Figures 1, 2, 5b-d and 6 of "Federated Learning in Streaming Subspace", of any method.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jsonargparse.typing import PositiveFloat, PositiveInt
from lightning.pytorch import LightningModule
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_number
from lfl.callback import FederatedCallback, submodule_of
from lfl.callbacks.labels import check_labels, labels_of
from lfl.client.evaluation import Evaluator
from lfl.federation import Federation
from lfl.reporting.figures import FOLDER, save_figure
from lfl.round import Round

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = 2**16  # of moves that are converted to float64 at a time


class Pictures(FederatedCallback):
    """Draws every few rounds, and in the last; writes into the run's folder and to loggers that take pictures."""

    observes = True

    every_n_rounds: PositiveInt

    @override
    def setup(self, trainer: Any, pl_module: LightningModule, stage: str) -> None:
        self._folder = Path(trainer.log_dir) / FOLDER
        self._loggers = list(trainer.loggers)

    @override
    def on_run_start(self, federation: Federation) -> None:
        self._federation = federation

    @override
    def on_round_end(self, round: Round) -> None:
        federation = self._federation
        is_due = round.number % self.every_n_rounds == 0 or round.number == federation.max_rounds
        if is_due and federation.processes.is_first:
            self.draw(round.number)

    @abstractmethod
    def draw(self, number: int) -> None:
        """Draw the pictures of a round."""

    def show(self, figure: Figure, name: str, number: int) -> None:
        """Write ``NAME_ROUND.png``, and log it under the name."""
        save_figure(figure, self._folder, self._loggers, name, number)


class TrajectoryPictures(Pictures):
    """Draws the singular values of the server's moves, their share of the energy, and x in its two main directions.

    With G_1 .. G_T the last ``rounds`` moves ``x+ - x``, not centred: the singular values of the matrix they make, and
    the cumulative shares ``sum_{k <= R} sigma_k^2 / sum sigma_k^2``, of all parameters and of each layer (the
    parameters of one submodule); and x, from where it was before G_1, in the two leading singular directions. Files
    ``pictures/trajectory_ROUND.png``; ``trajectory_of`` has the numbers. State: the moves, T D numbers.

    Args:
        every_n_rounds: rounds between pictures; one is drawn of the last round in any case.
        rounds: largest number of moves (T), the last ones.
        components: how many singular values are drawn.
        layers: whether layers are drawn, too.
    """

    is_unique = True

    def __init__(
        self,
        every_n_rounds: PositiveInt = 50,
        rounds: PositiveInt = 200,
        components: PositiveInt = 50,
        layers: bool = True,
    ) -> None:
        for name, value in (("every_n_rounds", every_n_rounds), ("rounds", rounds), ("components", components)):
            check_number("TrajectoryPictures", name, value, least=1, whole=True)
        self.every_n_rounds = every_n_rounds
        self.rounds = rounds
        self.components = components
        self.layers = layers
        self._moves: list[Tensor] = []

    @override
    def on_run_start(self, federation: Federation) -> None:
        super().on_run_start(federation)
        self._moves = []

    @override
    def on_server_step(self, round: Round) -> None:
        self._moves = [*self._moves, self._federation.server.vector - round.server][-self.rounds :]

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"moves": [moved.cpu() for moved in self._moves]}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._moves = [moved.to(self._federation.server.vector) for moved in state_dict["moves"]]

    def trajectory(self) -> Trajectory:
        """The numbers of the next picture."""
        return trajectory_of(torch.stack(self._moves), self._federation.layout.layers)

    @override
    def draw(self, number: int) -> None:
        from matplotlib.figure import Figure  # not pyplot, which would keep the figure, and may ask for a display

        found = self.trajectory()
        figure = Figure(figsize=(15, 4.5), layout="constrained")
        values, shares, plane = figure.subplots(1, 3)
        layers = list(found.layers.items()) if self.layers else []
        for name, own in [*layers, ("all parameters", found.values)]:
            look: dict[str, Any] = {"lw": 1, "alpha": 0.6} if own is not found.values else {"lw": 2.5, "color": "black"}
            ranks = np.arange(1, min(self.components, len(own)) + 1)
            values.plot(ranks, own[: len(ranks)].numpy(), label=name, **look)
            shares.plot(ranks, 100 * cumulative_shares(own)[: len(ranks)].numpy(), **look)
        values.set(xlabel="component", ylabel="singular value", yscale="log", title=f"moves up to round {number}")
        values.legend(fontsize=6, ncols=1 + len(layers) // 12)
        shares.set(xlabel="components", ylabel="share of the energy, %", ylim=(0, 102))
        plane.plot(*found.path.T.numpy(), marker=".", lw=1)
        plane.scatter(*found.path[-1].numpy(), marker="D", zorder=3, label=f"round {number}")
        plane.axhline(0, color="green", ls=":", label="main direction")
        plane.set(xlabel="first direction", ylabel="second direction", title="path of the server's model")
        plane.legend(fontsize=8)
        self.show(figure, "trajectory", number)


class FeaturePictures(Pictures):
    """Draws features of the server's model on test examples in the plane, by t-SNE, in the colours of their classes.

    Files ``pictures/features_ROUND.png``; ``read_features`` and ``embedded`` have the numbers, which are random by
    the run's seed alone.

    Args:
        layer: the submodule whose output, flattened, are the features: ``backbone.features`` of lfl's networks.
        every_n_rounds: rounds between pictures; one is drawn of the last round in any case.
        max_examples: how many test examples, the first ones; t-SNE takes some seconds for a thousand.
        perplexity: t-SNE's, about how many neighbours an example has; a third of the examples at most.
        target: the part of a batch that is the class labels: a place in a tuple, a key of a dict, or a path of such
            with dots.

    Raises:
        ValueError: the module has no such submodule or no validation step, or batches no such labels.
    """

    def __init__(
        self,
        layer: str = "backbone.features",
        every_n_rounds: PositiveInt = 50,
        max_examples: PositiveInt = 1000,
        perplexity: PositiveFloat = 30.0,
        target: str | int = 1,
    ) -> None:
        for name, value, least in (("every_n_rounds", every_n_rounds, 1), ("max_examples", max_examples, 4)):
            check_number("FeaturePictures", name, value, least=least, whole=True)
        check_number("FeaturePictures", "perplexity", perplexity, above=0)
        self.layer = layer
        self.every_n_rounds = every_n_rounds
        self.max_examples = max_examples
        self.perplexity = perplexity
        self.target = target

    @override
    def on_run_start(self, federation: Federation) -> None:
        super().on_run_start(federation)
        submodule_of(federation.model.module, self.layer, "FeaturePictures", "layer")
        check_labels("FeaturePictures", federation.data, self.target, federation.seed)
        if not federation.evaluator.can("validate"):
            raise ValueError(
                f"FeaturePictures reads features in `validation_step`, which {type(federation.model.module).__name__} "
                "does not have."
            )

    def read_features(self) -> tuple[Tensor, Tensor]:
        """Features [n, d] of test examples at x, in float64, and their classes [n], both on the CPU."""
        federation = self._federation
        model = federation.model.copy()  # as in evaluations of clients: what its steps keep is not the run's
        server = federation.server
        model.load(server.vector, server.buffers, server.counters)
        rows: list[Tensor] = []
        labels: list[Tensor] = []

        def batches() -> Iterator[Any]:
            for batch in federation.data.test_dataloader():
                labels.append(labels_of(batch, self.target).flatten().cpu())
                yield batch
                if sum(map(len, labels)) >= self.max_examples:
                    return

        def read(module: Any, inputs: Any, output: Tensor) -> None:
            if len(rows) < len(labels):  # the first pass of a step that makes several
                rows.append(output.detach().flatten(1).double().cpu())

        with submodule_of(model.module, self.layer, "FeaturePictures", "layer").register_forward_hook(read):
            Evaluator(model, federation.processes, federation.seed).run_alone("validate", batches())
        return torch.cat(rows)[: self.max_examples], torch.cat(labels)[: self.max_examples]

    @override
    def draw(self, number: int) -> None:
        from matplotlib import colormaps
        from matplotlib.figure import Figure

        features, classes = self.read_features()
        points = embedded(features, self.perplexity, self._federation.seed)
        figure = Figure(figsize=(6, 5.5), layout="constrained")
        axes = figure.add_subplot()
        count = int(classes.max()) + 1
        colours = colormaps["tab10" if count <= 10 else "nipy_spectral"].resampled(count)
        dots = axes.scatter(
            points[:, 0], points[:, 1], c=classes.numpy(), s=6, cmap=colours, vmin=-0.5, vmax=count - 0.5
        )
        figure.colorbar(dots, label="class", ticks=range(0, count, 1 + count // 20))
        axes.set(title=f"features of {len(points)} test examples in round {number}", xticks=[], yticks=[])
        self.show(figure, "features", number)


@dataclass(frozen=True)
class Trajectory:
    """The numbers of T moves that are drawn.

    Attributes:
        values: singular values of the moves [T], descending, float64.
        layers: those of each layer's part of the moves, by the layer's name.
        path: where the moves have led, in the two leading directions [T + 1, 2], from zero; its end is not negative.
    """

    values: Tensor
    layers: dict[str, Tensor]
    path: Tensor


def trajectory_of(moves: Tensor, layers: Mapping[str, slice]) -> Trajectory:
    """Singular values and path of moves.

    Args:
        moves: G_1 .. G_T [T, D].
        layers: the stretches of a move that are also looked at by themselves, D numbers in all.
    """
    # From products of moves, T numbers each: nothing of the size of the moves is decomposed.
    products = {name: _products(moves[:, span]) for name, span in layers.items()}
    values, vectors = _spectrum(torch.stack(list(products.values())).sum(dim=0))
    # Move t is sum_k V_tk sigma_k u_k; one direction alone where there is but one move.
    path = (values[:2] * vectors[:, :2]).cumsum(dim=0)
    path = torch.nn.functional.pad(path * torch.where(path[-1] < 0, -1.0, 1.0), (0, 2 - path.shape[1], 1, 0))
    return Trajectory(values, {name: _spectrum(own)[0] for name, own in products.items()}, path)


def cumulative_shares(values: Tensor) -> Tensor:
    """``sum_{k <= R} sigma_k^2 / sum_k sigma_k^2`` of singular values [T], for R = 1 .. T; zero where all are."""
    energies = values.square().cumsum(dim=0)
    return torch.where(energies[-1] > 0, energies / energies[-1], 0.0)


def embedded(features: Tensor, perplexity: float = 30.0, seed: int = 0) -> np.ndarray:
    """Points [n, 2] of features [n, d] by t-SNE (van der Maaten & Hinton, 2008), started from principal components."""
    from sklearn.manifold import TSNE

    most = max(1.0, (len(features) - 1) / 3)
    tsne = TSNE(2, perplexity=min(perplexity, most), init="pca", random_state=seed % 2**32)
    points: np.ndarray = tsne.fit_transform(features.numpy())
    return points


def _products(moves: Tensor) -> Tensor:
    """The inner products of moves [T, n] with each other, in float64 on the CPU."""
    pieces = (piece.double() for piece in moves.split(_COLUMNS, dim=1))
    total = torch.zeros(len(moves), len(moves), dtype=torch.float64, device=moves.device)
    for piece in pieces:
        total += piece @ piece.mT
    return total.cpu()


def _spectrum(products: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values [T], descending, and right singular vectors [T, T] of moves with these inner products."""
    energies, vectors = torch.linalg.eigh(products)
    return energies.clamp(min=0.0).sqrt().flip(0), vectors.flip(1)
