"""Top-k sparsification with error feedback.

S. U. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with Memory", NeurIPS 2018, https://arxiv.org/abs/1809.07599.
"""

import math

import torch
from torch import Tensor
from typing_extensions import override

from lfl.arguments import count_of_share
from lfl.callbacks.compressor import Compressor, Scope
from lfl.comm import Payload
from lfl.federation import Federation
from lfl.subspace.base import check_rank, count_rank
from lfl.subspace.subsets import mark_largest, mark_largest_of_each


class TopK(Compressor):
    """Sends the k largest entries (in magnitude) of ``a = e_i + delta_i``, and keeps the rest: ``e_i = a - C(a)``.

    Of equal magnitudes those with the lowest index are sent. ``k = D`` is FedAvg with e = 0. State: e_i [D] for every
    client seen so far, kept while a client is absent. Up: k values, and k indices of ceil(log2 D) bits.

    Args:
        k: number of entries of an update: an int is the number, a float in (0, 1] a share (rounded up, at least one), a
            list of ints one number for each client.
        error_feedback: whether a client keeps what was not sent and adds it to its next update; else it is lost.
        scope: ``global`` sends the largest entries of the whole update; ``tensor`` sends a share of each tensor of the
            model, whose indices are shorter.
    """

    slot = "top-k/error"

    def __init__(self, k: int | float | list[int] = 0.01, error_feedback: bool = True, scope: Scope = "global") -> None:
        if scope == "tensor" and not isinstance(k, float):
            raise ValueError(f"`scope=tensor` of TopK needs a share in (0, 1] of each tensor, not `k={k}`.")
        self.k = check_entries(k)
        self.error_feedback = error_feedback
        self.scope = scope

    @override
    def on_run_start(self, federation: Federation) -> None:
        super().on_run_start(federation)
        check_entries(self.k, federation.num_clients)

    @override
    def compress(self, rows: Tensor, ids: Tensor, keys: Tensor) -> Payload:
        width = rows.shape[1]
        count = count_entries(self.k, ids, width)
        index_bits = math.ceil(math.log2(width)) if width > 1 else 0
        return Payload(keep_largest(rows, count), count * (rows.element_size() * 8 + index_bits))


def keep_largest(rows: Tensor, count: int | Tensor) -> Tensor:
    """Return the rows [C, n] with all but their ``count`` largest magnitudes set to zero.

    Args:
        rows: any numbers.
        count: how many entries to keep, of every row or of each row [C].
    """
    magnitudes = rows.abs()
    is_kept = mark_largest(magnitudes, count) if isinstance(count, int) else mark_largest_of_each(magnitudes, count)
    return rows.where(is_kept, 0)


def check_entries(k: int | float | list[int], num_clients: int | None = None) -> int | float | list[int]:
    """Return ``k`` if it can stand for a number of entries.

    Args:
        k: an int of at least 1, a share in (0, 1], or a list of such ints.
        num_clients: the length that a list must have; None if it is not known yet.

    Raises:
        ValueError: ``k`` is something else.
    """
    if isinstance(k, list) and num_clients not in (None, len(k)):
        raise ValueError(f"`k` lists {len(k)} numbers, but there are {num_clients} clients.")
    for number in k if isinstance(k, list) else [k]:
        try:
            check_rank(number)
        except ValueError as error:
            raise ValueError(str(error).replace("`rank=", "`k=")) from None
    return k


def count_entries(k: int | float | list[int], ids: Tensor, width: int) -> int | Tensor:
    """Number of entries that ``k`` means among ``width``: one for all clients, or one for each of ``ids`` [C].

    Raises:
        ValueError: an int above ``width``.
    """
    if isinstance(k, float):
        return max(1, count_of_share(k, width))
    try:
        count_rank(max(k) if isinstance(k, list) else k, width)
    except ValueError as error:
        raise ValueError(str(error).replace("`rank=", "`k=")) from None
    return torch.tensor(k, device=ids.device)[ids] if isinstance(k, list) else k
