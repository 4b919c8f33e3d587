"""What has no meaning together is refused before any work."""

from lfl.callbacks.base import FederatedCallback, overrides
from lfl.client import ClientModel
from lfl.engine.work import LocalWork


def check_stack(stack: list[FederatedCallback], model: ClientModel, work: LocalWork) -> None:
    """Refuse a stack of callbacks that do not go together, or not with the model or the local work.

    Raises:
        ValueError: names both.
    """
    owners = [type(c).__name__ for c in stack if overrides(c, "coordinates")]
    if len(owners) > 1:
        raise ValueError(
            f"{' and '.join(owners)} both want the local optimizer to run on their own coordinates; "
            "a stack can have one such callback."
        )
    if owners and any(model.names_of(phase.parameters) is not None for phase in work.phases):
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
        callback.check(model.layout)
        callback.check_stack(stack)
