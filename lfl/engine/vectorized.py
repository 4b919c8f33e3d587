"""The vectorized engine: C clients in one batched computation, by torch.func.vmap."""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_map
from typing_extensions import override

from lfl.client.model import ClientModel
from lfl.client.step import Extras, StepInput, StepResult
from lfl.data.nests import without_riders
from lfl.engine.base import LocalEngine
from lfl.processes.deal import deal_together
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
        return vectorized_step(self.model, params, input)

    @override
    def quick_step(self, params: Tensor, input: StepInput) -> StepResult:
        return self.pure_step(params, input)

    @override
    def _read_features(self, batch: Any, keys: Tensor, params: Tensor) -> dict[str, Tensor]:
        return vectorized_features(self.model, batch, keys, params)

    @override
    def place(self, cohort: Cohort) -> None:
        pass

    @override
    def collect(self, cohort: Cohort) -> None:
        # A module that changes its buffers runs on the sequential engine; here they are constants.
        cohort.counters = []


def vectorized_step(model: ClientModel, params: Tensor, input: StepInput) -> StepResult:
    """The steps of G clients with parameters [G, D], under vmap."""
    params = params.detach().requires_grad_()
    losses, logs = batched_loss(model, params, input._replace(batch=without_riders(input.batch)))
    # A client's loss depends on its own row only: the gradient of the sum has the gradient of each loss in its row.
    if losses.requires_grad:
        (gradients,) = torch.autograd.grad(losses.sum(), params)
    else:  # what is trained in this phase is out of the loss's reach
        gradients = torch.zeros_like(params)
    return StepResult(gradients, losses.detach(), logs)


def vectorized_features(model: ClientModel, batch: Any, keys: Tensor, params: Tensor) -> dict[str, Tensor]:
    """Features of frozen models, x [D] or one for each client [G, D], on the batches of G clients, under vmap."""
    in_dims = (0, 0, None if params.dim() == 1 else 0)
    features: dict[str, Tensor] = vmap(model.global_features, in_dims, randomness="error")(
        without_riders(batch), keys, params
    )
    return features


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
