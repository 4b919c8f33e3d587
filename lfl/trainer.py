"""``FederatedTrainer``, the class that users call: federated rounds, with the interface of Lightning's trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from jsonargparse.typing import NonNegativeInt, PositiveFloat, PositiveInt
from lightning.fabric import Fabric
from lightning.pytorch import Callback, LightningDataModule, LightningModule
from lightning.pytorch.cli import SaveConfigCallback
from lightning.pytorch.loggers import Logger
from torch.optim import Optimizer

from lfl.aggregation import Aggregator, MeanAggregator
from lfl.arguments import fresh_default, lazy_default
from lfl.building import RunBuilder
from lfl.callback import FederatedCallback, overrides
from lfl.checkpointing import Checkpointing
from lfl.client.evaluation import Evaluator, Stage
from lfl.client.foresee import layout_of
from lfl.client.model import ClientModel
from lfl.client.work import LocalPhase
from lfl.data.base import FederatedData
from lfl.facade import LightningFacade
from lfl.generators import HostGenerators
from lfl.loggers import CSVLogger
from lfl.loop import FederatedLoop
from lfl.participation import Participation, UniformParticipation
from lfl.processes.group import Processes
from lfl.processes.signals import GracefulSignals, raise_signal_again
from lfl.processes.watch import ProcessWatch
from lfl.reporting.progress import ProgressDisplay
from lfl.reporting.summary import metrics_table
from lfl.run import Run
from lfl.settings import Settings, local_work
from lfl.storage.checkpoint_file import CheckpointError, check_writable, find_last, load_checkpoint, new_run_folder
from lfl.storage.fingerprint import check_resumable
from lfl.system import System


class FederatedTrainer(LightningFacade):
    """Trains a LightningModule on the clients of a federated data module, round by round.

    Args:
        accelerator: cpu, gpu, ... or auto, as in Lightning.
        devices: number of processes, one per device; they share the clients of a round.
        num_nodes: number of machines.
        strategy: how several processes work together, as in Lightning (ddp); auto for one device.
        precision: 32-true, 64-true, or bf16-mixed.
        max_rounds: total number of rounds, including those before a checkpoint that is resumed.
        participation: chooses the clients of each round.
        local_epochs: passes of a client over its data in a round; 1 if local_steps is not given.
        local_steps: optimizer steps of a client in a round, instead of local_epochs.
        local_phases: phases that each train some parameters and freeze the rest; replace local_epochs and local_steps.
        local_sampling: take batches from shuffled epochs, or draw each batch with replacement.
        engine: sequential (one client at a time), vectorized (cohorts in one batched computation), or auto.
        cohort_size: clients trained together by the vectorized engine; none for as many as fit (in 256 MB of
            parameters, or in a GPU's memory), at most 128.
        trace_steps: record the local step once per batch shape and replay it without Python, which is faster. The
            training step may depend on nothing but its batch and parameters. Same numbers to the bit, or to rounding
            for plain SGD. With compile, torch.compile makes kernels of the recording (on a GPU, CUDA graphs): same
            numbers to rounding, after some seconds per batch shape.
        aggregator: combines the clients' updates into one.
        server_optimizer: torch optimizer that moves the server's model along the aggregate; SGD with lr 1 is FedAvg.
        system: simulates how long uploads (sim/uplink_time) or rounds (sim/time) take; none for no simulation.
        client_state: where to keep what clients store between rounds: device memory, host memory, or files (memmap).
        buffers: BatchNorm statistics are averaged, kept unchanged by the server, or kept by each client.
        gradient_clip_val: limit for local gradients, including the algorithms' corrections; none for no clipping.
        gradient_clip_algorithm: clip the norm of the gradient, or each value.
        on_nonfinite: if a client's update has NaN or inf, stop the run, or skip and count the update.
        check_val_every_n_rounds: number of rounds between evaluations; the last round is always evaluated.
        callbacks: the algorithm, a stack of FederatedCallbacks; the first one is nearest to the gradient.
        logger: loggers in addition to the CSV files; false for none, and no CSV files.
        checkpoint: decides when checkpoints are written; none for never.
        default_root_dir: folder in which each run makes a new folder.
        enable_progress_bar: show a progress bar, and a table at the end.
        seed: seed of all random draws but the partition (data.seed); on the command line, use seed_everything.
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
        participation: Participation = lazy_default(UniformParticipation, clients_per_round=10),
        local_epochs: PositiveInt | None = None,
        local_steps: PositiveInt | None = None,
        local_phases: list[LocalPhase] | None = None,
        local_sampling: Literal["epochs", "replacement"] = "epochs",
        engine: Literal["auto", "sequential", "vectorized"] = "auto",
        cohort_size: PositiveInt | None = None,
        trace_steps: bool | Literal["compile"] = False,
        aggregator: Aggregator = lazy_default(MeanAggregator),
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
        checkpoint: Checkpointing | None = lazy_default(Checkpointing),
        default_root_dir: str = "runs",
        enable_progress_bar: bool = True,
        seed: NonNegativeInt = 0,
    ) -> None:
        # These start processes by calling a function; the processes of a run are started anew with the whole script.
        if "spawn" in strategy or "fork" in strategy:
            raise ValueError(f"`strategy={strategy}` starts processes from a function; use `ddp`, or torchrun.")
        self._settings = Settings(
            seed=seed,
            precision=precision,
            max_rounds=max_rounds,
            participation=fresh_default(participation),
            work=local_work(
                local_epochs, local_steps, local_phases, gradient_clip_val, gradient_clip_algorithm, local_sampling
            ),
            engine=engine,
            cohort_size=cohort_size,
            trace_steps=trace_steps,
            aggregator=fresh_default(aggregator),
            server_optimizer=server_optimizer,
            system=system,
            client_state=client_state,
            buffer_policy=buffers,
            on_nonfinite=on_nonfinite,
            check_val_every_n_rounds=check_val_every_n_rounds,
            checkpointing=fresh_default(checkpoint),
        )
        self._settings.participation.system = system
        # The command line adds Lightning's config saver, which is not a FederatedCallback: only its `setup` is called.
        self.callbacks = _as_list(callbacks)
        self.fabric = Fabric(
            accelerator=accelerator, devices=devices, num_nodes=num_nodes, strategy=strategy, precision=precision
        )
        self.default_root_dir = Path(default_root_dir)
        self.log_dir = ""  # the folder of the newest run or evaluation
        self.display = ProgressDisplay(enabled=enable_progress_bar and self.is_global_zero)
        self.loggers = [] if isinstance(logger, bool) else list(logger) if isinstance(logger, list) else [logger]
        self._writes_csv = logger is not False
        self._csv_logger: CSVLogger | None = None
        self._processes = Processes(self.fabric)
        self._are_launched = False
        self._watch = ProcessWatch(self.fabric, self._how_to_go_on)

    # -- Lightning's entry points -----------------------------------------------------------------------------------

    def fit(self, model: LightningModule, datamodule: LightningDataModule, ckpt_path: str | None = None) -> None:
        """Run the full federated optimization.

        Args:
            model: any LightningModule with automatic optimization.
            datamodule: a FederatedDataModule.
            ckpt_path: checkpoint to resume, or "last" for the newest one in default_root_dir.

        Raises:
            KeyboardInterrupt: SIGINT stopped the run after a round, with a checkpoint.
            SystemExit: SIGTERM stopped the run after a round, with a checkpoint.
        """
        with self._guarded(model, datamodule, "fit"):
            signal = self._fit(model, datamodule, ckpt_path)
        raise_signal_again(signal)

    def _fit(self, model: LightningModule, datamodule: LightningDataModule, ckpt_path: str | None) -> int:
        """Run the rounds; returns the number of the signal that stopped the run, 0 if none did."""
        self._run = None  # if this run is refused, `trainer.run` is not the one before it
        path = self._resolve(ckpt_path)
        saved = load_checkpoint(path) if path is not None else None
        client_model, data = self._prepare(model, datamodule, "fit")
        builder = RunBuilder(self._settings, self.stack, client_model, data, self._processes)
        builder.check()
        training = builder.training(saved["engine"] if saved is not None else {})
        if saved is not None and path is not None:
            check_resumable(saved["settings"], builder.description, path)
        # Everything that could be refused has been checked: a refused run leaves no folder.
        folder = self._open_folder(data)
        run = self._run = builder.build(training, folder, self.loggers, self.display)
        for callback in self.callbacks:
            callback.setup(self, model, stage="fit")  # type: ignore[arg-type]
        # First `on_run_start`, where callbacks make their state and declare slots, then the state of the checkpoint.
        for federated in run.callbacks:
            with run.store.claimed_by(federated):
                federated.on_run_start(run)
        if saved is not None and path is not None:
            run.load_state_dict(saved, path.resolve().parent.parent)
        run.load_server_model()  # hooks see the server's model
        for callback in run.callbacks:
            callback.on_fit_start(self, model)  # type: ignore[arg-type]
        run.call_hook("on_fit_start")
        run.call_hook("on_train_start")
        run.try_checkpoint(is_begun=False)
        with GracefulSignals(run.stop_request, self.display.message):
            self._run_rounds(run)
        signal = max(self._processes.gather(run.stop_request.signal))  # perhaps only one process got it
        # To a copy: the user may train the module on, and x stays the server's.
        client_model.load(run.server.vector.clone(), run.server.buffers, run.server.counters)
        for hook in ("on_train_end", "on_fit_end"):
            client_model.call_hook(hook)
        for callback in run.callbacks:
            callback.on_fit_end(self, model)  # type: ignore[arg-type]
        return signal

    def validate(
        self, model: LightningModule, datamodule: LightningDataModule, ckpt_path: str | None = None
    ) -> dict[str, float]:
        """Evaluate the server's model on the validation set.

        Args:
            model: the module.
            datamodule: its data.
            ckpt_path: checkpoint, or "last" for the newest one in default_root_dir; none for the model as it is.
        """
        with self._guarded(model, datamodule, "validate"):
            return self._evaluate_once(model, datamodule, ckpt_path, "validate")[0]

    def test(
        self, model: LightningModule, datamodule: LightningDataModule, ckpt_path: str | None = None
    ) -> dict[str, float]:
        """Evaluate the server's model on the test set.

        Args:
            model: the module.
            datamodule: its data.
            ckpt_path: checkpoint, or "last" for the newest one in default_root_dir; none for the model as it is.
        """
        with self._guarded(model, datamodule, "test"):
            return self._evaluate_once(model, datamodule, ckpt_path, "test")[0]

    def predict(
        self, model: LightningModule, datamodule: LightningDataModule, ckpt_path: str | None = None
    ) -> list[Any]:
        """Run the server's model on the prediction set, and write predictions.pt into a new run folder.

        Args:
            model: the module.
            datamodule: its data.
            ckpt_path: checkpoint, or "last" for the newest one in default_root_dir; none for the model as it is.
        """
        with self._guarded(model, datamodule, "predict"):
            _, outputs = self._evaluate_once(model, datamodule, ckpt_path, "predict")
            suffix = f".rank{self.global_rank}" if self.world_size > 1 else ""
            path = Path(self.log_dir) / f"predictions{suffix}.pt"
            torch.save(outputs, path)
        self.display.message(f"Predictions: {path}")
        return outputs

    # -- what both need -----------------------------------------------------------------------------------------------

    @property
    def stack(self) -> list[FederatedCallback]:
        """The algorithm: the FederatedCallbacks among ``callbacks``, in order."""
        return [callback for callback in self.callbacks if isinstance(callback, FederatedCallback)]

    @contextmanager
    def _guarded(self, model: LightningModule, datamodule: LightningDataModule, stage: str) -> Iterator[None]:
        """A run that leaves nothing behind: no process, and no trace in the generators of users."""
        with self._watch.guarding(), HostGenerators(*model.modules()).kept():
            try:
                yield
            finally:
                if isinstance(datamodule, LightningDataModule):
                    datamodule.teardown(stage)

    def _prepare(
        self, model: LightningModule, datamodule: LightningDataModule, stage: str
    ) -> tuple[ClientModel, FederatedData]:
        """Start the processes, check the arguments, and put data and model on the device."""
        check_writable(self.default_root_dir)
        if self.world_size > 1 and not self._are_launched:
            self.fabric.launch()
            self._are_launched = True
        if not isinstance(datamodule, FederatedData):
            raise ValueError(
                f"{type(datamodule).__name__} does not know clients: give a `FederatedDataModule`, whose `source` can "
                "be any dataset (`DatasetSource`)."
            )
        if not model.automatic_optimization:
            raise ValueError(
                f"{type(model).__name__} uses manual optimization; a client's steps are taken by the trainer."
            )
        # One process after the other, so that only the first one downloads.
        with self.fabric.rank_zero_first():
            datamodule.prepare_data()
        datamodule.setup(stage)
        model.trainer = self  # type: ignore[assignment]
        model.setup(stage)
        model.configure_model()
        module = self.fabric.strategy.precision.convert_module(model)
        self.fabric.to_device(module)
        datamodule.place(self.device, torch.float64 if self._settings.precision == "64-true" else torch.float32)
        # Outside of `fit` no parameter is trained, and none will be.
        return self._client_model(model, self.max_rounds if stage == "fit" else 0), datamodule

    def _client_model(self, model: LightningModule, rounds: int) -> ClientModel:
        terms = [c for c in self.stack if overrides(c, "client_loss")]
        return ClientModel(
            model,
            autocast=self.fabric.autocast,
            convert=self.fabric.strategy.precision.convert_input,
            loss_terms=tuple(c.client_loss for c in terms),
            features=tuple(dict.fromkeys(name for c in terms for name in c.features)),
            global_features=tuple(dict.fromkeys(name for c in terms for name in c.global_features)),
            layout=layout_of(model, rounds),
        )

    def _open_folder(self, data: FederatedData) -> Path:
        """Make a new run folder, save the partition in it, and direct the CSV logger to it."""
        self.log_dir = self._processes.ask_first(lambda: str(new_run_folder(self.default_root_dir)))
        folder = Path(self.log_dir)
        partition = getattr(data, "partition", None)
        if self.is_global_zero and partition is not None:
            partition.save(folder / "partition.pt")
        self.loggers = [logger for logger in self.loggers if logger is not self._csv_logger]
        if self._writes_csv:
            self._csv_logger = CSVLogger(folder)
            self.loggers.insert(0, self._csv_logger)
        return folder

    def _resolve(self, ckpt_path: str | None) -> Path | None:
        if ckpt_path is None:
            return None
        return find_last(self.default_root_dir) if ckpt_path == "last" else Path(ckpt_path)

    def _how_to_go_on(self) -> str:
        """A sentence for errors: where the last checkpoint is."""
        last = Path(self.log_dir) / "checkpoints" / "last.ckpt"
        if not self.log_dir or not last.exists():
            return "There is no checkpoint of this run."
        return f"The last checkpoint is {last}: go on from it with `--ckpt_path last`."

    # -- steps of fit -------------------------------------------------------------------------------------------------

    def _run_rounds(self, run: Run) -> None:
        """Run the loop and show its progress to the user."""
        loop = FederatedLoop(run)
        done = run.progress.round
        self.display.message(run.headline)
        if run.engine.compiles:
            self.display.message("The first rounds compile the local step, for seconds per shape of batch.")
        if done >= run.max_rounds:
            self.display.message(
                f"Nothing to do: round {done} of `max_rounds={run.max_rounds}` is done; raise `trainer.max_rounds` to "
                "go on."
            )
        self.display.start(done + 1, run.max_rounds)
        run.summary.start()
        try:
            loop.run_rounds()
        finally:
            self.display.stop()
            for logger in run.loggers:
                logger.finalize("success")
        if run.progress.round:
            self.display.show(run.summary.render(self.log_dir))

    # -- evaluation ---------------------------------------------------------------------------------------------------

    def _evaluate_once(
        self, model: LightningModule, datamodule: LightningDataModule, ckpt_path: str | None, stage: Stage
    ) -> tuple[dict[str, float], list[Any]]:
        """Run the steps of a stage once, in a new run folder; returns metrics and outputs."""
        path = self._resolve(ckpt_path)
        state = load_checkpoint(path) if path is not None else None
        client_model, data = self._prepare(model, datamodule, stage)
        evaluator = Evaluator(client_model, self._processes, self._settings.seed)
        if not evaluator.can(stage):
            raise ValueError(f"{type(model).__name__} has no step for `{stage}`.")
        if state is not None:
            _load_weights(model, state, path)
        self._open_folder(data)
        for callback in self.callbacks:
            callback.setup(self, model, stage=stage)  # type: ignore[arg-type]
        loaders = getattr(datamodule, f"{'val' if stage == 'validate' else stage}_dataloader")()
        metrics, outputs = evaluator.run(stage, loaders)
        for logger in self.loggers if metrics and self.is_global_zero else []:
            logger.log_metrics(metrics, step=state["round"] if state is not None else 0)
            logger.finalize("success")
        if metrics:
            self.display.show(metrics_table(metrics))
        return metrics, outputs


def _as_list(callbacks: list[FederatedCallback] | FederatedCallback | None) -> list[Callback]:
    """The argument ``callbacks`` as a list; raises ValueError for a callback whose hooks would not be called."""
    listed = callbacks if isinstance(callbacks, list) else [callbacks] if callbacks else []
    for callback in listed:
        if not isinstance(callback, FederatedCallback | SaveConfigCallback):
            raise ValueError(f"`callbacks` takes FederatedCallbacks, not {callback!r}: its hooks would not be called.")
    return list(listed)


def _load_weights(module: LightningModule, state: dict[str, Any], path: Path | None) -> None:
    """Load the weights of a checkpoint, for evaluation; raises CheckpointError if they are those of another model."""
    try:
        module.load_state_dict(state["state_dict"])
    except RuntimeError as error:
        reason = " ".join(str(error).split("\n\t")[1:2]).rstrip(". ")
        raise CheckpointError(
            f"The weights of {path} do not fit {type(module).__name__}: {reason}. Use the run's own config.yaml."
        ) from error
