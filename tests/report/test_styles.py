"""Groups that are drawn at once can be told apart."""

from lfl.report.styles import COLOURS, DASHES, DRAWN, LONGEST, shortened, style_of


def test_no_two_groups_that_are_drawn_at_first_look_alike() -> None:
    many = len(COLOURS) * len(DASHES)
    assert len({style_of(number) for number in range(many)}) == many > DRAWN
    assert style_of(many) == style_of(0)
    assert [style_of(0).dash_array, style_of(len(COLOURS)).dash_array] == ["solid", "6px,3px"]


def test_long_labels_lose_their_middle_and_stay_different() -> None:
    long = [f"{'a' * 60}{middle}{'b' * 60}, lr 0.1" for middle in "xy"]
    short = shortened(["FedAvg", "c" * LONGEST, *long])
    assert list(short.values())[:2] == ["FedAvg", "c" * LONGEST]
    assert [short[label] for label in long] == [f"{'a' * 24}…{'b' * 7}, lr 0.1 ({number})" for number in (1, 2)]
