"""The base of lossy codecs: error feedback, and compression of the whole update or of each tensor by itself.

S. P. Karimireddy, Q. Rebjock, S. U. Stich, M. Jaggi, "Error Feedback Fixes SignSGD and other Gradient Compression
Schemes", ICML 2019, https://arxiv.org/abs/1901.09847, Algorithm 2 with the update of a round in place of a step.
"""

from abc import abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import override

from lfl.callback import FederatedCallback, keeps_parameters
from lfl.comm import Payload
from lfl.federation import Federation
from lfl.round import Cohort

Scope = Literal["global", "tensor"]


class Compressor(FederatedCallback):
    """Base of codecs that send ``C(a)`` of ``a = e_i + delta_i`` and keep the rest, ``e_i = a - C(a)``.

    So nothing is lost, only delayed. ``delta_i`` contains the learning rate: e_i needs no rescaling when that changes.
    In a round in which a codec before this one ends the encoding, e_i stays as it is. State: e_i [n] for every client
    seen so far, kept while a client is absent.

    Attributes:
        slot: the name of e_i in the client store.
        error_feedback: whether a client keeps what was not sent and adds it to its next update; else it is lost.
        scope: compress the update as one vector, or each of the model's tensors by itself.
    """

    linear = False
    is_unique = True

    slot: ClassVar[str]
    error_feedback: bool
    scope: Scope = "global"

    @abstractmethod
    def compress(self, cohort: Cohort, rows: Tensor) -> Payload:
        """Compress each of the rows [C, m]: whole updates, or one tensor of them."""

    @override
    def check_stack(self, stack: list[FederatedCallback]) -> None:
        personal = next((type(c).__name__ for c in stack if keeps_parameters(c)), None)
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
        # Only now is the width known: codecs before this one may have changed it. `on_run_start` has reserved the slot,
        # so that clients with state are trained by the process that has their rows.
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
        payloads = [self.compress(cohort, tensor_rows) for tensor_rows in rows.split(self._layout.sizes, dim=1)]
        return Payload(torch.cat([p.values for p in payloads], dim=1), sum(p.bits for p in payloads))
