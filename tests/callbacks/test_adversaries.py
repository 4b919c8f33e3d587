"""Adversaries: who they are, what they send, and what they train on."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from quadratics import quadratic_data
from torch import Tensor
from worlds import Quadratic, Rounds, images, mlp, ragged_data, train, train_quadratic

from lfl.callbacks import (
    SSF,
    FederatedCallback,
    GaussianUpdate,
    LabelFlip,
    PersonalParameters,
    Scaffold,
    ScaledUpdate,
    SignFlip,
    TopK,
)
from lfl.data import DatasetSource, IIDPartitioner
from lfl.loggers.csv import read_rows
from lfl.participation import FixedParticipation, FullParticipation
from lfl.subspace import LayerwiseSubspace

ENGINES = ["sequential", "vectorized"]
ALL = [SignFlip, ScaledUpdate, GaussianUpdate, LabelFlip]


def federation(num_clients: int = 20, seed: int = 3, num_classes: int = 4) -> Any:
    data = SimpleNamespace(num_classes=num_classes)
    device = torch.device("cpu")
    return SimpleNamespace(num_clients=num_clients, seed=seed, data=data, device=device, keys=None)


def drawn(attack: Any, **settings: Any) -> list[int]:
    attack.on_run_start(federation(**settings))
    return attack.ids.tolist()


def test_the_same_clients_for_every_attack_and_more_of_them_in_a_larger_share() -> None:
    few = drawn(SignFlip(0.2))
    assert len(few) == 4
    assert [drawn(kind(0.2)) for kind in ALL] == [few] * 4
    assert set(few) < set(drawn(SignFlip(0.5)))
    assert drawn(SignFlip(0.2), seed=4) != few
    assert drawn(SignFlip(0.0)) == []
    assert drawn(SignFlip(1.0)) == list(range(20))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ALL)
def test_a_share_of_nobody_is_the_stack_without_it(kind: Any, engine: str, tmp_path: Path) -> None:
    runs = [train(s, tmp_path, mlp(dropout=0.3), engine=engine) for s in ([], [kind(0.0)])]
    assert torch.equal(runs[0].server.vector, runs[1].server.vector)


CASES: list[tuple[FederatedCallback, float]] = [(SignFlip(0.5), -1.0), (ScaledUpdate(0.5, 3.0), 3.0)]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("attack", "factor"), CASES)
def test_a_round_of_two_clients_by_hand(attack: Any, factor: float, engine: str, tmp_path: Path) -> None:
    """``(y - b)^2 / 2`` with b = 1 and -4, one step of 0.1 from 0: movements 0.1 and -0.4, one of which is attacked."""
    data = quadratic_data([[1.0], [1.0]], [[1.0], [-4.0]])
    rounds = Rounds()
    options = {"max_rounds": 1, "local_steps": 1, "module": Quadratic(dim=1), "data": data, "engine": engine}
    trainer, _ = train_quadratic([attack, rounds], tmp_path, **options)
    (who,) = attack.ids.tolist()
    moved = [0.1, -0.4]
    norms = [abs(factor * moved[who]), abs(moved[1 - who])]
    moved[who] *= factor
    assert trainer.server.vector.tolist() == pytest.approx([sum(moved) / 2], abs=1e-15)
    logged = {name: float(value) for name, value in rounds.kept[0].metrics.items() if name.startswith("adversary/")}
    kind = f"adversary/{attack.name}"
    assert logged == pytest.approx({kind: 1.0, f"{kind}/norm": norms[0], f"{kind}/honest_norm": norms[1]}, abs=1e-14)


def test_codecs_encode_what_is_attacked_wherever_they_stand(tmp_path: Path) -> None:
    """And feedback is that of the attacked update."""
    runs = [
        train(stack, tmp_path, participation=FullParticipation())
        for stack in ([SignFlip(1.0), TopK(0.1)], [TopK(0.1), SignFlip(1.0)])
    ]
    assert torch.equal(runs[0].server.vector, runs[1].server.vector)
    one = train([TopK(0.1)], tmp_path, participation=FullParticipation(), max_rounds=1)
    flipped = train([SignFlip(1.0), TopK(0.1)], tmp_path, participation=FullParticipation(), max_rounds=1)
    start = train([], tmp_path, max_rounds=0).server.vector
    torch.testing.assert_close(flipped.server.vector - start, start - one.server.vector, rtol=0, atol=1e-15)
    rows = [t.store.gather("top-k/error", torch.arange(8)) for t in (one, flipped)]
    torch.testing.assert_close(rows[1], -rows[0], rtol=0, atol=1e-15)


def test_honest_updates_keep_their_bits(tmp_path: Path) -> None:
    sent: list[Tensor] = []

    class Last(FederatedCallback):
        def encode(self, cohort: Any, payload: Any) -> Any:
            sent.append(payload.values.clone())
            return payload

    attack = ScaledUpdate(0.4, -5.0)
    options: dict[str, Any] = {"participation": FullParticipation(), "max_rounds": 1}
    train([attack, Last()], tmp_path, **options)
    train([Last()], tmp_path, **options)
    attacked, plain = torch.cat(sent[:8]), torch.cat(sent[8:])
    honest = [i for i in range(8) if i not in attack.ids.tolist()]
    assert torch.equal(attacked[honest], plain[honest])
    torch.testing.assert_close(attacked[attack.ids], -5 * plain[attack.ids], rtol=0, atol=1e-13)


def test_noise_is_normal_and_drawn_by_client_and_round(tmp_path: Path) -> None:
    """Of 832 entries: the mean of squares is within 5 deviations, 0.25, of 1, the mean within 0.18 of 0."""
    found = []
    for engine, size in (("sequential", None), ("vectorized", 3)):
        options: dict[str, Any] = {"engine": engine, "cohort_size": size, "max_rounds": 2}
        rounds = Rounds()
        train([GaussianUpdate(1.0, std=2.0), rounds], tmp_path, participation=FixedParticipation([[4], [4]]), **options)
        found.append([kept.update / 2.0 for kept in rounds.kept])
    for first, second in found:
        assert abs(float(first.mean())) < 0.18
        assert abs(float(first.square().mean()) - 1) < 0.25
        assert abs(float(first @ second)) / len(first) < 0.18
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-13)


@pytest.mark.parametrize("make", [lambda: [SSF(LayerwiseSubspace(0.3))], lambda: [Scaffold()]])
def test_what_follows_from_movement_is_attacked_behind_it(make: Any, tmp_path: Path) -> None:
    runs = [train([SignFlip(0.4), *make()], tmp_path, engine=engine, cohort_size=3).server.vector for engine in ENGINES]
    torch.testing.assert_close(runs[0], runs[1], rtol=0, atol=1e-10)
    assert not torch.equal(runs[0], train([*make(), SignFlip(0.4)], tmp_path).server.vector)


def test_the_personal_part_is_not_attacked(tmp_path: Path) -> None:
    options: dict[str, Any] = {"participation": FullParticipation(), "max_rounds": 1}
    head = PersonalParameters(["*.head.*"])
    rows = [
        train([head, *behind], tmp_path, **options).store.gather("personal", torch.arange(8))
        for behind in ([], [ScaledUpdate(1.0, 7.0)])
    ]
    assert torch.equal(rows[0], rows[1])


class Relabelled(torch.utils.data.TensorDataset):
    """`images()` with other labels at some positions."""

    def __init__(self, positions: Tensor, labels: Tensor) -> None:
        inputs, targets = images().tensors
        targets = targets.clone()
        targets[positions] = labels[targets[positions]]
        super().__init__(inputs, targets)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("labels", "new"), [(None, [3, 2, 1, 0]), ({1: 2}, [0, 2, 2, 3])])
def test_labels_are_flipped_where_adversaries_train_and_nowhere_else(
    labels: Any, new: list[int], engine: str, tmp_path: Path
) -> None:
    """As if their examples had those labels; the test set and its deal to the clients are as they were."""
    options: dict[str, Any] = {"engine": engine, "cohort_size": 3, "check_val_every_n_rounds": 3}
    deal = {"partitioner": IIDPartitioner()}  # which looks at no labels
    attack = LabelFlip(0.4, labels)
    trainer = train([attack], tmp_path, mlp(), ragged_data(**deal), **options)
    positions = torch.cat([trainer.data.partition.client(i) for i in attack.ids.tolist()])
    source = DatasetSource(Relabelled(positions, torch.tensor(new)), images(40, seed=1), num_classes=4)
    expected = train([], tmp_path, mlp(), ragged_data(source=source, **deal), **options)
    assert torch.equal(trainer.server.vector, expected.server.vector)
    for name in ("train/loss", "val_acc", "val_loss"):
        assert trainer.summary.last(name) == expected.summary.last(name)
    rows = dict(read_rows(Path(trainer.log_dir) / "metrics.csv"))
    assert 0 < rows[1]["adversary/label_flip"] <= 3


def test_gradients_over_all_examples_have_flipped_labels_too(tmp_path: Path) -> None:
    stacks: list[list[FederatedCallback]] = [[LabelFlip(1.0), Scaffold("I")], [Scaffold("I")]]
    trainers = [train(s, tmp_path, participation=FullParticipation(), max_rounds=1) for s in stacks]
    rows = [t.store.gather("scaffold/control", torch.arange(8)) for t in trainers]
    assert bool(((rows[0] - rows[1]).norm(dim=1) > 0.1).all())


def test_labels_in_any_part_of_a_batch() -> None:
    """Those that no class has (-100, ignored by losses) stay, and so does the batch that was given."""
    labels = torch.tensor([[[0, 3, -100]], [[1, 1, 2]]])
    batch = {"x": torch.zeros(2, 1), "y": {"label": labels.clone()}}
    attack = LabelFlip(1.0, target="y.label")
    attack.on_run_start(federation(num_clients=2))
    cohort: Any = SimpleNamespace(ids=torch.arange(2), rows={}, values=torch.zeros(2, 1))
    attack.on_cohort_start(cohort)
    cohort.rows["label_flip"] = torch.tensor([True, False])
    changed = attack.change_batch(cohort, slice(0, 2), batch)
    assert changed["y"]["label"].tolist() == [[[3, 0, -100]], [[1, 1, 2]]]
    assert changed["x"] is batch["x"]
    assert torch.equal(batch["y"]["label"], labels)
    assert attack.change_batch(cohort, torch.tensor([1]), {"y": {"label": labels[1:]}})["y"]["label"].equal(labels[1:])


@pytest.mark.parametrize("target", [None, "z", "x"])
def test_a_target_that_is_not_there_is_named(target: Any) -> None:
    attack = LabelFlip(1.0, target=target)
    attack.on_run_start(federation(num_clients=2))
    cohort: Any = SimpleNamespace(ids=torch.arange(2), rows={}, values=torch.zeros(2, 1))
    attack.on_cohort_start(cohort)
    with pytest.raises(ValueError, match=f"`target={target}` of LabelFlip must name the part"):
        attack.change_batch(cohort, slice(0, 2), {"x": torch.zeros(2, 1)})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SignFlip(1.5), "`share=1.5` of SignFlip must be at most 1"),
        (lambda: SignFlip(-0.1), "`share=-0.1` of SignFlip must be a number of at least 0"),
        (lambda: ScaledUpdate(0.1, float("inf")), "`factor=inf` of ScaledUpdate must be finite"),
        (lambda: GaussianUpdate(0.1, -1.0), "`std=-1.0` of GaussianUpdate must be a number of at least 0"),
        (lambda: drawn(LabelFlip(0.1, {1: 7})), "`labels={1: 7}` of LabelFlip: there are the classes 0 to 3"),
        (lambda: drawn(LabelFlip(0.1), num_classes=0), "LabelFlip needs class labels"),
    ],
)
def test_settings_without_meaning(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
