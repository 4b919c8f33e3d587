"""Default objects that the command line can print and change in part."""

from typing import TypeVar

T = TypeVar("T")


def own(value: T) -> T:
    """An object of one's own in place of a shared ``lazy_instance`` default; anything else as it is.

    A signature says ``lazy_instance(MeanAggregator)`` so that ``--print_config`` shows it and
    ``--trainer.aggregator.weighting uniform`` changes it. From Python all trainers would share that one object.
    """
    if not hasattr(value, "lazy_get_init_args"):
        return value
    kind: type[T] = type(value).__bases__[1]
    return kind(**value.lazy_get_init_args().as_dict())
