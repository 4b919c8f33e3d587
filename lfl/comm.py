"""The wire: everything that would cross a network passes here and is counted, in bits, by the code that carries it."""

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def dense_bits(value: Tensor) -> int:
    """Bits of ``value`` sent as it is."""
    return value.numel() * value.element_size() * 8


@dataclass(frozen=True)
class Payload:
    """The encoded updates of C clients.

    Attributes:
        values: ``[C, n]``, what the server will see.
        bits: what each client's encoding needs, ``[C]`` or one number for all.
    """

    values: Tensor
    bits: int | Tensor

    @classmethod
    def dense(cls, values: Tensor) -> "Payload":
        """Rows sent as they are."""
        return cls(values, dense_bits(values[0]) if len(values) else 0)

    def bits_per_client(self) -> Tensor:
        """Bits of each client [C]."""
        return self.bits if isinstance(self.bits, Tensor) else torch.full((len(self.values),), self.bits)

    def total_bits(self) -> int:
        """Bits of all clients together."""
        return int(self.bits.sum()) if isinstance(self.bits, Tensor) else self.bits * len(self.values)


class Message:
    """What the clients of a round learn from the server: named payloads that are sent, and what both sides derive.

    A payload is a piece of server state, such as the model. A client that kept the last one it received can be brought
    up to date by the increments it missed; it is charged for those or for the whole, whichever is less. What a client
    can compute by itself, from the seed or from what it was sent before, is derived, and costs nothing more.

    Clients know of the server what is in ``contents``, and nothing else: hooks of a cohort read ``cohort.received``.

    Attributes:
        payloads: what is sent, by name; the model is among them.
        derived: what clients compute from other things they know, by name.
        charges: bits [M] of payloads whose cost the ledger cannot know, by name.
    """

    def __init__(self) -> None:
        self.payloads: dict[str, Tensor] = {}
        self.derived: dict[str, Tensor] = {}
        self.charges: dict[str, Tensor] = {}

    @property
    def contents(self) -> Mapping[str, Tensor]:
        """All that is known to the clients, by name."""
        return ChainMap(self.payloads, self.derived)

    def add(self, name: str, value: Tensor) -> None:
        """Send ``value`` (the same for all clients) under ``name``.

        Raises:
            ValueError: there is something of that name.
        """
        self._check_free(name)
        self.payloads[name] = value

    def derive(self, name: str, value: Tensor) -> None:
        """Tell clients what they compute alike: from the seed, from payloads, or from those of earlier rounds.

        Say in a comment from what, and see to it that this was charged.

        Raises:
            ValueError: there is something of that name.
        """
        self._check_free(name)
        self.derived[name] = value

    def replace(self, name: str, value: Tensor) -> None:
        """Send ``value`` instead of what is there under ``name``."""
        self.payloads[name] = value

    def charge(self, name: str, bits: Tensor) -> None:
        """Say what payload ``name`` costs each of ``round.invited`` (int64), instead of what the ledger knows."""
        self.charges[name] = bits

    def _check_free(self, name: str) -> None:
        if name in self.contents:
            raise ValueError(f"Two callbacks send a payload named {name!r}; names must be unique.")


