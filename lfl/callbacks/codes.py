"""Lengths of the codes of integers in which codecs write positions and levels, in bits.

P. Elias, "Universal codeword sets and representations of the integers", IEEE Trans. Inf. Theory 21(2), 1975;
S. W. Golomb, "Run-length encodings", IEEE Trans. Inf. Theory 12(3), 1966.
"""

import math

import torch
from torch import Tensor

_GOLDEN_SECTION = (math.sqrt(5) - 1) / 2
_ELIAS_LEVELS = 5  # of the recursion: 2^63 has 64 digits, 63 has 6, 5 has 3, 2 has 2, and 1 ends it


def gaps(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [n] and distances [n] (int64) of the marked positions from the marked ones before them, in order.

    The first of a row is counted from before the row, so that every distance is at least 1.

    Args:
        mask: the marked positions [C, m] (bool).
    """
    rows, places = mask.nonzero(as_tuple=True)
    before = torch.nn.functional.pad(places[:-1], (1, 0), value=-1)
    is_first = torch.nn.functional.pad(rows[1:] != rows[:-1], (1, 0), value=True)
    return rows, places - torch.where(is_first, -1, before)


def elias_bits(numbers: Tensor) -> Tensor:
    """Lengths (int64) of Elias's recursive (omega) codes of ``numbers`` (int64, at least 1), of the same shape.

    1 is one bit; any other number is its binary digits, behind the code of their count less one.
    """
    lengths = torch.ones_like(numbers)
    for _ in range(_ELIAS_LEVELS):
        digits = torch.where(numbers > 1, torch.frexp(numbers.double()).exponent, 0)
        lengths = lengths + digits
        numbers = (digits - 1).clamp(min=1).long()
    return lengths


def golomb_parameter(share: float) -> int:
    """Number b* of low digits that a Golomb code of gaps writes plainly, where a share p of positions is marked.

    ``b* = 1 + floor(log2(ln((sqrt(5) - 1) / 2) / ln(1 - p)))``, at least 0.
    """
    if share >= 1:
        return 0
    return max(0, 1 + math.floor(math.log2(math.log(_GOLDEN_SECTION) / math.log1p(-share))))


def golomb_bits(mask: Tensor, parameter: int) -> Tensor:
    """Lengths [C] (int64) of the Golomb codes of the marked positions of each row.

    A gap d is ``(d - 1) div 2^b`` in ones and a zero, and the b digits of the rest.

    Args:
        mask: the marked positions [C, n] (bool).
        parameter: b, see ``golomb_parameter``.
    """
    rows, distances = gaps(mask)
    lengths = ((distances - 1) >> parameter) + 1 + parameter
    return lengths.new_zeros(len(mask)).index_add_(0, rows, lengths)
