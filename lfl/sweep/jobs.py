"""The work of a sweep's processes: check the settings of a run, and run it.

torch, Lightning and the rest of lfl are imported by ``prepare``, in the processes; their parent does without.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import shutil
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import yaml
from filelock import FileLock

from lfl.sweep.folder import LOG, attempts, remove_incomplete, write_finished

_ERROR = "lfl: error: "
_STOPPED = (130, 143)  # exit codes of runs that SIGINT and SIGTERM ended
_GPUS = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Checked:
    """A run's settings, which are right.

    Attributes:
        digest: of all settings, defaults included.
        data: a digest of the settings of its data.
        max_rounds: of the run.
        logs_to_wandb: whether one of its loggers is W&B's.
    """

    digest: str
    data: str
    max_rounds: int
    logs_to_wandb: bool


@dataclass(frozen=True)
class Outcome:
    """The end of a run.

    Attributes:
        state: interrupted runs go on when the sweep does.
        message: why it failed, on one line.
    """

    state: Literal["finished", "failed", "interrupted"]
    message: str = ""


def prepare(size: int, place: int) -> None:
    """Import everything; share the machine's cores, and deal its GPUs.

    Args:
        size: number of processes.
        place: number of this one.
    """
    gc.disable()  # imports make objects but no garbage: collecting it would take a second
    import torch

    import lfl.cli  # noqa: F401
    from lfl.engine.threads import is_number_given

    gc.enable()
    gc.freeze()  # or each collection between runs would go through all that is imported
    if not is_number_given():
        torch.set_num_threads(max(1, torch.get_num_threads() // size))
    # Before CUDA starts in this process, which reads the variable only then.
    gpu = own_gpu(place, os.environ.get(_GPUS), torch.cuda.device_count())
    if gpu is not None:
        os.environ[_GPUS] = gpu


def own_gpu(place: int, visible: str | None, count: int) -> str | None:
    """The GPU of process ``place``, as ``CUDA_VISIBLE_DEVICES`` names it; None where there is no choice.

    >>> own_gpu(5, None, 4), own_gpu(1, "2,3", 2), own_gpu(1, None, 1)
    ('1', '3', None)
    """
    names = visible.split(",") if visible else list(map(str, range(count)))
    return names[place % len(names)].strip() if min(len(names), count) > 1 else None


def check(arguments: Sequence[str]) -> Checked:
    """Parse the settings of a run, and build its objects.

    Raises:
        ValueError: they are wrong; with the one line that ``lfl fit`` would print.
    """
    from lfl.cli import ResolvingCLI

    cli = _or_one_line(ResolvingCLI, arguments)
    trainer: Any = cli.trainer
    if trainer.world_size > 1:
        raise ValueError(
            f"{trainer.world_size} processes (`trainer.devices`, `trainer.num_nodes`) share each run, but the runs "
            "of a sweep have one each; `--print` gives the commands, to be started one by one."
        )
    settings = cli.settings
    return Checked(
        _digest(settings),
        _digest(json.dumps(yaml.safe_load(settings)["data"], default=str)),
        trainer.max_rounds,
        logs_to_wandb="WandbLogger" in settings,
    )


def prepare_data(arguments: Sequence[str]) -> None:
    """Check that the data of a run is there, and fetch or unpack it if its settings say so, as the run would.

    Raises:
        ValueError: it is not there; with the one line that ``lfl fit`` would print.
    """
    from lfl.cli import ResolvingCLI

    _or_one_line(lambda words: ResolvingCLI(words).datamodule.prepare_data(), arguments)


def _or_one_line(command: Callable[[list[str]], Any], arguments: Sequence[str]) -> Any:
    """The result of a command for arguments of ``lfl fit``; raises ValueError with the one line that it would print."""
    from lfl.cli import run

    said = StringIO()
    try:
        with warnings.catch_warnings(), redirect_stderr(said):
            warnings.simplefilter("ignore")  # the run itself warns
            return run(["fit", *arguments], command)
    except SystemExit as error:
        raise ValueError(said.getvalue().strip().rpartition(_ERROR)[2]) from error


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def fit(arguments: Sequence[str], folder: Path) -> Outcome:
    """Run ``lfl fit`` in a folder of its own, or go on with it from its last checkpoint.

    What it prints goes to ``log.txt``; ``finished.json`` names the folder of a run that is through.

    Raises:
        KeyboardInterrupt: SIGINT came before the first round.
    """
    from lfl.cli import run

    gc.collect()  # trainers are circles of objects: the last run's memory, on the device too, waits for this
    folder.mkdir(parents=True, exist_ok=True)
    # Another process may be in its last moments here: one whose parent was killed.
    with FileLock(folder / ".lock"), _into(folder / LOG) as log:
        remove_incomplete(folder)
        whole = [*arguments, f"--trainer.default_root_dir={folder}", *_resumption(folder)]
        print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} lfl fit {' '.join(whole)}")
        try:
            with warnings.catch_warnings():  # the warnings of an earlier run are said again
                cli = run(["fit", *whole])
        except SystemExit as error:
            if error.code in _STOPPED:
                return Outcome("interrupted")
            return Outcome("failed", _last_line(log).removeprefix(_ERROR))
        except Exception as error:
            traceback.print_exc()
            return Outcome("failed", " ".join(traceback.format_exception_only(error)[-1].split()))
        write_finished(folder / Path(str(cli.trainer.log_dir)).name)
        return Outcome("finished")


def _resumption(folder: Path) -> list[str]:
    """The argument to resume a run from its last checkpoint; none if it begins again, and what it left is removed."""
    from lfl.storage.checkpoint_file import CheckpointError, find_newest

    for attempt in attempts(folder):
        if not (attempt / "checkpoints" / "last.ckpt").exists():
            shutil.rmtree(attempt)
    try:
        return [f"--ckpt_path={find_newest(folder)}"]
    except CheckpointError:
        return []


@contextmanager
def _into(path: Path) -> Iterator[Path]:
    """Append all that is printed to a file, also by C and by whatever has kept the streams of the start."""
    with path.open("a", buffering=1, encoding="utf-8") as file:
        kept = os.dup(1), os.dup(2)
        _flush()
        try:
            for number in (1, 2):
                os.dup2(file.fileno(), number)
            with redirect_stdout(file), redirect_stderr(file):
                yield path
        finally:
            _flush()
            for number, former in enumerate(kept, start=1):
                os.dup2(former, number)
                os.close(former)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "")
