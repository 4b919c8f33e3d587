"""The point with the least mean distance."""

import pytest
import torch

from lfl.aggregation import GeometricMedian


def median(rows: list[list[float]], sizes: list[int] | None = None, **options: object) -> torch.Tensor:
    aggregator = GeometricMedian(**{"iterations": 1000, "tolerance": 0.0, **options})  # type: ignore[arg-type]
    weights = aggregator.weights(torch.tensor(sizes or [1] * len(rows)))
    aggregator.add(torch.tensor(rows, dtype=torch.float64), weights)
    return aggregator.result()


def test_one_iteration_by_hand() -> None:
    """Of (0, 0), (0, 0), (3, 4): the mean is (1, 4/3), at distances 5/3, 5/3 and 10/3.

    Pulls 1/3 over those: 0.2, 0.2, 0.1; so (3, 4) counts a fifth: (0.6, 0.8).
    """
    found = median([[0.0, 0.0], [0.0, 0.0], [3.0, 4.0]], iterations=1)
    assert found.tolist() == pytest.approx([0.6, 0.8], abs=1e-14)


def test_of_a_triangle_it_is_fermats_point() -> None:
    """All sides are seen from it under 120 degrees; here the centre of an equilateral triangle, moved."""
    found = median([[1.0, 2.0], [3.0, 2.0], [2.0, 2.0 + 3**0.5]])
    assert found.tolist() == pytest.approx([2.0, 2.0 + 3**-0.5], abs=1e-9)


def test_on_a_line_it_is_the_median_and_weights_count() -> None:
    assert median([[0.0], [1.0], [50.0]]).item() == pytest.approx(1.0, abs=1e-4)
    # 5 of 7 examples are at 50.
    assert median([[0.0], [1.0], [50.0]], [1, 1, 5]).item() == pytest.approx(50.0, abs=1e-4)
    assert median([[0.0], [1.0], [50.0]], [1, 1, 5], weighting="uniform").item() == pytest.approx(1.0, abs=1e-4)


def test_equal_updates_stay_what_they_are() -> None:
    found = median([[2.0, -1.0]] * 4, iterations=5)
    assert found.tolist() == pytest.approx([2.0, -1.0], abs=1e-15)


def test_it_stops_where_little_changes() -> None:
    rows = [[0.0], [1.0], [50.0]]
    assert torch.equal(median(rows, tolerance=1e9), median(rows, iterations=1))
    torch.testing.assert_close(median(rows, tolerance=1e-12), median(rows), rtol=0, atol=1e-3)


@pytest.mark.parametrize("options", [{"iterations": 0}, {"tolerance": -1.0}, {"smoothing": 0.0}])
def test_values_that_cannot_be_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="of GeometricMedian must be"):
        GeometricMedian(**options)  # type: ignore[arg-type]
