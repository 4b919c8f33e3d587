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
from lfl.client.layout import ParameterLayout
from lfl.comm import Payload
from lfl.federation import Federation
from lfl.randomness import fold
from lfl.round import Cohort

Scope = Literal["global", "tensor"]


class Compressor(FederatedCallback):
    """Base of codecs that send ``C(a)`` of ``a = e_i + delta_i`` and keep the rest, ``e_i = a - C(a)``.

    So nothing is lost, only delayed. ``delta_i`` contains the learning rate: e_i needs no rescaling when that changes.
    In a round in which a codec before this one ends the encoding, e_i stays as it is. State: e_i [n] for every client
    seen so far, kept while a client is absent.

    The server may compress its own step by the same codec, see ``Downlink``.

    Attributes:
        slot: the name of e_i in the client store; what is before its slash is the purpose of the codec's draws.
        error_feedback: whether a client keeps what was not sent and adds it to its next update; else it is lost.
        scope: compress the update as one vector, or each of the model's tensors by itself.
    """

    linear = False
    is_unique = True

    slot: ClassVar[str]
    error_feedback: bool
    scope: Scope = "global"

    @abstractmethod
    def compress(self, rows: Tensor, ids: Tensor, keys: Tensor) -> Payload:
        """Compress each of some rows: whole updates, or one tensor of them.

        Args:
            rows: the rows [C, m].
            ids: of the clients that send them [C]; -1 is the server.
            keys: for what is drawn at random [C]; of sender, round and tensor.
        """

    @override
    def check_stack(self, stack: list[FederatedCallback]) -> None:
        self.check_scope(stack)

    def check_scope(self, stack: list[FederatedCallback]) -> None:
        """Raise ValueError if each tensor is to be compressed by itself where some parameters are not sent."""
        check_scope(type(self).__name__, self.scope, stack)

    @override
    def on_run_start(self, federation: Federation) -> None:
        self.prepare(federation)
        if self.error_feedback:
            self._store.reserve(self.slot)

    def prepare(self, federation: Federation) -> None:
        """Take what ``compress_rows`` needs of a run."""
        self._federation = federation
        self._store = federation.store
        self._layout = federation.layout

    @override
    def encode(self, cohort: Cohort, payload: Payload) -> Payload:
        rows = payload.values
        if not self.error_feedback:
            return self.compress_rows(rows, cohort.ids, cohort.round.number)
        # Only now is the width known: codecs before this one may have changed it. `on_run_start` has reserved the slot,
        # so that clients with state are trained by the process that has their rows.
        self._store.declare(self.slot, rows.shape[1], rows.dtype)
        rows = rows + self._store.gather(self.slot, cohort.ids)
        sent = self.compress_rows(rows, cohort.ids, cohort.round.number)
        self._store.scatter(self.slot, cohort.ids, rows - sent.values)
        return sent

    def compress_rows(self, rows: Tensor, ids: Tensor, round_number: int) -> Payload:
        """Compress rows [C, n] of senders ``ids`` [C] in a round, each whole or tensor by tensor."""
        ids = ids.to(rows.device)
        keys = self._federation.keys(ids, self.slot.partition("/")[0], round_number)
        if self.scope == "global":
            return self.compress(rows, ids, keys)
        parts = enumerate(split_tensors(type(self).__name__, self._layout, rows))
        payloads = [self.compress(part, ids, fold(keys, index)) for index, part in parts]
        return Payload(torch.cat([p.values for p in payloads], dim=1), sum(p.bits for p in payloads))


def check_scope(owner: str, scope: Scope, stack: list[FederatedCallback]) -> None:
    """Raise ValueError if ``scope`` of ``owner`` is ``tensor`` where some parameters are not sent."""
    personal = next((type(c).__name__ for c in stack if keeps_parameters(c)), None)
    if scope == "tensor" and personal is not None:
        raise ValueError(
            f"`scope=tensor` of {owner} needs updates of all parameters, of which {personal} keeps some: use "
            "`scope=global`."
        )


def split_tensors(owner: str, layout: ParameterLayout, rows: Tensor) -> tuple[Tensor, ...]:
    """Split rows [C, D] into those of the model's tensors.

    Raises:
        ValueError: they are not as wide as the model.
    """
    if rows.shape[1] != layout.dim:
        raise ValueError(
            f"`scope=tensor` of {owner} needs updates of all D={layout.dim} parameters, but is given {rows.shape[1]} "
            "numbers: use `scope=global`."
        )
    parts: tuple[Tensor, ...] = rows.split(layout.sizes, dim=1)
    return parts
