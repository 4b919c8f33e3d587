"""AG News in its published files."""

from pathlib import Path

import pytest
from published_files import write_ag_news

from lfl.data import AGNewsSource


def write(root: Path, train: str, test: str = '"1","a","b"\n') -> str:
    folder = root / "ag_news_csv"
    folder.mkdir()
    (folder / "train.csv").write_text(train)
    (folder / "test.csv").write_text(test)
    return str(root)


def test_words_of_title_and_description(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        train='"3","Oil up","Oil\\is up, ""they"" say"\n"1","Oil","up"\n',
        test='"4","Oil falls","They say"\n',
    )
    train, test = AGNewsSource(root, vocabulary_size=5, length=4).load()
    # By their numbers of times: oil 3, up 3, " 2.
    assert train.inputs.tolist() == [[2, 3, 2, 1], [2, 3, 0, 0]]
    assert test.inputs.tolist() == [[2, 1, 1, 1]]
    assert (train.targets.tolist(), test.targets.tolist()) == ([2, 0], [3])
    assert train.classes == ("World", "Sports", "Business", "Sci/Tech")


def test_loading_twice_gives_the_same(tmp_path: Path) -> None:
    write_ag_news(tmp_path)
    one, two = (AGNewsSource(str(tmp_path)).load()[0] for _ in range(2))
    assert one.inputs.equal(two.inputs)
    assert one.inputs.shape == (60, 100)
    assert one.targets.bincount().tolist() == [15] * 4


def test_missing_files_are_told_with_the_way_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"AG News is not at '.*ag_news_csv/train\.csv': get https://"):
        AGNewsSource(str(tmp_path)).check()


def test_another_class_is_named_by_its_row(tmp_path: Path) -> None:
    root = write(tmp_path, '"1","a","b"\n"0","a","b"\n')
    with pytest.raises(ValueError, match=r"Row 2 of '.*train\.csv' has the class '0', which is not 1 to 4"):
        AGNewsSource(root).load()


@pytest.mark.parametrize(("setting", "value"), [("vocabulary_size", 2), ("length", 0)])
def test_settings_out_of_range(setting: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"`{setting}={value}` of AGNewsSource"):
        AGNewsSource(**{setting: value})  # type: ignore[arg-type]
