"""Hooks, called: what they return and leave behind is checked, so that an error names the callback that made it.

A tensor of a wrong shape is often no error to torch, which repeats it until it fits; and a number that is not finite
would be found a round later, in clients that were sent it. All checks are made once a cohort or a round, not at every
step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lfl.callback import FederatedCallback, Gradient
from lfl.client.step import LocalStep
from lfl.comm import Payload
from lfl.round import Cohort, Round


class NonFiniteUpdateError(RuntimeError):
    """An update has NaN or inf: a client's, where ``on_nonfinite`` is ``stop``, or what was made of the clients'."""


# -- one client and cohort ------------------------------------------------------------------------------------------


def change_batch(owner: FederatedCallback, cohort: Cohort, rows: slice | Tensor, batch: Any) -> Any:
    """Call ``change_batch``; raises ValueError if it returned nothing."""
    changed = owner.change_batch(cohort, rows, batch)
    if changed is None:
        raise ValueError(f"`{_name(owner)}.change_batch` must return the batch, got None.")
    return changed


def checked_gradient(owner: FederatedCallback, gradient: Gradient) -> Gradient:
    """Return ``gradient``, which ``wrap_gradient`` of ``owner`` returned, with a check of what its first call returns.

    Raises:
        ValueError: (the function) the gradients have another shape than the parameters.
    """
    is_checked = False

    def checked(params: Tensor, step: LocalStep) -> Tensor:
        nonlocal is_checked
        gradients = gradient(params, step)
        if not is_checked:
            check_tensor(owner, "wrap_gradient", "the gradients", gradients, params.shape)
            is_checked = True
        return gradients

    return checked


def check_rows(owners: list[FederatedCallback], cohort: Cohort) -> None:
    """Check that the local optimizer has stepped the rows that the cohort has.

    Args:
        owners: the callbacks that might have put others in their place.
        cohort: a cohort that has been trained.

    Raises:
        ValueError: ``cohort.values`` is another tensor, so that the steps were lost.
    """
    if cohort.values is not cohort.optimizer.values:
        names = " or ".join(f"`{type(owner).__name__}`" for owner in owners)
        raise ValueError(
            f"{names} has replaced `cohort.values`, of shape {tuple(cohort.optimizer.values.shape)}, by another tensor "
            f"of shape {tuple(cohort.values.shape)} in a local step, which the optimizer does not step: change it in "
            "place, as in `on_step_end`: `cohort.values.mul_(0.9)`."
        )


def end_cohort(owner: FederatedCallback, cohort: Cohort) -> None:
    """Call ``on_cohort_end``.

    Raises:
        ValueError: it left other shapes of ``cohort.values`` or ``cohort.uploads`` than there must be, or an upload of
            another callback's name.
    """
    shape, before = cohort.values.shape, dict(cohort.uploads)
    _call(owner, "on_cohort_end", cohort)
    check_tensor(owner, "on_cohort_end", "`cohort.values`", cohort.values, shape)
    for name, rows in cohort.uploads.items():
        if name in before and rows is not before[name]:
            raise ValueError(f"`{_name(owner)}.on_cohort_end` uploads {name!r}, which another callback has uploaded.")
        if not isinstance(rows, Tensor) or not rows.dim() or len(rows) != len(cohort):
            check_tensor(owner, "on_cohort_end", f"the upload {name!r}", rows, [len(cohort), "..."])
        bits = cohort.upload_bits.get(name)
        if bits is not None:
            check_tensor(owner, "on_cohort_end", f"the bits of the upload {name!r}", bits, [len(cohort)])


def encode(owner: FederatedCallback, cohort: Cohort, payload: Payload) -> Payload:
    """Call ``encode``.

    Raises:
        ValueError: it returned no payload of one row for each client.
    """
    encoded = owner.encode(cohort, payload)
    if not isinstance(encoded, Payload):
        raise ValueError(f"`{_name(owner)}.encode` must return a `Payload`, got {_kind(encoded)}.")
    values, count = encoded.values, len(cohort)
    if not isinstance(values, Tensor) or values.dim() != 2 or len(values) != count:
        check_tensor(owner, "encode", "`Payload.values`", values, [count, "n"])
    if isinstance(encoded.bits, Tensor):
        check_tensor(owner, "encode", "`Payload.bits`", encoded.bits, [count])
    return encoded


def check_sent(owners: list[FederatedCallback], cohort: Cohort, rows: Tensor) -> None:
    """Check that the rows [C, n] that clients send are finite; before their callbacks' hooks they were.

    Args:
        owners: the callbacks whose hooks have changed them.
        cohort: the clients.
        rows: what arrives of them.

    Raises:
        NonFiniteUpdateError: names the callbacks and the clients.
    """
    if not owners or is_finite(rows):
        return
    clients = cohort.ids[~torch.isfinite(rows).all(dim=1).cpu()].tolist()
    hooks = " or ".join(f"`{_name(owner)}`" for owner in dict.fromkeys(owners))
    raise NonFiniteUpdateError(
        f"`on_cohort_end`, `encode` or `decode` of {hooks} has made NaN or inf of the finite update of client(s) "
        f"{', '.join(map(str, clients))} in round {cohort.round.number}."
    )


def personalize(owner: FederatedCallback, ids: Tensor, params: Tensor) -> None:
    """Call ``personalize``; raises ValueError if it returned a tensor instead of writing into ``params``."""
    _call(owner, "personalize", ids, params)


# -- the server -----------------------------------------------------------------------------------------------------


def decode(owner: FederatedCallback, round: Round, values: Tensor, width: int | None) -> Tensor:
    """Call ``decode``.

    Args:
        owner: the codec.
        round: the round.
        values: what arrived [C, n], or its mean [n].
        width: the width that the codec was given when it encoded; None if this process does not know.

    Raises:
        ValueError: it returned another shape.
    """
    decoded = owner.decode(round, values)
    if not isinstance(decoded, Tensor) or width is not None:
        check_tensor(owner, "decode", "the decoded update", decoded, [*values.shape[:-1], width or "n"])
    return decoded


def aggregate(owner: FederatedCallback, round: Round) -> None:
    """Call ``on_aggregate``.

    Raises:
        ValueError: it left a ``round.update`` of another shape.
        NonFiniteUpdateError: it left one that is not finite.
    """
    _call(owner, "on_aggregate", round)
    check_update(f"{_name(owner)}.on_aggregate", "`round.update`", round, round.update, len(round.server))


def check_update(maker: str, what: str, round: Round, update: Any, width: int | None) -> None:
    """Check an update [n] that is made on the server.

    Args:
        maker: what has made it.
        what: what it is.
        round: the round.
        update: the update.
        width: n; None if this process does not know.

    Raises:
        ValueError: it has another shape.
        NonFiniteUpdateError: it is not finite.
    """
    if not isinstance(update, Tensor) or update.dim() != 1 or len(update) != (width or len(update)):
        _refuse(maker, what, update, [width or "n"])
    if not is_finite(update):
        raise NonFiniteUpdateError(
            f"`{maker}` has made NaN or inf of the finite updates of round {round.number}'s clients: {what} is not "
            "finite."
        )


def check_server(owners: list[str], round: Round, vector: Tensor) -> None:
    """Check that the server's model is finite after its step; raises NonFiniteUpdateError, which names ``owners``."""
    if not is_finite(vector):
        raise NonFiniteUpdateError(
            f"{' or '.join(f'`{owner}`' for owner in owners)} has made the server's model NaN or inf in round "
            f"{round.number}, from a finite update: lower its learning rate, or look at what it divides by."
        )


