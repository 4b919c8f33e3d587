"""A basis that follows a stream of vectors: the leading singular subspace of all of them, updated one at a time.

"Federated Learning in Streaming Subspace", Algorithm 2 (SLDS). The paper takes the eigenvectors of the Gram matrix of
``[lambda P Sigma, g]`` and divides by singular values, which loses small ones and with them the orthonormality of P.
The same matrix is decomposed here without squaring it: M. Brand, "Fast Low-Rank Modifications of the Thin Singular
Value Decomposition", Linear Algebra and its Applications 415(1), 2006. What are columns of P in the paper are rows.
"""

from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lfl.subspace.base import Basis


class StreamingBasis(Basis):
    """The R leading left singular vectors of all vectors seen, as orthonormal rows, with their singular values.

    It begins empty (``rank`` 0) and has fewer than R rows while the vectors span less. Rows and singular values have
    the type of the vectors; small matrices are decomposed in float64 on the CPU. Memory: ``r n``, twice that in
    ``update``. Projections depend on the span alone, so signs are left as LAPACK gives them.

    Args:
        max_rank: R.
        like: a vector [n] with the type and the device of those to come.

    Attributes:
        rows: P [r, n].
        singular_values: Sigma [r], descending.

    Example:
        >>> basis = StreamingBasis(2, torch.zeros(3))
        >>> for vector in ([0.0, 3.0, 0.0], [4.0, 0.0, 0.0], [0.0, 0.0, 1.0]):
        ...     basis.update(torch.tensor(vector))
        >>> basis.singular_values.tolist(), basis.rows.abs().tolist()
        ([4.0, 3.0], [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    """

    def __init__(self, max_rank: int, like: Tensor) -> None:
        self.max_rank = max_rank
        self.singular_values = like.new_zeros(0)
        self._hold(like.new_zeros(0, len(like)), self.singular_values)

    @override
    def project(self, x: Tensor) -> Tensor:
        return x @ self.rows.mT

    @override
    def lift(self, z: Tensor) -> Tensor:
        return z @ self.rows

    def start(self, vectors: Tensor) -> None:
        """Begin with the leading singular vectors of ``vectors`` [L, n], not centred.

        By a QR decomposition, which needs the memory of ``vectors`` once more.
        """
        q, triangle = torch.linalg.qr(vectors.mT)
        left, values = self._leading(triangle)
        rank = int((values > _negligible(q.dtype) * values[0]).sum())
        self._hold(left[:, :rank].mT @ q.mT, values[:rank])

    def update(self, vector: Tensor, attenuation: float = 1.0) -> None:
        """SLDS: from the singular pairs of what was seen to those of ``[attenuation * P Sigma, vector]``.

        Zero attenuates the singular values and leaves P as it is.

        Args:
            vector: g [n].
            attenuation: lambda in (0, 1], the weight of the past.
        """
        past = attenuation * self.singular_values
        norm = torch.linalg.vector_norm(vector)
        if norm == 0:
            self.singular_values = past
            return
        inside = self.project(vector)
        outside = vector - self.lift(inside)
        missed = self.project(outside)  # once more: the first difference is orthogonal only up to rounding of |g|
        inside, outside = inside + missed, outside - self.lift(missed)
        distance = torch.linalg.vector_norm(outside)
        core = torch.block_diag(past.diag(), distance)
        core[:-1, -1] = inside
        if distance <= _negligible(vector.dtype) * norm:
            left, values = self._leading(core[:-1])
            rows = left.mT @ self.rows
        else:
            left, values = self._leading(core)
            rows = (left[:-1].mT @ self.rows).addr_(left[-1], outside / distance)
        self._hold(rows, values)

    def state_dict(self) -> dict[str, Any]:
        """Rows and singular values, on the CPU."""
        return {"rows": self.rows.cpu(), "singular_values": self.singular_values.cpu()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of ``state_dict``."""
        self._hold(state["rows"].to(self.rows), state["singular_values"].to(self.rows))

    def _hold(self, rows: Tensor, singular_values: Tensor) -> None:
        self.rows = rows
        self.singular_values = singular_values
        self.rank, self.dim = rows.shape

    def _leading(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """The first R left singular vectors [m, r] and values [r] of a small matrix."""
        left, values, _ = torch.linalg.svd(matrix.double().cpu(), full_matrices=False)
        return left[:, : self.max_rank].to(matrix), values[: self.max_rank].to(matrix)


def _negligible(dtype: torch.dtype) -> float:
    """The share of a length that may be rounding: 2e-12 in float64, 6e-6 in float32."""
    return float(torch.finfo(dtype).eps ** 0.75)
