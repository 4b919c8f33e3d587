"""FLSS: updates projected on a subspace that follows the server's path.

"Federated Learning in Streaming Subspace", Algorithms 1 (FedAvg+FLSS) and 2 (SLDS). The paper's g_t is ``moved`` here,
and the columns of its P are the rows of ours. The first sampled round after warm-up is L + s, as in the text of section
3.3 and in the communication costs of its tables; Algorithm 2 as printed would sample round L twice.
"""

from typing import Any, Literal

import torch
from jsonargparse.typing import NonNegativeInt, PositiveFloat, PositiveInt
from lightning.fabric.utilities.rank_zero import rank_zero_info
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_choice, check_number
from lfl.callback import FederatedCallback, Gradient, overrides
from lfl.client.layout import ParameterLayout
from lfl.client.step import LocalStep
from lfl.comm import Message, Payload
from lfl.federation import Federation
from lfl.round import Cohort, Round
from lfl.subspace.base import Basis
from lfl.subspace.dense import DenseBasis
from lfl.subspace.streaming import BlockBasis, StreamingBasis, StreamingBlocks, residual_energy

_BASIS = "flss/basis"
_ENERGY = "flss/energy"  # sums over clients of |delta_i|^2 and |P delta_i|^2


class FLSS(FederatedCallback):
    """FedAvg whose clients send ``z_i = P delta_i``, r numbers, in most rounds: ``x+ = x + server_lr P^T zbar``.

    P [r, D] has the leading left singular vectors of the server's moves ``G_t = x+ - x`` (eq. 2, 3). Three kinds of
    rounds:

    - ``t <= L``, warm-up: FedAvg. After round L, P and Sigma come from the singular value decomposition of G_1 .. G_L.
    - ``(t - L) % s == 0``, sampled: FedAvg; then ``P, Sigma`` become the R leading singular pairs of
      ``[lambda P Sigma, G_t]`` (eq. 4, Algorithm 2).
    - all others, projected. Codecs behind this one are skipped. While the server has not moved yet there is no basis
      (r = 0), and the round is one of FedAvg.

    With s = 1, or R >= D, it is FedAvg, and no basis is kept. Stated for the mean over clients.

    State: P and Sigma, D (R + 1) numbers: server and clients have the same, and one copy is kept. During a ``batch``
    warm-up also G_1 .. G_L, and twice that at its end. Up: D numbers, or r in projected rounds. Down: for each round
    since the client last took part D numbers, or r if that round was projected; the first time after warm-up also
    those of the L + 1 iterates, of which the basis is made, that the client was not sent. At most x, P and Sigma:
    D (r + 1) + r numbers.

    Beside other methods, what they do on the clients is not projected, but for the update: controls of SCAFFOLD are
    those of the whole movement, and travel whole. What they, or the server's optimizer, add to the update at the server
    stays whole, too: x then leaves the subspace, the basis follows it in sampled rounds, and x goes down in D numbers.

    Logs ``flss/rank``, r; ``flss/paper_upload``, uploads of a client since warm-up in the paper's count;
    ``flss/rho``, the share of the energy of all moves followed that P leaves out (rho_R of Proposition 3.4.1);
    ``flss/outside``, in projected rounds, the share of the energy of the clients' updates that is outside of P, and
    ``flss/move_outside``, in sampled rounds, that of the server's move.

    Args:
        warmup_rounds: number of warm-up rounds (L).
        rank: largest number of directions (R); the basis has r <= R.
        sample_every: rounds from one sampled round to the next (s); none or 0 keeps the subspace of the warm-up.
        attenuation: lambda in (0, 1], the weight of the past in SLDS; with 1, moves that have become smaller than the
            smallest singular value no longer change the subspace.
        update_scale: multiplies the update of projected rounds; one reading of ``sr`` in the paper's Table 5.
        project: what is projected in projected rounds. ``updates``: the clients' updates, as above. ``gradients``:
            every local gradient, by ``P^T P``; updates are sent whole, D numbers, since weight decay, or a local
            optimizer other than SGD, moves them out of the span of P. ``both``: gradients, and updates are sent as r
            numbers, without what is outside the span. With plain SGD nothing is outside, and ``gradients`` and
            ``both`` differ in traffic only.
        warmup: ``batch`` keeps G_1 .. G_L. ``stream`` follows them with SLDS without attenuation, in D R numbers; the
            basis is the same unless they span more than R directions. ``auto`` is the one that needs less memory:
            ``stream`` where L > R.
        scope: ``global`` has one subspace of all parameters, as the paper. ``layer`` has one of up to R directions for
            each layer (the parameters of one submodule): r is the sum of their ranks, D R numbers in all.
        subspace: ``trajectory`` is the above. ``random`` has R uniformly random directions instead, the baseline of
            eq. 2, drawn from the seed after warm-up and again after every sampled round: nothing of it travels.
        rate_scale: multiplies the local learning rate in projected rounds; the other reading of ``sr`` in Table 5.

    Raises:
        ValueError: an argument is not among the allowed values, or ``attenuation`` is outside (0, 1].
    """

    is_unique = True
    synchronous = True  # P is that of the round
    weighting = "uniform"

    def __init__(
        self,
        warmup_rounds: PositiveInt = 200,
        rank: PositiveInt = 50,
        sample_every: NonNegativeInt | None = 5,
        attenuation: float = 1.0,
        update_scale: PositiveFloat = 1.0,
        project: Literal["updates", "gradients", "both"] = "updates",
        warmup: Literal["batch", "stream", "auto"] = "batch",
        scope: Literal["global", "layer"] = "global",
        subspace: Literal["trajectory", "random"] = "trajectory",
        rate_scale: PositiveFloat = 1.0,
    ) -> None:
        check_number("FLSS", "warmup_rounds", warmup_rounds, least=1, whole=True)
        check_number("FLSS", "rank", rank, least=1, whole=True)
        check_number("FLSS", "sample_every", sample_every or 0, least=0, whole=True)
        check_number("FLSS", "update_scale", update_scale, above=0)
        check_choice("FLSS", "project", project, ("updates", "gradients", "both"))
        check_choice("FLSS", "warmup", warmup, ("batch", "stream", "auto"))
        check_choice("FLSS", "scope", scope, ("global", "layer"))
        check_choice("FLSS", "subspace", subspace, ("trajectory", "random"))
        check_number("FLSS", "rate_scale", rate_scale, above=0)
        if not 0 < attenuation <= 1:
            raise ValueError(f"`attenuation={attenuation}` of FLSS must be greater than 0 and at most 1.")
        if subspace == "random" and attenuation != 1:
            raise ValueError(
                f"`attenuation={attenuation}` of FLSS has no meaning with `subspace=random`: leave it at 1."
            )
        self.warmup_rounds = warmup_rounds
        self.rank = rank
        self.sample_every = sample_every
        self.attenuation = attenuation
        self.update_scale = update_scale
        self.project = project
        if project == "updates":
            # Steps whose gradient nobody looks at are taken in one piece.
            self.unused = frozenset({"wrap_gradient"})
        self.warmup = warmup
        self.scope = scope
        self.subspace = subspace
        self.rate_scale = rate_scale

    @override
    def check_stack(self, stack: list[FederatedCallback]) -> None:
        # Another callback's server may move by more than what is decoded: then coefficients do not say where it went.
        self._moves_otherwise = any(overrides(c, "on_aggregate") and not c.observes for c in stack)
        lossy = next((c for c in stack[: stack.index(self)] if overrides(c, "encode") and not c.linear), None)
        if lossy is not None:
            raise ValueError(
                f"{type(lossy).__name__} stands before FLSS: what the projection takes away from its output would be "
                f"neither sent nor kept. Put {type(lossy).__name__} behind FLSS."
            )
        behind = stack[stack.index(self) + 1 :]
        late = next((c for c in behind if overrides(c, "wrap_gradient")), None)
        if late is not None and self.project != "updates":
            raise ValueError(
                f"{type(late).__name__} stands behind FLSS and would lead gradients out of the subspace, into which "
                f"`project={self.project}` has put them. Put {type(late).__name__} before FLSS."
            )
        both = next((c for c in behind if overrides(c, "encode") and overrides(c, "wrap_gradient")), None)
        if both is not None:
            raise ValueError(
                f"FLSS and {type(both).__name__} have no meaning together: clients of {type(both).__name__} add in its "
                "codec what their gradients lack, and in projected rounds FLSS skips the other codecs."
            )
        for owner in stack:
            if overrides(owner, "coordinates"):
                raise ValueError(
                    f"FLSS follows the server in the space of the parameters, but {type(owner).__name__} lets clients "
                    "send coordinates in a basis of its own: use one of the two."
                )

    @override
    def on_run_start(self, federation: Federation) -> None:
        if federation.aggregator.decoded:
            name = type(federation.aggregator).__name__
            raise ValueError(
                f"FLSS and {name} have no meaning together: clients follow the server's moves in the subspace, which "
                f"{name} of the lifted updates leaves. Use a mean, or another codec."
            )
        if self.warmup_rounds >= federation.max_rounds:
            rank_zero_info(
                f"FLSS projects nothing in this run, which trains as FedAvg: `warmup_rounds={self.warmup_rounds}` is "
                f"not below `max_rounds={federation.max_rounds}`."
            )
        self._server = federation.server
        self._ledger = federation.ledger
        self._seed = federation.seed
        shared = federation.ledger.shared  # a mask, where some parameters never leave the clients
        self._shared = slice(None) if shared is None else shared.nonzero().squeeze(1).to(federation.device)
        followed = federation.server.vector[self._shared]
        self.basis = (
            StreamingBasis(self.rank, followed)
            if self.scope == "global"
            else StreamingBlocks(self.rank, followed, layer_sizes(federation.layout, shared))
        )
        self._is_fedavg = self.sample_every == 1 or all(self.rank >= part.dim for part in self.basis.parts)
        self._streams = self.warmup == "stream" or (self.warmup == "auto" and self.warmup_rounds > self.rank)
        self._names = [f"{_BASIS}/{number}" for number in range(len(self.basis.parts))]
        self._moves: list[Tensor] = []  # G_1 .. G_L of a batch warm-up
        self._iterates_held = torch.zeros(federation.num_clients, dtype=torch.int64)  # x of warm-up rounds, by client
        self._uploaded = 0.0  # numbers per client sent since warm-up, as the paper's tables count them

    @override
    def on_round_start(self, round: Round) -> None:
        self._round = round

    @override
    def on_download(self, message: Message) -> None:
        # Clients run SLDS as the server does, on its moves: differences of models that they were sent and charged for.
        # Random directions they draw from the seed.
        for name, part in zip(self._names, self.basis.parts, strict=True):
            message.derive(name, part.rows)
        ledger = self._ledger
        number = self._round.number
        model_bits = ledger.bits_of(message.payloads["model"])
        if number > self.warmup_rounds:
            message.charge("model", self._bits_to_follow(self._round.invited, model_bits))
        else:
            self._iterates_held[self._round.invited] += 1
        # From the mean coefficients alone a client can repeat the server's step only if that is plain SGD; momentum or
        # Adam have a state that clients do not know.
        is_short = self.ends_encoding(self._round) and self._server.is_plain_sgd and not self._moves_otherwise
        ledger.record_increment("flss", self._bits(self.basis.rank) if is_short else model_bits, number)

    @override
    def on_cohort_start(self, cohort: Cohort) -> None:
        if self._is_projected(cohort.round):
            cohort.rate_factor *= self.rate_scale

    @override
    def wrap_gradient(self, cohort: Cohort, gradient: Gradient) -> Gradient:
        if not self._is_projected(cohort.round):
            return gradient
        basis = self._received(cohort)

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
        basis = self._received(cohort)
        if payload.values.shape[1] != basis.dim:
            raise ValueError(
                f"FLSS follows {basis.dim} numbers of the server, but the codecs before it leave "
                f"{payload.values.shape[1]} of an update: put them behind it."
            )
        if not self.ends_encoding(cohort.round):
            return payload
        coefficients = basis.project(payload.values)
        # Rows of P are orthonormal, so that coefficients have the norm of what they stand for.
        energies = [torch.linalg.vector_norm(rows, dim=1).double().square() for rows in (payload.values, coefficients)]
        cohort.round.accumulate(_ENERGY, torch.stack(energies).sum(dim=1))
        return Payload(coefficients, self._bits(basis.rank))

    @override
    def decode(self, round: Round, values: Tensor) -> Tensor:
        if self.ends_encoding(round):
            values = self.basis.lift(values)
        return values * self.update_scale if self._is_projected(round) else values

    @override
    def on_server_step(self, round: Round) -> None:
        if self._is_fedavg:
            return
        is_warmup = round.number <= self.warmup_rounds
        # A round whose updates were all refused has no aggregate, and no move.
        if round.update is not None and (is_warmup or self._is_sampled(round)):
            moved = (self._server.vector - round.server)[self._shared]
            if not is_warmup and self.basis.rank:
                energies = [torch.linalg.vector_norm(v).square() for v in (moved, self.basis.project(moved))]
                round.log("flss/move_outside", _share_outside(*energies))
            self._follow(moved, is_warmup)
        if self.subspace == "random" and (round.number == self.warmup_rounds or self._is_sampled(round)):
            self.basis.draw((self._seed, "flss", round.number))
        if round.number == self.warmup_rounds and self._moves:
            moves = torch.stack(self._moves)
            self._moves = []  # before the decomposition, which needs as much memory again
            self.basis.start(moves)

    def _follow(self, moved: Tensor, is_warmup: bool) -> None:
        """Let the basis follow a move [n] of the server; in a batch warm-up, keep it."""
        if self.subspace == "random":
            return
        if is_warmup and not self._streams:
            self._moves.append(moved)
        else:
            self.basis.update(moved, 1.0 if is_warmup else self.attenuation)

    @override
    def on_round_end(self, round: Round) -> None:
        if round.number > self.warmup_rounds and round.num_reported:
            bits = self._ledger.up_bits["update"] / round.num_reported
            self._uploaded += bits / self._bits(1)
        round.log("flss/rank", float(self.basis.rank))
        if self.basis.rank and self.subspace == "trajectory":
            round.log("flss/rho", residual_energy(self.basis.parts))
        if (energies := round.sums.get(_ENERGY)) is not None:
            round.log("flss/outside", _share_outside(*energies))
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
        self._moves = [moved.to(self._server.vector) for moved in state_dict["moves"]]
        self._iterates_held = state_dict["iterates_held"].clone()
        self._uploaded = state_dict["uploaded"]

    def _is_sampled(self, round: Round) -> bool:
        """Return whether a round after warm-up is a sampled one by the schedule."""
        since = round.number - self.warmup_rounds
        return since > 0 and self.sample_every not in (None, 0) and since % self.sample_every == 0

    def _is_projected(self, round: Round) -> bool:
        """Return whether clients send coefficients in this round, or project their gradients."""
        has_basis = any(len(round.message.contents[name]) for name in self._names)
        return round.number > self.warmup_rounds and has_basis and not self._is_sampled(round)

    def _received(self, cohort: Cohort) -> Basis:
        """The basis of the message: ``self.basis`` is the server's."""
        parts = [DenseBasis(cohort.received[name]) for name in self._names]
        return BlockBasis(parts) if len(parts) > 1 else parts[0]

    def _bits(self, count: int) -> int:
        """Number of bits of ``count`` floats."""
        return count * int(self._server.vector.element_size()) * 8

    def _bits_to_follow(self, clients: Tensor, model_bits: int) -> Tensor:
        """Bits [M] that bring each client up to x, P and Sigma after warm-up: what it missed, at most the whole."""
        last = self._ledger.last_round[clients]
        if self.subspace == "random":  # x alone
            replay = self._ledger.bits_since("flss", (last - 1).clamp(min=0))
            return torch.where(last > 0, replay, model_bits).clamp(max=model_bits)
        end = self.warmup_rounds
        is_new = last <= end  # for the first time after warm-up
        # L moves are the differences of L + 1 iterates, of which the client has those of its warm-up rounds.
        iterates = torch.where(is_new, end + 1 - self._iterates_held[clients], 0)
        # Who took part in round t has the state from before t, and lacks the increments of t and of later rounds.
        since = torch.where(is_new, end, last - 1)
        replay = iterates * model_bits + self._ledger.bits_since("flss", since)
        state = sum(part.rows.numel() + part.rank for part in self.basis.parts)  # P and Sigma
        return replay.clamp(max=model_bits + self._bits(state))


def layer_sizes(layout: ParameterLayout, shared: Tensor | None = None) -> list[int]:
    """The number of entries of a vector that each layer has, in order; layers without any are left out.

    Args:
        layout: where each parameter lies in a vector [D].
        shared: mask [D] of the parameters that count; None for all.
    """
    spans = layout.layers.values()
    sizes = [span.stop - span.start if shared is None else int(shared[span].sum()) for span in spans]
    return [size for size in sizes if size]


def _share_outside(whole: Tensor, inside: Tensor) -> Tensor:
    """The share of an energy that is not inside; zero for none."""
    return torch.where(whole > 0, 1 - inside / whole, 0.0).clamp(min=0.0)
