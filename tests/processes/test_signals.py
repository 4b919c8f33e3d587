"""SIGINT and SIGTERM end a run in good order, and it goes on from there."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from cli_world import World
from worlds import mlp, train

from lfl.callbacks import FederatedCallback
from lfl.checkpointing import Checkpointing
from lfl.processes.signals import GracefulSignals, StopRequest, how_it_ended

SLOW = '''
import os, signal, time
from pathlib import Path
from lfl.callbacks import FederatedCallback


class Slow(FederatedCallback):
    """Takes its time in round 2, and says so by a file."""

    def on_round_end(self, round):
        if round.number == 2 and os.environ.get("SLOW"):
            Path("waiting").touch()
            for _ in range(int(os.environ["SLOW"])):
                time.sleep(0.1)


class Interrupted(FederatedCallback):
    def __init__(self) -> None:
        raise KeyboardInterrupt


class Kill(FederatedCallback):
    """Sends this process a signal in round 2."""

    def on_round_end(self, round):
        if round.number == 2 and os.environ.get("KILL"):
            signal.raise_signal(int(os.environ["KILL"]))
'''


@pytest.fixture
def world(world: World) -> World:
    (world.folder / "slow.py").write_text(SLOW)
    return world


def checkpoint_rounds(world: World, run: int) -> int:
    return torch.load(world.folder / f"runs/run_{run:03d}/checkpoints/last.ckpt", weights_only=True)["round"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_round_and_the_run_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch, number: int, code: int
):
    args = ("fit", "--config", "base.yaml", "--trainer.max_rounds=4", "--trainer.checkpoint.every_n_rounds=10")
    args += ("--trainer.callbacks+=slow.Kill", "--trainer.callbacks+=Scaffold")
    handler = signal.getsignal(number)
    monkeypatch.setenv("KILL", str(int(number)))
    found, out, err = world.lfl(*args)
    assert (found, err) == (code, "")
    assert "Stopping after this round, with a checkpoint; once more to stop at once.\n" in out
    assert "val_acc" in out  # the table
    assert signal.getsignal(number) == handler
    assert checkpoint_rounds(world, 0) == 2
    monkeypatch.delenv("KILL")
    assert world.lfl(*args, "--ckpt_path=last")[0] == 0
    assert world.lfl(*args)[0] == 0
    assert world.metrics(1) == world.metrics(2)


@pytest.mark.parametrize(("number", "end"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_script_does_not_go_on_with_half_a_model(number: int, end: type[BaseException], tmp_path: Path):
    """The run has ended in good order, and so ends what called it."""

    class Signal(FederatedCallback):
        def on_round_end(self, round):
            if round.number == 2:
                signal.raise_signal(number)

    handler = signal.getsignal(number)
    module = mlp()
    with pytest.raises(end) as raised:
        train([Signal()], tmp_path, module, checkpoint=Checkpointing(), max_rounds=4)
    assert getattr(raised.value, "code", 143) == 143
    saved = torch.load(next(tmp_path.glob("*/checkpoints/last.ckpt")), weights_only=True)
    assert saved["round"] == 2
    assert all(torch.equal(value, saved["state_dict"][name]) for name, value in module.state_dict().items())
    assert signal.getsignal(number) == handler


def test_a_second_signal_ends_at_once(world: World):
    args = ["fit", "--config", "base.yaml", "--trainer.callbacks+=slow.Slow", "--trainer.max_rounds=3"]
    run = subprocess.Popen(
        [sys.executable, "-m", "lfl", *args],
        env={**os.environ, "SLOW": "600", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not Path("waiting").exists():
            assert run.poll() is None
            time.sleep(0.05)
        run.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert run.poll() is None  # the round is not over
        run.send_signal(signal.SIGTERM)
        out, err = run.communicate(timeout=5)
    finally:
        run.kill()
    assert run.returncode == -signal.SIGTERM  # to a shell: 143
    assert "once more to stop at once" in out
    assert err == ""
    assert checkpoint_rounds(world, 0) == 1
    assert "round 2" not in world.fit("--trainer.callbacks+=slow.Slow", "--trainer.max_rounds=1", "--ckpt_path=last")


def test_an_interrupt_before_the_rounds_is_one_line(world: World):
    found = world.lfl("fit", "--config", "base.yaml", "--trainer.callbacks+=slow.Interrupted")
    assert found == (130, "", "lfl: interrupted\n")


def test_systems_without_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(signal, "SIGTERM")
    request, before = StopRequest(), signal.getsignal(signal.SIGINT)
    with GracefulSignals(request, lambda text: None):
        signal.raise_signal(signal.SIGINT)
    assert request.signal == signal.SIGINT
    assert signal.getsignal(signal.SIGINT) is before


def test_exit_codes_in_words() -> None:
    assert how_it_ended(-signal.SIGKILL) == "was killed by signal 9 (SIGKILL)"
    assert how_it_ended(-99) == "was killed by signal 99"
    assert how_it_ended(3) == "ended with exit code 3: see its own message"
