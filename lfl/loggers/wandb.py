"""Weights & Biases without its surprises: no prompt, no long wait for a network that is not there, no dropped rows.

``wandb`` itself is imported when the run is opened, not before.
"""

import contextlib
import inspect
import io
import os
import shlex
import sys
import weakref
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers import WandbLogger as LightningWandbLogger
from typing_extensions import override

from lfl.loggers.csv import METRICS_FILE, TIMING_FILE, read_rows

_AXIS = "round"
# wandb waits 90 s for a server and for ever for an upload: its settings, their defaults and what takes their place.
_LIMITS = {"init_timeout": (90.0, 10.0), "finish_timeout": (0.0, 120.0), "finish_timeout_raises": (False, True)}
_CREDENTIALS = {"api_key", "base_url", "identity_token_file"}

# wandb has one current run in a process. Ours may be closed for the next of ours; one that the user opened may not.
_opened: "weakref.WeakSet[Any]" = weakref.WeakSet()


class WandbLogger(LightningWandbLogger):
    """Lightning's logger for Weights & Biases, with rounds as the axis of every metric.

    The run is online if a key is configured, nobody asked for offline and the server answers within ten seconds.
    Otherwise it is offline, and one line says why, where the run lies and how to upload it. Nothing is ever asked on
    the terminal. Under a sweep agent, and in a run that was opened with ``wandb.init`` before, everything is left as it
    is.

    A resumed run goes on under the same id if both its parts are online. W&B cannot do that offline (the upload of the
    second part erases the first, https://github.com/wandb/wandb/issues/5865), so there the resumed run is a new one,
    and `continue_from` gives it the earlier rounds.

    Args:
        name: The run's name on the web page; W&B invents one by default.
        save_dir: The folder in which the folder ``wandb`` is made; ``$WANDB_DIR`` or the current one by default.
        project: The project; ``$WANDB_PROJECT`` or ``lfl`` by default.
        offline: Do not try to be online.
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
            # The command line passes None for what is not given, which would replace Lightning's own default.
            self._wandb_init["resume"] = self._wandb_init["resume"] or "allow"
        self._resumed: dict[str, Any] | None = None
        self._history: tuple[Path, int] | None = None

    @property
    @override
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The ``wandb`` run, opened at first use."""
        if self._experiment is None:
            if getattr(self, "_attach_id", None) is not None:  # a logger that was pickled, with its run still open
                return super().experiment
            self._experiment = self._open()
        return self._experiment

    @override
    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log the metrics of round ``step``; several times a round, and in any order, if need be."""
        self._log(self.experiment, metrics, step)

    @rank_zero_only
    def continue_from(self, directory: str | Path, last_round: int) -> None:
        """Begin a run that cannot go on under its old id with the rounds in the files of `CSVLogger`.

        Args:
            directory: The folder of the run that is resumed.
            last_round: The last round to take over.
        """
        self._history = (Path(directory), last_round)

    def state_dict(self) -> dict[str, Any]:
        """The run's id and whether it is on the server."""
        if self._experiment is None:
            return dict(self._resumed or {"id": self.version, "is_online": False})
        return {"id": self.version, "is_online": not (self._experiment.offline or self._experiment.disabled)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the run of a checkpoint; to be called before this logger's run is opened."""
        if state["id"] is not None:
            self._resumed = dict(state)

    @override
    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Upload what is left of an online run, for two minutes at most; the rest stays on the disk.

        Metrics that are logged later open the run again. An offline run cannot be opened again and is left open, until
        the process ends or another logger opens its run; its rows are on the disk all the time.
        """
        super().finalize(status)
        run = self._experiment
        if run is None or run not in _opened or (run.offline and status == "success"):
            return
        self._id, self._resumed = run.id, self.state_dict()
        self._experiment = None
        try:
            run.finish(exit_code=0 if status == "success" else 1)
        except TimeoutError:
            _say_where(run, "W&B took too long to upload the run.")

    def _log(self, run: Any, metrics: Mapping[str, float], step: int | None) -> None:
        row = {f"{self._prefix}{self.LOGGER_JOIN_CHAR}{key}" if self._prefix else key: metrics[key] for key in metrics}
        if step is not None:
            row[_AXIS] = step
        # Without wandb's own `step`: it drops a row whose step is smaller than the last one's.
        run.log(row)

    def _open(self) -> Any:
        """The run of the user, or a new one, with its axis and with the rounds of the run that it goes on with."""
        import wandb

        if wandb.run is not None and wandb.run in _opened:
            wandb.run.finish()
        run = wandb.run
        if run is None:
            if self._save_dir is not None:
                os.makedirs(self._save_dir, exist_ok=True)
            run = self._init(wandb)
        run.define_metric(_AXIS)
        run.define_metric("*", step_metric=_AXIS)
        resumed, self._resumed = self._resumed, None
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
        """Open a run, online if that can be done at once; for a sweep agent and disabled as wandb does by itself."""
        arguments, defaults = dict(self._wandb_init), wandb.setup().settings
        mode = arguments.pop("mode", None) or defaults.mode
        if defaults.sweep_id or (mode == "disabled" and not self._offline):
            return wandb.init(**self._wandb_init)
        own = arguments.pop("settings", None) or {}
        own = own if isinstance(own, dict) else own.model_dump(exclude_unset=True)
        arguments["settings"] = {"silent": True, **own}
        if self._offline or mode in ("offline", "dryrun"):
            reason = "as asked"
        elif not (_CREDENTIALS & own.keys() or _has_key(wandb, defaults)):
            reason = "there is no API key"
        else:
            try:
                return self._init_online(wandb, {**arguments, "mode": mode}, defaults)
            except wandb.errors.AuthenticationError:
                raise  # a key that is wrong should be mended, not passed over
            except wandb.errors.CommError as error:
                first_line, _, _ = str(error).partition("\n")
                reason = f"{defaults.base_url} could not be used: {first_line}"
        run = wandb.init(**arguments, mode="offline")
        _opened.add(run)
        _say_where(run, f"W&B is offline ({reason}).")
        return run

    def _init_online(self, wandb: Any, arguments: dict[str, Any], defaults: Any) -> Any:
        limits = {name: ours for name, (theirs, ours) in _LIMITS.items() if getattr(defaults, name, None) == theirs}
        if self._resumed is not None and self._resumed["is_online"] and arguments["id"] is None:
            arguments["id"] = self._resumed["id"]
        run = wandb.init(**{**arguments, "settings": {**limits, **arguments["settings"]}})
        _opened.add(run)
        print(f"W&B: {run.url}", file=sys.stderr)
        return run


def _has_key(wandb: Any, settings: Any) -> bool:
    """Whether wandb finds a key of its own, in the environment, its settings or the file of ``wandb login``."""
    if "prompt" not in inspect.signature(wandb.login).parameters:  # before 0.31
        return bool(wandb.api.api_key)
    # Unless it is silent, it asks the server for the user's name, and waits for the answer.
    silent, settings.silent = settings.silent, True
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # where it found a key it says even so
            return bool(wandb.login(prompt=False, verify=False))
    finally:
        settings.silent = silent


def _say_where(run: Any, what: str) -> None:
    folder = Path(run.dir).parent
    print(f"{what} The run lies in {folder}; to upload it: wandb sync {shlex.quote(str(folder))}", file=sys.stderr)
