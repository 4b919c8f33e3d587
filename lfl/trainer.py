"""The public face: a trainer with Lightning's manners for federated rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import torch
from jsonargparse import lazy_instance
from jsonargparse.typing import NonNegativeInt, PositiveFloat, PositiveInt
from lightning.fabric import Fabric
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import SaveConfigCallback
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from lfl.aggregation import Aggregator, MeanAggregator, Server
from lfl.arguments import check_choice, own
from lfl.callback import FederatedCallback, check_stack, overrides
from lfl.checkpointing import Checkpointing, load_weights, restore_trainer
from lfl.client.evaluation import Evaluator, Stage
from lfl.client.model import ClientModel
from lfl.client.rates import LearningRates
from lfl.comm import Ledger
from lfl.data.base import FederatedData
from lfl.engine import EngineSettings, LocalEngine, LocalPhase, LocalWork, build_engine
from lfl.facade import LightningFacade
from lfl.loggers import CSVLogger
from lfl.loop import FederatedLoop
from lfl.participation import Participation, UniformParticipation
from lfl.processes.signals import GracefulSignals, hand_on
from lfl.processes.sums import gather_objects
from lfl.processes.watch import ProcessWatch
from lfl.reporting.progress import ProgressDisplay
from lfl.reporting.summary import RunSummary
from lfl.storage.checkpoint_file import check_writable, find_last, load_checkpoint, new_run_folder
from lfl.storage.client_store import ClientStore
from lfl.storage.fingerprint import check_resumable, settings_of
from lfl.system import System

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


class FederatedTrainer(LightningFacade):
    """Trains one LightningModule over the clients of a federated data module, round by round.

    Args:
        accelerator: cpu, gpu, ... or auto, as in Lightning.
        devices: number of processes, one a device; they share the clients of a round.
        num_nodes: number of machines.
        strategy: how processes are started; auto for one device.
        precision: 32-true, 64-true, or bf16-mixed.
        max_rounds: rounds to run in all, resumed ones included.
        participation: who takes part in a round.
        local_epochs: passes of a client over its data in a round; 1 when local_steps is not given.
        local_steps: optimizer steps of a client in a round, instead of epochs.
        local_phases: instead of both, phases that each train some of the parameters and freeze the others.
        local_sampling: batches from shuffled epochs, or independent draws with replacement.
        engine: sequential (one client at a time), vectorized (cohorts in one batched computation), or auto.
        cohort_size: clients trained together by the vectorized engine; none for as many as 256 MB of parameters, or as
            a GPU's memory can hold, at most 128.
        trace_steps: record the local step once per shape of batch and replay it without Python; for a training step
            that depends on nothing but its batch and parameters. Same bits, but for rounding where plain SGD is made
            part of the step, and faster. compile has torch.compile make kernels (on a GPU, CUDA graphs) of what was
            recorded, which takes seconds a shape; same numbers to rounding.
        aggregator: from the clients' updates to one.
        server_optimizer: any torch optimizer; steps the model along the aggregate. SGD with lr 1 is FedAvg.
        system: simulates how long uploads (sim/uplink_time) or rounds (sim/time) take; none for no simulation.
        client_state: where rows that belong to clients are kept: device, host memory, or files (memmap).
        buffers: BatchNorm statistics: averaged, kept by the server as they are, or kept by each client.
        gradient_clip_val: clip every local gradient, the algorithms' corrections included; none for no clipping.
        gradient_clip_algorithm: clip the norm, or each value.
        on_nonfinite: what to do when a client's update has NaN or inf: stop, or skip it and count.
        check_val_every_n_rounds: rounds between evaluations; the last round is always evaluated.
        callbacks: the algorithm, as a stack of FederatedCallbacks; the first is nearest to the gradient.
        logger: loggers besides the CSV file; false for none and no CSV.
        checkpoint: when checkpoints are written; none for never.
        default_root_dir: each run makes a new folder here.
        enable_progress_bar: show a progress bar and the closing table.
        seed: of every draw of the training; the CLI links it to seed_everything. The partition has its own, data.seed.
    """

    def __init__(
        self,
        *,
        accelerator: str = "auto",
        devices: int | str = 1,
        num_nodes: PositiveInt = 1,
        strategy: str = "auto",
        precision: Literal["32-true", "64-true", "bf16-mixed"] = "32-true",
        max_rounds: NonNegativeInt = 100,
        participation: Participation = lazy_instance(UniformParticipation, clients_per_round=10),
        local_epochs: PositiveInt | None = None,
        local_steps: PositiveInt | None = None,
        local_phases: list[LocalPhase] | None = None,
        local_sampling: Literal["epochs", "replacement"] = "epochs",
        engine: Literal["auto", "sequential", "vectorized"] = "auto",
        cohort_size: PositiveInt | None = None,
        trace_steps: bool | Literal["compile"] = False,
        aggregator: Aggregator = lazy_instance(MeanAggregator),
        server_optimizer: Callable[[Iterable[torch.nn.Parameter]], Optimizer] = lambda params: torch.optim.SGD(
            params, lr=1.0
        ),
        system: System | None = None,
        client_state: Literal["device", "host", "memmap"] = "host",
        buffers: Literal["average", "server", "client"] = "average",
        gradient_clip_val: PositiveFloat | None = None,
        gradient_clip_algorithm: Literal["norm", "value"] = "norm",
        on_nonfinite: Literal["stop", "skip"] = "stop",
        check_val_every_n_rounds: PositiveInt = 1,
        callbacks: list[FederatedCallback] | FederatedCallback | None = None,
        logger: Logger | list[Logger] | bool = True,
        checkpoint: Checkpointing | None = lazy_instance(Checkpointing),
        default_root_dir: str = "runs",
        enable_progress_bar: bool = True,
        seed: NonNegativeInt = 0,
    ) -> None:
        check_choice("", "engine", engine, ("auto", "sequential", "vectorized"))
        check_choice("", "trace_steps", trace_steps, (True, False, "compile"))
        check_choice("", "buffers", buffers, ("average", "server", "client"))
        check_choice("", "on_nonfinite", on_nonfinite, ("stop", "skip"))
        check_choice("", "gradient_clip_algorithm", gradient_clip_algorithm, ("norm", "value"))
        check_choice("", "local_sampling", local_sampling, ("epochs", "replacement"))
        counts = {"local_epochs": local_epochs, "local_steps": local_steps, "cohort_size": cohort_size}
        for name, count in {**counts, "check_val_every_n_rounds": check_val_every_n_rounds}.items():
            if count is not None and (not isinstance(count, int) or count < 1):
                raise ValueError(f"`{name}={count}` must be a whole number of at least 1.")
        if max_rounds < 0:
            raise ValueError(f"`max_rounds={max_rounds}` must be at least 0.")
        if gradient_clip_val is not None and gradient_clip_val <= 0:
            raise ValueError(
                f"`gradient_clip_val={gradient_clip_val}` must be greater than 0, or none for no clipping."
            )
        if local_epochs is not None and local_steps is not None:
            raise ValueError(f"Give `local_epochs={local_epochs}` or `local_steps={local_steps}`, not both.")
        if local_phases is not None and (local_epochs is not None or local_steps is not None or not local_phases):
            raise ValueError(
                f"Give `local_phases`, at least one, or `local_epochs={local_epochs}` or `local_steps={local_steps}`, "
                "not both; on the command line `--trainer.local_epochs null` takes a config's away."
            )
        if "spawn" in strategy or "fork" in strategy:
            raise ValueError(f"`strategy={strategy}` starts processes from a function; use `ddp`, or torchrun.")
        self.fabric = Fabric(
            accelerator=accelerator, devices=devices, num_nodes=num_nodes, strategy=strategy, precision=precision
        )
        self._watch = ProcessWatch(self.fabric, self._how_to_go_on)
        self.precision, self.max_rounds, self.participation = precision, max_rounds, own(participation)
        self.engine_name, self.cohort_size, self.trace_steps = engine, cohort_size, trace_steps
        phases = [LocalPhase(**phase) if isinstance(phase, dict) else phase for phase in local_phases or ()]
        phases = phases or [LocalPhase(epochs=local_epochs, steps=local_steps)]
        self.work = LocalWork(phases, gradient_clip_val, gradient_clip_algorithm, local_sampling)
        self.aggregator, self.client_state, self.buffers = own(aggregator), client_state, buffers
        self.system, self.simulated_seconds = system, dict[str, float]()
        self.participation.system = system
        self.on_nonfinite, self.check_val_every_n_rounds = on_nonfinite, check_val_every_n_rounds
        self.seed, self.checkpoint, self.default_root_dir = seed, own(checkpoint), Path(default_root_dir)
        self._server_optimizer = server_optimizer
        listed = callbacks if isinstance(callbacks, list) else [callbacks] if callbacks else []
        for callback in listed:
            if not isinstance(callback, FederatedCallback | SaveConfigCallback):
                raise ValueError(
                    f"`callbacks` takes FederatedCallbacks, not {callback!r}: its hooks would not be called."
                )
        # The CLI's config saver only sees `setup`.
        self.callbacks = list(listed)
        self.stack = [callback for callback in listed if isinstance(callback, FederatedCallback)]
        self.display = ProgressDisplay(enabled=enable_progress_bar and self.is_global_zero)
        self.summary = RunSummary()
        self._csv = logger is not False
        self._own_logger: CSVLogger | None = None
        self.loggers: list[Logger] = (
            list(logger) if isinstance(logger, list) else [] if isinstance(logger, bool) else [logger]
        )
        self.log_dir = ""
        self.current_round, self.total_refused, self.interrupted = 0, 0, 0
        self.should_stop, self._launched = False, False
        self.server_buffers, self.server_counters = torch.empty(0), list[Tensor]()
        self.settings: dict[str, Any] = {}
        self.client_model: ClientModel
        self.data: FederatedData
        self.server: Server
        self.store: ClientStore
        self.ledger: Ledger
        self.engine: LocalEngine
        self.learning_rates: LearningRates
        self.val_dataloaders: Any = None

    # -- Lightning's entry points -----------------------------------------------------------------------------------

    def fit(self, model: LightningModule, datamodule: LightningDataModule, ckpt_path: str | None = None) -> None:
        """Run the full federated optimization.

        Args:
            model: any LightningModule with automatic optimization.
            datamodule: a FederatedDataModule.
            ckpt_path: a checkpoint to resume, or "last" for the newest of default_root_dir.

        Raises:
            KeyboardInterrupt: SIGINT has ended the run, after a round and with a checkpoint.
            SystemExit: SIGTERM has.
        """
        with self._watch.guarding():
            self._fit(model, datamodule, ckpt_path)
        hand_on(self.interrupted)

    def _fit(self, model: LightningModule, datamodule: LightningDataModule, ckpt_path: str | None) -> None:
        self.should_stop, self.interrupted = False, 0
        self.current_round, self.total_refused, self.simulated_seconds = 0, 0, {}  # every fit is a run of its own
        self.summary = RunSummary()
        resumed = self._resolve(ckpt_path)
        saved = load_checkpoint(resumed) if resumed is not None else None
        self._prepare(model, datamodule, "fit")
        self._check_stack()
        self._build(model, saved["engine"] if saved is not None else None)
        if resumed is not None and saved is not None:
            check_resumable(saved["settings"], self.settings, resumed)
        self._start_run()
        self._open_store()
        for callback in self.callbacks:
            callback.setup(self, model, stage="fit")  # type: ignore[arg-type]
        if resumed is not None and saved is not None:
            restore_trainer(self, saved, resumed)
        for callback in self.stack:
            callback.on_fit_start(self, model)  # type: ignore[arg-type]
        model.on_fit_start()
        self._logged_in(model.on_train_start)
        with GracefulSignals(self):
            self._run_rounds(model)
        self.interrupted = max(self.gather_objects(self.interrupted))  # one process may be told for all
        self.client_model.bind(self.server.vector.clone())
        self.client_model.load_buffers(self.server_buffers, self.server_counters)
        model.on_train_end()
        model.on_fit_end()
        for callback in self.stack:
            callback.on_fit_end(self, model)  # type: ignore[arg-type]

    def validate(
        self, model: LightningModule, datamodule: LightningDataModule, ckpt_path: str | None = None
    ) -> dict[str, float]:
        """Evaluate the server's model on the validation set.

        Args:
            model: the module.
            datamodule: its data.
            ckpt_path: a checkpoint, or "last" for the newest of default_root_dir; none for the model as it is.
        """
        with self._watch.guarding():
            return self._evaluate_once(model, datamodule, ckpt_path, "validate")[0]

    def test(
        self, model: LightningModule, datamodule: LightningDataModule, ckpt_path: str | None = None
    ) -> dict[str, float]:
        """Evaluate the server's model on the test set.

        Args:
            model: the module.
            datamodule: its data.
            ckpt_path: a checkpoint, or "last" for the newest of default_root_dir; none for the model as it is.
        """
        with self._watch.guarding():
            return self._evaluate_once(model, datamodule, ckpt_path, "test")[0]

    def predict(
        self, model: LightningModule, datamodule: LightningDataModule, ckpt_path: str | None = None
    ) -> list[Any]:
        """Run the server's model on the prediction set, and write predictions.pt into a new run folder.

        Args:
            model: the module.
            datamodule: its data.
            ckpt_path: a checkpoint, or "last" for the newest of default_root_dir; none for the model as it is.
        """
        with self._watch.guarding():
            _, outputs = self._evaluate_once(model, datamodule, ckpt_path, "predict")
            path = Path(self.log_dir) / f"predictions{self._rank_suffix}.pt"
            torch.save(outputs, path)
        self.display.message(f"Predictions: {path}")
        return outputs

    # -- what callbacks and modules ask -------------------------------------------------------------------------------

    @property
    def num_clients(self) -> int:
        """N."""
        return int(self.data.num_clients)

    @property
    def layout(self) -> Any:
        """The layout of the parameters in the vector, a ParameterLayout."""
        return self.client_model.layout

    def is_evaluation_due(self, round_number: int) -> bool:
        """Whether a round ends with an evaluation."""
        if not self._evaluator.can("validate"):
            return False
        return round_number % self.check_val_every_n_rounds == 0 or round_number == self.max_rounds

    def evaluate_server(self, stage: Stage, dataloaders: Any) -> dict[str, float]:
        """Metrics of the server's model as it is now."""
        self.client_model.bind(self.server.vector)
        self.client_model.load_buffers(self.server_buffers, self.server_counters)
        return self._evaluator.run(stage, dataloaders)[0]

    def client_buffers(self, ids: Tensor) -> Tensor:
        """The buffers that clients ``ids`` [C] start from, [C, B]: the server's, or their own where they keep them."""
        shared = self.server_buffers.expand(len(ids), -1)
        if self.buffers != "client" or not self.server_buffers.numel():
            return shared
        kept = self.store.gather("buffers", ids)
        return torch.where(torch.isnan(kept).any(dim=1, keepdim=True), shared, kept)  # nan: never written

    def evaluate_clients(self, ids: Tensor, params: Tensor) -> list[dict[str, float]]:
        """Validation metrics of clients ``ids`` [C], each with its own parameters [C, D] on its own test examples."""
        batch_size = int(getattr(self.data, "eval_batch_size", 0)) or 1024
        indices, sizes = self.data.client_test_indices(ids)
        rows = zip(params, self.client_buffers(ids), indices, sizes.tolist(), strict=True)
        found = []
        for parameters, buffers, positions, size in rows:
            self.client_model.bind(parameters)
            self.client_model.load_buffers(buffers, self.server_counters)
            batches = (self.data.gather_test(part[None]) for part in positions[:size].split(batch_size))
            found.append(self._evaluator.run_alone("validate", (tree_map(lambda x: x[0], b) for b in batches)))
        return found

    def server_state_dict(self) -> dict[str, Tensor]:
        """The module's state dict with the server's parameters and buffers."""
        self.client_model.bind(self.server.vector)
        self.client_model.load_buffers(self.server_buffers, self.server_counters)
        return self.client_model.module.state_dict()

    def load_frozen_state(self, state_dict: dict[str, Tensor]) -> None:
        """Take the parameters that are not trained, and the buffers, from a checkpoint's state dict."""
        self.client_model.bind(self.server.vector.clone())
        self.client_model.module.load_state_dict(state_dict)

    def _ask_first_process(self, question: Callable[[], Any]) -> Any:
        """The first process's answer, on all processes."""
        return self.fabric.broadcast(question() if self.is_global_zero else None)

    def gather_objects(self, value: Any) -> list[Any]:
        """The values of all processes, in order of rank; every process must call it."""
        return gather_objects(self.fabric, value)

    # -- steps of fit -------------------------------------------------------------------------------------------------

    def _prepare(self, model: LightningModule, datamodule: LightningDataModule, stage: str) -> None:
        """Start the processes, check and place data and model."""
        check_writable(self.default_root_dir)
        if self.fabric.world_size > 1 and not self._launched:
            self.fabric.launch()
            self._launched = True
        if not isinstance(datamodule, FederatedData):
            raise ValueError(
                f"{type(datamodule).__name__} does not know clients: give a `FederatedDataModule`, whose `source` can "
                "be any dataset (`DatasetSource`)."
            )
        if not model.automatic_optimization:
            raise ValueError(
                f"{type(model).__name__} uses manual optimization; a client's steps are taken by the trainer."
            )
        with self.fabric.rank_zero_first():
            datamodule.prepare_data()
        datamodule.setup(stage)
        model.trainer = self  # type: ignore[assignment]
        model.setup(stage)
        model.configure_model()
        module = self.fabric.strategy.precision.convert_module(model)
        self.fabric.to_device(module)
        self.data = datamodule
        dtype = torch.float64 if self.precision == "64-true" else torch.float32
        self.data.place(self.fabric.device, dtype)
        terms = [c for c in self.stack if overrides(c, "client_loss")]
        self.client_model = ClientModel(
            model,
            autocast=self.fabric.autocast,
            convert=self.fabric.strategy.precision.convert_input,
            loss_terms=tuple(c.client_loss for c in terms),
            features=tuple(dict.fromkeys(name for c in terms for name in c.features)),
            global_features=tuple(dict.fromkeys(name for c in terms for name in c.global_features)),
        )
        self._evaluator = Evaluator(self.client_model, self.fabric)
        self.server_buffers = self.client_model.flat_buffers()
        self.server_counters = [counter.clone() for counter in self.client_model.counters]

    def _check_stack(self) -> None:
        """Refuse settings and combinations that have no meaning, before any work."""
        self.participation.check(self.num_clients)
        if self.system is not None:
            self.system.check(self.num_clients)
        frozen = any(self.client_model.names_of(phase.parameters) is not None for phase in self.work.phases)
        check_stack(self.stack, self.layout, frozen)
        ignored = [hook for hook in _UNCALLED_HOOKS if is_overridden(hook, self.client_model.module)]
        if ignored:
            rank_zero_warn(
                f"{type(self.client_model.module).__name__} overrides {', '.join(ignored)}, which lfl does not call: "
                "local steps are taken for many clients at once."
            )

    def _start_run(self) -> None:
        """A new folder for this run, with the partition and the loggers in it."""
        folder = str(new_run_folder(self.default_root_dir)) if self.is_global_zero else ""
        self.log_dir = self.fabric.broadcast(folder)
        partition = getattr(self.data, "partition", None)
        if self.is_global_zero and partition is not None:
            partition.save(Path(self.log_dir) / "partition.pt")
        self.loggers = [logger for logger in self.loggers if logger is not self._own_logger]
        if self._csv:
            self._own_logger = CSVLogger(self.log_dir)
            self.loggers.insert(0, self._own_logger)

    def _open_store(self) -> None:
        self.store = ClientStore(
            self.num_clients,
            self.client_state,
            self.fabric.device,
            Path(self.log_dir) / "clients" if self.client_state == "memmap" else None,
            shard=self.global_rank,
        )
        if self.buffers == "client" and self.server_buffers.numel():
            self.store.declare("buffers", self.server_buffers.numel(), self.server_buffers.dtype, fill=float("nan"))

    def _build(self, model: LightningModule, resumed_engine: dict[str, Any] | None) -> None:
        self.server = Server(self.client_model.flat_parameters(), self._server_optimizer)
        self.ledger = Ledger(self.num_clients)
        if self.checkpoint is not None:
            self.checkpoint.start()
        self.learning_rates = LearningRates(model)
        self.val_dataloaders = self.data.val_dataloader() if self._evaluator.can("validate") else None
        before = resumed_engine if resumed_engine is not None and self.engine_name == "auto" else {}
        engine = EngineSettings(
            self.engine_name,
            cohort_size=self.cohort_size or before.get("cohort_size"),
            clients_per_round=len(self.participation.select(1, self.num_clients, self.seed)),
            trace_steps=self.trace_steps,
            resumed=before.get("name"),
        )
        self.engine = build_engine(
            engine, self.client_model, self.data, self.work, self.stack, self.seed, self._ask_first_process
        )
        self.settings = settings_of(self)

    def _run_rounds(self, model: LightningModule) -> None:
        loop = FederatedLoop(self)
        self.display.message(self._headline())
        if self.engine.compiles:
            self.display.message("The first rounds compile the local step, for seconds per shape of batch.")
        if self.current_round >= self.max_rounds:
            self.display.message(
                f"Nothing to do: round {self.current_round} of `max_rounds={self.max_rounds}` is done; raise "
                "`trainer.max_rounds` to go on."
            )
        self.display.start(self.current_round + 1, self.max_rounds)
        self.summary.start()
        try:
            stopping = any(self.gather_objects(self.should_stop))
            while self.current_round < self.max_rounds and not stopping:
                logged = self._logged_in(model.on_train_epoch_start)
                round = loop.run_round(self.current_round + 1)
                self.current_round = round.number
                logged |= self._logged_in(model.on_train_epoch_end)
                metrics = {name: float(value) for name, value in {**logged, **round.metrics}.items()}
                self.learning_rates.step(round.number, metrics, self.is_evaluation_due(round.number))
                self._write(round.number, metrics)
                # Processes are asked to stop at different moments: they agree by the sums of a round.
                stopping = self.should_stop if self.world_size == 1 else round.is_last
            if self.checkpoint is not None:
                self.checkpoint.at_end(self)
        finally:
            self.display.stop()
            for logger in self.loggers:
                logger.finalize("success")
        if self.current_round:
            self.display.show(self.summary.render(self.log_dir))

    def _logged_in(self, hook: Callable[[], Any]) -> dict[str, Tensor]:
        """What a hook of the module logs."""
        with self.client_model.recording() as recorder:
            recorder.start()
            hook()
            return dict(recorder.values)

    def _write(self, round_number: int, metrics: dict[str, float]) -> None:
        """Log a round, then make the checkpoint: what a checkpoint promises has been written before it."""
        if self.is_global_zero:
            for logger in self.loggers:
                logger.log_metrics(metrics, step=round_number)
        self.summary.update(round_number, metrics)
        self.display.round_done(round_number, metrics)
        if self.checkpoint is not None:
            self.checkpoint.after_round(self, round_number, metrics, is_final=round_number == self.max_rounds)

    def _headline(self) -> str:
        cohort = f", cohorts of {self.engine.cohort_size}" if self.engine.name == "vectorized" else ""
        algorithms = [type(c).__name__ for c in self.stack if not c.observes] or ["FedAvg"]
        observers = [type(c).__name__ for c in self.stack if c.observes]
        stack = " + ".join(algorithms + observers)
        return (
            f"{stack}: {self.num_clients} clients, D = {self.layout.dim:,}, {self.engine.name} engine{cohort}, "
            f"{self.fabric.device}; run folder {self.log_dir}"
        )

    def _how_to_go_on(self) -> str:
        last = Path(self.log_dir) / "checkpoints" / "last.ckpt"
        if not self.log_dir or not last.exists():
            return "There is no checkpoint of this run."
        return f"The last checkpoint is {last}: go on from it with `--ckpt_path last`."

    def _resolve(self, ckpt_path: str | None) -> Path | None:
        if ckpt_path is None:
            return None
        return find_last(self.default_root_dir) if ckpt_path == "last" else Path(ckpt_path)

    def _evaluate_once(
        self, model: LightningModule, datamodule: LightningDataModule, ckpt_path: str | None, stage: Stage
    ) -> tuple[dict[str, float], list[Any]]:
        path = self._resolve(ckpt_path)
        state = load_checkpoint(path) if path is not None else None
        self._prepare(model, datamodule, stage)
        if not self._evaluator.can(stage):
            raise ValueError(f"{type(model).__name__} has no step for `{stage}`.")
        if state is not None:
            load_weights(model, state, path)
        self._start_run()
        for callback in self.callbacks:
            callback.setup(self, model, stage=stage)  # type: ignore[arg-type]
        loaders = getattr(datamodule, f"{'val' if stage == 'validate' else stage}_dataloader")()
        metrics, outputs = self._evaluator.run(stage, loaders)
        round_number = state["round"] if state is not None else 0
        for logger in self.loggers if metrics and self.is_global_zero else []:
            logger.log_metrics(metrics, step=round_number)
            logger.finalize("success")
        if metrics:
            self.summary.update(round_number, metrics)
            self.display.show(metrics_table(metrics))
        return metrics, outputs

    @property
    def _rank_suffix(self) -> str:
        return f".rank{self.global_rank}" if self.world_size > 1 else ""


def metrics_table(metrics: dict[str, float]) -> Any:
    """A rich table of an evaluation."""
    from rich import box
    from rich.table import Table

    table = Table("metric", "value", box=box.SIMPLE_HEAD)
    for name, value in metrics.items():
        table.add_row(name, f"{value:.6g}")
    return table
