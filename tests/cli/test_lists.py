"""A list of classes that is given again has no arguments of the one whose place it takes."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from lfl.cli.lists import without_remains
from lfl.cli.parser import FederatedCLI

BASE = """
trainer:
  callbacks:
    - class_path: lfl.callbacks.SharpnessAware
      init_args: {rho: 0.3}
    - class_path: lfl.callbacks.ClientMomentum
      init_args: {alpha: 0.2, momentum_from: aggregate}
"""
AGAIN = """
trainer:
  callbacks:
    - class_path: lfl.callbacks.SharpnessAware
    - class_path: lfl.callbacks.ClientMomentum
      init_args: {alpha: 0.5}
"""


def callbacks(words: list[str], capsys: pytest.CaptureFixture[str]) -> list[Any]:
    with pytest.raises(SystemExit):
        FederatedCLI(args=["fit", *words, "--print_config"])
    found: list[Any] = yaml.safe_load(capsys.readouterr().out)["trainer"]["callbacks"]
    return [entry["init_args"] for entry in found]


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "again.yaml").write_text(AGAIN)
    return str(tmp_path / "base.yaml"), str(tmp_path / "again.yaml")


DEFAULTS = {"rho": 0.05}, {"alpha": 0.5, "momentum_from": "updates", "decay_inside": False}


def test_a_second_config_begins_its_list_anew(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    base, again = files
    assert callbacks(["--config", base, "--config", again], capsys) == list(DEFAULTS)
    assert callbacks([f"--config={base}", "-c", again], capsys) == list(DEFAULTS)


def test_so_does_a_list_on_the_command_line(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    stack = '[{"class_path": "SharpnessAware"}, {"class_path": "ClientMomentum", "init_args": {"alpha": 0.5}}]'
    assert callbacks(["--config", files[0], f"--trainer.callbacks={stack}"], capsys) == list(DEFAULTS)
    assert callbacks(["--config", files[0], "--trainer.callbacks", stack], capsys) == list(DEFAULTS)


def test_single_arguments_and_additions_keep_what_is_there(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = callbacks(["--config", files[0], "--trainer.callbacks.alpha", "0.7"], capsys)
    assert (first["rho"], second["alpha"], second["momentum_from"]) == (0.3, 0.7, "aggregate")
    found = callbacks(["--config", files[0], "--trainer.callbacks+=lfl.callbacks.Diagnostics"], capsys)
    assert [entry.get("rho", entry.get("alpha")) for entry in found] == [0.3, 0.2, None]


def test_words_that_are_no_lists_of_classes_stay_as_they_are(tmp_path: Path) -> None:
    words = ["fit", "--config", str(tmp_path / "missing.yaml"), "--model.hidden", "[64]", "--x=[1", "-c", "--y"]
    assert without_remains(words) == words
    changes = '[{"class_path": "ClientRotation"}]'
    twice = [f"--data.init_args.client_changes={changes}", f"--data.client_changes={changes}"]
    assert without_remains(twice) == [twice[0], "--data.client_changes=[]", twice[1]]
