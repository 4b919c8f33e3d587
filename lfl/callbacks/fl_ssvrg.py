"""FL-SSVRG: variance reduction in random subspaces, with projected full gradients that the clients keep.

"Communication-efficient Subspace Methods for High-dimensional Federated Learning", Algorithm 2, with equation (8)'s
scale D/l of the stored part: line 11 prints D/l_i, which is biased.
"""

import math
from typing import Any

import torch
from jsonargparse.typing import PositiveInt
from torch import Tensor, nn
from typing_extensions import override

from lfl.callback import FederatedCallback, Gradient
from lfl.client.layout import ParameterLayout
from lfl.client.step import LocalStep
from lfl.comm import Message, Payload
from lfl.federation import Federation
from lfl.randomness import client_keys
from lfl.round import Cohort, Round
from lfl.subspace.subsets import check_expected, random_subsets, subset_sizes

_SLOT = "fl-ssvrg/projections"  # P_k^T G_i of an epoch's rounds, side by side, for each client
_REFERENCE = "fl-ssvrg/reference"  # x_0 [D], in the message


class FLSSVRG(FederatedCallback):
    """Epochs of K rounds around a reference point x_0; local work is one step of plain SGD with rate alpha.

    P_k are random coordinates that all clients share, Pi_k the projection on them. In the first round of an epoch a
    client computes its full gradient G_i at x_0, sends ``P_0^T G_i``, and stores ``P_k^T G_i`` for the rounds k = 1 to
    K - 1. In round k it sends the difference of its stochastic gradients at x_k and at x_0 on coordinates of its own,
    P_ki, and the stored ``P_k^T G_i``:
    ``g = sum_i w_i [ (D/l_i) Pi_ki (grad F(x_k) - grad F(x_0)) + (D/l) Pi_k G_i ]``.
    All three gradients are those of the loss with its weight decay.

    State: sum_k tau_k floats for each client, and x_0, with tau_k the number of coordinates in P_k. Up: tau_0 floats,
    then tau_k + tau_ki. The participants must stay the same for an epoch: ``UniformParticipation(rounds_per_draw=K)``,
    or all clients.

    Args:
        l: expected number of shared coordinates, E tau_k.
        l_i: expected number of a client's own coordinates, E tau_ki: one for all clients, or a list.
        epoch_rounds: rounds of an epoch (K).

    Raises:
        ValueError: at the start of a run, if participants may change in an epoch, or clients take several local steps.
    """

    weighting = "uniform"
    whole_model = True
    synchronous = True  # a client must be there in all rounds of an epoch
    linear = False

    def __init__(self, l: float, l_i: float | list[float], epoch_rounds: PositiveInt) -> None:  # noqa: E741
        self.l = l
        self.l_i = l_i
        self.epoch_rounds = epoch_rounds
        self.reference = torch.empty(0)
        self._ends: tuple[int, list[int]] = (-1, [])  # an epoch, and where each round's columns end in the slot

    @override
    def check(self, layout: ParameterLayout) -> None:
        check_expected(self.l, layout.dim, 1)
        values = self.l_i if isinstance(self.l_i, list) else [self.l_i]
        check_expected(values, layout.dim, len(values), "l_i")

    @override
    def on_run_start(self, federation: Federation) -> None:
        loses_clients = federation.system is not None and federation.system.loses_clients
        if loses_clients or not federation.participation.holds(self.epoch_rounds):
            raise ValueError(
                f"FLSSVRG needs the same participants for the `epoch_rounds={self.epoch_rounds}` of an epoch: use "
                f"FullParticipation, or UniformParticipation with `rounds_per_draw={self.epoch_rounds}`"
                f"{', and a system that loses no clients' if loses_clients else ''}."
            )
        steps = federation.work.num_steps(federation.data.client_sizes, federation.data.batch_size)
        if int(steps.max()) > 1:
            raise ValueError(
                f"FLSSVRG keeps gradients of single steps, but clients take up to {int(steps.max())}: use "
                "`local_steps=1`."
            )
        self._federation = federation
        self._dim = federation.layout.dim
        self._ends = (-1, [])
        self._expected = check_expected(self.l_i, self._dim, federation.num_clients, "l_i")
        self.reference = torch.zeros_like(federation.server.vector)
        # The most that sum_k tau_k can be, as tau_k <= ceil(l): a slot has one width for all epochs.
        self._width = math.ceil(self.l) * (self.epoch_rounds - 1)
        federation.store.declare(_SLOT, self._width, federation.layout.dtype)

    @override
    def on_round_start(self, round: Round) -> None:
        if self._position(round) == 0:
            self.reference = round.server.clone()

    @override
    def on_download(self, message: Message) -> None:
        # The model that the participants were sent, and charged for, in the epoch's first round; they have kept it.
        message.derive(_REFERENCE, self.reference)

    @override
    def wrap_gradient(self, cohort: Cohort, gradient: Gradient) -> Gradient:
        if self._position(cohort.round) == 0:
            return lambda params, step: cohort.full_gradient(params)  # G_i, whatever the batch of the step
        reference = cohort.received[_REFERENCE]
        decay = cohort.phases[0].optimizer.weight_decay()

        def difference(params: Tensor, step: LocalStep) -> Tensor:
            # Both on the batch of this step, so that their noise cancels as x_k nears x_0.
            now = gradient(params, step)
            now.sub_(gradient(reference.expand(len(params), -1), step))
            # The optimizer adds the decay of x_k; that of x_0 is in the stored G_i.
            return now if decay is None else now.sub_(decay * reference)

        return difference

    @override
    def encode(self, cohort: Cohort, payload: Payload) -> Payload:
        rows = payload.values
        store = self._federation.store
        epoch = self._epoch(cohort.round)
        position = self._position(cohort.round)
        scale = self._dim / self.l
        bits_per_float = rows.element_size() * 8
        if position == 0:
            gradients = -rows / cohort.step_scale()  # of one step of plain SGD: delta_i = -alpha G_i
            stored = [gradients[:, self.shared_mask(epoch, k)] for k in range(1, self.epoch_rounds)]
            if stored:
                kept = torch.cat(stored, dim=1)
                store.scatter(_SLOT, cohort.ids, nn.functional.pad(kept, (0, self._width - kept.shape[1])))
            mask = self.shared_mask(epoch, 0)
            return Payload(rows * mask * scale, int(mask.sum()) * bits_per_float)
        own_masks = self.own_masks(cohort)
        own_scale = self._dim / self._expected[cohort.ids].to(rows)
        shared = self.shared_mask(epoch, position)
        projected = torch.zeros_like(rows)
        projected[:, shared] = store.gather(_SLOT, cohort.ids)[:, self._stored_columns(epoch, position)]
        # Minus: rows are movements, against the gradient, and G_i is a gradient.
        values = rows * own_masks * own_scale[:, None] - cohort.step_scale() * scale * projected
        return Payload(values, (own_masks.sum(dim=1) + shared.sum()) * bits_per_float)

    @override
    def decode(self, round: Round, values: Tensor) -> Tensor:
        return values  # `encode` has scaled the coordinates and put them in their places

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"reference": self.reference.cpu()}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.reference = state_dict["reference"].to(self.reference)

    def shared_mask(self, epoch: int, position: int) -> Tensor:
        """The coordinates P_k that all clients share in a round of an epoch, [D] (bool)."""
        return random_subsets(self._shared_key(epoch, position), self._shared_size(), self._dim)[0]

    def own_masks(self, cohort: Cohort) -> Tensor:
        """The coordinates P_ki of each client in this round, [C, D] (bool)."""
        keys = self._federation.keys(cohort.ids, "fl-ssvrg", cohort.round.number)
        return random_subsets(keys, self._expected[cohort.ids].to(keys.device), self._dim)

    def _epoch(self, round: Round) -> int:
        return (round.number - 1) // int(self.epoch_rounds)

    def _position(self, round: Round) -> int:
        return (round.number - 1) % int(self.epoch_rounds)

    def _shared_key(self, epoch: int, position: int) -> Tensor:
        one_for_all = torch.zeros(1, dtype=torch.int64, device=self._federation.device)
        return client_keys(one_for_all, self._federation.seed, "ssvrg", epoch, position)

    def _shared_size(self) -> Tensor:
        return torch.tensor([self.l], dtype=torch.float64, device=self._federation.device)

    def _stored_sizes(self, epoch: int) -> Tensor:
        """Numbers of shared coordinates tau_k [K - 1] of the rounds k = 1 to K - 1 of an epoch."""
        keys = torch.cat([self._shared_key(epoch, k) for k in range(1, self.epoch_rounds)] or [torch.empty(0).long()])
        return subset_sizes(keys, self._shared_size().expand(len(keys)))

    def _stored_columns(self, epoch: int, position: int) -> slice:
        """The columns of a client's row in the store that hold ``P_k^T G_i`` of round k = ``position``."""
        if self._ends[0] != epoch:  # K draws: once an epoch, not once a round
            self._ends = (epoch, self._stored_sizes(epoch).cumsum(0).tolist())
        ends = self._ends[1]
        return slice(ends[position - 2] if position > 1 else 0, ends[position - 1])
