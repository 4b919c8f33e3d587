"""Differential privacy of clients: their updates are clipped, and the server adds noise to what it makes of them.

H. B. McMahan, D. Ramage, K. Talwar, L. Zhang, "Learning Differentially Private Recurrent Language Models", ICLR 2018,
https://arxiv.org/abs/1710.06963 (DP-FedAvg, Algorithm 1 with the fixed denominator qW). G. Andrew, O. Thakkar,
H. B. McMahan, S. Ramaswamy, "Differentially Private Learning with Adaptive Clipping", NeurIPS 2021,
https://arxiv.org/abs/1905.03871 (Algorithm 1). Epsilon is computed by Google's ``dp_accounting``.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

import torch
from jsonargparse.typing import NonNegativeFloat, OpenUnitInterval, PositiveFloat
from torch import Tensor
from typing_extensions import override

from lfl.aggregation import MeanAggregator
from lfl.aggregation.norm_clipping import shrinkage
from lfl.arguments import check_number
from lfl.callback import FederatedCallback, overrides
from lfl.callbacks.sign import Sign
from lfl.comm import Message, Payload
from lfl.federation import Federation
from lfl.participation import PoissonParticipation, UniformParticipation
from lfl.round import Cohort, Round

_EXTRA = "{owner} computes epsilon with the package `dp-accounting`: pip install 'lfl[privacy]'."
_CLIP = "privacy/clip"
_BELOW = "privacy/below"


class DifferentialPrivacy(FederatedCallback):
    """Client-level DP-FedAvg: ``x+ = x + (sum_i delta_i min(1, S / |delta_i|) + N(0, (sigma S)^2 I)) / m``.

    m is fixed, so that nobody's presence is told by it: q N for `PoissonParticipation`, else the number of participants
    M, which must be the same in every round. Every round is noised, one without participants too. Noise follows from
    (seed, round): a run can be repeated, and whoever knows the seed can take the noise away. It takes the uniform mean,
    and clients that send their updates and nothing else.

    ``privacy/epsilon`` is logged: the run so far is (epsilon, delta)-differentially private for what becomes of the
    model, by Renyi accounting. What neighbouring federations are depends on the sampling:

    - `PoissonParticipation`: one client's data is there or not. An update is there or not, which changes the sum by S.
    - `UniformParticipation`, M of N without replacement in every round: one client's data is replaced by other data, N
      being public. That changes the sum by 2 S, so that the accountant is told a noise multiplier of sigma / 2: the
      same noise gives a larger epsilon.
    - All others, such as `FullParticipation`: as for Poisson, with nothing gained from who is drawn.

    Losses, accuracies and numbers of clients that are logged are not noised, and not covered.

    With a ``quantile`` gamma the clip follows the norms: ``S <- S exp(-eta_C (b - gamma))``, where b is the share of
    updates with ``|delta_i| <= S``: ``b = 1/2 + (sum_i (b_i - 1/2) + N(0, sigma_b^2)) / m``. One bit more goes up, and
    S goes down. Noise on the updates becomes ``sigma_Delta = (sigma^-2 - (2 sigma_b)^-2)^(-1/2)``, so that both
    together cost what sigma alone does.

    State: S, if it is adaptive. Codecs stand before it, and are applied to what it clips.

    Args:
        noise_multiplier: sigma. 0 adds no noise, and gives no privacy: epsilon is infinite, and not logged.
        clip: S, in the unit of updates; the first one, where it is adaptive. One norm over the whole update.
        delta: of (epsilon, delta); should be well below 1 / N.
        quantile: gamma in (0, 1), the share of updates that shall not be clipped; none for a fixed clip.
        clip_lr: eta_C.
        count_noise: sigma_b; none for the larger of m / 20, as in the paper, and sigma.

    Raises:
        ValueError: a value is out of range.
    """

    linear = False  # the mean of the clipped is not the clipped mean
    is_unique = True
    weighting = "uniform"

    def __init__(
        self,
        noise_multiplier: NonNegativeFloat = 1.0,
        clip: PositiveFloat = 1.0,
        delta: OpenUnitInterval = 1e-5,
        quantile: OpenUnitInterval | None = None,
        clip_lr: PositiveFloat = 0.2,
        count_noise: PositiveFloat | None = None,
    ) -> None:
        owner = type(self).__name__
        check_number(owner, "noise_multiplier", noise_multiplier, least=0)
        check_number(owner, "clip", clip, above=0)
        check_number(owner, "clip_lr", clip_lr, above=0)
        check_delta(owner, delta)
        if quantile is not None and not 0 < quantile < 1:
            raise ValueError(f"`quantile={quantile}` of {owner} must be greater than 0 and less than 1, or none.")
        if count_noise is not None and not 2 * count_noise > noise_multiplier:
            raise ValueError(
                f"`count_noise={count_noise}` of {owner} must be more than half of `noise_multiplier="
                f"{noise_multiplier}`: less noise would cost more privacy than both are to cost together."
            )
        self.noise_multiplier = noise_multiplier
        self.clip = clip
        self.delta = delta
        self.quantile = quantile
        self.clip_lr = clip_lr
        self.count_noise = count_noise
        self.synchronous = quantile is not None  # noise is for the clip of the round, and late clients may have another

    @override
    def check_stack(self, stack: list[FederatedCallback]) -> None:
        refuse_uncovered(self, stack)
        place = stack.index(self)
        for other in stack:
            name = type(other).__name__
            if overrides(other, "coordinates"):
                raise ValueError(
                    f"{name} and DifferentialPrivacy have no meaning together: noise is added to the parameters, and "
                    f"clients of {name} send coordinates."
                )
            if overrides(other, "encode") and stack.index(other) > place:
                raise ValueError(
                    f"{name} stands behind DifferentialPrivacy: what it makes of the clipped updates may be longer "
                    f"than `clip`. Put {name} before it."
                )
            is_plain_sign = isinstance(other, Sign) and other.vote == "mean"  # decodes nothing
            if overrides(other, "decode") and not (overrides(other, "personalize") or other is self or is_plain_sign):
                raise ValueError(
                    f"{name} and DifferentialPrivacy have no meaning together: what `{name}.decode` makes of the "
                    "clipped updates may be longer than `clip`."
                )
            if overrides(other, "on_aggregate") and stack.index(other) < place:
                raise ValueError(
                    f"{name} stands before DifferentialPrivacy, and would see the aggregate before it is noised: put "
                    f"{name} behind it."
                )

    @override
    def on_run_start(self, federation: Federation) -> None:
        refuse_buffers(self, federation)
        aggregator = federation.aggregator
        if type(aggregator) is not MeanAggregator or aggregator.weighting != "uniform":
            raise ValueError(
                "DifferentialPrivacy bounds what one client adds to the uniform mean: use `MeanAggregator` with "
                f"`weighting=uniform`, not `{type(aggregator).__name__}` with `weighting={aggregator.weighting}`."
            )
        self._federation = federation
        self._sampling = Sampling.of(federation)
        shared = federation.ledger.shared  # a mask, where some parameters never leave the clients
        self._shared = None if shared is None else shared.to(federation.device)
        self.current_clip = float(self.clip)
        self._count_noise, self._update_noise = self._noises(self._sampling.denominator)
        self._accounting = Accounting(type(self).__name__)
        self._cost = self._sampling.cost(self._accounting, self.noise_multiplier) if self.noise_multiplier else None

    def _noises(self, denominator: float) -> tuple[float, float]:
        """The noise multipliers of the count (sigma_b) and of the updates (sigma_Delta)."""
        sigma = self.noise_multiplier
        if self.quantile is None or not sigma:
            return 0.0, sigma
        of_count = self.count_noise or max(denominator / 20, sigma)
        return of_count, (sigma**-2 - (2 * of_count) ** -2) ** -0.5

    @override
    def on_download(self, message: Message) -> None:
        if self.quantile is not None:
            message.add(_CLIP, message.payloads["model"].new_tensor([self.current_clip]))

    @override
    def encode(self, cohort: Cohort, payload: Payload) -> Payload:
        refuse_uploads(self, cohort)
        clip = self.clip if self.quantile is None else cohort.received[_CLIP]
        rows, is_below = clipped(payload.values, clip)
        if self.quantile is None:
            return Payload(rows, payload.bits)
        cohort.round.accumulate(_BELOW, (is_below.double() - 0.5).sum())
        return Payload(rows, payload.bits + 1)

    @override
    def on_aggregate(self, round: Round) -> None:
        assert round.update is not None
        # The mean over those who reported becomes a sum over the fixed number.
        if round.num_reported != self._sampling.denominator:
            round.update = round.update * (round.num_reported / self._sampling.denominator)
        if self._update_noise:
            round.update = round.update + self._noise(round)

    @override
    def on_server_step(self, round: Round) -> None:
        if not round.num_reported and self._update_noise:
            # To an observer an empty round is one like any other: its sum is zero, and is noised.
            self._federation.server.step(self._noise(round))
        if self.quantile is not None:
            noise = self._count_noise * self._draw("count", round, 1).item() if self._count_noise else 0.0
            below = 0.5 + (float(round.sums.get(_BELOW, 0.0)) + noise) / self._sampling.denominator
            self.current_clip *= math.exp(-self.clip_lr * (below - self.quantile))

    @override
    def on_round_end(self, round: Round) -> None:
        if self.quantile is not None:
            round.log(_CLIP, self.current_clip)
        if self._cost is not None:
            round.log("privacy/epsilon", self._accounting.epsilon(self._cost, round.number, self.delta))

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"clip": self.current_clip}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.current_clip = state_dict["clip"]

    def _noise(self, round: Round) -> Tensor:
        """The noise of the aggregate [D]; none on parameters that never leave the clients."""
        deviation = self._update_noise * self.current_clip / self._sampling.denominator
        noise = self._draw("update", round, len(round.server)).to(round.server) * deviation
        return noise if self._shared is None else noise * self._shared

    def _draw(self, what: str, round: Round, count: int) -> Tensor:
        draws = self._federation.generator(f"privacy/{what}", round.number)
        return torch.randn(count, generator=draws, dtype=torch.float64)


@dataclass(frozen=True)
class Sampling:
    """The way in which the participants of a round are drawn.

    Attributes:
        num_clients: N.
        probability: of each client, where they are drawn by independent coins (q).
        size: number of participants, where it is fixed (M).
        is_fresh: whether the M are drawn anew in every round, all with equal chances.
    """

    num_clients: int
    probability: float | None
    size: int = 0
    is_fresh: bool = False

    @classmethod
    def of(cls, federation: Federation) -> Sampling:
        """The sampling of a run; raises ValueError where there is no fixed number to divide by."""
        # Of all that may be drawn, those without examples included: a fixed number that says nothing about the data.
        participation = federation.participation.rule
        num_clients = federation.num_clients - len(federation.held_out)
        if isinstance(participation, PoissonParticipation):
            return cls(num_clients, participation.probability)
        size = participation.count(num_clients)
        if size is None:
            raise ValueError(
                "DifferentialPrivacy divides the sum of updates by a fixed number, and needs PoissonParticipation, or "
                "one that has as many participants in every round, such as UniformParticipation, not "
                f"{type(participation).__name__}."
            )
        is_fresh = isinstance(participation, UniformParticipation) and participation.rounds_per_draw == 1
        return cls(num_clients, None, size, is_fresh and size < num_clients)

    @property
    def denominator(self) -> float:
        """The fixed number by which sums are divided (m): q N or M."""
        return self.num_clients * self.probability if self.probability is not None else float(self.size)

    def cost(self, accounting: Accounting, noise_multiplier: float) -> Any:
        """The Renyi divergences of a round for updates of norm 1 at most, and noise of ``noise_multiplier``."""
        library = accounting.library
        relation = library.NeighboringRelation
        if self.probability is not None:
            event = library.PoissonSampledDpEvent(self.probability, library.GaussianDpEvent(noise_multiplier))
            return accounting.divergences(event, relation.ADD_OR_REMOVE_ONE)
        if not self.is_fresh:
            return accounting.divergences(library.GaussianDpEvent(noise_multiplier), relation.ADD_OR_REMOVE_ONE)
        # The accountant wants noise as a multiple of what one record changes, which is 2 S for one that is replaced.
        gaussian = library.GaussianDpEvent(noise_multiplier / 2)
        event = library.SampledWithoutReplacementDpEvent(self.num_clients, self.size, gaussian)
        return accounting.divergences(event, relation.REPLACE_ONE)


class Accounting:
    """Google's ``dp_accounting``, which is imported when it is needed: that takes a second or two.

    Args:
        owner: name of the callback that needs it.

    Raises:
        ModuleNotFoundError: the package is missing.
    """

    def __init__(self, owner: str) -> None:
        try:
            import dp_accounting
            from dp_accounting import rdp
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(_EXTRA.format(owner=owner), name="dp_accounting") from error
        self.library: Any = dp_accounting
        self._rdp: Any = rdp

    def divergences(self, event: Any, relation: Any) -> Any:
        """The Renyi divergences of an event at the library's own orders; those of a sequence of events add up."""
        said = logging.getLogger("absl")
        level = said.level
        # It warns of low orders whose series do not converge. It leaves them out: epsilon is a bound without them too.
        said.setLevel(logging.ERROR)
        try:
            return self._rdp.RdpAccountant(neighboring_relation=relation).compose(event)
        finally:
            said.setLevel(level)

    def epsilon(self, cost: Any, times: int, delta: float) -> float:
        """Epsilon of ``times`` events of a cost that ``divergences`` has returned."""
        return float(self._rdp.compute_epsilon(cost.orders, times * cost.rdp, delta)[0])


