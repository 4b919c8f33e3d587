"""Costs of codecs: a line for each, and what has hooks in a step."""

import pytest
import torch

from tools.benchmarks import codecs


def test_every_codec_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = ("Sign", "FetchSGD, 5 x D / 20", "FLSS, R = 10, projected rounds")
    monkeypatch.setattr(codecs, "CODECS", {name: codecs.CODECS[name] for name in chosen})
    table = codecs.table_of_codecs([torch.Size([20, 10]), torch.Size([10])], rounds=1)
    assert [row[0] for row in table.rows] == list(chosen)
    assert [row[-1] for row in table.rows] == ["none", "none", "none"]


def test_hooks_are_timed_where_there_are_some() -> None:
    times = codecs.run(codecs.CODECS["STC, 1 %"](200), codecs.Ballast([torch.Size([200])]), rounds=2)
    assert (len(times.seconds["encode"]), len(times.seconds["on_server_step"])) == (4, 2)  # two clients, two rounds
    assert times.median("encode", 4) > 0 == times.median("decode", 4)


def test_the_basis_is_timed() -> None:
    table = codecs.table_of_basis(dim=100, rank=3, repeats=2)
    assert [row[0] for row in table.rows] == ["copy of [R, D]", "update"]
