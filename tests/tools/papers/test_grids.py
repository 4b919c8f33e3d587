"""Files for `lfl sweep`: they are those of the studies, and are taken as they are."""

from pathlib import Path

import pytest
import yaml

from lfl.__main__ import main
from tools import CONFIGS, REPOSITORY
from tools.papers import grids

FILES = dict(grids.grids())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_is_what_its_study_gives(path: Path) -> None:
    assert path.read_text() == FILES[path], "make the files anew: python -m tools.papers.grids"


def test_there_are_no_other_files() -> None:
    assert set((CONFIGS / "papers").glob("*/sweeps/*.yaml")) == set(FILES)


def test_a_method_is_its_config_with_what_the_study_changes() -> None:
    grid = yaml.safe_load(FILES[CONFIGS / "papers" / "flss" / "sweeps" / "flss-warmup.yaml"])
    assert list(grid["method"]) == ["FedAvg", "L = 20", "L = 40", "L = 80", "L = 120"]
    method = grid["method"]["L = 20"]
    assert (method["config"], method["trainer.max_rounds"]) == ("configs/flss.yaml", 60)
    assert method["trainer.callbacks.init_args.warmup_rounds"] == 20
    assert grid["seed"]["seed 2"] == {"seed_everything": 2, "data.init_args.seed": 2}


@pytest.mark.parametrize(
    "path",
    [path if path.stem == "flss-noise" else pytest.param(path, marks=pytest.mark.slow) for path in FILES],
    ids=lambda path: path.stem,
)
@pytest.mark.timeout(300)
def test_lfl_sweep_takes_a_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All settings are checked by the parser of `lfl fit`."""
    monkeypatch.chdir(REPOSITORY)
    main(["sweep", "--grid", str(path.relative_to(REPOSITORY)), "--print"])
    lines = capsys.readouterr().out.splitlines()
    methods = yaml.safe_load(FILES[path])["method"]
    assert len(lines) == grids.SEEDS * len(methods)
    assert all(line.startswith("lfl fit --config=configs/") for line in lines)
