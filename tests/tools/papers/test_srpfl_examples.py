"""The least number of examples: the search for it, and a look at the study."""

import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from lfl.cli import FederatedCLI
from tools import CONFIGS
from tools.papers import reproduce, srpfl_examples
from tools.papers.experiments import Outcome
from tools.papers.kept import read
from tools.papers.srpfl_examples import Case, Wanted

SMALL, LARGE = Case(20, 4, 64), Case(320, 4, 64)


def test_bisection_finds_the_least_of_the_grid() -> None:
    """Of 3, 4, 6, ..., 181: seed 0 needs 5, so that 6 will do; seed 1 needs 3, seed 2 more than there are."""
    needed = {(SMALL, 0): 5, (SMALL, 1): 1, (SMALL, 2): 181, (LARGE, 0): 182}
    asked: list[int] = []

    def will_do(examples: Mapping[Wanted, int]) -> dict[Wanted, bool]:
        asked.append(len(examples))
        return {key: number >= needed[key] for key, number in examples.items()}

    found = srpfl_examples.least(list(needed), will_do)
    assert found == {(SMALL, 0): 6, (SMALL, 1): 3, (SMALL, 2): 181, (LARGE, 0): math.inf}
    assert asked[0] == 4  # all at once, so that they are made side by side
    assert len(asked) <= 4  # of 14 answers


def test_a_run_has_halved_its_distance_by_the_mean_of_its_last_quarter() -> None:
    def outcome(*distances: float) -> Outcome:
        return Outcome(len(distances), 0.0, "", {"val_distance": dict(enumerate(distances, 1))})

    assert srpfl_examples.is_halved(outcome(0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.35, 0.44))
    assert not srpfl_examples.is_halved(outcome(0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.3, 0.52))


def test_ratios_are_by_seed() -> None:
    rows = srpfl_examples.numbers({SMALL: [4.0, 6.0], LARGE: [64.0, 48.0]})
    assert [(row.setting, row.quantity, row.value) for row in rows] == [
        ("d = 20, n_0 = 4, N = 64", "least m", 4.0),
        ("d = 20, n_0 = 4, N = 64", "least m", 6.0),
        ("d = 320, n_0 = 4, N = 64", "least m", 64.0),
        ("d = 320, n_0 = 4, N = 64", "least m", 48.0),
        ("", "least m, d = 320 over d = 20", 16.0),
        ("", "least m, d = 320 over d = 20", 8.0),
    ]


def test_the_file_knows_the_settings_that_are_changed(capsys: pytest.CaptureFixture[str]) -> None:
    run = LARGE.run(64, 0, 2)
    settings = [f"--{key}={value}" for key, value in run.settings.items()]
    file = str(CONFIGS / "problems" / run.config)
    with pytest.raises(SystemExit) as ended:
        FederatedCLI(args=["fit", "--config", file, *settings, "--print_config"])
    assert ended.value.code == 0, capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # whatever Lightning deprecates; the runs are the subject
def test_quick_study_from_end_to_end(tmp_path: Path) -> None:
    """Three rounds do not halve a distance with any number of examples."""
    reproduce.main(["srpfl-examples", "--quick", "--rounds", "3", "--output", str(tmp_path)])
    rows = read(tmp_path / "srpfl-examples-numbers.csv")
    assert [(row.setting, row.value) for row in rows] == [(str(case), math.inf) for case in srpfl_examples.CASES[:2]]
