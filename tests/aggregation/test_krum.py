"""Updates that are near to their neighbours."""

import pytest
import torch

from lfl.aggregation import Krum
from lfl.aggregation.krum import squared_distances


def chosen(aggregator: Krum, values: list[float]) -> float:
    aggregator.start()
    aggregator.add(torch.tensor(values, dtype=torch.float64)[:, None], torch.ones(len(values)).double())
    return aggregator.result().item()


def test_scores_by_hand() -> None:
    """0, 1, 3, 7, 8 with f = 1: scores are sums of the 5 - 1 - 2 = 2 least squared distances.

    Of 0: 1 + 9. Of 1: 1 + 4. Of 3: 4 + 9. Of 7: 1 + 16. Of 8: 1 + 25. Least is 1; then come 0, 3 and 7.
    """
    values = [7.0, 0.0, 3.0, 8.0, 1.0]
    assert chosen(Krum(1), values) == 1.0
    assert chosen(Krum(1, selected=2), values) == 0.5
    assert chosen(Krum(1, selected=3), values) == pytest.approx(4 / 3)
    assert chosen(Krum(0.2, selected=4), values) == pytest.approx(11 / 4)
    assert chosen(Krum(1, selected=5), values) == pytest.approx(19 / 5)  # all: the mean


def test_of_equal_scores_the_first_is_taken() -> None:
    """With f = 0, of 5, 1, 3 every one has a neighbour at 2; of two nines and two twos one at 0 and one at 7."""
    assert chosen(Krum(0), [5.0, 1.0, 3.0]) == 5.0
    assert chosen(Krum(0), [2.0, 9.0, 2.0, 9.0]) == 2.0
    assert chosen(Krum(0), [9.0, 2.0, 2.0, 9.0]) == 9.0


def test_an_attacker_in_the_middle_of_nowhere_is_not_chosen() -> None:
    rows = torch.randn(10, 50, generator=torch.Generator().manual_seed(0)).double()
    rows[[2, 7]] = -30 * rows[[2, 7]]
    aggregator = Krum(2, selected=8)
    aggregator.add(rows, torch.ones(10).double())
    honest = rows[[0, 1, 3, 4, 5, 6, 8, 9]].mean(dim=0)
    torch.testing.assert_close(aggregator.result(), honest, rtol=0, atol=1e-14)


def test_small_distances_between_long_updates_are_exact() -> None:
    rows = torch.tensor([[1e8, 0.0], [1e8, 1e-3]], dtype=torch.float64)
    assert squared_distances(rows)[0, 1].item() == pytest.approx(1e-6, rel=1e-12)


def test_too_few_participants_are_refused_where_their_number_is_known() -> None:
    Krum(3).check(9)
    Krum(3).check(None)
    Krum(0.2).check(10)
    with pytest.raises(ValueError, match=r"`byzantine=4` of Krum needs more than 2 f \+ 2 = 10 participants .* are 10"):
        Krum(4).check(10)
    with pytest.raises(ValueError, match=r"`byzantine=0.45` of Krum needs more than 2 f \+ 2 = 12 participants"):
        Krum(0.45).check(10)
    with pytest.raises(ValueError, match="`selected=11` of Krum is more than the 10 participants"):
        Krum(1, selected=11).check(10)


@pytest.mark.parametrize("options", [{"byzantine": -1}, {"byzantine": 0.5}, {"selected": 0}])
def test_values_that_cannot_be_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="of Krum"):
        Krum(**options)  # type: ignore[arg-type]
