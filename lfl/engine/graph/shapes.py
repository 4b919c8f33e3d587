"""Shapes of recorded values, found without a mode of their own for each."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode


@contextmanager
def one_fake_mode() -> Iterator[None]:
    """Let ``make_fx`` use one mode for the shapes of all values: it would make a new one, in milliseconds, for each."""
    with tracing(TracingContext(FakeTensorMode(allow_fallback_kernels=True))):
        yield
