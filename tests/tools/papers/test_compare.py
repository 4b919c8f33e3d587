"""The comparison on few rounds."""

import csv
from pathlib import Path

import pytest

from tools.papers import compare


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # whatever Lightning deprecates; the runs are the subject
def test_quick_comparison_has_a_line_for_each_method(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare.main(["--quick", "--output", str(tmp_path)])
    with (tmp_path / "table.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["method"] for line in lines] == [m.name for m in compare.METHODS]
    sent = {line["method"]: float(line["MB up"].replace(",", "")) for line in lines}
    assert sent["SSF 0.05"] < sent["SSF 0.2"] < sent["SSF 0.5"] < sent["FedAvg"] < sent["SCAFFOLD"]
    assert all(float(line[f"s / round {engine}."]) > 0 for line in lines for engine in ("seq", "vec"))
    assert (tmp_path / "curves.png").exists()
    assert "SCAFFOLD" in capsys.readouterr().out
