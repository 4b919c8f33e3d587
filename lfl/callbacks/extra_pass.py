"""Further gradients on the batch of a local step, without a second update of BatchNorm's statistics."""

from torch import Tensor

from lfl.callback import FederatedCallback, Gradient, overrides
from lfl.client.step import LocalStep
from lfl.federation import Federation
from lfl.round import Cohort


def extra_pass(cohort: Cohort, gradient: Gradient) -> Gradient:
    """Return a gradient function that leaves the module's buffers as they were, so that BatchNorm sees a batch once.

    It is ``gradient`` itself if the training step changes no buffers.
    """
    model = cohort.model
    if not model.traits.changed_buffers:
        return gradient

    def without_buffers(params: Tensor, step: LocalStep) -> Tensor:
        # Such a module runs on the sequential engine: its buffers are those of the one client at work.
        buffers = model.flat_buffers()
        counters = [counter.clone() for counter in model.counters]
        gradients = gradient(params, step)
        model.load_buffers(buffers, counters)
        return gradients

    return without_buffers


def refuse_metric_objects(owner: FederatedCallback, federation: Federation) -> None:
    """Refuse training steps that log a Metric object, which would count every pass over a batch.

    Raises:
        ValueError: the training step logs one.
    """
    if federation.model.traits.logged_metrics:
        raise ValueError(
            f"The training step logs the Metric object {federation.model.traits.logged_metrics[0]!r}, which would also "
            f"count the second pass of {type(owner).__name__}: log a number instead."
        )


def refuse_behind_coordinates(owner: FederatedCallback, stack: list[FederatedCallback], why: str) -> None:
    """Refuse a place behind the callback whose coordinates clients train.

    Args:
        owner: the callback that needs gradients of the parameters.
        stack: the callbacks, in order.
        why: what it does with them.

    Raises:
        ValueError: it stands behind the owner of coordinates.
    """
    before = stack[: stack.index(owner)]
    name = next((type(c).__name__ for c in before if overrides(c, "coordinates")), None)
    if name is not None:
        raise ValueError(
            f"{type(owner).__name__} {why}, and behind {name} there are only corrected gradients in coordinates: put "
            f"{type(owner).__name__} before {name}."
        )
