"""FedAvg with pfl-research on the work of a file, at its best CPU setting: torchrun, a process for each core.

    python3 -m venv ~/peers/pfl
    ~/peers/pfl/bin/pip install "pfl[pytorch]==0.6.0" "torch==2.14.1"
    ~/peers/pfl/bin/python tools/benchmarks/peers/pfl_run.py WORK.pt --rounds 10 --processes 2

The last line of the output is a JSON object; "seconds" are those of each round on the first process.

`SimulatedBackend` with `FederatedAveraging`, `WeightByDatapoints` and a central SGD optimizer at learning rate 1. By
default the users are spread over the processes by their numbers of examples (``user_id_to_weight``, as in pfl's own
benchmarks), which each training process has a process of its own for: the first round waits until those have drawn
their 10,000 users ahead. With ``--no-balance`` users go to the processes in turn; their number must fill the turns.

pfl's in-memory data set takes the batches in a fixed order, so a subclass shuffles them, once an epoch. Its algorithm
evaluates every participant before and after training in the first round at least; a subclass turns that off.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from networks import Work, accuracy, arguments, load_work, memory, one_thread, process_tree, report
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override


def launch(processes: int) -> None:
    """Becomes torchrun, which starts this script again in each process."""
    os.environ["OMP_NUM_THREADS"] = "1"
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    os.execv(sys.executable, [sys.executable, *torchrun, *sys.argv])


def wait_for_samplers() -> None:
    """Waits until the process that pfl starts to draw users ahead has filled its buffer, and so sleeps."""
    before, now = -1, 0
    while now != before:
        time.sleep(0.5)
        before, now = now, sum(_ticks(pid) for pid in process_tree()[1:])


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def simulate(work: Work, rounds: int, balance: bool) -> tuple[list[float], float]:
    """Runs the rounds, and returns the seconds of each and the accuracy after the last."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    class Network(nn.Module):
        """The network with the loss that pfl asks for."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = work.network()

        def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
            return functional.cross_entropy(self.layers(inputs), targets)

        def metrics(self, inputs: Tensor, targets: Tensor) -> dict[str, Any]:
            return {}

    class Shuffled(PyTorchTensorDataset):  # type: ignore[misc]
        """A user's tensors, shuffled at each epoch."""

        @override
        def iter(self, batch_size: int | None) -> Iterator[tuple[Tensor, Tensor]]:
            inputs, targets = self.raw_data
            for batch in torch.randperm(len(inputs)).split(batch_size or len(inputs)):
                if len(batch):
                    yield inputs[batch], targets[batch]

    class TrainOnly(FederatedAveraging):  # type: ignore[misc]
        """FedAvg without the evaluation of the participants."""

        @override
        def get_next_central_contexts(self, *args: Any, **kwargs: Any) -> Any:
            contexts, model, metrics = super().get_next_central_contexts(*args, **kwargs)
            if contexts is not None:
                contexts = tuple(dataclasses.replace(context, do_evaluation=False) for context in contexts)
            return contexts, model, metrics

    class Clock(TrainingProcessCallback):  # type: ignore[misc]
        """Notes the time at the end of each round."""

        def __init__(self) -> None:
            self.times: list[float] = []

        @override
        def on_train_begin(self, *, model: Any) -> Metrics:
            self.times.append(time.perf_counter())
            return Metrics()

        @override
        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            self.times.append(time.perf_counter())
            return False, Metrics()

    users = [Shuffled(tensors, user_id=str(client)) for client, tensors in enumerate(work.clients)]
    # The sampler is asked ahead of the rounds, and for more users than they need: the list starts again at its end.
    sampler = itertools.cycle(itertools.chain.from_iterable(work.participants[:rounds]))
    weights = {client: len(user) for client, user in enumerate(users)}
    data = FederatedDataset(users.__getitem__, sampler.__next__, user_id_to_weight=weights if balance else None)
    wait_for_samplers()

    network = Network()
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
    clock = Clock()
    TrainOnly().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds,
            train_cohort_size=len(work.participants[0]),
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=work.epochs, local_learning_rate=work.lr, local_batch_size=work.batch_size
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    seconds = [end - start for start, end in itertools.pairwise(clock.times)]
    return seconds, accuracy(network.layers, work)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--balance", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        launch(options.processes)
    one_thread()
    torch.manual_seed(int(os.environ["RANK"]))
    seconds, final = simulate(load_work(options.work), options.rounds, options.balance)
    if os.environ["RANK"] == "0":
        users = "balanced by examples" if options.balance else "in turn"
        setting = f"torchrun, {options.processes} processes, 1 thread each, users {users}"
        report("pfl-research", version("pfl"), setting, seconds, memory(os.getppid()), final)


if __name__ == "__main__":
    main()
