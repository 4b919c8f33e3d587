"""What is known of tensors by their shapes and numbers in two listings, of 6 and of 2 examples."""

import pytest
import torch

from lfl.engine.graph.examples import (
    BESIDE,
    MANY,
    PLACES,
    ROWS,
    SHARED,
    WHOLE,
    Examples,
    Shapes,
    constant,
    power_of,
    settle,
)

SIZES = 6, 2


@pytest.mark.parametrize(
    ("numbers", "power"),
    [((3, 3), 0), ((6, 2), 1), ((24, 8), 1), ((1 / 6, 0.5), -1), ((5, 1), None), ((36, 4), None), ((0.0, 0.0), 0)],
)
def test_powers_of_the_number_of_examples(numbers: tuple[float, float], power: int | None) -> None:
    assert power_of(*numbers, SIZES) == power


@pytest.mark.parametrize(
    ("known", "shapes", "settled"),
    [
        (ROWS, ((6, 4), (2, 4)), ROWS),
        (ROWS, ((24, 4), (8, 4)), ROWS),
        (ROWS, ((4,), (4,)), PLACES),
        (ROWS, ((6, 6), (2, 2)), BESIDE),
        (SHARED, ((4,), (4,)), SHARED),
        (SHARED, ((6,), (2,)), MANY),
        (Examples("sum"), ((6,), (2,)), WHOLE),
    ],
)
def test_rows_have_an_axis_of_the_batch_and_others_have_none(
    known: Examples, shapes: Shapes, settled: Examples
) -> None:
    assert settle(known, shapes, SIZES) == settled


def test_a_batch_that_is_cut_is_mixed() -> None:
    """Half of the batch; and blocks of which the axis does not consist."""
    assert settle(ROWS, ((3, 4), (1, 4)), SIZES).kind == "mixed"
    assert settle(Examples("rows", blocks=4), ((6,), (2,)), SIZES).kind == "mixed"
    assert settle(Examples("position"), ((12,), (4,)), SIZES).kind == "mixed"


def test_constants_are_the_same_in_both_listings_or_follow_the_number_of_examples() -> None:
    table = torch.arange(3.0)
    assert constant(table, table.clone(), SIZES).known == SHARED
    assert constant(torch.tensor(6.0), torch.tensor(2.0), SIZES).known == Examples("shared", power=1)
    assert constant(table, table + 1, SIZES).known.kind == "mixed"
