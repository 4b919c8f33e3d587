"""Metrics of single clients."""

from pathlib import Path

from run_folders import make_comparison

from lfl.report.clients import client_values
from lfl.report.groups import compare


def test_the_last_evaluation_of_all_seeds_by_scope(tmp_path: Path) -> None:
    make_comparison(tmp_path)
    for seed in (0, 1):
        rows = [
            "round,scope,client,examples,val_loss,val_acc",
            "2,server,0,5,1.0,0.1",
            f"4,server,0,5,1.0,0.{5 + seed}",
        ]
        rows += ["4,server,1,5,1.0,0.7", "2,personal,0,5,1.0,0.9", "2,personal,1,5,1.0,"]
        (tmp_path / "fedavg" / f"run_00{seed}" / "clients.csv").write_text("\n".join(rows) + "\n")
    groups = compare([tmp_path]).groups
    name, values = client_values(groups, "val_acc")
    assert name == "val_acc"
    assert {scope: {g: v.tolist() for g, v in of.items()} for scope, of in values.items()} == {
        "personal": {"FedAvg": [0.9, 0.9]},
        "server": {"FedAvg": [0.5, 0.7, 0.6, 0.7]},
    }
    assert client_values(groups, "train/loss")[0] == "val_acc"


def test_none_where_clients_were_not_evaluated(tmp_path: Path) -> None:
    assert client_values(compare([make_comparison(tmp_path)]).groups, "val_acc") == ("val_acc", {})
