"""The vectorized engine: C clients in one batched computation, by torch.func.vmap."""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_leaves, tree_map
from typing_extensions import override

from lfl.client.model import ClientModel
from lfl.client.optimizer import ELEMENTWISE, build_optimizer
from lfl.client.step import Extras, StepInput, StepResult
from lfl.engine.base import LocalEngine
from lfl.processes.deal import deal_together
from lfl.randomness import uniform
from lfl.round import Cohort

# Fixed cost of a step of a small network on a CPU, in units of what one more client adds to it.
_SHARED = 3.0


class VectorizedEngine(LocalEngine):
    """Cohorts of up to ``cohort_size`` clients, the largest first so that those still at work are the first rows."""

    name: Literal["sequential", "vectorized"] = "vectorized"

    @override
    def order(self, ids: Tensor, num_steps: Tensor, sizes: Tensor) -> Tensor:
        # By steps, so that clients at work are always the first rows; then by size, so that batches are alike.
        by_size = torch.argsort(sizes, descending=True, stable=True)
        return by_size[torch.argsort(num_steps[by_size], descending=True, stable=True)]

    @override
    def deal(self, work: Tensor, num_processes: int) -> Tensor:
        return deal_together(work, num_processes, _SHARED)

    @override
    def compute_step(self, params: Tensor, input: StepInput) -> StepResult:
        return self.pure_step(params, input)

    @override
    def pure_step(self, params: Tensor, input: StepInput) -> StepResult:
        params = params.detach().requires_grad_()
        losses, logs = batched_loss(self.model, params, input)
        # A client's loss depends on its own row only: the gradient of the sum has the gradient of each loss in its row.
        (gradients,) = torch.autograd.grad(losses.sum(), params)
        return StepResult(gradients, losses.detach(), logs)

    @override
    def _global_features(self, batch: Any, keys: Tensor, anchor: Tensor) -> dict[str, Tensor]:
        features: dict[str, Tensor] = vmap(
            lambda batch, key: self.model.global_features(batch, key, anchor), randomness="error"
        )(batch, keys)
        return features

    @override
    def place(self, cohort: Cohort) -> None:
        pass

    @override
    def collect(self, cohort: Cohort) -> None:
        # A module that changes its buffers runs on the sequential engine; here they are constants.
        cohort.counters = []


def batched_loss(model: ClientModel, params: Tensor, input: StepInput) -> tuple[Tensor, dict[str, Tensor]]:
    """Losses and logged values [G] of G clients with parameters [G, D]: the loss of one client, under vmap.

    If batches are padded (``input.weights``), a client's loss is the weighted sum of its losses on single examples.
    """

    def loss(params: Tensor, batch: Any, key: Tensor, extras: Extras) -> tuple[Tensor, dict[str, Tensor]]:
        return model.loss(params, batch, input.number, key, input.anchor, extras)

    def padded(
        params: Tensor, batch: Any, key: Tensor, extras: Extras, weights: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        def of_example(example: Any) -> tuple[Tensor, dict[str, Tensor]]:
            return loss(params, tree_map(lambda x: x[None], example), key, extras)

        # A second vmap, over examples. Padding repeats a real example, so that its weight zero is never times nan.
        losses, logs = vmap(of_example, randomness="error")(batch)
        return (weights * losses).sum(), {name: (weights * values).sum() for name, values in logs.items()}

    rows = params, input.batch, input.keys, input.extras
    # Random operations without a key raise instead of drawing numbers that depend on the cohort.
    if input.weights is None:
        return vmap(loss, randomness="error")(*rows)
    return vmap(padded, randomness="error")(*rows, input.weights)


def is_mean_over_examples(model: ClientModel, batch: Any, keys: Tensor) -> bool:
    """Find out by trying whether the loss and all logged values are means over examples that do not see each other.

    Compares losses and gradients of whole batches with weighted sums over single examples.

    Args:
        model: a probed model that can be vectorized.
        batch: two clients' batches ``[2, b, ...]``.
        keys: their keys [2].
    """
    if model.random_operations or model.global_feature_names:
        return False
    start = model.flat_parameters()
    noise = uniform(keys, start.numel(), start.dtype) - 0.5
    # Not at the start itself, where terms such as a distance from x are zero and would agree in any case.
    params = (start + 0.1 * start.abs().mean() * noise).requires_grad_()
    count = next(len(leaf[0]) for leaf in tree_leaves(batch) if isinstance(leaf, Tensor))
    whole = StepInput(batch, keys, start)
    results = []
    for input in (whole, whole._replace(weights=start.new_full((2, count), 1 / count))):
        losses, logs = batched_loss(model, params, input)
        results.append([*torch.autograd.grad(losses.sum(), params), losses, *logs.values()])
    tolerance = 1e-4 if start.dtype == torch.float32 else 1e-8
    return all(bool((a - b).abs().max() <= tolerance * a.abs().max()) for a, b in zip(*results, strict=True))


def why_not_vectorized(model: ClientModel, batch: Any, keys: Tensor) -> str | None:
    """Find out by trying why ``model`` cannot be vectorized.

    Args:
        model: a probed model.
        batch: two clients' batches ``[2, b, ...]``.
        keys: their keys [2].

    Returns:
        The reason, for a sentence about the module; None if it can be vectorized.
    """
    if model.changed_buffers:
        return f"its training step changes the buffer {model.changed_buffers[0]!r} in place"
    if model.uses_global_generator:
        return "its training step draws from torch's global random generator"
    if model.logged_metrics:
        return f"its training step logs the Metric object {model.logged_metrics[0]!r}, which keeps a state of its own"
    optimizer, _ = build_optimizer(model.module)
    if type(optimizer) not in ELEMENTWISE:
        # Its state, of all rows together, would let clients see each other.
        return f"its optimizer {type(optimizer).__name__} does not treat every entry alone"
    params = model.flat_parameters().repeat(2, 1).requires_grad_()
    try:
        anchor = params[0].detach()
        features = {}
        if model.global_feature_names:
            features = vmap(lambda batch, key: model.global_features(batch, key, anchor))(batch, keys)
        losses, _ = batched_loss(model, params, StepInput(batch, keys, anchor, Extras(features, {})))
        torch.autograd.grad(losses.sum(), params)
    except Exception as error:  # whatever a user's module raises under vmap is the reason
        return f"its training step does not run under vmap ({type(error).__name__}: {str(error).splitlines()[0][:200]})"
    finally:
        model.reset_metrics()
    return None
