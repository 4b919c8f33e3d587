"""The client store: equal in memory and in files, bounded, checked, and restored after any end of a run."""

import errno
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
import torch

import lfl
from lfl.storage.checkpoint_file import CheckpointError, load_checkpoint, save_atomically
from lfl.storage.client_store import ClientStore


def test_a_store_is_used_once_a_slot_is_declared_or_reserved() -> None:
    for use in (lambda store: store.declare("a", 1, torch.float64), lambda store: store.reserve("a")):
        store = ClientStore(4, "host", torch.device("cpu"))
        assert not store.is_used
        use(store)
        assert store.is_used


@pytest.mark.parametrize("kind", ["host", "memmap"])
def test_a_process_takes_its_own_rows_of_all_shards(kind: Literal["host", "memmap"], tmp_path: Path) -> None:
    saved = []
    for shard, ids in enumerate((torch.tensor([5, 0, 2]), torch.tensor([4, 3]))):
        store = ClientStore(6, kind, torch.device("cpu"), tmp_path, shard)
        store.declare("a", 1, torch.float64)
        store.scatter("a", ids, ids[:, None].double())
        saved.append(store.snapshot("now"))
    odd = ClientStore(6, "host", torch.device("cpu"))
    for state in saved:
        odd.restore(state, tmp_path, mine=lambda ids: ids % 2 == 1)
    assert odd.rows_in_use("a") == 2
    assert odd.gather("a", torch.arange(6)).flatten().tolist() == [0, 0, 0, 3, 0, 5]


KINDS = ("device", "host", "memmap")
CPU = torch.device("cpu")


def ids(*numbers):
    return torch.tensor(numbers, dtype=torch.long)


def make(kind, folder, num_clients=50, **kwargs):
    return ClientStore(num_clients, kind, CPU, folder if kind == "memmap" else None, **kwargs)


def size_on_disk(folder):
    return sum(entry.stat().st_size for entry in folder.iterdir())


@pytest.fixture(params=KINDS)
def store(request, tmp_path):
    store = make(request.param, tmp_path / "rows")
    store.declare("h", 2, torch.float32)
    yield store
    store.close()


def test_rows_read_back(store):
    store.scatter("h", ids(40, 3), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    store.scatter("h", ids(3, 7), torch.tensor([[5.0, 6.0], [7.0, 8.0]]))
    assert store.gather("h", ids(3, 40, 0, 7, 3)).tolist() == [[5, 6], [1, 2], [0, 0], [7, 8], [5, 6]]
    assert store.gather("h", ids(7, 3)).tolist() == [[7, 8], [5, 6]]
    assert store.rows_in_use("h") == 3
    assert store.nbytes == 3 * 2 * 4


def test_a_gathered_tensor_belongs_to_the_caller(store):
    rows = torch.ones(1, 2)
    store.scatter("h", ids(1), rows)
    rows.fill_(9)
    store.gather("h", ids(1)).fill_(9)
    store.gather("h", ids(0)).fill_(9)
    assert store.gather("h", ids(0, 1)).tolist() == [[0, 0], [1, 1]]


def test_nothing_is_used_before_the_first_write(store, tmp_path):
    assert store.gather("h", ids(1, 2)).tolist() == [[0, 0], [0, 0]]
    store.scatter("h", ids(), torch.empty(0, 2))
    assert store.gather("h", ids()).shape == (0, 2)
    assert store.nbytes == store.rows_in_use("h") == 0
    assert not (tmp_path / "rows").exists()


def test_a_million_clients_cost_what_the_written_ones_do(tmp_path):
    for kind in KINDS:
        store = make(kind, tmp_path, num_clients=1_000_000)
        store.declare("h", 1000, torch.float32)
        store.scatter("h", ids(999_999, 5), torch.ones(2, 1000))
        assert store.nbytes == 8000
        assert len(store.snapshot("a")["slots"]["h"]["ids"]) == 2
    assert size_on_disk(tmp_path) < 8100


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [(torch.float64, 0.5), (torch.bfloat16, float("nan")), (torch.int64, -1), (torch.bool, 1), (torch.float32, -0.0)],
)
def test_unwritten_rows_give_the_fill(store, dtype, fill):
    store.declare("x", 3, dtype, fill)
    store.scatter("x", ids(4), torch.zeros(1, 3, dtype=dtype))
    row = store.gather("x", ids(4, 5))[1]
    assert row.dtype == dtype
    assert row.view(torch.uint8).tolist() == torch.full((3,), fill, dtype=dtype).view(torch.uint8).tolist()


