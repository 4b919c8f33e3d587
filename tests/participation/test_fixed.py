"""Participants by a schedule."""

import pytest

from lfl.participation import FixedParticipation


def test_a_schedule_is_checked_and_repeated() -> None:
    with pytest.raises(ValueError, match=r"names clients \[10\], but the ids are 0 to 9"):
        FixedParticipation([[1], [10]]).check(10)
    with pytest.raises(ValueError, match="twice in round 2"):
        FixedParticipation([[1], [3, 3]])
    with pytest.raises(ValueError, match="no round empty"):
        FixedParticipation([[1], []])
    assert FixedParticipation([[2, 1], [0]]).select(3, 3, 0).tolist() == [1, 2]
    assert FixedParticipation([[1, 4], [2, 3]]).count(20) == 2
    assert FixedParticipation([[1], [2, 3]]).count(20) is None
