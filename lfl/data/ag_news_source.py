"""AG News: headlines and first sentences of news, in four classes.

X. Zhang, J. Zhao, Y. LeCun, "Character-level Convolutional Networks for Text Classification", NeurIPS 2015,
https://arxiv.org/abs/1509.01626
"""

from pathlib import Path

import torch
from jsonargparse.typing import PositiveInt
from typing_extensions import override

from lfl.arguments import check_number
from lfl.data.columns import DataError
from lfl.data.csv_rows import rows_of
from lfl.data.examples import TensorData
from lfl.data.sources import Source
from lfl.vocabulary import Vocabulary

_FOLDER = "ag_news_csv"
_CLASSES = ("World", "Sports", "Business", "Sci/Tech")
_URL = "https://s3.amazonaws.com/fast-ai-nlp/ag_news_csv.tgz"


class AGNewsSource(Source):
    """AG News, read from the published ``train.csv`` and ``test.csv``, whose columns are class, title and description.

    Inputs are indices of words, (n, length) int32: 0 fills short texts up, and 1 stands for words that the vocabulary
    does not have, which consists of the most frequent words of the training set.

    Args:
        root: folder that holds the folder ``ag_news_csv``.
        vocabulary_size: number of different indices, with the two that are reserved; that of the model.
        length: words of a text; longer ones are cut.

    Raises:
        ValueError: a value is out of range.
    """

    num_classes = len(_CLASSES)

    def __init__(self, root: str = "data", vocabulary_size: PositiveInt = 30_000, length: PositiveInt = 100) -> None:
        check_number("AGNewsSource", "vocabulary_size", vocabulary_size, least=3, whole=True)
        check_number("AGNewsSource", "length", length, least=1, whole=True)
        self.root = root
        self.vocabulary_size = vocabulary_size
        self.length = length

    @override
    def check(self) -> None:
        for name in ("train.csv", "test.csv"):
            if not self._path(name).is_file():
                raise FileNotFoundError(
                    f"AG News is not at {str(self._path(name).resolve())!r}: get {_URL}, unpack it, and set `root` "
                    f"(now {self.root!r}) to the folder that then holds {_FOLDER!r}."
                )

    @override
    def load(self) -> tuple[TensorData, TensorData]:
        self.check()
        texts, labels = self._read("train.csv")
        vocabulary = Vocabulary.of_texts(texts, self.vocabulary_size)
        train = TensorData(vocabulary.encoded(texts, self.length), torch.tensor(labels), classes=_CLASSES)
        texts, labels = self._read("test.csv")
        return train, TensorData(vocabulary.encoded(texts, self.length), torch.tensor(labels), classes=_CLASSES)

    def _path(self, name: str) -> Path:
        return Path(self.root) / _FOLDER / name

    def _read(self, name: str) -> tuple[list[str], list[int]]:
        """Texts, titles first, and labels, which count from 0."""
        path = self._path(name)
        texts, labels = [], []
        for number, (label, title, description) in rows_of(path, ("class", "title", "description"), "utf-8"):
            if label not in ("1", "2", "3", "4"):
                raise DataError(f"Row {number} of {str(path)!r} has the class {label[:20]!r}, which is not 1 to 4.")
            # A backslash stands for the end of a line in the published files.
            texts.append(f"{title} {description}".replace("\\", " "))
            labels.append(int(label) - 1)
        return texts, labels
