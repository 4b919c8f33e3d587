"""Arguments of constructors: checks for use from Python (the command line has types), and defaults of one's own."""

import math
from typing import Any, TypeVar

T = TypeVar("T")


def check_choice(owner: str, name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    """Raises ValueError unless ``value`` is one of ``allowed``; an empty ``owner`` is not named."""
    if value not in allowed:
        choices = ", ".join(map(str, allowed))
        raise ValueError(f"`{name}={value}`{f' of {owner}' if owner else ''} must be one of {choices}.")


def check_number(
    owner: str, name: str, value: Any, least: float | None = None, above: float | None = None, whole: bool = False
) -> None:
    """Raises ValueError unless ``value`` is a finite number, at least ``least`` and above ``above``, where given.

    Args:
        owner: the class whose argument it is.
        name: the argument.
        value: what was given.
        least: the smallest that is right.
        above: what it must be greater than.
        whole: whether it must be an int.
    """
    kind = int if whole else (int, float)
    is_number = isinstance(value, kind) and not isinstance(value, bool) and math.isfinite(value)
    if is_number and (least is None or value >= least) and (above is None or value > above):
        return
    limits = [f"at least {least:g}"] if least is not None else []
    limits += [f"greater than {above:g}"] if above is not None else []
    wanted = "a whole number" if whole else "a number"
    raise ValueError(f"`{name}={value}` of {owner} must be {' '.join([wanted, *limits])}.")


def own(value: T) -> T:
    """An object of one's own in place of a shared ``lazy_instance`` default; anything else as it is.

    A signature says ``lazy_instance(MeanAggregator)`` so that ``--print_config`` shows it and
    ``--trainer.aggregator.weighting uniform`` changes it. From Python all trainers would share that one object.
    """
    if not hasattr(value, "lazy_get_init_args"):
        return value
    kind: type[T] = type(value).__bases__[1]
    return kind(**value.lazy_get_init_args().as_dict())
