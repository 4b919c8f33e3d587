"""Further passes over the batch of a local step."""

from torch import Tensor

from lfl.callback import Gradient
from lfl.client.step import LocalStep
from lfl.round import Cohort


def extra_pass(cohort: Cohort, gradient: Gradient) -> Gradient:
    """Make ``gradient`` leave the module's buffers alone: BatchNorm sees each batch once.

    Returns ``gradient`` itself where the training step changes no buffers.
    """
    model = cohort.model
    if not model.changed_buffers:
        return gradient

    def unnoticed(params: Tensor, step: LocalStep) -> Tensor:
        buffers, counters = model.flat_buffers(), [counter.clone() for counter in model.counters]
        gradients = gradient(params, step)
        model.load_buffers(buffers, counters)
        return gradients

    return unnoticed
