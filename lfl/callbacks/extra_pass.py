"""Further gradients on the batch of a local step, without a second update of BatchNorm's statistics."""

from torch import Tensor

from lfl.callback import Gradient
from lfl.client.step import LocalStep
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
