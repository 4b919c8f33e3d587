"""`lfl report`, as it is called."""

import csv
import subprocess
import sys
import time
from pathlib import Path

import pytest
from run_folders import config_of, make_comparison, make_run

from lfl.__main__ import main


def test_a_report_has_a_page_tables_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_comparison(tmp_path / "runs")
    output = tmp_path / "out"
    main(
        ["report", str(tmp_path / "runs"), "--output", str(output), "--target", "val_acc=0.7", "--title", "Two methods"]
    )
    assert capsys.readouterr().out == f"{output / 'report.html'}\n"
    assert {path.name for path in output.iterdir()} == {
        *("report.html", "report.md", "figures"),
        *(f"{name}.csv" for name in ("summary", "curves", "ledger", "seconds")),
    }
    axes = ("round", "mb", "mb_up", "mb_down", "sim", "seconds")
    figures = {path.name for path in (output / "figures").iterdir()}
    shown = ("val_acc", "targets")
    assert figures == {f"{name}_{axis}.{suffix}" for name in shown for axis in axes for suffix in ("png", "svg")}
    with (output / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["group"] for row in rows] == ["FedAvg", "Proximal"]
    assert [float(row["final_mean"]) for row in rows] == pytest.approx([0.5, 0.85])
    assert [row["round_to_val_acc_0.7_n"] for row in rows] == ["0", "2"]
    assert "<title>Two methods</title>" in (output / "report.html").read_text()


def test_names_metric_and_axis(tmp_path: Path) -> None:
    make_comparison(tmp_path / "runs")
    options = ["--metric", "train/loss", "--x", "sim", "--log", "y", "--names", "ours", "theirs"]
    main(["report", str(tmp_path / "runs"), "--output", str(tmp_path / "out"), *options])
    text = (tmp_path / "out" / "report.md").read_text()
    assert "# ours · theirs" in text
    assert text.index("train_loss_sim.png") < text.index("train_loss_round.png")
    page = (tmp_path / "out" / "report.html").read_text()
    assert 'id="logy" checked' in page
    assert 'id="logx" checked' not in page


def test_without_plotly_the_page_has_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    make_comparison(tmp_path / "runs")
    main(["report", str(tmp_path / "runs"), "--output", str(tmp_path / "out")])
    assert "pip install 'lfl[report]'" in capsys.readouterr().err
    assert (tmp_path / "out" / "report.html").read_text().count("data:image/svg+xml;base64,") == 6


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["nothing"], "no runs in 'nothing' (does not exist)"),
        (["runs", "--metric", "val_ac"], "did you mean val_acc?"),
        (["runs", "--target", "val_acc"], "is no target"),
        (["runs", "--names", "one"], "1 names (one) for 2 groups"),
        (["runs", "--wand", "digits"], "unknown argument `--wand`; did you mean `--wandb`?"),
        (["runs", "--metric"], "`--metric` needs a value."),
        (["runs", "--x", "bytes"], "`--x bytes` must be one of 'round', 'mb', "),
    ],
)
def test_errors_are_one_line(
    options: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_comparison(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["report", *options])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("lfl report: error: ")
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "report").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_comparison(tmp_path / "runs")
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit):
        main(["report", str(tmp_path / "runs"), "--output", str(tmp_path / "file")])
    error = capsys.readouterr().err
    assert error.startswith(f"lfl report: error: Cannot write {tmp_path / 'file' / 'summary.csv'}: ")
    assert "Errno" not in error


def test_unfinished_runs_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_comparison(tmp_path / "runs")
    make_run(tmp_path / "runs" / "fedavg" / "run_002", (0.1,), config_of(seed=2))
    main(["report", str(tmp_path / "runs"), "--output", str(tmp_path / "out")])
    note = "fedavg/run_002 is unfinished: round 1 of 4."
    assert note in capsys.readouterr().err
    assert note in (tmp_path / "out" / "report.html").read_text()


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom lfl.__main__ import main\n"
        "try: main(['report', '--help'])\nexcept SystemExit: pass\n"
        "print([m for m in ('torch', 'lightning', 'pandas', 'matplotlib', 'plotly') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "--target METRIC=VALUE" in done.stdout


@pytest.mark.slow
def test_two_hundred_runs_of_a_thousand_rounds(tmp_path: Path) -> None:
    """Ten seconds of processor time: this machine may be busy with other things."""
    for lr in range(40):
        for seed in range(5):
            config = config_of(seed, lr=0.01 * (lr + 1), max_rounds=1000)
            accuracies = [1 - 1 / (1 + n * (lr + seed + 1) / 1000) for n in range(1000)]
            make_run(tmp_path / "runs" / f"lr_{lr}" / f"run_{seed:03d}", accuracies, config)
    started = time.process_time()
    main(["report", str(tmp_path / "runs"), "--output", str(tmp_path / "out")])
    assert time.process_time() - started < 10
    assert (tmp_path / "out" / "report.html").stat().st_size < 5e6
