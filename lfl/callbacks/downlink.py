"""The way down is compressed: the server's step passes through a codec, too."""

from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lfl.callback import FederatedCallback, overrides
from lfl.callbacks.compressor import Compressor
from lfl.callbacks.flss import FLSS
from lfl.client.layout import ParameterLayout
from lfl.federation import Federation
from lfl.round import Round


class Downlink(FederatedCallback):
    """The server sends ``C(a)`` of ``a = E + (x+ - x)``, and keeps the rest: ``E <- a - C(a)``, ``x+ <- x + C(a)``.

    So x is what the clients hold: they train from it, and it is evaluated. ``x+ - x`` is the whole step of the server,
    whatever its optimizer and the other callbacks are; callbacks behind this one see the step that was sent. Codecs of
    the clients' updates go with it, the same or others, as further entries of ``callbacks``.

    State: E [D] at the server, if the codec has error feedback. Up: nothing more. Down: what the codec counts, for each
    round since the client last took part, at most the whole model; the whole model the first time. A round in which
    no update was accepted sends nothing.

    Args:
        codec: the codec, such as ``TopK``, ``Sign`` or ``QSGD``, with its own arguments.

    Raises:
        ValueError: the codec has another number of entries for every client, or is decoded in a mean.
    """

    is_unique = True

    def __init__(self, codec: Compressor) -> None:
        name = type(codec).__name__
        if not isinstance(codec, Compressor):
            raise ValueError(f"`codec={name}` of Downlink must compress a vector by itself, as TopK, Sign and QSGD do.")
        if isinstance(getattr(codec, "k", None), list):
            raise ValueError(
                f"`k={getattr(codec, 'k', None)}` of {name} lists a number for each client, but in Downlink the server "
                "sends: use one number."
            )
        if codec.linear:
            raise ValueError(
                f"`vote=majority` of {name} has no meaning in Downlink, where one server sends: use `mean`."
            )
        self.codec = codec
        self.residual = torch.empty(0)
        self._is_first = True

    @override
    def check(self, layout: ParameterLayout) -> None:
        self.codec.check(layout)

    @override
    def check_stack(self, stack: list[FederatedCallback]) -> None:
        self.codec.check_scope(stack)
        refuse_followers(type(self).__name__, stack)
        self.stand_behind(stack[: stack.index(self)])

    def stand_behind(self, before: list[FederatedCallback]) -> None:
        """Take note of the callbacks of which some may move the server before this one sends the step."""
        self._is_first = not any(overrides(c, "on_server_step") and not c.observes for c in before)

    @override
    def on_run_start(self, federation: Federation) -> None:
        self.codec.prepare(federation)
        self._server = federation.server
        shared = federation.ledger.shared  # a mask, where some parameters never leave the clients
        self._shared = slice(None) if shared is None else shared.nonzero().squeeze(1).to(federation.device)
        self.residual = torch.zeros_like(self._server.vector) if self.codec.error_feedback else torch.empty(0)

    @override
    def on_server_step(self, round: Round) -> None:
        if round.update is None:
            round.step_bits = 0
            return
        moved = self._wanted(round, round.update)
        if self.codec.error_feedback:
            moved = self.residual + moved
        sent = torch.zeros_like(moved)
        # -1: of the server, which draws as one more client.
        payload = self.codec.compress_rows(moved[None, self._shared], torch.tensor([-1]), round.number)
        sent[self._shared] = payload.values[0]
        if self._server.frozen is not None:
            sent.masked_fill_(self._server.frozen, 0)  # the sign of zero is a move
        self._server.vector.copy_(round.server + sent)
        if self.codec.error_feedback:
            self.residual = moved - sent
        round.step_bits = payload.total_bits()

    def _wanted(self, round: Round, update: Tensor) -> Tensor:
        """The server's step [D].

        The difference of two models has their rounding, by which entries of one magnitude would no longer be equal, and
        the largest would be told by it.
        """
        step = self._server.exact_step(update) if self._is_first else None
        return self._server.vector - round.server if step is None else step

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"residual": self.residual.cpu()}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.residual = state_dict["residual"].to(self._server.vector)


def refuse_followers(owner: str, stack: list[FederatedCallback]) -> None:
    """Refuse callbacks whose clients follow the server's step in a way of their own.

    Raises:
        ValueError: the stack has one.
    """
    other = next((type(c).__name__ for c in stack if overrides(c, "coordinates") or isinstance(c, FLSS)), None)
    if other is not None:
        raise ValueError(
            f"{owner} and {other} have no meaning together: clients of {other} follow the server in a subspace, which "
            f"the steps that {owner} sends leave."
        )
