"""Feature skew and wrong labels, which differ from client to client."""

from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from lfl.data import (
    ClientChange,
    ClientColour,
    ClientLabelNoise,
    ClientNoise,
    ClientRotation,
    DatasetSource,
    FederatedDataModule,
    IIDPartitioner,
)


def dealt(*changes: ClientChange, inputs: torch.Tensor | None = None, **options: Any) -> FederatedDataModule:
    """40 training and 20 test examples of 4 clients."""
    x = torch.rand(60, 3, 6, 6, generator=torch.Generator().manual_seed(0)) if inputs is None else inputs
    y = torch.arange(60) % 5
    in_memory = options.pop("in_memory", True)
    source = DatasetSource(TensorDataset(x[:40], y[:40]), TensorDataset(x[40:], y[40:]), 5, in_memory)
    data = FederatedDataModule(source, IIDPartitioner(), num_clients=4, client_changes=changes, **options)
    data.setup()
    return data


def of_client(data: FederatedDataModule, client: int, part: str = "train") -> list[torch.Tensor]:
    sets = getattr(data.partition, part)
    return list((data.gather if part == "train" else data.gather_test)(sets.client(client)))


@pytest.mark.parametrize("part", ["train", "test"])
def test_each_client_has_an_angle(part: str) -> None:
    data = dealt(ClientRotation([0, 90, 180]))
    plain = dealt()
    for client, quarters in enumerate([0, 1, 2, 0]):
        (x, y), (before, labels) = of_client(data, client, part), of_client(plain, client, part)
        assert x.equal(before.rot90(quarters, (2, 3)))
        assert y.equal(labels)


def test_angles_between_quarters_turn_the_same_way() -> None:
    image = torch.zeros(60, 1, 21, 21)
    image[:, :, 10, 20] = 1  # in the east
    tilted = of_client(dealt(ClientRotation([45.0]), inputs=image), 0)[0]
    rows, columns = (int(i) for i in divmod(int(tilted[0, 0].argmax()), 21))
    assert (rows < 5, columns > 15) == (True, True)  # in the north-east
    assert of_client(dealt(ClientRotation([90.0]), inputs=image), 0)[0][0, 0, 0, 10] == 1


def test_noise_grows_with_the_number_of_the_client() -> None:
    inputs = torch.zeros(60, 1, 20, 20)
    data = dealt(ClientNoise(std=0.4), inputs=inputs)
    for part in ("train", "test"):
        stds = [float(of_client(data, client, part)[0].std()) for client in range(4)]
        assert stds == pytest.approx([0.1, 0.2, 0.3, 0.4], rel=0.05)
    assert not of_client(data, 3)[0][0].equal(of_client(data, 3, "test")[0][0])


def test_a_client_has_its_colours_in_training_and_in_tests() -> None:
    data = dealt(ClientColour(spread=0.5), inputs=torch.ones(60, 3, 2, 2))
    train, test = (
        torch.stack([of_client(data, i, part)[0][0, :, 0, 0] for i in range(4)]) for part in ("train", "test")
    )
    assert train.equal(test)
    assert len(train.unique()) == 12
    assert bool(((train >= 0.5) & (train <= 1.5)).all())


def test_labels_of_training_are_wrong() -> None:
    data = dealt(ClientLabelNoise(num_classes=5, most=1.0))
    plain = dealt()
    assert data.train_labels is not None
    assert plain.train_labels is not None
    wrong = data.train_labels != plain.train_labels
    shares = [float(wrong[data.partition.client(client)].float().mean()) for client in range(4)]
    assert max(shares) - min(shares) > 0.2
    assert bool(((data.train_labels >= 0) & (data.train_labels < 5)).all())
    assert of_client(data, 2, "test")[1].equal(of_client(plain, 2, "test")[1])
    assert data.gather(torch.arange(40))[1].equal(data.train_labels)


def test_changes_are_made_in_order_and_alike_in_every_run() -> None:
    changes = (ClientRotation([90]), ClientColour(), ClientNoise())
    one, other = dealt(*changes), dealt(*changes)
    assert of_client(one, 1)[0].equal(of_client(other, 1)[0])
    assert not of_client(one, 1)[0].equal(of_client(dealt(*changes, seed=1), 1)[0])


def test_the_log_says_what_was_changed() -> None:
    assert dealt(ClientRotation([90]), ClientNoise()).describe()["client_changes"] == (
        "[ClientRotation(degrees=[90]), ClientNoise(std=0.1)]"
    )
    assert "client_changes" not in dealt().describe()


def test_clients_own_test_examples_are_changed_once() -> None:
    data = dealt(ClientRotation([90]), client_test_fraction=0.25)
    plain = dealt(client_test_fraction=0.25)
    for part in ("train", "test"):
        assert of_client(data, 2, part)[0].equal(of_client(plain, 2, part)[0].rot90(1, (2, 3)))


def test_held_out_examples_stay_as_they_are() -> None:
    data, plain = (dealt(*changes, val_fraction=0.25) for changes in ((ClientRotation([90]),), ()))
    (x, _), (before, _) = (next(iter(each.val_dataloader())) for each in (data, plain))
    assert x.equal(before)


def test_what_cannot_be_changed_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`client_changes` \(ClientNoise\) are for data in memory"):
        dealt(ClientNoise(), in_memory=False)
    with pytest.raises(ValueError, match=r"ClientNoise got torch\.uint8 inputs: set `as_uint8: false`"):
        dealt(ClientNoise(), inputs=torch.zeros(60, 3, 6, 6, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"ClientRotation needs images .*, got \[10, 7\]"):
        dealt(ClientRotation([5]), inputs=torch.zeros(60, 7))


def test_settings_out_of_range() -> None:
    with pytest.raises(ValueError, match=r"`degrees=\[\]` of ClientRotation must name an angle"):
        ClientRotation([])
    with pytest.raises(ValueError, match=r"`spread=1\.5` of ClientColour must be from 0 to 1"):
        ClientColour(1.5)
    with pytest.raises(ValueError, match=r"`most=-1` of ClientLabelNoise must be from 0 to 1"):
        ClientLabelNoise(5, most=-1)
    with pytest.raises(ValueError, match="`num_classes=1` of ClientLabelNoise"):
        ClientLabelNoise(1)
    with pytest.raises(ValueError, match="`std=0` of ClientNoise"):
        ClientNoise(0)
