"""One client at a time, with the module's own parameters."""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from typing_extensions import override

from lfl.client.step import Extras
from lfl.engine.base import LocalEngine
from lfl.processes.deal import deal
from lfl.randomness import derive_seed
from lfl.round import Cohort


class SequentialEngine(LocalEngine):
    """Cohorts of one client; runs every module, buffers and global random numbers included."""

    name: Literal["sequential", "vectorized"] = "sequential"

    @override
    def order(self, ids: Tensor, num_steps: Tensor, sizes: Tensor) -> Tensor:
        return torch.arange(len(ids))

    @override
    def deal(self, work: Tensor, num_processes: int) -> Tensor:
        return deal(work, num_processes)

    @override
    def gradients(
        self, params: Tensor, batch: Any, step: int, keys: Tensor, anchor: Tensor, extras: Extras, *weights: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        model = self.model
        model.bind(params[0])
        loss, logs = model.loss(None, _first(batch), step, keys[0], anchor, _first(extras))
        return model.gradients_of(loss).unsqueeze(0), loss.detach().unsqueeze(0), logs

    @override
    def functional_gradients(
        self, params: Tensor, batch: Any, step: int, keys: Tensor, anchor: Tensor, extras: Extras, *weights: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        flat = params.detach().reshape(-1).requires_grad_()
        loss, logs = self.model.loss(flat, _first(batch), step, keys[0], anchor, _first(extras))
        (gradient,) = torch.autograd.grad(loss, flat)
        return gradient.unsqueeze(0), loss.detach().unsqueeze(0), {n: v.unsqueeze(0) for n, v in logs.items()}

    @override
    def _global_features(self, batch: Any, keys: Tensor, anchor: Tensor) -> dict[str, Tensor]:
        self.model.bind(anchor)  # `gradients` binds the client's row again
        features = self.model.global_features(_first(batch), keys[0], None)
        return {name: value.unsqueeze(0) for name, value in features.items()}

    @override
    def place(self, cohort: Cohort) -> None:
        self.model.bind(cohort.values[0] if cohort.round.basis is None else cohort.params[0])
        self.model.load_buffers(cohort.buffers[0], [c[0] for c in cohort.counters])
        if self.model.uses_global_generator:
            # Operations that no key can reach draw from torch's global stream: give each client its own.
            torch.manual_seed(derive_seed(self.seed, "global", cohort.round.number, int(cohort.ids[0])))

    @override
    def collect(self, cohort: Cohort) -> None:
        cohort.buffers = self.model.flat_buffers().unsqueeze(0)
        cohort.counters = [counter.clone().unsqueeze(0) for counter in self.model.counters]


def _first(nest: Any) -> Any:
    """The only client's part."""
    return tree_map(lambda x: x[0], nest)
