"""The command line: LightningCLI with a federated trainer."""

from __future__ import annotations

import os
import sys
from types import MethodType
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, instantiate_class
from typing_extensions import override

import lfl.callbacks
import lfl.data
import lfl.loggers
import lfl.models  # noqa: F401  # imported so that their classes are known by their short names
from lfl.trainer import FederatedTrainer


class FederatedArgumentParser(LightningArgumentParser):
    """Lightning's parser, taught about our trainer class."""

    @override
    def add_lightning_class_args(
        self, lightning_class: Any, nested_key: str, subclass_mode: bool = False, required: bool = True
    ) -> list[str]:
        if isinstance(lightning_class, type) and issubclass(lightning_class, FederatedTrainer):
            return self.add_class_arguments(
                lightning_class, nested_key, fail_untyped=False, instantiate=False, sub_configs=True
            )
        return super().add_lightning_class_args(lightning_class, nested_key, subclass_mode, required)


class FederatedCLI(LightningCLI):
    """``lfl fit|validate|test|predict``: all of LightningCLI, with fresh optimizers for every client."""

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

    @override
    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        kwargs.setdefault("allow_abbrev", False)
        return super().init_parser(**kwargs)

    @override
    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        self.config = parser.parse_args(args)

    @override
    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.link_arguments("seed_everything", "trainer.seed")

    @override
    def _add_configure_optimizers_method_to_model(self, subcommand: str | None) -> None:
        """Build a new optimizer at each call: Lightning's own would share one object among all clients."""
        optimizer = self._get(self.config_init, "optimizer")
        if not optimizer:
            return
        scheduler = self._get(self.config_init, "lr_scheduler")

        def configure_optimizers(module: LightningModule) -> Any:
            built = instantiate_class((p for p in module.parameters() if p.requires_grad), optimizer)
            return LightningCLI.configure_optimizers(
                module, built, instantiate_class(built, scheduler) if scheduler else None
            )

        self.model.configure_optimizers = MethodType(configure_optimizers, self.model)


def run(args: list[str]) -> None:
    """Run the command line; ends the process with its exit code."""
    sys.path.insert(0, os.getcwd())  # an installed script does not see the user's own modules
    try:
        cli = FederatedCLI(args=args)
    except (ValueError, FileNotFoundError, PermissionError) as error:
        if os.environ.get("LFL_TRACEBACK"):
            raise
        print(f"lfl: error: {error}", file=sys.stderr)
        sys.exit(2)
    if cli.trainer.interrupted:
        sys.exit(128 + cli.trainer.interrupted)
