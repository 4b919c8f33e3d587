"""Kill runs at random instants, resume them, and compare with an unbroken run, byte for byte.

    python -m tests.kill                                    # every method, both engines, host and memmap
    python -m tests.kill --methods SCAFFOLD --states memmap --kills 50
    python -m tests.kill --subprocess --kills 5             # the real command line, seconds a start

For each combination one run of ``lfl fit`` goes through, and another is killed again and again (SIGKILL), each time
continued by ``--ckpt_path last``, or started anew while there is no checkpoint. When it is through, its metrics.csv,
its clients.csv, its last checkpoint (server, optimizer, callbacks, ...) and the clients' rows must be those of the
unbroken run.
A run that is through before it was killed often enough is followed by another. The instants are random: a fifth while
the run starts, two fifths anywhere in its rounds, two fifths from when the file of a checkpoint appears; how many fell
into the writing of one is counted by the unfinished files they left.

A run is a fork of this process, which has imported everything: a real process, with a real end, without the seconds of
an import. ``--subprocess`` starts ``python -m lfl`` instead. The instants come from ``--seed`` and the machine's
timing. Exit code 1 if anything differs. Linux only.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from typing_extensions import override

from lfl.cli import FederatedCLI
from lfl.storage.checkpoint_file import find_newest, load_checkpoint
from lfl.storage.client_store import ClientStore
from tools.table import Table

METHODS: dict[str, list[str]] = {
    "FedAvg": [],
    "FedProx": ["--trainer.callbacks+=lfl.callbacks.Proximal"],
    "SCAFFOLD": ["--trainer.callbacks+=lfl.callbacks.Scaffold"],
    "SCAFFOLD-I": ["--trainer.callbacks+=lfl.callbacks.Scaffold", "--trainer.callbacks.option=I"],
    "SSF": ["--trainer.callbacks+=lfl.callbacks.SSF", "--trainer.callbacks.refresh_every=3"],
    "FedSub": ["--trainer.callbacks+=lfl.callbacks.FedSub", "--trainer.callbacks.refresh_every=3"],
    "FLSS": [
        "--trainer.callbacks+=lfl.callbacks.FLSS",
        "--trainer.callbacks.warmup_rounds=6",
        "--trainer.callbacks.rank=4",
        "--trainer.callbacks.sample_every=3",
    ],
    "Downlink": [
        "--trainer.callbacks+=lfl.callbacks.Downlink",
        "--trainer.callbacks.codec=lfl.callbacks.TopK",
        "--trainer.callbacks.codec.k=0.05",
    ],
    "STC": ["--trainer.callbacks+=lfl.callbacks.STC", "--trainer.callbacks.k=0.05"],
    "LBGM": ["--trainer.callbacks+=lfl.callbacks.LBGM", "--trainer.callbacks.threshold=0.5"],
    "FetchSGD": [
        "--trainer.callbacks+=lfl.callbacks.FetchSGD",
        "--trainer.callbacks.columns=500",
        "--trainer.callbacks.momentum=0.5",
    ],
    "FedDyn": ["--trainer.callbacks+=lfl.callbacks.FedDyn"],
    "FedDC": ["--trainer.callbacks+=lfl.callbacks.FedDC"],
    "MOON": ["--trainer.callbacks+=lfl.callbacks.MOON", "--trainer.callbacks.layer=backbone.features"],
    "FedGen": ["--trainer.callbacks+=lfl.callbacks.FedGen", "--trainer.callbacks.server_steps=3"],
    "Ditto": ["--trainer.callbacks+=lfl.callbacks.Ditto"],
    "pFedMe": ["--trainer.callbacks+=lfl.callbacks.PFedMe"],
    "FedExP": ["--trainer.aggregator=lfl.aggregation.FedExP"],
    "FedYogi": ["--trainer.server_optimizer=lfl.aggregation.FedYogi"],
    "Krum": ["--trainer.aggregator=lfl.aggregation.Krum", "--trainer.aggregator.byzantine=1"],
    "DP": [
        "--trainer.callbacks+=lfl.callbacks.DifferentialPrivacy",
        "--trainer.callbacks.quantile=0.5",
        "--trainer.aggregator=lfl.aggregation.MeanAggregator",
        "--trainer.aggregator.weighting=uniform",
    ],
    "FedMRUR": [
        "--trainer.callbacks+=lfl.callbacks.HyperbolicRegularization",
        "--trainer.callbacks.layer=backbone.features",
        "--trainer.callbacks.gamma=0.005",
        "--trainer.callbacks+=lfl.callbacks.SharpnessAware",
        "--trainer.callbacks+=lfl.callbacks.ClientMomentum",
        "--trainer.callbacks.momentum_from=aggregate",
        "--trainer.aggregator=lfl.aggregation.NormalizedReaggregation",
    ],
    "FedRep-SRPFL": [
        "--trainer.callbacks+=lfl.callbacks.PersonalParameters",
        '--trainer.callbacks.parameters=["*.head.*"]',
        "--trainer.callbacks+=lfl.callbacks.ClientEvaluation",
        "--trainer.callbacks.every_n_rounds=5",
        "--trainer.participation=lfl.participation.DoublingParticipation",
        "--trainer.participation.initial=2",
        "--trainer.participation.rounds_per_stage=5",
        "--trainer.system=lfl.system.ExponentialSpeeds",
        '--trainer.local_phases=[{"parameters": ["*.head.*"], "epochs": 2}, {"parameters": ["*.features.*"]}]',
    ],
    "Deadline": [
        "--trainer.callbacks+=lfl.callbacks.Scaffold",
        "--trainer.callbacks+=lfl.callbacks.GradientNormStages",
        "--trainer.participation=lfl.participation.DoublingParticipation",
        "--trainer.participation.initial=4",
        "--trainer.participation.rounds_per_stage=null",
        "--trainer.system=lfl.system.Unreliable",
        "--trainer.system.deadline=1.5",
        "--trainer.system.dropout=0.2",
    ],
    "FedBuff-SCAFFOLD": [
        "--trainer.callbacks+=lfl.callbacks.Scaffold",
        "--trainer.participation=lfl.participation.AsynchronousParticipation",
        "--trainer.participation.concurrency=8",
        "--trainer.participation.buffer=3",
        "--trainer.system=lfl.system.ExponentialSpeeds",
        "--trainer.system.dynamic=true",
        "--trainer.aggregator=lfl.aggregation.FedBuff",
    ],
}
ENGINES = ("sequential", "vectorized")
STATES = ("host", "memmap")
_COMMON = [
    "fit",
    "--model=lfl.models.Classifier",
    "--model.backbone=lfl.models.MLP",
    "--model.backbone.in_features=64",
    "--model.backbone.hidden=[128]",
    "--model.lr=0.1",
    "--data=lfl.data.FederatedDataModule",
    "--data.source=lfl.data.Digits",
    "--data.partitioner=lfl.data.DirichletPartitioner",
    "--data.partitioner.alpha=0.3",
    "--data.num_clients=30",
    "--data.batch_size=8",
    "--trainer.accelerator=cpu",
    "--trainer.participation.clients_per_round=8",
    "--trainer.aggregator.weighting=uniform",
    "--trainer.check_val_every_n_rounds=3",
    "--trainer.enable_progress_bar=false",
    "--trainer.checkpoint.every_n_rounds=1",
    "--trainer.checkpoint.monitor=val_acc",
]


class Process(Protocol):
    """A started run."""

    def kill(self) -> None:
        """Kill it by SIGKILL."""

    def join(self, timeout: float | None = None) -> int | None:
        """Wait for its end; returns the exit code, or None if it still runs."""


class Forked(Process):
    """A run in a fork of this process.

    Args:
        arguments: of the command line.
        log: takes what it prints.
    """

    def __init__(self, arguments: list[str], log: Path) -> None:
        self._process = get_context("fork").Process(target=_run_here, args=(arguments, log))
        self._process.start()

    @override
    def kill(self) -> None:
        self._process.kill()

    @override
    def join(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        return self._process.exitcode


class Spawned(Process):
    """A run of ``python -m lfl``.

    Args:
        arguments: of the command line.
        log: takes what it prints.
    """

    def __init__(self, arguments: list[str], log: Path) -> None:
        # One thread, as in a fork: on several, sums may be split in another way.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        with log.open("a") as file:
            command = [sys.executable, "-m", "lfl", *arguments]
            self._process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)

    @override
    def kill(self) -> None:
        self._process.kill()

    @override
    def join(self, timeout: float | None = None) -> int | None:
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None


def _run_here(arguments: list[str], log: Path) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    FederatedCLI(args=arguments)


Start = Callable[[list[str], Path], Process]


@dataclass
class Tally:
    """Counts of kills and runs of one combination."""

    kills: int = 0
    in_checkpoint: int = 0
    before_checkpoint: int = 0
    finished: int = 0
    seconds: float = 0.0


class Killer:
    """Runs one combination of settings, unbroken and broken.

    Args:
        arguments: of the command line.
        start: starts a run.
        folder: for the runs.
        draws: of the instants.
    """

    def __init__(self, arguments: list[str], start: Start, folder: Path, draws: random.Random) -> None:
        self._arguments, self._start, self._folder, self._draws = arguments, start, folder, draws
        self._startup, self._gap = 0.0, 0.0

    def test(self, kills: int) -> tuple[Tally, list[str]]:
        """Kill ``kills`` times; returns what differs from the unbroken run, if anything."""
        unbroken, tally = self._folder / "unbroken", Tally()
        begun = time.time()
        process = self._launch(unbroken)
        self._until(process, lambda: _checkpoints(unbroken))
        self._startup = time.time() - begun
        self._finish(process)
        tally.seconds = time.time() - begun
        # Long enough to get somewhere, short enough to be killed often.
        self._gap = 2 * (tally.seconds - self._startup) / max(kills, 1)
        found: list[str] = []
        while tally.kills < kills:
            root = self._folder / f"broken_{tally.finished}"
            self._break_until_done(root, kills, tally)
            differences = compare(unbroken, root)
            found += differences
            tally.finished += 1
            if not differences:
                shutil.rmtree(root)
        return tally, found

    def _break_until_done(self, root: Path, kills: int, tally: Tally) -> None:
        while tally.kills < kills:
            known = _checkpoints(root)
            process = self._launch(root)
            self._await_instant(process, root, known)
            process.kill()
            code = process.join()
            if code != -signal.SIGKILL:  # it was through, or failed, before
                self._finish(process)
                return
            tally.kills += 1
            tally.in_checkpoint += bool(_unfinished(root))
            tally.before_checkpoint += not _checkpoints(root)
            for leftover in _unfinished(root):
                leftover.unlink()  # or the next kill would count it again
        self._finish(self._launch(root))

    def _await_instant(self, process: Process, root: Path, known: set[Path]) -> None:
        """Wait for a random instant: while it starts, anywhere in its rounds, or within the writing of a checkpoint."""
        kind = self._draws.choices(("start", "rounds", "checkpoint"), (1, 2, 2))[0]
        if kind == "start":
            process.join(self._draws.uniform(0, self._startup))
            return
        # Counted from the first checkpoint of its own, however long the machine takes to get there.
        self._until(process, lambda: _checkpoints(root) - known)
        if kind == "rounds":
            process.join(self._draws.uniform(0, self._gap))
            return
        self._until(process, lambda: _unfinished(root))
        time.sleep(self._draws.uniform(0, 0.003))

    def _until(self, process: Process, is_due: Callable[[], object]) -> None:
        while not is_due() and process.join(0.0002) is None:
            pass

    def _launch(self, root: Path) -> Process:
        root.mkdir(parents=True, exist_ok=True)
        arguments = [*self._arguments, f"--trainer.default_root_dir={root}"]
        return self._start(arguments + ["--ckpt_path=last"] * bool(_checkpoints(root)), root / "log.txt")

    def _finish(self, process: Process) -> None:
        if code := process.join():
            logs = sorted(self._folder.glob("*/log.txt"), key=lambda log: log.stat().st_mtime)
            raise RuntimeError(f"A run ended with exit code {code}:\n{logs[-1].read_text()[-3000:]}")


def _checkpoints(root: Path) -> set[Path]:
    return set(root.glob("run_*/checkpoints/last.ckpt"))


def _unfinished(root: Path) -> list[Path]:
    return list(root.glob("run_*/checkpoints/.*.tmp"))


def compare(one: Path, other: Path) -> list[str]:
    """Names of what differs between the last runs in two folders."""
    first, second = find_newest(one), find_newest(other)
    found = []
    for name in ("metrics.csv", "clients.csv"):
        files = [path.parent.parent / name for path in (first, second)]
        if len({file.read_bytes() if file.exists() else None for file in files}) > 1:
            found.append(name)
    states = [load_checkpoint(path) for path in (first, second)]
    rows = [client_rows(state.pop("store"), path) for state, path in zip(states, (first, second), strict=True)]
    found += differing(states[0], states[1])
    return found + differing(rows[0], rows[1], "clients")


def client_rows(shards: list[dict[str, Any]], path: Path) -> dict[str, Tensor]:
    """Every slot of a checkpoint's client store, all clients [N, width]."""
    num_clients = shards[0]["num_clients"]
    store = ClientStore(num_clients, "host", torch.device("cpu"))
    for shard in shards:
        store.restore(shard, path.parent.parent / "clients")
    names = {name for shard in shards for name in shard["slots"]}
    return {name: store.gather(name, torch.arange(num_clients)) for name in sorted(names)}


