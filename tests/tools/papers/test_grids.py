"""Files for `lfl sweep`: they are those of the studies, and are taken as they are."""

from pathlib import Path

import pytest
import yaml
from jsonargparse import ArgumentParser, capture_parser

from lfl.__main__ import main
from lfl.cli import FederatedCLI
from lfl.cli.lists import without_remains
from tools import CONFIGS, REPOSITORY
from tools.papers import grids, ssf_networks
from tools.papers.experiments import Run

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


def changes(run: Run) -> set[tuple[str, str, str]]:
    """What a run changes in its file: settings, with their classes, or the types of their values."""
    return {
        (run.config, key, str(value) if str(value).startswith(("lfl.", "torch.", "tools.")) else type(value).__name__)
        for key, value in run.settings.items()
    }


def different_runs() -> dict[str, Run]:
    """Runs that change, between them, all that any run of a study changes."""
    found: dict[str, Run] = {}
    known: set[tuple[str, str, str]] = set()
    studies = {
        f"{module.__name__.rpartition('.')[2]}-{name}": module.STUDIES[name]
        for modules in (*grids.STUDIES.values(), {ssf_networks: ("lenet",)})
        for module, names in modules.items()
        for name in names
    }
    for name, study in studies.items():
        for method, (run,) in study.runs([0], 2, "cpu").items():
            if not changes(run) <= known:
                known |= changes(run)
                found[f"{name}: {method}"] = run
    return found


RUNS = different_runs()


@pytest.fixture(scope="module")
def parser() -> ArgumentParser:
    return capture_parser(lambda: FederatedCLI(args=[]))


@pytest.mark.parametrize("name", RUNS)
def test_files_know_the_settings_that_studies_change(
    name: str, parser: ArgumentParser, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RUNS[name]
    settings = [f"--{key}={value}" for key, value in run.settings.items()]
    try:
        parser.parse_args(without_remains(["fit", "--config", str(CONFIGS / run.config), *settings]))
    except SystemExit:
        pytest.fail(capsys.readouterr().err)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
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
