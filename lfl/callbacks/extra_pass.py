"""Passes over a batch besides the one that a local step is."""

from torch import Tensor

from lfl.callback import Gradient
from lfl.round import Cohort


def extra_pass(cohort: Cohort, gradient: Gradient) -> Gradient:
    """``gradient`` that leaves the module's buffers alone: BatchNorm sees each batch once.

    It is ``gradient`` itself where the training step changes no buffers.
    """
    model = cohort.model
    if not model.changed_buffers:
        return gradient

    def unnoticed(params: Tensor) -> Tensor:
        buffers, counters = model.flat_buffers(), [counter.clone() for counter in model.counters]
        gradients = gradient(params)
        model.load_buffers(buffers, counters)
        return gradients

    return unnoticed
