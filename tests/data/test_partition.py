"""Index sets in compressed rows, and the saved partition."""

import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lfl.data import IndexSets, Partition


def partition() -> Partition:
    train = IndexSets.from_owners(torch.tensor([2, 0, 2, 2, 0, 1]), 3)
    return Partition(train, IndexSets.from_owners(torch.tensor([2, 0]), 3))


@settings(max_examples=50, deadline=None)
@given(owners=st.lists(st.integers(0, 5), max_size=40), ids=st.lists(st.integers(0, 5), max_size=8))
def test_padded_equals_one_client_at_a_time(owners, ids):
    sets = IndexSets.from_owners(torch.tensor(owners, dtype=torch.int64), 6)
    indices, sizes = sets.padded(torch.tensor(ids, dtype=torch.int64))
    assert indices.shape == (len(ids), max((owners.count(i) for i in ids), default=0))
    for row, size, i in zip(indices, sizes.tolist(), ids, strict=True):
        assert row[:size].tolist() == sets.client(i).tolist() == [j for j, o in enumerate(owners) if o == i]
        assert row[size:].eq(0).all()


def test_positions_may_be_others_than_0_to_n():
    sets = IndexSets.from_owners(torch.tensor([1, 0, 1]), 2, positions=torch.tensor([10, 20, 30]))
    assert sets.client(1).tolist() == [10, 30]
    assert sets.owners.tolist() == [0, 1, 1]


def test_counts_and_sizes():
    assert partition().sizes.tolist() == [2, 1, 3]
    assert partition().test_sizes.tolist() == [1, 0, 1]
    assert partition().num_clients == 3
    counts = partition().label_counts(torch.tensor([0, 1, 0, 1, 1, 0]), 2)
    assert counts.tolist() == [[0, 2], [1, 0], [2, 1]]


@pytest.mark.parametrize("i", [-1, 3])
def test_unknown_client(i):
    with pytest.raises(IndexError, match=f"There is no client {i}: the partition has 3"):
        partition().client(i)


def test_train_and_test_must_be_for_the_same_clients():
    with pytest.raises(ValueError, match="3 clients in training, 2 in testing"):
        Partition(partition().train, IndexSets.from_owners(torch.tensor([1, 0]), 2))


def test_saved_and_loaded_it_is_the_same(tmp_path):
    path = tmp_path / "new" / "partition.pt"
    partition().save(path)
    partition().save(path)
    loaded = Partition.load(path)
    assert loaded.fingerprint() == partition().fingerprint()
    assert loaded.client(2).tolist() == [0, 2, 3]
    assert [p.name for p in path.parent.iterdir()] == ["partition.pt"]


def test_fingerprint_sees_owners_and_test_sets():
    other_train = Partition(IndexSets.from_owners(torch.tensor([2, 0, 2, 2, 1, 0]), 3), partition().test)
    other_test = Partition(partition().train, IndexSets.from_owners(torch.tensor([0, 2]), 3))
    assert len({p.fingerprint() for p in (partition(), other_train, other_test)}) == 3
    assert partition().fingerprint() == partition().fingerprint()


def test_what_is_no_partition_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no partition at"):
        Partition.load(tmp_path / "none.pt")
    torch.save({"weights": torch.zeros(1)}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match=r"other\.pt' holds no partition"):
        Partition.load(tmp_path / "other.pt")


def test_plot_writes_a_picture(tmp_path):
    partition().plot(torch.tensor([0, 1, 0, 1, 1, 0]), tmp_path / "mix.png")
    assert (tmp_path / "mix.png").read_bytes().startswith(b"\x89PNG")


def test_saved_as_json_it_has_the_same_positions(tmp_path):
    partition().save(tmp_path / "partition.json")
    loaded = Partition.load(tmp_path / "partition.json")
    assert loaded.fingerprint() == partition().fingerprint()


def test_names_are_saved_too(tmp_path):
    named = Partition(partition().train, partition().test, ((7, 9), ("a",), ()), ("cat", "dog"))
    named.save(tmp_path / "partition.pt")
    loaded = Partition.load(tmp_path / "partition.pt")
    assert (loaded.users, loaded.classes) == (((7, 9), ("a",), ()), ("cat", "dog"))
    assert loaded.fingerprint() == partition().fingerprint()


def test_a_full_disk_is_one_line_and_leaves_no_half_file(tmp_path, monkeypatch):
    """/dev/full takes nothing: the file is opened there."""
    path = tmp_path / "partition.pt"
    partition().save(path)
    with monkeypatch.context() as patch:
        patch.setattr("lfl.storage.checkpoint_file.FileIO", lambda file, mode: io.FileIO("/dev/full", mode))
        with pytest.raises(
            OSError, match=r"Cannot write .*partition\.pt: No space left on device\. .* are free"
        ) as error:
            Partition(partition().test, partition().train).save(path)
    assert "\n" not in str(error.value)
    assert Partition.load(path).fingerprint() == partition().fingerprint()
    assert [p.name for p in tmp_path.iterdir()] == ["partition.pt"]


@pytest.mark.parametrize("change", ["half", "bit", "text", "offsets", "types"])
def test_damaged_and_foreign_files_are_one_line(tmp_path, change):
    path = tmp_path / "partition.pt"
    Partition(IndexSets.from_lists([range(500)]), IndexSets.from_lists([range(9)])).save(path)
    raw = path.read_bytes()
    if change in ("offsets", "types"):
        saved = torch.load(path)
        key, value = ("train_offsets", torch.tensor([0, 7])) if change == "offsets" else ("test_indices", [1])
        torch.save({**saved, key: value}, path)
    elif change == "bit":
        place = raw.index(torch.tensor([250]).numpy().tobytes())
        path.write_bytes(raw[:place] + b"\x07" + raw[place + 1 :])
    else:
        path.write_bytes(raw[: len(raw) // 2] if change == "half" else b"client,index\n0,1\n")
    with pytest.raises(ValueError, match=r"partition\.pt' (holds no partition|is damaged)") as refused:
        Partition.load(path)
    assert "\n" not in str(refused.value)


def test_positions_outside_and_dealt_twice_are_named():
    sets = IndexSets.from_lists([[0, 2], [5], [2]])
    with pytest.raises(
        ValueError, match=r"^training example 5 of client 1 does not exist: there are 5, counted from 0\.$"
    ):
        sets.check("training", 5)
    with pytest.raises(ValueError, match=r"^training example 2 is dealt twice, to client 0 and to client 2: each"):
        sets.check("training", 6)
    with pytest.raises(ValueError, match="example -1 of client 0 does not exist"):
        IndexSets.from_lists([[-1]]).check("test", 6)
    partition().train.check("training", 6)
