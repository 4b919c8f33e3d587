"""Flower's partitioners deal our data; a stand-in of the same shape where they are not installed."""

from typing import Any

import pytest
import torch
from cli_world import World

from lfl.data import FederatedDataModule, FlowerPartitioner, TensorData
from lfl.data.sources import DatasetSource

pytest.importorskip("datasets")
LABELS = torch.arange(120) % 4


class OneClassEach:
    """Partition i has the class i, as `flwr_datasets` would say it."""

    dataset: Any

    def __init__(self, num_partitions: int, partition_by: str, seed: int, skipped: int = 0) -> None:
        self.num_partitions, self.partition_by, self.seed, self.skipped = num_partitions, partition_by, seed, skipped

    def load_partition(self, partition_id: int) -> Any:
        places = [n for n, label in enumerate(self.dataset[self.partition_by]) if label == partition_id]
        return self.dataset.select(places[self.skipped :])


def split(kind: Any, num_clients: int, seed: int = 0, **options: Any) -> list[list[int]]:
    sets = FlowerPartitioner(kind, options).split(LABELS, None, num_clients, seed)
    return [part.sort().values.tolist() for part in sets.indices.split(sets.sizes.tolist())]


def test_each_client_has_the_examples_of_its_partition() -> None:
    assert split(OneClassEach, 4) == [(n == LABELS).nonzero().flatten().tolist() for n in range(4)]
    left = split(OneClassEach, 4, skipped=3)  # examples that no partition has are nobody's
    assert [len(own) for own in left] == [27] * 4
    assert left == split(OneClassEach, 4, skipped=3)
    assert left != split(OneClassEach, 4, seed=1, skipped=3)  # it saw the data in another order


def test_another_number_of_partitions_is_refused() -> None:
    class Three(OneClassEach):
        def __init__(self) -> None:
            super().__init__(3, "label", 0)

    with pytest.raises(ValueError, match=r"makes 3 partitions, but `num_clients=4`\.$"):
        split(Three, 4)


def test_wrong_options_are_one_line() -> None:
    with pytest.raises(ValueError, match=r"`options` of FlowerPartitioner\(.*\) do not fit: .* argument 'alpha'\.$"):
        split(OneClassEach, 4, alpha=0.5)


def test_a_data_module_takes_it() -> None:
    data = TensorData(torch.zeros(120, 2), LABELS)
    module = FederatedDataModule(DatasetSource(data, data, 4), FlowerPartitioner(OneClassEach), num_clients=4)
    module.setup("fit")
    assert module.label_counts().tolist() == (30 * torch.eye(4, dtype=torch.long)).tolist()


@pytest.mark.filterwarnings("ignore:Specifying null_placement:FutureWarning")  # datasets 4.8 on pyarrow 26
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("IidPartitioner", {}),
        ("DirichletPartitioner", {"alpha": 0.5, "min_partition_size": 1}),
        ("PathologicalPartitioner", {"num_classes_per_partition": 2}),
        ("ShardPartitioner", {"num_shards_per_partition": 2}),
        ("LinearPartitioner", {}),
    ],
)
def test_real_partitioners(kind: str, options: dict[str, Any]) -> None:
    flower = pytest.importorskip("flwr_datasets").partitioner
    found = split(getattr(flower, kind), 5, **options)
    assert found == split(getattr(flower, kind), 5, **options)
    dealt = [place for own in found for place in own]
    assert len(dealt) == len(set(dealt)) <= len(LABELS)
    classes = [len(set(LABELS[torch.tensor(own)].tolist())) for own in found]
    assert kind != "PathologicalPartitioner" or classes == [2] * 5
    assert kind != "LinearPartitioner" or [len(own) for own in found] == sorted(len(own) for own in found)
    assert kind != "IidPartitioner" or [len(own) for own in found] == [24] * 5


def test_the_command_line_takes_it(world: World) -> None:
    pytest.importorskip("flwr_datasets")
    kind = "flwr_datasets.partitioner.PathologicalPartitioner"
    words = ["--data.partitioner=FlowerPartitioner", f"--data.partitioner.kind={kind}"]
    world.fit(
        *words, "--data.partitioner.options={num_classes_per_partition: 2, class_assignment_mode: first-deterministic}"
    )
    (config,) = (world.folder / "runs").glob("*/config.yaml")
    assert f"kind: {kind}" in config.read_text()
    message = world.error(*words, "--data.partitioner.options={num_classes: 2}")
    assert "got an unexpected keyword argument 'num_classes'" in message
