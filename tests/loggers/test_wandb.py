"""The logger against a stand-in for ``wandb`` and, without key, network and terminal, against the real one."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib
import pytest
from jsonargparse import ArgumentParser
from lightning.pytorch.loggers.logger import Logger
from wandb_records import read_records

from lfl.loggers import CSVLogger, WandbLogger
from lfl.loggers.csv import read_rows

KEY = "k" * 40
UNREACHABLE = "http://127.0.0.1:9"  # the discard service, which nobody runs


class FakeRun:
    def __init__(self, wandb: "FakeWandb", arguments: dict) -> None:
        self.wandb, self.arguments = wandb, arguments
        self.id = arguments.get("id") or f"new-{len(wandb.runs)}"
        self.offline = arguments.get("mode") == "offline"
        self.disabled = wandb.settings.mode == "disabled"
        self.dir = f"/runs/{self.id}/files"
        self.url = f"https://server/{self.id}"
        self.rows: list[dict] = []
        self.axes: list[tuple] = []
        self.exit_code: int | None = None
        self.summary: dict[str, float] = {}
        self.artifacts: list[FakeArtifact] = []

    def log_artifact(self, artifact: "FakeArtifact") -> None:
        self.artifacts.append(artifact)

    def log(self, row: dict) -> None:
        self.rows.append(row)

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.axes.append((name, step_metric))

    def finish(self, exit_code: int = 0) -> None:
        self.exit_code = exit_code
        self.wandb.run = None
        if self.wandb.is_slow:
            raise TimeoutError


class FakeArtifact:
    def __init__(self, name: str, type: str) -> None:
        self.name, self.type = name, type
        self.files: dict[str, str] = {}

    def add_file(self, local_path: str, name: str) -> None:
        self.files[name] = local_path


class FakeWandb(SimpleNamespace):
    """The part of ``wandb`` that the logger calls; its settings are those of the environment."""

    class CommError(Exception):
        pass

    class AuthenticationError(CommError):
        pass

    Artifact = FakeArtifact

    @staticmethod
    def Image(path: str) -> tuple[str, bool]:
        return path, Path(path).exists()

    def __init__(self) -> None:
        errors = SimpleNamespace(CommError=self.CommError, AuthenticationError=self.AuthenticationError)
        super().__init__(run=None, runs=[], errors=errors, refusal=None, has_key=False, is_slow=False)
        self.settings = SimpleNamespace(
            sweep_id=None,
            mode="online",
            silent=False,
            init_timeout=90.0,
            finish_timeout=0.0,
            base_url="https://server",
        )

    def setup(self) -> SimpleNamespace:
        self.settings.mode = os.environ.get("WANDB_MODE", "online")
        return SimpleNamespace(settings=self.settings)

    def login(self, prompt: bool = True, verify: bool = True) -> bool:
        assert not prompt
        assert not verify
        assert self.settings.silent  # or it would ask the server for the user's name
        print("Loaded credentials", file=sys.stderr)
        return self.has_key

    def init(self, **arguments) -> FakeRun:
        if self.refusal is not None and arguments["mode"] != "offline":
            raise self.refusal
        self.run = FakeRun(self, arguments)
        self.runs.append(self.run)
        return self.run


@pytest.fixture
def wandb(monkeypatch) -> FakeWandb:
    """Without a key."""
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    return fake


@pytest.fixture
def online(wandb) -> FakeWandb:
    wandb.has_key = True
    return wandb


def test_without_a_key_the_run_is_offline_and_one_line_says_so(wandb, capsys):
    logger = WandbLogger()
    logger.log_metrics({"loss": 1.0}, step=1)
    logger.log_metrics({"loss": 0.5}, step=2)
    logger.finalize("success")
    assert [run.offline for run in wandb.runs] == [True]
    assert wandb.run.arguments["settings"]["silent"] is True
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == (
        "W&B is offline (there is no API key). The run lies in /runs/new-0; to upload it: wandb sync /runs/new-0\n"
    )


@pytest.mark.parametrize(
    ("arguments", "environment"), [({"offline": True}, {}), ({"mode": "offline"}, {}), ({}, {"WANDB_MODE": "dryrun"})]
)
def test_offline_on_request(online, monkeypatch, capsys, arguments, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert WandbLogger(**arguments).experiment.offline
    assert "(as asked)" in capsys.readouterr().err


def test_server_that_refuses_makes_the_run_offline_but_a_wrong_key_is_an_error(online, capsys):
    online.refusal = online.CommError("timed out\nConsider a longer timeout")
    assert WandbLogger().experiment.offline
    assert "(https://server could not be used: timed out)" in capsys.readouterr().err
    online.run = None
    online.refusal = online.AuthenticationError("invalid key")
    with pytest.raises(online.AuthenticationError, match="invalid key"):
        _ = WandbLogger().experiment


def test_online_run_says_where_it_is_and_waits_for_nothing_long(online, capsys):
    run = WandbLogger(project="p", tags=["t"]).experiment
    assert not run.offline
    assert run.arguments["settings"] == {"silent": True, "init_timeout": 10.0, "finish_timeout": 120.0}
    assert (run.arguments["project"], run.arguments["tags"], run.arguments["resume"]) == ("p", ["t"], "allow")
    assert "anonymous" not in run.arguments
    assert capsys.readouterr().err == "W&B: https://server/new-0\n"
    assert not online.settings.silent  # as before


def test_upload_that_is_given_up_is_told(online, capsys):
    logger = WandbLogger()
    logger.log_metrics({"loss": 1.0}, step=1)
    online.is_slow = True
    logger.finalize("success")
    assert "W&B took too long to upload the run. The run lies in /runs/new-0;" in capsys.readouterr().err


def test_settings_of_the_user_win(online):
    online.settings.init_timeout = 30.0  # of $WANDB_INIT_TIMEOUT
    run = WandbLogger(settings={"finish_timeout": 5.0, "silent": False}).experiment
    assert run.arguments["settings"] == {"finish_timeout": 5.0, "silent": False}


def test_key_of_older_versions_is_found(online, monkeypatch):
    monkeypatch.setattr(online, "login", lambda: None, raising=False)
    online.api = SimpleNamespace(api_key="k")
    assert not WandbLogger().experiment.offline


def test_disabled_run_is_left_alone(online, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    logger = WandbLogger()
    assert "mode" not in logger.experiment.arguments
    assert not logger.state_dict()["is_online"]
    assert capsys.readouterr().err == ""


def test_rounds_are_the_axis_and_no_row_is_lost(wandb):
    logger = WandbLogger(prefix="a")
    logger.log_metrics({"loss": 1.0}, step=5)
    logger.log_metrics({"loss": 2.0}, step=3)
    logger.log_metrics({"acc": 0.5}, step=3)
    logger.log_metrics({"other": 0.25})
    assert wandb.run.axes == [("round", None), ("*", "round")]
    assert wandb.run.rows == [
        {"a-loss": 1.0, "round": 5},
        {"a-loss": 2.0, "round": 3},
        {"a-acc": 0.5, "round": 3},
        {"a-other": 0.25},
    ]


def test_online_run_is_resumed_under_its_id(online, tmp_path):
    first = WandbLogger()
    first.log_metrics({"loss": 1.0}, step=1)
    state = json.loads(json.dumps(first.state_dict()))
    assert state == {"id": "new-0", "is_online": True}
    first.finalize("failed")
    assert online.runs[0].exit_code == 1
    second = WandbLogger()
    second.load_state_dict(state)
    assert second.state_dict() == state
    second.continue_from(tmp_path, 1)
    second.log_metrics({"loss": 0.5}, step=2)
    assert second.state_dict() == state
    assert online.runs[1].arguments["id"] == "new-0"
    assert online.runs[1].rows == [{"loss": 0.5, "round": 2}]


def test_finished_online_run_is_opened_again_under_its_id(online):
    logger = WandbLogger()
    logger.log_metrics({"loss": 1.0}, step=1)
    logger.finalize("success")
    assert online.runs[0].exit_code == 0
    assert logger.version == "new-0"
    logger.log_metrics({"test_acc": 1.0}, step=1)
    assert online.runs[1].id == "new-0"


def test_offline_run_is_resumed_as_a_new_one_with_all_rounds(wandb, tmp_path):
    """W&B keeps only the last part that is uploaded under an id."""
    table = CSVLogger(tmp_path)
    first = WandbLogger()
    for number in (1, 2, 3):
        metrics = {"loss": 1 / number, "time/round": float(number)}
        table.log_metrics(metrics, step=number)
        first.log_metrics(metrics, step=number)
        if number == 2:
            state = first.state_dict()
    second = WandbLogger()
    second.load_state_dict(state)
    second.continue_from(tmp_path, 2)
    second.log_metrics({"loss": 0.25}, step=3)
    assert wandb.runs[1].id == "new-1"
    assert wandb.runs[1].rows == [
        {"loss": 1.0, "time/round": 1.0, "round": 1},
        {"loss": 0.5, "time/round": 2.0, "round": 2},
        {"loss": 0.25, "round": 3},
    ]


def write_results(folder: Path) -> None:
    (folder / "checkpoints").mkdir()
    for name in ("config.yaml", "metrics.csv", "clients.csv", "checkpoints/last.ckpt"):
        (folder / name).touch()


def test_online_results_are_a_summary_and_an_artifact(online, tmp_path):
    write_results(tmp_path)
    logger = WandbLogger()
    run = logger.experiment
    logger.log_results(tmp_path, {"val_acc": (0.75, 3), "loss": (0.5, 4)}, Path.touch)
    assert run.summary == {"best/val_acc": 0.75, "best_round/val_acc": 3, "best/loss": 0.5, "best_round/loss": 4}
    picture = tmp_path / "pictures" / "partition.png"
    assert run.rows == [{"pictures/partition": (str(picture), True)}]
    (artifact,) = run.artifacts
    assert (artifact.name, artifact.type) == (f"run-{run.id}", "run")
    assert list(artifact.files) == ["config.yaml", "clients.csv", "metrics.csv", "pictures/partition.png"]


@pytest.mark.parametrize("mode", ["offline", "disabled"])
def test_without_a_server_results_are_a_summary_only_silently(online, monkeypatch, capsys, tmp_path, mode):
    monkeypatch.setenv("WANDB_MODE", mode)
    write_results(tmp_path)
    logger = WandbLogger()
    run = logger.experiment
    capsys.readouterr()
    logger.log_results(tmp_path, {"val_acc": (0.75, 3)}, Path.touch)
    assert (run.summary, run.rows, run.artifacts) == ({"best/val_acc": 0.75, "best_round/val_acc": 3}, [], [])
    assert not (tmp_path / "pictures").exists()
    assert capsys.readouterr() == ("", "")


def test_offline_run_stays_open_for_a_test_and_ends_with_the_next_run(wandb):
    logger = WandbLogger()
    logger.log_metrics({"loss": 1.0}, step=1)
    logger.finalize("success")
    logger.log_metrics({"test_acc": 1.0}, step=1)
    assert len(wandb.runs) == 1
    assert len(wandb.runs[0].rows) == 2
    WandbLogger().log_metrics({"loss": 1.0}, step=1)
    assert wandb.runs[0].exit_code == 0
    assert len(wandb.runs) == 2


def test_run_of_the_user_is_used_and_never_finished(wandb):
    own = wandb.init(id="mine", mode="online")
    logger = WandbLogger()
    logger.log_metrics({"loss": 1.0}, step=1)
    logger.finalize("failed")
    assert own.rows == [{"loss": 1.0, "round": 1}]
    assert own.exit_code is None
    assert logger.state_dict() == {"id": "mine", "is_online": True}


def test_under_a_sweep_agent_nothing_is_decided(wandb):
    wandb.settings.sweep_id = "sweep"
    logger = WandbLogger()
    logger.log_metrics({"loss": 1.0}, step=1)
    logger.finalize("success")
    assert "mode" not in wandb.run.arguments
    assert wandb.run.exit_code is None


def test_class_path_and_arguments_of_wandb_init_are_known_to_the_command_line(request):
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--logger", type=Logger)
    options = [
        "--logger=lfl.loggers.WandbLogger",
        "--logger.project=p",
        "--logger.tags=[a, b]",
        "--logger.group=g",
        "--logger.mode=offline",
    ]
    logger = parser.instantiate(parser.parse_args(options)).logger
    assert type(logger) is WandbLogger
    expected = {"project": "p", "tags": ["a", "b"], "group": "g", "mode": "offline", "resume": "allow"}
    request.getfixturevalue("wandb")  # not before: the parser reads the signature of the real `wandb.init`
    arguments = logger.experiment.arguments
    assert {key: arguments[key] for key in expected} == expected


SCRIPT = """
import sys
from lfl.loggers import WandbLogger
logger = WandbLogger(save_dir=sys.argv[1], project="p")
assert "wandb" not in sys.modules
logger.log_hyperparams({"lr": 0.5})
for number in (1, 2, 3):
    logger.log_metrics({"train/loss": 1 / number}, step=number)
