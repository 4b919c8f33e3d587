"""The hooks of a federated algorithm.

A callback is written once, against rows: with C clients trained together, parameters and gradients are ``[C, D]``.
Order in the trainer's list has one meaning everywhere: the first callback is nearest to the raw gradient and encodes
first; decoding runs backwards.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.pytorch import Callback
from torch import Tensor, nn

from lfl.aggregation import Aggregator, Weighting
from lfl.arguments import check_choice
from lfl.client.layout import ParameterLayout
from lfl.client.step import ClientStep, LocalStep
from lfl.comm import Message, Payload
from lfl.federation import Federation
from lfl.participation import Participation
from lfl.round import Cohort, Round
from lfl.subspace.base import Basis

_STAGES = ("validation", "test", "predict")
_EVALUATION = {f"on_{s}_{place}" for s in _STAGES for place in ("start", "end", "epoch_start", "epoch_end")}
# Those hooks of Lightning's callbacks that lfl calls, of federated ones too.
_LIGHTNING_HOOKS = {
    *("setup", "teardown", "state_dict", "load_state_dict", "on_save_checkpoint", "on_load_checkpoint"),
    *("on_fit_start", "on_fit_end", "on_train_start", "on_train_end", "on_train_epoch_start", "on_train_epoch_end"),
    *("on_exception", *_EVALUATION, *(f"on_{s}_batch_{place}" for s in _STAGES for place in ("start", "end"))),
}
_NEAR = 0.8  # of two names that differ by a slip, such as `wrap_gradients`

Gradient = Callable[[Tensor, LocalStep], Tensor]
"""A function of the parameters [A, D] (or coordinates [A, R]) of the A clients that still take steps, and of the step.

It returns their gradients, a new tensor of the same shape.
"""


class FederatedCallback(Callback):
    """Base of all algorithms and diagnostics; every hook is optional, and a hook that is not overridden costs nothing.

    State that must survive a restart belongs in ``state_dict`` (tensors, numbers, strings, lists, dicts) or in a slot
    of the client store. Hooks that are given a cohort run on the clients: ``cohort.received`` is all that they may know
    of the server. Lightning's own hooks are called as well, with trainer and module, but for those of training batches.
    """

    linear: bool = True
    """True where ``encode`` is linear: encoded payloads are averaged, and their mean is decoded once."""

    features: tuple[str, ...] = ()
    """Names of the submodules whose outputs ``client_loss`` reads from ``client.features``."""

    global_features: tuple[str, ...] = ()
    """Names of the submodules of which ``client_loss`` reads the server model's outputs, ``client.global_features``.

    This costs one more forward pass per batch.
    """

    frozen_rows: tuple[str, ...] = ()
    """Names of those ``cohort.loss_rows`` that are parameters [C, D] of further frozen models, one for each client.

    What ``global_features`` names is read from them as it is from x: ``client.global_features[at_row(row, name)]``, see
    ``lfl.client.step.at_row``. Each costs one more forward pass per batch.
    """

    is_unique: bool = False
    """True where a stack may have at most one callback of this class."""

    observes: bool = False
    """True where training does not depend on this callback: it may come, go or change when a run is resumed."""

    weighting: Weighting | None = None
    """The clients' weights in the mean that the method is stated for; None if any will do.

    ``aggregator.weighting=auto`` takes it; another one that the user asks for is warned of.
    """

    sends_more: bool = False
    """True where the server uses more of a client than its update: extra uploads, or sums over clients.

    Callbacks that must see all that is sent, such as differential privacy, are refused beside it.
    """

    whole_model: bool = False
    """True where all parameters must be shared: then a callback that keeps some on the clients is refused beside it."""

    synchronous: bool = False
    """True where all clients of a round must have been sent its own message: a participation whose clients may be
    late is refused beside it. Coordinates need that in any case, as they are those of the round's basis."""

    unused: frozenset[str] = frozenset()
    """Hooks that the class has, and this callback with its arguments does nothing in: so nothing waits for them."""

    batches_per_step: int = 1
    """Number of independent batches of a local step: ``step.other(1)`` is the same step on the second of them."""

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

        Server and clients must both be able to draw P from the seed. At most one callback of a stack may override this.
        """
        return None

    def on_download(self, message: Message) -> None:
        """Add to the download: ``message.add`` for what is sent, ``message.derive`` for what clients compute alike."""

    # -- the clients --------------------------------------------------------------------------------------------------

    def personalize(self, ids: Tensor, params: Tensor) -> None:
        """Write the personal parameters of clients ``ids`` [C] into ``params`` [C, D], whose rows all hold x.

        Called to evaluate the clients' own models.
        """

    def on_cohort_start(self, cohort: Cohort) -> None:
        """Prepare a cohort before its first step: gather client state into ``cohort.rows``, change the start."""

    def change_batch(self, cohort: Cohort, rows: slice | Tensor, batch: Any) -> Any:
        """Return the batch ``[G, b, ...]`` of the clients ``cohort.ids[rows]``, changed: what they train on.

        A nest of tensors of the same shapes; not changed in place. Evaluations see the data as it is.
        """
        return batch

    def client_loss(self, client: ClientStep, loss: Tensor) -> Tensor:
        """Return the loss of one client with a term added. Tensors have no cohort dimension here: vmap adds it."""
        return loss

    def wrap_gradient(self, cohort: Cohort, gradient: Gradient) -> Gradient:
        """Return a new gradient function made of ``gradient``; called once for a cohort, before its steps.

        The function is called with the rows of the A <= C clients that still take steps, and the step. They are the
        cohort's first A clients: cut a tensor of the cohort with ``[: len(params)]``. The tensor that ``gradient``
        returns may be changed in place.
        """
        return gradient

    def on_step_end(self, cohort: Cohort) -> None:
        """Read ``cohort.values``, or change it in place, after a step of the first ``cohort.active`` clients."""

    def on_cohort_end(self, cohort: Cohort) -> None:
        """Use the result of a cohort: read ``cohort.delta``, update client slots, ``cohort.upload`` extra payloads.

        Clients whose update is not finite have been removed from the cohort.
        """

    def encode(self, cohort: Cohort, payload: Payload) -> Payload:
        """Compress the rows of the clients' updates. Client state (error feedback) belongs in the store."""
        return payload

    def ends_encoding(self, round: Round) -> bool:
        """Return whether the codecs behind this one are skipped in this round.

        Clients and server both ask, and must be told the same.
        """
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
        """Log numbers of the round with ``round.log(name, value)``, after the server's evaluation if one is due."""

    def on_test(self, round: Round) -> None:
        """Log numbers of a checkpoint that is tested or validated with ``round.log(name, value)``.

        ``round`` is its last, without clients.
        ``on_run_start`` has been called, and the checkpoint's state been loaded.
        """


