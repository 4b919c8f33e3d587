"""LightningCLI with a federated trainer and one-line errors."""

from __future__ import annotations

import inspect
import os
import signal
import sys
from collections.abc import Callable
from types import MethodType
from typing import Any, NoReturn

from jsonargparse.typing import NonNegativeInt
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.fabric.utilities.seed import seed_everything
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, instantiate_class
from typing_extensions import override

import lfl.callbacks
import lfl.data
import lfl.loggers
import lfl.models  # noqa: F401  # imported so that their classes are known by their short names
from lfl.cli.allocator import keep_freed_memory
from lfl.cli.errors import describe_error, is_about_settings, one_line
from lfl.cli.lists import without_remains
from lfl.processes.group import process_name
from lfl.processes.signals import StoppedBySignal
from lfl.trainer import FederatedTrainer

# Lightning uses names that jsonargparse has deprecated; a user cannot change that.
os.environ.setdefault("JSONARGPARSE_DEPRECATION_WARNINGS", "off")


class FederatedArgumentParser(LightningArgumentParser):
    """Lightning's parser, made to accept a trainer that is not a ``lightning.Trainer``."""

    @override
    def add_lightning_class_args(
        self, lightning_class: Any, nested_key: str, subclass_mode: bool = False, required: bool = True
    ) -> list[str]:
        if isinstance(lightning_class, type) and issubclass(lightning_class, FederatedTrainer):
            added: list[str] = self.add_class_arguments(
                lightning_class, nested_key, fail_untyped=False, instantiate=False, sub_configs=True
            )
            return added
        return super().add_lightning_class_args(lightning_class, nested_key, subclass_mode, required)

    @override
    def parse_args(self, args: Any = None, *rest: Any, **options: Any) -> Any:
        """Parse; an argument of a class within a class that is null stays null."""
        # jsonargparse gives the parser of a nested class one argument, and writes the null that it has read as "None".
        if not self.exit_on_error and isinstance(args, list) and len(args) == 1 and str(args[0]).endswith("=None"):
            args = [str(args[0]).removesuffix("None") + "null"]
        return super().parse_args(args, *rest, **options)

    @override
    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print one line and end with exit code 2; with ``LFL_TRACEBACK=1``, raise the error instead."""
        # The parser of a nested class: its error becomes a part of the message of the outermost parser.
        if not self.exit_on_error:
            super().error(message, ex)
        if os.environ.get("LFL_TRACEBACK"):
            raise ValueError(message) from ex
        self.exit(2, f"lfl: error: {one_line(message, self._known_options(), self.args)}\n")

    def _known_options(self) -> set[str]:
        known = set(self._option_string_actions)
        for action in self._actions:
            if isinstance(action.choices, dict):
                known.update(*(parser._option_string_actions for parser in action.choices.values()))
        return known


class FederatedCLI(LightningCLI):
    """The command ``lfl fit|validate|test|predict``: LightningCLI, with a new optimizer for every client."""

    def __init__(self, args: Any = None, **options: Any) -> None:
        super().__init__(
            model_class=None,
            datamodule_class=None,
            trainer_class=FederatedTrainer,  # type: ignore[arg-type]
            parser_class=FederatedArgumentParser,
            seed_everything_default=0,
            parser_kwargs={
                "allow_abbrev": False,
                "prog": "lfl",
                "description": "Federated learning, as a LightningCLI.",
            },
            args=args,
            **options,
        )

    @property
    def settings(self) -> str:
        """All settings, with defaults, as the YAML that a run saves."""
        return str(self._parser(self.subcommand).dump(self.config[str(self.subcommand)], skip_none=False))

    @override
    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        # Also in the parsers of subcommands: abbreviated, a misspelt setting could be taken for another one.
        kwargs.setdefault("allow_abbrev", False)
        return super().init_parser(**kwargs)

    @override
    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        words = sys.argv[1:] if args is None else args
        self.config = parser.parse_args(without_remains(words) if isinstance(words, list) else words)

    @override
    def _parse_ckpt_path(self) -> None:
        """Do nothing. Lightning would read settings from the checkpoint; here, the config alone has them."""

    @override
    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument(
            "--seed_everything", type=NonNegativeInt, default=0, help="The seed of every draw; becomes `trainer.seed`."
        )

    @override
    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.link_arguments("seed_everything", "trainer.seed")

    @override
    def _set_seed(self) -> None:
        seed_everything(self._get(self.config, "seed_everything"), workers=True, verbose=False)

    @override
    def before_instantiate_classes(self) -> None:
        # Lightning's parser allows null for everything; it would reach the trainer, which then fails somewhere inside.
        for name, parameter in inspect.signature(FederatedTrainer).parameters.items():
            if self._get(self.config, "trainer")[name] is None and "None" not in str(parameter.annotation):
                raise ValueError(f"`trainer.{name}=null` has no meaning: leave it out for {parameter.default}.")
        if self._get(self.config, "data") is None:
            raise ValueError(f"`lfl {self.subcommand}` needs `data`: give `--config FILE` with it, or `--data CLASS`.")
        if self._get(self.config, "lr_scheduler") and not self._get(self.config, "optimizer"):
            raise ValueError("`lr_scheduler` needs an `optimizer` beside it, whose rate it changes.")

    @override
    def instantiate_trainer(self, **kwargs: Any) -> Any:
        try:
            return super().instantiate_trainer(**kwargs)
        except (RuntimeError, TypeError, MisconfigurationException) as error:  # Fabric's, such as no GPU
            raise ValueError(f"No trainer with these settings: {error}") from error

    @override
    def _add_configure_optimizers_method_to_model(self, subcommand: str | None) -> None:
        """Give the model a method that builds a new optimizer at each call.

        Lightning's own method returns the same optimizer each time, so that all clients would share its momentum.
        """
        optimizer = self._get(self.config_init, "optimizer")
        if not optimizer:
            return
        scheduler = self._get(self.config_init, "lr_scheduler")
        self._warn_of_model_rates()

        def configure_optimizers(module: LightningModule) -> Any:
            built = instantiate_class((p for p in module.parameters() if p.requires_grad), optimizer)
            return LightningCLI.configure_optimizers(
                module, built, instantiate_class(built, scheduler) if scheduler else None
            )

        # A bound method, not a closure over the model: a copy of the module then builds an optimizer of its own
        # parameters.
        self.model.configure_optimizers = MethodType(configure_optimizers, self.model)
        # Tried out now, so that a wrong setting is refused before any work. A module whose parameters are made later,
        # in `configure_model`, has none yet, and torch's optimizers refuse an empty list.
        if any(p.requires_grad for p in self.model.parameters()):
            try:
                self.model.configure_optimizers()
            except (TypeError, ValueError) as error:
                raise ValueError(f"`optimizer` or `lr_scheduler` cannot be built: {error}.") from error

    def _warn_of_model_rates(self) -> None:
        """Warn of learning rates that are given to the model, whose own optimizer the config replaces."""
        given = getattr(self._get(self.config, "model"), "init_args", None) or {}
        usual = inspect.signature(type(self.model).__init__).parameters
        for name in ("lr", "learning_rate"):
            value = given.get(name) if name in usual else None
            if value is not None and value != usual[name].default:
                rank_zero_warn(
                    f"`model.{name}={value}` has no effect: `optimizer` takes the place of the model's own. Set "
                    "`optimizer.lr`, or leave `optimizer` out."
                )


class ResolvingCLI(FederatedCLI):
    """The command line up to where the run would begin: everything is parsed, checked and built."""

    @override
    def _run_subcommand(self, subcommand: str) -> None:
        del subcommand


def run(args: list[str], command: Callable[[list[str]], Any] = FederatedCLI) -> Any:
    """Run a command; ends the process with an exit code if it fails or is stopped.

    The exit codes: 1 for a RuntimeError, 2 for wrong settings or files, 130 and 143 for SIGINT and SIGTERM.

    Args:
        args: subcommand and settings.
        command: what is made of them; ``lfl fit|validate|test|predict``, or another one.

    Returns:
        What the command gives: the command line, whose ``trainer`` has the run.
    """
    # An installed script does not have the current folder in its path, where users keep their own modules.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    keep_freed_memory()
    try:
        return command(args)
    except StoppedBySignal:
        sys.exit(128 + signal.SIGINT)
    except Exception as error:
        if os.environ.get("LFL_TRACEBACK") or not is_about_settings(error):
            raise
        where = f" in {name}" if (name := process_name()) else ""
        print(f"lfl: error{where}: {describe_error(error)}", file=sys.stderr)
        sys.exit(1 if isinstance(error, RuntimeError) else 2)
