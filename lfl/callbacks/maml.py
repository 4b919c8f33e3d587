"""Per-FedAvg and HF-MAML: a shared model from which one gradient step makes a good model of each client.

A. Fallah, A. Mokhtari, A. Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach", NeurIPS 2020, https://arxiv.org/abs/2002.07948.
"""

from jsonargparse.typing import NonNegativeFloat, PositiveFloat
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_number
from lfl.callback import FederatedCallback, Gradient
from lfl.callbacks.extra_pass import extra_pass, refuse_behind_coordinates, refuse_metric_objects
from lfl.client.step import LocalStep
from lfl.federation import Federation
from lfl.round import Cohort


class MAML(FederatedCallback):
    """Local steps along the gradient of ``F_i(y - alpha grad F_i(y))``, the loss after one step of adaptation.

    Three independent batches b, b', b'' make a step: ``g = grad f(y; b)``, ``y' = y - alpha g``,
    ``g' = grad f(y'; b')``, and the gradient is ``g' - alpha h`` with

    ``h = (grad f(y + delta g'; b'') - grad f(y - delta g'; b'')) / (2 delta)``,

    the product of the Hessian at y with g', by finite differences (HF-MAML). ``first_order`` leaves h out, and needs no
    b'' (Per-FedAvg (FO)). The local optimizer steps along it; its learning rate is the papers' beta.

    The batches are those at the same place of independent shuffles of a client's examples. A step costs two passes in
    first order, else four; the first, at y, is logged and updates BatchNorm's running statistics. Evaluate with
    ClientEvaluation's ``fine_tune: [{steps: 1, lr: alpha}]``. Put it before callbacks that correct gradients, else the
    corrections are part of every pass. Wire: as FedAvg. ``alpha=0`` is the stack without it, bit for bit.

    Args:
        alpha: learning rate of the adaptation; 0.01 in the paper.
        first_order: leave the Hessian out.
        delta: length of the finite differences, in units of g'. The two points differ by ``2 delta |g'|``: in float32,
            where gradients are small, ``relative_delta`` is safer.
        relative_delta: divide ``delta`` by |g'|, so that it is a length in the space of parameters.
    """

    def __init__(
        self,
        alpha: NonNegativeFloat = 0.01,
        first_order: bool = False,
        delta: PositiveFloat = 1e-3,
        relative_delta: bool = False,
    ) -> None:
        check_number("MAML", "alpha", alpha, least=0)
        check_number("MAML", "delta", delta, above=0)
        self.alpha = alpha
        self.first_order = first_order
        self.delta = delta
        self.relative_delta = relative_delta
        self.batches_per_step = 1 if alpha == 0 else 2 if first_order else 3

    @override
    def check_stack(self, stack: list[FederatedCallback]) -> None:
        if self.alpha:
            refuse_behind_coordinates(self, stack, "adapts along the gradient of the loss")

    @override
    def on_run_start(self, federation: Federation) -> None:
        if self.alpha:
            refuse_metric_objects(self, federation)

    @override
    def wrap_gradient(self, cohort: Cohort, gradient: Gradient) -> Gradient:
        if self.alpha == 0:
            return gradient
        later_pass = extra_pass(cohort, gradient)

        def after_adaptation(params: Tensor, step: LocalStep) -> Tensor:
            adapted = params.sub(gradient(params, step), alpha=self.alpha)
            found = later_pass(adapted, step.other(1))
            if self.first_order:
                return found
            return found.sub(self._curvature(later_pass, params, found, step.other(2)), alpha=self.alpha)

        return after_adaptation

    def _curvature(self, gradient: Gradient, params: Tensor, direction: Tensor, step: LocalStep) -> Tensor:
        """The Hessians at ``params`` [A, D] times ``direction`` [A, D], by central differences."""
        delta: float | Tensor = self.delta
        if self.relative_delta:
            norms = direction.norm(dim=1, keepdim=True)
            delta = (self.delta / norms).where(norms > 0, self.delta)
        difference = gradient(params + delta * direction, step).sub_(gradient(params - delta * direction, step))
        return difference.div_(2 * delta)