_HOOKS = {name for name, value in vars(FederatedCallback).items() if inspect.isfunction(value)} | _LIGHTNING_HOOKS
_ATTRIBUTES = {
    *("batches_per_step", "linear", "features", "global_features", "frozen_rows", "is_unique", "observes", "unused"),
    *("sends_more", "synchronous", "weighting", "whole_model"),
}
# Hooks that are called only if their class overrides them; the others are called wherever they are.
_DISPATCHED = _HOOKS - _LIGHTNING_HOOKS - {"check", "check_stack", "on_run_start", "decode", "ends_encoding"}
# Hooks that do nothing without another one, and what happens then.
_PARTNERS = {
    "decode": ("encode", "is never called"),
    "ends_encoding": ("encode", "is never called"),
    "state_dict": ("load_state_dict", "is saved and never restored: a resumed run starts it from scratch"),
    "load_state_dict": ("state_dict", "is given nothing"),
}


def overrides(callback: FederatedCallback, hook: str) -> bool:
    """Return whether ``callback`` implements ``hook``, and uses it."""
    return hook not in callback.unused and getattr(type(callback), hook) is not getattr(FederatedCallback, hook)


def keeps_parameters(callback: FederatedCallback) -> bool:
    """Return whether ``callback`` keeps parameters of the model on the clients.

    Who has models of the clients' own beside a model that is shared as a whole says so by ``whole_model``.
    """
    return overrides(callback, "personalize") and not callback.whole_model


def changes_update(callback: FederatedCallback) -> bool:
    """Return whether ``callback`` may change the update that the server steps along, after it is decoded."""
    return overrides(callback, "on_aggregate") and not callback.observes