logger.log_metrics({"val_acc": 0.5}, step=2)
logger.finalize("success")
logger.log_metrics({"test_acc": 0.25}, step=3)
"""


def run_script(tmp_path: Path, folder: Path, script: str = SCRIPT, **environment: str) -> str:
    """What the script writes to standard error, in a home of its own."""
    environment |= {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    # torchmetrics imports matplotlib, which would look through all fonts in a new home.
    environment["MPLCONFIGDIR"] = matplotlib.get_cachedir()
    warnings = ["-W", "error::UserWarning", "-W", "ignore::DeprecationWarning"]
    command = [sys.executable, *warnings, "-c", script, str(folder)]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=100
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    return done.stderr


FIT = """
import sys
from lightning.pytorch import LightningModule, seed_everything
from lfl import FederatedTrainer
from lfl.data import Digits, FederatedDataModule
from lfl.loggers import WandbLogger
from lfl.models import MLP, Classifier
class Net(Classifier):
    def __init__(self, hidden, lr=0.25):
        super().__init__(MLP(in_features=64, hidden=[hidden]), lr=lr)
        self.save_hyperparameters()
options = dict(max_rounds=2, logger=WandbLogger(project="p"), enable_progress_bar=False, default_root_dir=sys.argv[1])
FederatedTrainer(**options).fit(Net(8), FederatedDataModule(Digits(), num_clients=5))
"""


def test_a_run_logs_its_hyper_parameters_and_settings_into_its_own_folder(tmp_path: Path) -> None:
    run_script(tmp_path, tmp_path / "runs", script=FIT)
    (folder,) = (tmp_path / "runs" / "run_000" / "wandb").glob("offline-run-*")
    config: dict[str, Any] = {}
    for record in read_records(folder):
        if record.WhichOneof("record_type") == "config":
            config.update({item.key: json.loads(item.value_json) for item in record.config.update})
    assert (config["hidden"], config["lr"]) == (8, 0.25)
    assert (config["trainer"]["max_rounds"], config["trainer"]["seed"]) == (2, 0)
    assert config["data"]["num_clients"] == 5
    assert config["model"] == {"class": "__main__.Net", "num_parameters": 64 * 8 + 8 + 8 * 10 + 10}
    assert [row["round"] for row in read_run(folder)[0]] == [1, 2]


FIT_ALL = """
import sys
from lightning.pytorch import seed_everything
from lfl import FederatedTrainer
from lfl.callbacks import FLSS, SSF, Diagnostics, HyperbolicRegularization
from lfl.data import Digits, FederatedDataModule
from lfl.loggers import WandbLogger
from lfl.models import MLP, Classifier
from lfl.system import ExponentialSpeeds
stacks = [[SSF(), Diagnostics()], [FLSS(rank=2), HyperbolicRegularization(layer="backbone.features")]]
for stack in stacks:
    options = dict(max_rounds=3, logger=WandbLogger(project="p"), enable_progress_bar=False, callbacks=stack)
    trainer = FederatedTrainer(**options, system=ExponentialSpeeds(), default_root_dir=sys.argv[1])
    trainer.fit(Classifier(MLP(in_features=64, hidden=[8]), lr=0.1), FederatedDataModule(Digits(), num_clients=5))
