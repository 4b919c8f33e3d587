"""A logger for Weights & Biases that never prompts, never waits long for a missing network, and drops no rows.

``wandb`` itself is imported when the run is opened, since that takes long.
"""

import contextlib
import inspect
import io
import os
import shlex
import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers import WandbLogger as LightningWandbLogger
from typing_extensions import override

from lfl.loggers.csv import read_rows
from lfl.storage.folders import CONFIG_FILE, METRICS_FILE, PARTITION_FILE, TIMING_FILE

_AXIS = "round"
# By default wandb waits 90 s for its server, and without limit for an upload. Setting: (wandb's default, ours).
_LIMITS = {"init_timeout": (90.0, 10.0), "finish_timeout": (0.0, 120.0), "finish_timeout_raises": (False, True)}
_PICTURES = "pictures"  # in a run's folder, and before the names of pictures that are logged
_RESULTS = (CONFIG_FILE, "*.csv", PARTITION_FILE, f"{_PICTURES}/*.png")  # files of a run that are uploaded
_CREDENTIALS = {"api_key", "base_url", "identity_token_file"}

# The runs that our loggers opened. wandb has one current run per process: a run of ours may be closed when the next of
# ours is opened, but not a run that the user opened.
_opened: "weakref.WeakSet[Any]" = weakref.WeakSet()


