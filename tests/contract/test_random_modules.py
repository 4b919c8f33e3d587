"""Random small modules: every way to compute their steps gives what one client at a time gives, or says why not.

A module is a ``Recipe``, words from the tables below, whose ``repr`` makes it again: to look at a failure, call
``check(Recipe(...), folder)``. The words are what people write, many of which break what fast ways rest on: losses that
are no means, examples that see each other, buffers and attributes that change, reads of what changes.
"""

import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, event, given, seed, settings
from hypothesis import strategies as st
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torchmetrics import MeanMetric
from worlds import train

from lfl.callbacks import FederatedCallback
from lfl.data import FederatedDataModule, NaturalPartitioner, Source, TensorData
from lfl.participation import FullParticipation
from lfl.round import Cohort

TOKENS, LENGTH = 7, 4


@dataclass(frozen=True, repr=False)
class Recipe:
    """A module, its data and its training.

    Attributes:
        inputs: features, images or tokens.
        front: what turns them into features: of ``IMAGE_LAYERS``, or one of ``EMBEDDINGS`` and one of ``POOLS``.
        layers: of ``ALL_LAYERS``, between them and the linear head.
        criterion: of ``CRITERIA``.
        reduction: of ``REDUCTIONS``, from its losses to one.
        terms: of ``TERMS``, added to it.
        outer: of ``OUTERS``, a function of the sum.
        logs: of ``LOGS``, the values that are logged.
        habits: of ``HABITS`` and ``WILD_HABITS``, what else the module does.
        optimizer: of ``OPTIMIZERS``.
        options: of the trainer.
        sizes: numbers of examples of the clients.
        batch_size: of all clients.
        width: number of features and of hidden units.
        classes: number of classes; regressions have none.
        number: of the seed of data and parameters.
    """

    inputs: str = "features"
    front: tuple[str, ...] = ()
    layers: tuple[str, ...] = ("linear", "tanh")
    criterion: str = "cross entropy"
    reduction: str = "mean"
    terms: tuple[str, ...] = ()
    outer: str = "plain"
    logs: tuple[str, ...] = ()
    habits: tuple[str, ...] = ()
    optimizer: str = "sgd"
    options: tuple[tuple[str, Any], ...] = ()
    sizes: tuple[int, ...] = (4, 4, 4, 4, 4, 4)
    batch_size: int = 2
    width: int = 4
    classes: int = 3
    number: int = 0

    def __repr__(self) -> str:
        told = [f for f in fields(self) if getattr(self, f.name) != f.default]
        return f"Recipe({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in told)})"

    @property
    def is_regression(self) -> bool:
        return self.criterion in REGRESSIONS


# -- words -------------------------------------------------------------------------------------------------------------


class Do(nn.Module):
    """A function as a layer, of the input alone or of a layer within and the input."""

    def __init__(self, function: Callable[..., Tensor], *within: nn.Module) -> None:
        super().__init__()
        self.function, self.within = function, nn.ModuleList(within)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(*self.within, x)


def last_of(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x)[0][:, -1]


def branch(x: Tensor) -> Tensor:
    return x if x.mean() > 0 else 2 * x


def memorized(layer: Any, x: Tensor) -> Tensor:
    """A constant that is made at the first call."""
    if not hasattr(layer, "cache"):
        layer.cache = torch.linspace(0.5, 1.5, x.shape[1], dtype=x.dtype)
    return layer(x) * layer.cache


