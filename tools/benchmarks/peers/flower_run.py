"""FedAvg with Flower's simulation runtime on the work of a file, at its best CPU setting: a Ray actor for each core.

    python3 -m venv ~/peers/flower
    ~/peers/flower/bin/pip install "flwr[simulation]==1.42.0" "torch==2.14.1"
    ~/peers/flower/bin/python tools/benchmarks/peers/flower_run.py WORK.pt --rounds 10 --processes 2

The last line of the output is a JSON object; "seconds" are those on the server, from the start of `configure_train` to
the end of `aggregate_train`. Before the first round, every actor answers a query: it has
loaded the data and trained a client by then.

A `ClientApp` with a train function, and `FedAvg` of ``flwr.serverapp.strategy`` whose `configure_train` takes the given
participants; there is a supernode for each client, and no federated evaluation. An actor keeps the data, sliced by
client, and one network. `run_simulation` runs the same simulation runtime as ``flwr run`` does (which it is deprecated
for) without the packaging of an app.

The server looks for replies every 0.1 s, the default of Flower's in-memory grid; ``--pull-interval`` sets that. The
thread that hands the messages to the actors looks for new ones every 0.1 s, and nothing can set that. Where Ray does
not start (it gives up after 30 s on a busy machine) the exit status is 1.
"""

from __future__ import annotations

import functools
import os
import sys
import time
import traceback
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ray
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from networks import Work, accuracy, arguments, load_work, memory, one_thread, report, train
from torch import nn
from typing_extensions import override

client_app = ClientApp()


@functools.cache
def load_worker(path: str) -> tuple[Work, nn.Module]:
    """Returns an actor's data and network, loaded once."""
    torch.set_num_threads(1)
    work = load_work(path)
    return work, work.network()


@client_app.train()  # type: ignore[untyped-decorator]
def train_client(message: Message, context: Context) -> Message:
    """Trains the client that the message names."""
    work, network = load_worker(message.content["config"]["work"])
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    examples = train(network, work, message.content["config"]["client"])
    metrics = MetricRecord({"num-examples": examples})
    content = RecordDict({"arrays": ArrayRecord(network.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


@client_app.query()  # type: ignore[untyped-decorator]
def load_client(message: Message, context: Context) -> Message:
    """Loads the data, trains a client for what torch imports at the first step, and says in which process."""
    work, network = load_worker(message.content["config"]["work"])
    train(network, work, work.participants[0][0])
    return Message(content=RecordDict({"process": ConfigRecord({"pid": os.getpid()})}), reply_to=message)


class ScriptedFedAvg(FedAvg):  # type: ignore[misc]
    """FedAvg with given participants, which notes the seconds of each round.

    Args:
        path: the work file.
        participants: the clients of each round.
        nodes: the node of each client.
    """

    def __init__(self, path: Path, participants: list[list[int]], nodes: list[int]) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.path = str(path)
        self.participants = participants
        self.nodes = nodes
        self.seconds: list[float] = []
        self._started = 0.0

    @override
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._started = time.perf_counter()
        return [
            Message(
                content=RecordDict(
                    {"arrays": arrays, "config": ConfigRecord({"work": self.path, "client": client})},
                ),
                message_type="train",
                dst_node_id=self.nodes[client],
            )
            for client in self.participants[server_round - 1]
        ]

    @override
    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        replies = list(replies)
        if any(reply.has_error() for reply in replies) or len(replies) != len(self.participants[server_round - 1]):
            raise RuntimeError(f"round {server_round} did not get a reply from every participant")
        result = super().aggregate_train(server_round, replies)
        self.seconds.append(time.perf_counter() - self._started)
        return result


def wait_for_nodes(grid: Grid, clients: int) -> list[int]:
    """Returns the node of each client, once all of them are there."""
    while len(nodes := sorted(grid.get_node_ids())) < clients:
        time.sleep(0.1)
    return nodes


def warm_up(grid: Grid, path: Path, nodes: list[int], processes: int) -> None:
    """Queries nodes until every actor has answered."""
    seen: set[int] = set()
    while len(seen) < processes:
        content = RecordDict({"config": ConfigRecord({"work": str(path)})})
        messages = [Message(content=content, message_type="query", dst_node_id=node) for node in nodes[: 4 * processes]]
        seen |= {reply.content["process"]["pid"] for reply in grid.send_and_receive(messages)}


def server_app(
    path: Path, rounds: int, processes: int, pull_interval: float | None, results: dict[str, Any]
) -> ServerApp:
    """Returns the server, which leaves its results in a dictionary."""
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, context: Context) -> None:
        if pull_interval is not None:
            grid.pull_interval = pull_interval
        work = load_work(path)
        network = work.network()
        nodes = wait_for_nodes(grid, len(work.clients))
        warm_up(grid, path, nodes, processes)
        strategy = ScriptedFedAvg(path, work.participants, nodes)
        arrays = ArrayRecord(network.state_dict())
        final = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds)
        network.load_state_dict(final.arrays.to_torch_state_dict())
        results["memory"] = memory()
        results["accuracy"] = accuracy(network, work)
        results["seconds"] = strategy.seconds

    return app


def simulate(path: Path, rounds: int, processes: int, pull_interval: float | None) -> dict[str, Any]:
    """Runs the rounds, and returns the seconds of each, the memory and the accuracy after the last."""
    results: dict[str, Any] = {}
    run_simulation(
        server_app=server_app(path, rounds, processes, pull_interval, results),
        client_app=client_app,
        num_supernodes=len(load_work(path).clients),
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": processes, "num_gpus": 0, "include_dashboard": False},
        },
    )
    return results


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--pull-interval", type=float, help="seconds between two looks for replies")
    options = parser.parse_args()
    os.environ.update(FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0")
    one_thread()
    # Ray sends functions of an imported module by name, and those of the script itself by value, at each message.
    import flower_run

    try:
        results = flower_run.simulate(options.work.resolve(), options.rounds, options.processes, options.pull_interval)
    except Exception:  # the thread of the server waits for ever when Ray does not start
        traceback.print_exc()
        ray.shutdown()
        sys.stderr.flush()
        os._exit(1)
    setting = f"Ray, {options.processes} actors, 1 CPU each"
    if options.pull_interval is not None:
        setting += f", pull interval {options.pull_interval} s"
    report("flower", version("flwr"), setting, **results)


if __name__ == "__main__":
    main()
