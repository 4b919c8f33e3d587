"""From settings, a module and data to a run."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities.model_helpers import is_overridden

from lfl.aggregation import Server
from lfl.callback import FederatedCallback, check_stack
from lfl.client.evaluation import Evaluator
from lfl.client.model import ClientModel
from lfl.client.rates import LearningRates
from lfl.comm import Ledger
from lfl.data.base import FederatedData
from lfl.engine import EngineSettings, LocalEngine, build_engine
from lfl.processes.group import Processes
from lfl.reporting.progress import ProgressDisplay
from lfl.run import Run
from lfl.settings import Settings
from lfl.storage.client_store import ClientStore
from lfl.storage.fingerprint import describe

_UNCALLED_HOOKS = (
    "on_train_batch_start",
    "on_train_batch_end",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "optimizer_step",
    "optimizer_zero_grad",
    "configure_gradient_clipping",
    "lr_scheduler_step",
    "backward",
    "on_before_batch_transfer",
    "on_after_batch_transfer",
    "transfer_batch_to_device",
    "on_save_checkpoint",
    "configure_callbacks",
    "on_validation_batch_start",
    "on_validation_batch_end",
)


_IRRELEVANT_DATA = ("eval_batch_size", "num_workers", "partition_path")


class RunBuilder:
    """Builds a run, part by part, so that all that can be refused is refused before anything is made on the disk.

    Args:
        settings: what the user asked for.
        callbacks: the stack.
        model: on its device.
        data: on its device.
        processes: started.
    """

    def __init__(
        self,
        settings: Settings,
        callbacks: list[FederatedCallback],
        model: ClientModel,
        data: FederatedData,
        processes: Processes,
    ) -> None:
        self._settings, self._callbacks = settings, callbacks
        self._model, self._data, self._processes = model, data, processes
        self._num_clients = int(data.num_clients)

    def check(self) -> None:
        """Refuse settings and combinations that have no meaning; raises ValueError."""
        settings, model = self._settings, self._model
        settings.participation.check(self._num_clients)
        if settings.system is not None:
            settings.system.check(self._num_clients)
        has_frozen_phases = any(model.names_of(phase.parameters) is not None for phase in settings.work.phases)
        check_stack(self._callbacks, model.layout, has_frozen_phases)
        ignored = [hook for hook in _UNCALLED_HOOKS if is_overridden(hook, model.module)]
        if ignored:
            rank_zero_warn(
                f"{type(model.module).__name__} overrides {', '.join(ignored)}, which lfl does not call: local steps "
                "are taken for many clients at once."
            )

    @cached_property
    def server(self) -> Server:
        """The server with the model's initial parameters and buffers."""
        model, counters = self._model, [counter.clone() for counter in self._model.counters]
        return Server(model.flat_parameters(), self._settings.server_optimizer, model.flat_buffers(), counters)

    @cached_property
    def rates(self) -> LearningRates:
        """The learning rates of the module's own optimizer and schedulers."""
        return LearningRates(self._model.module)

    @cached_property
    def evaluator(self) -> Evaluator:
        """Runs the module's validation step."""
        return Evaluator(self._model, self._processes)

    @cached_property
    def val_dataloaders(self) -> Any:
        """The server's validation data; None where the module has no validation step."""
        return self._data.val_dataloader() if self.evaluator.can("validate") else None

    def engine(self, before: dict[str, Any]) -> LocalEngine:
        """The engine; a resumed run goes on with the one that ``auto`` chose ``before``."""
        settings = self._settings
        before = before if settings.engine == "auto" else {}
        _ = self.server, self.rates, self.val_dataloaders  # what is wrong with them is said before the trial
        engine = EngineSettings(
            settings.engine,
            cohort_size=settings.cohort_size or before.get("cohort_size"),
            clients_per_round=len(settings.participation.select(1, self._num_clients, settings.seed)),
            trace_steps=settings.trace_steps,
            resumed=before.get("name"),
        )
        return build_engine(
            engine,
            self._model,
            self._data,
            settings.work,
            self._callbacks,
            settings.seed,
            ask=self._processes.ask_first,
        )

    @cached_property
    def description(self) -> dict[str, Any]:
        """What the run's numbers depend on, but for rounding, in plain values that a checkpoint can hold."""
        settings, module, layout = self._settings, self._model.module, self._model.layout
        data = {key: value for key, value in describe(self._data).items() if key not in _IRRELEVANT_DATA}
        return {
            "seed": int(settings.seed),
            "precision": settings.precision,
            "participation": describe(settings.participation),
            "local_work": describe(settings.work),
            "aggregator": describe(settings.aggregator),
            "buffers": settings.buffer_policy,
            "on_nonfinite": settings.on_nonfinite,
            "system": describe(settings.system),
            "callbacks": describe([callback for callback in self._callbacks if not callback.observes]),
            "optimizer": self.rates.description,
            "server_optimizer": self.server.description,
            "model": {
                "class": f"{type(module).__module__}.{type(module).__qualname__}",
                "parameters": {n: list(s) for n, s in zip(layout.names, layout.shapes, strict=True)},
                "modules": {n: repr(m) for n, m in module.named_modules() if not any(m.children())},
            },
            "data": {**data, "partition": self._data.partition.fingerprint()},
        }

    def build(self, engine: LocalEngine, folder: Path, loggers: list[Logger], display: ProgressDisplay) -> Run:
        """The run, in its folder."""
        settings = self._settings
        if settings.checkpointing is not None:
            settings.checkpointing.start()
        return Run(
            seed=settings.seed,
            max_rounds=settings.max_rounds,
            model=self._model,
            data=self._data,
            work=settings.work,
            participation=settings.participation,
            system=settings.system,
            aggregator=settings.aggregator,
            server=self.server,
            store=self._store(folder),
            ledger=Ledger(self._num_clients),
            rates=self.rates,
            processes=self._processes,
            evaluator=self.evaluator,
            buffer_policy=settings.buffer_policy,
            callbacks=self._callbacks,
            engine=engine,
            on_nonfinite=settings.on_nonfinite,
            check_val_every_n_rounds=settings.check_val_every_n_rounds,
            val_dataloaders=self.val_dataloaders,
            checkpointing=settings.checkpointing,
            loggers=loggers,
            display=display,
            folder=folder,
            description=self.description,
        )

    def _store(self, folder: Path) -> ClientStore:
        kind, buffers = self._settings.client_state, self.server.buffers
        directory = folder / "clients" if kind == "memmap" else None
        store = ClientStore(self._num_clients, kind, self._processes.device, directory, shard=self._processes.rank)
        if self._settings.buffer_policy == "client" and buffers.numel():
            store.declare("buffers", buffers.numel(), buffers.dtype, fill=float("nan"))
        return store
