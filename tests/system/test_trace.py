"""Times from a file: which row holds, and errors that name file, line and column."""

from pathlib import Path

import pytest
import torch
from worlds import train

from lfl.checkpointing import Checkpointing
from lfl.storage.checkpoint_file import CheckpointError
from lfl.system import TraceTimes, Workload

IDS = torch.tensor([0, 1, 2])


def written(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text)
    return path


def test_a_row_holds_until_the_clients_next_one(tmp_path: Path) -> None:
    path = written(tmp_path, "round, client, seconds\n4,1,7.5\n1,0,1\n1,1,2\n3,2,3\n\n9,2,0\n")
    trace = TraceTimes(path, communication=0.5)
    trace.check(3)
    found = [trace.compute_seconds(IDS, number, 0).tolist() for number in (1, 3, 4, 8, 9, 1000)]
    assert found == [[1, 2, 3], [1, 2, 3], [1, 7.5, 3], [1, 7.5, 3], [1, 7.5, 0], [1, 7.5, 0]]
    assert trace.round_seconds(IDS[:2], torch.zeros(2), 4, 0) == {"time": 8.0}
    one = TraceTimes(written(tmp_path, "client,seconds\n1,2\n0,1\n2,4\n"))
    assert one.client_seconds(torch.tensor([2, 0]), None, 5, 0).tolist() == [4.0, 1.0]


def test_rates_of_links(tmp_path: Path) -> None:
    trace = TraceTimes(written(tmp_path, "client,seconds,up,down\n0,1,10,100\n1,2,,50\n2,3,5,\n"))
    bits = torch.tensor([100.0, 100.0, 100.0])
    times = trace.client_times(IDS, bits, 1, 0, 2 * bits)
    assert times.download.tolist() == [2.0, 4.0, 0.0]
    assert times.upload.tolist() == [10.0, 0.0, 20.0]
    with pytest.raises(ValueError, match="has rates, for which the size of the model must be known"):
        trace.client_seconds(IDS, None, 1, 0)
    trace.prepare(Workload(IDS, lambda *_: IDS, lambda: IDS, 50.0))
    assert trace.client_seconds(IDS, None, 1, 0).tolist() == [6.5, 3.0, 13.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("client,seconds\n0,1\n1,fast\n", "'fast' in line 3 of the trace '{}', column 'seconds', must be a number"),
        (
            "client,seconds\n0,-1\n",
            "'-1' in line 2 of the trace '{}', column 'seconds', must be a number of at least 0",
        ),
        ("client,seconds\n\n0.5,1\n", "'0.5' in line 3 of the trace '{}', column 'client', must be a whole number"),
        ("client,seconds,round\n0,1,0\n", "'0' in line 2 of the trace '{}', column 'round', must be a whole number of"),
        ("client,seconds,up\n0,1,0\n", "'0' in line 2 of the trace '{}', column 'up', must be a number greater than 0"),
        ("client,seconds,round\n0,1,9999999999\n", "'9999999999' in line 2 of the trace '{}', column 'round', must be"),
        ("client,seconds\n0,nan\n", "'nan' in line 2 of the trace '{}', column 'seconds'"),
        ("client,seconds\n0,\n", "'' in line 2 of the trace '{}', column 'seconds'"),
        ("client,seconds\n0,1\n0,2\n", "Client 0 has a second row for round 1 in line 3 of the trace '{}'"),
        ("client,seconds\n0,1,2\n", "Line 2 of the trace '{}' has 3 cells instead of 2."),
        ("client,second\n0,1\n", "The trace '{}' has the column 'second' (line 1): the columns are client, seconds"),
        ("client\n0\n", "The trace '{}' has no column 'seconds' (line 1)"),
        ("client,seconds\n", "The trace '{}' has no rows (line 1)"),
        ("", "The trace '{}' has no column 'client' (line 1)"),
    ],
)
def test_errors_name_file_line_and_column(text: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ValueError) as refused:  # noqa: PT011  # compared below
        TraceTimes(path)
    assert str(refused.value).startswith(message.format(path))


def test_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="There is no trace at"):
        TraceTimes(tmp_path / "none.csv")
    with pytest.raises(ValueError, match="has no row for client 1 of 3"):
        TraceTimes(written(tmp_path, "client,seconds\n0,1\n2,1\n")).check(3)


def test_a_run_is_resumed_with_the_same_times_only(tmp_path: Path) -> None:
    def trace(last: int, reverse: bool = False) -> TraceTimes:
        rows = sorted([*(f"{i},{i + 1}\n" for i in range(7)), f"7,{last}\n"], reverse=reverse)
        return TraceTimes(written(tmp_path, "client,seconds\n" + "".join(rows)))

    folder = tmp_path / "runs"
    unbroken = train([], folder, system=trace(8), max_rounds=2, checkpoint=Checkpointing(every_n_rounds=1))
    path = str(Path(unbroken.log_dir) / "checkpoints" / "last.ckpt")
    resumed = train([], folder, system=trace(8, reverse=True), max_rounds=3, ckpt_path=path)
    assert resumed.current_round == 3
    with pytest.raises(CheckpointError, match=r"system\.fingerprint"):
        train([], folder, system=trace(9), ckpt_path=path)
