"""FedSAM and FedASAM: sharpness-aware minimization on the clients, which looks for flat minima.

P. Foret, A. Kleiner, H. Mobahi, B. Neyshabur, "Sharpness-Aware Minimization for Efficiently Improving Generalization",
ICLR 2021, https://arxiv.org/abs/2010.01412; on clients: Z. Qu, X. Li, R. Duan, Y. Liu, B. Tang, Z. Lu, "Generalized
Federated Learning via Sharpness Aware Minimization", ICML 2022, https://arxiv.org/abs/2206.02618. Adaptive: J. Kwon,
J. Kim, H. Park, I. K. Choi, "ASAM: Adaptive Sharpness-Aware Minimization for Scale-Invariant Learning of Deep Neural
Networks", ICML 2021, https://arxiv.org/abs/2102.11600; on clients: D. Caldarola, B. Caputo, M. Ciccone, "Improving
Generalization in Federated Learning by Seeking Flat Minima", ECCV 2022, https://arxiv.org/abs/2203.11834.
"""

import torch
from jsonargparse.typing import NonNegativeFloat
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_number
from lfl.callback import FederatedCallback, Gradient
from lfl.callbacks.extra_pass import extra_pass, refuse_behind_coordinates, refuse_metric_objects
from lfl.client.step import LocalStep
from lfl.federation import Federation
from lfl.round import Cohort


class SharpnessAware(FederatedCallback):
    """Every local step takes the gradient at ``y~ = y + rho g(y) / |g(y)|``, on the same batch.

    The norm is over all parameters of a client; if the gradient is zero, y~ = y. The ascent uses the gradient of the
    loss with its added terms, without weight decay, and with the corrections of the callbacks before this one: put SAM
    before SCAFFOLD and client momentum. A step costs two passes, of which the first is logged and updates BatchNorm's
    running statistics. ``rho=0`` is the stack without it, bit for bit.

    Args:
        rho: length of the ascent step; 0.05 in the paper, 0.5 in FedMRUR's.
    """

    def __init__(self, rho: NonNegativeFloat = 0.05) -> None:
        check_number(type(self).__name__, "rho", rho, least=0)
        self.rho = rho

    @override
    def check_stack(self, stack: list[FederatedCallback]) -> None:
        if self.rho:
            refuse_behind_coordinates(self, stack, "climbs along the gradient of the loss")

    @override
    def on_run_start(self, federation: Federation) -> None:
        if self.rho:
            refuse_metric_objects(self, federation)

    @override
    def wrap_gradient(self, cohort: Cohort, gradient: Gradient) -> Gradient:
        if self.rho == 0:
            return gradient
        second_pass = extra_pass(cohort, gradient)

        def sharpness_aware(params: Tensor, step: LocalStep) -> Tensor:
            return second_pass(self._top(params, gradient(params, step)), step)

        return sharpness_aware

    def _top(self, params: Tensor, gradients: Tensor) -> Tensor:
        """The point at which the second gradient is taken, for every row [A, D]; may overwrite ``gradients``."""
        return climb(params, gradients, self.rho)


class AdaptiveSharpnessAware(SharpnessAware):
    """SharpnessAware whose ascent is longer for larger weights: ``y~ = y + rho T^2 g(y) / |T g(y)|``.

    T is diagonal: ``|y_j| + eta`` for weights, 1 for all other parameters (biases, scales under other names), so that
    scaling a layer's weights up and the next one's down leaves the ascent's effect as it is. Weights are parameters
    with "weight" in their names, as in the codes of Kwon et al. and Caldarola et al. Otherwise as SharpnessAware.

    Args:
        rho: length of the ascent step as T measures it, about ten times that of SharpnessAware; 0.5 in the paper.
        eta: added to the sizes of weights; 0.01 in the paper, 0.2 in Caldarola et al. with rho = 0.7.

    Raises:
        ValueError: an argument is negative.
    """

    def __init__(self, rho: NonNegativeFloat = 0.5, eta: NonNegativeFloat = 0.01) -> None:
        super().__init__(rho)
        check_number("AdaptiveSharpnessAware", "eta", eta, least=0)
        self.eta = eta

    @override
    def on_run_start(self, federation: Federation) -> None:
        super().on_run_start(federation)
        layout = federation.layout
        is_weight = torch.zeros(layout.dim, dtype=torch.bool, device=federation.device)
        for name, part in layout.slices.items():
            is_weight[part] = "weight" in name
        self._is_weight = is_weight

    @override
    def _top(self, params: Tensor, gradients: Tensor) -> Tensor:
        sizes = (params.abs() + self.eta).where(self._is_weight, 1.0)
        return ascent(gradients.mul_(sizes), self.rho).mul_(sizes).add_(params)


def climb(params: Tensor, gradients: Tensor, rho: float) -> Tensor:
    """``y + rho g / |g|`` of every row [A, D]; y where g is zero. Overwrites ``gradients``."""
    return ascent(gradients, rho).add_(params)


def ascent(gradients: Tensor, rho: float) -> Tensor:
    """``rho g / |g|`` of every row [A, D]; zero where g is zero. Overwrites ``gradients``."""
    # Scale the largest entry to one first, so that squares neither underflow nor overflow. In float32: torch's pairwise
    # sum is as accurate as needed here, and on a CPU twenty times as fast as float64.
    largest = torch.maximum(gradients.amax(dim=1, keepdim=True), -gradients.amin(dim=1, keepdim=True))
    gradients.div_(largest.where(largest > 0, 1.0))
    norms = gradients.square().sum(dim=1, keepdim=True).sqrt_()
    return gradients.mul_((rho / norms).where(norms > 0, 0.0))
