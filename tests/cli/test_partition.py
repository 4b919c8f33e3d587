"""``lfl partition``: who has what, without training."""

import json
from pathlib import Path

import pytest

from lfl.__main__ import main

CONFIG = """
seed_everything: 1
model: {class_path: lfl.models.Classifier, init_args: {backbone: lfl.models.MLP}}
data:
  class_path: lfl.data.FederatedDataModule
  init_args:
    source: lfl.data.Digits
    partitioner: {class_path: lfl.data.ClassesPerClientPartitioner, init_args: {classes_per_client: 2}}
    num_clients: 10
trainer: {max_rounds: 3}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "config.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_sizes_and_classes_are_printed_and_written(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    main(["partition", "--config", "config.yaml", "--rows", "9", "--output", "out"])
    printed = capsys.readouterr().out.splitlines()
    dealt = json.loads((folder / "out" / "partition.json").read_text())
    assert "clients: 10, train_examples: 1438" in printed[0]
    assert printed[1].split() == ["client", "train", "test", "classes", "examples", "of", "a", "class"]
    for client in range(9):
        number, train, test, classes, *held = printed[2 + client].replace(",", "").replace(":", "").split()
        assert int(number) == client
        assert (int(train), int(test)) == tuple(len(dealt[part][str(client)]) for part in ("train", "test"))
        assert (classes, len(held)) == ("2", 4)
        assert int(held[1]) + int(held[3]) == int(train)
    assert printed[-1] == "... and 1 more: `--rows 10` shows them."
    assert sorted(i for positions in dealt["train"].values() for i in positions) == list(range(1438))
    assert (folder / "out" / "partition.png").read_bytes().startswith(b"\x89PNG")


def test_a_written_partition_is_read_again(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    main(["partition", "--config", "config.yaml", "--data.num_clients=7"])
    first = capsys.readouterr().out.splitlines()[2:]
    main(["partition", "--config", "config.yaml", "--data.num_clients=7", "--data.partition_path=partition.json"])
    assert capsys.readouterr().out.splitlines()[2:] == first
    assert [path.name for path in folder.iterdir() if "part." in path.name or path.suffix == ".part"] == []


def test_data_without_classes(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    main(["partition", "--data=lfl.problems.RobustRegressionData", "--data.num_clients=3", "--data.dim=4"])
    assert capsys.readouterr().out.splitlines()[1].split() == ["client", "train", "test"]
    assert not (folder / "partition.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "`lfl partition` needs `data`"),
        (["--config", "config.yaml", "--data.num_clients=2"], "covers 4 classes"),
        (["--config", "config.yaml", "--data.num_clints=2"], "has no argument `num_clints`"),
        (
            ["--config", "config.yaml", "--trainer.max_round", "5"],
            "`--trainer.max_round` has no effect: `lfl partition`",
        ),
        (["--config", "config.yaml", "--trainer.callbacks+=SSF"], "`--trainer.callbacks+` has no effect: `lfl"),
        (
            ["--config", "config.yaml", "--seed_everything=3"],
            "`--seed_everything` has no effect: `lfl partition` takes",
        ),
        (["--config", "config.yaml", "--data.partition_path=absent.json"], "no partition at 'absent.json'"),
    ],
)
def test_errors_are_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["partition", *arguments])
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("lfl: error: ")
    assert message in line
