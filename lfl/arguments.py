"""Argument checks for constructors called from Python, and fresh copies of shared defaults.

The command line checks types and ranges by the annotations of the arguments.
"""

import inspect
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any, TypeVar

from jsonargparse import lazy_instance

T = TypeVar("T")


def count_of_share(share: float, total: int) -> int:
    """``ceil(share * total)``, of the share as it is written: 0.07 of 100 are 7, though their product is above it."""
    return math.ceil(share * total - 1e-9)


def check_choice(owner: str, name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    """Raise ValueError unless ``value`` is one of ``allowed``; the message leaves out an empty ``owner``."""
    if value not in allowed:
        choices = ", ".join(map(str, allowed))
        raise ValueError(f"`{name}={value}`{f' of {owner}' if owner else ''} must be one of {choices}.")


def check_number(
    owner: str,
    name: str,
    value: Any,
    least: float | None = None,
    above: float | None = None,
    below: float | None = None,
    whole: bool = False,
) -> None:
    """Raise ValueError unless ``value`` is a finite number within the bounds that are given.

    Args:
        owner: name of the class whose argument is checked; empty for an argument of the trainer.
        name: name of the argument.
        value: the value that was passed.
        least: smallest allowed value.
        above: bound that the value must exceed.
        below: bound that it must not reach.
        whole: whether the value must be an int.
    """
    # bool is a subclass of int, and inf and nan are floats: none of them is a number here. Those of numpy are.
    kind: Any = Integral if whole else Real
    is_number = isinstance(value, kind) and not isinstance(value, bool) and math.isfinite(value)
    is_large_enough = is_number and (least is None or value >= least) and (above is None or value > above)
    if is_large_enough and (below is None or value < below):
        return
    limits = [f"of at least {least:g}"] if least is not None else []
    limits += [f"greater than {above:g}"] if above is not None else []
    limits += [f"less than {below:g}"] if below is not None else []
    wanted = " ".join(["a whole number" if whole else "a number", " and ".join(limits)]).rstrip()
    raise ValueError(f"`{name}={value}`{f' of {owner}' if owner else ''} must be {wanted}.")


def lazy_default(kind: type[T], **settings: Any) -> T:
    """Return a ``lazy_instance`` for a signature, which says in one line what it stands for: ``kind(settings)``.

    Without that, a class with a ``__repr__`` of its own would show jsonargparse's attributes, which hold one another:
    ``help`` printed millions of characters.
    """
    with _short_stack():
        value: T = lazy_instance(kind, **settings)
    type(value).__repr__ = _text_of_lazy  # type: ignore[method-assign]
    return value


def fresh_default(value: T) -> T:
    """Return a new object if ``value`` is a ``lazy_default``, else ``value`` itself.

    A signature says ``lazy_default(MeanAggregator)`` so that ``--print_config`` shows it and
    ``--trainer.aggregator.weighting uniform`` changes it. From Python all trainers would share that one object.
    """
    if not hasattr(value, "lazy_get_init_args"):
        return value
    # jsonargparse makes the default an instance of a generated class with bases (its own mixin, the real class).
    kind: type[T] = type(value).__bases__[1]
    return kind(**value.lazy_get_init_args().as_dict())


@contextmanager
def _short_stack() -> Iterator[None]:
    """Let ``inspect.stack`` tell of its caller and that one's caller only.

    ``lazy_instance`` asks it for the module that calls; it would read the source files of all modules on the way there,
    which are many while they import each other: half a second for each default.
    """
    own = inspect.stack
    inspect.stack = lambda *_: [(sys._getframe(1),), (sys._getframe(2),)]
    try:
        yield
    finally:
        inspect.stack = own


def _text_of_lazy(value: Any) -> str:
    settings = value.lazy_get_init_args().as_dict()
    kind = type(value).__bases__[1]
    return f"{kind.__name__}({', '.join(f'{name}={setting!r}' for name, setting in settings.items())})"
