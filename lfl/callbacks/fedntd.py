"""FedNTD: clients keep what the server's model says of the classes that an example does not have.

G. Lee, M. Jeong, Y. Shin, S. Bae, S.-Y. Yun, "Preservation of the Global Knowledge by Not-True Distillation in
Federated Learning", NeurIPS 2022, https://arxiv.org/abs/2106.03097.
"""

import torch
from jsonargparse.typing import NonNegativeFloat, PositiveFloat
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_number
from lfl.callback import FederatedCallback
from lfl.callbacks.labels import check_labels, check_logits, labels_of
from lfl.client.step import ClientStep
from lfl.federation import Federation

_FAR = -1e30  # a logit whose probability is zero; finite, since the product of zero and infinity is none


class FedNTD(FederatedCallback):
    """Adds ``beta tau^2 KL(q || p)`` to every client's loss, the mean over the batch.

    p and q are the probabilities of the classes other than an example's own, by the client's logits and by those of x,
    divided by the temperature tau. x is frozen, and in evaluation mode, with the buffers (BatchNorm's statistics) that
    the client has now. The term has no gradient for the logit of the own class, and is zero if there are two classes.

    Costs one forward pass of x for each step. State: none. Wire: no more than without it. ``beta=0`` is the stack
    without it, bit for bit.

    Args:
        beta: weight of the divergence in the loss; 1 in the official code.
        tau: temperature; 1 in the official code's configuration.
        logits: name of the submodule whose output is the logits [b, classes].
        target: the part of a batch that is the class labels [b]: a place in a tuple, a key of a dict, or a path of such
            with dots.

    Raises:
        ValueError: an argument is not among the allowed values.
    """

    is_unique = True

    def __init__(
        self,
        beta: NonNegativeFloat = 1.0,
        tau: PositiveFloat = 1.0,
        logits: str = "backbone",
        target: str | int = 1,
    ) -> None:
        check_number("FedNTD", "beta", beta, least=0)
        check_number("FedNTD", "tau", tau, above=0)
        self.beta = beta
        self.tau = tau
        self.logits = logits
        self.target = target
        self.features = self.global_features = (logits,) if beta else ()
        self._num_classes = 0  # not known yet

    @override
    def on_run_start(self, federation: Federation) -> None:
        if self.beta:
            check_labels("FedNTD", federation.data, self.target, federation.seed)
            self._num_classes = federation.data.num_classes

    @override
    def client_loss(self, client: ClientStep, loss: Tensor) -> Tensor:
        if self.beta == 0:
            return loss
        logits, servers = client.features[self.logits], client.global_features[self.logits]
        check_logits(type(self).__name__, "logits", self.logits, logits, self._num_classes)
        divergence = not_true_divergence(logits, servers, labels_of(client.batch, self.target), self.tau)
        client.log("fedntd/divergence", divergence)
        term: Tensor = self.beta * self.tau**2 * divergence.to(loss.dtype)
        return loss + term


def not_true_divergence(logits: Tensor, servers: Tensor, labels: Tensor, tau: float = 1.0) -> Tensor:
    """``mean_b KL(softmax(l'_b / tau) || softmax(l_b / tau))`` over the classes but an example's own.

    Args:
        logits: l [b, classes], with gradient.
        servers: l' [b, classes].
        labels: the classes that are left out [b].
        tau: temperature.
    """
    classes = torch.arange(logits.shape[1], device=logits.device)
    is_own = labels[:, None] == classes
    own, theirs = (
        (z.to(torch.promote_types(z.dtype, torch.float32)) / tau).masked_fill(is_own, _FAR).log_softmax(dim=1)
        for z in (logits, servers)
    )
    return (theirs.exp() * (theirs - own)).sum(dim=1).mean()
