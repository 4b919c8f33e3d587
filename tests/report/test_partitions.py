"""Which classes clients have."""

import json
from pathlib import Path

import pytest
import yaml
from run_folders import config_of, make_run

from lfl.data import FederatedDataModule
from lfl.report.partitions import Counting, count_classes, distinct, main


def with_partition(path: Path, num_clients: int = 5) -> Path:
    settings = {"class_path": "lfl.data.FederatedDataModule", "init_args": {"num_clients": num_clients}}
    run = make_run(path, config={**config_of(), "data": settings})
    data = FederatedDataModule(num_clients=num_clients)
    data.setup("fit")
    data.partition.save(run / "partition.pt")
    return run


def test_classes_are_counted_and_drawn(tmp_path: Path) -> None:
    run = with_partition(tmp_path / "run")
    counts = count_classes(run, tmp_path / "figures" / "partition")
    assert [len(counts), len(counts[0])] == [5, 10]
    data = FederatedDataModule(num_clients=5)
    data.setup("fit")
    assert [sum(row) for row in counts] == data.partition.sizes.tolist()
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {"partition.png", "partition.svg"}


def test_what_cannot_be_counted_says_why(tmp_path: Path) -> None:
    run = with_partition(tmp_path / "run")
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump({**config, "data": None}))
    main([str(tmp_path / "counts.json"), str(tmp_path / "figures"), str(run)])
    (why,) = json.loads((tmp_path / "counts.json").read_text())
    assert why.endswith("config.yaml names no data: it has no `data.class_path`.")


@pytest.mark.slow
def test_a_process_of_its_own_counts(tmp_path: Path) -> None:
    run = with_partition(tmp_path / "run")
    (counts,) = Counting([run], tmp_path / "figures").result().values()
    assert not isinstance(counts, str), counts
    assert len(counts) == 5


def test_a_process_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    run = with_partition(tmp_path / "run")
    assert Counting([run], tmp_path).result(seconds=0.0) == {run: "counting its classes failed: TimeoutExpired"}
    assert Counting([], tmp_path).result() == {}


def test_equal_partitions_are_counted_once(tmp_path: Path) -> None:
    runs = [with_partition(tmp_path / name, clients) for name, clients in (("a", 5), ("b", 5), ("c", 6), ("d", 7))]
    without = make_run(tmp_path / "e")
    assert distinct([without, *runs]) == [runs[0], runs[2], runs[3]]
