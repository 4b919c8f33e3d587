"""FLANP's own stages: twice as many clients as soon as the gradient is small for the data of those at work.

Reisizadeh et al., "Straggler-Resilient Federated Learning: Leveraging the Interplay Between Statistical Accuracy and
System Heterogeneity", 2022, Algorithm 1.
"""

from __future__ import annotations

from typing import Any

import torch
from jsonargparse.typing import PositiveFloat
from typing_extensions import override

from lfl.arguments import check_number
from lfl.callback import FederatedCallback
from lfl.federation import Federation
from lfl.participation import DoublingParticipation
from lfl.round import Cohort, Round

_GRADIENT = "flanp/gradient"
_WEIGHT, _EXAMPLES = "flanp/weight", "flanp/examples"


class GradientNormStages(FederatedCallback):
    """Ends a stage of ``DoublingParticipation`` after the first round with ``|grad L_n(x)|^2 <= 2 mu c / (n s)``.

    L_n is the mean loss of the n participants, with the aggregator's weights, x the model that the round began with,
    and n s the number of all their examples: c / (n s) is the statistical accuracy of so many, and mu the constant of
    strong convexity that turns the norm of a gradient into a distance from the optimum. The last stage, in which all
    sampled clients take part, never ends. A client computes the gradient over all of its examples, and sends it: D more
    numbers up. Weight decay is no part of the loss here.

    Needs ``DoublingParticipation(rounds_per_stage=None)``. The paper's local work is FedGATE; here it is what else is
    in the stack, FedAvg alone. State: the number of stages that have ended.

    Logged: ``flanp/stage`` (r, from 0), ``flanp/gradient_norm`` and ``flanp/threshold``, the root of the right side.

    Args:
        mu: strong convexity of the loss.
        c: the constant of the statistical accuracy.

    Raises:
        ValueError: a value is not greater than 0, or the participation has stages of its own.
    """

    is_unique = True
    sends_more = True
    whole_model = True

    def __init__(self, mu: PositiveFloat = 1.0, c: PositiveFloat = 1.0) -> None:
        check_number("GradientNormStages", "mu", mu, above=0)
        check_number("GradientNormStages", "c", c, above=0)
        self.mu = mu
        self.c = c

    @override
    def on_run_start(self, federation: Federation) -> None:
        participation = federation.participation
        if not isinstance(participation, DoublingParticipation) or participation.rounds_per_stage is not None:
            raise ValueError(
                "GradientNormStages ends the stages of `trainer.participation`, which must be DoublingParticipation "
                f"with `rounds_per_stage: null`, not {type(participation).__name__} with stages of its own."
            )
        self._participation = participation
        self._aggregator = federation.aggregator
        participation.stages_ended = 0

    @override
    def on_cohort_end(self, cohort: Cohort) -> None:
        gradients = cohort.full_gradient(cohort.received["model"].expand(len(cohort), -1))
        weights = self._aggregator.weights(cohort.num_examples)
        cohort.upload(_GRADIENT, gradients * weights.to(gradients)[:, None])
        cohort.round.accumulate(_WEIGHT, weights.sum())
        cohort.round.accumulate(_EXAMPLES, cohort.num_examples.sum())

    @override
    def on_round_end(self, round: Round) -> None:
        participation = self._participation
        round.log("flanp/stage", float(participation.stages_ended))
        if not round.num_reported:
            return
        gradient = round.received[_GRADIENT] / round.sums[_WEIGHT].to(round.received[_GRADIENT].device)
        norm = float(torch.linalg.vector_norm(gradient))
        threshold = float(2 * self.mu * self.c / round.sums[_EXAMPLES]) ** 0.5
        round.log("flanp/gradient_norm", norm)
        round.log("flanp/threshold", threshold)
        is_last = len(round.clients) + round.num_lost == len(round.invited)
        if norm <= threshold and not is_last:
            participation.stages_ended += 1

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"stages_ended": self._participation.stages_ended}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._participation.stages_ended = int(state_dict["stages_ended"])
