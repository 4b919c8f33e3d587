"""What the tests of the command line share: a small run, and how it is called in this process."""

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from lfl.__main__ import main

CONFIG: dict[str, Any] = {
    "model": {
        "class_path": "Classifier",
        "init_args": {"backbone": {"class_path": "MLP", "init_args": {"in_features": 64, "hidden": [8]}}},
    },
    "data": {
        "class_path": "FederatedDataModule",
        "init_args": {
            "source": "Digits",
            "partitioner": {"class_path": "DirichletPartitioner", "init_args": {"alpha": 0.5}},
            "num_clients": 10,
            "batch_size": 64,
        },
    },
    "optimizer": {"class_path": "SGD", "init_args": {"lr": 0.1}},
    "trainer": {
        "accelerator": "cpu",
        "engine": "sequential",
        "max_rounds": 2,
        "participation": {"class_path": "UniformParticipation", "init_args": {"clients_per_round": 3}},
        "checkpoint": {"every_n_rounds": 1},
    },
}


class World:
    """A folder with ``base.yaml``, in which ``lfl`` is called.

    Args:
        folder: the current folder.
        monkeypatch: pytest's.
        capsys: pytest's; without it there is no text to return.
    """

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str] | None = None
    ) -> None:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "path", list(sys.path))
        self.folder, self._capsys = folder, capsys
        self.write("base.yaml")

    def write(self, name: str, edit: Callable[[dict[str, Any]], object] = dict) -> str:
        config = copy.deepcopy(CONFIG)
        edit(config)
        (self.folder / name).write_text(yaml.safe_dump(config))
        return name

    def lfl(self, *args: str) -> tuple[int, str, str]:
        """Exit code, output and errors of ``lfl`` with these arguments."""
        code = 0
        try:
            main(list(args))
        except SystemExit as end:
            code = int(end.code or 0)
        captured = self._capsys.readouterr() if self._capsys else ("", "")
        return code, *captured

    def fit(self, *args: str) -> str:
        """The output of a run that must succeed."""
        code, out, err = self.lfl("fit", "--config", "base.yaml", *args)
        assert (code, err) == (0, ""), err
        return out

    def error(self, *args: str, code: int = 2) -> str:
        """The one line that a refused ``lfl fit --config base.yaml`` prints; no run folder may be left."""
        return self.refused("fit", "--config", "base.yaml", *args, code=code)

    def refused(self, *args: str, code: int = 2) -> str:
        found, _, err = self.lfl(*args)
        assert found == code, err
        assert err.startswith("lfl: error: ")
        assert err.count("\n") == 1, err
        return err.removeprefix("lfl: error: ").rstrip("\n")

    def metrics(self, run: int = 0, root: str = "runs") -> str:
        return (self.folder / root / f"run_{run:03d}" / "metrics.csv").read_text()
