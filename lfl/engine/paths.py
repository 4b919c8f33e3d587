"""The ways in which steps can be computed, and what each of them needs of a training step.

The plain way is one client at a time, with the module's own parameters and plain autograd. A faster way is taken where
the step is shown to allow it, by looking at what it does and by comparing numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from lfl.callback import FederatedCallback
from lfl.client.model import ClientModel
from lfl.client.optimizer import ELEMENTWISE, build_optimizer, has_hooks
from lfl.client.work import LocalWork
from lfl.data.base import FederatedData
from lfl.engine.base import LocalEngine
from lfl.engine.graph.separable import why_not_separable
from lfl.engine.sequential import SequentialEngine
from lfl.engine.steps import ALL, Descents
from lfl.engine.trial import Trial
from lfl.engine.vectorized import VectorizedEngine, vectorized_features, vectorized_step
from lfl.engine.witness import Difference, Witness, row_of

TraceSteps = bool | Literal["auto", "compile"]
Recording = bool | Literal["compile"]


@dataclass(frozen=True)
class Path:
    """The way in which the steps of a run are computed.

    Attributes:
        name: of the engine.
        cohort_size: the largest number of clients of a cohort (C).
        padded_width: number of examples to which batches are padded; 0 for no padding.
        recording: whether steps are recorded, and compiled.
        patience: how many batches of a shape must have come before it is recorded.
        descents: which recorded steps may include the step of plain SGD; None for none.
        joint_features: whether features of the server's model, which loss terms read, may be read for many batches at
            once.
    """

    name: Literal["sequential", "vectorized"] = "sequential"
    cohort_size: int = 1
    padded_width: int = 0
    recording: Recording = False
    patience: int = 0
    descents: Descents | None = ALL
    joint_features: bool = True

    @property
    def at_once(self) -> Path:
        """The same path, recording what it records at the first call."""
        return replace(self, patience=0)

    def engine(
        self, model: ClientModel, data: FederatedData, work: LocalWork, callbacks: list[FederatedCallback], seed: int
    ) -> LocalEngine:
        """Build the engine that computes steps in this way."""
        kind: type[LocalEngine] = VectorizedEngine if self.name == "vectorized" else SequentialEngine
        engine = kind(model, data, work, callbacks, seed, self.cohort_size)
        engine.padded_width, engine.descents = self.padded_width, self.descents
        if not self.joint_features:
            engine.frozen.is_joint = False
        if self.recording:
            engine.steps.record(compile=self.recording == "compile", patience=self.patience)
        return engine


def why_not_vectorized(model: ClientModel, trial: Trial) -> str | None:
    """Find out why clients cannot be trained together under vmap.

    Args:
        model: a probed model.
        trial: batches to compare the gradients of several clients on.

    Returns:
        The reason, for a sentence about the module; None if they can.
    """
    if model.traits.side_effect is not None:
        return f"its training step {model.traits.side_effect}"
    optimizer, _ = build_optimizer(model.module)
    if has_hooks(optimizer):
        return f"its optimizer {type(optimizer).__name__} has hooks, which are for one client's parameters"
    if type(optimizer) not in ELEMENTWISE:
        # Its state, of all rows together, would let clients see each other.
        return f"its optimizer {type(optimizer).__name__} does not treat every entry alone"
    if model.tied_padding:
        # As an embedding that row has no gradient, elsewhere it has; torch's rule knows of the first client's only.
        return f"{model.tied_padding[0]!r} has a row for padding, and is tied to another layer"
    if (reason := _why_not_by_zeros(model, optimizer)) is not None:
        return reason
    return _why_not_the_same(model, trial, is_padded=False) or _why_not_longer(model, trial)


def why_not_padded(model: ClientModel, trial: Trial) -> str | None:
    """Find out why batches of different lengths cannot be padded; None if they can.

    Args:
        model: a probed model that can be vectorized.
        trial: batches to compare losses and gradients on.
    """
    if model.traits.random_operations:
        return "it draws random numbers for a batch, not for an example"
    if model.traits.depends_on_rounds:
        return f"it reads {model.traits.reads[0]}, so that its loss may be another one in later rounds"
    if model.global_feature_names:
        return "its loss reads features of the global model"
    twin = model.copy()
    with twin.recording():
        reason = why_not_separable(twin, trial.batch_of(0), trial.keys[0])
    if reason is not None:
        return reason
    return _why_not_the_same(model, trial, is_padded=True)


def why_not_recorded(model: ClientModel) -> str | None:
    """Find out what a step does besides computing results from tensors; None for nothing that has been seen."""
    if model.traits.side_effect is not None:
        return f"it {model.traits.side_effect}"
    if (reason := _why_not_by_zeros(model, build_optimizer(model.module)[0])) is not None:
        return reason
    if model.traits.needs_backward:
        return "some of its gradients come from `backward` only, as those of reentrant checkpoints do"
    if model.traits.reads:
        return f"it reads {model.traits.reads[0]}, which is not the same at every step"
    if model.traits.reads_values:
        return f"what it does depends on the values of tensors, by `{model.traits.reads_values[0]}`"
    return None


def _why_not_by_zeros(model: ClientModel, optimizer: Optimizer) -> str | None:
    """Find out why a gradient of zero may not stand for none: torch's optimizers leave out parameters without one."""
    sometimes, never = model.traits.sometimes_missing, model.traits.without_gradient
    decays = any(group.get("weight_decay") for group in optimizer.param_groups)
    moves = decays or type(optimizer) is not torch.optim.SGD or any(g["momentum"] for g in optimizer.param_groups)
    if sometimes and moves:
        return f"no gradient reaches {sometimes[0]!r} in some of its steps, in which its optimizer leaves it out"
    return f"no gradient reaches {never[0]!r}, which its optimizer does not decay then" if never and decays else None


def _why_not_longer(model: ClientModel, trial: Trial) -> str | None:
    """Compare steps on batches that a ``collate_fn`` made of all clients, as long as the longest, with those alone."""
    witness = Witness(model, model.names_of(["*"]))
    for row, alone in enumerate(trial.alone):
        input = row_of(trial.input({}), row)
        if _shapes(input.batch) == _shapes(alone):
            continue
        try:
            witness.check_batch(trial.params[row], input, alone)
        except Difference as difference:
            return f"its loss depends on how far a batch is padded, and clients would be padded alike: {difference}"
    return None


def _shapes(batch: Any) -> list[torch.Size]:
    return [leaf.shape for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]


def _why_not_the_same(model: ClientModel, trial: Trial, is_padded: bool) -> str | None:
    """Compare steps under vmap with steps of one client at a time, on copies of the module."""
    twin = model.copy()
    trained = twin.names_of(["*"])
    try:
        with twin.recording(), twin.training_only(trained):
            features = {}
            if twin.global_feature_names:
                features = vectorized_features(twin, trial.batch, trial.keys, trial.anchor)
            input = trial.ragged(features) if is_padded else trial.input(features)
            result = vectorized_step(twin, trial.params, input)
    except Exception as error:  # whatever a user's module raises under vmap is the reason
        return f"its training step does not run under vmap ({brief(error)})"
    try:
        Witness(model, trained).check(trial.params, input, result)
    except Difference as difference:
        return f"its training step gives other numbers {'padded' if is_padded else 'under vmap'}: {difference}"
    return None


def brief(error: BaseException) -> str:
    """The type of an error and the first line of its message."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"