# From hidden width to a layer from [b, width] to [b, width], each example by itself.
LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "linear": lambda w: nn.Linear(w, w),
    "tanh": lambda w: nn.Tanh(),
    "relu": lambda w: nn.ReLU(),
    "relu_": lambda w: nn.ReLU(inplace=True),
    "gelu": lambda w: nn.GELU(),
    "prelu": lambda w: nn.PReLU(),
    "layer norm": lambda w: nn.LayerNorm(w),
    "group norm": lambda w: nn.GroupNorm(1, w),
    "residual": lambda w: Do(lambda layer, x: x + layer(x), nn.Linear(w, w)),
    "bilinear": lambda w: Do(lambda layer, x: layer(x, x), nn.Bilinear(w, w, w)),
    "softmax": lambda w: nn.Softmax(dim=1),
    "weight norm": lambda w: nn.utils.parametrizations.weight_norm(nn.Linear(w, w)),
    "gate": lambda w: Do(lambda x: x * (x.mean(1, keepdim=True) > 0)),
}
# Examples see each other, or draw.
MIXING_LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "dropout": lambda w: nn.Dropout(0.4),
    "center": lambda w: Do(lambda x: x - x.mean(0)),
    "standardize": lambda w: Do(lambda x: (x - x.mean(0)) / (1 + x.std(0, unbiased=False))),
    "batch max": lambda w: Do(lambda x: x - x.max(0).values),
    "roll": lambda w: Do(lambda x: x - 0.5 * x.roll(1, 0)),
    "attend to others": lambda w: Do(lambda x: (x @ x.T).softmax(1) @ x),
    "shorten": lambda w: Do(lambda x: x * (4.0 / x.norm()).clamp(max=1.0)),
    "mix up": lambda w: Do(lambda x: 0.7 * x + 0.3 * x[torch.randperm(len(x))]),
    "noise": lambda w: Do(lambda x: x + 0.1 * torch.randn_like(x)),
}
# Some fast way or other cannot take these.
WILD_LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "noise_": lambda w: Do(lambda x: x + 0.1 * torch.empty_like(x).normal_()),
    "batch norm": lambda w: nn.BatchNorm1d(w),
    "batch norm without statistics": lambda w: nn.BatchNorm1d(w, track_running_stats=False),
    "alpha dropout": lambda w: nn.AlphaDropout(0.2),
    "branch": lambda w: Do(branch),
    "checkpoint": lambda w: Do(lambda layer, x: checkpoint(layer, x, use_reentrant=False), nn.Linear(w, w)),
    "spectral norm": lambda w: nn.utils.parametrizations.spectral_norm(nn.Linear(w, w)),
    "memorized": lambda w: Do(memorized, nn.Linear(w, w)),
}
ALL_LAYERS = LAYERS | MIXING_LAYERS | WILD_LAYERS

# Likewise, of images [b, width, ...]; and from tokens [b, l] to embeddings [b, l, width], and from these to [b, width].
IMAGE_LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "conv": lambda w: nn.Conv2d(w, w, 3, padding=1),
    "relu_": lambda w: nn.ReLU(inplace=True),
    "group norm": lambda w: nn.GroupNorm(2 if w % 2 == 0 else 1, w),
    "batch norm": lambda w: nn.BatchNorm2d(w),
    "instance norm": lambda w: nn.InstanceNorm2d(w, affine=True),
    "dropout2d": lambda w: nn.Dropout2d(0.3),
    "max pool": lambda w: nn.MaxPool2d(2, stride=1),
}
EMBEDDINGS: dict[str, Callable[[int], nn.Module]] = {
    "embedding": lambda w: nn.Embedding(TOKENS, w),
    "padded": lambda w: nn.Embedding(TOKENS, w, padding_idx=0),
    "bounded": lambda w: nn.Embedding(TOKENS, w, max_norm=1.0),
    "sparse": lambda w: nn.Embedding(TOKENS, w, sparse=True),
    "scaled": lambda w: nn.Embedding(TOKENS, w, scale_grad_by_freq=True),
}
POOLS: dict[str, Callable[[int], nn.Module]] = {
    "mean": lambda w: Do(lambda x: x.mean(1)),
    "max": lambda w: Do(lambda x: x.amax(1)),
    "lstm": lambda w: Do(last_of, nn.LSTM(w, w, batch_first=True)),
    "gru": lambda w: Do(last_of, nn.GRU(w, w, batch_first=True)),
    "attention": lambda w: Do(
        lambda layer, x: layer(x, x, x)[0].mean(1), nn.MultiheadAttention(w, 1, batch_first=True)
    ),
    "encoder": lambda w: Do(
        lambda layer, x: layer(x).mean(1), nn.TransformerEncoderLayer(w, 1, 2 * w, dropout=0.0, batch_first=True)
    ),
}


@dataclass
class Pass:
    """What a training step has come to; x, y, hidden [b, width], out [b, classes] or [b], and the loss."""

    x: Tensor
    y: Tensor
    hidden: Tensor
    out: Tensor
    index: int
    loss: Any = 0.0

    @property
    def mask(self) -> Tensor:
        return (self.x.flatten(1)[:, 0] > 0).to(self.out)

    def pairs(self) -> Tensor:
        short = self.hidden / (1 + self.hidden.norm(dim=1, keepdim=True))
        return short @ short.T


def class_weights(p: Pass) -> Tensor:
    return torch.linspace(0.5, 2.0, p.out.shape[-1], dtype=p.out.dtype)


