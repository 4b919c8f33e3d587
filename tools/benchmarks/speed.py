"""Rounds of `lfl` beside a loop by hand and beside other simulators, on identical work, in turns.

    python -m tools.benchmarks.speed cnn mlp many-small resnet pfl-cifar
    python -m tools.benchmarks.speed cnn --peers fedjax=PYTHON pfl=PYTHON flower=PYTHON blazefl=PYTHON
    python -m tools.benchmarks.speed many-small --rounds 4 --repeats 1 --only "vectorized, rec"
    python -m tools.benchmarks.speed cnn mlp many-small --one-process

Federated averaging by `lfl` in several ways, with its logger, ledger and metrics, beside the floor (``flat_loop.py``:
one network, flat parameters, data as tensors, ``autograd.grad``, a foreach step, one thread, no framework) and beside
the simulators whose Python ``--peers`` names (``peers/``). Each runs in processes of its own, all in turns, with the
same clients in the same rounds. `lfl` with its defaults comes first: engine, recording and threads are left to it. What
it takes is also held against the best of its settings in as many processes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools import REPOSITORY
from tools.benchmarks.workloads import WORKLOADS, write
from tools.table import Table

FLOOR = "floor"
PEERS = Path(__file__).parent / "peers"
_OURS = ("-m", "tools.benchmarks.contender")


@dataclass(frozen=True)
class Contender:
    """Something that runs a workload in processes of its own.

    Attributes:
        name: for the table.
        command: without workload and rounds.
        processes: how many it uses.
        settings: of `lfl`'s trainer.
        threads: of torch, in each process; None to leave them to `lfl`.
        is_peer: takes the workload as a file.
    """

    name: str
    command: tuple[str, ...]
    processes: int = 1
    settings: dict[str, Any] = field(default_factory=dict)
    threads: int | None = 1
    is_peer: bool = False

    def run(self, workload: str, rounds: int, work: Path) -> dict[str, Any]:
        """Run it; returns seconds of each round, peak memory, accuracy.

        Raises:
            RuntimeError: it failed; with the end of what it said.
        """
        if self.is_peer:
            arguments = [*self.command, str(work), "--rounds", str(rounds), "--processes", str(self.processes)]
        else:
            arguments = [*self.command, workload, "--rounds", str(rounds), "--settings", json.dumps(self.settings)]
            arguments += ["--threads", str(self.threads)] if self.threads else []
        environment = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        environment |= {"OMP_NUM_THREADS": str(self.threads)} if self.threads else {}
        done = subprocess.run(arguments, capture_output=True, text=True, env=environment, cwd=REPOSITORY, check=False)
        results = [line for line in done.stdout.splitlines() if line.startswith('{"')]
        if done.returncode or not results:
            raise RuntimeError(f"{self.name} failed on {workload}: {(done.stderr or done.stdout)[-2000:]}")
        result: dict[str, Any] = json.loads(results[-1])
        return result


DEFAULTS = "lfl defaults"


def lfl(name: str, processes: int = 1, threads: int | None = 1, **settings: Any) -> Contender:
    """`lfl` with settings of the trainer."""
    start = [sys.executable]
    if processes > 1:
        start += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    return Contender(f"lfl {name}", (*start, *_OURS, "lfl"), processes, settings, threads)


def peer(name: str, python: str) -> Contender:
    """A simulator as it is at its best on two cores: FedJAX in one process with XLA's threads, the others in two."""
    command = (python, str(PEERS / f"{name}_run.py"))
    if name == "fedjax":
        return Contender(name, command, threads=None, is_peer=True)
    return Contender(name, command, processes=2, is_peer=True)


def contenders(peers: dict[str, str]) -> list[Contender]:
    """The floor, `lfl` in its ways, and the peers.

    Args:
        peers: the Python of the environment in which each is installed, by name.
    """
    plain: dict[str, Any] = {"trace_steps": False}
    recorded: dict[str, Any] = {"trace_steps": True}
    ours = [
        lfl("defaults", threads=None),
        lfl("defaults", threads=None, processes=2),
        lfl("sequential", engine="sequential", **plain),
        lfl("sequential, recorded", engine="sequential", **recorded),
        lfl("sequential, recorded", engine="sequential", threads=2, **recorded),
        lfl("sequential, recorded", engine="sequential", processes=2, **recorded),
        lfl("vectorized", engine="vectorized", **plain),
        lfl("vectorized, recorded", engine="vectorized", **recorded),
        lfl("vectorized, recorded", engine="vectorized", processes=2, **recorded),
        lfl("vectorized, compiled", engine="vectorized", trace_steps="compile"),
        lfl("vectorized, recorded", engine="vectorized", threads=2, **recorded),
    ]
    floor = Contender(FLOOR, (sys.executable, *_OURS, "floor"))
    return [floor, *ours, *(peer(name, python) for name, python in peers.items())]