def differing(one: Any, other: Any, where: str = "") -> list[str]:
    """The places where two nested states are not the same, tensors compared bit for bit and clocks not at all."""
    if where.rpartition("/")[2].startswith("seconds") or "time/" in where:
        return []
    if isinstance(one, dict) and isinstance(other, dict):
        keys = dict.fromkeys([*one, *other])
        return [t for k in keys for t in differing(one.get(k), other.get(k), f"{where}/{k}" if where else str(k))]
    if isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        return [t for i, pair in enumerate(zip(one, other, strict=True)) for t in differing(*pair, f"{where}/{i}")]
    return [] if _bits(one) == _bits(other) else [where]


def _bits(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.dtype, value.shape, value.contiguous().numpy().tobytes()
    return repr(value) if isinstance(value, float) else value  # nan is nan


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument("--states", nargs="+", choices=STATES, default=STATES, help="where client state is kept")
    parser.add_argument("--kills", type=int, default=20, help="for each combination")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0, help="of the instants")
    parser.add_argument("--subprocess", action="store_true", help="start `python -m lfl` instead of forking")
    parser.add_argument("--output", type=Path, default=Path("runs/kill"), help="folder of the table's files")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    torch.set_num_threads(1)  # a fork does not inherit the threads of a pool
    table = Table(
        f"Killed and resumed; {options.rounds} rounds, a checkpoint each",
        ["method", "engine", "state", "kills", "in a checkpoint", "before the first", "runs", "s unbroken", "differs"],
    )
    start: Start = Spawned if options.subprocess else Forked
    failed = False
    for method, engine, state in itertools.product(options.methods, options.engines, options.states):
        settings = [f"--trainer.max_rounds={options.rounds}", f"--trainer.engine={engine}"]
        settings += [f"--trainer.client_state={state}", *METHODS[method]]
        folder = Path(tempfile.mkdtemp(prefix="lfl_kill_"))
        draws = random.Random(f"{options.seed} {method} {engine} {state}")
        tally, found = Killer(_COMMON + settings, start, folder, draws).test(options.kills)
        if not found:
            shutil.rmtree(folder)
        failed = failed or bool(found)
        verdict = f"{', '.join(list(dict.fromkeys(found))[:3])} ... in {folder}" if found else "nothing"
        counts = (tally.kills, tally.in_checkpoint, tally.before_checkpoint, tally.finished)
        table.add(method, engine, state, *map(str, counts), f"{tally.seconds:.1f}", verdict)
        print(f"{method}, {engine}, {state}: {tally.kills} kills, differs: {verdict}", file=sys.stderr, flush=True)
    table.write(options.output)
    table.show()
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
