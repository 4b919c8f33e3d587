"""Draw which classes the clients of a run have.

    python -m tools.plot_partition runs/run_000
    python -m tools.plot_partition runs/run_000/partition.pt --output partition.png

Reads the run's ``partition.pt``, and the labels from the data source of the ``config.yaml`` beside it (``--config``
names another). The picture goes into the run's folder as ``partition.png``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lfl.data import Partition
from lfl.report.partitions import labels_of


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="a run's folder, or a partition file")
    parser.add_argument("--config", type=Path, help="config.yaml that says what the data is; beside the partition")
    parser.add_argument("--output", type=Path, help="the picture; its suffix says the format")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    path = options.path / "partition.pt" if options.path.is_dir() else options.path
    config = options.config or path.with_name("config.yaml")
    output = options.output or path.with_name("partition.png")
    try:
        partition = Partition.load(path)
        labels = labels_of(config)
    except FileNotFoundError as error:
        sys.exit(f"plot_partition: {error}")
    except Exception as error:  # the parser wraps whatever a data set raises
        sys.exit(f"plot_partition: {config}: {str(error).splitlines()[0]}")
    partition.plot(labels, output)
    print(output)


if __name__ == "__main__":
    main()
