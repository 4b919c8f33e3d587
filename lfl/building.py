"""Builds a run from settings, a module and data."""

from __future__ import annotations

import time
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.pytorch import LightningModule
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities.model_helpers import is_overridden

from lfl.aggregation import Server
from lfl.aggregation.aggregator import check_adds_up
from lfl.callback import FederatedCallback, check_late, check_stack, overrides, settle_weighting
from lfl.client.evaluation import Evaluator
from lfl.client.model import ClientModel
from lfl.client.module_state import ModuleState
from lfl.client.rates import LearningRates
from lfl.comm import Ledger, Outbox, dense_bits
from lfl.data.base import FederatedData
from lfl.data.datamodule import FederatedDataModule
from lfl.data.stores import limited
from lfl.engine import EngineSettings, LocalTraining, build_training
from lfl.generators import HostGenerators
from lfl.lightning_callbacks import LightningCallbacks
from lfl.processes.group import Processes
from lfl.processes.sums import ProcessSums
from lfl.reporting.progress import ProgressDisplay
from lfl.round import Round
from lfl.run import Run
from lfl.scopes import Scope, ScopeEvaluation
from lfl.settings import Settings
from lfl.storage.checkpoint_file import CheckpointError, run_folder_of
from lfl.storage.client_store import ClientStore
from lfl.storage.fingerprint import check_resumable, describe
from lfl.storage.hyper_parameters import saved_hyper_parameters
from lfl.system import Workload

# Hooks of a LightningModule that lfl never calls; a module that overrides one gets a warning.
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
)
_FIRST_ROUNDS = 20  # of which one is expected to have clients
# Arguments of the data module that change no number: the partition itself is compared by its fingerprint.
_IRRELEVANT_DATA = ("eval_batch_size", "num_workers", "partition_path")


