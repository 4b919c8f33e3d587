"""Worker processes that live for a run: what they read, what is left of abandoned plans, and how they end."""

import gc
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from typing import Any

import pytest
import torch
from lightning import Trainer
from torch import Tensor
from torch.multiprocessing.reductions import shared_cache
from torch.utils.data import Dataset

from lfl.data import DatasetSource, FederatedDataModule, IIDPartitioner
from lfl.data.columns import DataError
from lfl.data.items import ItemReader
from lfl.data.stores import DatasetStore
from lfl.data.workers import Workers
from lfl.models import MLP, Classifier
from lfl.participation import FullParticipation
from lfl.trainer import FederatedTrainer


class Numbers(Dataset[Any]):
    """60 items ((i + shift, a draw), i modulo 2); items from 50 on cannot be read."""

    def __init__(self, shift: float = 0.0, last: int = 50, generator: torch.Generator | None = None) -> None:
        self.shift, self.last, self.generator = shift, last, generator
        self.targets = [i % 2 for i in range(60)]

    def __len__(self) -> int:
        return 60

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        if i >= self.last:
            raise KeyError("no such file")
        return torch.stack([torch.tensor(i + self.shift), torch.rand((), generator=self.generator)]), self.targets[i]


class Deadly(Numbers):
    """Reading item 7 ends the process."""

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        if i == 7 and multiprocessing.parent_process() is not None:
            os._exit(3)
        return super().__getitem__(i)


class Wide(Numbers):
    """Two of these are sent in shared memory."""

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return torch.full((2**17,), float(i)), i


def store_of(data: Dataset[Any], workers: int = 2) -> DatasetStore:
    return DatasetStore(ItemReader(data, "mine"), [], Workers(workers) if workers else None)


def plan_of(*firsts: int) -> list[tuple[Tensor, Tensor]]:
    """Batches of two items each; keys are the positions plus 100."""
    return [(torch.tensor([[i, i + 1]]), torch.tensor([[i + 100, i + 101]])) for i in firsts]


def numbers(batches: Any) -> list[float]:
    return [float(x[0, 0, 0]) for x, _ in batches]


def running() -> set[int]:
    return {process.pid for process in multiprocessing.active_children() if process.pid is not None}


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Any:
    before = running()
    yield
    gc.collect()
    deadline = time.monotonic() + 5
    while running() - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert running() == before


def test_one_set_of_processes_reads_all_plans() -> None:
    store = store_of(Numbers())
    assert running() == set()
    first = list(store.batches(plan_of(0, 2, 4)))
    started = running()
    assert len(started) == 2
    again = [list(store.batches(plan_of(0, 2, 4))) for _ in range(5)]
    assert running() == started
    alone = list(store_of(Numbers(), workers=0).batches(plan_of(0, 2, 4)))
    for batches in (first, *again):
        for ours, theirs in zip(batches, alone, strict=True):
            assert all(map(torch.equal, ours, theirs))


def test_two_data_sets_share_their_processes() -> None:
    workers = Workers(1)
    ones, others = (DatasetStore(ItemReader(Numbers(shift)), [], workers) for shift in (0.0, 100.0))
    assert numbers(ones.batches(plan_of(0, 2))) == [0, 2]
    assert numbers(others.batches(plan_of(0, 2))) == [100, 102]
    assert len(running()) == 1


def test_what_is_left_of_a_plan_is_not_the_next_ones() -> None:
    store = store_of(Numbers())
    for _ in range(3):
        left = store.batches(plan_of(*range(10, 40, 2)))
        next(left)
        left.close()
        assert numbers(store.batches(plan_of(0, 2, 4))) == [0, 2, 4]
    broken = store.batches(plan_of(0, 2, 50))  # what cannot be read is of a plan that nobody goes on with
    next(broken)
    assert numbers(store.batches(plan_of(0, 2, 4))) == [0, 2, 4]


def test_plans_may_be_read_in_turn() -> None:
    store = store_of(Numbers())
    one, other = store.batches(plan_of(*range(0, 20, 2))), store.batches(plan_of(*range(20, 40, 2)))
    read = [numbers([next(one), next(other)]) for _ in range(10)]
    assert read == [[i, i + 20] for i in range(0, 20, 2)]
    assert list(one) == list(other) == []


def test_a_changed_data_set_is_read_as_it_is() -> None:
    data = Numbers()
    store = store_of(data)
    assert numbers(store.batches(plan_of(0, 2))) == [0, 2]
    data.shift = 0.5
    assert numbers(store.batches(plan_of(0, 2))) == [0.5, 2.5]


def test_an_item_that_cannot_be_read_is_named_and_others_still_are() -> None:
    store = store_of(Numbers())
    with pytest.raises(KeyError, match="no such file") as raised:
        list(store.batches(plan_of(0, 50)))
    assert "This is item 50 of mine, which has 60." in str(raised.value)
    assert numbers(store.batches(plan_of(0, 2))) == [0, 2]


