"""The studies as files for ``lfl sweep``: the same runs, for machines with more cores or GPUs.

    python -m tools.papers.grids             # writes configs/papers/PAPER/sweeps/STUDY.yaml
    lfl sweep --grid configs/papers/flss/sweeps/flss-parts.yaml --jobs 8

``lfl report`` on the folder of such a sweep has the accuracies and curves of the study.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from lfl.storage.files import write_file
from tools import CONFIGS
from tools.papers import (
    compressors,
    fedmrur,
    flss,
    flss_convergence,
    flss_figures,
    srpfl_settings,
    stacks,
    stragglers,
    tables,
)
from tools.papers.study import Study

SEEDS = 3
_OWN = ("seed_everything", "data.init_args.seed", "trainer.checkpoint")
# Of each paper the studies, by command.
STUDIES: Mapping[str, Mapping[ModuleType, tuple[str, ...]]] = {
    "flss": {
        compressors: tuple(compressors.STUDIES),
        flss: tuple(flss.STUDIES),
        flss_convergence: tuple(flss_convergence.STUDIES),
        flss_figures: tuple(flss_figures.STUDIES),
        stacks: ("compression",),
        tables: ("flss-dirichlet0.1", "flss-dirichlet0.5"),
    },
    "fedmrur": {
        fedmrur: tuple(fedmrur.STUDIES),
        stacks: ("optimization",),
        tables: ("fedmrur-path2", "fedmrur-dirichlet"),
    },
    "srpfl": {stragglers: tuple(stragglers.STUDIES), srpfl_settings: tuple(srpfl_settings.STUDIES)},
}


def grids() -> Iterator[tuple[Path, str]]:
    """Every file with its text."""
    for paper, commands in STUDIES.items():
        for command, names in commands.items():
            tool = command.__name__.rpartition(".")[2]
            for name in names:
                path = CONFIGS / "papers" / paper / "sweeps" / f"{tool}-{name}.yaml"
                yield path, text_of(path, f"python -m {command.__name__} {name}", command.STUDIES[name])


def text_of(path: Path, command: str, study: Study) -> str:
    """A study as the text of a file for ``lfl sweep --grid``.

    Args:
        path: where it will be.
        command: what makes the study here.
        study: its methods and settings.
    """
    grid: dict[str, Any] = {"method": {}, "seed": {}}
    for name, (run,) in study.runs([0], study.rounds, "auto").items():
        config = (CONFIGS / run.config).relative_to(CONFIGS.parent)
        # Sweeps give seeds by themselves, and go on from checkpoints.
        settings = {key: value for key, value in run.settings.items() if key not in _OWN}
        grid["method"][name] = {"config": str(config), **settings}
    grid["seed"] = {f"seed {seed}": {"seed_everything": seed, "data.init_args.seed": seed} for seed in range(SEEDS)}
    head = (
        f"# lfl sweep --grid {path.relative_to(CONFIGS.parent)} --jobs 8\n#\n# {study.title}: what `{command}` makes.\n"
    )
    return head + str(yaml.safe_dump(grid, sort_keys=False, width=119))


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options_of(arguments)
    for path, text in grids():
        write_file(path, text)


if __name__ == "__main__":
    main()
