"""Scaled signs of the update, with error feedback; and signs that the server counts as votes.

S. P. Karimireddy, Q. Rebjock, S. U. Stich, M. Jaggi, "Error Feedback Fixes SignSGD and other Gradient Compression
Schemes", ICML 2019, https://arxiv.org/abs/1901.09847, Algorithm 1 with the update of a round in place of a step.
J. Bernstein, Y.-X. Wang, K. Azizzadenesheli, A. Anandkumar, "signSGD: Compressed Optimisation for Non-Convex Problems",
ICML 2018, https://arxiv.org/abs/1802.04434, Algorithm 3 (majority vote).
"""

from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_choice
from lfl.callback import FederatedCallback, changes_update, overrides
from lfl.callbacks.compressor import Compressor, Scope
from lfl.comm import Payload
from lfl.federation import Federation
from lfl.round import Round


class Sign(Compressor):
    """Sends ``C(a) = (|a|_1 / D) sign(a)`` of ``a = e_i + delta_i`` and keeps the rest: ``e_i = a - C(a)``.

    The sign of zero is +1: a bit has no third value. The error is ``|a - C(a)|^2 = |a|^2 - |a|_1^2 / D``; it is zero
    if all entries have the same magnitude. State: e_i [D] for every client seen so far, kept while a client is absent.
    Up: D bits, and a float for each scale. Not linear, and biased.

    With ``vote=majority`` the signs have no scale, and the server takes the sign of what they add up to, one vote a
    client: ``x+ = x + server_lr sign(sum_i sign(delta_i))``; a zero vote is no move. The server's rate is then the
    length of its steps. Up: D bits. Down: D bits and a float for each round since the client last took part, at most
    the whole model, if the server's optimizer is plain SGD and nobody else changes its step.

    Args:
        error_feedback: whether a client keeps what was not sent and adds it to its next update; else it is lost.
        scope: one scale for the whole update, or one for each tensor of the model, as in the authors' code.
        vote: ``mean`` averages the scaled signs; ``majority`` counts votes, without error feedback.
    """

    slot = "sign/error"

    def __init__(
        self, error_feedback: bool = True, scope: Scope = "global", vote: Literal["mean", "majority"] = "mean"
    ) -> None:
        check_choice("Sign", "scope", scope, ("global", "tensor"))
        check_choice("Sign", "vote", vote, ("mean", "majority"))
        if vote == "majority" and error_feedback:
            raise ValueError(
                "`error_feedback=True` of Sign has no meaning with `vote=majority`: votes have no scale, so that what "
                "they leave of an update is not known. Set `error_feedback=false`."
            )
        self.error_feedback = error_feedback
        self.scope = scope
        self.vote = vote
        if vote == "majority":
            # Votes are added up as they are, and their mean is decoded once.
            self.linear = True
            self.weighting = "uniform"

    @override
    def check_stack(self, stack: list[FederatedCallback]) -> None:
        super().check_stack(stack)
        if self.vote == "mean":
            return
        owner = next((type(c).__name__ for c in stack if overrides(c, "coordinates")), None)
        place = stack.index(self)
        later = next((type(c).__name__ for c in stack[place + 1 :] if overrides(c, "encode")), None)
        sooner = next((type(c).__name__ for c in stack[:place] if overrides(c, "encode") and not c.linear), None)
        if owner is not None:
            raise ValueError(f"`vote=majority` of Sign is a vote on parameters, but {owner} lets clients send others.")
        if later is not None or sooner is not None:
            raise ValueError(
                f"`vote=majority` of Sign and {later or sooner} have no meaning together: votes are counted as they "
                f"are, D bits. Use one of the two."
            )
        self._is_alone = not any(changes_update(c) for c in stack)

    @override
    def on_run_start(self, federation: Federation) -> None:
        super().on_run_start(federation)
        if self.vote == "majority" and federation.aggregator.decoded:
            name = type(federation.aggregator).__name__
            raise ValueError(f"`vote=majority` of Sign is itself how updates are put together: use a mean, not {name}.")

    @override
    def compress(self, rows: Tensor, ids: Tensor, keys: Tensor) -> Payload:
        if self.vote == "majority":
            return Payload(torch.where(rows < 0, -1.0, 1.0).to(rows.dtype), rows.shape[1])
        # The mean of D magnitudes in float64: a float32 sum of millions of terms would bias every entry that is sent.
        scales = rows.abs().mean(dim=1, keepdim=True, dtype=torch.float64).to(rows.dtype)
        return Payload(torch.where(rows < 0, -scales, scales), rows.shape[1] + rows.element_size() * 8)

    @override
    def decode(self, round: Round, values: Tensor) -> Tensor:
        return values.sign() if self.vote == "majority" else values

    @override
    def on_server_step(self, round: Round) -> None:
        server = self._federation.server
        if self.vote == "majority" and self._is_alone and server.is_plain_sgd and round.step_bits is None:
            float_bits = server.vector.element_size() * 8
            votes = self._federation.ledger.bits_of(server.vector) // float_bits
            round.step_bits = votes + float_bits if round.update is not None else 0
