"""Sentiment140 in Stanford's files."""

from pathlib import Path

import pytest
from published_files import write_glove, write_sent140

from lfl.data import FederatedDataModule, NaturalPartitioner, Sent140Source

TRAIN = "training.1600000.processed.noemoticon.csv"


def write(root: Path, tweets: list[tuple[int, str, str]], name: str = TRAIN) -> str:
    rows = [f'"{polarity}","7","Mon","NO_QUERY","{user}","{text}"\n' for polarity, user, text in tweets]
    (root / name).write_bytes("".join(rows).encode("latin-1"))
    return str(root)


def test_tweets_of_users(tmp_path: Path) -> None:
    tweets = [(0, "zoë", "so sad"), (4, "ann", "so glad"), (4, "zoë", "so so"), (0, "bob", "bad")]
    train, test = Sent140Source(write(tmp_path, tweets), min_examples=2, test_fraction=0.5, length=3).load()
    # Only zoë has two tweets, one of which is for testing.
    assert train.users == ("zoë",)
    assert (len(train), len(test)) == (1, 1)
    texts = {0: [3, 2, 0], 1: [2, 2, 0]}  # so sad, with sad first in the alphabet; so so
    label = int(train.targets[0])
    assert train.inputs.tolist() == [texts[label]]
    assert test.targets.tolist() == [1 - label]
    assert train.classes == ("negative", "positive")


def test_clients_are_users_and_are_tested_on_their_own_tweets(tmp_path: Path) -> None:
    write_sent140(tmp_path, users=4, least=10)
    source = Sent140Source(str(tmp_path), min_examples=11)
    data = FederatedDataModule(source, NaturalPartitioner(), num_clients=3)
    data.setup()
    assert data.users == (("user1",), ("user2",), ("user3",))
    assert data.client_sizes.tolist() == [9, 10, 10]
    assert data.client_test_sizes.tolist() == [2, 2, 3]


def test_the_published_test_file_without_its_neutral_tweets(tmp_path: Path) -> None:
    write_sent140(tmp_path, users=2)
    train, test = Sent140Source(str(tmp_path), test_fraction=None).load()
    assert (len(train), len(test)) == (13, 4)
    assert test.targets.tolist() == [0, 1, 0, 1]
    assert train.users == test.users == ("user0", "user1", "user2", "user3", "user5")


def test_words_of_glove(tmp_path: Path) -> None:
    write_sent140(tmp_path)
    write_glove(tmp_path)
    source = Sent140Source(str(tmp_path), vocabulary_size=7, glove=str(tmp_path / "glove.6B.100d.txt"))
    train, _ = source.load()
    assert sorted(set(train.inputs.flatten().tolist())) == [0, 1, 2, 3, 4, 5, 6]


def test_missing_files_are_told_with_the_way_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"Sentiment140 is not at '.*training\.1600000.*': get http.*zip"):
        Sent140Source(str(tmp_path)).check()
    write(tmp_path, [(0, "a", "b")])
    Sent140Source(str(tmp_path)).check()
    with pytest.raises(FileNotFoundError, match=r"Sentiment140 is not at '.*testdata\.manual"):
        Sent140Source(str(tmp_path), test_fraction=None).check()
    with pytest.raises(FileNotFoundError, match="no file of GloVe at"):
        Sent140Source(str(tmp_path), glove="absent.txt").check()


@pytest.mark.parametrize(
    ("tweets", "settings", "message"),
    [
        ([(0, "a", "b"), (3, "a", "b")], {}, r"Row 2 of '.*noemoticon\.csv' has the polarity '3', not 0, 2 or 4"),
        ([(0, "a", "b")], {"min_examples": 2}, r"No user of .* has `min_examples=2` tweets; the most .* is 1"),
        ([(0, "a", "b")], {}, r"`test_fraction=0\.2` of users' tweets are none"),
    ],
)
def test_files_that_do_not_do(
    tmp_path: Path, tweets: list[tuple[int, str, str]], settings: dict[str, int], message: str
) -> None:
    root = write(tmp_path, tweets)
    with pytest.raises(ValueError, match=message):
        Sent140Source(root, **settings).load()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("setting", "value"), [("vocabulary_size", 2), ("length", 0), ("min_examples", 0), ("test_fraction", 1.0)]
)
def test_settings_out_of_range(setting: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"`{setting}={value}` of Sent140Source"):
        Sent140Source(**{setting: value})  # type: ignore[arg-type]
