"""The sequential engine: one client at a time, with the module's own parameters."""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from typing_extensions import override

from lfl.client.step import StepInput, StepResult
from lfl.engine.base import LocalEngine
from lfl.processes.deal import deal
from lfl.randomness import derive_seed
from lfl.round import Cohort


class SequentialEngine(LocalEngine):
    """Cohorts of one client. Runs every module, also with buffers that change and with global random numbers."""

    name: Literal["sequential", "vectorized"] = "sequential"

    @override
    def order(self, ids: Tensor, num_steps: Tensor, sizes: Tensor) -> Tensor:
        return torch.arange(len(ids))

    @override
    def deal(self, work: Tensor, num_processes: int) -> Tensor:
        return deal(work, num_processes)

    @override
    def compute_step(self, params: Tensor, input: StepInput) -> StepResult:
        model = self.model
        # Bind each time: passes at other points (SAM, the server's model) leave other parameters in the module.
        model.bind(params[0])
        batch, extras = _first(input.batch), _first(input.extras)
        loss, logs = model.loss(None, batch, input.number, input.keys[0], input.anchor, extras)
        return StepResult(model.gradient_of(loss).unsqueeze(0), loss.detach().unsqueeze(0), logs)

    @override
    def pure_step(self, params: Tensor, input: StepInput) -> StepResult:
        # Functional: parameters come as an argument and not from the module, so that a recording may take others.
        flat = params.detach().reshape(-1).requires_grad_()
        batch, extras = _first(input.batch), _first(input.extras)
        loss, logs = self.model.loss(flat, batch, input.number, input.keys[0], input.anchor, extras)
        (gradient,) = torch.autograd.grad(loss, flat)
        rows = {name: value.unsqueeze(0) for name, value in logs.items()}
        return StepResult(gradient.unsqueeze(0), loss.detach().unsqueeze(0), rows)

    @override
    def _global_features(self, batch: Any, keys: Tensor, anchor: Tensor) -> dict[str, Tensor]:
        self.model.bind(anchor)  # `compute_step` binds the client's row again
        features = self.model.global_features(_first(batch), keys[0], None)
        return {name: value.unsqueeze(0) for name, value in features.items()}

    @override
    def place(self, cohort: Cohort) -> None:
        # Without coordinates the module gets views of the row itself, and sees its steps. In coordinates every step
        # computes new parameters and binds them; until then the module holds those at the start.
        self.model.bind(cohort.values[0] if cohort.round.basis is None else cohort.params[0])
        self.model.load_buffers(cohort.buffers[0], [rows[0] for rows in cohort.counters])
        if self.model.uses_global_generator:
            # Some operations take no key and draw from torch's global generator: seed it for each client, so that the
            # draws do not depend on who was trained before.
            torch.manual_seed(derive_seed(self.seed, "global", cohort.round.number, int(cohort.ids[0])))

    @override
    def collect(self, cohort: Cohort) -> None:
        # `clone`, as the module's counters are overwritten by the next client.
        cohort.buffers = self.model.flat_buffers().unsqueeze(0)
        cohort.counters = [counter.clone().unsqueeze(0) for counter in self.model.counters]


def _first(nest: Any) -> Any:
    """The only client's tensors, from a nest of tensors ``[1, ...]``."""
    return tree_map(lambda x: x[0], nest)
