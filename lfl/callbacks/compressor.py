"""What lossy codecs share: error feedback, and whether the whole update or each tensor of it is compressed.

S. P. Karimireddy, Q. Rebjock, S. U. Stich, M. Jaggi, "Error Feedback Fixes SignSGD and other Gradient Compression
Schemes", ICML 2019, https://arxiv.org/abs/1901.09847, Algorithm 2 with the movement of a round in place of a step.
"""

from abc import abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import override

from lfl.callback import FederatedCallback, overrides
from lfl.comm import Payload
from lfl.federation import Federation
from lfl.round import Cohort

Scope = Literal["global", "tensor"]


class Compressor(FederatedCallback):
    """Base of codecs that send ``C(a)`` of ``a = e_i + delta_i`` and keep the rest, ``e_i = a - C(a)``.

    What is sent and what is kept add up to what came in. ``delta_i`` contains the learning rate, so e_i needs no
    rescaling when that changes. A round in which a codec before ends the encoding leaves e_i as it is. State: e_i [n]
    for every client seen so far, kept across absences.

    Attributes:
        slot: the name of e_i in the client store.
        error_feedback: keep what was not sent; without it, it is lost.
        scope: compress the update as one vector, or each of the model's tensors by itself.
    """

    linear = False
    is_unique = True

    slot: ClassVar[str]
    error_feedback: bool
    scope: Scope = "global"

    @abstractmethod
    def compress(self, cohort: Cohort, rows: Tensor) -> Payload:
        """C of the rows [C, m] of a whole update, or of one tensor of it."""

    @override
    def check_stack(self, stack: list[FederatedCallback]) -> None:
        personal = next((type(c).__name__ for c in stack if overrides(c, "personalize")), None)
        if self.scope == "tensor" and personal is not None:
            raise ValueError(
                f"`scope=tensor` of {type(self).__name__} needs updates of all parameters, of which {personal} keeps "
                "some: use `scope=global`."
            )

    @override
    def on_run_start(self, federation: Federation) -> None:
        self._store = federation.store
        self._layout = federation.layout
        if self.error_feedback:
            self._store.reserve(self.slot)

    @override
    def encode(self, cohort: Cohort, payload: Payload) -> Payload:
        rows = payload.values
        if not self.error_feedback:
            return self._compress_all(cohort, rows)
        self._store.declare(self.slot, rows.shape[1], rows.dtype)
        rows = rows + self._store.gather(self.slot, cohort.ids)
        sent = self._compress_all(cohort, rows)
        self._store.scatter(self.slot, cohort.ids, rows - sent.values)
        return sent

    def _compress_all(self, cohort: Cohort, rows: Tensor) -> Payload:
        if self.scope == "global":
            return self.compress(cohort, rows)
        if rows.shape[1] != self._layout.dim:
            raise ValueError(
                f"`scope=tensor` of {type(self).__name__} needs updates of all D={self._layout.dim} parameters, but "
                f"is given {rows.shape[1]} numbers: use `scope=global`."
            )
        parts = [self.compress(cohort, part) for part in rows.split(self._layout.sizes, dim=1)]
        return Payload(torch.cat([part.values for part in parts], dim=1), sum(part.bits for part in parts))