# From a pass and torch's word for a reduction to losses.
CRITERIA: dict[str, Callable[[Any, Pass, str], Tensor]] = {
    "cross entropy": lambda m, p, how: F.cross_entropy(p.out, p.y, reduction=how),
    "nll": lambda m, p, how: F.nll_loss(p.out.log_softmax(1), p.y, reduction=how),
    "by hand": lambda m, p, how: reduced(p.out.logsumexp(1) - p.out.gather(1, p.y[:, None])[:, 0], how),
    "one hot": lambda m, p, how: reduced(
        F.binary_cross_entropy_with_logits(p.out, F.one_hot(p.y, m.recipe.classes).to(p.out), reduction="none").sum(1),
        how,
    ),
    "margin": lambda m, p, how: F.multi_margin_loss(p.out, p.y, reduction=how),
    "smoothed": lambda m, p, how: F.cross_entropy(p.out, p.y, label_smoothing=0.2, reduction=how),
    "weighted": lambda m, p, how: F.cross_entropy(p.out, p.y, weight=class_weights(p), reduction=how),
    "weighted by a buffer": lambda m, p, how: F.cross_entropy(p.out, p.y, weight=m.class_weights, reduction=how),
    "weighted and smoothed": lambda m, p, how: F.cross_entropy(
        p.out, p.y, weight=class_weights(p), label_smoothing=0.2, reduction=how
    ),
    "ignoring": lambda m, p, how: F.cross_entropy(p.out, p.y, ignore_index=0, reduction=how),
    "mse": lambda m, p, how: F.mse_loss(p.out, p.y, reduction=how),
    "l1": lambda m, p, how: F.l1_loss(p.out, p.y, reduction=how),
    "huber": lambda m, p, how: F.smooth_l1_loss(p.out, p.y, reduction=how),
    "gaussian": lambda m, p, how: F.gaussian_nll_loss(
        p.out, p.y, 0.1 + m.scale.square().expand_as(p.out), reduction=how
    ),
    "relative": lambda m, p, how: F.mse_loss(p.out, p.y, reduction=how) / (1 + p.y.square().mean()),
}
REGRESSIONS = ("mse", "l1", "huber", "gaussian", "relative")


def reduced(losses: Tensor, how: str) -> Tensor:
    return losses.mean() if how == "mean" else losses.sum() if how == "sum" else losses


