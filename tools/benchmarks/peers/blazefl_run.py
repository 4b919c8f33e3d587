"""FedAvg with BlazeFL on the work of a file, at its best CPU setting: a pool with a worker for each core.

    python3.13 -m venv ~/peers/blazefl
    ~/peers/blazefl/bin/pip install "blazefl[contrib,reproducibility]==2.0.3" "torch==2.14.1"
    ~/peers/blazefl/bin/python tools/benchmarks/peers/blazefl_run.py WORK.pt --rounds 10 --processes 2 --mode threads

BlazeFL 2.0.3 needs Python 3.12 or newer; 3.0.0 needs 3.14. The last line of the output is a JSON object; "seconds" are
those of each round, from sampling the clients to the update of the global network.

The server is the ``FedAvgBaseServerHandler`` that BlazeFL contributes, with given participants. The trainer is a
`ThreadPoolClientTrainer` (``--mode threads``), whose workers take turns at one network each, or a
`ProcessPoolClientTrainer` with tensors in shared memory (``--mode processes``): BlazeFL forks its pool anew in every
round, and the workers find the data in the memory that they inherit. BlazeFL recommends threads on a Python without the
global interpreter lock; with the lock they share it.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from importlib.metadata import version
from typing import Any

import torch
import torch.multiprocessing as mp
from blazefl.contrib.fedavg import (
    FedAvgBaseServerHandler,
    FedAvgDownlinkPackage,
    FedAvgProcessPoolUplinkPackage,
    FedAvgUplinkPackage,
)
from blazefl.core import (
    IPCMode,
    ModelSelector,
    ProcessPoolClientTrainer,
    SHMHandle,
    ThreadPoolClientTrainer,
    deserialize_model,
    serialize_model,
)
from networks import Work, accuracy, arguments, load_work, memory, one_thread, report, train
from torch import nn
from typing_extensions import override


class Networks(ModelSelector):  # type: ignore[misc]
    """Builds the network of a work file."""

    def __init__(self, work: Work) -> None:
        self.work = work

    @override
    def select_model(self, model_name: str) -> nn.Module:
        return self.work.network()


class Server(FedAvgBaseServerHandler):  # type: ignore[misc]
    """BlazeFL's FedAvg server with given participants.

    Args:
        work: the work.
        rounds: how many rounds it takes.
    """

    def __init__(self, work: Work, rounds: int) -> None:
        super().__init__(
            model_selector=Networks(work),
            model_name=work.name,
            dataset=None,
            global_round=rounds,
            num_clients=len(work.clients),
            sample_ratio=1.0,
            device="cpu",
            batch_size=work.batch_size,
            seed=0,
        )
        self.participants = work.participants
        self.num_clients_per_round = len(work.participants[0])

    @override
    def sample_clients(self) -> list[int]:
        return self.participants[self.round]


class ThreadTrainer(ThreadPoolClientTrainer[FedAvgUplinkPackage, FedAvgDownlinkPackage]):  # type: ignore[misc]
    """Trains clients in threads, each with a network of its own while it trains.

    Args:
        work: the work.
        workers: how many threads train at the same time.
    """

    def __init__(self, work: Work, workers: int) -> None:
        self.num_parallels = workers
        self.device = "cpu"
        self.device_count = 0
        self.cache: list[FedAvgUplinkPackage] = []
        self.stop_event = threading.Event()
        self.work = work
        self.networks: queue.SimpleQueue[nn.Module] = queue.SimpleQueue()
        for _ in range(workers):
            self.networks.put(work.network())

    @override
    def worker(self, cid: int, device: str, payload: FedAvgDownlinkPackage, stop_event: Any) -> FedAvgUplinkPackage:
        network = self.networks.get()
        deserialize_model(network, payload.model_parameters)
        examples = train(network, self.work, cid)
        package = FedAvgUplinkPackage(cid, serialize_model(network), examples)
        self.networks.put(network)
        return package

    @override
    def uplink_package(self) -> list[FedAvgUplinkPackage]:
        packages, self.cache = self.cache, []
        return packages


# What the forked workers inherit.
inherited: dict[str, Any] = {}


class ProcessTrainer(
    ProcessPoolClientTrainer[FedAvgProcessPoolUplinkPackage, FedAvgDownlinkPackage, int],  # type: ignore[misc]
):
    """Trains clients in processes, forked in every round, that write to shared memory.

    Args:
        work: the work.
        workers: how many processes train at the same time.
    """

    ipc_mode = IPCMode.SHARED_MEMORY

    def __init__(self, work: Work, workers: int) -> None:
        self.num_parallels = workers
        self.device = "cpu"
        self.device_count = 0
        self.cache: list[FedAvgProcessPoolUplinkPackage] = []
        self.manager = mp.Manager()
        self.stop_event = self.manager.Event()
        network = work.network()
        inherited.update(work=work, network=network)
        self.parameters = serialize_model(network)

    @override
    def get_client_config(self, cid: int) -> int:
        return cid

    @override
    def prepare_uplink_package_buffer(self) -> FedAvgProcessPoolUplinkPackage:
        return FedAvgProcessPoolUplinkPackage(-1, torch.empty_like(self.parameters), 0)

    @override
    @staticmethod
    def worker(config: int, payload: Any, device: str, stop_event: Any, *, shm_buffer: Any = None) -> Any:
        network = inherited["network"]
        # All the workers inherit one state of the generator: each client's shuffles need a seed of their own.
        generator = torch.Generator().manual_seed(time.time_ns() % 2**40 + config)
        deserialize_model(network, payload.model_parameters)
        examples = train(network, inherited["work"], config, generator)
        shm_buffer.model_parameters.copy_(serialize_model(network))
        return FedAvgProcessPoolUplinkPackage(config, SHMHandle(), examples)

    @override
    def uplink_package(self) -> list[FedAvgProcessPoolUplinkPackage]:
        packages, self.cache = self.cache, []
        return packages


def warm_up(work: Work) -> None:
    """Makes torch import what it puts off to the first step, which processes forked later would each import again."""
    optimizer = torch.optim.SGD(work.network().parameters(), lr=work.lr)
    optimizer.zero_grad()
    optimizer.step()


def simulate(server: Server, trainer: ThreadTrainer | ProcessTrainer) -> list[float]:
    """Runs the rounds, as BlazeFL's example does, and returns the seconds of each."""
    seconds: list[float] = []
    while not server.if_stop():
        started = time.perf_counter()
        sampled = server.sample_clients()
        trainer.local_process(server.downlink_package(), sampled)
        for package in trainer.uplink_package():
            server.load(package)
        seconds.append(time.perf_counter() - started)
    return seconds


def has_gil() -> bool:
    """Returns whether this Python runs with the global interpreter lock."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--mode", choices=["threads", "processes"], default="threads")
    options = parser.parse_args()
    one_thread()
    work = load_work(options.work)
    warm_up(work)
    trainer_class = ThreadTrainer if options.mode == "threads" else ProcessTrainer
    trainer = trainer_class(work, options.processes)
    server = Server(work, options.rounds)
    seconds = simulate(server, trainer)
    used = memory(ended=options.processes if options.mode == "processes" else 0)
    lock = "with" if has_gil() else "without"
    setting = f"{options.processes} {options.mode}, 1 torch thread each, Python {sys.version.split()[0]} {lock} the GIL"
    report("blazefl", version("blazefl"), setting, seconds, used, accuracy(server.model, work))


if __name__ == "__main__":
    main()
