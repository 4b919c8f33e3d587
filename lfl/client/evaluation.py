"""Evaluating the server's model with the module's own validation, test and prediction steps."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable
from typing import Any, Literal

import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lfl.client.model import ClientModel
from lfl.processes.group import Processes
from lfl.processes.sums import ProcessSums

Stage = Literal["validate", "test", "predict"]
_STEPS = {"validate": "validation", "test": "test", "predict": "predict"}


class Evaluator:
    """Runs ``validation_step``, ``test_step`` or ``predict_step`` over dataloaders, in evaluation mode.

    Logged values are averaged over examples; ``Metric`` objects are computed over the whole set.

    Args:
        model: the model; evaluation uses its parameters as they are bound.
        processes: for the device and, if there are several, to share the batches.
    """

    def __init__(self, model: ClientModel, processes: Processes) -> None:
        self._model, self._processes = model, processes
        # By stage and loader: names and shapes of the last time are what spares processes to agree on them anew.
        self._joined: dict[tuple[Stage, int | None], ProcessSums] = {}

    def can(self, stage: Stage) -> bool:
        """Whether the module has the step for ``stage``."""
        return stage == "predict" or is_overridden(f"{_STEPS[stage]}_step", self._model.module)

    def run(self, stage: Stage, dataloaders: Any) -> tuple[dict[str, float], list[Any]]:
        """Run a step over all batches; returns metrics, and the outputs of ``predict_step`` of this process.

        Args:
            stage: which step to run.
            dataloaders: one iterable of batches, or a list of them.
        """
        several = isinstance(dataloaders, list | tuple)
        loaders: list[Iterable[Any]] = list(dataloaders) if several else [dataloaders]
        metrics: dict[str, float] = {}
        outputs: list[Any] = []
        module = self._model.module
        prefix = _STEPS[stage]
        modes = {part: part.training for part in module.modules()}
        module.eval()
        try:
            with torch.no_grad(), self._model.recording():
                self._call(f"on_{prefix}_start")
                self._call(f"on_{prefix}_epoch_start")
                for index, loader in enumerate(loaders):
                    suffix = f"/dataloader_idx_{index}" if len(loaders) > 1 else ""
                    means = self._run_loader(stage, loader, index if len(loaders) > 1 else None, outputs)
                    metrics.update({name + suffix: value for name, value in means.items()})
                self._model.recorder.start()
                self._call(f"on_{prefix}_epoch_end")
                metrics.update({name: float(value) for name, value in self._model.recorder.values.items()})
                metrics.update(self._model.compute_metrics(self._processes.gather))
                self._call(f"on_{prefix}_end")
        finally:
            for part, training in modes.items():  # as Lightning does: frozen parts may be in evaluation mode
                part.training = training
        return metrics, outputs

    def run_alone(self, stage: Stage, batches: Iterable[Any]) -> dict[str, float]:
        """Metrics of batches that other processes do not share, such as a client's own examples."""
        module = self._model.module
        modes = [part for part in module.modules() if part.training]
        for part in modes:
            part.training = False
        try:
            with torch.no_grad(), self._model.recording():
                means = _means(self._sums(stage, batches, None, []))
                return {**means, **self._model.compute_metrics()}
        finally:
            for part in modes:
                part.training = True

    def _run_loader(
        self, stage: Stage, loader: Iterable[Any], index: int | None, outputs: list[Any]
    ) -> dict[str, float]:
        # Every process reads all batches and takes each n-th: loaders need not know of processes.
        mine = itertools.islice(loader, self._processes.rank, None, self._processes.count)
        joined = self._joined.setdefault((stage, index), ProcessSums(self._processes))
        return _means(joined.join(self._sums(stage, mine, index, outputs)))

    def _sums(self, stage: Stage, batches: Iterable[Any], index: int | None, outputs: list[Any]) -> dict[str, Tensor]:
        """What the steps log, summed over examples, and how many there were [2] (float64), by name."""
        step = getattr(self._model.module, f"{_STEPS[stage]}_step")
        recorder = self._model.recorder
        sums: dict[str, Tensor] = {}
        for count, raw in enumerate(batches):
            # The number that the batch has in the loader, as `batch_idx`.
            number = count * self._processes.count + self._processes.rank
            batch = self._model.converted(move_data_to_device(raw, self._processes.device))
            recorder.start()
            with self._model.autocast():
                output = step(*_arguments(step, batch, number, index))
            if stage == "predict":
                outputs.append(output)
            size = _batch_size(batch)  # unless the step says otherwise, as Lightning's `self.log(batch_size=)` does
            for name, value in recorder.values.items():
                weight = recorder.batch_sizes.get(name, size)
                row = torch.stack([value.double() * weight, value.new_tensor(weight, dtype=torch.float64)])
                sums[name] = sums[name] + row if name in sums else row
        return sums

    def _call(self, hook: str) -> None:
        if hasattr(self._model.module, hook):
            getattr(self._model.module, hook)()


def _means(sums: dict[str, Tensor]) -> dict[str, float]:
    return {name: float(total[0] / total[1]) for name, total in sums.items()}


def _arguments(step: Any, batch: Any, number: int, index: int | None) -> tuple[Any, ...]:
    """As many of batch, its number and that of its loader as the step takes: Lightning allows one, two or three."""
    count = len(inspect.signature(step).parameters)
    return (batch, number, index or 0)[:count]


def _batch_size(batch: Any) -> int:
    """The number of examples of a batch, from its first tensor."""
    for leaf in tree_leaves(batch):
        if isinstance(leaf, Tensor):
            return len(leaf) if leaf.dim() else 1
    return 1
