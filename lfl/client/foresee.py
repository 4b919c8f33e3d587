"""Finding out what a module's hooks will do, by letting them run ahead on a copy.

Which parameters there are is decided before round 1: they are the columns of all rows. A part that starts frozen and is
trained from round 3 on must be among them.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden

from lfl.client.layout import ParameterLayout
from lfl.client.model import ClientModel
from lfl.client.module_copy import copy_of
from lfl.client.surroundings import Surroundings
from lfl.generators import HostGenerators

_HOOKS = ("on_fit_start", "on_train_start", "on_train_epoch_start", "on_train_epoch_end")


def layout_of(module: LightningModule, rounds: int) -> ParameterLayout:
    """The layout of all parameters of a module that are trained in at least one round.

    The hooks run on a copy of the module, with the number of each round; what they print is dropped. A hook that does
    not run so (because it needs what training leaves behind) ends the search.

    Args:
        module: the module, before the run.
        rounds: number of rounds.

    Raises:
        ValueError: no parameter is ever trained, or their types differ.
    """
    if all(p.requires_grad for p in module.parameters()) or not any(is_overridden(hook, module) for hook in _HOOKS):
        return ParameterLayout.of_parameters(module)
    twin = copy_of(module)
    trained = {name for name, p in twin.named_parameters() if p.requires_grad}
    with _quietly(twin):
        for number in range(rounds):
            vars(twin)["_trainer"] = _TrainerAt(vars(module).get("_trainer"), number)
            for hook in _HOOKS if not number else _HOOKS[2:]:
                getattr(twin, hook)()
                trained |= {name for name, p in twin.named_parameters() if p.requires_grad}
    return ParameterLayout.of_parameters(module, trained)


def at_round_1(model: ClientModel) -> ClientModel:
    """A copy of a model as it is when the first step is taken: the hooks before it may make what the step reads."""
    twin = model.copy()
    trainer = vars(twin.module).get("_trainer")
    with _quietly(twin.module):
        vars(twin.module)["_trainer"] = None if trainer is None else _TrainerAt(trainer, 0)
        for hook in _HOOKS[:3]:
            getattr(twin.module, hook)()
    vars(twin.module)["_trainer"] = trainer
    return twin


@contextlib.contextmanager
def _quietly(twin: LightningModule) -> Iterator[None]:
    """Run hooks of a copy without a trace: no draw, no print, no log; an error ends them."""
    own = {name: vars(twin).get(name) for name in ("log", "log_dict")}
    vars(twin).update(log=_ignore, log_dict=_ignore)
    printed = contextlib.redirect_stdout(io.StringIO())
    with Surroundings(twin).kept(), HostGenerators(*twin.modules()).kept(), printed, contextlib.suppress(Exception):
        yield
    for name, value in own.items():
        if value is None:
            del vars(twin)[name]
        else:
            vars(twin)[name] = value


class _TrainerAt:
    """Stands in for the trainer in a round that is still to come; what is set on it stays with it."""

    def __init__(self, trainer: Any, number: int) -> None:
        self._trainer, self.current_epoch, self.current_round, self.global_step = trainer, number, number, number

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)


def _ignore(*_args: Any, **_options: Any) -> None:
    pass