def test_slots_may_have_no_width_and_any_name(store):
    store.declare("a/b .. c", 0, torch.float32)
    store.scatter("a/b .. c", ids(1), torch.empty(1, 0))
    assert store.gather("a/b .. c", ids(1, 2)).shape == (2, 0)
    other = ClientStore(50, "host", CPU)
    other.restore(store.snapshot("a"), store.directory)
    assert other.rows_in_use("a/b .. c") == 1


def test_rows_written_in_inference_mode_can_be_changed_after_it(store):
    with torch.inference_mode():
        store.scatter("h", ids(1), torch.ones(1, 2))
    store.scatter("h", ids(1, 2), torch.full((2, 2), 2.0, requires_grad=True))
    rows = store.gather("h", ids(1, 2))
    assert rows.tolist() == [[2, 2], [2, 2]]
    assert not rows.requires_grad


def test_declaring_twice(store):
    store.declare("x", 3, torch.float32, float("nan"))
    store.declare("x", 3, torch.float32, float("nan"))
    message = (
        r"'h' is declared as width=3, dtype=torch.float32, fill=0.0, but it exists as width=2, dtype=torch.float32"
    )
    with pytest.raises(ValueError, match=message):
        store.declare("h", 3, torch.float32)


def test_wrong_arguments_are_named(store, tmp_path):
    with pytest.raises(ValueError, match="`num_clients=0` of the client store must be greater than 0"):
        ClientStore(0, "host", CPU)
    with pytest.raises(ValueError, match="`kind='disk'` of the client store must be one of device, host, memmap"):
        ClientStore(1, "disk", CPU)
    with pytest.raises(ValueError, match="`kind='memmap'` of the client store needs a `directory`"):
        ClientStore(1, "memmap", CPU)
    with pytest.raises(ValueError, match="`width=-1` of client slot 'x' must not be negative"):
        store.declare("x", -1, torch.float32)
    with pytest.raises(ValueError, match=r"`fill=0.5` of client slot 'x' is no torch.int64"):
        store.declare("x", 1, torch.int64, 0.5)
    with pytest.raises(ValueError, match="There is no client slot 'x'; declared are: h"):
        store.gather("x", ids(1))


