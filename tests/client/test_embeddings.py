"""Which rows of which parameters stand for padding."""

from torch import nn

from lfl.client.embeddings import padding_rows


def test_rows_that_stand_for_padding() -> None:
    module = nn.ModuleDict({"a": nn.Embedding(3, 2, padding_idx=1), "b": nn.Embedding(3, 2), "c": nn.Linear(3, 2)})
    assert {name: mask.tolist() for name, mask in padding_rows(module).items()} == {
        "a.weight": [[False], [True], [False]]
    }
    assert list(padding_rows(nn.Embedding(3, 2, padding_idx=-1))) == ["weight"]
    assert padding_rows(nn.Embedding(3, 2, padding_idx=-1))["weight"].tolist() == [[False], [False], [True]]
