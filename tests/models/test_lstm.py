"""LSTMs that read words or characters."""

from pathlib import Path

import pytest
import torch
from both_engines import trained_by_both, words

from lfl.models import CharLSTM, TextLSTM


def gates(inputs: int, hidden: int) -> int:
    """Parameters of a layer in one direction: four gates, with two biases each."""
    return 4 * hidden * (inputs + hidden + 2)


def test_parameter_counts() -> None:
    assert sum(p.numel() for p in CharLSTM().parameters()) == 80 * 8 + gates(8, 256) + gates(256, 256) + 257 * 80
    layers = 2 * gates(100, 256) + 2 * gates(512, 256) + 513 * 5 + 6 * 2
    counts = {p.requires_grad: 0 for p in TextLSTM(trains_embedding=False).parameters()}
    for parameter in TextLSTM(trains_embedding=False).parameters():
        counts[parameter.requires_grad] += parameter.numel()
    assert counts == {False: 1_000_000, True: layers}
    assert sum(p.numel() for p in TextLSTM().parameters()) == 1_000_000 + layers


def test_last_word_decides_and_not_what_fills_up() -> None:
    model = TextLSTM(20, 3, 4, bidirectional=False, units=0).eval()
    text = torch.tensor([[5, 6, 7]])
    expected, _ = model.features[0].lstm(model.features[0].embedding(text))
    padded = torch.tensor([[5, 6, 7, 0, 0]], dtype=torch.int32)
    torch.testing.assert_close(model.features(padded), expected[:, -1])
    assert torch.isfinite(model(torch.zeros(1, 4, dtype=torch.int32))).all()  # of no words


def test_both_directions_end_at_opposite_ends() -> None:
    model = TextLSTM(20, 3, 4, units=0).eval()
    lstm = model.features[0].lstm
    text = torch.tensor([[5, 6, 7]])
    _, (state, _) = lstm(model.features[0].embedding(text))
    torch.testing.assert_close(model.features(text), torch.cat([state[-2], state[-1]], dim=1))


def test_characters_are_all_read() -> None:
    """Index 0 is a character here, the end of a line."""
    model = CharLSTM(vocabulary_size=5, dimensions=3, hidden=4)
    one, other = (model(torch.tensor([[1, 2, last]], dtype=torch.uint8)) for last in (0, 3))
    assert not one.equal(other)
    _, (state, _) = model.features.lstm(model.features.embedding(torch.tensor([[1, 2, 0]])))
    torch.testing.assert_close(one, model.head(state[-1]))


def test_vectors_of_glove(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_text("the 1 2\ncat 3 4\ndog 5 6\n")
    model = TextLSTM(vocabulary_size=4, hidden=4, glove=str(path), trains_embedding=False)
    embedding = model.features[0].embedding
    assert embedding.weight.tolist() == [[0, 0], [2, 3], [1, 2], [3, 4]]
    assert not embedding.weight.requires_grad
    assert TextLSTM(4, hidden=4, glove=str(path)).features[0].embedding.weight.requires_grad
    with pytest.raises(FileNotFoundError, match="no file of GloVe at"):
        TextLSTM(glove="absent.txt")


@pytest.mark.parametrize("trains_embedding", [True, False])
def test_both_engines_train_the_reader_of_words_alike(tmp_path: Path, trains_embedding: bool) -> None:
    before, one, other = trained_by_both(
        lambda: TextLSTM(20, 3, 4, num_classes=3, trains_embedding=trains_embedding), words(), 3, tmp_path
    )
    torch.testing.assert_close(one, other)
    assert (one != before).any()
    assert one[: 20 * 3].equal(before[: 20 * 3]) is not trains_embedding


def test_both_engines_train_the_reader_of_characters_alike(tmp_path: Path) -> None:
    texts = words(size=6).to(torch.uint8)
    before, one, other = trained_by_both(lambda: CharLSTM(6, 3, 4), texts, 6, tmp_path)
    torch.testing.assert_close(one, other)
    assert (one != before).any()
