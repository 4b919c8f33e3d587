"""pFedMe: personal models as the points of Moreau envelopes, whose gradients train the shared model.

C. T. Dinh, N. H. Tran, T. D. Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020,
https://arxiv.org/abs/2006.08848. Line numbers are those of its Algorithm 1.
"""

from jsonargparse.typing import PositiveFloat, PositiveInt
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_number
from lfl.callback import FederatedCallback, Gradient
from lfl.callbacks.extra_pass import extra_pass, refuse_behind_coordinates
from lfl.callbacks.personal_model import PersonalModel
from lfl.client.step import LocalStep
from lfl.round import Cohort


class PFedMe(PersonalModel):
    """Local steps along the gradient ``lam (w - theta)`` of the envelope ``min_theta f(theta) + lam/2 |theta - w|^2``.

    In every local step theta takes ``inner_steps`` steps of gradient descent on the batch,
    ``theta <- theta - inner_lr (g(theta) + lam (theta - w))`` (line 7), and then the local optimizer moves w along
    ``lam (w - theta)`` (line 8): with SGD ``w <- w - lr lam (w - theta)``. theta starts from x in every round and goes
    on from one batch to the next, as in the authors' code. The last one is the client's personal model.

    The server's average (line 11), ``x <- (1 - beta) x + beta mean w_i``, is ``server_optimizer`` SGD with ``lr=beta``.
    In the paper all clients train and some are heard; here those that are heard train. A step costs ``inner_steps``
    passes, of which the first is logged. State: theta_i [D] for every client seen so far. Wire: x down, delta_i up.

    Args:
        lam: weight of the proximal term; 15 in most of the paper's experiments. ``inner_lr * lam`` must stay below 2.
        inner_steps: steps of theta in a local step, K in the paper; 5 there.
        inner_lr: their learning rate; it does not follow the module's schedule.
    """

    slot = "pfedme"

    def __init__(self, lam: PositiveFloat = 15.0, inner_steps: PositiveInt = 5, inner_lr: PositiveFloat = 0.01) -> None:
        check_number("PFedMe", "lam", lam, above=0)
        check_number("PFedMe", "inner_steps", inner_steps, least=1, whole=True)
        check_number("PFedMe", "inner_lr", inner_lr, above=0)
        self.lam = lam
        self.inner_steps = inner_steps
        self.inner_lr = inner_lr

    @override
    def check_stack(self, stack: list[FederatedCallback]) -> None:
        refuse_behind_coordinates(self, stack, "trains personal models along the gradient of the loss")

    @override
    def wrap_gradient(self, cohort: Cohort, gradient: Gradient) -> Gradient:
        models = cohort.rows[self.slot]
        later_pass = extra_pass(cohort, gradient)

        def of_envelope(params: Tensor, step: LocalStep) -> Tensor:
            own = models[: len(params)]
            for number in range(self.inner_steps):
                pass_once = later_pass if number else gradient
                own.sub_(pass_once(own, step).add_(own - params, alpha=self.lam), alpha=self.inner_lr)
            return (params - own).mul_(self.lam)

        return of_envelope
