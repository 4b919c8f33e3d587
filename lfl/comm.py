"""The wire: everything that would cross a network passes here and is counted, in bits, by the code that carries it."""

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def dense_bits(value: Tensor) -> int:
    """Number of bits of ``value`` when it is sent uncompressed."""
    return value.numel() * value.element_size() * 8


@dataclass(frozen=True)
class Payload:
    """The encoded updates of C clients.

    Attributes:
        values: the rows [C, n] that the server receives.
        bits: size of each client's encoding in bits: [C], or one number for all.
    """

    values: Tensor
    bits: int | Tensor

    @classmethod
    def dense(cls, values: Tensor) -> "Payload":
        """Return a payload of rows [C, n] that are sent uncompressed."""
        return cls(values, dense_bits(values[0]) if len(values) else 0)

    def bits_per_client(self) -> Tensor:
        """Bits of each client [C]."""
        return self.bits if isinstance(self.bits, Tensor) else torch.full((len(self.values),), self.bits)

    def total_bits(self) -> int:
        """Bits of all clients together."""
        return int(self.bits.sum()) if isinstance(self.bits, Tensor) else self.bits * len(self.values)


class _Contents(ChainMap[str, Tensor]):
    def __missing__(self, key: str) -> Tensor:
        advice = "`on_download` adds what clients are to know"
        known = ", ".join(sorted(self))
        raise KeyError(f"The round's message has no {key!r}; it has {known}; {advice}.")


class Message:
    """All that a round's clients learn from the server: payloads that are sent, and tensors that both sides derive.

    A payload is a piece of server state, such as the model. A client that kept the last one it received can be brought
    up to date by the increments it missed; it is charged for those or for the whole, whichever is less. What a client
    can compute by itself, from the seed or from what it was sent before, is derived, and costs nothing more.

    ``contents`` is all that clients know of the server: hooks of a cohort read it as ``cohort.received``.

    Attributes:
        payloads: tensors that are sent, by name; the model is among them.
        derived: tensors that clients compute from the seed or from payloads, by name.
        charges: bits [M] of those payloads whose cost a callback has set (``charge``), by name.
    """

    def __init__(self) -> None:
        self.payloads: dict[str, Tensor] = {}
        self.derived: dict[str, Tensor] = {}
        self.charges: dict[str, Tensor] = {}

    @property
    def contents(self) -> Mapping[str, Tensor]:
        """All that clients know of the server, by name: what is sent and what is derived."""
        return _Contents(self.payloads, self.derived)

    def add(self, name: str, value: Tensor) -> None:
        """Send ``value`` (the same for all clients) under ``name``.

        Raises:
            ValueError: the name is taken.
        """
        self._check_free(name)
        self.payloads[name] = value

    def derive(self, name: str, value: Tensor) -> None:
        """Add a tensor that every client computes by itself; nothing is charged for it.

        It must follow from the seed, or from payloads of this or earlier rounds. Say in a comment from which, and make
        sure that those were charged.

        Raises:
            ValueError: the name is taken.
        """
        self._check_free(name)
        self.derived[name] = value

    def replace(self, name: str, value: Tensor) -> None:
        """Send ``value`` instead of the payload that has this name."""
        self.payloads[name] = value

    def charge(self, name: str, bits: Tensor) -> None:
        """Set the bits [M] (int64) of payload ``name`` for each of ``round.invited``, instead of the ledger's count."""
        self.charges[name] = bits

    def _check_free(self, name: str) -> None:
        if name in self.contents:
            raise ValueError(f"Two callbacks send a payload named {name!r}; names must be unique.")


@dataclass(frozen=True)
class Sent:
    """The tensors that the clients of a round were sent, and those that they derive from them.

    Attributes:
        server: x [D].
        contents: the contents of the round's message, by name.
    """

    server: Tensor
    contents: Mapping[str, Tensor]


class Outbox:
    """All that was sent to clients that are still at work, by the round in which it was; one copy for all of a round.

    Args:
        device: of the tensors.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sent: dict[int, Sent] = {}

    def of(self, rounds: Tensor | None) -> dict[int, Sent]:
        """All that was sent in those of ``rounds`` [M] that are over, by round; nothing for None."""
        wanted = set() if rounds is None else set(rounds.tolist())
        return {number: sent for number, sent in self._sent.items() if number in wanted}

    def keep(self, round_number: int, sent: Sent, awaited: list[int]) -> None:
        """Keep what is sent in a round if clients are at work on it after the round; forget what nobody is at work on.

        Args:
            round_number: of the round.
            sent: what its clients are sent.
            awaited: the rounds of whose model clients are at work when this one has ended.
        """
        if round_number in awaited:
            # Copies: what is sent may be state that changes in place when the round ends.
            contents = {name: value.clone() for name, value in sent.contents.items()}
            self._sent[round_number] = Sent(sent.server.clone(), contents)
        self._sent = {number: kept for number, kept in self._sent.items() if number in awaited}

    def state_dict(self) -> dict[str, Any]:
        """All that was sent in each round, on the CPU, for a checkpoint."""
        return {
            "rounds": [
                {
                    "number": number,
                    "server": sent.server.cpu(),
                    "contents": {name: value.cpu() for name, value in sent.contents.items()},
                }
                for number, sent in self._sent.items()
            ]
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of ``state_dict``."""
        self._sent = {
            saved["number"]: Sent(
                saved["server"].to(self._device),
                {name: value.to(self._device) for name, value in saved["contents"].items()},
            )
            for saved in state["rounds"]
        }


