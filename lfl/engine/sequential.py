"""The sequential engine: one client at a time, with the module's own parameters."""

from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor
from typing_extensions import override

from lfl.client.step import StepInput, StepResult
from lfl.client.value_reads import out_of_reach
from lfl.engine.base import LocalEngine
from lfl.engine.plain import first_of, plain_features, plain_step
from lfl.generators import HostGenerators
from lfl.processes.deal import deal
from lfl.round import Cohort


class SequentialEngine(LocalEngine):
    """Cohorts of one client. Runs every module, also with buffers that change and with global random numbers."""

    name: Literal["sequential", "vectorized"] = "sequential"

    _address: tuple[int | str, ...] = ()  # of the client's draws that take no key

    @cached_property
    def _generators(self) -> HostGenerators:
        return HostGenerators(*self.model.module.modules())

    @override
    def order(self, ids: Tensor, num_steps: Tensor, sizes: Tensor) -> Tensor:
        return torch.arange(len(ids))

    @override
    def deal(self, work: Tensor, num_processes: int) -> Tensor:
        return deal(work, num_processes)

    @override
    def compute_step(self, params: Tensor, input: StepInput) -> StepResult:
        if self.is_wrapped:
            # By the step, so that a second pass of the same step (SAM) draws the same numbers.
            self._generators.seed(*self._address, self.phase, input.number)
        return plain_step(self.model, params, input)

    @override
    def pure_step(self, params: Tensor, input: StepInput) -> StepResult:
        # Functional: parameters come as an argument and not from the module, so that a recording may take others.
        flat = params.detach().reshape(-1).requires_grad_()
        batch, extras = first_of(input.batch), first_of(input.extras)
        loss, logs = self.model.loss(flat, batch, input.number, input.keys[0], input.anchor, extras)
        # What is trained in this phase may be out of the loss's reach.
        gradient = torch.autograd.grad(loss, flat)[0] if loss.requires_grad else torch.zeros_like(flat)
        rows = {name: value.unsqueeze(0) for name, value in logs.items()}
        return StepResult(gradient.unsqueeze(0), loss.detach().unsqueeze(0), rows)

    @override
    def quick_step(self, params: Tensor, input: StepInput) -> StepResult:
        # Not `compute_step`: steps that are recorded draw nothing, and who seeds generators moves them.
        with out_of_reach():  # as in `pure_step`, for the same bits
            result = plain_step(self.model, params, input)
        return result._replace(logs={name: value.unsqueeze(0) for name, value in result.logs.items()})

    @override
    def _read_features(self, batch: Any, keys: Tensor, params: Tensor) -> dict[str, Tensor]:
        return plain_features(self.model, batch, keys, params)

    @override
    def place(self, cohort: Cohort) -> None:
        # Without coordinates the module gets views of the row itself, and sees its steps. In coordinates every step
        # computes new parameters and binds them; until then the module holds those at the start.
        self.model.bind(cohort.values[0] if cohort.round.basis is None else cohort.params[0])
        # Some draws take no key (numpy's, Python's, torch's in-place ones): by the client, so that they do not depend
        # on who was trained before. Always, since a step may begin to draw in any round; but not where steps are
        # recorded, which must not draw at all.
        if not self.steps.are_recorded:
            self._address = self.seed, "client", cohort.round.number, int(cohort.ids[0])
            self._generators.seed(*self._address)

    @override
    def collect(self, cohort: Cohort) -> None:
        # `clone`, as the module's counters are overwritten by the next client.
        cohort.buffers = self.model.flat_buffers().unsqueeze(0)
        cohort.counters = [counter.clone().unsqueeze(0) for counter in self.model.counters]
