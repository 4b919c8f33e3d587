"""Sentiment140: tweets with their sentiment, told by emoticons; users are natural groups.

A. Go, R. Bhayani, L. Huang, "Twitter Sentiment Classification using Distant Supervision", 2009,
http://help.sentiment140.com/for-students
"""

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import torch
from jsonargparse.typing import OpenUnitInterval, PositiveInt
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_number
from lfl.data.columns import DataError
from lfl.data.csv_rows import rows_of
from lfl.data.examples import TensorData
from lfl.data.matching import split_each
from lfl.data.partition import IndexSets
from lfl.data.sources import Source
from lfl.vocabulary import Vocabulary, check_glove

_TRAIN = "training.1600000.processed.noemoticon.csv"
_TEST = "testdata.manual.2009.06.14.csv"
_COLUMNS = ("polarity", "id", "date", "query", "user", "text")
_LABELS = {"0": 0, "4": 1}
_NEUTRAL = "2"  # of which only the test file has some
_URL = "http://cs.stanford.edu/people/alecmgo/trainingandtestdata.zip"


class _Tweets(NamedTuple):
    texts: list[str]
    labels: list[int]
    users: list[str]

    def subset(self, places: list[int]) -> "_Tweets":
        texts, labels, users = ([column[place] for place in places] for column in self)
        return _Tweets(texts, labels, users)  # type: ignore[arg-type]  # columns of different types


class Sent140Source(Source):
    """Sentiment140, read from the CSV files of Stanford; class 0 is negative, 1 positive.

    Inputs are indices of words, (n, length) int32: 0 fills short tweets up, and 1 stands for words that the vocabulary
    does not have. Natural groups are the users, by name: `NaturalPartitioner` makes clients of them.

    Args:
        root: folder that holds the file ``training.1600000.processed.noemoticon.csv``.
        min_examples: users with fewer tweets are left out.
        test_fraction: share of each user's tweets that becomes the test set, the same in every run. None for the
            published test file, ``testdata.manual.2009.06.14.csv``, without its neutral tweets; few of its users are in
            the training set.
        length: words of a tweet; longer ones are cut.
        vocabulary_size: number of different indices, with the two that are reserved; that of the model.
        glove: file of GloVe, such as ``glove.6B.100d.txt``, whose first words are the vocabulary; give it to the model
            too. None for the most frequent words of the training set.

    Raises:
        ValueError: a value is out of range.
    """

    num_classes = 2

    def __init__(
        self,
        root: str = "data",
        min_examples: PositiveInt = 1,
        test_fraction: OpenUnitInterval | None = 0.2,
        length: PositiveInt = 30,
        vocabulary_size: PositiveInt = 10_000,
        glove: str | None = None,
    ) -> None:
        check_number("Sent140Source", "min_examples", min_examples, least=1, whole=True)
        check_number("Sent140Source", "length", length, least=1, whole=True)
        check_number("Sent140Source", "vocabulary_size", vocabulary_size, least=3, whole=True)
        if test_fraction is not None:
            check_number("Sent140Source", "test_fraction", test_fraction, above=0, below=1)
        self.root = root
        self.min_examples = min_examples
        self.test_fraction = test_fraction
        self.length = length
        self.vocabulary_size = vocabulary_size
        self.glove = glove

    @override
    def check(self) -> None:
        for name in (_TRAIN,) if self.test_fraction is not None else (_TRAIN, _TEST):
            path = Path(self.root) / name
            if not path.is_file():
                raise FileNotFoundError(
                    f"Sentiment140 is not at {str(path.resolve())!r}: get {_URL}, unpack it, and set `root` (now "
                    f"{self.root!r}) to the folder that then holds that file."
                )
        if self.glove is not None:
            check_glove(self.glove)

    @override
    def load(self) -> tuple[TensorData, TensorData]:
        self.check()
        train, test = self._read(_TRAIN), None if self.test_fraction is not None else self._read(_TEST)
        counts = Counter(train.users)
        kept = [place for place, user in enumerate(train.users) if counts[user] >= self.min_examples]
        if not kept:
            raise DataError(
                f"No user of {_TRAIN} has `min_examples={self.min_examples}` tweets; the most that one has is "
                f"{max(counts.values())}."
            )
        train = train.subset(kept)
        names = sorted({*train.users, *(test.users if test is not None else ())})
        if test is not None:
            vocabulary = self._vocabulary(train.texts)
            return self._data(train, vocabulary, names), self._data(test, vocabulary, names)
        held_out = self._held_out(train.users, names)
        vocabulary = self._vocabulary([train.texts[place] for place in (~held_out).nonzero().flatten().tolist()])
        pool = self._data(train, vocabulary, names)
        return pool.subset((~held_out).nonzero().flatten()), pool.subset(held_out.nonzero().flatten())

    def _vocabulary(self, texts: list[str]) -> Vocabulary:
        if self.glove is not None:
            return Vocabulary.of_glove(self.glove, self.vocabulary_size)
        return Vocabulary.of_texts(texts, self.vocabulary_size)

    def _held_out(self, users: list[str], names: list[str]) -> Tensor:
        """Mark the tweets for testing [n]: a share of each user's."""
        assert self.test_fraction is not None
        # Without the run's seed: the test set of a data set is the same in every run.
        _, test = split_each(IndexSets.from_owners(_numbers(users, names), len(names)), self.test_fraction, seed=0)
        is_test = torch.zeros(len(users), dtype=torch.bool)
        is_test[test.indices] = True
        if not is_test.any():
            raise DataError(
                f"`test_fraction={self.test_fraction}` of users' tweets are none: raise it, or `min_examples`."
            )
        return is_test

    def _data(self, tweets: _Tweets, vocabulary: Vocabulary, names: list[str]) -> TensorData:
        inputs = vocabulary.encoded(tweets.texts, self.length)
        groups = _numbers(tweets.users, names)
        return TensorData(inputs, torch.tensor(tweets.labels), groups, ("negative", "positive"), tuple(names))

    def _read(self, name: str) -> _Tweets:
        path = Path(self.root) / name
        found = _Tweets([], [], [])
        for number, (polarity, _, _, _, user, text) in rows_of(path, _COLUMNS, "latin-1"):
            if polarity == _NEUTRAL:
                continue
            if polarity not in _LABELS:
                raise DataError(f"Row {number} of {str(path)!r} has the polarity {polarity[:20]!r}, not 0, 2 or 4.")
            found.texts.append(text)
            found.labels.append(_LABELS[polarity])
            found.users.append(user)
        return found


def _numbers(users: list[str], names: list[str]) -> Tensor:
    number = {name: place for place, name in enumerate(names)}
    return torch.tensor([number[user] for user in users])
