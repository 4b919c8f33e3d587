"""Entry point of ``python -m lfl`` and the ``lfl`` script.

Answers ``--help``, ``--version`` and misspelt subcommands without importing Lightning, which takes seconds.
"""

import argparse
import difflib
import gc
import sys
from importlib import import_module

from lfl.version import __version__

SUBCOMMANDS = {
    "fit": "Run the full federated optimization.",
    "validate": "Evaluate the server's model on the validation set.",
    "test": "Evaluate the server's model on the test set.",
    "predict": "Run the server's model on the prediction set, and write predictions.pt into a new run folder.",
    "sweep": "Run `fit` with every combination of several values of its settings.",
    "report": "Compare runs: a page, tables and figures of their folders.",
    "partition": "Deal the data to clients, and show who has what, without training.",
}
# Those with a `main` of their own; the others are LightningCLI's.
_MODULES = {"sweep": "lfl.sweep.command", "report": "lfl.report.command", "partition": "lfl.cli.partition"}


def main(args: list[str] | None = None) -> None:
    """Run the command line; ends the process with its exit code."""
    args = sys.argv[1:] if args is None else args
    parser = argparse.ArgumentParser(
        prog="lfl",
        description="Federated learning on PyTorch Lightning and Fabric.",
        epilog="`lfl fit --config configs/ssf.yaml` trains; `lfl fit --help` lists every setting. "
        "LFL_TRACEBACK=1 shows where an error comes from.",
    )
    parser.add_argument("--version", action="version", version=f"lfl {__version__}")
    commands = parser.add_subparsers(title="subcommands", metavar="{" + ",".join(SUBCOMMANDS) + "}")
    for name, description in SUBCOMMANDS.items():
        commands.add_parser(name, help=description, add_help=False)
    if not args or args[0] in ("-h", "--help", "--version"):
        parser.parse_args(args or ["--help"])
        return
    if not args[0].startswith("-") and args[0] not in SUBCOMMANDS:
        near = difflib.get_close_matches(args[0], SUBCOMMANDS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"the subcommands are {', '.join(SUBCOMMANDS)}."
        parser.exit(2, f"lfl: error: unknown subcommand {args[0]!r}; {hint}\n")
    try:
        gc.disable()  # imports make objects but no garbage: collecting it would take a second
        command = import_module(_MODULES.get(args[0], "lfl.cli"))
        gc.enable()
        if args[0] in _MODULES:
            command.main(args[1:])
        else:
            command.run(args)
    except KeyboardInterrupt:  # before or after the rounds; during them the trainer handles it
        parser.exit(130, "lfl: interrupted\n")


if __name__ == "__main__":
    main()
