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

    once: bool = False
    """Whether a second one in the same stack would get into its way."""

    observes: bool = False
    """Whether it only looks: training does not depend on it, and it may come, go or change when a run is resumed."""

    whole_model: bool = False
    """Whether it has no meaning where some parameters never leave the clients."""

    def check(self, layout: ParameterLayout) -> None:
        """Refuse settings that do not fit the model, before any work; raises ValueError."""

    def check_stack(self, stack: list[FederatedCallback]) -> None:
        """Refuse a stack, this callback in it, that has no meaning; raises ValueError with both names."""

    def on_run_start(self, federation: Federation) -> None:
        """The run, before its first round and before a checkpoint is loaded: declare slots, make the server's state."""

    def on_round_start(self, round: Round) -> None:
        """The server, before anything is sent: ``round.clients`` are chosen, ``round.server`` is x [D]."""

    def coordinates(self, round: Round) -> Basis | None:
        """Let the local optimizer run on coordinates z [C, R] of ``params = x + lift(z)``; uploads are then z.

        At most one callback of a stack may override this.
        """
        return None

    def on_download(self, message: Message) -> None:
        """The wire, down: add what the clients of this round need besides the model, ``message.add(name, value)``."""

    def personalize(self, ids: Tensor, params: Tensor) -> None:
        """Write what belongs to the clients ``ids`` [C] into their rows [C, D], which hold x, to evaluate them."""

    def on_cohort_start(self, cohort: Cohort) -> None:
        """A cohort, before its first step: gather client state into ``cohort.rows``, change the starting point."""

    def client_loss(self, client: ClientStep, loss: Tensor) -> Tensor:
        """One client, inside the loss (vmap adds the cohort dimension): return the loss with a term added."""
        return loss

    def wrap_gradient(self, cohort: Cohort, gradient: Gradient) -> Gradient:
        """A cohort, once before its steps: return a new function ``(params, step) -> gradients`` made of ``gradient``.

        It is called with the rows of the A <= C clients still at work; they are the first A, so a tensor of the
        cohort is cut with ``[: len(params)]``. Pass ``step`` on to ``gradient``, each time if it is asked several
        times in a step: the first pass is logged. The tensor ``gradient`` returns may be changed in place.
        """
        return gradient

    def on_step_end(self, cohort: Cohort) -> None:
        """A cohort, after each local step; ``cohort.active`` clients took it."""

    def on_cohort_end(self, cohort: Cohort) -> None:
        """A cohort, trained: read ``cohort.delta``, update client slots, ``cohort.upload(name, rows)`` extra payloads.

        Clients whose update is not finite are no longer in it.
        """

    def ends_encoding(self, round: Round) -> bool:
        """Whether the codecs after this one leave this round's payload as it is."""
        return False

    def encode(self, cohort: Cohort, payload: Payload) -> Payload:
        """The wire, up: compress the rows of an update. Client state (error feedback) belongs in the store."""
        return payload

    def decode(self, round: Round, values: Tensor) -> Tensor:
        """The server: the inverse of ``encode``, on rows [C, n] or, for linear codecs, on their mean [n]."""
        return values

    def on_aggregate(self, round: Round) -> None:
        """The server: ``round.update`` [D] is the aggregate (``round.update_coordinates`` [R] where there are)."""

    def on_server_step(self, round: Round) -> None:
        """The server, after its step: ``federation.server.vector`` is x now, ``round.server`` x before."""

    def on_round_end(self, round: Round) -> None:
        """The server: add to ``round.metrics`` with ``round.log(name, value)``."""


def overrides(callback: FederatedCallback, hook: str) -> bool:
    """Whether ``callback`` implements ``hook``."""
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
    """For methods whose client state follows from the coordinates that are sent: they must arrive as they are.

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
    for kind in {type(callback) for callback in stack if callback.once}:
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