# From a pass and the criterion as a function of torch's reduction to a loss.
REDUCTIONS: dict[str, Callable[[Pass, Callable[[str], Tensor]], Tensor]] = {
    "mean": lambda p, losses: losses("mean"),
    "mean of examples": lambda p, losses: losses("none").mean(),
    "sum / len": lambda p, losses: losses("sum") / len(p.y),
    "sum": lambda p, losses: losses("sum"),
    "sum / constant": lambda p, losses: losses("sum") / 3,
    "masked mean": lambda p, losses: (losses("none") * p.mask).sum() / p.mask.sum().clamp(min=1),
    "masked mean over all": lambda p, losses: (losses("none") * p.mask).mean(),
    "index by mask": lambda p, losses: losses("none")[p.mask > 0].sum() / len(p.y),
    "weighted mean": lambda p, losses: (losses("none") * (1 + p.mask)).sum() / (1 + p.mask).sum(),
    "max": lambda p, losses: losses("none").max(),
    "top half": lambda p, losses: losses("none").topk(len(p.y) // 2 + 1).values.mean(),
    "first": lambda p, losses: losses("none")[0],
    "smooth max": lambda p, losses: losses("none").logsumexp(0),
    "focal": lambda p, losses: (losses("none").detach().sigmoid() * losses("none")).mean(),
}

MEANS = ("mean", "mean of examples", "sum / len")

# Terms, added with a factor of 0.1.
TERMS: dict[str, Callable[[Any, Pass], Tensor]] = {
    "activity": lambda m, p: p.hidden.square().mean(),
    "decay": lambda m, p: sum(w.square().sum() for w in m.parameters()),
    "contrast": lambda m, p: p.pairs().logsumexp(1).mean(),
    "others alone": lambda m, p: (p.pairs().sum() - p.pairs().trace()) / max(1, len(p.y) * (len(p.y) - 1)),
    "entropy of the mean": lambda m, p: torch.special.entr(p.out.flatten().sigmoid().mean()),
    "size of a mean": lambda m, p: p.out.mean().abs(),
    "hinge of a mean": lambda m, p: (1.0 + p.out.mean()).relu(),
    "variance": lambda m, p: p.hidden.var(0, unbiased=False).sum(),
    "one over len": lambda m, p: p.out.mean() / len(p.y),
    "second pass": lambda m, p: (m.net(p.x.clone()) - p.hidden).square().mean(),
    "gradient penalty": lambda m, p: torch.autograd.grad(
        p.loss, p.hidden, create_graph=True
    )[0].square().sum(),
}  # fmt: skip

OUTERS: dict[str, Callable[[Pass], Any]] = {
    "plain": lambda p: p.loss,
    "dict": lambda p: {"loss": p.loss},
    "half": lambda p: 0.5 * p.loss,
    "square": lambda p: p.loss**2,
    "log": lambda p: (1 + p.loss.abs()).log(),
    "times len": lambda p: p.loss * len(p.y),
    "clamp": lambda p: p.loss.clamp(max=1.0),
    "flood": lambda p: (p.loss - 0.8).abs() + 0.8,
}


def hits(p: Pass) -> Tensor:
    return p.out.argmax(1) == p.y if p.out.dim() > 1 else p.out > p.y


LOGS: dict[str, Callable[[Any, Pass], Any]] = {
    "loss": lambda m, p: p.loss,
    "hits": lambda m, p: hits(p).double().mean(),
    "constant": lambda m, p: 2.5,
    "count": lambda m, p: len(p.y),
    "sum of targets": lambda m, p: p.y.sum().double(),
    "largest": lambda m, p: p.out.max(),
    "all hit": lambda m, p: hits(p).all().double(),
    "above": lambda m, p: p.loss > 1.0,
    "deviation": lambda m, p: p.out.std(unbiased=False),
    "square of a mean": lambda m, p: p.out.mean() ** 2,
    "norm of parameters": lambda m, p: sum(w.square().sum() for w in m.parameters()).sqrt(),
    "batch_idx": lambda m, p: p.index,
    "current_epoch": lambda m, p: m.current_epoch,
    "item": lambda m, p: p.out.sum().item(),
}


def first_weight(m: Any) -> nn.Parameter:
    return next(iter([*m.net.parameters(), *m.head.parameters()]))


class Habit:
    """What a module does besides; each hook may be left as it is."""

    def begin(self, m: Any) -> None:
        """At the end of ``__init__``."""

    def on_train_epoch_start(self, m: Any) -> None:
        """In Lightning's hook."""

    def step(self, m: Any, p: Pass) -> None:
        """In the training step, once the loss is known."""


class Frozen(Habit):
    def begin(self, m: Any) -> None:
        first_weight(m).requires_grad_(False)


class Toggled(Habit):
    def on_train_epoch_start(self, m: Any) -> None:
        first_weight(m).requires_grad_(m.current_epoch % 2 == 0)


class Thawed(Habit):
    """Frozen in the first round."""

    def on_train_epoch_start(self, m: Any) -> None:
        first_weight(m).requires_grad_(m.current_epoch % 2 == 1)


class Annealed(Habit):
    """A number that a hook sets and the step reads."""

    def begin(self, m: Any) -> None:
        m.factor = 1.0

    def on_train_epoch_start(self, m: Any) -> None:
        m.factor = 1.0 / (1 + m.current_epoch)

    def step(self, m: Any, p: Pass) -> None:
        p.loss = p.loss * m.factor


class Warming(Annealed):
    """The same, in a list in a dict."""

    def begin(self, m: Any) -> None:
        m.plan = {"factors": [1.0]}

    def on_train_epoch_start(self, m: Any) -> None:
        m.plan["factors"].append(0.5)

    def step(self, m: Any, p: Pass) -> None:
        p.loss = p.loss * m.plan["factors"][-1]


class Settled(Habit):
    """Normalisations and dropout in evaluation mode from the second round on."""

    def on_train_epoch_start(self, m: Any) -> None:
        for part in m.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm | nn.Dropout):
                part.train(m.current_epoch == 0)


class EvaluatesNorm(Habit):
    """BatchNorm in evaluation mode from the first round on, as in fine-tuning."""

    def on_train_epoch_start(self, m: Any) -> None:
        for part in m.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                part.eval()


class LessDropout(Habit):
    def on_train_epoch_start(self, m: Any) -> None:
        for part in m.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.4 / (1 + m.current_epoch)


class ReadsEpoch(Habit):
    def step(self, m: Any, p: Pass) -> None:
        p.loss = p.loss / (1 + m.current_epoch)


class ReadsGlobalStep(Habit):
    def step(self, m: Any, p: Pass) -> None:
        p.loss = p.loss / (1 + m.global_step)


class ReadsIndex(Habit):
    def step(self, m: Any, p: Pass) -> None:
        p.loss = p.loss / (1 + p.index)


