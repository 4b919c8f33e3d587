"""The commands of W&B sweeps."""

import itertools
from typing import Any


def expand(sweep: dict[str, Any]) -> list[list[str]]:
    """The commands that ``wandb agent`` starts for a grid, by its own functions."""
    from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

    names = list(sweep["parameters"])
    commands = []
    for values in itertools.product(*(sweep["parameters"][name]["values"] for name in names)):
        given = create_sweep_command_args({"args": {n: {"value": v} for n, v in zip(names, values, strict=True)}})
        macros = {f"${{{key}}}": words for key, words in given.items()} | {"${program}": [sweep["program"]]}
        parts = [macros.get(word, [word]) for word in create_sweep_command(list(sweep["command"]))]
        commands.append(list(itertools.chain.from_iterable(parts)))
    return commands