def table_of(name: str, rounds: int | None, repeats: int, chosen: list[Contender]) -> Table:
    """All contenders on one workload, ``repeats`` turns of each; the first is what the others are compared with.

    A ratio is the median over rounds of one turn, the same clients in both; the rounds in which `lfl` records steps, at
    most a quarter, and the last one, in which it evaluates, do not count.
    """
    workload = WORKLOADS[name]
    rounds = rounds or workload.rounds
    first = max(1, rounds // 4)
    results: dict[int, list[dict[str, Any]]] = {index: [] for index in range(len(chosen))}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "work.pt"
        write(name, rounds, work)
        for turn in range(repeats):
            for index, contender in enumerate(chosen):
                print(f"{name}, turn {turn + 1}/{repeats}: {contender.name}", file=sys.stderr, flush=True)
                results[index].append(contender.run(name, rounds, work))
    table = Table(
        f"{name}: ms per round of {workload.per_round} of {workload.clients} clients; {os.cpu_count()} cores; "
        f"{rounds - 1 - first} rounds, {repeats} turns",
        ["", "processes", "threads", "ms", "ratio", "least", "most", "peak MB", "accuracy", "engine"],
    )
    for index, contender in enumerate(chosen):
        pairs = zip(results[index], results[0], strict=True)
        turns = [_ratio(own["seconds"][first:-1], base["seconds"][first:-1]) for own, base in pairs]
        milliseconds = 1e3 * statistics.median(s for own in results[index] for s in own["seconds"][first:-1])
        last = results[index][-1]
        table.add(
            contender.name,
            str(contender.processes),
            str(contender.threads or ""),
            f"{milliseconds:.1f}",
            *(f"{ratio:.2f}" for ratio in (statistics.median(turns), min(turns), max(turns))),
            f"{max(own['peak_mb'] for own in results[index]):,.0f}",
            f"{last['accuracy']:.3f}",
            last.get("engine", ""),
        )
    return table


def against_best(table: Table) -> list[str]:
    """Compare the defaults with the best setting of `lfl` in as many processes, in a line for each number of them."""
    rows = [(name, int(processes), float(ratio)) for name, processes, _, _, ratio, *_ in table.rows]
    lines = []
    for name, processes, ratio in rows:
        others = [(r, n) for n, p, r in rows if p == processes and n.startswith("lfl ") and n != DEFAULTS]
        if name == DEFAULTS and others:
            best, setting = min(others)
            lines.append(f"{processes} process(es): the defaults take {ratio / best:.2f} of the best, {setting}")
    return lines


def _ratio(own: list[float], base: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(own, base, strict=True))


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="+", choices=WORKLOADS)
    parser.add_argument("--rounds", type=int, help="of each run; the first quarter and the last one are not timed")
    parser.add_argument("--repeats", type=int, default=3, help="turns of every contender")
    parser.add_argument("--peers", nargs="*", default=[], help="NAME=PYTHON of fedjax, pfl, flower, blazefl")
    parser.add_argument("--only", nargs="*", default=[], help="contenders whose name has one of these in it")
    parser.add_argument("--one-process", action="store_true", help="only contenders that take one process")
    parser.add_argument("--output", type=Path, default=Path("runs/speed"), help="folder of the tables' files")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    known = contenders(dict(pair.split("=", 1) for pair in options.peers))
    chosen = [c for c in known if c.name == FLOOR or not options.only or any(part in c.name for part in options.only)]
    chosen = [c for c in chosen if c.processes == 1 or not options.one_process]
    for name in options.workloads:
        table = table_of(name, options.rounds, options.repeats, chosen)
        table.notes += against_best(table)
        table.show()
        table.write(options.output, name)


if __name__ == "__main__":
    main()