@pytest.mark.filterwarnings("ignore")
def test_a_process_that_dies_ends_the_plan_and_is_replaced() -> None:
    store = store_of(Deadly(), workers=1)
    with pytest.raises(RuntimeError, match="worker") as raised:
        list(store.batches(plan_of(0, 6, 8)))
    (note,) = raised.value.__notes__
    assert re.fullmatch("A worker was lost while these items of mine were read: (0, 1, )?6, 7(, 8, 9)?.", note)
    assert numbers(store.batches(plan_of(0, 8))) == [0, 8]


def test_close_ends_the_processes_and_the_next_plan_starts_new_ones() -> None:
    workers = Workers(2)
    store = DatasetStore(ItemReader(Numbers()), [], workers)
    list(store.batches(plan_of(0)))
    before = running()
    workers.close()
    workers.close()
    assert running() == set()
    list(store.batches(plan_of(0)))
    assert len(running() - before) == 2


def test_signals_to_the_whole_group_are_the_parents_affair() -> None:
    store = store_of(Numbers())
    list(store.batches(plan_of(0, 2, 4, 6)))  # both are at work by then
    for pid in running():
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid, number)
    time.sleep(0.05)
    assert numbers(store.batches(plan_of(0, 2))) == [0, 2]


def module_of(num_workers: int, **options: Any) -> FederatedDataModule:
    source = DatasetSource(Numbers(last=60), Numbers(last=60), num_classes=2, in_memory=False)
    return FederatedDataModule(
        source, IIDPartitioner(), num_clients=6, batch_size=4, num_workers=num_workers, **options
    )


def fit(root: Any, data: FederatedDataModule, max_rounds: int = 2) -> Tensor:
    torch.manual_seed(0)
    model = Classifier(MLP(in_features=2, hidden=[], num_classes=2), lr=0.01)
    trainer = FederatedTrainer(
        max_rounds=max_rounds,
        participation=FullParticipation(),
        engine="sequential",
        default_root_dir=str(root),
        enable_progress_bar=False,
    )
    trainer.fit(model, data)
    return trainer.server.vector


def test_ten_fits_leave_nothing_and_agree(tmp_path: Any) -> None:
    expected = fit(tmp_path, module_of(0))
    data = module_of(1)
    for _ in range(10):
        assert torch.equal(fit(tmp_path, data), expected)
        assert running() == set()


def test_a_central_run_ends_its_processes(tmp_path: Any) -> None:
    data = module_of(1, val_fraction=0.2)
    model = Classifier(MLP(in_features=2, hidden=[], num_classes=2))
    options = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Trainer(max_epochs=2, default_root_dir=str(tmp_path), enable_checkpointing=False, **options).fit(model, data)
    assert running() == set()


def test_a_data_set_that_cannot_be_sent_is_said() -> None:
    class Local(Numbers):
        pass

    workers = Workers(1)
    store = DatasetStore(ItemReader(Local()), [], workers)
    with multiprocessing_method("spawn"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(
            DataError, match=r"cannot be sent to the processes of `num_workers=1` \(.*set `num_workers`"
        ):
            list(store.batches(plan_of(0)))


class multiprocessing_method:
    """Context in which processes are started in another way."""

    def __init__(self, method: str) -> None:
        self.method = method

    def __enter__(self) -> None:
        self.before = multiprocessing.get_start_method()
        multiprocessing.set_start_method(self.method, force=True)

    def __exit__(self, *_: object) -> None:
        multiprocessing.set_start_method(self.before, force=True)


@pytest.mark.slow
def test_processes_that_are_spawned_read_the_same() -> None:
    """As on Windows and macOS; generators of a data set travel by value."""
    plan = plan_of(0, 2, 4)
    expected = list(store_of(Numbers(generator=torch.Generator()), workers=0).batches(plan))
    with multiprocessing_method("spawn"):
        store = store_of(Numbers(generator=torch.Generator()), workers=1)
        for _ in range(2):
            for ours, theirs in zip(store.batches(plan), expected, strict=True):
                assert all(map(torch.equal, ours, theirs))
        assert len(running()) == 1


def test_a_script_that_ends_in_the_midst_of_a_plan_ends() -> None:
    script = f"""
        import sys, torch
        sys.path.insert(0, {os.path.dirname(__file__)!r})
        from test_workers import Numbers, plan_of, store_of
        left = store_of(Numbers()).batches(plan_of(*range(0, 40, 2)))
        next(left)
        print("end", flush=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_nothing_is_left_of_batches_that_came_in_shared_memory() -> None:
    """Small things that stay among large ones keep memory from being used again."""
    store = store_of(Wide(), workers=1)
    places = torch.arange(60).reshape(30, 1, 2)
    for number, (values, _) in enumerate(store.batches((place, place) for place in places)):
        assert values[0, :, 0].tolist() == [2 * number, 2 * number + 1]
        assert len(shared_cache) <= 2
    store._workers.close()


class Frozen(Numbers):
    """Items are numbers of objects that the process's garbage collector does not look at."""

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return torch.full((2,), float(gc.get_freeze_count())), i


def test_workers_share_what_the_parent_had_with_it() -> None:
    """A collection in a worker would write into all of its objects, and so copy them."""
    store = store_of(Frozen())
    assert min(numbers(store.batches(plan_of(0, 2, 4, 6)))) > 10_000  # torch alone makes more objects than that
    assert gc.get_freeze_count() == 0
    store._workers.close()
