"""FedCM: the server's last movement as a momentum in every local step.

J. Xu, S. Wang, L. Wang, A. C.-C. Yao, "FedCM: Federated Learning with Client-level Momentum", 2021,
https://arxiv.org/abs/2106.10874. With SAM's gradients it is MoFedSAM (Qu et al., ICML 2022), on which FedMRUR builds.
"""

from typing import Any, Literal

import torch
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_choice
from lfl.callback import FederatedCallback, Gradient, overrides
from lfl.client.step import LocalStep
from lfl.comm import Message
from lfl.federation import Federation
from lfl.round import Cohort, Round

_MOVED = "momentum/moved"  # weighted sum of delta_i / (K_i eta) [D], or of K_i eta
_WEIGHT = "momentum/weight"  # sum of the weights


class ClientMomentum(FederatedCallback):
    """Local steps along ``v = alpha g + (1 - alpha) m``; m [D] is the direction of the clients' last movement.

    m has the scale of a gradient: a client's movement divided by what its optimizer makes of a constant unit gradient
    (K_i eta for plain SGD). A momentum with the scale of a movement would be multiplied by ``(1 - alpha) K eta`` from
    round to round, and diverge if that is above 1. The local optimizer must be SGD.

    Weight decay is added by the optimizer, outside the mix. But m follows from movements, which contain the decay, so
    that in the end it is ``1 / alpha`` times as strong.

    State: m [D], zero in the first round. Wire: x and m down, delta_i up. ``alpha=1`` is the stack without it, bit for
    bit.

    Args:
        alpha: weight of a client's own gradient, in (0, 1].
        momentum_from: what m is computed from. ``updates``: ``-sum_i w_i delta_i / (K_i eta)`` with the aggregator's
            weights. ``aggregate``: ``-u / sum_i w_i K_i eta``, with u the aggregate that the server steps along, as in
            FedMRUR, where it is normalised.
        decay_inside: put weight decay into the mix: ``v = alpha (g + wd y) + (1 - alpha) m``.

    Raises:
        ValueError: ``alpha`` is not in (0, 1], or ``momentum_from`` is not one of the two.
    """

    def __init__(
        self,
        alpha: float = 0.1,
        momentum_from: Literal["updates", "aggregate"] = "updates",
        decay_inside: bool = False,
    ) -> None:
        if not 0 < alpha <= 1:
            raise ValueError(f"`alpha={alpha}` must be above 0 and at most 1.")
        check_choice("", "momentum_from", momentum_from, ("updates", "aggregate"))
        self.alpha = alpha
        self.momentum_from = momentum_from
        self.decay_inside = decay_inside
        self.weighting = "uniform" if alpha < 1 else None
        self.whole_model = alpha < 1  # parameters that stay on the clients have no common movement
        self.sends_more = alpha < 1
        self.momentum = torch.empty(0)

    @override
    def check_stack(self, stack: list[FederatedCallback]) -> None:
        if self.alpha == 1:
            return
        owner = next((type(c).__name__ for c in stack if overrides(c, "coordinates")), None)
        if owner is not None:
            raise ValueError(
                f"ClientMomentum cannot be used with {owner}: clients that move in a few coordinates, others every "
                "few rounds, leave no momentum in the rest. Use one of the two."
            )
        codec = next((type(c).__name__ for c in stack if overrides(c, "encode")), None)
        if codec is not None and self.momentum_from == "updates":
            raise ValueError(
                f"`momentum_from=updates` of ClientMomentum needs the clients' whole updates, which {codec} does not "
                "send: use `momentum_from=aggregate`."
            )

    @override
    def on_run_start(self, federation: Federation) -> None:
        self._aggregator = federation.aggregator
        self.momentum = torch.zeros_like(federation.server.vector)

    @override
    def on_download(self, message: Message) -> None:
        if self.alpha < 1:
            message.add("momentum", self.momentum)

    @override
    def wrap_gradient(self, cohort: Cohort, gradient: Gradient) -> Gradient:
        if self.alpha == 1:
            return gradient
        rest = 1 - self.alpha
        momentum = cohort.received["momentum"]
        decay = cohort.optimizer.weight_decay() if self.decay_inside else None

        def mixed(params: Tensor, step: LocalStep) -> Tensor:
            mix = gradient(params, step).mul_(self.alpha).add_(momentum, alpha=rest)
            # The optimizer is going to add all of `wd y`: of this, alpha is to be left.
            return mix if decay is None else mix.sub_(rest * decay * params)

        return mixed

    @override
    def on_cohort_end(self, cohort: Cohort) -> None:
        if self.alpha == 1:
            return
        scale = cohort.step_scale()
        weights = self._aggregator.weights(cohort.num_examples).to(scale.device)
        # `aggregate` needs only the mean step length of the clients, its denominator.
        moved = cohort.delta / scale if self.momentum_from == "updates" else scale
        cohort.round.accumulate(_MOVED, weights @ moved.double())
        cohort.round.accumulate(_WEIGHT, weights.sum())

    @override
    def on_server_step(self, round: Round) -> None:
        if self.alpha == 1 or round.update is None:
            return
        mean = round.sums[_MOVED] / round.sums[_WEIGHT]
        direction = mean if self.momentum_from == "updates" else round.update / mean
        self.momentum = -direction.to(self.momentum.dtype)  # movements go against the gradient

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"momentum": self.momentum.cpu()}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.momentum = state_dict["momentum"].to(self.momentum)
