"""Ditto: a personal model for every client, held near the shared one, which is trained as ever.

T. Li, S. Hu, A. Beirami, V. Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021,
https://arxiv.org/abs/2012.04221.
"""

from jsonargparse.typing import NonNegativeFloat
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_number
from lfl.callback import FederatedCallback, Gradient, overrides
from lfl.callbacks.extra_pass import extra_pass
from lfl.callbacks.personal_model import PersonalModel
from lfl.client.step import LocalStep
from lfl.federation import Federation
from lfl.round import Cohort


class Ditto(PersonalModel):
    """Every client also trains ``v_i`` on ``F_i(v) + lam/2 |v - x|^2``, beside the model that it shares.

    For each local step of the shared model v_i takes one on the same batch, along ``g(v) + lam (v - x)`` (Algorithm 1),
    with an optimizer of its own that is made as the shared one's, fresh in every round. The shared model is that of the
    stack without Ditto, bit for bit; that of FedAvg, if there is nothing else. Local work is doubled.

    v_i starts from the x that the client is sent in its first round, and is kept while it is absent. Large ``lam`` give
    ``v = x``, and 0 is local training. Ditto must come before callbacks that change gradients: v_i follows the loss.
    The logged training loss is the shared model's. State: v_i [D] for every client seen so far. Wire: nothing more.

    Args:
        lam: weight of the proximal term, lambda in the paper; 0.1 to 2 there. ``lr * lam`` must stay below 2.
    """

    slot = "ditto"

    def __init__(self, lam: NonNegativeFloat = 0.1) -> None:
        check_number("Ditto", "lam", lam, least=0)
        self.lam = lam

    @override
    def check_stack(self, stack: list[FederatedCallback]) -> None:
        for before in stack[: stack.index(self)]:
            if overrides(before, "wrap_gradient") or overrides(before, "coordinates"):
                raise ValueError(
                    f"Ditto's personal models follow the gradient of the loss, which {type(before).__name__} changes: "
                    f"put Ditto before {type(before).__name__}."
                )

    @override
    def on_run_start(self, federation: Federation) -> None:
        super().on_run_start(federation)
        self._work = federation.work

    @override
    def on_cohort_start(self, cohort: Cohort) -> None:
        super().on_cohort_start(cohort)
        self.personalize(cohort.ids, cohort.rows[self.slot])

    @override
    def wrap_gradient(self, cohort: Cohort, gradient: Gradient) -> Gradient:
        models, origin, bind = cohort.rows[self.slot], cohort.origin, cohort.model.bind
        phases = [(phase.optimizer.for_rows(models), phase.trained) for phase in cohort.phases]
        second_pass = extra_pass(cohort, gradient)
        last: tuple[int, int] | None = None

        def with_personal_step(params: Tensor, step: LocalStep) -> Tensor:
            nonlocal last
            gradients = gradient(params, step)
            if last == (step.phase, step.number):  # somebody behind takes the gradient of a step twice
                return gradients
            last = step.phase, step.number
            optimizer, trained = phases[step.phase]
            own = models[: step.active]
            pulled = second_pass(own, step).add_(own - origin[: step.active], alpha=self.lam)
            if trained is not None:
                pulled.mul_(trained)
            optimizer.narrow(step.active)
            if optimizer.steps_module:
                bind(own[0])
            optimizer.step(self._work.clip(pulled))
            return gradients

        return with_personal_step