class Ledger:
    """Counts the bits that cross the wire, per direction and payload, and knows when each client last took part.

    After a round a callback may record an increment (``record_increment``): the bits that bring a client's copy of a
    payload up to date, such as R floats for a model that moved in a known subspace. A client is then charged for the
    increments it missed, at most for the whole payload. Without increments the whole is charged.

    Args:
        num_clients: number of clients in the federation (N).

    Attributes:
        shared: mask [D] of the parameters that are sent; None if all are. See ``keep_on_clients``.
        last_round: the round in which each client last took part [N]; 0 for never.
        totals: bits of all rounds so far, by direction.
        up_bits: bits of this round's uploads, by payload.
        down_bits: bits of this round's downloads, by payload.
        received_bits: bits of this round's downloads, by client [M] (int64), in the order of ``download``.
    """

    def __init__(self, num_clients: int) -> None:
        self.shared: Tensor | None = None
        # A client that last took part in round t holds the server's state from before round t.
        self.last_round = torch.zeros(num_clients, dtype=torch.int64)
        # Ids of all clients that ever took part, so that the size of a checkpoint does not grow with N.
        self._seen: list[Tensor] = []
        self.totals = {"up": 0, "down": 0}
        self.up_bits: dict[str, int] = {}
        self.down_bits: dict[str, int] = {}
        self.received_bits = torch.empty(0, dtype=torch.int64)
        self._replay: dict[str, list[int]] = {}  # _replay[name][t]: bits of all increments of rounds 1..t

    def keep_on_clients(self, mask: Tensor) -> None:
        """Declare which parameters never leave a client, a mask [D]: payloads of D numbers are charged without them."""
        self.shared = ~mask

    def start_round(self) -> None:
        """Set the counts of the round to zero."""
        self.up_bits = {}
        self.down_bits = {}

    def download(self, message: Message, clients: Tensor, round_number: int) -> None:
        """Charge ``clients`` [M] for ``message``, including what they missed since they last took part."""
        last = self.last_round[clients].tolist()
        self.received_bits = torch.zeros(len(clients), dtype=torch.int64)
        for name, value in message.payloads.items():
            bits = message.charges.get(name)
            if bits is None:
                bits = self._bits_to_follow(name, self.bits_of(value), last, round_number)
            self.down_bits[name] = int(bits.sum())
            self.received_bits += bits.cpu()
        if 0 in last:
            self._seen.append(clients[self.last_round[clients] == 0])
        self.last_round[clients] = round_number

    def bits_of(self, value: Tensor) -> int:
        """Number of bits of one tensor sent uncompressed, without the parameters that stay on the clients."""
        if self.shared is None or value.numel() != self.shared.numel():
            return dense_bits(value)
        return int(self.shared.sum()) * value.element_size() * 8

    def upload(self, name: str, payload: Payload) -> None:
        """Charge the clients of a cohort for an upload."""
        self.up_bits[name] = self.up_bits.get(name, 0) + payload.total_bits()

    def close_round(self, up_bits: dict[str, int]) -> None:
        """Add the round to the totals. ``up_bits`` are the uploads of all processes, by payload."""
        # Downloads need no joining: every process charges all clients of the round, not only its own.
        self.up_bits = up_bits
        self.totals["up"] += sum(self.up_bits.values())
        self.totals["down"] += sum(self.down_bits.values())

    def record_increment(self, name: str, bits: int, round_number: int) -> None:
        """Record the bits, per client, that bring payload ``name`` from before round ``round_number`` to after it.

        Raises:
            ValueError: an earlier round was left out.
        """
        cumulative = self._replay.setdefault(name, [0])
        if len(cumulative) != round_number:
            raise ValueError(f"Increments of {name!r} must be recorded every round.")
        cumulative.append(cumulative[-1] + bits)

    def bits_since(self, name: str, rounds: Tensor) -> Tensor:
        """Bits [M] (int64) of the increments of payload ``name`` after each of ``rounds`` [M]; round 0 gives all."""
        cumulative = torch.tensor(self._replay[name])
        return cumulative[-1] - cumulative[rounds]

    def metrics(self) -> dict[str, float]:
        """Bytes of the last round, in all and by payload, and of all rounds, for the log."""
        result = {}
        for direction, counts in (("up", self.up_bits), ("down", self.down_bits)):
            result[f"comm/{direction}_bytes"] = sum(counts.values()) / 8
            result[f"comm/total_{direction}_bytes"] = self.totals[direction] / 8
            result |= {f"comm/{direction}_bytes/{name}": bits / 8 for name, bits in sorted(counts.items())}
        return result

    def state_dict(self) -> dict[str, Any]:
        """The counts and the rounds in which clients last took part, for a checkpoint."""
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

    def _bits_to_follow(self, name: str, whole: int, last: list[int], round_number: int) -> Tensor:
        """Bits that bring each client up to date [M] (int64), from the round in which it last took part (0: never).

        Args:
            name: the payload.
            whole: bits of the whole payload.
            last: for each client the round in which it last took part.
            round_number: the present round.
        """
        if name not in self._replay:
            return torch.full((len(last),), whole)
        cumulative = self._replay[name]
        # Increments up to the round before this one have been made. Of those, a client of round t lacks t, t + 1, ...
        now = cumulative[round_number - 1]
        return torch.tensor([min(whole, now - cumulative[t - 1]) if t else whole for t in last], dtype=torch.int64)
