"""FedMRUR's manifold regularization: clients' features stay near the server's in hyperbolic space.

X. An, L. Shen, H. Hu, Y. Luo, "Federated Learning with Manifold Regularization and Normalized Update Reaggregation",
NeurIPS 2023, https://arxiv.org/abs/2311.05924. The distance is that of M. T. Law, R. Liao, J. Snell, R. S. Zemel,
"Lorentzian Distance Learning for Hyperbolic Representations", ICML 2019.
"""

import math
from typing import Literal

import torch
from jsonargparse.typing import NonNegativeFloat, NonNegativeInt, PositiveFloat
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_choice, check_number
from lfl.callback import FederatedCallback, Gradient
from lfl.callbacks.extra_pass import extra_pass
from lfl.client.step import ClientStep, LocalStep
from lfl.federation import Federation
from lfl.round import Cohort, Round

_NAME = "HyperbolicRegularization"
_FACTORS = "hyperbolic"  # factors of loss and term in `client_loss` [C, 2]
_NORMS = "hyperbolic/norms"  # gradient norms of term and loss [C, 2]
_DISTANCE, _CLAMPED = "hyperbolic/distance", "hyperbolic/clamped"
_LARGEST_EXPONENT = 80.0  # in float32 exp overflows at 88.7


class HyperbolicRegularization(FederatedCallback):
    """Adds ``gamma R`` to every client's loss, ``R = mean_b exp(d(z_b, z_b') / sigma)`` (equations 3 and 5).

    z are a layer's outputs for the batch, flattened, and z' those of the server's model x, frozen and in evaluation
    mode; d is the squared Lorentzian distance of their lifts ``(sqrt(beta + |z|^2), z)``. The paper does not fix the
    layer, the lift and the reduction over the batch. We take the layer before the head, the lift of Law et al., in
    which beta appears, and the mean of the exponentials. Exponents are clamped at 80, where the gradient is zero.

    Logs the mean of d, the share of examples whose exponent was clamped (with a warning if there are any), and
    ``gamma |grad R| / |grad loss|``. This ratio is measured at the last step that at least half of a round's clients
    take, over those who take it. With the paper's gamma and sigma it is small, some 1e-5 in ``configs/fedmrur.yaml``.

    Costs one forward pass of x for each step, and in a round that is measured two more passes. State: none. Wire: no
    more than without it. ``gamma=0`` is the stack without it, bit for bit. Put it behind other terms of the loss and
    before SharpnessAware: only there the ratio compares the gradient of R with that of the loss without R. Training is
    the same in any place.

    Args:
        layer: name of the submodule, such as ``backbone.features``.
        gamma: weight of R in the loss.
        sigma: the distance d at which the exponent is 1.
        beta: minus the squared Lorentzian norm of the lifted points.
        reduction: reduction of the exponentials over a batch.
        measure_every_n_rounds: rounds between measurements of the ratio of gradients, from the first on; 0 for none.

    Raises:
        ValueError: an argument is not among the allowed values.
    """

    is_unique = True

    def __init__(
        self,
        layer: str,
        gamma: NonNegativeFloat = 0.005,
        sigma: PositiveFloat = 1e4,
        beta: PositiveFloat = 1.0,
        reduction: Literal["mean", "sum"] = "mean",
        measure_every_n_rounds: NonNegativeInt = 10,
    ) -> None:
        check_choice(_NAME, "reduction", reduction, ("mean", "sum"))
        check_number(_NAME, "gamma", gamma, least=0)
        check_number(_NAME, "sigma", sigma, above=0)
        check_number(_NAME, "beta", beta, above=0)
        check_number(_NAME, "measure_every_n_rounds", measure_every_n_rounds, least=0, whole=True)
        self.layer = layer
        self.gamma = gamma
        self.sigma = sigma
        self.beta = beta
        self.reduction = reduction
        self.measure_every_n_rounds = measure_every_n_rounds
        self.features = self.global_features = (layer,) if gamma else ()

    @override
    def on_run_start(self, federation: Federation) -> None:
        self._federation = federation
        self._warned = False

    @override
    def on_cohort_start(self, cohort: Cohort) -> None:
        if self.gamma and self.measure_every_n_rounds:
            # Factors of loss and term [C, 2]: with (0, 1) and (1, 0) a further pass gives the gradient of one alone.
            cohort.loss_rows[_FACTORS] = cohort.values.new_ones(len(cohort), 2)

    @override
    def client_loss(self, client: ClientStep, loss: Tensor) -> Tensor:
        if self.gamma == 0:
            return loss
        features = client.features[self.layer].flatten(1)
        global_features = client.global_features[self.layer].flatten(1)
        distance = squared_lorentz_distance(features, global_features, self.beta)
        exponent: Tensor = distance / self.sigma
        client.log(_DISTANCE, distance.mean())
        client.log(_CLAMPED, (exponent > _LARGEST_EXPONENT).to(exponent.dtype).mean())
        values = exponent.clamp(max=_LARGEST_EXPONENT).exp()
        reduced = values.sum() if self.reduction == "sum" else values.mean()
        term: Tensor = self.gamma * reduced.to(loss.dtype)
        factors = client.rows.get(_FACTORS)
        return loss + term if factors is None else factors[0] * loss + factors[1] * term

    @override
    def wrap_gradient(self, cohort: Cohort, gradient: Gradient) -> Gradient:
        every = self.measure_every_n_rounds
        if self.gamma == 0 or not every or (cohort.round.number - 1) % every:
            return gradient
        repeated = extra_pass(cohort, gradient)
        phase = cohort.phases[-1]
        measured_step = _measured_step(cohort.round, self._federation)

        def measured(params: Tensor, step: LocalStep) -> Tensor:
            gradients = gradient(params, step)
            # Once: SharpnessAware and others ask for more than one gradient in a step.
            if step.number == measured_step and step.phase == phase.index and _NORMS not in cohort.rows:
                cohort.rows[_NORMS] = _gradient_norms(repeated, params, step)
            return gradients

        return measured

    @override
    def on_cohort_end(self, cohort: Cohort) -> None:
        if _NORMS in cohort.rows:
            cohort.round.accumulate(_NORMS, cohort.rows[_NORMS].nansum(dim=0))

    @override
    def on_round_end(self, round: Round) -> None:
        if _NORMS in round.sums:
            # A ratio of sums: in a mean of ratios a client whose loss has almost no gradient left would dominate.
            term, loss = round.sums[_NORMS]
            round.log("hyperbolic/gradient_ratio", torch.where(loss > 0, term / loss, 0.0))
        clamped = float(round.metrics.get(_CLAMPED, 0.0))
        if clamped > 0 and not self._warned:
            self._warned = True
            rank_zero_warn(
                f"HyperbolicRegularization: {clamped:.2%} of the examples of round {round.number} are further than "
                f"{_LARGEST_EXPONENT:.0f} sigma from the server's features, where the term has no gradient: raise "
                f"`sigma={self.sigma}`, or lower the learning rate."
            )


