"""Results belong to settings, and are read as they were written."""

import json
import math
from pathlib import Path

from tools.papers import experiments

INF = math.inf


def test_a_result_belongs_to_its_settings_and_its_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("one: 1\n")
    run = experiments.Run("a.yaml", 5, 0, ("loss",), (("x", 1),))
    name = run.name(tmp_path)
    others = [
        experiments.Run("a.yaml", 6, 0, ("loss",), (("x", 1),)),
        experiments.Run("a.yaml", 5, 1, ("loss",), (("x", 1),)),
        experiments.Run("a.yaml", 5, 0, ("acc",), (("x", 1),)),
        experiments.Run("a.yaml", 5, 0, ("loss",), (("x", 2),)),
    ]
    assert len({name, *(other.name(tmp_path) for other in others)}) == 5
    (tmp_path / "a.yaml").write_text("one: 2\n")
    assert run.name(tmp_path) != name


def test_an_outcome_is_read_as_it_was_written(tmp_path: Path) -> None:
    run = experiments.Run("a.yaml", 5, 0, ("loss",))
    outcome = experiments.Outcome(4, 1.5, "not finite", {"loss": {2: 0.1 + 0.2, 4: INF}})
    outcome.write(tmp_path / "a.json", run)
    assert experiments.Outcome.read(tmp_path / "a.json") == outcome
    assert json.loads((tmp_path / "a.json").read_text())["settings"]["seed_everything"] == 0
