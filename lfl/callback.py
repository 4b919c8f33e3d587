"""The hooks of a federated algorithm.

A callback is written once, against rows: with C clients trained together, parameters and gradients are ``[C, D]``.
Order in the trainer's list has one meaning everywhere: the first callback is nearest to the raw gradient and encodes
first; decoding runs backwards.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from lightning.pytorch import Callback
from torch import Tensor

from lfl.client.layout import ParameterLayout
from lfl.client.step import ClientStep, LocalStep
from lfl.comm import Message, Payload
from lfl.federation import Federation
from lfl.round import Cohort, Round
from lfl.subspace.base import Basis

Gradient = Callable[[Tensor, LocalStep], Tensor]
"""From parameters [A, D] (or coordinates [A, R]) of the A clients still at work, and the step, to their gradients.

The gradients are a new tensor of the same shape.
"""


class FederatedCallback(Callback):
    """Base of all algorithms and diagnostics; every hook is optional, and a hook that is not overridden costs nothing.

    What must survive a restart is in ``state_dict`` (tensors, numbers, strings, lists, dicts) or in a slot of the
    client store. Hooks of a cohort are the clients' side: of the server they know what is in ``cohort.received``.
    Lightning's own ``setup``, ``on_fit_start`` and ``on_fit_end`` are called as well, with the trainer.
    """

    linear: bool = True
    """Whether ``encode`` is linear: then payloads are averaged encoded, and decoded once."""

    features: tuple[str, ...] = ()
    """Submodules whose outputs ``client_loss`` reads from ``client.features``."""

    global_features: tuple[str, ...] = ()
    """Submodules whose outputs at x ``client_loss`` reads from ``client.global_features``: one pass a batch."""

    is_unique: bool = False
    """At most one in a stack."""

    observes: bool = False
    """It only looks: training does not depend on it, and it may come, go or change when a run is resumed."""

    whole_model: bool = False
    """It needs all parameters to be shared, and is refused beside a callback that keeps some on the clients."""

    # -- before a run -------------------------------------------------------------------------------------------------

    def check(self, layout: ParameterLayout) -> None:
        """Raise ValueError if a setting does not fit the model."""

    def check_stack(self, stack: list[FederatedCallback]) -> None:
        """Raise ValueError if this callback cannot be combined with the others, in this order; name both."""

    def on_run_start(self, federation: Federation) -> None:
        """Prepare a run: declare slots of the client store, make the server's state.

        Called once, before the first round and before a checkpoint is loaded.
        """

    # -- the server, before clients work ------------------------------------------------------------------------------

    def on_round_start(self, round: Round) -> None:
        """Prepare a round: ``round.clients`` have been chosen, ``round.server`` is x [D]."""

    def coordinates(self, round: Round) -> Basis | None:
        """Return the basis P whose coordinates z [C, R] clients train and send: ``params = x + P^T z``.

        Both sides must be able to draw it from the seed. One callback of a stack may override this.
        """
        return None

    def on_download(self, message: Message) -> None:
        """Add to what goes down: ``message.add`` what is sent, ``message.derive`` what clients compute alike."""

    # -- the clients --------------------------------------------------------------------------------------------------

    def personalize(self, ids: Tensor, params: Tensor) -> None:
        """Write what belongs to the clients ``ids`` [C] into their rows [C, D], which hold x, to evaluate them."""

    def on_cohort_start(self, cohort: Cohort) -> None:
        """Prepare a cohort's first step: gather client state into ``cohort.rows``, change the starting point."""

    def client_loss(self, client: ClientStep, loss: Tensor) -> Tensor:
        """Return one client's loss with a term added; the cohort's dimension is not there (vmap adds it)."""
        return loss

    def wrap_gradient(self, cohort: Cohort, gradient: Gradient) -> Gradient:
        """Return a new gradient function made of ``gradient``; called once for a cohort, before its steps.

        The function is called with the rows of the A <= C clients still at work, and the step. They are the first A:
        a tensor of the cohort is cut with ``[: len(params)]``. What ``gradient`` returns may be changed in place.
        """
        return gradient

    def on_step_end(self, cohort: Cohort) -> None:
        """Look at, or change in place, ``cohort.values`` after a step that ``cohort.active`` clients took."""

    def on_cohort_end(self, cohort: Cohort) -> None:
        """Use what a cohort learnt: read ``cohort.delta``, update client slots, ``cohort.upload`` extra payloads.

        Clients whose update is not finite are no longer in it.
        """

    def encode(self, cohort: Cohort, payload: Payload) -> Payload:
        """Compress the rows of the clients' updates. Client state (error feedback) belongs in the store."""
        return payload

    def ends_encoding(self, round: Round) -> bool:
        """Return whether codecs behind this one leave the round's payloads as they are; the same on both sides."""
        return False

    # -- the server, when updates arrive ------------------------------------------------------------------------------

    def decode(self, round: Round, values: Tensor) -> Tensor:
        """Return the inverse of ``encode``, of rows [C, n] or, for linear codecs, of their mean [n]."""
        return values

    def on_aggregate(self, round: Round) -> None:
        """Read or change ``round.update`` [D], the aggregate; ``round.sums`` and ``round.received`` are complete."""

    def on_server_step(self, round: Round) -> None:
        """Update state after the server's step: ``federation.server.vector`` is x now, ``round.server`` x before."""

    def on_round_end(self, round: Round) -> None:
        """Log numbers of the round, ``round.log(name, value)``; the server has been evaluated where that was due."""


