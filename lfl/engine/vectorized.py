"""C clients in one batched computation, by torch.func.vmap."""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import vmap
from typing_extensions import override

from lfl.client import ClientModel, Extras
from lfl.engine.base import LocalEngine
from lfl.engine.trace import TracedStep
from lfl.optim import ELEMENTWISE, build_optimizer
from lfl.round import Cohort


class VectorizedEngine(LocalEngine):
    """Cohorts of up to ``cohort_size`` clients, the largest first so that those still at work are the first rows."""

    name: Literal["sequential", "vectorized"] = "vectorized"
    traced: list[TracedStep] | None = None

    @override
    def order(self, ids: Tensor, num_steps: Tensor, sizes: Tensor) -> Tensor:
        by_size = torch.argsort(sizes, descending=True, stable=True)
        return by_size[torch.argsort(num_steps[by_size], descending=True, stable=True)]

    @override
    def gradients(
        self, params: Tensor, batch: Any, step: int, keys: Tensor, anchor: Tensor, extras: Extras
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        if self.traced is not None:
            return self.traced[self._phase](params, batch, keys, anchor, extras)
        return self._gradients(params, batch, keys, anchor, extras, step)

    @override
    def _global_features(self, batch: Any, keys: Tensor, anchor: Tensor) -> dict[str, Tensor]:
        found: dict[str, Tensor] = vmap(
            lambda batch, key: self.model.global_features(batch, key, anchor), randomness="error"
        )(batch, keys)
        return found

    def trace_steps(self) -> None:
        """Record the step once for each shape of batch, and replay it from then on."""

        def step(params: Tensor, batch: Any, keys: Tensor, anchor: Tensor, extras: Extras) -> Any:
            return self._gradients(params, batch, keys, anchor, extras)

        self.traced = [TracedStep(step) for _ in self.work.phases]

    def _gradients(
        self, params: Tensor, batch: Any, keys: Tensor, anchor: Tensor, extras: Extras, step: int = 0
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        params = params.detach().requires_grad_()
        losses, logs = batched_loss(self.model, params, batch, step, keys, anchor, extras)
        (gradients,) = torch.autograd.grad(losses.sum(), params)
        return gradients, losses.detach(), logs

    @override
    def place(self, cohort: Cohort) -> None:
        pass

    @override
    def collect(self, cohort: Cohort) -> None:
        # A module that changes its buffers runs on the sequential engine; here they are constants.
        cohort.counters = []


def batched_loss(
    model: ClientModel, params: Tensor, batch: Any, step: int, keys: Tensor, anchor: Tensor, extras: Extras
) -> tuple[Tensor, dict[str, Tensor]]:
    """Losses and logged values [G] of G clients: the loss of one, under vmap."""

    def loss(params: Tensor, batch: Any, key: Tensor, extras: Extras) -> tuple[Tensor, dict[str, Tensor]]:
        return model.loss(params, batch, step, key, anchor, extras)

    # Random operations without a key raise instead of drawing numbers that depend on the cohort.
    return vmap(loss, randomness="error")(params, batch, keys, extras)


def why_not_vectorized(model: ClientModel, batch: Any, keys: Tensor) -> str | None:
    """The reason why ``model`` cannot be vectorized, found by trying; None if it can.

    Args:
        model: a probed model.
        batch: two clients' batches ``[2, b, ...]``.
        keys: their keys [2].
    """
    if model.changed_buffers:
        return f"its training step changes the buffer {model.changed_buffers[0]!r} in place"
    if model.uses_global_generator:
        return "its training step draws from torch's global random generator"
    if model.logged_metrics:
        return f"its training step logs the Metric object {model.logged_metrics[0]!r}, which keeps a state of its own"
    optimizer, _ = build_optimizer(model.module)
    if type(optimizer) not in ELEMENTWISE:
        return f"its optimizer {type(optimizer).__name__} does not treat every entry alone"
    params = model.flat_parameters().repeat(2, 1).requires_grad_()
    try:
        anchor = params[0].detach()
        features = {}
        if model.global_feature_names:
            features = vmap(lambda batch, key: model.global_features(batch, key, anchor))(batch, keys)
        losses, _ = batched_loss(model, params, batch, 0, keys, anchor, Extras(features, {}))
        torch.autograd.grad(losses.sum(), params)
    except Exception as error:  # whatever a user's module raises under vmap is the reason
        return f"its training step does not run under vmap ({type(error).__name__}: {str(error).splitlines()[0][:200]})"
    finally:
        model.reset_metrics()
    return None
