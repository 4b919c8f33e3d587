"""Weights & Biases without its surprises: no prompt, no waiting for a network that is not there, no dropped rows.

``wandb`` itself is imported when the run is opened, not before.
"""

import http.client
import netrc
import os
import shlex
import ssl
import sys
import threading
import urllib.error
import urllib.request
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers import WandbLogger as LightningWandbLogger
from typing_extensions import override

from lfl.loggers.csv import METRICS_FILE, TIMING_FILE, read_rows

_AXIS = "round"
_REACH_SECONDS = 3.0
_FINISH_SECONDS = 120.0
# wandb 0.31 reaches the public server under a new name and takes the keys that were stored under the old one.
_OTHER_NAMES = {"api.forge.coreweave.com": "api.wandb.ai"}

# wandb has one current run in a process. Ours may be closed for the next of ours; one that the user opened may not.
_opened: "weakref.WeakSet[Any]" = weakref.WeakSet()


class WandbLogger(LightningWandbLogger):
    """Lightning's logger for Weights & Biases, with rounds as the axis of every metric.

    The run is online where that is possible at once: a key is configured, nobody asked for offline, and the server
    answers within three seconds. Otherwise it is offline, and one line says why, where the run lies and how to upload
    it. Nothing is ever asked on the terminal. Under a sweep agent, and in a run that was opened with ``wandb.init``
    before, everything is left as it is.

    A resumed run goes on under the same id if both its parts are online. W&B cannot do that offline (the upload of the
    second part erases the first, https://github.com/wandb/wandb/issues/5865), so there the resumed run is a new one,
    and `continue_from` gives it the earlier rounds.

    Args:
        name: The run's name on the web page; W&B invents one by default.
        save_dir: The folder in which the folder ``wandb`` is made; ``$WANDB_DIR`` or the current one by default.
        project: The project; ``$WANDB_PROJECT`` or ``lfl`` by default.
        entity: The user or team; your own by default.
        group: A name that several runs share, such as the seeds of one setting.
        job_type: What the run does within its group.
        tags: Labels of the run.
        notes: A longer description.
        offline: Do not try to be online.
        **kwargs: Arguments of Lightning's logger and of ``wandb.init``.
    """

    def __init__(
        self,
        name: str | None = None,
        save_dir: str | Path | None = None,
        project: str | None = None,
        *,
        entity: str | None = None,
        group: str | None = None,
        job_type: str | None = None,
        tags: Sequence[str] | None = None,
        notes: str | None = None,
        offline: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            name=name,
            save_dir=save_dir,  # type: ignore[arg-type]  # None is handled, the signature forgets it
            project=project or os.environ.get("WANDB_PROJECT", "lfl"),
            offline=offline,
            entity=entity,
            group=group,
            job_type=job_type,
            tags=tags,
            notes=notes,
            **kwargs,
        )
        del self._wandb_init["anonymous"]  # wandb warns of it, whatever its value
        if not (self._wandb_init.get("resume_from") or self._wandb_init.get("fork_from")):
            # The command line passes None for what is not given, which would replace Lightning's own default.
            self._wandb_init["resume"] = self._wandb_init["resume"] or "allow"
        self._is_online = False
        self._resumed: dict[str, Any] | None = None
        self._history: tuple[Path, int] | None = None

    @property
    @override
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The ``wandb`` run, opened at first use."""
        if self._experiment is None:
            if getattr(self, "_attach_id", None) is not None:
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
        if self._resumed is not None:
            return dict(self._resumed)
        return {"id": self.version, "is_online": self._is_online}

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
        if run is None or run not in _opened or not (self._is_online or status != "success"):
            return
        self._id = run.id
        self._resumed = self.state_dict()
        self._experiment = None
        run.finish(exit_code=0 if status == "success" else 1)

    def _log(self, run: Any, metrics: Mapping[str, float], step: int | None) -> None:
        row = {f"{self._prefix}{self.LOGGER_JOIN_CHAR}{key}" if self._prefix else key: metrics[key] for key in metrics}
        if step is not None:
            row[_AXIS] = step
        # Without wandb's own `step`: it drops a row whose step is smaller than the last one's.
        run.log(row)

    def _open(self) -> Any:
        import wandb

        if wandb.run is not None and wandb.run in _opened:
            wandb.run.finish()
        run = wandb.run
        if run is None:
            run = self._init(wandb)
        else:
            self._is_online = not run.offline
        run.define_metric(_AXIS)
        run.define_metric("*", step_metric=_AXIS)
        resumed, self._resumed = self._resumed, None
        if self._history is not None and resumed is not None and run.id != resumed["id"]:
            for number, metrics in _read_history(*self._history):
                self._log(run, metrics, number)
        self._history = None
        return run

    def _init(self, wandb: Any) -> Any:
        """Open a run, online if that can be done at once."""
        arguments = dict(self._wandb_init)
        if arguments["dir"] is not None:
            os.makedirs(arguments["dir"], exist_ok=True)
        settings = wandb.setup().settings
        if settings.sweep_id:
            self._is_online = True
            return wandb.init(**arguments)
        mode = arguments.pop("mode", None) or os.environ.get("WANDB_MODE") or settings.mode
        if mode == "disabled":
            return wandb.init(**arguments, mode=mode)
        own = _as_dict(arguments.pop("settings", None))
        reason = _why_offline("offline" if self._offline else mode, {**settings.model_dump(), **own})
        if reason is None:
            try:
                run = self._init_online(wandb, arguments, {**_finish_settings(settings), **own}, mode)
            except wandb.errors.AuthenticationError:
                raise  # a key that is wrong should be mended, not passed over
            except wandb.errors.CommError as error:
                reason = f"the server refused: {error}"
        if reason is not None:
            run = self._init_offline(wandb, arguments, own, reason)
        self._is_online = reason is None
        _opened.add(run)
        return run

    def _init_online(self, wandb: Any, arguments: dict[str, Any], settings: dict[str, Any], mode: str) -> Any:
        if self._resumed is not None and self._resumed["is_online"] and arguments["id"] is None:
            arguments = {**arguments, "id": self._resumed["id"]}
        return wandb.init(**arguments, mode=mode, settings=settings)

    def _init_offline(self, wandb: Any, arguments: dict[str, Any], settings: dict[str, Any], reason: str) -> Any:
        run = wandb.init(**arguments, mode="offline", settings={**settings, "silent": True})
        folder = Path(run.dir).parent
        print(
            f"W&B is offline ({reason}). The run lies in {folder}; to upload it: wandb sync {shlex.quote(str(folder))}",
            file=sys.stderr,
        )
        return run


def _why_offline(mode: str, settings: Mapping[str, Any]) -> str | None:
    """What stands against being online, or None."""
    if mode in ("offline", "dryrun"):
        return f"the mode is {mode}"
    url: str = settings["base_url"].rstrip("/")
    if not (settings.get("api_key") or settings.get("identity_token_file") or _has_netrc_key(url)):
        return "there is no API key"
    if not _is_reachable(url):
        return f"{url} does not answer"
    return None


def _has_netrc_key(url: str) -> bool:
    """Whether the file in which ``wandb login`` keeps its keys has one for the server; looked up as wandb does."""
    candidates = [os.environ["NETRC"]] if os.environ.get("NETRC") else ["~/.netrc", "~/_netrc"]
    paths = [path for candidate in candidates if (path := Path(candidate).expanduser()).exists()]
    try:
        entries = netrc.netrc(str(paths[0])).hosts if paths else {}
    except (OSError, netrc.NetrcParseError):
        return False
    host = urlsplit(url).netloc
    return any(name in entries and bool(entries[name][2]) for name in (host, _OTHER_NAMES.get(host, host), "default"))


def _is_reachable(url: str) -> bool:
    """Whether the server answers anything at all, through the proxy if one is set."""
    answered = threading.Event()

    def ask() -> None:
        request = urllib.request.Request(f"{url}/healthz", method="HEAD")
        try:
            urllib.request.urlopen(request, timeout=_REACH_SECONDS).close()
        except urllib.error.HTTPError as error:
            error.close()
        except urllib.error.URLError as error:
            # Python may lack a certificate that wandb's own program has.
            if not isinstance(error.reason, ssl.SSLError):
                return
        except (OSError, http.client.HTTPException):
            return
        answered.set()

    # In a thread, for looking up a name has no time limit; as a daemon, so that it never holds up the exit.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_REACH_SECONDS)
    return answered.is_set()


def _as_dict(settings: Any) -> dict[str, Any]:
    """Settings given to the logger, a dict or a ``wandb.Settings``, as those that were set."""
    if settings is None or isinstance(settings, dict):
        return dict(settings or {})
    return {name: getattr(settings, name) for name in settings.model_fields_set}


def _finish_settings(settings: Any) -> dict[str, Any]:
    """A limit to the upload at the end, where this wandb knows one and the user has set none."""
    unlimited = getattr(settings, "finish_timeout", None) == 0
    return {"finish_timeout": _FINISH_SECONDS} if unlimited else {}


def _read_history(directory: Path, last_round: int) -> Iterator[tuple[int, dict[str, float]]]:
    """The rounds that `CSVLogger` wrote to a folder, both files of it together."""
    rounds: dict[int, dict[str, float]] = {}
    for name in (METRICS_FILE, TIMING_FILE):
        for number, metrics in read_rows(directory / name, last_round):
            rounds.setdefault(number, {}).update(metrics)
    yield from sorted(rounds.items())