# -- what all use ---------------------------------------------------------------------------------------------------


def is_finite(values: Tensor) -> bool:
    """Whether all ``values`` are finite."""
    # A sum is enough to find that all is well; that of finite values may still overflow, and only then all are looked
    # at.
    return bool(torch.isfinite(values.sum())) or bool(torch.isfinite(values).all())


def check_tensor(owner: FederatedCallback, hook: str, what: str, value: Any, shape: Sequence[int | str]) -> None:
    """Check the shape of what a hook returned or left.

    Raises:
        ValueError: names the callback, the hook and both shapes.
    """
    if not isinstance(value, Tensor) or tuple(value.shape) != tuple(shape):
        _refuse(f"{_name(owner)}.{hook}", what, value, shape)


def _call(owner: FederatedCallback, hook: str, *arguments: Any) -> None:
    """Call a hook whose result nobody reads, and refuse a tensor that it returns."""
    method = getattr(owner, hook)
    result = method(*arguments)
    # A lambda returns what it has done: `lambda self, round: round.update.mul_(2)`.
    if isinstance(result, Tensor | Payload) and getattr(method, "__name__", "") != "<lambda>":
        written = {"on_aggregate": "set `round.update`", "personalize": "write into `params` in place"}
        advice = written.get(hook, "change `cohort.values` in place")
        raise ValueError(f"`{_name(owner)}.{hook}` returned {_kind(result)}, which nobody reads: {advice}.")


def _refuse(maker: str, what: str, value: Any, shape: Sequence[int | str]) -> None:
    wanted = f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
    raise ValueError(f"`{maker}`: {what} must be a tensor of shape {wanted}, got {_kind(value, 'one')}.")


def _kind(value: Any, tensor: str = "a tensor") -> str:
    return f"{tensor} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def _name(owner: FederatedCallback) -> str:
    return type(owner).__name__
