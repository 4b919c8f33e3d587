"""The small data set of sequences."""

import itertools
from pathlib import Path

import datasets

from tools.toy_text import write


def test_every_user_counts_by_a_step_of_its_own(tmp_path: Path) -> None:
    write(str(tmp_path / "text"), users=6, train=3, test=1)
    found = datasets.load_from_disk(str(tmp_path / "text"))
    assert (len(found["train"]), len(found["test"])) == (18, 6)
    for number, row in enumerate(found["train"]):
        ids = row["input_ids"]
        step = 1 + number // 3 % 5
        assert row["user"] == f"user {number // 3:02d}"
        assert 8 <= len(ids) <= 20
        assert row["labels"] == ids
        assert all((second - first) % 30 == step for first, second in itertools.pairwise(ids))