def test_wrong_ids_and_rows_are_named(store):
    with pytest.raises(ValueError, match=r"Client ids must be 0 to 49, not -1, 50, 51, 52, 53, \.\.\. \(6 in all\)"):
        store.gather("h", ids(0, -1, 50, 51, 52, 53, 54))
    with pytest.raises(ValueError, match=r"vector of int64 on the CPU, not torch.int32 of shape \(1,\) on cpu"):
        store.gather("h", ids(1).int())
    with pytest.raises(ValueError, match="Client ids to write to slot 'h' repeat: 1, 2, 1"):
        store.scatter("h", ids(1, 2, 1), torch.zeros(3, 2))
    with pytest.raises(
        ValueError, match=r"slot 'h' must be torch.float32 of shape \(1, 2\), not torch.float64 of shape"
    ):
        store.scatter("h", ids(1), torch.zeros(1, 2, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"slot 'h' must be torch.float32 of shape \(2, 2\), not .* of shape \(1, 2\)"):
        store.scatter("h", ids(1, 2), torch.zeros(1, 2))
    assert store.rows_in_use("h") == 0


def test_kinds_give_the_same_bits(tmp_path, monkeypatch):
    """Random writes to two slots, with chunks of few rows, against a dictionary of rows."""
    monkeypatch.setattr("lfl.storage.rows._CHUNK_BYTES", 100)  # private, but the other way is rows of 256 MiB
    stores = [make(kind, tmp_path) for kind in KINDS]
    random_bits = torch.Generator().manual_seed(0)
    expected = {}
    for store in stores:
        store.declare("a", 5, torch.float32, 1.5)
        store.declare("b", 1, torch.float16)
    for step in range(60):
        name, width, dtype = ("a", 5, torch.float32) if step % 2 else ("b", 1, torch.float16)
        chosen = torch.randperm(50, generator=random_bits)[: int(torch.randint(0, 12, (), generator=random_bits))]
        rows = torch.randint(256, (len(chosen), width * dtype.itemsize), dtype=torch.uint8, generator=random_bits)
        for store in stores:
            store.scatter(name, chosen, rows.view(dtype))
            if step >= 2:
                store.release(str(step - 2))
            store.snapshot(str(step))
        expected |= {(name, i): row.tolist() for i, row in zip(chosen.tolist(), rows, strict=True)}
        for store in stores:
            bits = store.gather(name, torch.arange(50)).view(torch.uint8).tolist()
            fill = torch.full((width,), 1.5 if name == "a" else 0.0, dtype=dtype).view(torch.uint8).tolist()
            assert bits == [expected.get((name, i), fill) for i in range(50)]


@pytest.mark.parametrize("old_kind", KINDS)
@pytest.mark.parametrize("new_kind", KINDS)
def test_a_snapshot_restores_into_any_kind(tmp_path, old_kind, new_kind, monkeypatch):
    """Through a file, after later writes; the row file is read in several parts."""
    monkeypatch.setattr("lfl.storage.row_file._CHUNK_BYTES", 20)  # likewise
    old = make(old_kind, tmp_path / "old")
    old.declare("h", 2, torch.float32, 0.25)
    old.declare("empty", 4, torch.int64)
    rows = torch.arange(14.0).reshape(7, 2)
    old.scatter("h", ids(9, 8, 1, 0, 5, 20, 30), rows)
    save_atomically({"clients": old.snapshot("a")}, tmp_path / "last.ckpt")
    old.scatter("h", ids(8, 2), torch.full((2, 2), -1.0))

    new = make(new_kind, tmp_path / "new", shard=3)
    new.restore(load_checkpoint(tmp_path / "last.ckpt")["clients"], tmp_path / "old")
    assert torch.equal(new.gather("h", ids(9, 8, 1, 0, 5, 20, 30)), rows)
    assert new.gather("h", ids(2)).tolist() == [[0.25, 0.25]]
    assert (new.rows_in_use("h"), new.rows_in_use("empty")) == (7, 0)
    assert old.gather("h", ids(8)).tolist() == [[-1, -1]]
    new.scatter("h", ids(8), torch.full((1, 2), 7.0))
    assert new.gather("h", ids(8)).tolist() == [[7, 7]]


def test_a_memory_snapshot_is_a_copy(store):
    store.scatter("h", ids(1), torch.ones(1, 2))
    state = store.snapshot("a")
    store.scatter("h", ids(1, 2), torch.zeros(2, 2))
    new = ClientStore(50, "host", CPU)
    new.restore(state, store.directory)
    assert new.gather("h", ids(1, 2)).tolist() == [[1, 1], [0, 0]]


def test_a_memmap_snapshot_holds_no_rows(tmp_path):
    store = make("memmap", tmp_path)
    store.declare("h", 100_000, torch.float32)
    store.scatter("h", ids(1, 2), torch.ones(2, 100_000))
    save_atomically(store.snapshot("a"), tmp_path / "last.ckpt")
    assert (tmp_path / "last.ckpt").stat().st_size < 5000


def test_shards_unite(tmp_path):
    new = ClientStore(50, "host", CPU)
    for shard in (0, 1):
        store = make("memmap", tmp_path, shard=shard)
        store.declare("h", 1, torch.float32)
        store.scatter("h", ids(shard), torch.full((1, 1), 5.0 + shard))
        new.restore(store.snapshot("a"), tmp_path)
    assert new.gather("h", ids(0, 1)).tolist() == [[5], [6]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["h-shard0-0.rows", "h-shard1-0.rows"]


def test_a_run_in_the_same_folder_leaves_old_files_alone(tmp_path):
    state = None
    for number in range(3):
        store = make("memmap", tmp_path)
        store.declare("h", 1, torch.float32)
        if state is not None:
            store.restore(state, tmp_path)
        assert store.gather("h", ids(0)).tolist() == [[number]]
        store.scatter("h", ids(0), torch.full((1, 1), number + 1.0))
        state = store.snapshot("a")
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"h-shard0-{number}.rows" for number in range(3)]


def test_files_stay_bounded_over_many_snapshots(tmp_path):
    """10 of 100 clients a round, a snapshot each, two of them live: at most three versions of 100 rows."""
    store = make("memmap", tmp_path, num_clients=100)
    store.declare("h", 10, torch.float32)
    for number in range(300):
        store.scatter("h", torch.randperm(100)[:10], torch.full((10, 10), float(number)))
        store.snapshot(str(number))
        if number >= 2:
            store.release(str(number - 2))
    assert size_on_disk(tmp_path) <= 64 + 3 * 100 * 40


def test_tags_are_checked(store):
    store.snapshot("a")
    with pytest.raises(ValueError, match="There is a snapshot 'a' of the client store already"):
        store.snapshot("a")
    store.scatter("h", ids(1), torch.ones(1, 2))
    store.release("a")
    with pytest.raises(ValueError, match=r"There is no snapshot 'a' of the client store; live ones: \[\]"):
        store.release("a")


def test_restoring_what_does_not_fit_is_named(store):
    store.scatter("h", ids(1), torch.ones(1, 2))
    state = store.snapshot("a")
    with pytest.raises(ValueError, match="has client state for 50 clients, but there are 60"):
        ClientStore(60, "host", CPU).restore(state, store.directory)
    with pytest.raises(ValueError, match="Slot 'h' has rows of 1 clients already: restore into a new store"):
        store.restore(state, store.directory)
    other = ClientStore(50, "host", CPU)
    other.declare("h", 2, torch.float64)
    with pytest.raises(ValueError, match=r"'h' is declared as .*float32.*, but it exists as .*float64"):
        other.restore(state, store.directory)


def test_missing_and_truncated_row_files_are_named(tmp_path):
    store = make("memmap", tmp_path)
    store.declare("h", 2, torch.float32)
    store.scatter("h", ids(1, 2), torch.ones(2, 2))
    state = store.snapshot("a")
    new = ClientStore(50, "host", CPU)
    with pytest.raises(
        ValueError, match=r"client rows of this checkpoint are in h-shard0-0.rows: give its `directory`"
    ):
        new.restore(state)
    with pytest.raises(CheckpointError, match=r"elsewhere/h-shard0-0.rows is missing"):
        new.restore(state, tmp_path / "elsewhere")
    os.truncate(tmp_path / "h-shard0-0.rows", 70)
    with pytest.raises(CheckpointError, match=r"h-shard0-0.rows is truncated: it has 70 bytes of at least 80"):
        new.restore(state, tmp_path)


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
def test_a_full_disk_leaves_a_usable_store(tmp_path, monkeypatch, call):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    store = make("memmap", tmp_path)
    store.declare("h", 1, torch.float32)
    store.scatter("h", ids(1), torch.ones(1, 1))
    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(OSError, match=r"Cannot write .*h-shard0-0.rows: No space left on device"):
            store.scatter("h", ids(2), torch.ones(1, 1)) if call == "pwrite" else store.snapshot("a")
    assert store.rows_in_use("h") == 1
    store.snapshot("a")
    store.scatter("h", ids(3, 2), torch.tensor([[3.0], [2.0]]))
    assert store.gather("h", ids(1, 2, 3)).tolist() == [[1], [2], [3]]


def test_a_really_full_disk_is_an_error_not_a_signal(tmp_path):
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path], capture_output=True)
    if mounted.returncode:
        pytest.skip("cannot mount a small file system here")
    try:
        store = make("memmap", tmp_path)
        store.declare("h", 50_000, torch.float32)
        store.scatter("h", ids(0, 1, 2), torch.ones(3, 50_000))
        state = store.snapshot("a")
        with pytest.raises(OSError, match=r"Cannot write .*h-shard0-0.rows: No space left on device\. 0\.\d MiB"):
            store.scatter("h", ids(0, 1, 2), torch.zeros(3, 50_000))
        new = ClientStore(50, "host", CPU)
        new.restore(state, tmp_path)
        assert torch.equal(new.gather("h", ids(0, 1, 2)), torch.ones(3, 50_000))
        store.close()
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_rows_in_a_file_are_not_resident(tmp_path):
    """2000 rows of 100 kB, 200 MB in all, by cohorts of 20."""
    store = ClientStore(1_000_000, "memmap", CPU, tmp_path)
    store.declare("h", 25_000, torch.float32)
    store.scatter("h", ids(0), torch.zeros(1, 25_000))
    before = resident_bytes()
    for start in range(0, 2000, 20):
        store.scatter("h", torch.arange(start, start + 20), torch.full((20, 25_000), float(start)))
    for start in range(0, 2000, 20):
        assert store.gather("h", torch.arange(start, start + 20))[-1, -1] == start
    assert size_on_disk(tmp_path) > 200e6
    assert resident_bytes() - before < 40e6


