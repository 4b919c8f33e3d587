"""Words as numbers."""

from pathlib import Path

import pytest
import torch

from lfl.vocabulary import PADDING, UNKNOWN, Vocabulary, glove_vectors, tokens_of

TEXTS = ["The cat sat.", "the dog sat", "A cat!"]


def write_glove(path: Path, lines: list[str]) -> str:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


@pytest.fixture
def glove(tmp_path: Path) -> str:
    return write_glove(tmp_path / "glove.txt", ["the 1 2", "cat 3 4", ". . 5 6", "dog 7 8"])


def test_tokens_are_words_and_signs() -> None:
    assert tokens_of("@Ann: I can't wait... http://x.y") == [
        *("@", "ann", ":", "i", "can't", "wait", ".", ".", ".", "http", ":", "/", "/", "x", ".", "y")
    ]
    assert tokens_of("  \n") == []
    assert tokens_of("Ça va, Zoë?") == ["ça", "va", ",", "zoë", "?"]


def test_frequent_words_come_first_and_equal_ones_by_the_alphabet() -> None:
    assert Vocabulary.of_texts(TEXTS, size=100).words == (
        *("<pad>", "<unk>", "cat", "sat", "the"),
        *("!", ".", "a", "dog"),
    )
    assert Vocabulary.of_texts(reversed(TEXTS), size=5).words == ("<pad>", "<unk>", "cat", "sat", "the")


def test_texts_are_cut_and_padded() -> None:
    vocabulary = Vocabulary.of_texts(TEXTS, size=5)
    found = vocabulary.encoded(["", "the cat sat", "<pad> the zebra sat on the cat"], length=4)
    assert found.tolist() == [[PADDING] * 4, [4, 2, 3, PADDING], [UNKNOWN, UNKNOWN, UNKNOWN, 4]]
    assert found.dtype == torch.int32


def test_first_words_of_glove_with_their_vectors(glove: str) -> None:
    assert Vocabulary.of_glove(glove, size=5).words == ("<pad>", "<unk>", "the", "cat", ". .")
    assert glove_vectors(glove, size=4).tolist() == [[0, 0], [2, 3], [1, 2], [3, 4]]


def test_glove_that_is_missing_short_or_damaged(glove: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no file of GloVe at '.*/absent\.txt'.*glove\.6B\.zip"):
        glove_vectors(str(tmp_path / "absent.txt"), size=4)
    with pytest.raises(ValueError, match="has 4 words, but 98 are wanted"):
        glove_vectors(glove, size=100)
    damaged = write_glove(tmp_path / "damaged.txt", ["the 1 2", "cat 3", "dog 5 six"])
    with pytest.raises(ValueError, match=r"Line 2 of .* is not a word and 2 numbers"):
        glove_vectors(damaged, size=4)
    with pytest.raises(ValueError, match=r"Line 1 of .* is not a word"):
        glove_vectors(write_glove(tmp_path / "text.txt", ["no numbers"]), size=3)