def overrides(callback: FederatedCallback, hook: str) -> bool:
    """Return whether ``callback`` implements ``hook``."""
    return getattr(type(callback), hook) is not getattr(FederatedCallback, hook)


def check_gradient(owner: FederatedCallback, gradient: Gradient) -> None:
    """Check what a callback's ``wrap_gradient`` returned.

    Raises:
        TypeError: it is no function that takes parameters and a step.
    """
    found = f"got {gradient!r}"
    try:
        signature = inspect.signature(gradient)
        found = f"got one of {signature}"
        signature.bind(None, None)
    except ValueError:
        return  # a function of C code does not tell its signature
    except TypeError:
        raise TypeError(
            f"`{type(owner).__name__}.wrap_gradient` must return a function of `(params, step)`, {found}: write "
            "`def corrected(params, step)` and pass `step` on to `gradient(params, step)`."
        ) from None


def refuse_lossy_codecs(owner: str, stack: list[FederatedCallback]) -> None:
    """Refuse codecs that are not linear, for methods whose client state follows from the coordinates that are sent.

    Raises:
        ValueError: the stack has a codec that is not linear.
    """
    lossy = next((type(c).__name__ for c in stack if overrides(c, "encode") and not c.linear), None)
    if lossy is not None:
        raise ValueError(
            f"{owner} and {lossy} have no meaning together: the server follows the clients' corrections from their "
            f"coordinates, which {lossy} changes, and whose basis is another one in other rounds."
        )


def check_stack(stack: list[FederatedCallback], layout: ParameterLayout, has_frozen_phases: bool) -> None:
    """Refuse a stack of callbacks that do not go together, or not with the model or the local work.

    Args:
        stack: the callbacks, in order.
        layout: of the model's parameters.
        has_frozen_phases: whether some phase of the local work trains only some of the parameters.

    Raises:
        ValueError: names both.
    """
    owners = [type(c).__name__ for c in stack if overrides(c, "coordinates")]
    if len(owners) > 1:
        raise ValueError(
            f"{' and '.join(owners)} both want the local optimizer to run on their own coordinates; "
            "a stack can have one such callback."
        )
    if owners and has_frozen_phases:
        raise ValueError(
            f"{owners[0]} moves all parameters by coordinates: `local_phases` that freeze some of them have no "
            "meaning with it."
        )
    for kind in {type(callback) for callback in stack if callback.is_unique}:
        if sum(type(callback) is kind for callback in stack) > 1:
            raise ValueError(f"`callbacks` has two {kind.__name__}, which would get into each other's way: use one.")
    # What never goes together, before what would go together in another order or with other arguments.
    personal = [type(c).__name__ for c in stack if overrides(c, "personalize")]
    whole = [type(c).__name__ for c in stack if c.whole_model]
    if personal and whole:
        raise ValueError(
            f"{personal[0]} and {whole[0]} have no meaning together: {whole[0]} needs all parameters to be shared."
        )
    for callback in stack:
        callback.check(layout)
        callback.check_stack(stack)