"""


def test_every_callbacks_numbers_have_the_axis_of_rounds_and_a_summary(tmp_path: Path) -> None:
    """As they are in metrics.csv; the last value under its name, the best one under ``best/``."""
    run_script(tmp_path, tmp_path / "runs", script=FIT_ALL)
    seen = set()
    for number in range(2):
        run = tmp_path / "runs" / f"run_{number:03d}"
        (folder,) = (run / "wandb").glob("offline-run-*")
        rows, axes = read_run(folder)
        assert axes == [("round", ""), ("*", "round")]
        for file in ("metrics.csv", "timing.csv"):
            for round_number, metrics in read_rows(run / file):
                (logged,) = [row for row in rows if row["round"] == round_number]
                assert {name: logged[name] for name in metrics} == pytest.approx(metrics, rel=0, abs=0, nan_ok=True)
                seen |= {name.partition("/")[0] for name in metrics}
        summary = read_summary(folder)
        accuracies = {row["round"]: row["val_acc"] for row in rows}
        assert summary["best/val_acc"] == max(accuracies.values())
        assert accuracies[summary["best_round/val_acc"]] == summary["best/val_acc"]
        assert summary["best/train/loss"] == min(row["train/loss"] for row in rows)
    assert {"diag", "flss", "hyperbolic", "comm", "sim", "time", "train"} <= seen


def test_real_offline_run_is_silent_and_complete(tmp_path):
    said = run_script(tmp_path, tmp_path / "a folder")
    run = re.fullmatch(
        r"W&B is offline \(there is no API key\)\. The run lies in (.+); to upload it: wandb sync '\1'\n", said
    )
    assert run is not None, said
    rows, axes = read_run(Path(run[1]))
    assert rows == [
        {"train/loss": 1.0, "round": 1},
        {"train/loss": 0.5, "round": 2},
        {"train/loss": 1 / 3, "round": 3},
        {"val_acc": 0.5, "round": 2},
        {"test_acc": 0.25, "round": 3},
    ]
    assert axes == [("round", ""), ("*", "round")]


@pytest.mark.slow
def test_real_server_that_does_not_answer_makes_the_run_offline(tmp_path):
    path = tmp_path / ".netrc"
    path.write_text(f"machine 127.0.0.1:9\n  login user\n  password {'k' * 40}\n")
    path.chmod(0o600)
    said = run_script(
        tmp_path, tmp_path, WANDB_BASE_URL="http://127.0.0.1:9", WANDB_INIT_TIMEOUT="2", no_proxy="127.0.0.1"
    )
    assert re.fullmatch(
        r"W&B is offline \(http://127\.0\.0\.1:9 could not be used: .+\)\. The run lies in .*offline-run.*\n", said
    ), said


def read_summary(folder: Path) -> dict[str, Any]:
    """What a run has set in its summary."""
    found: dict[str, Any] = {}
    for record in read_records(folder):
        if record.WhichOneof("record_type") == "summary":
            for item in record.summary.update:
                found["/".join(item.nested_key) or item.key] = json.loads(item.value_json)
    return found


def read_run(folder: Path) -> tuple[list[dict], list[tuple[str, str]]]:
    """The rows and the axes in a ``.wandb`` file."""
    rows, axes = [], []
    for record in read_records(folder):
        if record.WhichOneof("record_type") == "history":
            items = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            rows.append({key: value for key, value in items.items() if not key.startswith("_")})
        elif record.WhichOneof("record_type") == "metric":
            axes.append((record.metric.name or record.metric.glob_name, record.metric.step_metric))
    return rows, axes
