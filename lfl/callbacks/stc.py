"""STC: sparse ternary compression, up and down, with error feedback at both ends.

F. Sattler, S. Wiedemann, K.-R. Mueller, W. Samek, "Robust and Communication-Efficient Federated Learning from Non-IID
Data", IEEE TNNLS 2020, https://arxiv.org/abs/1903.02891, Algorithms 1 (STC) and 2.
"""

from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_choice
from lfl.callback import FederatedCallback
from lfl.callbacks.codes import golomb_bits, golomb_parameter
from lfl.callbacks.compressor import Compressor, Scope
from lfl.callbacks.downlink import Downlink, refuse_followers
from lfl.callbacks.topk import check_entries, count_entries, keep_largest
from lfl.client.layout import ParameterLayout
from lfl.comm import Payload
from lfl.federation import Federation
from lfl.round import Round


class STC(Compressor):
    """Sends ``mu sign(a_j)`` for the k largest entries of ``a = e_i + delta_i``, mu their mean magnitude, both ways.

    Client: ``e_i <- a - STC(a)``. Server: ``A = E + sum_i w_i STC(a_i)``, or whatever its optimizer makes of that mean;
    it sends ``STC(A)``, keeps ``E <- A - STC(A)``, and moves ``x+ = x + STC(A)``. Of equal magnitudes those with the
    lowest index are sent. The error is ``|a|^2 - k mu^2``. Not linear, and biased. With k = D magnitudes are lost, but
    their mean.

    State: e_i [D] for every client seen so far, kept while a client is absent; E [D] at the server. Up: k signs, their
    positions as Golomb codes of the gaps between them, with the parameter for ``p = k / D``, and a float. Down: as much
    for each round since the client last took part, whose sum it is sent, at most the whole model.

    Args:
        k: number of entries: an int is the number, a float in (0, 1] a share p (rounded up, at least one); 1/400 to
            1/25 in the paper.
        scope: ``global`` sends the largest entries of the whole update; ``tensor`` a share of each tensor of the model,
            with a magnitude of its own, as in the authors' code.
    """

    slot = "stc/error"
    error_feedback = True

    def __init__(self, k: int | float = 0.01, scope: Scope = "global") -> None:
        check_choice("STC", "scope", scope, ("global", "tensor"))
        if scope == "tensor" and not isinstance(k, float):
            raise ValueError(f"`scope=tensor` of STC needs a share in (0, 1] of each tensor, not `k={k}`.")
        self.k = check_entries(k)
        self.scope = scope
        self._down = Downlink(self)

    @override
    def check(self, layout: ParameterLayout) -> None:
        count_entries(self.k, torch.zeros(1, dtype=torch.int64), layout.dim)

    @override
    def check_stack(self, stack: list[FederatedCallback]) -> None:
        super().check_stack(stack)
        refuse_followers("STC", stack)
        if any(isinstance(c, Downlink) for c in stack):
            raise ValueError("STC and Downlink have no meaning together: both compress the way down. Use one of them.")
        self._down.stand_behind(stack[: stack.index(self)])

    @override
    def on_run_start(self, federation: Federation) -> None:
        super().on_run_start(federation)
        self._down.on_run_start(federation)

    @override
    def compress(self, rows: Tensor, ids: Tensor, keys: Tensor) -> Payload:
        width = rows.shape[1]
        count = int(count_entries(self.k, ids, width))
        kept = keep_largest(rows, count)
        # A mean of many magnitudes: in float64.
        scales = (kept.abs().sum(dim=1, keepdim=True, dtype=torch.float64) / count).to(rows.dtype)
        is_sent = kept != 0
        signs_and_gaps = is_sent.sum(dim=1) + golomb_bits(is_sent, golomb_parameter(count / width))
        return Payload(scales * kept.sign(), signs_and_gaps + rows.element_size() * 8)

    @override
    def on_server_step(self, round: Round) -> None:
        self._down.on_server_step(round)

    @override
    def state_dict(self) -> dict[str, Any]:
        return self._down.state_dict()

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._down.load_state_dict(state_dict)
