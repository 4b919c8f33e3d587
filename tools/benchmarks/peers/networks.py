"""The work that the peers' scripts share: networks, data, the local training loop and the report.

Plain torch, without `lfl`: the scripts beside this one run in an environment of their own, one for each peer.

A work file is a dictionary that `torch.load` reads with ``weights_only=True``: "name" (a key of `NETWORKS`),
"train_inputs", "train_targets", "test_inputs", "test_targets", "clients" (a tensor of indices for each client),
"participants" (rounds x clients of a round), "batch_size", "lr", "epochs" and "state" (the initial parameters, a list
of tensors in the order of ``network.parameters()``). The algorithm is FedAvg: every participant starts from the global
parameters and takes ``epochs`` shuffled epochs of SGD; the server takes the mean weighted by numbers of examples.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "cnn": lambda: nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(3136, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    ),
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10)),
    "many-small": lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10)),
    "resnet": lambda: _resnet18(),
    "pfl-cifar": lambda: nn.Sequential(
        *_block(3, 32),
        *_block(32, 64),
        nn.Flatten(),
        nn.Linear(64 * 64, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    ),
}


def _block(width_in: int, width: int) -> list[nn.Module]:
    return [
        nn.Conv2d(width_in, width, 3, padding=1), nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    ]  # fmt: skip


def _resnet18() -> nn.Module:
    from torchvision.models import resnet18  # only this network needs it

    network: nn.Module = resnet18(num_classes=10, norm_layer=partial(nn.GroupNorm, 2))
    return network


def build(name: str) -> nn.Module:
    """Returns a new network."""
    return NETWORKS[name]()


@dataclass
class Work:
    """The work that a simulator has to do.

    Args:
        name: the network.
        clients: the inputs and targets of each client.
        participants: the clients of each round.
        batch_size: examples in a batch.
        lr: the clients' learning rate.
        epochs: epochs that a participant takes.
        state: the initial parameters.
        test_inputs: inputs of the central test set.
        test_targets: targets of the central test set.
    """

    name: str
    clients: list[tuple[Tensor, Tensor]]
    participants: list[list[int]]
    batch_size: int
    lr: float
    epochs: int
    state: list[Tensor]
    test_inputs: Tensor
    test_targets: Tensor

    def network(self) -> nn.Module:
        """Returns the network with the initial parameters."""
        network = build(self.name)
        load_parameters(network, self.state)
        return network


def load_work(path: str | Path) -> Work:
    """Reads a work file, and slices each client's examples once."""
    data = torch.load(path, weights_only=True)
    inputs, targets = data["train_inputs"], data["train_targets"]
    return Work(
        name=data["name"],
        clients=[(inputs[indices], targets[indices]) for indices in data["clients"]],
        participants=data["participants"].tolist(),
        batch_size=data["batch_size"],
        lr=data["lr"],
        epochs=data["epochs"],
        state=data["state"],
        test_inputs=data["test_inputs"],
        test_targets=data["test_targets"],
    )


@torch.no_grad()
def load_parameters(network: nn.Module, values: list[Tensor]) -> None:
    """Copies values into the parameters, in their order."""
    for parameter, value in zip(network.parameters(), values, strict=True):
        parameter.copy_(value)


def train(network: nn.Module, work: Work, client: int, generator: torch.Generator | None = None) -> int:
    """Takes a participant's epochs of SGD on the network in place, and returns its number of examples."""
    inputs, targets = work.clients[client]
    optimizer = torch.optim.SGD(network.parameters(), lr=work.lr)
    for _ in range(work.epochs if len(inputs) else 0):
        for batch in torch.randperm(len(inputs), generator=generator).split(work.batch_size):
            optimizer.zero_grad()
            functional.cross_entropy(network(inputs[batch]), targets[batch]).backward()
            optimizer.step()
    return len(inputs)


@torch.no_grad()
def accuracy(network: nn.Module, work: Work) -> float:
    """Returns the network's accuracy on the central test set."""
    parts = zip(work.test_inputs.split(500), work.test_targets.split(500), strict=True)
    right = sum(int((network(inputs).argmax(1) == targets).sum()) for inputs, targets in parts)
    return right / len(work.test_targets)


def peak_mb(root: int | None = None) -> float:
    """Returns the sum of the resident peaks of a process and of those under it that are alive, in MiB.

    Each process's own peak is read once, so that nothing samples while the rounds run. Pages that processes share count
    in each of them; `proportional_mb` counts them once.

    Args:
        root: the process; this one if None.
    """
    return sum(_kb(pid, "status", "VmHWM:") for pid in process_tree(root)) / 1024


def proportional_mb(root: int | None = None) -> float:
    """Returns what a process (this one if None) and those under it take now, shared pages counted once, in MiB."""
    return sum(_kb(pid, "smaps_rollup", "Pss:") for pid in process_tree(root)) / 1024


def process_tree(root: int | None = None) -> list[int]:
    """Returns the ids of a process (this one if None) and of all those under it."""
    pid = os.getpid() if root is None else root
    children: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        children += map(int, file.read_text().split())
    return [pid, *(process for child in children for process in process_tree(child))]


def _kb(pid: int, file: str, key: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError:  # the process has ended since
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(key))


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser of the arguments that all the scripts take."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="the work file")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--processes", type=int, default=2, help="workers that train at the same time")
    return parser


def one_thread() -> None:
    """Keeps torch to one thread in this process and in those that it starts."""
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)


def memory(root: int | None = None, ended: int = 0) -> dict[str, float]:
    """Returns the report's entries on memory.

    Args:
        root: the process at the top of those that count; this one if None.
        ended: how many children, ended by now, ran at a time; the largest child's peak counts for each.
    """
    children = ended * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    peak = {"peak_mb": round(peak_mb(root) + children, 1)}
    return peak if ended else peak | {"pss_mb": round(proportional_mb(root), 1)}


def report(
    peer: str, version: str, setting: str, seconds: list[float], memory: dict[str, float], accuracy: float
) -> None:
    """Prints the result as one line of JSON."""
    result = {
        "peer": peer,
        "version": version,
        "setting": setting,
        "seconds": [round(value, 6) for value in seconds],
        **memory,
        "accuracy": round(accuracy, 4),
    }
    print(json.dumps(result), flush=True)
