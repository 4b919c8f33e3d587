"""The local training of a run: on a fast path as long as that gives what one client at a time gives."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor

from lfl.callback import FederatedCallback, overrides
from lfl.client.attributes import Same, flags_of, values_of
from lfl.client.model import ClientModel
from lfl.client.probe import probe
from lfl.client.rates import LearningRates
from lfl.client.snapshot import Snapshot
from lfl.client.step import StepTime
from lfl.client.surroundings import Surroundings
from lfl.client.work import LocalWork
from lfl.data.base import FederatedData
from lfl.engine.base import LocalEngine
from lfl.engine.cohorts import cohorts_of
from lfl.engine.graph.traced import TraceError
from lfl.engine.paths import Path, TraceSteps, brief, why_not_padded, why_not_recorded, why_not_vectorized
from lfl.engine.trial import Trial
from lfl.engine.watch import StepSample, StepWatch
from lfl.engine.witness import Difference, Witness
from lfl.generators import HostGenerators
from lfl.round import Cohort, Round

_PLAIN = Path(joint_features=False)
_TRIED = 4  # batches of a sample that a path is tried on
# How many times as long as on one thread, on a machine with nothing else to do, steps on several may take. Beside two
# others that keep two cores busy, those on one thread take twice as long, and those on two more than ten times.
_SLOWER = 3.0


class _Before(NamedTuple):
    """What a cohort's steps may move besides its rows, as it was before them."""

    generators: dict[str, Any]
    snapshot: Snapshot
    buffers: Tensor
    counters: list[Tensor]


