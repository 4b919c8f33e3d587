"""``FederatedTrainer``, the class that users call: federated rounds, with the interface of Lightning's trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import torch
from jsonargparse.typing import NonNegativeInt, PositiveFloat, PositiveInt
from lightning.fabric import Fabric
from lightning.fabric.strategies.launchers.multiprocessing import _MultiProcessingLauncher
from lightning.pytorch import Callback, LightningDataModule, LightningModule
from lightning.pytorch.loggers import Logger
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.trainer.states import TrainerFn, TrainerStatus
from torch.optim import Optimizer

from lfl.aggregation import Aggregator, MeanAggregator
from lfl.arguments import check_number, fresh_default, lazy_default
from lfl.building import RunBuilder
from lfl.callback import FederatedCallback, check_features, overrides
from lfl.checkpointing import Checkpointing
from lfl.client.evaluation import Stage
from lfl.client.foresee import layout_of
from lfl.client.model import ClientModel
from lfl.client.work import LocalPhase
from lfl.coming_from_lightning import says_what_to_use
from lfl.data.base import FederatedData
from lfl.engine.threads import Threads
from lfl.generators import HostGenerators
from lfl.lightning_callbacks import LightningCallbacks, listed, prepare, with_those_of
from lfl.lightning_facade import LightningFacade
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
from lfl.storage.checkpoint_file import (
    find_newest,
    load_checkpoint,
    load_resumable,
    load_weights,
    run_folder_of,
)
from lfl.storage.fingerprint import check_resumable
from lfl.storage.folders import PARTITION_FILE, check_writable, new_run_folder
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
        participation: chooses the clients of each round; by default ten, or all where there are fewer.
        local_epochs: passes of a client over its data in a round; 1 if local_steps is not given.
        local_steps: optimizer steps of a client in a round, instead of local_epochs.
        local_phases: phases that each train some parameters and freeze the rest; replace local_epochs and local_steps.
        local_sampling: take batches from shuffled epochs, or draw each batch with replacement.
        engine: sequential (one client at a time), vectorized (cohorts in one batched computation), or auto.
        cohort_size: clients trained together by the vectorized engine; none for as many as fit (in 256 MB of
            parameters, or in a GPU's memory), at most 128.
        trace_steps: record the local step once per batch shape and replay it without Python, which is faster. Same
            numbers to the bit, or to rounding for plain SGD. With auto, where the training step is seen to depend on
            nothing but its batch and parameters, once a shape has come often; true insists, from the start. With
            compile, torch.compile makes kernels of the recording (on a GPU, CUDA graphs): same numbers to rounding,
            after some seconds per batch shape.
        num_threads: threads with which torch computes; none for OMP_NUM_THREADS or MKL_NUM_THREADS where one is set,
            else for one, or all cores where a trial finds them clearly faster.
        aggregator: combines the clients' updates into one.
        server_optimizer: torch optimizer that moves the server's model along the aggregate; SGD with lr 1 is FedAvg.
        system: simulates how long uploads (sim/uplink_time) or rounds (sim/time) take; none for no simulation.
        client_state: where to keep what clients store between rounds: device memory, host memory, or files (memmap).
        buffers: BatchNorm statistics are averaged, kept unchanged by the server, or kept by each client.
        gradient_clip_val: limit for local gradients, including the algorithms' corrections; none for no clipping.
        gradient_clip_algorithm: clip the norm of the gradient, or each value.
        on_nonfinite: if a client's update has NaN or inf, stop the run, or skip and count the update.
        check_val_every_n_rounds: number of rounds between evaluations; the last round is always evaluated.
        log_every_n_steps: number of rounds between rows in the logs; evaluated rounds are always logged.
        limit_val_batches: at most so many batches of validation, or such a share of them (a float up to 1.0).
        limit_test_batches: the same for testing.
        fast_dev_run: try everything out: one round of one local step (or so many), with as many batches of validation
            and testing, without loggers and checkpoints.
        callbacks: the algorithm, a stack of FederatedCallbacks (the first one is nearest to the gradient), and
            Lightning's callbacks, to which a round is an epoch.
        logger: loggers in addition to the CSV files; false for none, and no CSV files.
        checkpoint: decides when checkpoints are written; none for never.
        default_root_dir: folder in which each run makes a new folder.
        enable_progress_bar: show a progress bar, and a table at the end.
        seed: seed of all random draws but the partition (data.seed); on the command line, use seed_everything.
    """

    @says_what_to_use
    def __init__(
        self,
        *,
        accelerator: str = "auto",
        devices: int | str = 1,
        num_nodes: PositiveInt = 1,
        strategy: str = "auto",
        precision: Literal["32-true", "64-true", "bf16-mixed"] = "32-true",
        max_rounds: NonNegativeInt = 100,
        participation: Participation = lazy_default(UniformParticipation),
        local_epochs: PositiveInt | None = None,
        local_steps: PositiveInt | None = None,
        local_phases: list[LocalPhase] | None = None,
        local_sampling: Literal["epochs", "replacement"] = "epochs",
        engine: Literal["auto", "sequential", "vectorized"] = "auto",
        cohort_size: PositiveInt | None = None,
        trace_steps: bool | Literal["auto", "compile"] = "auto",
        num_threads: PositiveInt | None = None,
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
        log_every_n_steps: PositiveInt = 1,
        limit_val_batches: int | float = 1.0,
        limit_test_batches: int | float = 1.0,
        fast_dev_run: bool | int = False,
        callbacks: list[Callback] | Callback | None = None,
        logger: Logger | list[Logger] | bool = True,
        checkpoint: Checkpointing | None = lazy_default(Checkpointing),
        default_root_dir: str = "runs",
        enable_progress_bar: bool = True,
        seed: NonNegativeInt = 0,
    ) -> None:
        self._writes_csv = logger is not False and not fast_dev_run
        if fast_dev_run:
            if fast_dev_run is not True:
                check_number("", "fast_dev_run", fast_dev_run, least=1, whole=True)
            max_rounds, checkpoint = 1, None
            logger = False if logger is False else DummyLogger()  # as in Lightning: what people call of loggers works
            limit_val_batches = limit_test_batches = int(fast_dev_run)
        # These start processes by calling a function; the processes of a run are started anew with the whole script.
        if "spawn" in strategy or "fork" in strategy or "notebook" in strategy:
            raise ValueError(f"`strategy={strategy}` starts processes from a function; use `ddp`, or torchrun.")
        self._settings = Settings(
            seed=seed,
            precision=precision,
            max_rounds=max_rounds,
            participation=fresh_default(participation),
            work=local_work(
                local_epochs, local_steps, local_phases, gradient_clip_val, gradient_clip_algorithm, local_sampling
            ).at_most(int(fast_dev_run)),
            engine=engine,
            cohort_size=cohort_size,
            trace_steps=trace_steps,
            num_threads=num_threads,
            aggregator=fresh_default(aggregator),
            server_optimizer=server_optimizer,
            system=system,
            client_state=client_state,
            buffer_policy=buffers,
            on_nonfinite=on_nonfinite,
            check_val_every_n_rounds=check_val_every_n_rounds,
            log_every_n_steps=log_every_n_steps,
            limit_val_batches=limit_val_batches,
            limit_test_batches=limit_test_batches,
            checkpointing=fresh_default(checkpoint),
        )
        self._settings.participation.system = system
        self.fast_dev_run = fast_dev_run
        self.num_nodes = num_nodes
        self._own_callbacks = listed(callbacks)
        self.callbacks = list(self._own_callbacks)  # and those of the module, from its first call on
        self._brought: list[Callback] = []
        self.fabric = Fabric(
            accelerator=accelerator, devices=devices, num_nodes=num_nodes, strategy=strategy, precision=precision
        )
        if isinstance(self.fabric.strategy.launcher, _MultiProcessingLauncher):  # Fabric's choice in a notebook
            raise ValueError(
                f"`devices={devices}` in a notebook: processes start with the whole script, so put it into a file, or "
                "use `devices=1`, whose clients are trained together anyway."
            )
        self.default_root_dir = Path(default_root_dir)
        self.log_dir = ""  # the folder of the newest run or evaluation
        self.display = ProgressDisplay(enabled=enable_progress_bar and self.is_global_zero)
        self.loggers = [] if isinstance(logger, bool) else list(logger) if isinstance(logger, list) else [logger]
        self._csv_logger: CSVLogger | None = None
        self._processes = Processes(self.fabric)
        self._threads = Threads(num_threads)
        self._are_launched = False
        self._watch = ProcessWatch(self.fabric, self._how_to_go_on)

    # -- Lightning's entry points -----------------------------------------------------------------------------------

    def fit(
        self, model: LightningModule, datamodule: LightningDataModule, ckpt_path: str | None = None
    ) -> dict[str, float]:
        """Run the full federated optimization.

        Args:
            model: any LightningModule with automatic optimization.
            datamodule: a FederatedDataModule.
            ckpt_path: checkpoint to resume; "last" or "best" for the newest one in default_root_dir.

        Returns:
            The last value of each metric.

        Raises:
            KeyboardInterrupt: SIGINT stopped the run after a round, with a checkpoint.
            SystemExit: SIGTERM stopped the run after a round, with a checkpoint.
        """
        with self._calling(TrainerFn.FITTING, model, datamodule):
            signal = self._fit(model, datamodule, ckpt_path)
        if signal:
            self._status = TrainerStatus.INTERRUPTED
        raise_signal_again(signal)
        return {name: float(value) for name, value in self.callback_metrics.items()}

    def _fit(self, model: LightningModule, datamodule: LightningDataModule, ckpt_path: str | None) -> int:
        """Run the rounds; returns the number of the signal that stopped the run, 0 if none did."""
        self._run = self._evaluated = None  # if this run is refused, `trainer.run` is not the one before it
        path = self._resolve(ckpt_path)
        saved = load_resumable(path) if path is not None else None
        client_model, data, lightning = self._prepare(model, datamodule, "fit")
        builder = RunBuilder(self._settings, self.stack, client_model, data, self._processes, lightning)
        builder.check()
        self._rates = builder.rates
        training = builder.training(saved["engine"] if saved is not None else {}, self._threads.most)
        if saved is not None and path is not None:
            check_resumable(saved["settings"], builder.description, path)
        # Everything that could be refused has been checked: a refused run leaves no folder.
        folder = self._open_folder(data)
        run = self._run = builder.build(training, folder, self.loggers, self.display)
        self._set_up_callbacks(lightning, folder, "fit")
        run.start_callbacks()
        if saved is not None and path is not None:
            run.load_state_dict(saved, run_folder_of(path, saved))
        self._log_configuration(builder.configuration, model)
        run.call_hook("on_fit_start")
        run.call_hook("on_train_start")
        run.try_checkpoint(is_begun=False)
        with GracefulSignals(run.stop_request, self.display.message):
            self._run_rounds(run)
        signal = max(self._processes.gather(run.stop_request.signal))  # perhaps only one process got it
        # To a copy: the user may train the module on, and x stays the server's.
        client_model.load(run.server.vector.clone(), run.server.buffers, run.server.counters)
        for hook in ("on_train_end", "on_fit_end"):
            client_model.call_hook(hook, lightning.call)
        self._tear_down(lightning, model, "fit")
        return signal

    def validate(
        self,
        model: LightningModule | None = None,
        datamodule: LightningDataModule | None = None,
        ckpt_path: str | None = None,
        verbose: bool = True,
    ) -> dict[str, float]:
        """Evaluate the server's model on the validation set, and clients' models where there are some.

        Args:
            model: the module; by default that of the last call.
            datamodule: its data; by default that of the last call.
            ckpt_path: checkpoint; "last" or "best" for the newest one in default_root_dir; none for the model as it is.
            verbose: print a table of the metrics, with a progress bar or without.
        """
        metrics, _ = self._evaluate_once(model, datamodule, ckpt_path, TrainerFn.VALIDATING)
        self._print(metrics if verbose else {})
        return metrics

    def test(
        self,
        model: LightningModule | None = None,
        datamodule: LightningDataModule | None = None,
        ckpt_path: str | None = None,
        verbose: bool = True,
    ) -> dict[str, float]:
        """Evaluate the server's model on the test set, and clients' models where there are some.

        Args:
            model: the module; by default that of the last call.
            datamodule: its data; by default that of the last call.
            ckpt_path: checkpoint; "last" or "best" for the newest one in default_root_dir; none for the model as it is.
            verbose: print a table of the metrics, with a progress bar or without.
        """
        metrics, _ = self._evaluate_once(model, datamodule, ckpt_path, TrainerFn.TESTING)
        self._print(metrics if verbose else {})
        return metrics

    def predict(
        self,
        model: LightningModule | None = None,
        datamodule: LightningDataModule | None = None,
        ckpt_path: str | None = None,
    ) -> list[Any]:
        """Run the server's model on the prediction set, and write predictions.pt into a new run folder.

        Args:
            model: the module; by default that of the last call.
            datamodule: its data; by default that of the last call.
            ckpt_path: checkpoint; "last" or "best" for the newest one in default_root_dir; none for the model as it is.
        """
        _, outputs = self._evaluate_once(model, datamodule, ckpt_path, TrainerFn.PREDICTING)
        suffix = f".rank{self.global_rank}" if self.world_size > 1 else ""
        path = Path(self.log_dir) / f"predictions{suffix}.pt"
        torch.save(outputs, path)
        self.display.message(f"Predictions: {path}")
        return outputs

    # -- what both need -----------------------------------------------------------------------------------------------

    @contextmanager
    def _calling(self, function: TrainerFn, model: LightningModule, datamodule: LightningDataModule) -> Iterator[None]:
        """Surround each call: what users draw afterwards does not depend on it, nor it on what they drew."""
        _federated(datamodule)  # looked at first: dataloaders of Lightning's `fit` stand where the checkpoint does here
        self._function, self._status, self._lightning = function, TrainerStatus.RUNNING, None
        try:
            with self._watch.guarding(), HostGenerators(*model.modules()).kept(), self._threads.kept():
                yield
            self._status = TrainerStatus.FINISHED
        except BaseException as error:
            self._status = TrainerStatus.INTERRUPTED
            self._tell_of(error)
            raise
        finally:  # whatever happens, no process is left behind
            if isinstance(datamodule, LightningDataModule):
                datamodule.teardown(function.value)

    def _tell_of(self, error: BaseException) -> None:
        if self._lightning is not None:
            self._lightning.call("on_exception", error)

    @property
    def stack(self) -> list[FederatedCallback]:
        """The algorithm: the FederatedCallbacks among ``callbacks``, in order."""
        return [callback for callback in self.callbacks if isinstance(callback, FederatedCallback)]

    def _prepare(
        self, model: LightningModule, datamodule: LightningDataModule, stage: str
    ) -> tuple[ClientModel, FederatedData, LightningCallbacks]:
        """Start the processes, check the arguments, and put data and model on the device."""
        check_writable(self.default_root_dir)
        if self.world_size > 1 and not self._are_launched:
            self.fabric.launch()
            self._are_launched = True
        self._threads.start(self.device, max(1, self.world_size // self.num_nodes), self._processes.ask_first)
        data = _federated(datamodule)
        if not model.automatic_optimization:
            raise ValueError(
                f"{type(model).__name__} uses manual optimization; a client's steps are taken by the trainer."
            )
        # One process after the other, so that only the first one downloads.
        with self.fabric.rank_zero_first():
            data.prepare_data()
        data.setup(stage)
        self._module, self._datamodule = model, data
        model.trainer = self  # type: ignore[assignment]
        # Users append to the list; what the module brought to the last call is not theirs.
        added = [c for c in self.callbacks if all(c is not known for known in self._own_callbacks + self._brought)]
        self._own_callbacks += listed(added)
        self.callbacks = with_those_of(model, self._own_callbacks)
        self._brought = [c for c in self.callbacks if all(c is not own for own in self._own_callbacks)]
        self._lightning = LightningCallbacks(self, model, self.callbacks)
        model.setup(stage)
        model.configure_model()
        module = self.fabric.strategy.precision.convert_module(model)
        self.fabric.to_device(module)
        data.place(self.device, torch.float64 if self._settings.precision == "64-true" else torch.float32)
        # Outside of `fit` no parameter is trained, and none will be.
        return self._client_model(model, self.max_rounds if stage == "fit" else 0), data, self._lightning

    def _set_up_callbacks(self, lightning: LightningCallbacks, folder: Path, stage: str) -> None:
        for callback in self.callbacks:
            prepare(callback, folder, stage)
        lightning.call("setup", stage)

    def _tear_down(self, lightning: LightningCallbacks, model: LightningModule, stage: str) -> None:
        lightning.call("teardown", stage)
        model.teardown(stage)

    def _log_configuration(self, configuration: dict[str, Any], model: LightningModule) -> None:
        for logger in self.loggers if self.is_global_zero else ():
            logger.log_hyperparams(configuration)
            logger.log_graph(model)
            logger.save()

    def _client_model(self, model: LightningModule, rounds: int) -> ClientModel:
        terms = [c for c in self.stack if overrides(c, "client_loss")]
        for callback in terms:
            check_features(callback, model)
        return ClientModel(
            model,
            autocast=self.fabric.autocast,
            convert=self.fabric.strategy.precision.convert_input,
            loss_terms=tuple(c.client_loss for c in terms),
            features=tuple(dict.fromkeys(name for c in terms for name in c.features)),
            global_features=tuple(dict.fromkeys(name for c in terms for name in c.global_features)),
            frozen_rows=tuple(dict.fromkeys(name for c in terms for name in c.frozen_rows)),
            layout=layout_of(model, rounds),
        )

    def _open_folder(self, data: FederatedData) -> Path:
        """Make a new run folder, save the partition in it, and direct the CSV logger to it."""
        self.log_dir = self._processes.ask_first(lambda: str(new_run_folder(self.default_root_dir)))
        folder = Path(self.log_dir)
        partition = getattr(data, "partition", None)
        if self.is_global_zero and partition is not None:
            partition.save(folder / PARTITION_FILE)
        self.loggers = [logger for logger in self.loggers if logger is not self._csv_logger]
        for logger in self.loggers:
            if hasattr(logger, "use_folder"):
                logger.use_folder(folder)
        if self._writes_csv:
            self._csv_logger = CSVLogger(folder)
            self.loggers.append(self._csv_logger)  # after the user's, whose first is `self.logger` of the module
        return folder

    def _resolve(self, ckpt_path: str | None) -> Path | None:
        """The file that ``ckpt_path`` names; a ModelCheckpoint of this trainer knows the best of its own run."""
        self.ckpt_path = ckpt_path
        if ckpt_path in ("last", "best"):
            own = getattr(self.checkpoint_callback, "best_model_path", "") if ckpt_path == "best" else ""
            self.ckpt_path = own or str(find_newest(self.default_root_dir, ckpt_path))
        return None if self.ckpt_path is None else Path(self.ckpt_path)

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
        if done:
            self.display.message(f"Going on after round {done}, from {self.ckpt_path}.")
        if run.engine.steps.compiles:
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
                if hasattr(logger, "log_results"):
                    labels = run.data.train_labels
                    draw = partial(run.data.partition.plot, labels.cpu()) if labels is not None else None
                    logger.log_results(run.folder, run.summary.bests, draw)
                logger.finalize("success")
        if run.progress.round:
            self.display.show(run.summary.render(self.log_dir))

    # -- evaluation ---------------------------------------------------------------------------------------------------

    def _evaluate_once(
        self,
        model: LightningModule | None,
        datamodule: LightningDataModule | None,
        ckpt_path: str | None,
        function: TrainerFn,
    ) -> tuple[dict[str, float], list[Any]]:
        """Run the steps of a stage once, in a new run folder; returns metrics and outputs."""
        model, datamodule = model or self._module, datamodule or self._datamodule
        if model is None or datamodule is None:
            missing = "model" if model is None else "datamodule"
            raise ValueError(
                f"`{function.value}` needs a `{missing}`: there was no call before whose own it could take."
            )
        stage = cast(Stage, function.value)
        with self._calling(function, model, datamodule):
            path = self._resolve(ckpt_path)
            state = load_checkpoint(path) if path is not None else None
            client_model, data, lightning = self._prepare(model, datamodule, stage)
            builder = RunBuilder(self._settings, self.stack, client_model, data, self._processes, lightning)
            if not builder.evaluator.can(stage):
                raise ValueError(f"{type(model).__name__} has no step for `{stage}`: define `{stage}_step`.")
            if state is not None:
                load_weights(model, state, path)
            self._evaluated = builder.server
            folder = self._open_folder(data)
            self._set_up_callbacks(lightning, folder, stage)
            own: dict[str, float] = {}
            if stage != "predict":
                own = builder.tested(state, path, folder, self.display, self._threads.most, self._run)
            loaders = self._batches("val" if stage == "validate" else stage)
            metrics, outputs = builder.evaluator.run(stage, loaders)
            metrics |= own
            for logger in self.loggers if metrics and self.is_global_zero else []:
                logger.log_metrics(metrics, step=state["round"] if state is not None else self.current_round)
                logger.finalize("success")
            self._tear_down(lightning, model, stage)
        return metrics, outputs

    def _print(self, metrics: dict[str, float]) -> None:
        if metrics and self.is_global_zero:
            self.display.show(metrics_table(metrics), always=True)


def _federated(datamodule: LightningDataModule) -> FederatedData:
    if isinstance(datamodule, FederatedData):
        return datamodule
    raise ValueError(
        f"{type(datamodule).__name__} does not know clients: give a `FederatedDataModule`, whose `source` can be any "
        "dataset (`DatasetSource`)."
    )
