"""QSGD: entries rounded at random to a few levels, without bias.

D. Alistarh, D. Grubic, J. Li, R. Tomioka, M. Vojnovic, "QSGD: Communication-Efficient SGD via Gradient Quantization and
Encoding", NeurIPS 2017, https://arxiv.org/abs/1610.02132, section 3, with the update of a round in place of a gradient.
"""

import math
from typing import Literal

import torch
from jsonargparse.typing import PositiveInt
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_choice, check_number
from lfl.callbacks.codes import elias_bits, gaps
from lfl.callbacks.compressor import Compressor, Scope
from lfl.comm import Payload
from lfl.randomness import at_a_time, uniform


class QSGD(Compressor):
    """Sends ``Q(v)_j = |v| sign(v_j) xi_j / s`` of an update v, with whole xi_j of 0 to s.

    xi_j is ``l_j = s |v_j| / |v|`` rounded up with probability ``l_j - floor(l_j)``, else down (eq. 4). Not linear, and
    unbiased, ``E Q(v) = v``, with ``E |Q(v) - v|^2 <= min(D / s^2, sqrt(D) / s) |v|^2`` (Lemma 3.1). Draws are each
    client's own. State: none; there is no error feedback, as the error may be longer than v. Up, with ``fixed`` width:
    a float and ``1 + ceil(log2(s + 1))`` bits for each entry. With ``elias``, the paper's code: a float, and for each
    entry that is not zero a sign, and Elias's codes of its distance from the one before it and of xi_j.

    Args:
        levels: s; with few levels most entries are zero: at most ``s (s + sqrt(D))`` others are expected.
        scope: one norm |v| for the whole update, or one for each tensor of the model.
        coding: in what code the levels are counted; the numbers are the same.
    """

    slot = "qsgd/error"
    error_feedback = False

    def __init__(
        self, levels: PositiveInt = 16, scope: Scope = "global", coding: Literal["elias", "fixed"] = "elias"
    ) -> None:
        check_number("QSGD", "levels", levels, least=1, whole=True)
        check_choice("QSGD", "scope", scope, ("global", "tensor"))
        check_choice("QSGD", "coding", coding, ("elias", "fixed"))
        self.levels = levels
        self.scope = scope
        self.coding = coding

    @override
    def compress(self, rows: Tensor, ids: Tensor, keys: Tensor) -> Payload:
        # The norm as it is sent: levels of another one would be biased. In float64, also what is divided by it: the
        # part of a level behind the point is a probability, of which float32 leaves few digits where levels are many.
        norms = rows.norm(dim=1, keepdim=True, dtype=torch.float64).to(rows.dtype).double()
        values, levels = torch.empty_like(rows), torch.empty_like(rows, dtype=torch.float64)
        width = at_a_time(keys, rows.shape[1])
        for first in range(0, rows.shape[1], width):
            piece = slice(first, first + width)
            values[:, piece], levels[:, piece] = self._rounded(rows[:, piece], norms, keys, first)
        return Payload(values, rows.element_size() * 8 + self._bits(levels))

    def _rounded(self, rows: Tensor, norms: Tensor, keys: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Values and levels of some neighbouring columns of the rows, of which ``first`` is the first."""
        draws = uniform(keys, rows.shape[1], torch.float64, first)
        levels = round_at_random(rows, norms, int(self.levels), draws)
        return (norms * rows.sign() * levels / int(self.levels)).to(rows.dtype), levels

    def _bits(self, levels: Tensor) -> int | Tensor:
        """Bits of levels [C, m] and their signs: one number for all, or [C]."""
        if self.coding == "fixed":
            return levels.shape[1] * (1 + math.ceil(math.log2(int(self.levels) + 1)))
        is_sent = levels > 0
        rows, distances = gaps(is_sent)
        codes = 1 + elias_bits(distances) + elias_bits(levels[is_sent].long())
        return codes.new_zeros(len(levels)).index_add_(0, rows, codes)


def round_at_random(rows: Tensor, norms: Tensor, levels: int, draws: Tensor) -> Tensor:
    """Return the levels xi [C, m] (float64) of rows: whole numbers from 0 to s.

    Args:
        rows: v [C, m].
        norms: |v| [C, 1] (float64); rows of norm 0 are given level 0.
        levels: s.
        draws: uniform numbers in [0, 1) [C, m]: a level is rounded up where they are below what is behind its point.
    """
    # Not a norm of 0 in the denominator, nor a tiny one in its place.
    wanted = levels * rows.double().abs() / norms.where(norms > 0, 1)
    floor = wanted.floor()
    # Rounding may leave an entry a last digit longer than its row.
    return (floor + (draws < wanted - floor)).clamp(max=levels)