class LocalTraining:
    """Trains the clients of each round, and sees to it that their steps are right.

    A faster path than one client at a time is followed as long as it is seen to give the same numbers: what the
    module's hooks change is looked at before every round, and in rounds 1, 2, 4, 8, ... some steps are taken both ways.
    A step that differs is not kept: its cohort is trained again on a simpler path, which the rest of the run stays on.

    Args:
        model: a probed model.
        data: the clients' data.
        work: the local work of a client in a round.
        callbacks: the stack.
        seed: of all draws.
        path: how steps are computed at first.
        named: the engine and the recording that the user asked for by name, which are not left silently; ``auto`` for
            what is left to the run.
        trial: batches to try steps on.
        one_thread: what a step takes on one thread, where several were chosen because they are faster.
        aim: what it is done for, after the module's name in a sentence; empty for the run itself.

    Attributes:
        engine: computes the steps now.
        generation: counts the engines so far.
        frozen: parameters that no client trains now [D] (bool); None for none.
    """

    def __init__(
        self,
        model: ClientModel,
        data: FederatedData,
        work: LocalWork,
        callbacks: list[FederatedCallback],
        seed: int,
        path: Path,
        named: tuple[str, TraceSteps],
        trial: Trial,
        one_thread: StepTime | None = None,
        aim: str = "",
    ) -> None:
        self._model, self._data, self._work, self._callbacks, self._seed = model, data, work, callbacks, seed
        self._path, self._named, self._trial, self._aim = path, named, trial, aim
        self._generators = HostGenerators(*model.module.modules())
        self._round = 0
        self._is_watching = False  # whether the next cohort is watched
        self._threads, self._one_thread = torch.get_num_threads(), one_thread
        self.generation = 0
        self._follow(path)
        self._dealer = self.engine  # all processes must deal clients alike, also if one of them leaves its path

    def aside(self, work: LocalWork, seed: int, aim: str, path: Path | None = None) -> LocalTraining:
        """Make a training of other work on a copy of the module, without callbacks and their terms of the loss.

        Args:
            work: the local work of a client.
            seed: of all draws.
            aim: what it is done for, after the module's name in a sentence.
            path: how steps are computed at first; None for the way in which the run's are now.
        """
        model, path = self._model.copy(with_terms=False), path or self.path
        return LocalTraining(model, self._data, work, [], seed, path, self._named, self._trial, aim=aim)

    # -- a round ----------------------------------------------------------------------------------------------------

    def start_round(self, number: int, is_watched: bool = False) -> None:
        """Look at what the module's hooks have changed, and follow it.

        Args:
            number: of the round.
            is_watched: whether some step is taken both ways, also where the round's number does not ask for it.

        Raises:
            ValueError: a parameter is to be trained that has been no part of the model so far, or the path that the
                user asked for by name allows no such step.
        """
        self._round = number
        self.engine.start_round()
        is_due = number & (number - 1) == 0 or number == self._first_descents
        self._is_watching = is_due or is_watched or self._model.traits.depends_on_rounds
        state = self._module_state()
        if state == self._seen and not self._model.traits.depends_on_rounds:
            return
        self._check_trained()
        traits = self._probe()
        if state == self._seen and traits == self._model.traits:
            return
        self._model.traits = traits
        self._follow(self._possible(self.path))

    def cohorts(self, round: Round, buffers: Tensor, counters: list[Tensor]) -> Iterator[Cohort]:
        """The cohorts of a round's clients, see ``cohorts_of``."""
        return cohorts_of(lambda: self.engine, round, buffers, counters)

    def deal(self, work: Tensor, num_processes: int) -> Tensor:
        """Divide clients among processes: from their expected work [M] to ranks [M], the same on all processes."""
        return self._dealer.deal(work, num_processes)

    def train(self, cohort: Cohort, rates: LearningRates) -> bool:
        """Do the local work of a cohort: its ``values`` and ``buffers`` become the trained ones.

        Returns:
            False if nothing of the cohort has been kept: ``cohorts`` yields the same clients again.
        """
        if self._one_thread is None:
            return self._train(cohort, rates)
        times: list[StepTime] = []
        self.engine.steps.times = times
        is_done = self._train(cohort, rates)
        self._look_at_threads(times)
        return is_done

    def _train(self, cohort: Cohort, rates: LearningRates) -> bool:
        if self._is_plain:
            return self.engine.train(cohort, rates)
        engine = self.engine
        engine.steps.watch = StepWatch(self._model, engine.trained, self._seed, cohort) if self._is_watching else None
        counters = [rows[0] for rows in cohort.counters]
        before = _Before(self._generators.state(), Snapshot(self._model.module), cohort.buffers[0], counters)
        try:
            if not engine.train(cohort, rates):
                return False  # out of memory
            wrong = self._wrong_after(cohort, before)
            if wrong is None:
                self._is_watching = False
                return True
            self._undo(before)
            self._leave_path(*wrong)
        except Difference as difference:
            self._undo(before)
            self._leave_path(self._fastest_right(difference.sample), str(difference))
        except Exception as error:
            if engine.steps.failure is None or engine.steps.failure.error is not error:
                raise
            self._undo(before)
            self._leave_failed_path(error)
        finally:
            engine.steps.watch, engine.steps.failure = None, None
        self._generators.restore(before.generators)
        return False

    def _undo(self, before: _Before) -> None:
        """Put back what a cohort's steps have moved in attributes and buffers.

        Raises:
            RuntimeError: something cannot be put back.
        """
        self._model.load_buffers(before.buffers, before.counters)
        if written := before.snapshot.restore():
            raise RuntimeError(
                f"{type(self._model.module).__name__} has written into {written[0]!r} in steps that have to be taken "
                "again: set `engine=sequential` and `trace_steps=False`, by which no step is."
            )

    def _look_at_threads(self, times: list[StepTime]) -> None:
        """Go on with one thread if several have become a loss: they wait for each other where others use the cores."""
        one = self._one_thread
        # A step that will be replayed takes many times as long until it is.
        alike = [step.seconds for step in times if one is not None and step.is_replayed == one.is_replayed]
        if one is None or not alike or statistics.median(alike) < _SLOWER * one.seconds:
            return
        torch.set_num_threads(1)
        rank_zero_info(
            f"From round {self._round} on, torch computes with one thread instead of {self._threads}: others have "
            "come to use the cores. `trainer.num_threads` sets a number for good."
        )
        self._threads, self._one_thread, self.engine.steps.times = 1, None, None

    def _wrong_after(self, cohort: Cohort, before: _Before) -> tuple[Path, str] | None:
        """The path to go on with, and why, where only the end of a cohort's training shows that this one is wrong."""
        # Clients that are trained together, and steps that are replayed, would all see the same draw.
        is_shared = self._path.name == "vectorized" or bool(self._path.recording)
        moved = self._generators.moved_since(before.generators) if is_shared else []
        if moved:
            return _PLAIN, f"its training step draws from {moved[0]}"
        # Steps that no trial has taken, such as every tenth one, or those of small batches.
        if is_shared and (changed := before.snapshot.changed()):
            return _PLAIN, f"its training step changes {changed[0]!r}"
        # An example whose target is ignored has no mean of its own.
        if self._path.padded_width and cohort.losses is not None and not bool(cohort.losses.total.isfinite().all()):
            return replace(self._path, padded_width=0), "the loss of an example by itself is not finite"
        return None

    # -- paths ------------------------------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        """The way in which steps are computed now."""
        return replace(self._path, cohort_size=self.engine.cohort_size)

    @property
    def choice(self) -> dict[str, Any]:
        """The way in which steps are computed now, for a checkpoint; the numbers depend on it by rounding only."""
        path = self._path
        return {
            "name": path.name,
            "cohort_size": int(self.engine.cohort_size),
            "is_padded": bool(path.padded_width),
            "recording": path.recording,
            "threads": self._threads,
        }

    @property
    def _first_descents(self) -> int:
        """The round from which on recorded steps include their descent; 0 for none."""
        return self._path.descents.first_round if self._path.recording and self._path.descents is not None else 0

    @property
    def _is_plain(self) -> bool:
        path = self._path
        reads_features = bool(self._model.global_feature_names) and path.joint_features
        return path.name == "sequential" and not path.recording and not reads_features

    def _module_state(self) -> dict[str, Any]:
        """The state that the step depends on: training modes, frozen parameters, attributes, and what lies outside."""
        traits = self._model.traits
        read = set(traits.read_attributes) - set(traits.changed_attributes)
        module = self._model.module
        # Recordings hold the tensors themselves. (Buffers are written into those that were there at first.)
        columns = self._model.layout.slices
        frozen = {f"{n} itself": Same(p) for n, p in module.named_parameters() if n not in columns}
        outside = {n: v for n, v in self._surroundings.state().items() if n not in traits.changed_outside}
        return {"outside": outside, **frozen, **values_of(module, read), **flags_of(module)}

    def _probe(self) -> Any:
        # One batch is enough for the plain path, which is right whatever the step does.
        rows = range(1 if self._is_plain else len(self._trial))
        return probe(self._model, [self._trial.batch_of(row) for row in rows], [self._trial.keys[row] for row in rows])

    def _possible(self, path: Path) -> Path:
        """The part of a path that the step still allows."""
        if path.recording and (reason := why_not_recorded(self._model)) is not None:
            path = self._without(path, replace(path, recording=False), reason)
        if path.name == "vectorized" and (reason := why_not_vectorized(self._model, self._trial)) is not None:
            path = self._without(path, replace(_PLAIN, recording=path.recording), reason)
        if path.padded_width and (reason := why_not_padded(self._model, self._trial)) is not None:
            path = self._without(path, replace(path, padded_width=0), reason)
        return path

    def _leave_path(self, right: Path, reason: str) -> None:
        """Go on with another path for the rest of the run."""
        path = self._without(self._path, right, reason)
        self._model.traits = self._probe()
        self._follow(path)
        self._is_watching = True  # the cohort that comes again shows whether this was enough

    def _leave_failed_path(self, error: Exception) -> None:
        """Go on with the fastest path on which the failed step does not fail; raise the error if there is none."""
        failure = self.engine.steps.failure
        assert failure is not None
        right = self._fastest_right(StepSample(failure.phase, failure.params, failure.input))
        if not self._is_right(right, StepSample(failure.phase, failure.params, failure.input)):
            raise error
        try:
            self._leave_path(right, _reason_of(error, is_asked_for=self._named[1] != "auto"))
        except RuntimeError as refusal:  # the user asked for this path
            raise refusal from error

    def _fastest_right(self, sample: StepSample) -> Path:
        """The fastest path on which the steps of a sample are right; the plain one if there is no other."""
        return next((path for path in self._simpler() if self._is_right(path, sample)), _PLAIN)

    def _simpler(self) -> Iterator[Path]:
        """The paths that are simpler than the present one, the fastest first."""
        path = self._path
        if self._model.global_feature_names and path.joint_features:
            yield replace(path, joint_features=False)
        if path.recording:
            yield replace(path, recording=False)
        if path.padded_width:
            yield replace(path, padded_width=0)
            yield replace(path, padded_width=0, recording=False)
        if path.name == "vectorized" and path.recording:
            yield replace(_PLAIN, recording=path.recording)

    def _is_right(self, path: Path, sample: StepSample) -> bool:
        """Whether the steps of a sample are right on a path."""
        model = self._model.copy()
        engine = path.at_once.engine(model, self._data, self._work, self._callbacks, self._seed)
        trained = engine.trained[sample.phase]
        steps = sample.as_taken(together=path.name == "vectorized", padded=bool(path.padded_width))
        try:
            with self._generators.kept(), model.recording(), model.training_only(trained):
                for params, input in itertools.islice(steps, _TRIED):
                    features = engine.global_features(input.batch, input.keys, input.anchor, input.extras.rows)
                    input = input._replace(extras=input.extras._replace(global_features=features))
                    for _ in range(2):  # what is recorded at the first call is replayed at the second
                        result = engine.steps.of_phases[sample.phase](params, input)
                    if path != _PLAIN:
                        Witness(self._model, trained).check(params, input, result)
            return True
        except Exception:  # whatever it raises: the step does not work on this path
            return False

    def _without(self, path: Path, right: Path, reason: str) -> Path:
        """Say that a path is left for a simpler one, and why; returns the latter.

        Raises:
            RuntimeError: the user asked for the former by name.
        """
        engine, recording = self._named
        kind = f"{type(self._model.module).__name__}{self._aim}"
        if path.name == "vectorized" and right.name != "vectorized":
            if engine == "vectorized":
                raise RuntimeError(
                    f"`engine=vectorized` cannot train {kind} from round {self._round} on: {reason}. Use "
                    "`engine=auto`, which goes on one client at a time."
                )
            what = "is trained one client at a time"
        elif path.recording and not right.recording:
            if recording != "auto":
                raise TraceError(
                    f"`trace_steps={str(recording).lower()}` cannot record the step of {kind} from round {self._round} "
                    f"on: {reason}. Leave it out."
                )
            what = "is not recorded"
        elif path.joint_features and not right.joint_features:
            what = "reads the features of the global model batch by batch"
        else:
            what = "is trained without padding"
        # What nobody asked for is no loss that needs a warning.
        is_default = what == "is not recorded" and path.patience > 0
        (rank_zero_info if is_default else rank_zero_warn)(f"From round {self._round} on, {kind} {what}: {reason}.")
        return right

    def _follow(self, path: Path) -> None:
        """Build the engine of a path, for the module as it is now."""
        self._path = path
        self._check_trained()
        self.engine: LocalEngine = path.engine(self._model, self._data, self._work, self._callbacks, self._seed)
        names = self._model.names_of(["*"])
        device = self._model.parameters[0].device
        self.frozen = None if names is None else ~self._model.layout.select(names).to(device)
        self.generation += 1
        self._surroundings = Surroundings(self._model.module, self._model.traits.read_attributes)
        self._seen = self._module_state()

    def _check_trained(self) -> None:
        """Raise ValueError if what the module's hooks freeze, or unfreeze, cannot be followed."""
        model = self._model
        new = [n for n, p in model.module.named_parameters() if p.requires_grad and n not in model.layout.slices]
        if new:
            raise ValueError(
                f"{new[0]!r} requires a gradient from round {self._round} on, but was frozen, or not there, when the "
                "run began: give it `requires_grad=True` at first, and freeze it in `on_train_epoch_start` of the "
                "first rounds."
            )
        there = dict(model.module.named_parameters())
        gone = [n for n, p in zip(model.layout.names, model.parameters, strict=True) if there.get(n) is not p]
        if gone:
            raise ValueError(
                f"{gone[0]!r} is another parameter, or gone, from round {self._round} on: write into the one that was "
                "there when the run began (`parameter.data.copy_`)."
            )
        frozen = [n for n, p in zip(model.layout.names, model.parameters, strict=True) if not p.requires_grad]
        if len(frozen) == len(model.layout.names):
            raise ValueError(f"No parameter of {type(model.module).__name__} requires a gradient.")
        owner = next((type(c).__name__ for c in self._callbacks if overrides(c, "coordinates")), None)
        if frozen and owner is not None:
            raise ValueError(
                f"{owner} moves all parameters by coordinates, but {frozen[0]!r} is frozen from round {self._round} "
                "on: freeze it before the run, or not at all."
            )


def _reason_of(error: Exception, is_asked_for: bool) -> str:
    """The reason to take a step that raised an error in another way, for a sentence about the module."""
    # These errors tell who has asked for recordings what to do.
    if isinstance(error, TraceError) and not is_asked_for:
        if error.__cause__ is None:
            return "recorded and replayed, its training step gives other numbers"
        return f"its operations cannot be listed ({brief(error.__cause__)})"
    return f"its training step fails ({brief(error)})"