class Counts(Habit):
    def begin(self, m: Any) -> None:
        m.count = 0

    def step(self, m: Any, p: Pass) -> None:
        m.count += 1


class CountsInLoss(Counts):
    def step(self, m: Any, p: Pass) -> None:
        super().step(m, p)
        p.loss = p.loss / m.count


class Collects(Habit):
    def begin(self, m: Any) -> None:
        m.outputs = []

    def step(self, m: Any, p: Pass) -> None:
        m.outputs.append(p.out.detach())


class Remembers(Habit):
    """The last step's features, if they have the same shape."""

    def begin(self, m: Any) -> None:
        m.last = None

    def step(self, m: Any, p: Pass) -> None:
        if m.last is not None and m.last.shape == p.hidden.shape:
            p.loss = p.loss + 0.1 * (p.hidden - m.last).square().mean()
        m.last = p.hidden.detach()


class Averages(Habit):
    """A buffer, written in place and read."""

    def step(self, m: Any, p: Pass) -> None:
        m.average.mul_(0.9).add_(p.hidden.detach().mean(0), alpha=0.1)
        p.loss = p.loss + 0.1 * (p.hidden - m.average).square().mean()


class AveragesAnew(Habit):
    """A buffer that is assigned a new tensor."""

    def step(self, m: Any, p: Pass) -> None:
        m.average = 0.9 * m.average + 0.1 * p.hidden.detach().mean(0)


class CountsInBuffer(Habit):
    def step(self, m: Any, p: Pass) -> None:
        m.steps += 1


class Projects(Habit):
    """Writes into a parameter."""

    def step(self, m: Any, p: Pass) -> None:
        with torch.no_grad():
            m.head.bias.clamp_(-0.1, 0.1)


class DrawsNumpy(Habit):
    def step(self, m: Any, p: Pass) -> None:
        p.loss = p.loss * (0.5 + np.random.rand())


class DrawsPython(Habit):
    def step(self, m: Any, p: Pass) -> None:
        p.loss = p.loss * (0.5 + random.random())


class DrawsInHook(Habit):
    """Draws in a hook what the step reads."""

    def begin(self, m: Any) -> None:
        m.drawn = torch.ones(1)

    def on_train_epoch_start(self, m: Any) -> None:
        m.drawn = torch.rand(1)

    def step(self, m: Any, p: Pass) -> None:
        p.loss = p.loss * (0.5 + m.drawn.to(p.loss)).sum()


class Measures(Habit):
    """Logs a Metric object."""

    def begin(self, m: Any) -> None:
        m.metric = MeanMetric()

    def step(self, m: Any, p: Pass) -> None:
        m.metric(p.out.detach().mean())
        m.log("metric", m.metric)


class Ties(Habit):
    """Two layers share a weight."""

    def begin(self, m: Any) -> None:
        layers = [part for part in m.modules() if type(part) is nn.Linear]
        for layer in layers[1:]:
            if layer.weight.shape == layers[0].weight.shape:
                layer.weight = layers[0].weight


class Schedules(Habit):
    """A learning rate that changes after every step; see ``configure_optimizers``."""


class LearnsOne(Habit):
    """Only the head is given to the optimizer; see ``configure_optimizers``."""


HABITS: dict[str, Habit] = {
    "frozen": Frozen(),
    "toggled": Toggled(),
    "thawed": Thawed(),
    "annealed": Annealed(),
    "warming": Warming(),
    "settled": Settled(),
    "evaluates norm": EvaluatesNorm(),
    "less dropout": LessDropout(),
    "schedules": Schedules(),
    "learns one": LearnsOne(),
    "ties": Ties(),
    "draws in hook": DrawsInHook(),
    "reads epoch": ReadsEpoch(),
    "reads index": ReadsIndex(),
    "reads global step": ReadsGlobalStep(),
}
# No fast way can take these.
WILD_HABITS: dict[str, Habit] = {
    "counts": Counts(),
    "counts in loss": CountsInLoss(),
    "counts in buffer": CountsInBuffer(),
    "collects": Collects(),
    "remembers": Remembers(),
    "averages": Averages(),
    "averages anew": AveragesAnew(),
    "projects": Projects(),
    "draws numpy": DrawsNumpy(),
    "draws python": DrawsPython(),
    "measures": Measures(),
}

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1),
    "decay": lambda params: torch.optim.SGD(params, lr=0.1, weight_decay=0.1),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01),
}


# -- the module and its data -------------------------------------------------------------------------------------------