def check_gradient(owner: FederatedCallback, gradient: Gradient) -> None:
    """Check that ``wrap_gradient`` of ``owner`` returned a function that takes parameters and a step.

    Raises:
        TypeError: it returned something else.
    """
    given = f"got {gradient!r}"
    try:
        signature = inspect.signature(gradient)
        given = f"got one of {signature}"
        signature.bind(None, None)
    except ValueError:
        return  # functions written in C may have no signature to read: let the first step fail if it must
    except TypeError:
        raise TypeError(
            f"`{type(owner).__name__}.wrap_gradient` must return a function of `(params, step)`, {given}: write "
            "`def corrected(params, step)` and pass `step` on to `gradient(params, step)`."
        ) from None


def check_features(owner: FederatedCallback, module: nn.Module) -> None:
    """Check that the module has the submodules whose outputs ``owner`` reads.

    Raises:
        ValueError: it lacks one.
    """
    for name in dict.fromkeys(owner.features + owner.global_features):
        setting = next((key for key, value in vars(owner).items() if isinstance(value, str) and value == name), None)
        submodule_of(module, name, type(owner).__name__, setting or "features")


def submodule_of(module: nn.Module, name: str, owner: str, setting: str) -> nn.Module:
    """The submodule that the user has named.

    Args:
        module: the user's model.
        name: of its submodule.
        owner: who wants it, for the error.
        setting: the owner's argument.

    Raises:
        ValueError: there is none.
    """
    known: dict[str, nn.Module] = {path: part for path, part in module.named_modules() if path}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, 3, 0.5)
    advice = f"near it are {', '.join(near)}." if near else f"it has {', '.join(known)}."
    raise ValueError(f"`{setting}={name}` of {owner} names no submodule of {type(module).__name__}; {advice}")


def refuse_lossy_codecs(owner: str, stack: list[FederatedCallback]) -> None:
    """Refuse codecs that are not linear.

    For methods whose client state is computed from the coordinates that clients send: the server computes it from what
    arrives, and a lossy codec makes that differ from what the clients kept.

    Raises:
        ValueError: the stack has a codec that is not linear.
    """
    lossy = next((type(c).__name__ for c in stack if overrides(c, "encode") and not c.linear), None)
    if lossy is not None:
        raise ValueError(
            f"{owner} and {lossy} have no meaning together: the server follows the clients' corrections from their "
            f"coordinates, which {lossy} changes, and whose basis is another one in other rounds."
        )


def settle_weighting(aggregator: Aggregator, stack: list[FederatedCallback]) -> None:
    """Let an aggregator take the weighting that the stack is stated for; warn where the user asks for another one.

    Raises:
        ValueError: two callbacks are stated for different ones, and ``auto`` cannot follow both; or one states none
            that there is.
    """
    stating = [callback for callback in stack if callback.weighting is not None]
    for callback in stating:
        check_choice(type(callback).__name__, "weighting", callback.weighting, ("examples", "uniform"))
    stated = stating[0].weighting if stating else None
    asked = aggregator.asked_weighting
    other = next((c for c in stating if c.weighting != (stated if asked == "auto" else asked)), None)
    if other is not None and asked == "auto":
        raise ValueError(
            f"`aggregator.weighting=auto` cannot follow both: {type(stating[0]).__name__} is stated for {stated!r}, "
            f"{type(other).__name__} for {other.weighting!r}. Set one of them."
        )
    if other is not None:
        rank_zero_warn(
            f"`aggregator.weighting={asked}` of {type(aggregator).__name__} is kept, but {type(other).__name__} is "
            f"stated for `{other.weighting}`, which `auto` takes: its state then follows another mean than the update."
        )
    aggregator.settle(stated)


def check_late(participation: Participation, stack: list[FederatedCallback]) -> None:
    """Refuse callbacks that need clients of one round, beside a participation whose clients may be late.

    Raises:
        ValueError: the stack has one; names it and the participation.
    """
    for callback in stack:
        if callback.synchronous or overrides(callback, "coordinates"):
            raise ValueError(
                f"{type(callback).__name__} and {type(participation).__name__} have no meaning together: what "
                f"{type(callback).__name__} does in a round needs all its clients to have been sent the same, and here "
                "they may be late. Use another participation."
            )


