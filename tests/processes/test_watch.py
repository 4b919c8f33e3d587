"""A process that dies ends the run, in seconds and with a message, and the last checkpoint is as good as ever."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from cli_world import World

DIE = '''
import os, signal, time
from pathlib import Path
from lfl.callbacks import FederatedCallback


class Die(FederatedCallback):
    """In round 3 one process dies as DIE says, and the others train for long where LONG is set."""

    def on_run_start(self, federation):
        self.rank = federation.processes.rank

    def on_cohort_start(self, cohort):
        if cohort.round.number != 3 or "DIE" not in os.environ:
            return
        how, rank = os.environ["DIE"].split()
        if self.rank != int(rank):
            Path("survivor").write_text(str(os.getpid()))
            time.sleep(float(os.environ.get("LONG", 0)))
            return
        Path("death").touch()
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise KeyError("a bad example")
'''
ARGS = ["fit", "--config=base.yaml", "--trainer.callbacks+=die.Die", "--trainer.max_rounds=4"]
ARGS += ["--trainer.precision=64-true", "--trainer.participation.clients_per_round=8"]
LAST = "runs/run_000/checkpoints/last.ckpt"
GO_ON = f"The last checkpoint is {LAST}: go on from it with `--ckpt_path last`.\n"


@pytest.fixture
def world(world: World) -> World:
    (world.folder / "die.py").write_text(DIE)
    return world


def lfl(die: str, *launcher: str, long: float = 0) -> tuple[int, str]:
    """Exit code and errors of two processes, one of which dies; no process may be left a while after that."""
    command = [sys.executable, *(launcher or ["-m"]), "lfl", *ARGS, "--trainer.devices=2"]
    environment = {**os.environ, "DIE": die, "LONG": str(long), "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()}
    with open("errors", "w") as errors:
        code = subprocess.run(
            command, env=environment, stdout=errors, stderr=errors, timeout=110, check=False
        ).returncode
    survivor = int(Path("survivor").read_text())
    while is_alive(survivor):
        assert time.time() - Path("death").stat().st_mtime < 30
        time.sleep(0.1)
    assert time.time() - Path("death").stat().st_mtime < 30
    return code, Path("errors").read_text()


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()


@pytest.mark.slow  # 22 s
def test_a_killed_process_ends_one_that_trains_for_long(world: World) -> None:
    code, errors = lfl("kill 1", long=100)
    assert code == 1
    assert f"lfl: error in process 0: Process 1 was killed by signal 9 (SIGKILL). {GO_ON}" in errors
    assert torch.load(LAST, weights_only=True)["round"] == 2
    assert world.lfl(*ARGS, "--ckpt_path=last")[0] == 0
    assert world.lfl(*ARGS)[0] == 0
    resumed, unbroken = (torch.load(f"runs/run_00{n}/checkpoints/last.ckpt", weights_only=True) for n in (1, 2))
    torch.testing.assert_close(resumed["server"]["vector"], unbroken["server"]["vector"], rtol=0, atol=1e-12)


def test_an_error_in_one_process_ends_the_other(world: World) -> None:
    code, errors = lfl("raise 1")
    assert code == 1
    assert "[rank1]: KeyError: 'a bad example'\n" in errors
    assert f"lfl: error in process 0: Process 1 ended with exit code 1: see its own message. {GO_ON}" in errors


@pytest.mark.slow
def test_the_death_of_the_launching_process_ends_the_other(world: World) -> None:
    code, errors = lfl("kill 0")
    assert code == -9
    assert f"lfl: error in process 1: Process 0 ended. {GO_ON}" in errors


@pytest.mark.slow  # 22 s
def test_under_torchrun(world: World) -> None:
    code, errors = lfl("kill 1", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m")
    assert code == 1
    assert "lfl: error in process 0: Another process of the run is gone (" in errors
    assert GO_ON in errors
    assert "exitcode: -9) local_rank: 1" in errors
