"""A random basis for each weight matrix of a network."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from lfl.client.layout import ParameterLayout
from lfl.randomness import generator
from lfl.subspace.base import Basis, Subspace, check_rank, count_rank, orthonormal_rows


class LayerwiseSubspace(Subspace):
    """Each weight, seen as a matrix W_l of shape (d_l, m_l), becomes P_l W_l of shape (r_l, m_l).

    d_l is the first dimension (output features or channels), m_l the product of the others. P_l has orthonormal rows,
    is uniformly distributed, and is drawn for each layer independently. The coordinates of a network are those of its
    layers, in the order of its parameters. On a model of one matrix X (d, m), P acts on the rows of X.

    Args:
        rank: number of rows r_l. A float in (0, 1] is a share of d_l, at least one row. An int is the same for all
            layers; layers with d_l <= rank are not projected.
        whole_vectors: do not project parameters with at most one dimension (biases, normalisation). Otherwise they are
            matrices of one column.

    Raises:
        ValueError: ``rank`` is neither.

    Example:
        >>> layout = ParameterLayout.of_parameters(torch.nn.Linear(3, 4))
        >>> LayerwiseSubspace(0.5).check(layout)  # two of the four rows of the weight, and the bias
        10
    """

    def __init__(self, rank: int | float, whole_vectors: bool = True) -> None:
        self.rank = check_rank(rank)
        self.whole_vectors = whole_vectors

    @override
    def check(self, layout: ParameterLayout) -> int:
        return sum(
            rank * (size // rows) for size, (rows, rank) in zip(layout.sizes, self._rows_and_ranks(layout), strict=True)
        )

    @override
    def draw(
        self, layout: ParameterLayout, address: tuple[int | str, ...], device: torch.device, dtype: torch.dtype
    ) -> "LayerwiseBasis":
        layers: list[Layer] = []
        whole = 0  # entries since the last projected layer: neighbours that are not projected become one copy
        for name, size, (rows, rank) in zip(layout.names, layout.sizes, self._rows_and_ranks(layout), strict=True):
            if rank == rows:
                whole += size
                continue
            # The name is in the address: a layer's basis does not depend on the layers before it.
            matrix = orthonormal_rows(rank, rows, generator(*address, name)).to(device, dtype)
            layers += [Layer(None, whole), Layer(matrix, size // rows)]
            whole = 0
        layers.append(Layer(None, whole))
        return LayerwiseBasis([layer for layer in layers if layer.columns])

    def _rows_and_ranks(self, layout: ParameterLayout) -> list[tuple[int, int]]:
        """The pair (d_l, r_l) of each parameter; (1, 1) for a vector that is not projected."""
        least = 2 if self.whole_vectors else 1
        rows = [shape[0] if len(shape) >= least else 1 for shape in layout.shapes]
        if all(len(shape) < least for shape in layout.shapes):
            raise ValueError(
                "LayerwiseSubspace found no weight with two dimensions to project, only vectors: "
                "set `whole_vectors=False`, or use another subspace."
            )
        if self.rank > max(rows):
            raise ValueError(
                f"`rank={self.rank}` of LayerwiseSubspace exceeds the rows of every layer (at most {max(rows)}; "
                f"D={layout.dim}), so nothing would be projected: use an int of at most {max(rows)}, or a float in "
                "(0, 1] for a ratio."
            )
        return [(d, count_rank(self.rank, d) if isinstance(self.rank, float) else min(self.rank, d)) for d in rows]


@dataclass(frozen=True)
class Layer:
    """One block of a layerwise basis: a projected weight, or neighbouring parameters that are not projected.

    Attributes:
        matrix: P_l (r_l, d_l); None stands for the identity with r_l = d_l = 1.
        columns: number of columns (m_l).
    """

    matrix: Tensor | None
    columns: int


class LayerwiseBasis(Basis):
    """A block-diagonal matrix whose blocks act on matrices from the left.

    Args:
        layers: the blocks, in the order of the parameters.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._down = [layer.matrix for layer in layers]
        self._up = [None if layer.matrix is None else layer.matrix.mT for layer in layers]
        self._sizes = [layer.columns * (1 if layer.matrix is None else layer.matrix.shape[1]) for layer in layers]
        self._ranks = [layer.columns * (1 if layer.matrix is None else layer.matrix.shape[0]) for layer in layers]
        self.dim, self.rank = sum(self._sizes), sum(self._ranks)

    @override
    def project(self, x: Tensor) -> Tensor:
        return _multiply(self._down, x, self._sizes, self._ranks)

    @override
    def lift(self, z: Tensor) -> Tensor:
        return _multiply(self._up, z, self._ranks, self._sizes)


def _multiply(matrices: Sequence[Tensor | None], source: Tensor, sizes_in: list[int], sizes_out: list[int]) -> Tensor:
    """Multiply each matrix with its segment of ``source`` (..., sum of sizes_in), into its segment of the result.

    Args:
        matrices: P_l or its transpose for each block; None copies.
        source: vectors or coordinates.
        sizes_in: length of each block's segment in ``source``.
        sizes_out: length of each block's segment in the result.
    """
    lead = source.shape[:-1]
    if len(matrices) == 1 and matrices[0] is not None:
        return _multiply_one(matrices[0], source)
    result = source.new_empty(*lead, sum(sizes_out))
    # The segments are views of the result: products are written there directly, without temporaries and `torch.cat`.
    segments = zip(matrices, torch.split(source, sizes_in, -1), torch.split(result, sizes_out, -1), strict=True)
    with torch.no_grad():  # `out=` refuses tensors that require a gradient
        for matrix, segment, out in segments:
            if matrix is None:
                out.copy_(segment)
                continue
            rows_out, rows_in = matrix.shape
            columns = segment.shape[-1] // rows_in
            torch.matmul(matrix, segment.view(*lead, rows_in, columns), out=out.view(*lead, rows_out, columns))
    return result


def _multiply_one(matrix: Tensor, source: Tensor) -> Tensor:
    """Multiply one matrix with each row of ``source``, in a single product: for few columns faster than one per row."""
    rows_out, rows_in = matrix.shape
    columns = source.shape[-1] // rows_in
    if source.dim() == 1:
        return (matrix @ source.view(rows_in, columns)).view(-1)
    side_by_side = source.reshape(-1, rows_in, columns).transpose(0, 1).reshape(rows_in, -1)
    product = (matrix @ side_by_side).view(rows_out, -1, columns).transpose(0, 1)
    return product.reshape(*source.shape[:-1], rows_out * columns)
