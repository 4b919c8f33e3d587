"""``lfl partition``: deals the data of a config to its clients, and shows who has what, without training anything."""

import sys
from argparse import SUPPRESS
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jsonargparse import ActionConfigFile
from jsonargparse.typing import NonNegativeInt

from lfl.cli.parser import FederatedArgumentParser, run
from lfl.data import FederatedData

# What else a config of `lfl fit` has: read, since it is the same file, and not used.
_OTHERS = ("model", "trainer", "optimizer", "lr_scheduler", "seed_everything", "ckpt_path")
_MOST_CLASSES = 8  # of a client that are printed


def main(args: list[str]) -> None:
    """Run ``lfl partition`` with the words after it; ends the process with one line, and code 2, for wrong ones."""
    run(args, show_partition)


def show_partition(args: list[str]) -> None:
    """Print sizes and classes of clients, and write the partition and its picture."""
    check_words(args)
    parser = _parser()
    options = parser.parse_args(args)
    if options.data is None:
        raise ValueError("`lfl partition` needs `data`: give `--config FILE` with it, or `--data CLASS`.")
    data: FederatedData = parser.instantiate_classes(options).data
    data.prepare_data()
    data.setup("fit")
    for line in described(data, options.rows):
        print(line)
    for path in _written(data, Path(options.output)):
        print(f"written: {path}", file=sys.stderr)


def check_words(args: Sequence[str]) -> None:
    """Refuse settings on the command line that a partition does not depend on; a config may have them.

    Raises:
        ValueError: there is one.
    """
    for name in (word.partition("=")[0] for word in args if word.startswith("--")):
        if name.removeprefix("--").partition(".")[0].rstrip("+") in _OTHERS:
            raise ValueError(f"`{name}` has no effect: `lfl partition` takes `data` alone. Leave it out.")


def described(data: FederatedData, rows: int) -> Iterator[str]:
    """Lines on all clients together, and on the first ``rows`` of them."""
    yield ", ".join(f"{name}: {value}" for name, value in data.describe().items())
    counts = data.label_counts() if data.train_labels is not None else None
    test_sizes, names = data.client_test_sizes.tolist(), data.partition.classes
    yield f"{'client':>6} {'train':>8} {'test':>8}" + (
        "" if counts is None else f" {'classes':>8}  examples of a class"
    )
    for client, size in enumerate(data.client_sizes.tolist()[:rows]):
        line = f"{client:>6} {size:>8} {test_sizes[client]:>8}"
        if counts is not None:
            own = counts[client].tolist()
            line += f" {sum(count > 0 for count in own):>8}  {_largest(own, names)}"
        yield line
    if rows < data.num_clients:
        yield f"... and {data.num_clients - rows} more: `--rows {data.num_clients}` shows them."


def _largest(counts: list[int], names: Sequence[str] | None) -> str:
    """The classes of a client with their numbers of examples, the largest first."""
    held = sorted((label for label, count in enumerate(counts) if count), key=lambda label: -counts[label])
    shown = [f"{names[label] if names else label}: {counts[label]}" for label in held[:_MOST_CLASSES]]
    return ", ".join([*shown, *(["..."] if len(held) > _MOST_CLASSES else [])])


def _written(data: FederatedData, folder: Path) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    data.partition.save(folder / "partition.json")
    yield folder / "partition.json"
    if data.train_labels is not None:
        data.partition.plot(data.train_labels, folder / "partition.png")
        yield folder / "partition.png"


def _parser() -> FederatedArgumentParser:
    parser = FederatedArgumentParser(
        prog="lfl partition",
        allow_abbrev=False,
        description="Deal the data of a config to clients: print who has what, and write it. A partition of your own "
        "is shown, and checked, with --data.partition_path.",
    )
    parser.add_argument("--config", action=ActionConfigFile, help="A config of `lfl fit`, of which `data` is used.")
    parser.add_argument("--rows", type=NonNegativeInt, default=20, help="How many clients are printed.")
    parser.add_argument(
        "--output", type=str, default=".", help="Folder for partition.json, and partition.png where there are classes."
    )
    for name in _OTHERS:
        parser.add_argument(f"--{name}", type=Any, default=None, help=SUPPRESS)
    parser.add_subclass_arguments(FederatedData, "data", required=False)
    return parser
