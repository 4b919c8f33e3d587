"""FLSS: updates projected on a subspace that follows the server's path.

"Federated Learning in Streaming Subspace", Algorithms 1 (FedAvg+FLSS) and 2 (SLDS). Its g_t is ``moved`` here, its P
has columns where ours has rows. The first sampled round after warm-up is L + s, as in the text of section 3.3 and in
the communication costs of its tables; Algorithm 2 as printed would sample round L twice.
"""

from typing import Any, Literal

import torch
from jsonargparse.typing import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_choice, check_number
from lfl.callback import FederatedCallback, Gradient, overrides
from lfl.client.step import LocalStep
from lfl.comm import Message, Payload
from lfl.federation import Federation
from lfl.round import Cohort, Round
from lfl.subspace.dense import DenseBasis
from lfl.subspace.streaming import StreamingBasis

_BASIS = "flss/basis"


class FLSS(FederatedCallback):
    """FedAvg whose clients send ``z_i = P delta_i``, r numbers, in most rounds: ``x+ = x + server_lr P^T zbar``.

    P [r, D] has the leading left singular vectors of the server's moves ``G_t = x+ - x`` (eq. 2, 3). Three kinds of
    rounds:

    - ``t <= L``, warm-up: FedAvg. After round L, P and Sigma come from the singular value decomposition of G_1 .. G_L.
    - ``(t - L) % s == 0``, sampled: FedAvg; then ``P, Sigma`` become the R leading singular pairs of
      ``[lambda P Sigma, G_t]`` (eq. 4, Algorithm 2).
    - all others, projected. Codecs behind this one leave the coefficients as they are; before the first move, r = 0,
      there is nothing to project on, and the round is a full one.

    With s = 1, or R >= D, it is FedAvg, and no basis is kept. Use the uniform aggregator.

    State: P and Sigma, the same at the server and at every client, of which one copy is kept: D (R + 1) numbers; G_1 ..
    G_L during a ``batch`` warm-up, twice that at its end. Up: D, or r in projected rounds. Down: what a client missed
    since it was last here, D for each full round and r for each projected one; after warm-up also the iterates that it
    lacks of the L + 1 which the basis is made of. At most x, P and Sigma, D (r + 1) + r.

    Args:
        warmup_rounds: L.
        rank: R; there may be fewer directions, r <= R.
        sample_every: s; none or 0 for never, so that the subspace of the warm-up stays.
        attenuation: lambda in (0, 1], the weight of the past in SLDS; with 1, moves that have become smaller than the
            smallest singular value no longer change the subspace.
        update_scale: multiplies the update of projected rounds.
        project: what projected rounds project. ``updates`` is the above. ``gradients``: every local gradient, by
            ``P^T P``, while the update is sent as it is, D numbers, since weight decay or another local optimizer than
            SGD move it out of the span; ``both``: coefficients as well, which loses what is outside. With plain SGD
            that is nothing, and both modes are the same but for the traffic.
        warmup: ``batch`` keeps G_1 .. G_L; ``stream`` follows them with SLDS, without attenuation, in D R numbers, and
            gives the same basis unless they span more than R directions.

    Raises:
        ValueError: an argument is not one of those, or ``attenuation`` is outside (0, 1].
    """

    is_unique = True

    def __init__(
        self,
        warmup_rounds: PositiveInt = 200,
        rank: PositiveInt = 50,
        sample_every: NonNegativeInt | None = 5,
        attenuation: float = 1.0,
        update_scale: PositiveFloat = 1.0,
        project: Literal["updates", "gradients", "both"] = "updates",
        warmup: Literal["batch", "stream"] = "batch",
    ) -> None:
        check_number("FLSS", "warmup_rounds", warmup_rounds, least=1, whole=True)
        check_number("FLSS", "rank", rank, least=1, whole=True)
        check_number("FLSS", "sample_every", sample_every or 0, least=0, whole=True)
        check_number("FLSS", "update_scale", update_scale, above=0)
        check_choice("FLSS", "project", project, ("updates", "gradients", "both"))
        check_choice("FLSS", "warmup", warmup, ("batch", "stream"))
        if not 0 < attenuation <= 1:
            raise ValueError(f"`attenuation={attenuation}` of FLSS must be greater than 0 and at most 1.")
        self.warmup_rounds = warmup_rounds
        self.rank = rank
        self.sample_every = sample_every
        self.attenuation = attenuation
        self.update_scale = update_scale
        self.project = project
        self.warmup = warmup

    @override
    def check_stack(self, stack: list[FederatedCallback]) -> None:
        lossy = next((c for c in stack[: stack.index(self)] if overrides(c, "encode") and not c.linear), None)
        if lossy is not None:
            raise ValueError(
                f"{type(lossy).__name__} stands before FLSS: what the projection takes away from its output would be "
                f"neither sent nor kept. Put {type(lossy).__name__} behind FLSS."
            )
        for owner in stack:
            if overrides(owner, "coordinates"):
                raise ValueError(
                    f"FLSS follows the server in the space of the parameters, but {type(owner).__name__} lets clients "
                    "send coordinates in a basis of its own: use one of the two."
                )

    @override
    def on_run_start(self, federation: Federation) -> None:
        self._server = federation.server
        self._ledger = federation.ledger
        shared = federation.ledger.shared  # a mask, where some parameters never leave the clients
        self._shared = slice(None) if shared is None else shared.nonzero().squeeze(1).to(federation.device)
        self.basis = StreamingBasis(self.rank, federation.server.vector[self._shared])
        self._moves: list[Tensor] = []
        self._iterates_held = torch.zeros(federation.num_clients, dtype=torch.int64)
        self._uploaded = 0.0

    @override
    def on_round_start(self, round: Round) -> None:
        self._round = round

    @override
    def on_download(self, message: Message) -> None:
        # From the server's moves, which they were sent and charged for: clients run SLDS as the server does.
        message.derive(_BASIS, self.basis.rows)
        ledger, number, clients = self._ledger, self._round.number, self._round.invited
        model_bits = ledger.bits_of(message.payloads["model"])
        if number > self.warmup_rounds:
            message.charge("model", self._bits_to_follow(clients, model_bits))
        else:
            self._iterates_held[clients] += 1
        # From coefficients alone a client can follow plain SGD only.
        is_short = self.ends_encoding(self._round) and self._server.is_plain_sgd
        ledger.record_increment("flss", self._bits(self.basis.rank) if is_short else model_bits, number)

    @override
    def wrap_gradient(self, cohort: Cohort, gradient: Gradient) -> Gradient:
        if self.project == "updates" or not self._is_projected(cohort.round):
            return gradient
        basis = DenseBasis(cohort.received[_BASIS])

        def projected(params: Tensor, step: LocalStep) -> Tensor:
            gradients = gradient(params, step)
            gradients[:, self._shared] = basis.lift(basis.project(gradients[:, self._shared]))
            return gradients

        return projected

    @override
    def ends_encoding(self, round: Round) -> bool:
        return self.project != "gradients" and self._is_projected(round)

    @override
    def encode(self, cohort: Cohort, payload: Payload) -> Payload:
        basis = DenseBasis(cohort.received[_BASIS])
        if payload.values.shape[1] != basis.dim:
            raise ValueError(
                f"FLSS follows {basis.dim} numbers of the server, but the codecs before it leave "
                f"{payload.values.shape[1]} of an update: put them behind it."
            )
        if not self.ends_encoding(cohort.round):
            return payload
        return Payload(basis.project(payload.values), self._bits(basis.rank))

    @override
    def decode(self, round: Round, values: Tensor) -> Tensor:
        if self.ends_encoding(round):
            values = self.basis.lift(values)
        return values * self.update_scale if self._is_projected(round) else values

    @override
    def on_server_step(self, round: Round) -> None:
        if self.sample_every == 1 or self.rank >= self.basis.dim:
            return
        is_warmup = round.number <= self.warmup_rounds
        if round.update is not None and (is_warmup or self._is_sampled(round)):
            moved = (self._server.vector - round.server)[self._shared]
            if not is_warmup:
                self.basis.update(moved, self.attenuation)
            elif self.warmup == "stream":
                self.basis.update(moved)
            else:
                self._moves.append(moved)
        if round.number == self.warmup_rounds and self._moves:
            moves, self._moves = torch.stack(self._moves), []
            self.basis.start(moves)

    @override
    def on_round_end(self, round: Round) -> None:
        if round.number > self.warmup_rounds and round.num_reported:
            bits = self._ledger.up_bits["update"] / round.num_reported
            self._uploaded += bits / self._bits(1)
        round.log("flss/rank", float(self.basis.rank))
        round.log("flss/paper_upload", self._uploaded)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {
            "basis": self.basis.state_dict(),
            "moves": [moved.cpu() for moved in self._moves],
            "iterates_held": self._iterates_held.clone(),
            "uploaded": self._uploaded,
        }

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.basis.load_state_dict(state_dict["basis"])
        self._moves = [moved.to(self.basis.rows) for moved in state_dict["moves"]]
        self._iterates_held = state_dict["iterates_held"].clone()
        self._uploaded = state_dict["uploaded"]

    def _is_sampled(self, round: Round) -> bool:
        """Whether a round after warm-up is a full one by the schedule."""
        since = round.number - self.warmup_rounds
        return since > 0 and self.sample_every not in (None, 0) and since % self.sample_every == 0

    def _is_projected(self, round: Round) -> bool:
        """Whether clients send coefficients in this round, or project their gradients."""
        has_basis = len(round.message.contents[_BASIS]) > 0
        return round.number > self.warmup_rounds and has_basis and not self._is_sampled(round)

    def _bits(self, count: int) -> int:
        return count * int(self._server.vector.element_size()) * 8

    def _bits_to_follow(self, clients: Tensor, model_bits: int) -> Tensor:
        """Bits [M] that bring each client up to x, P and Sigma after warm-up: replay, or the whole of them."""
        last, first = self._ledger.last_round[clients], self.warmup_rounds
        iterates = torch.where(last > first, 0, first + 1 - self._iterates_held[clients])
        since = torch.where(last > first, last - 1, first)
        replay = iterates * model_bits + self._ledger.bits_since("flss", since)
        return replay.clamp(max=model_bits * (self.basis.rank + 1) + self._bits(self.basis.rank))
