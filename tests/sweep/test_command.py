"""`lfl sweep` makes the runs that `lfl fit` would make, and goes on wherever it was ended."""

import csv
import multiprocessing
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_world import World
from inline_pool import InlinePool

from lfl.__main__ import main
from lfl.sweep import workers
from lfl.sweep.folder import finished_folder

FORK: Any = multiprocessing.get_context("fork")
METHODS = ("fedavg", "scaffold")
SEEDS = ("0", "1")


@pytest.fixture
def here(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world whose sweeps make their runs in this process."""
    monkeypatch.setattr("lfl.sweep.command.WorkerPool", InlinePool)
    return world


def write_methods(world: World, rounds: int = 2) -> None:
    def edit(callbacks: list[str]) -> Callable[[dict], None]:
        return lambda config: config["trainer"].update(callbacks=callbacks, max_rounds=rounds)

    world.write("fedavg.yaml", edit([]))
    world.write("scaffold.yaml", edit(["Scaffold"]))


def metrics(folder: Path) -> dict[str, bytes]:
    """The bytes of each finished run's metrics, by its name."""
    found = {path.parent.name: finished_folder(path.parent) for path in folder.glob("*/finished.json")}
    return {name: (attempt / "metrics.csv").read_bytes() for name, attempt in found.items() if attempt is not None}


def sweep(world: World, *args: str) -> str:
    code, out, err = world.lfl("sweep", *args)
    assert (code, err) == (0, "")
    return out


# -- in this process -----------------------------------------------------------------------------------------


def test_every_run_is_named_and_has_its_results(here: World) -> None:
    out = sweep(here, "--config", "base.yaml", "--optimizer.lr", "0.1,0.2", "--seed_everything", "0,1")
    names = [f"lr={lr},seed_everything={seed}" for lr in ("0.1", "0.2") for seed in SEEDS]
    assert out.splitlines()[0] == "4 runs in sweeps/sweep_000"
    assert [line.partition(": ")[0] for line in out.splitlines()[1:-1]] == [
        f"[{n}/4] {x}" for n, x in enumerate(names, 1)
    ]
    assert out.splitlines()[-1] == "All 4 runs are finished: sweeps/sweep_000/results.csv"
    with (here.folder / "sweeps/sweep_000/results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["run"] for row in rows] == names
    assert {row["state"] for row in rows} == {"finished"}
    assert len({row["train/loss"] for row in rows}) == 4
    recorded = yaml.safe_load((here.folder / "sweeps/sweep_000/sweep.yaml").read_text())
    assert recorded["command"][:2] == ["--config", "base.yaml"]
    assert recorded["runs"][names[1]]["values"] == {"optimizer.lr": "0.1", "seed_everything": "1"}


def test_the_same_command_keeps_what_is_finished_and_tries_the_rest(here: World) -> None:
    words = ["--config", "base.yaml", "--optimizer.lr", "0.1,1e30", "--trainer.max_rounds", "3"]
    code, out, _ = here.lfl("sweep", *words)
    folder = here.folder / "sweeps/sweep_000"
    assert code == 1
    assert "1 of 2 runs failed:\n  lr=1e30: " in out
    assert f"({Path('sweeps/sweep_000/lr=1e30/log.txt')})" in out
    assert "To try the others again: lfl sweep --resume sweeps/sweep_000" in out
    kept = (folder / "lr=0.1/log.txt").read_bytes()

    for again in (words, ["--resume", "sweeps/sweep_000"]):
        code, out, _ = here.lfl("sweep", *again)
        assert code == 1
        assert out.startswith("2 runs in sweeps/sweep_000, of which 1 are finished\n[2/2] lr=1e30: failed")
    assert (folder / "lr=0.1/log.txt").read_bytes() == kept
    assert [path.name for path in (here.folder / "sweeps").iterdir()] == ["sweep_000"]


def test_lost_results_are_made_again(here: World) -> None:
    sweep(here, "--config", "base.yaml", "--output", "out", "--seed_everything", "0,1,2")
    folder = here.folder / "out"
    results = (folder / "results.csv").read_text()
    shutil.rmtree(folder / "seed_everything=0/run_000")
    (folder / "seed_everything=1/finished.json").write_text("")
    out = sweep(here, "--resume", "out")
    assert out.startswith("3 runs in out, of which 1 are finished\n[2/3] seed_everything=0: finished, round 2/2")
    # What was damaged went on where nothing was left to do.
    again = results.replace("seed_everything=1/run_000", "seed_everything=1/run_001")
    assert (folder / "results.csv").read_text() == again


def test_a_named_folder_grows_and_refuses_other_settings(here: World) -> None:
    words = ["--config", "base.yaml", "--output", "out", "--seed_everything"]
    sweep(here, *words, "0", "1")
    assert "3 runs in out, of which 2 are finished" in sweep(here, *words, "0", "1", "2")
    for also in ([], ["--print"]):
        message = here.refused("sweep", *words, "0", "1", "2", "--trainer.max_rounds", "3", *also)
        assert "was begun with: `--trainer.max_rounds` was not given and is now 3. Put it back" in message
        message = here.refused("sweep", *words, "1", "2", *also)
        assert message.startswith("out holds another sweep, with a run 'seed_everything=0' that this one has not")
    here.write("base.yaml", lambda config: config["trainer"].update(max_rounds=3))
    for again in ([*words, "0", "1", "2"], ["--resume", "out"]):
        message = here.refused("sweep", *again)
        assert message.startswith("The settings of 'seed_everything=0' are not those that out was begun with")


def test_missing_data_is_found_before_the_first_run(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = ["--data.source", "Digits", "TorchvisionSource"]
    words = ["--config", "base.yaml", *sources, "--seed_everything", "0", "1"]
    message = here.refused("sweep", *words)
    assert message.startswith("source=TorchvisionSource,seed_everything=0: CIFAR10 is not at '")
    assert not (here.folder / "sweeps").exists()
    message = here.refused("sweep", "--config", "base.yaml", "--data.partition_path", "none.pt", "--output", "out")
    assert message.endswith("There is no partition at 'none.pt'; `Partition.save` writes one.")
    assert not (here.folder / "out").exists()
    assert len(sweep(here, *words, "--print").splitlines()) == 4  # it may be there where the commands are run


def test_data_is_looked_for_once_where_it_is_the_same_and_not_for_what_is_finished(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []
    monkeypatch.setattr("lfl.sweep.command.prepare_data", lambda arguments: looked.append(list(arguments)))
    words = ["--config", "base.yaml", "--output", "out", "--data.batch_size", "32,64", "--seed_everything"]
    sweep(here, *words, "0", "1")
    assert looked == [["--config=base.yaml", f"--data.batch_size={n}", "--seed_everything=0"] for n in (32, 64)]
    looked.clear()
    shutil.rmtree(here.folder / "out/batch_size=64,seed_everything=1")
    sweep(here, "--resume", "out")
    assert looked == [["--config=base.yaml", "--data.batch_size=64", "--seed_everything=1"]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--optimizer.lrr", "0.1,0.2"], "lrr=0.1: `optimizer.lrr`: SGD has no argument `lrr`; did you mean `lr`?"),
        (
            ["--seed_everything", "0,no"],
            "seed_everything=no: `seed_everything=no` must be a whole number of at least 0.",
        ),
        (["--config", "no.yaml,base.yaml"], "no: "),
        (["--seed_everything", "0,00"], "seed_everything=0 and seed_everything=00 are the same settings"),
        (["--config", "seed.yaml"], "seed_everything=1 and seed_everything=2 are the same settings: what differs is"),
        (["--trainer.default_root_dir", "a,b"], "`--trainer.default_root_dir` is not for sweeps: the runs lie in the"),
        (
            ["--print_config"],
            "`--print_config` is not for sweeps: `lfl fit --print_config` prints the config of one run.",
        ),
        (["--seed_everything", "0,1", "--resume", "x"], "`--resume` takes all settings from x/sweep.yaml"),
        (["--seed_everything", "0,1", "--optimizer.lr"], "`--optimizer.lr` has no value."),
        (["--jobs", "0"], "`--jobs 0` must be a whole number of at least 1."),
        (["--jobs", "two"], "`--jobs two` must be a whole number."),
        (["--job", "2"], "unknown argument `--job`; did you mean `--jobs`?"),
        (["--outptu", "out", "--seed_everything", "0,1"], "unknown argument `--outptu`; did you mean `--output`?"),
        (["--zzz", "2"], "run: unknown argument `--zzz`."),
        (["--seed_everything", "0,1", "--grid", "no.yaml"], "`--grid no.yaml` cannot be read: No such file"),
    ],
)
def test_what_is_wrong_is_said_before_any_run_begins(here: World, words: list[str], message: str) -> None:
    here.write("seed.yaml", lambda config: config.update(seed_everything=0))
    varied = ["--seed_everything", "1,2"] if "seed.yaml" in words else []
    assert here.refused("sweep", "--config", "base.yaml", *varied, *words).startswith(message)
    assert not (here.folder / "sweeps").exists()


def test_resuming_what_is_no_sweep(here: World) -> None:
    assert here.refused("sweep", "--resume", "nowhere").startswith("nowhere is not the folder of a sweep")


def test_printed_commands_run(here: World) -> None:
    words = ["--config", "base.yaml", "--model.backbone.hidden", "[4, 4],[8]"]
    lines = sweep(here, *words, "--print").splitlines()
    assert [shlex.split(line) for line in lines] == [
        ["lfl", "fit", "--config=base.yaml", f"--model.backbone.hidden={hidden}"] for hidden in ("[4, 4]", "[8]")
    ]
    placed = sweep(here, *words, "--print", "--output", "a b").splitlines()
    for line in (lines[0], placed[1]):
        main(shlex.split(line)[1:])
    assert (here.folder / "runs/run_000/metrics.csv").exists()
    assert (here.folder / "a b/hidden=8/run_000/metrics.csv").exists()
    assert not (here.folder / "sweeps").exists()


def test_the_command_of_a_wandb_sweep_runs(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

    out = sweep(here, "--config", "base.yaml", "--optimizer.lr", "0.1,0.2", "--wandb", "w.yaml")
    assert out == "wandb sweep w.yaml\n"
    content = yaml.safe_load((here.folder / "w.yaml").read_text())
    assert content["parameters"] == {"optimizer.lr": {"values": [0.1, 0.2]}}
    given = create_sweep_command_args({"args": {"optimizer.lr": {"value": 0.2}}})["args"]
    command = create_sweep_command(content["command"])
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    main([*(word for word in command[1:] if word != "${args}"), *given])
    assert (command[0], command[-1], content["program"]) == ("${program}", "${args}", "lfl")
    assert ",0.2," in here.metrics()


def test_a_grid_file_with_variants(here: World) -> None:
    write_methods(here)
    grid = {
        "method": {"plain": {"config": "fedavg.yaml"}, "controls": {"config": "scaffold.yaml", "optimizer.lr": 0.05}}
    }
    (here.folder / "grid.yaml").write_text(yaml.safe_dump(grid))
    sweep(here, "--grid", "grid.yaml", "--output", "out")
    here.lfl("fit", "--config", "scaffold.yaml", "--optimizer.lr", "0.05")
    assert metrics(here.folder / "out")["controls"] == here.metrics().encode()


def test_help_says_how_lists_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["sweep", "--help"])
    out = capsys.readouterr().out
    assert end.value.code == 0
    assert "Commas and spaces separate them" in out
    assert all(option in out for option in ("--jobs", "--output", "--resume", "--print", "--wandb", "--grid"))


# -- in processes ----------------------------------------------------------------------------------------------


class Broken:
    """A sweep of two methods and two seeds as a process, which is ended again and again.

    Args:
        world: a world.
        rounds: of each run.
    """

    def __init__(self, world: World, rounds: int) -> None:
        write_methods(world, rounds)
        self.folder = world.folder / "broken"
        self._log = world.folder / "said.txt"

    def words(self, jobs: int) -> list[str]:
        words = ["sweep", "--config", "scaffold.yaml", "fedavg.yaml", "--seed_everything", "0,1"]
        return [*words, "--output", str(self.folder), "--jobs", str(jobs)]

    def start(self, jobs: int) -> subprocess.Popen[bytes]:
        """Start the command."""
        with self._log.open("wb") as file:
            return subprocess.Popen([sys.executable, "-m", "lfl", *self.words(jobs)], stdout=file, stderr=file)

    def fork(self, jobs: int) -> multiprocessing.process.BaseProcess:
        """Start it in a fork of this process, whose workers are forks too: all have imported everything."""
        process = FORK.Process(target=run_forked, args=(self.words(jobs), self._log))
        process.start()
        return process

    def said(self) -> str:
        return self._log.read_text()

    def wait_for(self, condition: Callable[[], object], seconds: float = 100.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.002)

    def rows(self) -> int:
        """How many rows all runs have, in the last folder of each."""
        counts: dict[str, int] = {}
        for path in sorted(self.folder.glob("*/run_*/metrics.csv")):
            counts[path.parent.parent.name] = path.read_text().count("\n")
        return sum(counts.values())


def run_forked(words: list[str], log: Path) -> None:
    workers._SPAWN = FORK
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        sys.stdout = sys.stderr = file
        main(words)


def children(process: int | None) -> list[int]:
    """The workers that a process has started."""
    listed = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(process)], capture_output=True, text=True)
    lines = [line.split(None, 1) for line in listed.stdout.splitlines()]
    return [int(pid) for pid, command in lines if "resource_tracker" not in command]


def by_fit(world: World) -> dict[str, bytes]:
    """The metrics of the four runs by ``lfl fit``, by the names of the sweep."""
    found = {}
    for method in METHODS:
        for seed in SEEDS:
            code, _, err = world.lfl("fit", "--config", f"{method}.yaml", "--seed_everything", seed)
            assert (code, err) == (0, "")
            found[f"{method},seed_everything={seed}"] = world.metrics(len(found)).encode()
    return found


def test_a_killed_sweep_goes_on_and_equals_single_runs_bit_for_bit(world: World) -> None:
    """The parent is killed twice, and then a worker, each time after some rounds more."""
    broken = Broken(world, rounds=15)
    for victim in ("parent", "parent", "worker"):
        parent, goal = broken.fork(jobs=2), broken.rows() + 5
        broken.wait_for(lambda goal=goal: broken.rows() >= goal)
        if victim == "parent":
            parent.kill()
        else:
            os.kill(children(parent.pid)[0], signal.SIGKILL)
        parent.join()
        assert parent.exitcode == (-signal.SIGKILL if victim == "parent" else 1), broken.said()
    assert "1 of 4 runs failed:" in broken.said()
    assert "its process was killed by signal 9 (SIGKILL)" in broken.said()
    assert len(metrics(broken.folder)) == 3  # the others went on without the one that was lost

    parent = broken.fork(jobs=2)
    parent.join()
    assert parent.exitcode == 0, broken.said()
    assert metrics(broken.folder) == by_fit(world)


def test_a_signal_ends_a_sweep_with_checkpoints_and_a_line(world: World) -> None:
    broken = Broken(world, rounds=100_000)
    parent = broken.start(jobs=1)
    broken.wait_for(broken.rows)
    parent.send_signal(signal.SIGINT)
    assert parent.wait() == 130
    said = broken.said()
    assert "Stopping after the rounds that run, with checkpoints; once more to stop at once." in said
    assert "scaffold,seed_everything=0: interrupted, round " in said
    assert said.endswith(
        f"Interrupted: 0 of 4 runs are finished. To go on: lfl sweep --resume {shlex.quote(str(broken.folder))}\n"
    )
    assert "Traceback" not in said
    assert list(broken.folder.glob("*/run_000/checkpoints/last.ckpt"))


@pytest.mark.slow
def test_processes_that_import_everything_themselves_make_the_same_runs(world: World) -> None:
    unbroken = Broken(world, rounds=5)
    assert unbroken.start(jobs=2).wait() == 0, unbroken.said()
    assert metrics(unbroken.folder) == by_fit(world)


def test_two_sweeps_never_share_a_folder(here: World) -> None:
    from filelock import FileLock

    words = ["--config", "base.yaml", "--output", "out"]
    sweep(here, *words)
    with FileLock("out/.lock"):
        assert here.refused("sweep", *words) == "Another `lfl sweep` is at work in out."


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_sweep_that_is_killed_at_twenty_random_instants_ends_with_the_numbers_of_single_runs(world: World) -> None:
    broken = Broken(world, rounds=150)
    draws = random.Random(0)
    kills = 0
    while True:
        parent = broken.start(jobs=draws.choice((1, 2)))
        if kills < 20:
            # Anywhere: while everything is imported, while settings are checked, in rounds, between runs.
            seconds, goal = draws.uniform(0.0, 10.0), broken.rows() + draws.randint(1, 100)
            if draws.random() < 0.3:
                broken.wait_for(lambda parent=parent: parent.poll() is not None, seconds)
            else:
                broken.wait_for(lambda parent=parent, goal=goal: parent.poll() is not None or broken.rows() >= goal)
            victims = children(parent.pid) if draws.random() < 0.3 else []
            if parent.poll() is None:
                os.kill((victims or [parent.pid])[0], signal.SIGKILL)
                kills += 1
        code = parent.wait()
        # 1: a run was lost with its worker; 2: the check of its settings was.
        assert code in (0, 1, 2, -signal.SIGKILL), broken.said()
        assert "Traceback" not in broken.said()
        if code == 0:
            break
    assert metrics(broken.folder) == by_fit(world)