def check_stack(stack: list[FederatedCallback], layout: ParameterLayout, has_frozen_phases: bool) -> None:
    """Refuse callbacks that do not fit each other, the model or the local work.

    Args:
        stack: the callbacks, in order.
        layout: of the model's parameters.
        has_frozen_phases: whether some phase of the local work trains only some of the parameters.

    Raises:
        ValueError: names the two that do not fit.
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
    # First pairs that never fit; the callbacks' own checks below name pairs that fit in another order or with other
    # arguments, which would be bad advice for the former.
    personal = [type(c).__name__ for c in stack if keeps_parameters(c)]
    whole = [type(c).__name__ for c in stack if c.whole_model]
    if personal and whole:
        raise ValueError(
            f"{personal[0]} and {whole[0]} have no meaning together: {whole[0]} needs all parameters to be shared."
        )
    deciding = [type(c).__name__ for c in stack if overrides(c, "personalize")]
    if len(deciding) > 1:
        raise ValueError(
            f"{' and '.join(deciding)} both say what a client's own model is; a stack can have one such callback."
        )
    for callback in stack:
        _check_hooks(callback)
        _warn_of_uncalled_hooks(callback)
        callback.check(layout)
        callback.check_stack(stack)


def _check_hooks(callback: FederatedCallback) -> None:
    """Refuse hooks that cannot be called, or whose body would never run; raises ValueError."""
    for name in sorted(_HOOKS):
        hook = getattr(callback, name)
        if not callable(hook):
            raise ValueError(f"`{type(callback).__name__}.{name}` must be a method, got {hook!r}: leave it out.")
        if inspect.isgeneratorfunction(hook) or inspect.iscoroutinefunction(hook):
            raise ValueError(
                f"`{type(callback).__name__}.{name}` has `yield` or `async`, so that a call does not run it: write an "
                "ordinary method."
            )


def _warn_of_uncalled_hooks(callback: FederatedCallback) -> None:
    """Warn of what looks like a hook and is never called: misspelt ones, Lightning's, and those in wrong places."""
    kind = type(callback)
    kinds = kind.__mro__
    place = kinds.index(FederatedCallback)
    defined = {name for own in kinds[:place] for name in vars(own)}
    shadowed = {name for own in kinds[place:] if not issubclass(FederatedCallback, own) for name in vars(own)}
    overridden = {name for name in _HOOKS if overrides(callback, name)}
    for name in sorted(defined):
        near = _near_hook(name, kind, overridden)
        if name in _HOOKS or not (near or name.startswith("on_")):
            continue
        use, what = ("read", "attribute") if near in _ATTRIBUTES else ("called", "hook")
        rank_zero_warn(
            f"`{kind.__name__}.{name}` is never {use}: lfl has no such {what}"
            f"{f'; did you mean `{near}`?' if near else '.'}"
        )
    for name in sorted(vars(callback).keys() & _DISPATCHED - overridden):
        rank_zero_warn(f"`{name}` is set on an object of {kind.__name__} and never called: define it in the class.")
    for name in sorted(_PARTNERS.keys() & overridden):
        partner, outcome = _PARTNERS[name]
        if partner not in overridden:
            rank_zero_warn(f"`{kind.__name__}.{name}` {outcome}, for there is no `{partner}` beside it.")
    for name in sorted(shadowed & _HOOKS - overridden):
        rank_zero_warn(
            f"`{kind.__name__}` inherits `{name}` from a class that comes after FederatedCallback, whose own hides it: "
            "name that class first."
        )


def _near_hook(name: str, kind: type[FederatedCallback], overridden: set[str]) -> str | None:
    """The hook or attribute that ``name`` of a class is probably meant for; None if it is a name of its own."""
    if name.startswith("_") or hasattr(FederatedCallback, name):
        return None
    is_method = inspect.isroutine(inspect.getattr_static(kind, name))
    # What is not a method may be a misspelt attribute: `observe = True`.
    candidates = _HOOKS - overridden if is_method else _ATTRIBUTES - vars(kind).keys()
    if name.startswith("on_"):
        near = difflib.get_close_matches(name, candidates, 1)
    else:  # `coordinates_of` and `encode_rows` say more, and are names of their own
        count = name.strip("_").count("_")
        near = difflib.get_close_matches(name, [known for known in candidates if known.count("_") >= count], 1, _NEAR)
    return near[0] if near else None
