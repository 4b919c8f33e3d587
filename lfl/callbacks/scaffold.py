"""SCAFFOLD: control variates against client drift.

S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh, "SCAFFOLD: Stochastic Controlled Averaging
for Federated Learning", ICML 2020, https://arxiv.org/abs/1910.06378. Line numbers are those of its Algorithm 1.
"""

from typing import Any, Literal

import torch
from torch import Tensor
from typing_extensions import override

from lfl.callback import FederatedCallback, Gradient
from lfl.client.step import LocalStep
from lfl.comm import Message
from lfl.federation import Federation
from lfl.round import Cohort, Round

_SLOT = "scaffold/control"

ControlUpdate = Literal["increment", "sampled_mean", "one_over_N"]


class Scaffold(FederatedCallback):
    """Corrects every local gradient by ``c - c_i`` (line 10): c estimates the mean gradient, c_i the client's own.

    Option II (line 12): ``c_i+ = c_i - c - delta_i / (K eta)``; with momentum or a schedule inside the round, K eta is
    what the optimizer makes of a constant unit gradient. Option I: ``c_i+`` is the gradient of the client's mean loss
    at x over all its data, with weight decay; it costs one more pass over the data. The server adds
    ``(1/N) sum (c_i+ - c_i)`` over the participants (line 17), where N counts all clients that have data; this keeps
    ``c = mean c_i``. Stated for the mean over clients.

    State: c [D]; c_i [D] for every client seen so far. Wire: x and c down, delta_i and the change of c_i up.

    Args:
        option: I or II of line 12.
        control_update: ``increment`` is line 17. The other two replace c by the sum of the participants' new controls,
            divided by their number (``sampled_mean``) or by N (``one_over_N``). They do not keep c = mean c_i, and
            exist for comparison.
    """

    weighting = "uniform"
    sends_more = True

    def __init__(self, option: Literal["I", "II"] = "II", control_update: ControlUpdate = "increment") -> None:
        self.option = option
        self.control_update = control_update
        self.whole_model = option == "I"  # its controls are gradients of all parameters
        self.control = torch.empty(0)

    @override
    def on_run_start(self, federation: Federation) -> None:
        self._store = federation.store
        self._num_clients = federation.num_joining
        self._store.declare(_SLOT, federation.layout.dim, federation.layout.dtype)
        self.control = torch.zeros_like(federation.server.vector)

    @override
    def on_download(self, message: Message) -> None:
        message.add("control", self.control)

    @override
    def on_cohort_start(self, cohort: Cohort) -> None:
        client_controls = self._store.gather(_SLOT, cohort.ids)  # c_i [C, D], zero before the first participation
        cohort.rows["control"] = client_controls
        cohort.rows["correction"] = cohort.received["control"] - client_controls

    @override
    def wrap_gradient(self, cohort: Cohort, gradient: Gradient) -> Gradient:
        correction = cohort.rows["correction"]

        def corrected(params: Tensor, step: LocalStep) -> Tensor:
            return gradient(params, step).add_(correction[: len(params)])

        return corrected

    @override
    def on_cohort_end(self, cohort: Cohort) -> None:
        client_controls = cohort.rows["control"]
        if self.option == "I":
            change = self._gradient_at_server(cohort) - client_controls
        else:
            # c_i+ - c_i. Minus delta, as the paper has x - y_i (line 12) and delta is y_i - x.
            change = -cohort.received["control"] - cohort.delta / cohort.step_scale()
        self._store.scatter(_SLOT, cohort.ids, client_controls + change)
        if self.control_update != "increment":
            # The server can add up c_i from the changes it was sent in earlier rounds: nothing more is charged.
            cohort.round.accumulate("scaffold/control", (client_controls + change).sum(dim=0, dtype=torch.float64))
        cohort.upload("control", change)

    @override
    def on_server_step(self, round: Round) -> None:
        if not round.num_reported:
            return
        divisor = round.num_reported if self.control_update == "sampled_mean" else self._num_clients
        if self.control_update == "increment":
            self.control = self.control + (round.received["control"] / divisor).to(self.control.dtype)
        else:
            self.control = (round.sums["scaffold/control"] / divisor).to(self.control.dtype)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"control": self.control.cpu()}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.control = state_dict["control"].to(self.control)

    def _gradient_at_server(self, cohort: Cohort) -> Tensor:
        """Gradients [C, D] of the clients' mean losses at x; with weight decay, which local steps contain too."""
        params = cohort.start
        gradients = cohort.full_gradient(params)
        decay = cohort.optimizer.weight_decay()
        return gradients if decay is None else gradients + decay * params
