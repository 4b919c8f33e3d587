"""A report is handed to W&B in a run of its own: offline, and without a question, where there is no key."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib
import pytest
from run_folders import make_comparison
from wandb_records import read_records

from lfl.report.runs import ReportError
from lfl.report.wandb import check_installed, log_report


def test_offline_run_has_the_page_and_all_files(tmp_path: Path) -> None:
    make_comparison(tmp_path / "runs")
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "MPLCONFIGDIR": matplotlib.get_cachedir()}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    command = [sys.executable, "-m", "lfl", "report", "runs", "--wandb", "digits", "--title", "Two methods"]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=100
    )
    assert (done.returncode, done.stdout) == (0, "report/report.html\n"), done.stderr
    said = r"W&B is offline \(there is no API key\)\. The run lies in (.+); to upload it: wandb sync .+\n"
    assert re.fullmatch(said, done.stderr), done.stderr

    (folder,) = (tmp_path / "report" / "wandb").glob("offline-run-*")
    records: dict[str, list[Any]] = {}
    for record in read_records(folder):
        kind = record.WhichOneof("record_type")
        records.setdefault(kind, []).append(getattr(record, kind))
    (run,) = records["run"]
    assert (run.project, run.job_type, run.display_name) == ("digits", "report", "Two methods")
    (artifact,) = records["artifact"]
    names = [item.path for item in artifact.manifest.contents]
    assert (artifact.name, artifact.type) == ("report", "report")
    assert {"report.html", "report.md", "summary.csv", "curves.csv", "figures/val_acc_round.png"} <= set(names)
    assert not any("wandb" in name for name in names)
    (row,) = records["history"]
    logged = {"/".join(item.nested_key) or item.key: item.value_json for item in row.item}
    assert logged["report/_type"] == '"html-file"'
    shown = folder / "files" / logged["report/path"].strip('"')
    assert shown.read_bytes() == (tmp_path / "report" / "report.html").read_bytes()


def test_the_package_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    check_installed()
    monkeypatch.setattr("lfl.report.wandb.find_spec", lambda name: None)
    with pytest.raises(ReportError, match=r"`--wandb` needs W&B's package: pip install 'lfl\[wandb\]'\."):
        check_installed()


def test_a_refusal_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    def refuse(self: object) -> SimpleNamespace:
        raise wandb.errors.AuthenticationError("The API key is wrong.\nSee ...")

    monkeypatch.setattr("lfl.loggers.WandbLogger.experiment", property(refuse))
    with pytest.raises(ReportError, match=r"^W&B does not take the report: The API key is wrong\.$"):
        log_report(tmp_path / "report.html", "digits", "x")