class Cooked(LightningModule):
    """The module of a recipe."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        torch.manual_seed(recipe.number)
        self.recipe = recipe
        width = recipe.width
        self.net = nn.Sequential(*front_of(recipe), *(ALL_LAYERS[name](width) for name in recipe.layers))
        self.head = nn.Linear(width, 1 if recipe.is_regression else recipe.classes)
        self.scale = nn.Parameter(torch.full((1,), 0.7))
        self.register_buffer("average", torch.zeros(width))
        self.register_buffer("class_weights", torch.linspace(2.0, 0.5, recipe.classes))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.habits = [(HABITS | WILD_HABITS)[name] for name in recipe.habits]
        for habit in self.habits:
            habit.begin(self)

    def on_train_epoch_start(self) -> None:
        for habit in self.habits:
            habit.on_train_epoch_start(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.net(x))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        return self.step(batch, 0)

    def step(self, batch: tuple[Tensor, Tensor], index: int) -> Any:
        recipe, (x, y) = self.recipe, batch
        hidden = self.net(x.clone())  # layers may write into it
        out = self.head(hidden) * self.scale
        p = Pass(x, y, hidden, out[:, 0] if recipe.is_regression else out, index)
        p.loss = REDUCTIONS[recipe.reduction](p, lambda how: CRITERIA[recipe.criterion](self, p, how))
        for name in recipe.terms:
            p.loss = p.loss + 0.1 * TERMS[name](self, p)
        for habit in self.habits:
            habit.step(self, p)
        for name in recipe.logs:
            self.log(name, LOGS[name](self, p))
        return OUTERS[recipe.outer](p)

    def configure_optimizers(self) -> Any:
        params = self.head.parameters() if "learns one" in self.recipe.habits else self.parameters()
        optimizer = OPTIMIZERS[self.recipe.optimizer](params)
        if "schedules" not in self.recipe.habits:
            return optimizer
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Indexed(Cooked):
    """Hands ``batch_idx`` on, which counts as reading it."""

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        return self.step(batch, batch_idx)


def front_of(recipe: Recipe) -> Iterator[nn.Module]:
    """The layers that turn the inputs into features [b, width]."""
    if recipe.inputs == "images":
        yield nn.Conv2d(1, recipe.width, 3)
        yield from (IMAGE_LAYERS[name](recipe.width) for name in recipe.front)
        yield Do(lambda x: x.amax((2, 3)) + x.mean((2, 3)))
    elif recipe.inputs == "tokens":
        embedding, pool = recipe.front
        yield EMBEDDINGS[embedding](recipe.width)
        yield POOLS[pool](recipe.width)


def module_of(recipe: Recipe) -> LightningModule:
    reads = "reads index" in recipe.habits or "batch_idx" in recipe.logs
    return (Indexed if reads else Cooked)(recipe)


class Drawn(Source):
    """Random inputs and targets that depend on them; a group of examples for each client."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.num_classes = 0 if recipe.is_regression else recipe.classes

    def load(self) -> tuple[TensorData, TensorData]:
        recipe, count = self.recipe, sum(self.recipe.sizes)
        draws = torch.Generator().manual_seed(recipe.number)
        if recipe.inputs == "tokens":
            x = torch.randint(TOKENS, (count, LENGTH), generator=draws)
        else:
            shape = (1, 6, 6) if recipe.inputs == "images" else (recipe.width,)
            x = torch.randn(count, *shape, generator=draws)
        score = x.flatten(1).double().mean(1) + torch.rand(count, generator=draws, dtype=torch.float64)
        y = score.float() if recipe.is_regression else (score.argsort().argsort() * recipe.classes) // count
        groups = torch.arange(len(recipe.sizes)).repeat_interleave(torch.tensor(recipe.sizes))
        data = TensorData(x, y, groups)
        return data, data


def data_of(recipe: Recipe) -> FederatedDataModule:
    return FederatedDataModule(
        Drawn(recipe), NaturalPartitioner(), num_clients=len(recipe.sizes), batch_size=recipe.batch_size
    )


# -- trying it out -----------------------------------------------------------------------------------------------------


class Keep(FederatedCallback):
    """Keeps what every client logs in every round, its loss included: sums over examples, and how many they are."""

    observes = True

    def __init__(self) -> None:
        self.logged: dict[tuple[int, int, str], tuple[float, float]] = {}

    def on_cohort_end(self, cohort: Cohort) -> None:
        assert cohort.losses is not None
        for name, values in {**cohort.metrics, "its loss": cohort.losses}.items():
            for client, total, count in zip(cohort.ids.tolist(), values.total.tolist(), values.count, strict=True):
                self.logged[cohort.round.number, client, name] = (total, float(count))