WORKER = """
import json, os, pathlib, random, signal, sys, time, traceback
import torch
from lfl.storage.checkpoint_file import load_checkpoint, save_atomically
from lfl.storage.client_store import ClientStore

folder, kills = pathlib.Path(sys.argv[1]), int(sys.argv[2])


def work():
    store = ClientStore(30, "memmap", torch.device("cpu"), folder / "rows")
    store.declare("h", 500, torch.float64)
    round, path = 0, folder / "last.ckpt"
    if path.exists():
        state = load_checkpoint(path)
        round = state["round"]
        store.restore(state["clients"], folder / "rows")
    with open(folder / "log.jsonl", "a") as log:
        while True:
            round += 1
            ids = random.Random(round).sample(range(30), 7)
            rows = torch.tensor(ids).double().mul(1e6).add(round).unsqueeze(1).expand(-1, 500)
            store.scatter("h", torch.tensor(ids), rows)
            save_atomically({"round": round, "clients": store.snapshot(str(round))}, path)
            log.write(json.dumps(round) + chr(10))
            log.flush()
            if round - 1 in live:
                store.release(str(round - 1))
            live.clear()
            live.add(round)


live = set()
for kill in range(kills):
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    time.sleep(random.Random(kill).uniform(0.1, 0.4))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WTERMSIG(status) != signal.SIGKILL:
        sys.exit("the worker ended by itself")
"""


