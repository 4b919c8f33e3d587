"""Pictures of the simulated system: what the clients of a round do when, and how fast all clients are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jsonargparse.typing import PositiveInt
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_number
from lfl.callbacks.pictures import Pictures
from lfl.federation import Federation
from lfl.round import Round
from lfl.system import ClientTimes, Speeds, Unreliable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PARTS = {"download": "tab:blue", "compute": "tab:green", "upload": "tab:orange"}


@dataclass(frozen=True)
class Timeline:
    """The rows that are drawn of a round: one for each client that was sent the model, the fastest first.

    Attributes:
        ids: of the clients [M].
        times: what they spend their seconds on, [M] each; computing takes infinitely long for one that drops out.
        fates: ``answers``, ``late``, ``dropped``, or ``not needed`` where the server had enough answers before.
    """

    ids: Tensor
    times: ClientTimes
    fates: list[str]


class SystemPictures(Pictures):
    """Draws each client's download, computing and upload in a round as bars, and a histogram of all clients' seconds.

    Files ``pictures/round_ROUND.png`` and ``pictures/speeds_ROUND.png``; ``timeline`` has the numbers of the former.
    Participants' bars are of the bits that were sent, by the ledger; those of clients that sent nothing (late, or not
    among the first) of what is expected. A bar of one that drops out ends where the round does, and is hatched.

    Args:
        every_n_rounds: rounds between pictures; one is drawn of the last round in any case.
        max_clients: how many bars are drawn, those of the fastest.
        bins: of the histogram.

    Raises:
        ValueError: the run has no ``system`` that knows how fast clients are.
    """

    is_unique = True

    def __init__(self, every_n_rounds: PositiveInt = 50, max_clients: PositiveInt = 50, bins: PositiveInt = 30) -> None:
        for name, value in (("every_n_rounds", every_n_rounds), ("max_clients", max_clients), ("bins", bins)):
            check_number("SystemPictures", name, value, least=1, whole=True)
        self.every_n_rounds = every_n_rounds
        self.max_clients = max_clients
        self.bins = bins

    synchronous = True  # a round begins when all its clients are sent the model

    @override
    def on_run_start(self, federation: Federation) -> None:
        super().on_run_start(federation)
        if not isinstance(federation.system, Speeds):
            raise ValueError(
                "SystemPictures draws clients' times: it needs a `trainer.system` that knows them, such as "
                "`lfl.system.ExponentialSpeeds`."
            )
        self._system = federation.system

    @override
    def on_round_end(self, round: Round) -> None:
        self._round = round
        super().on_round_end(round)

    def timeline(self, round: Round) -> Timeline:
        """The times of the clients of a round, at its end."""
        ids, ledger, seed = round.invited, self._federation.ledger, self._federation.seed
        # What is expected; for participants what they have sent, which the sums of the round have in their places.
        times = self._system.client_times(ids, None, round.number, seed, ledger.received_bits.double())
        sent = round.totals.uplink_bits
        places = torch.searchsorted(ids, round.clients)
        if sent is not None:
            received = ledger.received_bits[places].double()
            own = self._system.client_times(round.clients, sent.cpu(), round.number, seed, received)
            for whole, part in (
                (times.download, own.download),
                (times.compute, own.compute),
                (times.upload, own.upload),
            ):
                whole[places] = part
        fates = np.full(len(ids), "not needed", dtype=object)
        for name, some in (("answers", round.clients), ("late", round.late)):
            fates[torch.searchsorted(ids, some).numpy()] = name
        fates[times.compute.isinf().numpy()] = "dropped"
        order = times.total.argsort(stable=True)
        sorted_times = ClientTimes(times.download[order], times.compute[order], times.upload[order])
        return Timeline(ids[order], sorted_times, [str(fate) for fate in fates[order.numpy()]])

    @override
    def draw(self, number: int) -> None:
        if len(self._round.invited):
            self._draw_round(number)
        self._draw_speeds(number)

    def _draw_round(self, number: int) -> None:
        from matplotlib.figure import Figure  # not pyplot, which would keep the figure, and may ask for a display

        found = self.timeline(self._round)
        shown = slice(0, self.max_clients)
        deadline = self._deadline()
        finite = found.times.total[found.times.total.isfinite()]
        end = max([*finite.tolist(), *([] if deadline is None else [deadline])], default=1.0)
        rows = np.arange(len(found.ids[shown]))
        figure = Figure(figsize=(9, 1.5 + 0.18 * max(len(rows), 8)), layout="constrained")
        axes = figure.add_subplot()
        start = np.zeros(len(rows))
        for name, colour in _PARTS.items():
            seconds = getattr(found.times, name)[shown].numpy()
            width = np.minimum(seconds, end - start)  # of one that drops out, up to the end of the picture
            bars = axes.barh(rows, width, left=start, color=colour, label=name)
            for bar, fate in zip(bars, found.fates[shown], strict=True):
                bar.set(alpha=1.0 if fate == "answers" else 0.35, hatch="///" if fate == "dropped" else "")
            start = start + width
        self._label_rows(axes, found, shown)
        if deadline is not None:
            axes.axvline(deadline, color="black", ls="--", label="deadline")
        axes.set(xlabel="simulated seconds", title=f"round {number}", xlim=(0, 1.05 * end or 1.0))
        figure.legend(fontsize=8, loc="outside right upper")
        self.show(figure, "round", number)

    def _label_rows(self, axes: Axes, found: Timeline, shown: slice) -> None:
        texts = [
            f"{client}" if fate == "answers" else f"{client} ({fate})"
            for client, fate in zip(found.ids[shown].tolist(), found.fates[shown], strict=True)
        ]
        axes.set_yticks(range(len(texts)), texts, fontsize=7)
        axes.invert_yaxis()  # the fastest on top
        hidden = len(found.ids) - len(texts)
        axes.set_ylabel("client" if not hidden else f"client ({hidden} slower ones not shown)")

    def _draw_speeds(self, number: int) -> None:
        from matplotlib.figure import Figure

        everybody = torch.arange(self._federation.num_clients)
        everybody = everybody[self._federation.data.client_sizes > 0]
        # Also of those that drop out: they have a speed.
        speeds = self._system.speeds if isinstance(self._system, Unreliable) else self._system
        seconds = speeds.client_seconds(everybody, None, number, self._federation.seed)
        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.add_subplot()
        axes.hist(seconds.numpy(), bins=self.bins, color="tab:green")
        deadline = self._deadline()
        if deadline is not None:
            axes.axvline(deadline, color="black", ls="--", label="deadline")
            axes.legend(fontsize=8)
        axes.set(xlabel="expected seconds", ylabel="clients", title=f"speeds of {len(seconds)} clients, round {number}")
        self.show(figure, "speeds", number)

    def _deadline(self) -> float | None:
        return self._system.deadline if isinstance(self._system, Unreliable) else None
