"""A look at what evaluating clients together saves."""

import pytest

from tools.benchmarks import evaluation


@pytest.mark.slow
def test_a_look(capsys: pytest.CaptureFixture[str], tmp_path) -> None:
    evaluation.main(["LeNet-5", "--clients", "20", "--repeats", "1", "--output", str(tmp_path)])
    assert "2 classes each" in capsys.readouterr().out
    (header, *rows) = (tmp_path / "table.csv").read_text().splitlines()
    assert "ratio" in header
    assert len(rows) == 2
    assert all(float(row.split(",")[-3]) > 1 for row in rows)
