"""Groups that are drawn at once can be told apart."""

from lfl.report.styles import COLOURS, DASHES, DRAWN, style_of


def test_no_two_groups_that_are_drawn_at_first_look_alike() -> None:
    many = len(COLOURS) * len(DASHES)
    assert len({style_of(number) for number in range(many)}) == many > DRAWN
    assert style_of(many) == style_of(0)
    assert [style_of(0).dash_array, style_of(len(COLOURS)).dash_array] == ["solid", "6px,3px"]
