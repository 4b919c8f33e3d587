"""The settings of a run are checked as `lfl fit` does, and a run leaves its log, its results and how to go on."""

import json
import os
import re
from pathlib import Path

import pytest
from cli_world import World

from lfl.sweep.jobs import Outcome, check, fit, own_gpu, prepare_data

BASE = ("--config=base.yaml",)


def test_checked_settings_have_a_digest_of_all_of_them(world: World) -> None:
    one, same, other = check(BASE), check([*BASE, "--seed_everything=0"]), check([*BASE, "--seed_everything=1"])
    assert one == same
    assert one.digest != other.digest
    assert (one.max_rounds, one.logs_to_wandb) == (2, False)
    assert check([*BASE, "--trainer.logger=lfl.loggers.WandbLogger"]).logs_to_wandb
    assert not (world.folder / "runs").exists()


def test_data_has_a_digest_of_its_own(world: World) -> None:
    one, other = check(BASE), check([*BASE, "--optimizer.lr=0.5"])
    assert one.digest != other.digest
    assert one.data == other.data != check([*BASE, "--data.num_clients=5"]).data


def test_data_is_prepared_or_refused_by_the_line_of_lfl_fit(world: World) -> None:
    prepare_data(BASE)
    missing = "--data.source=TorchvisionSource"
    with pytest.raises(ValueError, match="CIFAR10 is not at '") as refused:
        prepare_data([*BASE, missing])
    assert str(refused.value) == world.error(missing)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("--trainer.max_round=3", "unknown argument `--trainer.max_round`; did you mean `--trainer.max_rounds`?"),
        ("--trainer.max_rounds=many", "`trainer.max_rounds=many` must be a whole number of at least 0."),
        ("--trainer.checkpoint.monitor=x", "The name `monitor=x` does not say what is better: set `mode` to max or "),
        ("--trainer.devices=2", "2 processes (`trainer.devices`, `trainer.num_nodes`) share each run, but the runs of"),
    ],
)
def test_wrong_settings_are_refused_by_the_line_of_lfl_fit(world: World, setting: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        check([*BASE, setting])


def test_a_finished_run_equals_lfl_fit_and_names_its_folder(world: World) -> None:
    world.fit()
    folder = world.folder / "sweep" / "x=1"
    assert fit(BASE, folder) == Outcome("finished")
    attempt = folder / json.loads((folder / "finished.json").read_text())["folder"]
    assert (attempt / "metrics.csv").read_text() == world.metrics()
    log = (folder / "log.txt").read_text()
    assert "lfl fit --config=base.yaml --trainer.default_root_dir=" in log
    assert "round 2/2" in log


def test_what_fails_is_told_by_the_last_line_of_its_log(world: World) -> None:
    diverging = [*BASE, "--optimizer.lr=1e30", "--trainer.max_rounds=3"]
    outcome = fit(diverging, world.folder / "a")
    assert outcome.state == "failed"
    assert "not finite" in outcome.message or "NaN" in outcome.message
    assert outcome.message in (world.folder / "a" / "log.txt").read_text()
    (world.folder / "mine.py").write_text(
        "import os\nfrom lfl.callbacks import FederatedCallback\n"
        "class Breaks(FederatedCallback):\n"
        '    """Breaks."""\n'
        "    def on_round_start(self, round):\n"
        "        os.write(1, b'written by C')\n"
        "        raise KeyError('mine')\n"
    )
    assert fit([*BASE, "--trainer.callbacks+=mine.Breaks"], world.folder / "b") == Outcome("failed", "KeyError: 'mine'")
    log = (world.folder / "b" / "log.txt").read_text()
    assert "written by C" in log
    assert "Traceback" in log
    assert not (world.folder / "b" / "finished.json").exists()


def test_a_run_goes_on_from_its_last_checkpoint_and_begins_again_without_one(world: World) -> None:
    world.fit("--trainer.max_rounds=4")
    folder = world.folder / "x"
    fit(BASE, folder)  # two rounds, then as if it had been killed: what it began next has no checkpoint yet
    (folder / "run_001").mkdir()
    assert fit([*BASE, "--trainer.max_rounds=4"], folder) == Outcome("finished")
    assert json.loads((folder / "finished.json").read_text()) == {"folder": "run_001", "round": 4}
    assert (folder / "run_001" / "metrics.csv").read_text() == world.metrics()
    assert "--ckpt_path=" in (folder / "log.txt").read_text()

    other = world.folder / "y"
    (other / "run_000").mkdir(parents=True)
    (other / "run_000" / "metrics.csv").write_text("round\n1\n")
    fit([*BASE, "--trainer.max_rounds=4", "--trainer.checkpoint=null"], other)
    assert [path.name for path in other.glob("run_*")] == ["run_000"]
    assert (other / "run_000" / "metrics.csv").read_text() == world.metrics()


def test_a_finished_run_that_has_lost_rounds_is_made_again(world: World) -> None:
    folder = world.folder / "x"
    fit(BASE, folder)
    metrics = folder / "run_000" / "metrics.csv"
    whole = metrics.read_bytes()
    metrics.write_bytes(whole[:-3])  # the last checkpoint is still that of the last round
    assert fit(BASE, folder) == Outcome("finished")
    assert [path.name for path in folder.glob("run_*")] == ["run_000"]
    assert metrics.read_bytes() == whole
    (folder / "finished.json").write_text("")
    assert fit(BASE, folder) == Outcome("finished")
    assert json.loads((folder / "finished.json").read_text()) == {"folder": "run_001", "round": 2}
    assert (folder / "run_001" / "metrics.csv").read_bytes() == whole
    (folder / "finished.json").write_text("")
    (folder / "run_001" / "metrics.csv").write_bytes(whole[:-3])  # both: run_000 has all rounds
    assert fit(BASE, folder) == Outcome("finished")
    assert (folder / "run_001" / "metrics.csv").read_bytes() == whole


def test_the_streams_are_put_back(world: World) -> None:
    before = [os.fstat(number).st_ino for number in (1, 2)]
    fit(BASE, world.folder / "x")
    assert [os.fstat(number).st_ino for number in (1, 2)] == before


def test_gpus_are_dealt_in_turn() -> None:
    assert [own_gpu(place, None, 2) for place in range(3)] == ["0", "1", "0"]
    assert own_gpu(1, "4, GPU-ab", 2) == "GPU-ab"
    assert own_gpu(1, "4", 1) is None
    assert own_gpu(0, None, 0) is None
    assert own_gpu(1, "", 0) is None


def test_the_log_is_appended_to(world: World) -> None:
    folder: Path = world.folder / "x"
    fit(BASE, folder)
    before = (folder / "log.txt").read_text()
    fit(BASE, folder)
    assert (folder / "log.txt").read_text().startswith(before)
    assert "Nothing to do" in (folder / "log.txt").read_text()
