"""Random numbers with an address: every draw is a pure function of (seed, purpose, round, client, position).

Nothing here has state, so a client's draws cannot depend on who was trained before it, on the cohort it is trained in,
on the engine, or on the number of processes. Draws for many clients are one tensor operation: a key per client, [C],
gives uniforms [C, n].

The generator is a counter-based hash: SplitMix64's finaliser over (key, counter), on 64-bit integers, which wrap
around in the same way on every device.
"""

import hashlib
import math
from collections.abc import Callable

import torch
from torch import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB
_AT_A_TIME = 2**16  # draws of a CPU, of which all steps then stay in its cache


def derive_seed(*address: int | str) -> int:
    """A 63-bit integer from an address such as ``(seed, "participation", round)``; equal on every machine."""
    # Python's own `hash` of strings differs between processes; a shift by one keeps the result a signed 64-bit integer.
    digest = hashlib.blake2b(repr(address).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def generator(*address: int | str) -> torch.Generator:
    """A CPU generator seeded by an address, for draws that are made once per round (a basis, a partition)."""
    return torch.Generator().manual_seed(derive_seed(*address))


def client_keys(ids: Tensor, *address: int | str) -> Tensor:
    """One 64-bit key per client, [C], from a shared address and the clients' ids [C] (int64)."""
    return _mix(_mix(ids + 1) ^ derive_seed(*address))


def fold(keys: Tensor, data: int | Tensor) -> Tensor:
    """New keys of the same shape, for a part of the address that follows (a step, an epoch, the n-th call)."""
    # `data` is mixed before the xor: a small number would flip the lowest bits only, where two clients' keys may meet.
    return _mix(keys ^ _mix(torch.as_tensor(data, device=keys.device) + 1))


def random_bits(keys: Tensor, count: int) -> Tensor:
    """Non-negative 63-bit integers of shape ``keys.shape + (count,)``."""
    return _drawn(keys, count, lambda bits: bits)


def uniform(keys: Tensor, count: int, dtype: torch.dtype = torch.float32, first: int = 0) -> Tensor:
    """Numbers in [0, 1) of shape ``keys.shape + (count,)``, with 24 random bits (53 for float64).

    Args:
        keys: the keys.
        count: how many for each.
        dtype: of the numbers.
        first: the position of the first of them among those of its key.
    """
    kept = 53 if dtype == torch.float64 else 24
    # All integers of 24 or 53 bits are exact in float32 or float64: nothing is rounded up to 1.
    return _drawn(keys, count, lambda bits: ((bits >> (63 - kept)).to(torch.float64) * 2.0**-kept).to(dtype), first)


def at_a_time(keys: Tensor, count: int) -> int:
    """Number of positions, of ``count``, to draw for at once, so that what is done with the draws stays in a cache."""
    return max(1, count if keys.device.type != "cpu" else _AT_A_TIME // max(1, keys.numel()))


def _drawn(keys: Tensor, count: int, finish: Callable[[Tensor], Tensor], first: int = 0) -> Tensor:
    """``finish`` of 63 random bits for each key and position, from ``first`` on."""
    counter = torch.arange(first + 1, first + count + 1, device=keys.device) * _GOLDEN
    pieces = counter.split(at_a_time(keys, count))
    parts = [finish(_mix(keys.unsqueeze(-1) + part) & 0x7FFFFFFFFFFFFFFF) for part in pieces]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def normal(keys: Tensor, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal numbers of shape ``keys.shape + (count,)``, by the transformation of Box and Muller."""
    # The logarithm is taken of 1 - u, which is never 0, while u may be. In float64, whatever the type of the result:
    # 1 - u of float32 numbers has gaps of 6e-8, which would cut off the tail of the distribution.
    first, second = uniform(keys, 2 * count, torch.float64).split(count, dim=-1)
    drawn: Tensor = (-2.0 * (1.0 - first).log()).sqrt() * (2.0 * math.pi * second).cos()
    return drawn.to(dtype)


def _mix(value: Tensor) -> Tensor:
    """SplitMix64's finaliser, a bijection on 64-bit integers."""
    value = value + _GOLDEN
    value = (value ^ _shift(value, 30)) * _MIX_1
    value = (value ^ _shift(value, 27)) * _MIX_2
    return value ^ _shift(value, 31)


def _shift(value: Tensor, bits: int) -> Tensor:
    """Logical right shift: torch's ``>>`` copies the sign bit, which the mask removes."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)
