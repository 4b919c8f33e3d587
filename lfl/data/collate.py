"""Batches of items of different lengths."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lfl.arguments import check_number
from lfl.data.columns import DataError
from lfl.data.nests import Path, is_numeric, part_of, path_to, said, stacked, with_part


class PadCollate:
    """A ``collate_fn`` that pads sequences at their ends to the longest one of a batch, and stacks all other parts.

    Args:
        values: which parts are padded along their first dimension, by name, and with what; for a language model
            ``{input_ids: 0, attention_mask: 0, labels: -100}``. The places of a tuple are "0", "1", ...
        multiple_of: round lengths up to a multiple: batches of few different shapes can be recorded, and clients with
            batches of equal shape are trained together.
        max_length: cut what is longer; none to cut nothing.

    Raises:
        ValueError: `multiple_of` or `max_length` is less than 1, or `values` is empty.

    Example:
        >>> items = [{"input_ids": [7, 8, 9], "label": 1}, {"input_ids": [5], "label": 0}]
        >>> PadCollate({"input_ids": 0}, multiple_of=2)(items)
        {'input_ids': tensor([[7, 8, 9, 0],
                [5, 0, 0, 0]]), 'label': tensor([1, 0])}
    """

    def __init__(self, values: dict[str, float], multiple_of: int = 1, max_length: int | None = None) -> None:
        if not values or not isinstance(values, Mapping):
            raise ValueError(
                f"`values={values!r}` of PadCollate pads nothing: name the parts, such as {{input_ids: 0}}."
            )
        check_number("PadCollate", "multiple_of", multiple_of, least=1, whole=True)
        if max_length is not None:
            check_number("PadCollate", "max_length", max_length, least=1, whole=True)
        self.values = values
        self.multiple_of = multiple_of
        self.max_length = max_length

    def __call__(self, items: list[Any]) -> Any:
        """The batch of some items.

        Raises:
            DataError: an item has no part of a name, or parts that are not padded differ in shape.
        """
        for name, value in self.values.items():
            path = path_to(items[0], name)
            if path is None:
                has = f": {', '.join(map(str, items[0]))}" if isinstance(items[0], Mapping) else ""
                raise DataError(f"`values` of PadCollate names {name!r}, which is no part of the items{has}.")
            try:
                sequences = [_as_sequence(part_of(item, path)) for item in items]
            except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
                raise DataError(
                    f"`values` of PadCollate names {name!r}, which is not a sequence of numbers in every item: {error}."
                ) from error
            # A list without entries has no type of its own.
            usual = next((part.dtype for part in sequences if len(part)), sequences[0].dtype)
            parts = self._padded([part if len(part) else part.to(usual) for part in sequences], value)
            items = [with_part(item, path, part) for item, part in zip(items, parts, strict=True)]
        return stacked(items, _misfit)

    def _padded(self, parts: list[Tensor], value: float) -> list[Tensor]:
        parts = [part[: self.max_length] for part in parts]
        longest = max(len(part) for part in parts)
        width = -(-longest // self.multiple_of) * self.multiple_of
        width = width if self.max_length is None else min(width, self.max_length)
        # `pad` counts dimensions from the last.
        return [F.pad(part, [0, 0] * (part.dim() - 1) + [0, width - len(part)], value=value) for part in parts]


def _as_sequence(part: Any) -> Tensor:
    sequence = torch.as_tensor(part)
    if not sequence.dim():
        raise ValueError(f"{part!r} is one number")
    return sequence


def _misfit(path: Path, values: list[Any]) -> DataError:
    shapes = sorted({str(list(np.shape(v))) if is_numeric(v) else type(v).__name__ for v in values})
    return DataError(
        f"Items of a batch have {said(path)} of the shapes {', '.join(shapes)}: name it in `values` of PadCollate, or "
        "leave it out."
    )
