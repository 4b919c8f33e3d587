"""Random-k sparsification, with error feedback or unbiased.

S. U. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with Memory", NeurIPS 2018, https://arxiv.org/abs/1809.07599.
"""

import torch
from torch import Tensor
from typing_extensions import override

from lfl.callbacks.compressor import Compressor
from lfl.callbacks.topk import check_entries, count_entries
from lfl.client.layout import ParameterLayout
from lfl.comm import Payload
from lfl.federation import Federation
from lfl.subspace.subsets import random_subsets


class RandomK(Compressor):
    """Sends k random entries of ``a = e_i + delta_i`` as they are, and keeps the rest: ``e_i = a - C(a)``.

    Clients and server draw the entries from the seed: k values are sent, and no indices. ``k = D`` is FedAvg. Without
    error feedback the entries are scaled by D/k, so that their mean is unbiased; with error feedback they are not, as
    it would diverge. State: e_i [D] for every client seen so far, kept while a client is absent.

    Args:
        k: number of entries of an update: an int is the number, a float in (0, 1] a share (rounded up, at least one), a
            list of ints one number for each client.
        error_feedback: keep what was not sent; without it, scale what is sent.
    """

    slot = "random-k/error"

    def __init__(self, k: int | float | list[int] = 0.01, error_feedback: bool = True) -> None:
        self.k = check_entries(k)
        self.error_feedback = error_feedback

    @override
    def check(self, layout: ParameterLayout) -> None:
        count_entries(self.k, torch.zeros(1, dtype=torch.int64), layout.dim)

    @override
    def on_run_start(self, federation: Federation) -> None:
        super().on_run_start(federation)
        check_entries(self.k, federation.num_clients)

    @override
    def compress(self, rows: Tensor, ids: Tensor, keys: Tensor) -> Payload:
        width = rows.shape[1]
        counts = torch.as_tensor(count_entries(self.k, ids, width), device=rows.device).expand(len(rows))
        mask = random_subsets(keys, counts.double(), width)
        sent = rows.masked_fill(~mask, 0)
        if not self.error_feedback:
            sent = sent * (width / counts.to(rows))[:, None]
        return Payload(sent, counts * rows.element_size() * 8)
