"""The classes that the clients of a run have: counted from its partition and the labels of its data."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import yaml

from lfl.storage.files import told, write_error
from lfl.storage.folders import CONFIG_FILE, PARTITION_FILE

if TYPE_CHECKING:
    from torch import Tensor

Partitions: TypeAlias = "dict[Path, list[list[int]] | str]"
"""Examples of each class of each client (inner lists), by run folder; or a line that says why they are not known."""
# torch, Lightning and the data's own libraries are imported where they are needed: they take seconds.


def labels_of(config: Path) -> Tensor:
    """Labels of the whole training set that a run's config names [n].

    Raises:
        ValueError: its data is not a FederatedDataModule, or cannot be made.
    """
    from jsonargparse import ArgumentParser

    from lfl.data import FederatedDataModule
    from lfl.data.examined import examined

    settings = yaml.safe_load(config.read_text(encoding="utf-8")).get("data")
    if not isinstance(settings, dict) or "class_path" not in settings:
        raise ValueError(f"{config} names no data: it has no `data.class_path`.")
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(FederatedDataModule, "data")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data: Any = parser.instantiate(parser.parse_object({"data": settings})).data
    data.source.check()
    train, test = data.source.load()
    return examined(train, test, data.num_classes)[0].targets


class Counting:
    """Counts the classes of clients, and draws them, in a process of its own: importing torch takes seconds.

    Args:
        runs: run folders.
        folder: of the figures: ``partition.png`` and ``partition.svg``, and ``partition_2.png``, ... for further runs.
    """

    def __init__(self, runs: Sequence[Path], folder: Path) -> None:
        self._runs = list(runs)
        self._result = Path(tempfile.mkdtemp()) / "counts.json"
        arguments = [str(self._result), str(folder.absolute()), *(str(run.absolute()) for run in self._runs)]
        command = [sys.executable, "-m", "lfl.report.partitions", *arguments]
        null = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdin=null, stdout=null, stderr=null) if self._runs else None

    def result(self, seconds: float = 120.0) -> Partitions:
        """The number of examples of each class of each client (inner lists), by run; a line that says why for none."""
        if self._process is None:
            self._result.parent.rmdir()
            return {}
        try:
            self._process.wait(seconds)
            found = json.loads(self._result.read_text(encoding="utf-8"))
        except (subprocess.TimeoutExpired, OSError) as error:
            found = [f"counting its classes failed: {type(error).__name__}"] * len(self._runs)
        finally:
            self._process.kill()
            self._process.wait()
            shutil.rmtree(self._result.parent)
        return dict(zip(self._runs, found, strict=True))


def count_classes(run: Path, figure: Path) -> list[list[int]]:
    """The number of examples of each class (inner lists) of each client of a run; draws them, as PNG and SVG.

    Raises:
        ValueError: the run has no such data.
        OSError: a file is missing, or cannot be written.
    """
    from lfl.data import Partition

    labels = labels_of(run / CONFIG_FILE)
    partition = Partition.load(run / PARTITION_FILE)
    figure.parent.mkdir(parents=True, exist_ok=True)
    for path in (figure.with_suffix(".png"), figure.with_suffix(".svg")):
        try:
            partition.plot(labels, path)
        except OSError as error:
            raise write_error(error, path) from error
    counts: list[list[int]] = partition.label_counts(labels, int(labels.max()) + 1).tolist()
    return counts


def name_of_figure(number: int) -> str:
    """The file, without its suffix, of the figure of this number, counted from 1."""
    return f"partition_{number}" if number > 1 else "partition"


def distinct(runs: Sequence[Path]) -> list[Path]:
    """One run for each different partition, in order."""
    found: dict[str, Path] = {}
    for run in runs:
        path = run / PARTITION_FILE
        if path.is_file() and (run / CONFIG_FILE).is_file():
            found.setdefault(hashlib.blake2b(path.read_bytes()).hexdigest(), run)
    return list(found.values())


def main(arguments: Sequence[str]) -> None:
    """Count classes for ``Counting``, given its result file, the folder of figures, and run folders."""
    result, folder, *runs = map(Path, arguments)
    found: list[list[list[int]] | str] = []
    for number, run in enumerate(runs, 1):
        try:
            found.append(count_classes(run, folder / name_of_figure(number)))
        except OSError as error:
            found.append(told(error))
        except Exception as error:  # the parser wraps whatever a data set raises
            found.append((str(error).splitlines() or [type(error).__name__])[0])
    result.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
