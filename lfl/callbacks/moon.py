"""MOON: clients' features stay near the server's, and apart from those of their own last models.

Q. Li, B. He, D. Song, "Model-Contrastive Federated Learning", CVPR 2021, https://arxiv.org/abs/2103.16257.
"""

import torch
from jsonargparse.typing import NonNegativeFloat, PositiveFloat
from torch import Tensor
from torch.nn.functional import softplus
from typing_extensions import override

from lfl.arguments import check_number
from lfl.callback import FederatedCallback
from lfl.client.step import ClientStep, at_row
from lfl.federation import Federation
from lfl.round import Cohort

_SLOT = "moon/previous"  # the slot, and the row of a cohort: a client's last local model [D]
_SEEN = "moon/seen"  # 1 for clients that have such a model, 0 for those that take part for the first time [C]


class MOON(FederatedCallback):
    """Adds ``mu l`` to every client's loss, ``l = -log(e^(s/tau) / (e^(s/tau) + e^(s'/tau)))``.

    s is the cosine of a batch's features z with those of x, s' that with the features of the model that the client had
    at the end of its last participation; l is the mean over the batch. Both models are frozen, and in evaluation mode,
    with the buffers (BatchNorm's statistics) that the client has now. z is what the user names: in the paper the output
    of a projection head that is part of the network, in PFLlib the features before the head. Features of length zero
    have cosine zero.

    A client that takes part for the first time has no such model: l is log 2 then, and its gradient exactly zero. The
    official code begins with other initial networks instead.

    Costs a pass of x and one of the last model for each step. State: the last model [D] of every client seen. Wire: no
    more than without it. ``mu=0`` is the stack without it, bit for bit.

    Args:
        layer: name of the submodule whose output is z, such as ``backbone.features``.
        mu: weight of l in the loss; 5 or 1 in the paper.
        tau: temperature; 0.5 in the paper.

    Raises:
        ValueError: an argument is not among the allowed values.
    """

    is_unique = True

    def __init__(self, layer: str, mu: NonNegativeFloat = 1.0, tau: PositiveFloat = 0.5) -> None:
        check_number("MOON", "mu", mu, least=0)
        check_number("MOON", "tau", tau, above=0)
        self.layer = layer
        self.mu = mu
        self.tau = tau
        self.features = self.global_features = (layer,) if mu else ()
        self.frozen_rows = (_SLOT,) if mu else ()

    @override
    def on_run_start(self, federation: Federation) -> None:
        self._store = federation.store
        if self.mu:
            self._store.declare(_SLOT, federation.layout.dim, federation.layout.dtype)

    @override
    def on_cohort_start(self, cohort: Cohort) -> None:
        if self.mu:
            seen = self._store.has_rows(_SLOT, cohort.ids).to(cohort.values.device)
            previous = self._store.gather(_SLOT, cohort.ids)
            cohort.loss_rows[_SLOT] = torch.where(seen[:, None], previous, cohort.start)
            cohort.loss_rows[_SEEN] = seen.to(previous.dtype)

    @override
    def client_loss(self, client: ClientStep, loss: Tensor) -> Tensor:
        if self.mu == 0:
            return loss
        features, servers = client.features[self.layer], client.global_features[self.layer]
        # Where nobody has gathered rows, as in trials of a step, every client is one that comes for the first time.
        previous = client.global_features.get(at_row(_SLOT, self.layer), servers)
        contrast = model_contrast(features, servers, previous, self.tau, client.rows.get(_SEEN))
        client.log("moon/contrast", contrast)
        term: Tensor = self.mu * contrast.to(loss.dtype)
        return loss + term

    @override
    def on_cohort_end(self, cohort: Cohort) -> None:
        if self.mu:
            self._store.scatter(_SLOT, cohort.ids, cohort.params)


def model_contrast(
    features: Tensor, servers: Tensor, previous: Tensor, tau: float, seen: Tensor | None = None
) -> Tensor:
    """``mean_b log(1 + e^((s'_b - s_b) / tau))``, s and s' the cosines with the other two features [b, ...].

    Args:
        features: z, with gradient.
        servers: those of x.
        previous: those of the client's last model.
        tau: temperature.
        seen: 0 if there is no such model, without dimensions: then log 2, with a gradient of zero.
    """
    own, toward, away = (unit(z.flatten(1)) for z in (features, servers, previous))
    # One product for both cosines: what the two have in common cancels before it is rounded.
    apart = (own * (away - toward)).sum(dim=1) / tau
    return softplus(apart if seen is None else seen * apart).mean()


def unit(vectors: Tensor) -> Tensor:
    """Vectors [..., d] made of length one, in float32 at least; those that are zero stay so, without a gradient."""
    vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    squares = vectors.square().sum(dim=-1, keepdim=True)
    return vectors * torch.where(squares > 0, squares.where(squares > 0, 1.0).rsqrt(), 0.0)