class WandbLogger(LightningWandbLogger):
    """Lightning's logger for Weights & Biases, with rounds as the axis of every metric.

    The run is online if an API key is configured, ``offline`` is not set, and the server answers within ten seconds.
    Otherwise the run is offline, and one line says why, where its files are and how to upload them. Nothing is ever
    asked on the terminal. Under a sweep agent, and in a run that the user opened with ``wandb.init``, nothing is
    changed.

    A resumed run keeps its id if it is online and was online before. Offline that is not possible (uploading the second
    part erases the first, https://github.com/wandb/wandb/issues/5865): the resumed run gets a new id, and
    `continue_from` gives it the earlier rounds.

    Args:
        name: Name of the run on the web page; W&B invents one by default.
        save_dir: Folder in which the folder ``wandb`` is made; ``$WANDB_DIR`` or the run's folder by default.
        project: Project; ``$WANDB_PROJECT`` or ``lfl`` by default.
        offline: Stay offline.
        **kwargs: Arguments of Lightning's logger and of ``wandb.init``, such as ``entity``, ``group`` and ``tags``.
    """

    def __init__(
        self,
        name: str | None = None,
        save_dir: str | Path | None = None,
        project: str | None = None,
        *,
        offline: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            name=name,
            save_dir=save_dir,  # type: ignore[arg-type]  # None is handled, the signature forgets it
            project=project or os.environ.get("WANDB_PROJECT", "lfl"),
            offline=offline,
            **kwargs,
        )
        del self._wandb_init["anonymous"]  # wandb warns of it, whatever its value
        if not (self._wandb_init.get("resume_from") or self._wandb_init.get("fork_from")):
            # The command line passes None for arguments that are not given, which replaces Lightning's own default.
            self._wandb_init["resume"] = self._wandb_init["resume"] or "allow"
        self._is_in_run = save_dir is None and "dir" not in kwargs and "WANDB_DIR" not in os.environ
        self._resumed: dict[str, Any] | None = None  # id and state of the run that a checkpoint belongs to
        self._history: tuple[Path, int] | None = None  # folder and last round of the CSV files to copy rounds from

    @property
    @override
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The ``wandb`` run, opened at first use."""
        if self._experiment is None:
            # The logger was pickled while its run was open: Lightning attaches to that run.
            if getattr(self, "_attach_id", None) is not None:
                return super().experiment
            self._experiment = self._open()
        return self._experiment

    @override
    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log the metrics of round ``step``; may be called several times per round, and in any order of rounds."""
        self._log(self.experiment, metrics, step)

    def use_folder(self, folder: Path) -> None:
        """Write into the folder of a run, from when W&B's run is opened, unless ``save_dir`` says where."""
        if self._is_in_run:
            self._save_dir = self._wandb_init["dir"] = str(folder)

    @rank_zero_only
    def continue_from(self, directory: str | Path, last_round: int) -> None:
        """Log the rounds of a resumed run again if it cannot keep its id; they are read from the files of `CSVLogger`.

        Args:
            directory: The folder of the run that is resumed.
            last_round: The last round to log again.
        """
        self._history = (Path(directory), last_round)

    def state_dict(self) -> dict[str, Any]:
        """The id of the run, and whether it is online."""
        if self._experiment is None:
            return dict(self._resumed or {"id": self.version, "is_online": False})
        return {"id": self.version, "is_online": not (self._experiment.offline or self._experiment.disabled)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the run of a checkpoint; must be called before this logger's run is opened."""
        if state["id"] is not None:
            self._resumed = dict(state)

    @rank_zero_only
    def log_results(
        self, folder: Path, best: Mapping[str, tuple[float, int]], partition: Callable[[Path], None] | None
    ) -> None:
        """Log what a run has come to: its best values and, if it is online, its files.

        W&B keeps the last value of every metric itself, under the metric's name; the best ones are ``best/NAME`` in the
        summary, their rounds ``best_round/NAME``. The files (config, tables, partition, pictures) are an artifact, and
        so is a picture of the partition, which is also shown among the metrics. Offline, all of them are in the run's
        folder anyway.

        Args:
            folder: the run's folder.
            best: the best value of each metric, with its round.
            partition: draws who has which classes, into a file; None where examples have none.
        """
        run = self.experiment
        values = {f"best/{name}": value for name, (value, _) in best.items()}
        run.summary.update(values | {f"best_round/{name}": number for name, (_, number) in best.items()})
        if run.offline or run.disabled:
            return
        import wandb

        if partition is not None:
            picture = folder / _PICTURES / "partition.png"
            picture.parent.mkdir(exist_ok=True)
            partition(picture)
            run.log({f"{_PICTURES}/partition": wandb.Image(str(picture))})
        artifact = wandb.Artifact(f"run-{run.id}", type="run")
        for pattern in _RESULTS:
            for path in sorted(folder.glob(pattern)):
                artifact.add_file(str(path), name=str(path.relative_to(folder)))
        run.log_artifact(artifact)

    @override
    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Finish uploading an online run, within two minutes; what is not uploaded by then stays on the disk.

        Metrics that are logged later open the run again. An offline run cannot be opened again, so it stays open until
        the process ends or another logger opens a run; its rows are always on the disk.
        """
        super().finalize(status)
        run = self._experiment
        if run is None or run not in _opened or (run.offline and status == "success"):
            return
        # For metrics that are logged later: the run is then opened again under its id.
        self._id = run.id
        self._resumed = self.state_dict()
        self._experiment = None
        try:
            run.finish(exit_code=0 if status == "success" else 1)
        except TimeoutError:
            _say_where(run, "W&B took too long to upload the run.")

    def _log(self, run: Any, metrics: Mapping[str, float], step: int | None) -> None:
        row = {f"{self._prefix}{self.LOGGER_JOIN_CHAR}{key}" if self._prefix else key: metrics[key] for key in metrics}
        if step is not None:
            row[_AXIS] = step
        # Not with wandb's own argument `step`, which makes it drop rows that come out of order.
        run.log(row)

    def _open(self) -> Any:
        """Take the run that the user opened, or open a new one; set its axis and log the rounds of a resumed run."""
        import wandb

        # The last logger's run: wandb would return it instead of opening a new one.
        if wandb.run is not None and wandb.run in _opened:
            wandb.run.finish()
        run = wandb.run
        if run is None:
            if self._save_dir is not None:
                os.makedirs(self._save_dir, exist_ok=True)
            run = self._init(wandb)
        run.define_metric(_AXIS)
        run.define_metric("*", step_metric=_AXIS)
        resumed = self._resumed
        self._resumed = None
        # Under the old id the server has the earlier rounds already.
        if self._history is not None and resumed is not None and run.id != resumed["id"]:
            directory, last_round = self._history
            rounds: dict[int, dict[str, float]] = defaultdict(dict)
            for name in (METRICS_FILE, TIMING_FILE):
                for number, metrics in read_rows(directory / name, last_round):
                    rounds[number].update(metrics)
            for number in sorted(rounds):
                self._log(run, rounds[number], number)
        self._history = None
        return run

    def _init(self, wandb: Any) -> Any:
        """Open a run: online if the server can be used at once, otherwise offline, with one line that says why."""
        arguments = dict(self._wandb_init)
        defaults = wandb.setup().settings
        mode = arguments.pop("mode", None) or defaults.mode
        # Here wandb decides by itself: a sweep agent has chosen the run, and a disabled one goes nowhere.
        if defaults.sweep_id or (mode == "disabled" and not self._offline):
            return wandb.init(**self._wandb_init)
        settings = arguments.pop("settings", None) or {}
        settings = settings if isinstance(settings, dict) else settings.model_dump(exclude_unset=True)
        arguments["settings"] = {"silent": True, **settings}
        if self._offline or mode in ("offline", "dryrun"):
            reason = "as asked"
        elif not (_CREDENTIALS & settings.keys() or _has_key(wandb, defaults)):
            reason = "there is no API key"
        else:
            try:
                return self._init_online(wandb, {**arguments, "mode": mode}, defaults)
            except wandb.errors.AuthenticationError:
                raise  # the user has given a wrong key, and wants to know
            except wandb.errors.CommError as error:
                first_line, _, _ = str(error).partition("\n")
                reason = f"{defaults.base_url} could not be used: {first_line}"
        run = wandb.init(**arguments, mode="offline")
        _opened.add(run)
        _say_where(run, f"W&B is offline ({reason}).")
        return run

    def _init_online(self, wandb: Any, arguments: dict[str, Any], defaults: Any) -> Any:
        """Open an online run, under the id of the resumed run if that was online; raises wandb's own errors."""
        # A limit that the user has changed, by an environment variable or a settings file, stays.
        limits = {name: ours for name, (theirs, ours) in _LIMITS.items() if getattr(defaults, name, None) == theirs}
        if self._resumed is not None and self._resumed["is_online"] and arguments["id"] is None:
            arguments["id"] = self._resumed["id"]
        run = wandb.init(**{**arguments, "settings": {**limits, **arguments["settings"]}})
        _opened.add(run)
        print(f"W&B: {run.url}", file=sys.stderr)
        return run


def _has_key(wandb: Any, settings: Any) -> bool:
    """Whether wandb itself finds an API key: in the environment, its settings, or the file of ``wandb login``."""
    if "prompt" not in inspect.signature(wandb.login).parameters:  # before 0.31
        return bool(wandb.api.api_key)
    # If it is not silent, `login` asks the server for the user's name and waits for the answer.
    silent = settings.silent
    settings.silent = True
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # even then it prints where it found a key
            return bool(wandb.login(prompt=False, verify=False))
    finally:
        settings.silent = silent


def _say_where(run: Any, what: str) -> None:
    folder = Path(run.dir).parent
    print(f"{what} The run lies in {folder}; to upload it: wandb sync {shlex.quote(str(folder))}", file=sys.stderr)
