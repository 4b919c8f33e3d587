"""Parameters that belong to each client: FedRep, LG-FedAvg and their kin.

L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai, "Exploiting Shared Representations for Personalized Federated
Learning", ICML 2021 (FedRep: the head is personal); P. P. Liang et al., "Think Locally, Act Globally", 2020 (LG-FedAvg:
the features are personal). The trainer's ``local_phases`` say which parameters are trained when.
"""

import torch
from torch import Tensor
from typing_extensions import override

from lfl.callback import FederatedCallback, Gradient
from lfl.client.layout import ParameterLayout
from lfl.comm import Message, Payload
from lfl.federation import Federation
from lfl.round import Cohort, Round

_SLOT = "personal"


class PersonalParameters(FederatedCallback):
    """Keeps some parameters on the clients: they are never sent and never averaged.

    A client starts a round from the shared parameters of x and its own personal ones (before its first participation
    those of the initial model), and sends the shared ones only. The callbacks behind this one see personal parameters
    that have not moved. It must be the first of the stack. If no parameter is personal it is FedAvg; if all are, local
    training.

    State: the personal parameters of every client seen so far, in the client store. Wire: the shared parameters, down
    and up.

    Args:
        parameters: shell patterns for the names of the personal parameters, such as ``backbone.head.*``.
    """

    is_unique = True
    weighting = "uniform"

    def __init__(self, parameters: list[str]) -> None:
        self.parameters = parameters

    @override
    def check(self, layout: ParameterLayout) -> None:
        layout.select(self.parameters)

    @override
    def check_stack(self, stack: list[FederatedCallback]) -> None:
        if stack[0] is not self:
            raise ValueError(
                f"PersonalParameters must be the first of `callbacks`, before {type(stack[0]).__name__}: what is "
                "personal must be put aside before anything else looks at a client's update."
            )

    @override
    def on_run_start(self, federation: Federation) -> None:
        self._store = federation.store
        mask = federation.layout.select(self.parameters)
        self._personal = mask.nonzero().squeeze(1).to(federation.device)  # positions in a vector [D]
        self._shared = (~mask).nonzero().squeeze(1).to(federation.device)
        # nan marks the rows that were never written, of clients not seen yet.
        self._store.declare(_SLOT, len(self._personal), federation.layout.dtype, fill=float("nan"))
        federation.ledger.keep_on_clients(mask)

    @override
    def on_download(self, message: Message) -> None:
        message.replace("model", message.payloads["model"][self._shared])

    @override
    def personalize(self, ids: Tensor, params: Tensor) -> None:
        kept = self._store.gather(_SLOT, ids)
        initial = params[:, self._personal]
        params[:, self._personal] = torch.where(torch.isnan(kept), initial, kept)

    @override
    def on_cohort_start(self, cohort: Cohort) -> None:
        self.personalize(cohort.ids, cohort.values)

    @override
    def wrap_gradient(self, cohort: Cohort, gradient: Gradient) -> Gradient:
        # Terms that pull towards the start (FedProx) pull personal parameters to the client's own, not to those of x.
        # A copy, as the steps change `values` in place.
        cohort.origin = cohort.values.clone()
        return gradient

    @override
    def on_cohort_end(self, cohort: Cohort) -> None:
        self._store.scatter(_SLOT, cohort.ids, cohort.values[:, self._personal])
        # As if they had not moved: callbacks behind see no update there, and x keeps the initial personal parameters.
        cohort.values[:, self._personal] = cohort.start[:, self._personal]

    @override
    def encode(self, cohort: Cohort, payload: Payload) -> Payload:
        return Payload.dense(payload.values[:, self._shared])

    @override
    def decode(self, round: Round, values: Tensor) -> Tensor:
        whole = values.new_zeros(*values.shape[:-1], len(round.server))
        whole[..., self._shared] = values
        return whole