class Ledger:
    """Counts what crosses the wire, per direction and payload; knows what each client last received.

    Increments: after a round the server may say what a client would need to bring its copy of a payload up to date
    (``record_increment``): r floats for a model that moved in a known subspace. Without one, the whole is charged.

    Args:
        num_clients: N.

    Attributes:
        shared: mask [D] of the parameters that are sent; None where all are. See ``keep_on_clients``.
        last_round: the round in which each client last took part [N]; 0 for never.
        totals: bits of all rounds, by direction.
        up_bits: bits of this round's uploads, by payload.
        down_bits: bits of this round's downloads, by payload.
    """

    def __init__(self, num_clients: int) -> None:
        self.shared: Tensor | None = None
        # The round in which a client last took part (0: never): it then held the state from before that round.
        self.last_round = torch.zeros(num_clients, dtype=torch.int64)
        self._seen: list[Tensor] = []  # ids of all who ever did: a checkpoint is about them, not about N
        self.totals = {"up": 0, "down": 0}
        self.up_bits: dict[str, int] = {}
        self.down_bits: dict[str, int] = {}
        self._replay: dict[str, list[int]] = {}  # _replay[name][t]: bits of all increments of rounds 1..t

    def keep_on_clients(self, mask: Tensor) -> None:
        """Say which parameters never leave a client, a mask [D]: payloads of D numbers are sent without them."""
        self.shared = ~mask

    def start_round(self) -> None:
        """Forget the counts of the last round."""
        self.up_bits = {}
        self.down_bits = {}

    def download(self, message: Message, clients: Tensor, round_number: int) -> None:
        """Charge ``clients`` [M] for ``message``, catch-up included."""
        last = self.last_round[clients].tolist()
        for name, value in message.payloads.items():
            if name in message.charges:
                self.down_bits[name] = int(message.charges[name].sum())
            else:
                self.down_bits[name] = self._bits_to_follow(name, self.bits_of(value), last, round_number)
        if 0 in last:
            self._seen.append(clients[self.last_round[clients] == 0])
        self.last_round[clients] = round_number

    def bits_of(self, value: Tensor) -> int:
        """Bits of one vector sent as it is."""
        if self.shared is None or value.numel() != self.shared.numel():
            return dense_bits(value)
        return int(self.shared.sum()) * value.element_size() * 8

    def upload(self, name: str, payload: Payload) -> None:
        """Charge the clients of a cohort for their upload."""
        self.up_bits[name] = self.up_bits.get(name, 0) + payload.total_bits()

    def close_round(self, up_bits: dict[str, int]) -> None:
        """End a round with the uploads of all processes."""
        self.up_bits = up_bits
        self.totals["up"] += sum(self.up_bits.values())
        self.totals["down"] += sum(self.down_bits.values())

    def record_increment(self, name: str, bits: int, round_number: int) -> None:
        """Say what round ``round_number`` changed in payload ``name``, as bits per client that wants to follow."""
        cumulative = self._replay.setdefault(name, [0])
        if len(cumulative) != round_number:
            raise ValueError(f"Increments of {name!r} must be recorded every round.")
        cumulative.append(cumulative[-1] + bits)

    def bits_since(self, name: str, rounds: Tensor) -> Tensor:
        """Bits of all increments of payload ``name`` recorded after rounds [M] (0 for all of them), [M] (int64)."""
        cumulative = torch.tensor(self._replay[name])
        return cumulative[-1] - cumulative[rounds]

    def metrics(self) -> dict[str, float]:
        """Bytes of the last round and of all rounds, for the log."""
        result = {}
        for direction, counts in (("up", self.up_bits), ("down", self.down_bits)):
            result[f"comm/{direction}_bytes"] = sum(counts.values()) / 8
            result[f"comm/total_{direction}_bytes"] = self.totals[direction] / 8
        return result

    def state_dict(self) -> dict[str, Any]:
        """Everything, for a checkpoint."""
        replay = {name: torch.tensor(values) for name, values in self._replay.items()}
        seen = torch.cat([torch.empty(0, dtype=torch.int64), *self._seen])
        self._seen = [seen]
        last_round = {"clients": seen, "rounds": self.last_round[seen]}
        return {"last_round": last_round, "totals": dict(self.totals), "replay": replay}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of ``state_dict``."""
        saved = state["last_round"]
        self._seen = [saved["clients"]]
        self.last_round.zero_()[saved["clients"]] = saved["rounds"]
        self.totals = dict(state["totals"])
        self._replay = {name: values.tolist() for name, values in state["replay"].items()}

    def _bits_to_follow(self, name: str, whole: int, last: list[int], round_number: int) -> int:
        """Bits that bring clients up to date who took part last in these rounds: the whole to those who never did."""
        if name not in self._replay:
            return whole * len(last)
        cumulative = self._replay[name]
        now = cumulative[round_number - 1]
        return sum(min(whole, now - cumulative[t - 1]) if t else whole for t in last)