def clipped(rows: Tensor, clip: float | Tensor) -> tuple[Tensor, Tensor]:
    """Rows [C, n] shortened to the norm ``clip``, and whether they were no longer [C]."""
    norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return rows * shrinkage(norms, clip).to(rows.dtype)[:, None], norms <= clip


def check_delta(owner: str, delta: float) -> None:
    """Raise ValueError unless ``delta`` is a number between 0 and 1."""
    check_number(owner, "delta", delta, above=0)
    if delta >= 1:
        raise ValueError(f"`delta={delta}` of {owner} must be less than 1, and should be well below 1 / N.")


def refuse_uncovered(owner: FederatedCallback, stack: list[FederatedCallback]) -> None:
    """Refuse callbacks by which clients send what ``owner``, a codec, does not make private; raises ValueError."""
    name = type(owner).__name__
    for other in stack:
        if other.sends_more:
            raise ValueError(
                f"{type(other).__name__} and {name} have no meaning together: clients of {type(other).__name__} send "
                f"more than their updates, which {name} does not cover."
            )
        if overrides(other, "ends_encoding"):
            raise ValueError(
                f"{type(other).__name__} and {name} have no meaning together: in some rounds {type(other).__name__} "
                f"sends what no other codec sees, and so {name} does not cover it."
            )


def refuse_uploads(owner: FederatedCallback, cohort: Cohort) -> None:
    """Refuse extra payloads of callbacks that have not said that they send some; raises ValueError."""
    if cohort.uploads:
        raise ValueError(
            f"{type(owner).__name__} does not cover what clients send besides their updates: "
            f"{', '.join(map(repr, sorted(cohort.uploads)))}. Leave out the callback that uploads it."
        )


def refuse_buffers(owner: FederatedCallback, federation: Federation) -> None:
    """Refuse buffers that are sent and averaged as they are; raises ValueError."""
    server = federation.server
    if federation.buffer_policy == "average" and (server.buffers.numel() or server.counters):
        raise ValueError(
            f"{type(owner).__name__} does not cover the model's buffers (BatchNorm's statistics), which clients send "
            "as they are: use GroupNorm, or `trainer.buffers=client`, or `server`."
        )
