"""Workloads are the same for all; contenders run in turns."""

import csv
import importlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lfl.trainer import FederatedTrainer
from tools.benchmarks import speed
from tools.benchmarks.flat_loop import FlatLoop
from tools.benchmarks.workloads import WORKLOADS, write
from tools.table import Table


def test_the_floor_does_the_same(tmp_path: Path) -> None:
    """One batch a client, so that shuffling does not matter: the loop by hand, and the trainer in all its ways."""
    workload = replace(WORKLOADS["many-small"], clients=200, per_round=20)
    data, rounds = workload.data(), 3
    data.batch_size = int(data.client_sizes.max())
    train = workload.tensors()[0]
    loop = FlatLoop(
        workload.model().backbone,
        train.inputs,
        train.targets,
        [data.partition.client(i) for i in range(200)],
        epochs=1,
        batch_size=data.batch_size,
        lr=0.05,
    )
    for participants in workload.participants(rounds).tolist():
        loop.run_round(participants)
    for engine, trace in (("sequential", False), ("sequential", True), ("vectorized", True)):
        trainer = FederatedTrainer(
            accelerator="cpu",
            engine=engine,
            trace_steps=trace,
            max_rounds=rounds,
            participation=workload.participation(),
            checkpoint=None,
            default_root_dir=tmp_path,
            enable_progress_bar=False,
        )
        trainer.fit(workload.model(), data)
        # float32: 60 steps of size 0.05 on numbers of size 0.1
        torch.testing.assert_close(trainer.server.vector, loop.server, rtol=0, atol=1e-5)


@pytest.mark.slow  # 44 s
@pytest.mark.timeout(300)
def test_contenders_run_in_turns(tmp_path: Path) -> None:
    arguments = ["many-small", "--rounds", "4", "--repeats", "1", "--only", "defaults"]
    speed.main([*arguments, "--output", str(tmp_path)])
    with (tmp_path / "many-small.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(line[""], line["processes"]) for line in lines] == [
        ("floor", "1"),
        ("lfl defaults", "1"),
        ("lfl defaults", "2"),
    ]
    assert [line["threads"] for line in lines] == ["1", "", ""]
    assert lines[0]["ratio"] == "1.00"
    assert all(float(line["ms"]) > 0 and float(line["peak MB"].replace(",", "")) > 100 for line in lines)


def test_defaults_are_held_against_the_best_setting_in_as_many_processes() -> None:
    table = Table("", ["", "processes", "threads", "ms", "ratio", "least"])
    for name, processes, ratio in (
        ("floor", 1, "1.00"),
        ("lfl defaults", 1, "0.63"),
        ("lfl defaults", 2, "0.50"),
        ("lfl sequential", 1, "0.90"),
        ("lfl vectorized", 1, "0.60"),
        ("lfl vectorized", 2, "0.40"),
        ("pfl", 2, "0.10"),
    ):
        table.add(name, str(processes), "1", "1.0", ratio, ratio)
    assert speed.against_best(table) == [
        "1 process(es): the defaults take 1.05 of the best, lfl vectorized",
        "2 process(es): the defaults take 1.25 of the best, lfl vectorized",
    ]


def test_a_workload_is_written_for_others(tmp_path: Path) -> None:
    write("mlp", 3, tmp_path / "work.pt")
    work = torch.load(tmp_path / "work.pt", weights_only=True)
    assert work["participants"].shape == (3, 10)
    assert sorted(i for client in work["clients"] for i in client.tolist()) == list(range(4000))
    assert [tuple(p.shape) for p in work["state"]] == [(200, 784), (200,), (10, 200), (10,)]


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_networks_of_the_peers_are_ours(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Plain torch, with the parameters in the same order: the same outputs."""
    monkeypatch.syspath_prepend(str(speed.PEERS))  # its scripts import it so
    ours = WORKLOADS[name].model().backbone
    theirs = importlib.import_module("networks").build(name)
    with torch.no_grad():
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            other.copy_(mine)
        x = torch.rand(2, *((3, 32, 32) if name in ("resnet", "pfl-cifar") else (1, 28, 28)))
        torch.testing.assert_close(theirs(x), ours(x), rtol=0, atol=1e-5)


def test_a_peers_script_runs_without_the_package(tmp_path: Path) -> None:
    command = [sys.executable, str(speed.PEERS / "pfl_run.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert "pfl_run.py WORK.pt --rounds 10" in done.stdout
