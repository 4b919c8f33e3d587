"""Choosing how the steps of a run are computed."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor

from lfl.callback import FederatedCallback
from lfl.client.caches import caches_of, fill
from lfl.client.foresee import at_round_1
from lfl.client.model import ClientModel
from lfl.client.probe import probe
from lfl.client.schedule import count_calls
from lfl.client.step import Extras, StepInput, StepTime
from lfl.client.work import LocalWork
from lfl.data.base import FederatedData
from lfl.engine.base import LocalEngine
from lfl.engine.paths import Path, Recording, TraceSteps, why_not_padded, why_not_recorded, why_not_vectorized
from lfl.engine.steps import ALL, Descents
from lfl.engine.timing import StepCost, StepTimer, largest_batch
from lfl.engine.training import LocalTraining
from lfl.engine.trial import Trial, make_trial
from lfl.engine.vectorized import VectorizedEngine

EngineName = Literal["auto", "sequential", "vectorized"]

_COHORT_BYTES = 2**28  # parameters of one cohort, when the user gives no size
_LARGEST_COHORT = 128
_DEVICE_SHARE = 0.6  # of the free memory of a device, for what a cohort needs
_MARGIN = 0.9  # the trial is short and knows nothing of the rest of a round: prefer the simple engine where it is close
_FEWER_CALLS = 0.8  # padding is worth it where it saves a fifth of the calls
# Steps of a shape that are taken before it is recorded, by default: recording takes about as long as it then saves in a
# few hundred steps of a small client, in some tens of a larger one or of a cohort. So it costs little more than what
# has been done so far.
_PATIENCE = {"sequential": 200, "vectorized": 40}
_SHORT = 200  # steps of a run in which nothing can be won
_LONG = 5  # times the patience: a run of so many steps is timed as it will go on, recorded
_JOINS = 1.5  # sums of processes cost what they take when nobody waits, and more: processes are never done together


@dataclass(frozen=True)
class EngineSettings:
    """The engine that the user wants, and how it is to run.

    Args:
        name: ``auto`` is the vectorized engine where the model allows it and a short trial finds it faster.
        cohort_size: clients of a cohort; None for as many as memory allows.
        clients_per_round: about how many there are.
        trace_steps: whether steps are recorded, and compiled; ``auto`` records those that may be, once a shape of
            batches has come often enough.
        max_rounds: how many rounds there are.
        most_threads: threads that torch may use; 1 to leave their number as it is.
        processes: how many share the clients of a round.
        join: seconds that the sums of a round take to meet, with several processes; all of them must call it.
        resumed: the choices that were made before, if a run is resumed; then nothing is timed.
    """

    name: EngineName
    cohort_size: int | None = None
    clients_per_round: int = 10
    trace_steps: TraceSteps = "auto"
    max_rounds: int = 100
    most_threads: int = 1
    processes: int = 1
    join: Callable[[], float] | None = None
    resumed: dict[str, Any] | None = None


def build_training(
    settings: EngineSettings,
    model: ClientModel,
    data: FederatedData,
    work: LocalWork,
    callbacks: list[FederatedCallback],
    seed: int,
    ask: Callable[[Callable[[], Any]], Any] = lambda question: question(),
) -> LocalTraining:
    """Find out what the model's training step does, and choose how its steps are computed.

    Args:
        settings: what the user wants.
        model: the one model of all clients.
        data: the clients' data.
        work: local work of a round.
        callbacks: the stack.
        seed: of all draws.
        ask: answers a question whose answer differs between processes, with the same answer on all of them.

    Raises:
        NoGradientError: no parameter gets a gradient.
        ValueError: ``vectorized`` or ``trace_steps`` was asked for and the model does not allow it; names the reason.
    """
    trial = make_trial(model, data, seed)
    first = at_round_1(model)
    batches, keys = [trial.batch_of(row) for row in range(len(trial))], list(trial.keys)
    first.traits = probe(first, batches, keys)
    if first.traits.changed_attributes and (caches := caches_of(first, batches, keys)):
        for module in (first.module, model.module):
            fill(module, caches)
        first.traits = probe(first, batches, keys)
    model.traits = first.traits
    _warn_of_missing_gradients(model)
    chooser = _Chooser(settings, first, data, work, callbacks, seed, trial, ask)
    # With `auto`, recording is a wish like the engine.
    wanted = settings.trace_steps if settings.name != "auto" else "auto"
    path = chooser.path()
    one_thread = chooser.set_threads(path)
    chooser.compare_processes(path)
    return LocalTraining(model, data, work, callbacks, seed, path, (settings.name, wanted), trial, one_thread)


@dataclass(frozen=True)
class _Chooser:
    """Chooses the first path of a run; the fields are the arguments of ``build_training``, and the trial."""

    settings: EngineSettings
    model: ClientModel
    data: FederatedData
    work: LocalWork
    callbacks: list[FederatedCallback]
    seed: int
    trial: Trial
    ask: Callable[[Callable[[], Any]], Any]

    def path(self) -> Path:
        """The path that the user asked for or, with ``auto``, the faster one of two."""
        name, resumed = self.settings.name, self._resumed
        chosen = (name, resumed.get("name") if name == "auto" else None)
        if "sequential" in chosen or not self._can_vectorize(is_named=name == "vectorized"):
            return self._patient(Path("sequential", recording=self._recording()))
        size = self.settings.cohort_size or self.ask(
            lambda: min(automatic_cohort_size(self.model, self.data, self.seed), self._per_round)
        )
        vectorized = Path("vectorized", size, recording=self._recording())
        is_padding_allowed = name != "auto" or resumed.get("is_padded", True)
        vectorized = self._patient(self._with_padding(vectorized, is_padding_allowed))
        sequential = self._patient(Path("sequential", recording=vectorized.recording))
        if "vectorized" in chosen or self.ask(lambda: self._is_faster(vectorized, sequential)):
            return vectorized
        return sequential

    def set_threads(self, path: Path) -> StepTime | None:
        """Let torch compute with the threads that a resumed run had, or with all of them if that is clearly faster.

        Returns:
            Where the choice fell on several, what a step takes on one.
        """
        most, saved = self.settings.most_threads, self._resumed.get("threads")
        # A run of few steps is over before the trial pays.
        is_short = self._num_calls(path) * self.settings.max_rounds < _SHORT
        if most == 1 or saved == 1 or (is_short and not saved):
            return None
        path, count = self._as_taken(path), min(path.cohort_size, self._per_round)
        timer = self._timer
        number = min(saved, most) if saved else self.ask(lambda: most if timer.are_faster(most, path, count) else 1)
        one: StepTime | None = self.ask(lambda: timer.step_time(path, count)) if number > 1 else None
        torch.set_num_threads(number)
        return one

    def compare_processes(self, path: Path) -> None:
        """Say so where several processes share a round's work in no less time than one takes for all of it."""
        settings = self.settings
        if settings.processes == 1 or settings.join is None or self.model.parameters[0].device.type != "cpu":
            return
        join = settings.join()
        if self.ask(lambda: self._saved_by_sharing(path) < _JOINS * join):
            rank_zero_info(
                f"{settings.processes} processes are no faster than one here: what each saves of a round's work is "
                "less than it takes to join their sums. Use `trainer.devices=1`."
            )

    def _saved_by_sharing(self, path: Path) -> float:
        """Seconds of a round that processes save by training some clients each."""
        _, sizes, steps = self._typical_clients()
        (cost,) = self._costs(path)
        ranks = cost.engine.deal(steps, self.settings.processes)
        parts = (ranks == rank for rank in range(self.settings.processes))
        return cost.of_round(sizes, steps) - max(cost.of_round(sizes[part], steps[part]) for part in parts)

    @property
    def _resumed(self) -> dict[str, Any]:
        return self.settings.resumed or {}

    @property
    def _per_round(self) -> int:
        return max(1, self.settings.clients_per_round)

    def _engine(self, path: Path, model: ClientModel | None = None) -> LocalEngine:
        return path.engine(model or self.model, self.data, self.work, self.callbacks, self.seed)

    def _recording(self) -> Recording:
        """Whether steps are recorded: if that was asked for, or left to us, and the model allows it; says so if not.

        Raises:
            ValueError: it does not, and the user asked for it, and for an engine, by name.
        """
        trace_steps = self.settings.trace_steps
        if trace_steps == "auto":
            return self._resumed.get("recording") is not False and self._is_recorded_by_default()
        reason = why_not_recorded(self.model) if trace_steps else None
        if reason is not None and self.settings.name != "auto":
            raise ValueError(
                f"`trace_steps={str(trace_steps).lower()}` cannot record the step of "
                f"{type(self.model.module).__name__}: {reason}. Leave it out."
            )
        # A side effect has been said: it keeps clients apart, too.
        if reason is not None and self.model.traits.side_effect is None:
            rank_zero_warn(f"The step of {type(self.model.module).__name__} is not recorded: {reason}.")
        return False if reason is not None else trace_steps

    def _is_recorded_by_default(self) -> bool:
        reason = why_not_recorded(self.model)
        # `auto` has said side effects already: they keep clients apart, too. A run that is too short to record anything
        # loses nothing.
        is_said = self.settings.name == "auto" and self.model.traits.side_effect is not None
        if reason is not None and not is_said and self._num_calls(Path()) * self.settings.max_rounds > _SHORT:
            rank_zero_info(f"The step of {type(self.model.module).__name__} is not recorded: {reason}.")
        return reason is None

    def _patient(self, path: Path) -> Path:
        """Let a path that was not asked for by name record a shape of batches when it has come often enough.

        Which steps include their descent must follow from the round and the batch alone: those of batches of the usual
        width, from the round on before which there have been so many.
        """
        if not path.recording or self.settings.trace_steps != "auto":
            return path
        descents, patience = path.descents, _PATIENCE[path.name]
        if descents is not None:
            width = 0 if path.padded_width else self._usual_width
            calls = self._num_calls(path, width or path.padded_width)
            descents = Descents(1 + int(patience // max(1.0, calls)), width)
        return replace(path, patience=patience, descents=descents)

    @property
    def _usual_width(self) -> int:
        """The number of examples of a full batch."""
        size = int(self.data.batch_size)
        return size if self.work.sampling == "replacement" else min(size, int(self.data.client_sizes.max()))

    def _num_calls(self, path: Path, width: int = 0) -> float:
        """The rough number of steps of cohorts in a round; of those with ``width`` examples a batch, if it is given."""
        _, sizes, steps = self._typical_clients()
        if not len(sizes):
            return 0.0
        if width and not path.padded_width and self.work.sampling != "replacement":
            steps = steps * (sizes // width) / ((sizes + self.data.batch_size - 1) // self.data.batch_size)
        cohorts = steps.double().sort(descending=True).values.split(path.cohort_size)
        return sum(float(cohort.max()) for cohort in cohorts)

    def _can_vectorize(self, is_named: bool) -> bool:
        """Whether the vectorized engine can train the model; warns if not.

        Raises:
            ValueError: it cannot, and the user asked for this engine by name.
        """
        model = self.model
        reason = why_not_vectorized(model, self.trial)
        if reason is None:
            return True
        if is_named:
            instead = ", or GroupNorm where that is BatchNorm" if model.traits.changed_buffers else ""
            raise ValueError(
                f"`engine=vectorized` cannot train {type(model.module).__name__}: {reason}. Use `engine=auto`{instead}."
            )
        rank_zero_warn(f"{type(model.module).__name__} is trained one client at a time (sequential engine): {reason}.")
        return False

    def _with_padding(self, path: Path, is_allowed: bool) -> Path:
        """Pad ragged batches where that saves calls and cannot change the loss.

        The decision depends on model, data and work, never on time: padding changes rounding, and a run must be
        repeatable.
        """
        data, engine = self.data, self._engine(path)
        is_even = int(data.client_sizes.min()) == int(data.client_sizes.max())
        path = replace(path, descents=ALL if is_even else None)
        if is_even or self.work.sampling == "replacement" or not is_allowed:
            return path
        _, sizes, steps = self._typical_clients()
        grouped, padded = 0, 0
        for rows in engine.order(torch.arange(len(sizes)), steps, sizes).split(path.cohort_size):
            grouped += count_calls(sizes[rows], steps[rows], data.batch_size)[0]
            padded += int(steps[rows].max())
        if padded > _FEWER_CALLS * grouped:
            return path
        reason = why_not_padded(self.model, self.trial)
        if reason is not None:
            name = type(self.model.module).__name__
            rank_zero_info(f"Batches of {name} are not padded to one length, which would be faster: {reason}.")
            return path
        # Padded batches have few shapes, as even ones have: each shape is recorded, which takes as long as many steps.
        return replace(path, padded_width=min(data.batch_size, int(data.client_sizes.max())), descents=ALL)

    def _typical_clients(self) -> tuple[Tensor, Tensor, Tensor]:
        """Ids, sizes and local steps of as many clients as take part in a round, evenly spaced over the ids."""
        data = self.data
        count = min(self._per_round, data.num_clients)
        ids = torch.linspace(0, data.num_clients - 1, count, dtype=torch.float64).long()
        ids = ids[data.client_sizes[ids] > 0]
        sizes = data.client_sizes[ids]
        return ids, sizes, self.work.num_steps(sizes, data.batch_size)

    def _is_faster(self, vectorized: Path, sequential: Path) -> bool:
        """Whether a round of typical clients is faster vectorized, by timed steps."""
        _, sizes, steps = self._typical_clients()
        if not len(sizes):
            return False
        together, alone = self._costs(vectorized, sequential)
        return together.of_round(sizes, steps) < _MARGIN * alone.of_round(sizes, steps)

    def _costs(self, *paths: Path) -> list[StepCost]:
        most = max(1, len(self._typical_clients()[0]))
        return self._timer.costs(*((self._as_taken(path), min(path.cohort_size, most)) for path in paths))

    def _as_taken(self, path: Path) -> Path:
        """A path as the run will take most of its steps: a short run records nothing."""
        is_long = self._num_calls(path) * self.settings.max_rounds > _LONG * path.patience
        return path if is_long else replace(path, recording=False)

    @property
    def _timer(self) -> StepTimer:
        return StepTimer(self.model, self.data, self.work, self.callbacks, self.seed)


def automatic_cohort_size(model: ClientModel, data: FederatedData, seed: int) -> int:
    """The number of clients whose parameters take 256 MiB, at most 128; on a CUDA device, as many as fit.

    What a client needs on the device is measured: the peak of a step of two clients less that of one.
    """
    row = max(1, model.layout.dim) * model.layout.dtype.itemsize
    device = model.parameters[0].device
    if device.type != "cuda":
        return max(1, min(_LARGEST_COHORT, _COHORT_BYTES // row))
    # The difference leaves out what a step needs however many clients there are.
    each = max(row, _peak(model, data, seed, 2) - _peak(model, data, seed, 1))
    free = torch.cuda.mem_get_info(device)[0]
    return max(1, min(_LARGEST_COHORT, int(_DEVICE_SHARE * free) // (each + 3 * row)))  # values, gradients, updates


def _peak(model: ClientModel, data: FederatedData, seed: int, count: int) -> int:
    """The most bytes that a step of ``count`` clients takes on the device."""
    device = model.parameters[0].device
    batch, keys = largest_batch(data, model, seed, count)
    engine = VectorizedEngine(model.copy(), data, LocalWork(), [], seed, count)
    params = model.flat_parameters().repeat(count, 1)
    anchor = params[0].clone()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    with engine.model.recording(), engine.model.training_only(engine.trained[0]):
        extras = Extras(engine.global_features(batch, keys, anchor), {})
        engine.compute_step(params, StepInput(batch, keys, anchor, extras))
    return int(torch.cuda.max_memory_allocated(device)) - int(before)


def _warn_of_missing_gradients(model: ClientModel) -> None:
    missing = model.traits.without_gradient
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        rank_zero_warn(
            f"No gradient reaches {', '.join(missing[:3])}{more} of {type(model.module).__name__}: the clients leave "
            "these parameters as they are."
        )