class RunBuilder:
    """Builds a run part by part, so that wrong settings are refused before anything is written to the disk.

    ``fit`` goes in this order, from the cheapest refusal to the most expensive one: ``check``, ``training`` (which
    first builds server, learning rates and validation data, and then may try out both engines), a comparison of
    ``description`` with that of a checkpoint, and only then the run folder and ``build``.

    Args:
        settings: the trainer's arguments.
        callbacks: the stack.
        model: the model, on its device.
        data: the data, on its device.
        processes: the processes, which have been started.
        lightning: calls Lightning's hooks of the callbacks.
    """

    def __init__(
        self,
        settings: Settings,
        callbacks: list[FederatedCallback],
        model: ClientModel,
        data: FederatedData,
        processes: Processes,
        lightning: LightningCallbacks,
    ) -> None:
        self._settings = settings
        self._lightning = lightning
        self._callbacks = callbacks
        self._model = model
        self._data = data
        self._processes = processes
        self._num_clients = int(data.num_clients)

    def check(self) -> None:
        """Raise ValueError for settings, or combinations of them, that have no meaning."""
        settings = self._settings
        model = self._model
        settings.participation.client_sizes = self._data.client_sizes
        if settings.system is not None:
            settings.system.prepare(self._workload())
            settings.system.check(self._num_clients)
        settings.participation.check(self._num_clients)
        settings.aggregator.check(settings.participation.count(self._num_clients))
        if self._processes.count > 1:
            check_adds_up(settings.aggregator, model.layout.dim)
        # `names_of` is None for a phase that trains all parameters.
        has_frozen_phases = any(model.names_of(phase.parameters) is not None for phase in settings.work.phases)
        check_stack(self._callbacks, model.layout, has_frozen_phases)
        if settings.participation.is_late:
            check_late(settings.participation, self._callbacks)
            self._refuse_averaged_buffers()
        settle_weighting(settings.aggregator, self._callbacks)
        _warn_of_dataloaders(model.module, self._data)
        ignored = [hook for hook in _UNCALLED_HOOKS if is_overridden(hook, model.module)]
        if ignored:
            rank_zero_warn(
                f"{type(model.module).__name__} overrides {', '.join(ignored)}, which lfl does not call: local steps "
                "are taken for many clients at once."
            )

    def _refuse_averaged_buffers(self) -> None:
        """Raise ValueError if the model's buffers would be moved by what late clients have moved."""
        policy, model = self._settings.buffer_policy, self._model
        if policy == "average" and (model.flat_buffers().numel() or model.counters):
            raise ValueError(
                f"`trainer.buffers=average` and {type(self._settings.participation).__name__} have no meaning "
                "together: the server's statistics (BatchNorm's) would swing ever further by movements that are late. "
                "Use GroupNorm, or `trainer.buffers=client`, or `server`."
            )

    def _workload(self) -> Workload:
        """Tell what the simulated system may know of the run."""
        work, data = self._settings.work, self._data

        def examples(clients: torch.Tensor, round_number: int, seed: int) -> torch.Tensor:
            keys = work.keys(clients, seed, round_number)
            return work.examples(data.client_sizes[clients], data.batch_size, keys)

        model_bits = dense_bits(self._model.flat_parameters()) + dense_bits(self._model.flat_buffers())
        return Workload(data.client_sizes, examples, data.label_counts, model_bits)

    @cached_property
    def server(self) -> Server:
        """The server, with the model's initial parameters and buffers."""
        model = self._model
        # Copies, for the module is trained: its counters change with every client.
        counters = [counter.clone() for counter in model.counters]
        return Server(model.flat_parameters(), self._settings.server_optimizer, model.flat_buffers(), counters)

    @cached_property
    def rates(self) -> LearningRates:
        """The learning rates, from the module's own optimizer and schedulers."""
        return LearningRates(self._model.module)

    @cached_property
    def evaluator(self) -> Evaluator:
        """The evaluator, which runs the module's validation step."""
        return Evaluator(self._model, self._processes, self._settings.seed, self._lightning)

    @cached_property
    def val_dataloaders(self) -> Any:
        """The validation data; None if there is none, or the module has no validation step."""
        limit = self._settings.limit_val_batches
        if not limit or not self.evaluator.can("validate"):
            return None
        return limited(self._data.val_dataloader(), limit, "limit_val_batches")

    def training(self, saved_choice: dict[str, Any], most_threads: int = 1) -> LocalTraining:
        """Build the local training, with an engine.

        Args:
            saved_choice: the ``engine_choice`` in the checkpoint of a resumed run, which is kept where nothing else is
                asked for; else empty.
            most_threads: as many threads the run may choose; 1 for no choice.
        """
        settings = self._settings
        saved_size = saved_choice.get("cohort_size") if settings.engine == "auto" else None
        # Built first, since errors in them are cheap to find, while `auto` trains on the side for a while.
        _ = self.server, self.rates, self.val_dataloaders
        engine_settings = EngineSettings(
            settings.engine,
            cohort_size=settings.cohort_size or saved_size,
            clients_per_round=self._clients_per_round(),
            trace_steps=settings.trace_steps,
            max_rounds=settings.max_rounds,
            most_threads=most_threads,
            processes=self._processes.count,
            join=self._seconds_to_join,
            resumed=saved_choice or None,
        )
        return build_training(
            engine_settings,
            self._model,
            self._data,
            settings.work,
            self._callbacks,
            settings.seed,
            # All processes must choose alike, and what they measure differs: the first process decides.
            ask=self._processes.ask_first,
        )

    def _seconds_to_join(self) -> float:
        """Seconds that the sums of a round take to meet over all processes, the least of three; all must call it."""
        update = torch.zeros(self._model.layout.dim, dtype=torch.float64, device=self._processes.device)
        sums, seconds = ProcessSums(self._processes), []
        for _ in range(4):  # at first they agree on shapes
            self._processes.barrier()
            start = time.perf_counter()
            sums.join({"update": update})
            seconds.append(time.perf_counter() - start)
        return min(seconds)

    def _clients_per_round(self) -> int:
        """The rough number of clients that take part in a round: that of the first one that has any."""
        settings = self._settings
        numbers = range(1, min(settings.max_rounds, _FIRST_ROUNDS) + 1)
        counts = (len(settings.participation.select(n, self._num_clients, settings.seed)) for n in numbers)
        return next(filter(None, counts), 1)

    @cached_property
    def description(self) -> dict[str, Any]:
        """The settings that the run's numbers depend on (except for rounding), in plain values for a checkpoint.

        What may change when a run is resumed is left out: engine, devices, loggers, evaluation, number of rounds.
        """
        settings = self._settings
        module = self._model.module
        layout = self._model.layout
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

    @property
    def configuration(self) -> dict[str, Any]:
        """The configuration that loggers show: saved hyper-parameters of module and data, and all settings."""
        own: dict[str, Any] = {}
        for owner in (self._data, self._model.module):
            own.update(owner.hparams_initial if getattr(owner, "_log_hyperparams", False) else {})
        description = self.description
        model = {"class": description["model"]["class"], "num_parameters": self._model.layout.dim}
        trainer = {name: value for name, value in describe(self._settings).items() if name != "class"}
        parts = {name: description[name] for name in ("data", "optimizer", "server_optimizer", "callbacks")}
        return {**own, "model": model, "trainer": trainer, **parts}

    def build(self, training: LocalTraining, folder: Path, loggers: list[Logger], display: ProgressDisplay) -> Run:
        """Build the run.

        Args:
            training: what ``training`` returned.
            folder: the run's own folder.
            loggers: where metrics go.
            display: shows the progress.
        """
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
            outbox=Outbox(self._processes.device),
            rates=self.rates,
            processes=self._processes,
            evaluator=self.evaluator,
            buffer_policy=settings.buffer_policy,
            callbacks=self._callbacks,
            training=training,
            module_state=ModuleState(self._model.module),
            generators=HostGenerators(*self._model.module.modules()),
            on_nonfinite=settings.on_nonfinite,
            check_val_every_n_rounds=settings.check_val_every_n_rounds,
            log_every_n_steps=settings.log_every_n_steps,
            val_dataloaders=self.val_dataloaders,
            checkpointing=settings.checkpointing,
            loggers=loggers,
            display=display,
            lightning=self._lightning,
            folder=folder,
            description=self.description,
            hyper_parameters=saved_hyper_parameters(self._model.module, self._data),
        )

    def tested(
        self,
        state: dict[str, Any] | None,
        path: Path | None,
        folder: Path,
        display: ProgressDisplay,
        most_threads: int,
        finished: Run | None = None,
    ) -> dict[str, float]:
        """Let callbacks log numbers of a tested checkpoint, with its clients' rows; returns them by name.

        Where clients have models of their own, and no callback evaluates clients, the personal models are evaluated.

        Args:
            state: the checkpoint; None for the module as it is.
            path: its file.
            folder: the folder of the test.
            display: shows the progress.
            most_threads: see ``training``.
            finished: the trainer's last run.
        """
        asked = [callback for callback in self._callbacks if overrides(callback, "on_test")]
        has_models = any(overrides(callback, "personalize") for callback in self._callbacks)
        has_tests = bool((self._data.client_test_sizes > 0).any()) and self.evaluator.can("validate")
        is_personal = not asked and has_models and has_tests
        if not asked and not is_personal:
            return {}
        if state is not None and state.get("weights_only"):
            display.message(f"{path} was saved with `weights_only`: its clients have no models, and are not evaluated.")
            return {}
        run = self._finished(finished) if state is None else None
        if run is None and state is None and is_personal:
            return {}  # there are no clients' rows
        if run is None:
            self.check()  # which settles what is left to be chosen, as the description has it
            if state is not None and path is not None:
                try:
                    check_resumable(state["settings"], self.description, path)
                except CheckpointError as error:
                    if not is_personal:
                        raise
                    # Nobody has asked for them: the server's model may be tested on other data.
                    display.message(f"Personal models are not evaluated: {error}")
                    return {}
            run = self._run_at(state, path, folder, display, most_threads)
        if state is not None or run is finished:
            run.rates.go_back()
        nobody = torch.empty(0, dtype=torch.int64)
        round = Round(max(1, run.progress.round), nobody, run.server.vector.clone(), nobody, nobody)
        for callback in asked:
            callback.on_test(round)
        if is_personal:
            evaluation = ScopeEvaluation(Scope("personal"), run)
            evaluation.log(round, evaluation.run(round))
        if run is not finished:  # of whose x the module has a copy
            run.load_server_model()
        return {name: float(value) for name, value in round.metrics.items()}

    def _run_at(
        self,
        state: dict[str, Any] | None,
        path: Path | None,
        folder: Path,
        display: ProgressDisplay,
        most_threads: int,
    ) -> Run:
        """Build a run to evaluate clients with, as it was at a checkpoint."""
        training = self.training(state["engine"] if state is not None else {}, most_threads)
        run = self.build(training, folder, [], display)
        run.start_callbacks()
        if state is not None and path is not None:
            run.load_state_dict(state, run_folder_of(path, state))
        return run

    def _finished(self, run: Run | None) -> Run | None:
        """The trainer's last run, if it was of this model and these data, and the model has not changed since."""
        if run is None or run.model.module is not self._model.module or run.data is not self._data:
            return None
        return run if torch.equal(run.server.vector, self._model.flat_parameters()) else None

    def _store(self, folder: Path) -> ClientStore:
        """Make the client store, with a slot for buffers if each client keeps its own."""
        kind = self._settings.client_state
        buffers = self.server.buffers
        directory = folder / "clients" if kind == "memmap" else None
        store = ClientStore(self._num_clients, kind, self._processes.device, directory, shard=self._processes.rank)
        if self._settings.buffer_policy == "client" and buffers.numel():
            # Clients that have no buffers yet start with the server's; to readers of the slot, NaN marks them.
            with store.claimed_by("trainer.buffers=client"):
                store.declare("buffers", buffers.numel(), buffers.dtype, fill=float("nan"))
        return store


def _warn_of_dataloaders(module: LightningModule, data: FederatedData) -> None:
    """Warn of dataloaders that people write for Lightning's trainer, and that clients never see."""
    names = [f"{stage}_dataloader" for stage in ("train", "val", "test", "predict")]
    for name in (name for name in names if is_overridden(name, module)):
        rank_zero_warn(
            f"`{type(module).__name__}.{name}` is never called: the data module has the batches. Give its data set as "
            "`DatasetSource`, and its transforms as `train_transforms`."
        )
    own, usual = type(data).train_dataloader, FederatedDataModule.train_dataloader
    if isinstance(data, FederatedDataModule) and own is not usual:
        rank_zero_warn(
            f"`{type(data).__name__}.train_dataloader` is for central training: the clients' batches do not come from "
            "it, so that a sampler in it has no effect. Clients draw theirs as `local_sampling` says."
        )
