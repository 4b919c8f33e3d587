"""Words as numbers: a tokenizer, vocabularies, and the vectors of GloVe.

J. Pennington, R. Socher, C. Manning, "GloVe: Global Vectors for Word Representation", EMNLP 2014,
https://nlp.stanford.edu/projects/glove/
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

PADDING = 0
"""Index of what fills texts up to their common length; its vector is zero."""

UNKNOWN = 1
"""Index of words that a vocabulary does not have."""

_RESERVED = ("<pad>", "<unk>")
# Words with their apostrophes (don't), and every other sign by itself.
_TOKEN = re.compile(r"\w+(?:'\w+)*|[^\w\s]")


def tokens_of(text: str) -> list[str]:
    """The words and signs of a text, in lower case.

    Example:
        >>> tokens_of("Don't panic, it's 42!")
        ["don't", 'panic', ',', "it's", '42', '!']
    """
    return _TOKEN.findall(text.lower())


@dataclass(frozen=True)
class Vocabulary:
    """Different words, each with an index.

    Args:
        words: by index; the first two stand for padding and for all words that are not among them.

    Example:
        >>> vocabulary = Vocabulary.of_texts(["a rose is a rose", "a daisy"], size=4)
        >>> vocabulary.words
        ('<pad>', '<unk>', 'a', 'rose')
        >>> vocabulary.encoded(["a rose", "A daisy is no rose"], length=4)
        tensor([[2, 3, 0, 0],
                [2, 1, 1, 1]], dtype=torch.int32)
    """

    words: tuple[str, ...]

    @classmethod
    def of_texts(cls, texts: Iterable[str], size: int) -> "Vocabulary":
        """The most frequent words of some texts, of equally frequent ones the first in the alphabet.

        Args:
            texts: to be counted.
            size: number of indices, at most, with the two that are reserved.
        """
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(tokens_of(text))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return cls((*_RESERVED, *ranked[: size - len(_RESERVED)]))

    @classmethod
    def of_glove(cls, path: str, size: int) -> "Vocabulary":
        """The first words of a file of GloVe, which are the most frequent ones of what it was made of."""
        return cls((*_RESERVED, *read_glove(path, size)[0]))

    def __len__(self) -> int:
        return len(self.words)

    def encoded(self, texts: Sequence[str], length: int) -> Tensor:
        """The indices of texts' words, (texts, length) int32; long texts are cut, short ones padded at their ends."""
        rows = np.full((len(texts), length), PADDING, dtype=np.int32)
        for row, text in zip(rows, texts, strict=True):
            numbers = [self._numbers.get(word, UNKNOWN) for word in tokens_of(text)[:length]]
            row[: len(numbers)] = numbers
        return torch.from_numpy(rows)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        # Backwards, so that of equal words the first counts. The reserved ones are no words that a text may have.
        known = list(enumerate(self.words))[len(_RESERVED) :]
        return {word: number for number, word in reversed(known)}


def glove_vectors(path: str, size: int) -> Tensor:
    """The vectors of ``Vocabulary.of_glove(path, size)``, (size, dimensions) float32.

    That of padding is zero, that of unknown words the mean of the others.
    """
    vectors = read_glove(path, size)[1]
    return torch.cat([torch.zeros(1, vectors.shape[1]), vectors.mean(0, keepdim=True), vectors])


def check_glove(path: str) -> None:
    """Raises FileNotFoundError, with the way to get the file, if it is not there."""
    if not Path(path).is_file():
        raise FileNotFoundError(
            f"There is no file of GloVe at {str(Path(path).resolve())!r}: unpack glove.6B.zip of "
            "https://nlp.stanford.edu/projects/glove/ there, and set `glove` to a file of it, such as "
            "glove.6B.100d.txt."
        )


def read_glove(path: str, size: int) -> tuple[list[str], Tensor]:
    """The first ``size - 2`` words of a file of GloVe, and their vectors (size - 2, dimensions).

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it has fewer words, or a line is not a word and as many numbers as in the first line.
    """
    check_glove(path)
    count = size - len(_RESERVED)
    words: list[str] = []
    rows: list[str] = []
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in itertools.islice(file, count):
            # Words of some files have spaces in them, numbers never.
            width = len(rows[0].split()) if rows else len(line.split()) - 1
            word, *numbers = line.rstrip().rsplit(" ", width)
            words.append(word)
            rows.append(" ".join(numbers))
    if len(rows) < count:
        raise ValueError(f"{path!r} has {len(rows)} words, but {count} are wanted, beside padding and unknown ones.")
    return words, torch.from_numpy(np.stack([_vector(row, rows[0], path, place) for place, row in enumerate(rows)]))


def _vector(row: str, first: str, path: str, place: int) -> np.ndarray:
    try:
        found = np.array(row.split(), dtype=np.float32)
    except ValueError:
        found = np.empty(0, dtype=np.float32)
    if not len(found) or len(found) != len(first.split()):
        raise ValueError(
            f"Line {place + 1} of {path!r} is not a word and {len(first.split())} numbers, as the first one is: it is "
            "no file of GloVe, or damaged."
        )
    return found
