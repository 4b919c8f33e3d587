"""Several processes share a round's clients and give the numbers of one."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_world import World
from contract.empty import SOMETIMES
from contract.methods import METHODS
from contract.process_worker import (
    ROBUST,
    few_clients,
    in_scopes,
    in_stages,
    quadratic,
    run,
    summary,
    to_the_bit,
    with_buffers,
    with_metrics,
    without_clients,
)
from worlds import Quadratic, QuadraticData

from lfl.callbacks import Scaffold

pytestmark = pytest.mark.timeout(600)  # the first test waits for every method on two processes

HERE = Path(__file__).parent
WORKER = str(HERE / "process_worker.py")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1"}


def torchrun(*options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", *options]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def results_of(folder: Path, *runs: subprocess.Popen[str]) -> dict[str, Any]:
    outputs = [process.communicate(timeout=500)[0] for process in runs]
    assert not any(process.returncode for process in runs), "\n".join(outputs)
    return torch.load(folder / "results.pt", weights_only=False)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("two")
    worker = [WORKER, "machine", str(folder)]
    return results_of(folder, torchrun("--standalone", "--nproc_per_node=2", *worker))


@pytest.mark.parametrize("method", METHODS)
def test_two_processes_equal_one(method: str, two_processes: dict[str, Any], tmp_path: Path) -> None:
    check(two_processes[method], summary(run(method, tmp_path, devices=1)))


@pytest.mark.parametrize("method", [*ROBUST, "dp-fedavg", "local-noise"])
def test_rows_and_noise_are_equal_to_the_bit(method: str, two_processes: dict[str, Any], tmp_path: Path) -> None:
    assert torch.equal(two_processes["to the bit"][method], to_the_bit(method, tmp_path, 1))


def test_a_run_of_two_processes_is_resumed(two_processes: dict[str, Any], tmp_path: Path) -> None:
    """Each process keeps the rows of its own clients; the checkpoint has them all, each once."""
    check(two_processes["resumed"], summary(run("scaffold-2", tmp_path, devices=1, max_rounds=5)))
    check(two_processes["resumed twice"], summary(run("scaffold-2", tmp_path / "more", devices=1, max_rounds=7)))


def test_processes_without_clients(two_processes: dict[str, Any], tmp_path: Path) -> None:
    close(two_processes["few"], few_clients(tmp_path, 1, []).server.vector)
    close(two_processes["few with state"], few_clients(tmp_path, 1, [Scaffold()]).server.vector)


def test_stages_end_alike_on_all_processes(two_processes: dict[str, Any], tmp_path: Path) -> None:
    found, expected = two_processes["stages"], in_stages(tmp_path, 1)
    close(found["vector"], expected["vector"])
    assert found["stages"] == expected["stages"] > 0


@pytest.mark.parametrize("method", SOMETIMES)
def test_rounds_without_participants(method: str, two_processes: dict[str, Any], tmp_path: Path) -> None:
    found, expected = two_processes["nobody"][method], without_clients(method, tmp_path, 1)
    close(found["vector"], expected["vector"])
    assert found["ledger"] == expected["ledger"]


def test_metric_objects_meet_though_a_process_has_nothing_to_measure(
    two_processes: dict[str, Any], tmp_path: Path
) -> None:
    found, expected = two_processes["metrics"], with_metrics(tmp_path, 1)
    assert found == expected
    assert 0 < found["measured"][0] < 1


def test_clients_are_evaluated_where_they_live(two_processes: dict[str, Any], tmp_path: Path) -> None:
    """In every scope, each once, in the order of one process."""
    found, expected = two_processes["scopes"], in_scopes(tmp_path, 1)
    assert found["metrics"] == pytest.approx(expected["metrics"], abs=1e-12)
    assert {name.split("/")[0] for name in found["metrics"]} == {"server", "personal", "fine_tuned", "new"}
    assert [row[:4] for row in found["rows"]] == [row[:4] for row in expected["rows"]]
    for two, one in zip(found["rows"], expected["rows"], strict=True):
        assert two[4] == pytest.approx(one[4], abs=1e-12)


def test_buffers_are_joined(two_processes: dict[str, Any], tmp_path: Path) -> None:
    """Statistics are averaged over all clients, and counters take their maximum."""
    close(two_processes["buffers"], with_buffers(tmp_path, 1).server_state_dict())


def test_clients_without_state_are_dealt_by_work(two_processes: dict[str, Any]) -> None:
    found = two_processes["dealt"]
    for first, second in zip(*found["clients"], strict=True):
        assert not set(first) & set(second)
        assert len(first + second) == 5
        loads = [sum(found["steps"][client] for client in clients) for clients in (first, second)]
        assert abs(loads[0] - loads[1]) <= max(found["steps"][client] for client in first + second)
    assert any(client % 2 for client in found["clients"][0][0])


def test_clients_with_state_stay_at_home(two_processes: dict[str, Any]) -> None:
    for rank, rounds in enumerate(two_processes["at home"]["clients"]):
        assert all(client % 2 == rank for clients in rounds for client in clients)


def test_a_round_is_one_all_reduce(two_processes: dict[str, Any]) -> None:
    for name in ("dealt", "at home"):
        assert two_processes[name]["counts"] == [{"all_reduce": 1}] * 2


def test_sums_are_joined_whoever_has_them(two_processes: dict[str, Any]) -> None:
    three, once, again = [3.0] * 3, {"all_reduce": 1}, {"all_reduce": 2, "all_gather_object": 1, "all_gather": 2}
    expected = [
        ({"a": three, "b": 3.0}, again),
        ({"a": three, "b": 3.0}, once),
        ({"a": [2.0] * 3}, once),
        ({"a": three}, once),
        ({"a": three, "c": 2.0}, again),
        ({"a": [3.0] * 2, "c": 3.0}, again),
        ({}, once),
        ({"a": three}, again),
    ]
    for found, (joined, calls) in zip(two_processes["sums"], expected, strict=True):
        assert found["joined"] == joined
        assert found["calls"]["all_reduce"] == calls["all_reduce"]
        assert ("all_gather_object" in found["calls"]) == (calls is again)


def test_one_process_stops_all(two_processes: dict[str, Any]) -> None:
    """Before the sums of a round meet, this round is the last; after them, the next one."""
    assert two_processes["on_cohort_end"] == 2
    assert two_processes["on_round_end"] == 3


@pytest.mark.slow  # 21 s
def test_two_nodes_equal_one_process(tmp_path: Path) -> None:
    """Two torchruns that know each other's address, as on two machines."""
    worker = [WORKER, "nodes", str(tmp_path)]
    common = ["--nnodes=2", "--nproc_per_node=1", "--master_addr=127.0.0.1", f"--master_port={free_port()}"]
    found = results_of(tmp_path, *(torchrun(*common, f"--node_rank={node}", *worker) for node in (0, 1)))
    for method in ("fedavg", "scaffold-2"):
        close(found["vectors"][method], run(method, tmp_path / "one", devices=1).server.vector)
    close(found["vectors"]["quadratic"], quadratic(tmp_path, data=QuadraticData(7), module=Quadratic()).server.vector)
    first, second = found["writers"]
    assert any("metrics.csv" in name for name in first)
    assert second == []


@pytest.mark.timeout(240)
def test_the_command_line_starts_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(tmp_path, monkeypatch, capsys)
    args = ["fit", "--config=base.yaml", "--trainer.precision=64-true", "--trainer.participation.clients_per_round=7"]
    command = [sys.executable, "-m", "lfl", *args, "--trainer.devices=2"]
    two = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=200, check=False)
    assert two.returncode == 0, two.stderr
    assert world.lfl(*args)[0] == 0
    folders = [path.name for path in sorted((tmp_path / "runs").iterdir())]
    assert folders == ["run_000", "run_001"]
    paths = [tmp_path / "runs" / name / "checkpoints" / "last.ckpt" for name in folders]
    states = [torch.load(path, weights_only=True)["server"]["vector"] for path in paths]
    close(*states)


def check(two: dict[str, Any], one: dict[str, Any]) -> None:
    close(two["vector"], one["vector"])
    assert two["ledger"] == one["ledger"]
    for name in ("train/loss", "train_acc", "val_acc", "val_loss"):
        assert two[name] == pytest.approx(one[name], abs=1e-6), name


def close(two: Any, one: Any) -> None:
    """Partial sums meet in another order; float64."""
    torch.testing.assert_close(two, one, rtol=0, atol=1e-12)