def test_a_killed_run_can_be_restored(tmp_path):
    """Ten runs, each going on from the last one's checkpoint, are killed wherever they are."""
    environment = os.environ | {"PYTHONPATH": str(Path(lfl.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", WORKER, tmp_path, "10"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    state = load_checkpoint(tmp_path / "last.ckpt")
    logged = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert state["round"] in (logged[-1], logged[-1] + 1)
    assert state["round"] > 5
    expected = torch.zeros(30, 500, dtype=torch.float64)
    for number in range(1, state["round"] + 1):
        chosen = random.Random(number).sample(range(30), 7)
        expected[chosen] = torch.tensor(chosen).double().mul(1e6).add(number).unsqueeze(1)
    store = ClientStore(30, "host", CPU)
    store.restore(state["clients"], tmp_path / "rows")
    assert torch.equal(store.gather("h", torch.arange(30)), expected)
    sizes = [path.stat().st_size for path in (tmp_path / "rows").iterdir()]
    assert max(sizes) <= 64 + 3 * 30 * 4000


def test_whose_rows_were_written():
    store = ClientStore(5, "host", CPU)
    store.declare("a", 1, torch.float32, fill=float("nan"))
    assert store.has_rows("a", torch.tensor([0, 4])).tolist() == [False, False]
    store.scatter("a", torch.tensor([4]), torch.full((1, 1), float("nan")))
    assert store.has_rows("a", torch.tensor([4, 0, 4])).tolist() == [True, False, True]
    with pytest.raises(ValueError, match="no client slot 'b'"):
        store.has_rows("b", torch.tensor([0]))
    with pytest.raises(ValueError, match="must be 0 to 4, not 5"):
        store.has_rows("a", torch.tensor([5]))
