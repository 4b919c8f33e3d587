"""Evaluation of the server's model by the module's own validation, test and prediction steps."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, Protocol

import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lfl.client.model import ClientModel
from lfl.generators import HostGenerators
from lfl.processes.group import Processes
from lfl.processes.sums import ProcessSums

Stage = Literal["validate", "test", "predict"]
_STEPS = {"validate": "validation", "test": "test", "predict": "predict"}


class Hooks(Protocol):
    """The hooks of callbacks, which are called around the module's own."""

    def call(self, hook: str, *args: Any) -> None:
        """Call a hook, by its name."""

    def publish(self, metrics: Mapping[str, Any]) -> None:
        """Take notice of metrics."""


class NoHooks:
    """No callbacks."""

    def call(self, hook: str, *args: Any) -> None:
        """Do nothing."""

    def publish(self, metrics: Mapping[str, Any]) -> None:
        """Do nothing."""


class Evaluator:
    """Runs ``validation_step``, ``test_step`` or ``predict_step`` over dataloaders, in evaluation mode.

    Logged values are averaged over examples; ``Metric`` objects are computed over the whole data set.

    Args:
        model: the model; it is evaluated with the parameters that are bound to it at the time.
        processes: the processes of the run, which share the batches.
        seed: of what steps and hooks draw from global generators.
        hooks: called around the module's own hooks, except by ``run_alone``.

    Attributes:
        stage: what is being run; None outside of ``run`` and ``run_alone``.
    """

    def __init__(self, model: ClientModel, processes: Processes, seed: int = 0, hooks: Hooks | None = None) -> None:
        self._model = model
        self._processes = processes
        self._seed = seed
        self._hooks = hooks or NoHooks()
        self.stage: Stage | None = None
        self._generators = HostGenerators(*model.module.modules())
        # One for each stage and loader: the names of logged values, which `ProcessSums` remembers, differ among them.
        self._process_sums: dict[tuple[Stage, int | None], ProcessSums] = {}

    def can(self, stage: Stage) -> bool:
        """Whether the module implements the step for ``stage``."""
        return stage == "predict" or is_overridden(f"{_STEPS[stage]}_step", self._model.module)

    def run(self, stage: Stage, dataloaders: Any) -> tuple[dict[str, float], list[Any]]:
        """Run a step over all batches; every process must call it.

        Args:
            stage: which step to run.
            dataloaders: one iterable of batches, or a list of them.

        Returns:
            The metrics by name, the same on all processes, and the outputs of ``predict_step`` on this process.
        """
        several = isinstance(dataloaders, list | tuple)
        loaders: list[Iterable[Any]] = list(dataloaders) if several else [dataloaders]
        metrics: dict[str, float] = {}
        outputs: list[Any] = []
        with self._epoch(stage, metrics, self._processes.gather, self._hooks):
            for index, loader in enumerate(loaders):
                suffix = f"/dataloader_idx_{index}" if len(loaders) > 1 else ""
                means = self._run_loader(stage, loader, index if len(loaders) > 1 else None, outputs)
                metrics.update({name + suffix: value for name, value in means.items()})
        return metrics, outputs

    def run_alone(self, stage: Stage, batches: Iterable[Any]) -> dict[str, float]:
        """Run a step over batches of this process alone, such as a client's own examples; returns the metrics."""
        metrics: dict[str, float] = {}
        hooks = NoHooks()
        with self._epoch(stage, metrics, None, hooks):
            metrics.update(_means(self._sums(stage, batches, None, [], hooks)))
        return metrics

    @contextmanager
    def _epoch(
        self, stage: Stage, metrics: dict[str, float], gather: Callable[[Any], list[Any]] | None, hooks: Hooks
    ) -> Iterator[None]:
        """Run the module's hooks around its steps, in evaluation mode; adds what they log to ``metrics``."""
        module = self._model.module
        prefix = _STEPS[stage]
        # Each submodule's own mode is restored, as Lightning does: frozen ones may be in evaluation mode all the time.
        modes = {submodule: submodule.training for submodule in module.modules()}
        module.eval()
        self.stage = stage
        self._generators.seed(self._seed, stage)
        recorder = self._model.recorder
        trained, recorder.metrics = recorder.metrics, {}  # those of the training steps are not reset before their time
        try:
            with torch.no_grad(), self._model.recording():
                recorder.start()
                self._call(f"on_{prefix}_start", hooks)
                self._call(f"on_{prefix}_epoch_start", hooks)
                metrics.update({name: float(value) for name, value in recorder.values.items()})
                yield
                hooks.publish(metrics)  # the hook may read them: they are of this epoch, as in Lightning
                # Started anew: values that the hook logs are metrics of the whole set, not of the last batch.
                recorder.start()
                self._call(f"on_{prefix}_epoch_end", hooks)
                metrics.update({name: float(value) for name, value in recorder.values.items()})
                metrics.update(self._model.compute_metrics(gather))
                hooks.publish(metrics)
                self._call(f"on_{prefix}_end", hooks)
        finally:
            self.stage = None
            self._model.reset_metrics()
            recorder.metrics = trained
            for submodule, was_training in modes.items():
                submodule.training = was_training

    def _run_loader(
        self, stage: Stage, loader: Iterable[Any], index: int | None, outputs: list[Any]
    ) -> dict[str, float]:
        # With W processes, each reads all batches and takes every W-th, so that loaders need not know of processes.
        mine = itertools.islice(loader, self._processes.rank, None, self._processes.count)
        process_sums = self._process_sums.setdefault((stage, index), ProcessSums(self._processes))
        return _means(process_sums.join(self._sums(stage, mine, index, outputs, self._hooks)))

    def _sums(
        self, stage: Stage, batches: Iterable[Any], index: int | None, outputs: list[Any], hooks: Hooks
    ) -> dict[str, Tensor]:
        """Run a step over batches; returns each logged value's sum over examples and their number, [2] (float64)."""
        step = getattr(self._model.module, f"{_STEPS[stage]}_step")
        recorder = self._model.recorder
        sums: dict[str, Tensor] = {}
        for count, raw in enumerate(batches):
            # `batch_idx` is the batch's number in the loader, not among those of this process.
            number = count * self._processes.count + self._processes.rank
            batch = self._model.converted(move_data_to_device(raw, self._processes.device))
            recorder.start()
            # By the batch, so that draws do not depend on which process takes it.
            self._generators.seed(self._seed, stage, index or 0, number)
            self._call_at_batch(f"on_{_STEPS[stage]}_batch_start", hooks, batch, number, index or 0)
            with self._model.autocast():
                output = step(*step_arguments(step, batch, number, index))
            self._call_at_batch(f"on_{_STEPS[stage]}_batch_end", hooks, output, batch, number, index or 0)
            if stage == "predict":
                outputs.append(output)
            # As in Lightning: a value's weight is the size of the batch, unless `self.log` is given a `batch_size`.
            size = _batch_size(batch)
            for name, value in recorder.values.items():
                weight = recorder.batch_sizes.get(name, size)
                row = torch.stack([value.double() * weight, value.new_tensor(weight, dtype=torch.float64)])
                sums[name] = sums[name] + row if name in sums else row
        return sums

    def _call(self, name: str, hooks: Hooks) -> None:
        """Call a hook of the callbacks, then that of the module."""
        hooks.call(name)
        if hasattr(self._model.module, name):
            getattr(self._model.module, name)()

    def _call_at_batch(self, name: str, hooks: Hooks, *args: Any) -> None:
        """The same for hooks of a batch; the module's own take the number of the loader if they like."""
        hooks.call(name, *args)
        if is_overridden(name, self._model.module):
            own = getattr(self._model.module, name)
            own(*args[: len(inspect.signature(own).parameters)])


def _means(sums: dict[str, Tensor]) -> dict[str, float]:
    return {name: float(total[0] / total[1]) for name, total in sums.items()}


def step_arguments(step: Any, batch: Any, number: int, index: int | None) -> tuple[Any, ...]:
    """Arguments of a step: batch, its number, and the number of its loader, as many of them as the step takes."""
    count = len(inspect.signature(step).parameters)
    return (batch, number, index or 0)[:count]


def _batch_size(batch: Any) -> int:
    """The number of examples of a batch: the length of its first tensor."""
    for leaf in tree_leaves(batch):
        if isinstance(leaf, Tensor):
            return len(leaf) if leaf.dim() else 1
    return 1
