"""Local differential privacy: every client clips its update and adds noise to it before anything is sent.

The Gaussian mechanism (C. Dwork, A. Roth, "The Algorithmic Foundations of Differential Privacy", 2014, Appendix A) on a
client's update; S. Truex et al., "LDP-Fed", EdgeSys 2020, https://arxiv.org/abs/2006.03637, for the setting.
"""

from __future__ import annotations

from typing import Any

import torch
from jsonargparse.typing import NonNegativeFloat, OpenUnitInterval, PositiveFloat
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_number
from lfl.callback import FederatedCallback
from lfl.callbacks.privacy import Accounting, check_delta, clipped, refuse_buffers, refuse_uncovered, refuse_uploads
from lfl.comm import Payload
from lfl.federation import Federation
from lfl.randomness import normal
from lfl.round import Cohort, Round


class LocalNoise(FederatedCallback):
    """Sends ``delta_i min(1, S / |delta_i|) + N(0, (sigma S)^2 I)``: the server never sees an update as it is.

    ``privacy/local_epsilon`` is logged: what a client has sent so far is (epsilon, delta)-differentially private in the
    local sense: with any other data it would have made the same reports with nearly the same chances.
    Replacing an update by any other one changes a report by 2 S at most, so that a report is a Gaussian mechanism with
    the noise multiplier sigma / 2; the client that took part most often is told of. That a round's participants are
    drawn at random is no help against a server that draws them.

    Noise follows from (seed, round, client). It is sigma S sqrt(D) long, S being the longest update: the mean over M
    clients has it divided by sqrt(M) only, where the noise of `DifferentialPrivacy` is divided by M. Any aggregator
    and any weighting will do, and codecs behind this one work on what is private already. State: how often every client
    took part, at the server.

    Args:
        noise_multiplier: sigma. 0 clips, and gives no privacy: epsilon is infinite, and not logged.
        clip: S, in the unit of updates.
        delta: of (epsilon, delta).
    """

    linear = False
    is_unique = True

    def __init__(
        self, noise_multiplier: NonNegativeFloat = 1.0, clip: PositiveFloat = 1.0, delta: OpenUnitInterval = 1e-5
    ) -> None:
        check_number("LocalNoise", "noise_multiplier", noise_multiplier, least=0)
        check_number("LocalNoise", "clip", clip, above=0)
        check_delta("LocalNoise", delta)
        self.noise_multiplier = noise_multiplier
        self.clip = clip
        self.delta = delta

    @override
    def check_stack(self, stack: list[FederatedCallback]) -> None:
        refuse_uncovered(self, stack)

    @override
    def on_run_start(self, federation: Federation) -> None:
        refuse_buffers(self, federation)
        self._federation = federation
        self._reports = torch.zeros(federation.num_clients, dtype=torch.int64)
        self._accounting = Accounting("LocalNoise")
        library = self._accounting.library
        self._cost = None
        if self.noise_multiplier:
            event = library.GaussianDpEvent(self.noise_multiplier / 2)
            self._cost = self._accounting.divergences(event, library.NeighboringRelation.REPLACE_ONE)

    @override
    def encode(self, cohort: Cohort, payload: Payload) -> Payload:
        refuse_uploads(self, cohort)
        rows, _ = clipped(payload.values, self.clip)
        if self.noise_multiplier:
            rows = rows + self._noise(cohort, rows)
        return Payload(rows, payload.bits)

    def _noise(self, cohort: Cohort, rows: Tensor) -> Tensor:
        keys = self._federation.keys(cohort.ids, "local-noise", cohort.round.number)
        deviation = float(self.noise_multiplier * self.clip)
        return normal(keys, rows.shape[1], rows.dtype) * deviation

    @override
    def on_round_end(self, round: Round) -> None:
        self._reports[round.clients] += 1
        most = int(self._reports.max())
        if self._cost is not None and most:
            round.log("privacy/local_epsilon", self._accounting.epsilon(self._cost, most, self.delta))

    @override
    def state_dict(self) -> dict[str, Any]:
        # Of clients that were ever drawn, so that the size of a checkpoint does not grow with N.
        seen = self._reports.nonzero().squeeze(1)
        return {"clients": seen, "reports": self._reports[seen]}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._reports.zero_()[state_dict["clients"]] = state_dict["reports"]
