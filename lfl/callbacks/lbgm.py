"""LBGM: updates that still point where the last whole one did are sent as one number.

S. S. Azam, S. Hosseinalipour, Q. Qiu, C. Brinton, "Recycling Model Updates in Federated Learning: Are Gradient
Subspaces Low-Rank?", ICLR 2022, https://arxiv.org/abs/2202.00280, Algorithm 1 (look-back gradient multiplier).
"""

import torch
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_choice, check_number
from lfl.callback import FederatedCallback
from lfl.callbacks.compressor import Scope, check_scope, split_tensors
from lfl.comm import Payload
from lfl.federation import Federation
from lfl.round import Cohort

_SLOT = "lbgm/look-back"


class LBGM(FederatedCallback):
    """Sends ``rho l_i`` for ``u = delta_i`` where ``sin^2(u, l_i) <= threshold``, l_i the last update sent whole.

    ``rho = <u, l_i> / |l_i|^2``, ``sin^2 = 1 - <u, l_i>^2 / (|u|^2 |l_i|^2)`` (the look-back coefficient and phase
    error). The number rho travels, and the server has l_i; so it sees the projection of u on l_i, with the error
    ``|u - rho l_i|^2 = sin^2 |u|^2``, which is lost. Otherwise u travels, and is the new l_i at both ends. Not linear,
    and biased.

    State: l_i [D] for every client seen so far, of which server and client have the same, and one copy is kept. Up: a
    bit, and one float or D; so clients differ.

    Args:
        threshold: of sin^2; below 0 it is FedAvg, from 1 on every update but a client's first is a number. 0.05 in
            FLSS's paper.
        scope: ``global`` decides on the whole update, as the paper's algorithm; ``tensor`` on each of the model's
            tensors, as the authors' code: a bit, and one float or all, for each.
    """

    linear = False
    is_unique = True

    def __init__(self, threshold: float = 0.05, scope: Scope = "global") -> None:
        check_number("LBGM", "threshold", threshold)
        check_choice("LBGM", "scope", scope, ("global", "tensor"))
        self.threshold = threshold
        self.scope = scope

    @override
    def check_stack(self, stack: list[FederatedCallback]) -> None:
        check_scope("LBGM", self.scope, stack)

    @override
    def on_run_start(self, federation: Federation) -> None:
        self._store = federation.store
        self._layout = federation.layout
        self._store.reserve(_SLOT)  # its width is known when a codec before this one has encoded

    @override
    def encode(self, cohort: Cohort, payload: Payload) -> Payload:
        rows = payload.values
        self._store.declare(_SLOT, rows.shape[1], rows.dtype)
        kept = self._store.gather(_SLOT, cohort.ids)
        pairs = [(rows, kept)]
        if self.scope == "tensor":
            pairs = list(zip(*(split_tensors("LBGM", self._layout, both) for both in (rows, kept)), strict=True))
        float_bits = rows.element_size() * 8
        sent, looked_back, bits = [], [], torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
        for update, last in pairs:
            multiplier, sine = look_back(update, last)
            is_number = sine <= self.threshold
            sent.append(torch.where(is_number[:, None], multiplier[:, None] * last, update))
            # Not in rounds of a number: l_i would drift away from what the server has.
            looked_back.append(torch.where(is_number[:, None], last, update))
            bits += 1 + float_bits * torch.where(is_number, 1, update.shape[1])
        self._store.scatter(_SLOT, cohort.ids, torch.cat(looked_back, dim=1))
        return Payload(torch.cat(sent, dim=1), bits)


def look_back(updates: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """Compare updates u [C, m] with those that were sent whole last, l [C, m].

    Returns:
        ``rho = <u, l> / |l|^2`` [C] and ``sin^2`` of the angle between the two [C]: 0 for u = 0, of which rho = 0
        says all, and infinite for l = 0, where there is nothing to look back at.
    """
    product, update_square, last_square = (
        (a * b).sum(dim=1, dtype=torch.float64) for a, b in ((updates, last), (updates, updates), (last, last))
    )
    rho = product / last_square.where(last_square > 0, 1)
    cosine_square = rho * product / update_square.where(update_square > 0, 1)
    # Rounding may leave less than 0 of parallel vectors; a threshold below 0 is never met.
    sine = (1 - cosine_square).clamp(min=0).masked_fill(update_square == 0, 0)
    return rho.to(updates.dtype), sine.masked_fill(last_square == 0, torch.inf)