@dataclass
class Outcome:
    """What a run came to: the server's model and what was logged, or an error; and the warnings."""

    state: dict[str, Tensor]
    logged: dict[Any, tuple[float, float]]
    error: Exception | None
    warnings: list[str]


def outcome(recipe: Recipe, folder: Path, module: LightningModule | None = None, **options: Any) -> Outcome:
    keep, state, error = Keep(), {}, None
    fixed = {"max_rounds": 2, "participation": FullParticipation(), "logger": False, "on_nonfinite": "skip"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")  # a warning of torch's must not become the reason why a step fails
        try:
            settings = {**fixed, **dict(recipe.options), **options}
            trained = train([keep], folder, module or module_of(recipe), data_of(recipe), **settings)
            state = {name: value.clone() for name, value in trained.server_state_dict().items()}
        except Exception as found:
            error = found
    return Outcome(state, keep.logged, error, [str(warning.message) for warning in caught])


def check(recipe: Recipe, folder: Path, recorded: Sequence[str] = ("sequential", "vectorized")) -> None:
    """Train a module in all ways.

    Args:
        recipe: the module.
        folder: for runs.
        recorded: engines whose recorded steps are looked at, too; that takes most of the time.

    Raises:
        AssertionError: one of them gives other numbers, fails, or leaves its path without a word.
    """
    plain = outcome(recipe, folder, engine="sequential")
    event(f"one client at a time: {type(plain.error).__name__}")
    try:
        check_engines(recipe, folder, plain)
        check_recorded(recipe, folder, plain, recorded)
    except AssertionError:
        if is_steady(recipe, folder, plain):
            raise
        event("chaotic")  # rounding alone gives other numbers


def check_engines(recipe: Recipe, folder: Path, plain: Outcome) -> None:
    auto = outcome(recipe, folder, engine="auto")
    assert_same(auto, plain, "engine=auto")
    vectorized = outcome(recipe, folder, engine="vectorized")
    is_refused = assert_same_or_refused(vectorized, plain, "engine=vectorized", [NOT_VECTORIZED])
    event("vectorized: " + ("refused" if is_refused else "same"))
    if plain.error is not None:
        return
    # `auto` looks before it measures: what is refused at once by name is left with a warning.
    falls_back = any("one client at a time" in warning for warning in auto.warnings)
    assert falls_back or not isinstance(vectorized.error, ValueError), f"engine=auto does not say: {vectorized.error}"
    assert is_refused or not falls_back, f"engine=vectorized goes on, but engine=auto warns: {auto.warnings}"


def check_recorded(recipe: Recipe, folder: Path, plain: Outcome, engines: Sequence[str]) -> None:
    are_refused = []
    for engine in engines:
        found = outcome(recipe, folder, engine=engine, trace_steps=True)
        refusals = [*NOT_RECORDED, NOT_VECTORIZED] if engine == "vectorized" else NOT_RECORDED
        are_refused.append(assert_same_or_refused(found, plain, f"engine={engine} trace_steps=true", refusals))
        event(f"recorded, {engine}: " + ("refused" if are_refused[-1] else "same"))
    if any(are_refused):
        auto = outcome(recipe, folder, engine="auto", trace_steps=True)
        assert_same(auto, plain, "engine=auto trace_steps=true")
        falls_back = any("one client at a time" in warning or "is not recorded" in warning for warning in auto.warnings)
        assert falls_back or not all(are_refused), "engine=auto trace_steps=true falls back without a word"


NOT_VECTORIZED = "`engine=vectorized` cannot train"
NOT_RECORDED = ["`trace_steps=true` cannot record", "recorded and replayed, gives other numbers"]


def is_steady(recipe: Recipe, folder: Path, plain: Outcome) -> bool:
    """Whether parameters that differ in their last bits come to nearly the same."""
    module = module_of(recipe).double()
    draws = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.rand(parameter.shape, generator=draws, dtype=torch.float64) - 0.5
            parameter.mul_(1 + 1e-15 * noise)
    try:
        assert_same(outcome(recipe, folder, module, engine="sequential"), plain, "nudged", within=1e-11)
        return True
    except AssertionError:
        return False


def assert_same_or_refused(found: Outcome, plain: Outcome, name: str, refusals: list[str]) -> bool:
    """Whether it was refused; raises unless that has a reason, or the numbers are the same."""
    if isinstance(found.error, ValueError | RuntimeError) and any(text in str(found.error) for text in refusals):
        return True
    assert_same(found, plain, name)
    return False


def assert_same(found: Outcome, plain: Outcome, name: str, within: float = 1e-9) -> None:
    if plain.error is not None:  # what cannot be trained at all cannot be trained in any way
        assert type(found.error) is type(plain.error), f"{name}: {found.error!r} instead of {plain.error!r}"
        return
    if found.error is not None:
        raise AssertionError(f"{name}: {type(found.error).__name__}: {found.error}") from found.error
    assert found.state.keys() == plain.state.keys(), name
    for key, value in plain.state.items():
        where = f"{name}: {key} is {found.state[key].tolist()} instead of {value.tolist()}"
        assert torch.allclose(found.state[key], value, rtol=within, atol=within, equal_nan=True), where
    assert found.logged.keys() == plain.logged.keys(), name
    for key, pair in plain.logged.items():
        expected = pytest.approx(pair, rel=within, abs=within, nan_ok=True)
        assert found.logged[key] == expected, f"{name}: logged (round, client, name) {key}"


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    """Mostly modules that can be trained together, often with a word or two that may break that."""

    def one(words: Any, often: str | None = None) -> Any:
        usual = often is not None and draw(st.integers(0, 9)) < 6
        return often if usual else draw(st.sampled_from(list(words)))

    def some(words: Any, *counts: int) -> tuple[str, ...]:
        count = draw(st.sampled_from(counts))
        return tuple(draw(st.lists(st.sampled_from(list(words)), min_size=count, max_size=count, unique=True)))

    kind = one(["alone", "any", "wild"], often="alone")  # whether examples see each other, unless a word says so
    layers = {"alone": LAYERS, "any": LAYERS | MIXING_LAYERS, "wild": ALL_LAYERS}[kind]
    habits = HABITS | WILD_HABITS if kind == "wild" else HABITS
    inputs = one(["features", "images", "tokens"])
    front: tuple[str, ...] = ()
    if inputs == "images":
        front = some(IMAGE_LAYERS, 1, 2, 0)
    elif inputs == "tokens":
        front = (one(EMBEDDINGS, often="padded"), one(POOLS, often="mean"))
    # Equal, or of two sizes: few shapes of batches to record. That differ much, or padding would not pay.
    few, many = draw(st.integers(1, 3)), draw(st.integers(4, 7))
    is_even = draw(st.integers(0, 3)) == 0
    return Recipe(
        inputs=inputs,
        front=front,
        layers=some(layers, 1, 2, 3) if inputs == "features" else some(layers, 0, 1),
        criterion=one(CRITERIA),
        reduction=one(MEANS if kind == "alone" else REDUCTIONS, often="mean"),
        terms=some(TERMS, 0, 0, 0, 1),
        outer=one(OUTERS, often="plain"),
        logs=some(LOGS, 0, 0, 1, 2),
        habits=some(habits, 0, 0, 0, 1, 1, 2),
        optimizer=one(OPTIMIZERS, often="sgd"),
        options=draw(
            st.sampled_from(
                [
                    (),
                    (("cohort_size", 2),),
                    (("cohort_size", 4),),
                    (("local_steps", 3),),
                    (("local_epochs", 2),),
                    (("gradient_clip_val", 0.5),),
                    (("local_sampling", "replacement"),),
                ]
            )
        ),
        sizes=(many,) * 6 if is_even else tuple(draw(st.lists(st.sampled_from([few, many]), min_size=5, max_size=7))),
        batch_size=one([2, 3, 4, 5], often=2),
        width=draw(st.integers(3, 8)),
        classes=draw(st.integers(2, 4)),
        number=draw(st.integers(0, 99)),
    )


def examples(count: int) -> settings:
    # The same ones for anybody, in every run. Examples may share a folder: each run makes one of its own in it.
    return settings(max_examples=count, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@examples(8)
@given(recipe=recipes())
def test_some_modules(recipe: Recipe, tmp_path: Path) -> None:
    # Each shape of batches is recorded, which takes most of the time.
    check(recipe, tmp_path, recorded=["vectorized"] if len(set(recipe.sizes)) == 1 else [])


# In parts, because hypothesis would soon vary what it has had already: 500 examples.
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(50))
def test_many_modules(part: int, tmp_path: Path) -> None:
    @seed(part)
    @examples(10)
    @given(recipe=recipes())
    def try_some(recipe: Recipe) -> None:
        check(recipe, tmp_path)

    try_some()
