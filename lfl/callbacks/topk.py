"""Top-k sparsification with error feedback.

S. U. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with Memory", NeurIPS 2018, https://arxiv.org/abs/1809.07599.
"""

import math
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lfl.callbacks.base import FederatedCallback
from lfl.comm import Payload
from lfl.round import Cohort
from lfl.subspace.base import check_rank, count_rank

_SLOT = "top-k/error"


class TopK(FederatedCallback):
    """Sends the k largest entries (in magnitude) of ``a = e_i + delta_i``, and keeps the rest: ``e_i = a - C(a)``.

    Ties are filled by the lowest index. What is sent and what is kept add up to what came in. ``k = D`` is FedAvg with
    e = 0. State: e_i [D] for every client seen so far, kept across absences. Up: k values and k indices of
    ceil(log2 D) bits.

    Args:
        k: entries of the whole update: an int is a number, a float in (0, 1] a share (rounded up, at least one).
        error_feedback: keep what was not sent; without it, it is lost.
    """

    linear = False

    def __init__(self, k: int | float = 0.01, error_feedback: bool = True) -> None:
        try:
            self.k = check_rank(k)
        except ValueError as error:
            raise ValueError(str(error).replace("`rank=", "`k=")) from None
        self.error_feedback = error_feedback

    @override
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            self._store, self._layout = trainer.store, trainer.layout

    @override
    def encode(self, cohort: Cohort, payload: Payload) -> Payload:
        rows = payload.values
        width = rows.shape[1]
        count = math.ceil(self.k * width) if isinstance(self.k, float) else count_rank(self.k, width)
        if self.error_feedback:
            self._store.declare(_SLOT, width, rows.dtype)
            rows = rows + self._store.gather(_SLOT, cohort.ids)
        sent = keep_largest(rows, max(1, count))
        if self.error_feedback:
            self._store.scatter(_SLOT, cohort.ids, rows - sent)
        index_bits = math.ceil(math.log2(width)) if width > 1 else 0
        return Payload(sent, max(1, count) * (rows.element_size() * 8 + index_bits))


def keep_largest(rows: Tensor, count: int) -> Tensor:
    """The rows [C, n] with all but their ``count`` largest magnitudes set to zero; ties go to the lowest index."""
    order = rows.abs().argsort(dim=1, descending=True, stable=True)[:, :count]
    return torch.zeros_like(rows).scatter(1, order, rows.gather(1, order))
