"""Scaled signs of the update, with error feedback.

S. P. Karimireddy, Q. Rebjock, S. U. Stich, M. Jaggi, "Error Feedback Fixes SignSGD and other Gradient Compression
Schemes", ICML 2019, https://arxiv.org/abs/1901.09847, Algorithm 1 with the update of a round in place of a step.
"""

import torch
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_choice
from lfl.callbacks.compressor import Compressor, Scope
from lfl.comm import Payload
from lfl.round import Cohort


class Sign(Compressor):
    """Sends ``C(a) = (|a|_1 / D) sign(a)`` of ``a = e_i + delta_i`` and keeps the rest: ``e_i = a - C(a)``.

    The sign of zero is +1: a bit has no third value. The error is ``|a - C(a)|^2 = |a|^2 - |a|_1^2 / D``; it is zero
    if all entries have the same magnitude. State: e_i [D] for every client seen so far, kept while a client is absent.
    Up: D bits, and a float for each scale.

    Args:
        error_feedback: whether a client keeps what was not sent and adds it to its next update; else it is lost.
        scope: one scale for the whole update, or one for each tensor of the model, as in the authors' code.
    """

    slot = "sign/error"

    def __init__(self, error_feedback: bool = True, scope: Scope = "global") -> None:
        check_choice("Sign", "scope", scope, ("global", "tensor"))
        self.error_feedback = error_feedback
        self.scope = scope

    @override
    def compress(self, cohort: Cohort, rows: Tensor) -> Payload:
        # The mean of D magnitudes in float64: a float32 sum of millions of terms would bias every entry that is sent.
        scales = rows.abs().mean(dim=1, keepdim=True, dtype=torch.float64).to(rows.dtype)
        return Payload(torch.where(rows < 0, -scales, scales), rows.shape[1] + rows.element_size() * 8)