def squared_lorentz_distance(a: Tensor, b: Tensor, beta: float = 1.0) -> Tensor:
    """``-2 beta - 2 <L(a), L(b)>`` of the lifts ``L(z) = (sqrt(beta + |z|^2), z)``: [..., d] and [..., d] to [...].

    With ``<x, y> = -x_0 y_0 + sum_j x_j y_j`` (equations 3 and 4). It is zero where a = b, never negative, and at most
    ``|a - b|^2``. Computed in float64; the result has the inputs' type, float32 at least.

    It is differentiable once, with respect to a only: the gradient ``2 (a b_0 / a_0 - b)`` is written out, which takes
    half the work of recording the computation.
    """
    dtype = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)
    with torch.no_grad():
        wide_a, wide_b = a.double(), b.double()
        a_zero = (beta + wide_a.square().sum(dim=-1)).sqrt()
        b_zero = (beta + wide_b.square().sum(dim=-1)).sqrt()
        distance = _split_distance(wide_a, wide_b, a_zero + b_zero, beta)
        slope = 2 * ((b_zero / a_zero).unsqueeze(-1) * wide_a - wide_b)
    linear = (slope * a).sum(dim=-1)
    # A zero whose gradient is `slope`. Not an autograd.Function, which would need rules of its own under vmap.
    result: Tensor = distance + (linear - linear.detach())
    return result.to(dtype)


def _split_distance(a: Tensor, b: Tensor, w: Tensor, beta: float) -> Tensor:
    """The squared distance without cancellation, from w, the sum of both zeroth coordinates.

    The printed form subtracts numbers of the size of |a| |b|, and loses all digits where a and b are close. Split
    along and across a + b, with ``a - b = r (a + b) + q`` and p = r |a + b|, it is
    ``(|q|^2 w^2 + 4 beta p^2) / (w^2 - p^2)``, whose numerator only adds. In float64, as w - p still loses digits
    where one of the two vectors is far longer than the other.
    """
    apart, middle = a - b, a + b
    along = (apart * middle).sum(dim=-1)
    ratio = along / middle.square().sum(dim=-1).clamp(min=torch.finfo(torch.float64).tiny)
    across = (apart - ratio.unsqueeze(-1) * middle).square().sum(dim=-1)
    p_squared, w_squared = ratio * along, w.square()
    distance: Tensor = (across * w_squared + 4 * beta * p_squared) / (w_squared - p_squared)
    return distance


def _measured_step(round: Round, federation: Federation) -> int:
    """The last step that at least half of the round's clients take: the same for all cohorts and processes."""
    sizes = federation.data.client_sizes[round.clients]
    return int(federation.work.phases[-1].num_steps(sizes, federation.data.batch_size).median()) - 1


def _gradient_norms(gradient: Gradient, params: Tensor, step: LocalStep) -> Tensor:
    """Norms [C, 2] of the gradients of the added term and of the loss without it; nan for clients that are done."""
    factors = step.loss_rows[_FACTORS]
    norms = torch.full_like(factors, math.nan, dtype=torch.float64)
    for column, kept in enumerate(((0.0, 1.0), (1.0, 0.0))):
        alone = step.with_loss_rows({_FACTORS: factors.new_tensor(kept).repeat(len(factors), 1)})
        norms[: len(params), column] = torch.linalg.vector_norm(gradient(params, alone), dim=1, dtype=torch.float64)
    return norms
