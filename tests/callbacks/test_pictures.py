"""Pictures: what is drawn, that it is written, and that a run does not change by it."""

from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
import torch
from torch import Tensor
from worlds import Bystander, mlp, ragged_data, train

from lfl.callbacks import FeaturePictures, Scaffold, TrajectoryPictures
from lfl.callbacks.pictures import cumulative_shares, embedded, trajectory_of
from lfl.checkpointing import Checkpointing
from lfl.loggers import RunTensorBoardLogger, WandbLogger


def pictures(trainer: Any) -> list[str]:
    return sorted(path.name for path in (Path(trainer.log_dir) / "pictures").iterdir())


def has_ink(path: Path) -> bool:
    """Whether a picture is more than its background."""
    pixels = matplotlib.image.imread(path)
    return pixels.shape[2] == 4 and bool((pixels[..., :3] < 0.5).any()) and bool((pixels[0, 0, :3] == 1).all())


class Moves(Bystander):
    def __init__(self) -> None:
        self.found: list[Tensor] = []

    def on_server_step(self, round: Any) -> None:
        self.found.append(self.run.server.vector - round.server)


def test_three_moves_by_hand() -> None:
    """(3, 0, 0), (0, 4, 0) and (6, 0, 0): sigma = sqrt 45 along the first axis and 4 along the second, shares 45 / 61.

    The path along them: (3, 0), (3, 4), (9, 4). The layer of the last two numbers moves once, by 4.
    """
    moves = torch.tensor([[-3.0, 0.0, 0.0], [0.0, 4.0, 0.0], [-6.0, 0.0, 0.0]])
    found = trajectory_of(moves, {"a": slice(0, 1), "b": slice(1, 3)})
    assert found.values.tolist() == pytest.approx([45**0.5, 4.0, 0.0], abs=1e-7)
    assert cumulative_shares(found.values).tolist() == pytest.approx([45 / 61, 1.0, 1.0])
    path = torch.tensor([[0.0, 0.0], [3.0, 0.0], [3.0, 4.0], [9.0, 4.0]], dtype=torch.float64)
    torch.testing.assert_close(found.path, path, rtol=0, atol=1e-7)
    assert found.layers["a"].tolist() == pytest.approx([45**0.5, 0.0, 0.0], abs=1e-7)
    assert found.layers["b"].tolist() == pytest.approx([4.0, 0.0, 0.0], abs=1e-7)
    assert cumulative_shares(torch.zeros(2)).tolist() == [0.0, 0.0]
    assert trajectory_of(moves[:1], {"": slice(0, 3)}).path.tolist() == [[0.0, 0.0], [3.0, 0.0]]


def test_what_is_drawn_of_a_run(tmp_path: Path) -> None:
    """The last five moves of six rounds, against a dense decomposition; layers are the MLP's two."""
    drawn, moves = TrajectoryPictures(every_n_rounds=4, rounds=5), Moves()
    trainer = train([drawn, moves], tmp_path, max_rounds=6)
    assert pictures(trainer) == ["trajectory_000004.png", "trajectory_000006.png"]
    assert all(has_ink(path) for path in (Path(trainer.log_dir) / "pictures").iterdir())
    found, kept = drawn.trajectory(), torch.stack(moves.found[-5:])
    torch.testing.assert_close(found.values, torch.linalg.svdvals(kept), rtol=1e-9, atol=1e-9)
    assert list(found.layers) == ["backbone.features.1", "backbone.head"]
    torch.testing.assert_close(found.layers["backbone.head"], torch.linalg.svdvals(kept[:, 780:]), rtol=1e-7, atol=1e-9)
    directions = torch.linalg.svd(kept).Vh[:2]
    torch.testing.assert_close(found.path[1:].abs(), (kept.cumsum(0) @ directions.T).abs(), rtol=1e-7, atol=1e-9)
    plain = train([], tmp_path, max_rounds=6)
    assert torch.equal(trainer.server.vector, plain.server.vector)


def test_a_resumed_run_draws_the_same(tmp_path: Path) -> None:
    def run(**options: Any) -> Any:
        drawn = TrajectoryPictures(every_n_rounds=6, rounds=4)
        checkpoint = Checkpointing(every_n_rounds=3, keep_all=True)
        return train([drawn, Scaffold()], tmp_path, max_rounds=6, checkpoint=checkpoint, **options)

    whole = run()
    resumed = run(ckpt_path=str(Path(whole.log_dir) / "checkpoints" / "round_000003.ckpt"))
    assert torch.equal(resumed.stack[0].trajectory().path, whole.stack[0].trajectory().path)
    first, second = (Path(t.log_dir) / "pictures" / "trajectory_000006.png" for t in (whole, resumed))
    assert (matplotlib.image.imread(first) == matplotlib.image.imread(second)).all()


def test_features_of_test_examples(tmp_path: Path) -> None:
    """Those of the hidden layer at x, of the first 25 of 40 examples; the evaluation beside it stays as it is."""
    drawn = FeaturePictures("backbone.features", every_n_rounds=2, max_examples=25, perplexity=5)
    options = {"max_rounds": 3, "check_val_every_n_rounds": 1}
    trainer = train([drawn], tmp_path, mlp(), ragged_data(eval_batch_size=10), **options)
    assert pictures(trainer) == ["features_000002.png", "features_000003.png"]
    assert all(has_ink(path) for path in (Path(trainer.log_dir) / "pictures").iterdir())
    features, classes = drawn.read_features()
    inputs, targets = (part[0] for part in trainer.data.gather_test(torch.arange(25)[None]))
    assert torch.equal(classes, targets)
    part = "backbone.features."
    views = trainer.layout.views(trainer.server.vector).items()
    own = {name.removeprefix(part): view for name, view in views if name.startswith(part)}
    hidden = torch.func.functional_call(mlp().double().backbone.features, own, (inputs,))
    torch.testing.assert_close(features, hidden, rtol=0, atol=1e-14)
    points = embedded(features, 5.0, seed=0)
    assert points.shape == (25, 2)
    assert (points == embedded(features, 5.0, seed=0)).all()
    plain = train([], tmp_path, mlp(), ragged_data(eval_batch_size=10), **options)
    assert torch.equal(trainer.server.vector, plain.server.vector)
    assert trainer.summary.last("val_acc") == plain.summary.last("val_acc")


def test_pictures_reach_loggers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logged: list[Any] = []
    monkeypatch.setattr(WandbLogger, "log_image", lambda self, **given: logged.append(given))
    monkeypatch.setattr(WandbLogger, "log_metrics", lambda self, *given, **more: None)
    monkeypatch.setattr(WandbLogger, "experiment", None)
    tensorboard = RunTensorBoardLogger()
    trainer = train([TrajectoryPictures(every_n_rounds=2)], tmp_path, max_rounds=2, logger=[tensorboard])
    events = EventAccumulator(tensorboard.log_dir, size_guidance={"images": 0}).Reload()
    assert [event.step for event in events.Images("pictures/trajectory")] == [2]
    drawn = TrajectoryPictures()
    drawn._folder, drawn._loggers = tmp_path, [WandbLogger(save_dir=str(tmp_path), offline=True)]
    drawn._federation = trainer.run
    drawn._moves = [torch.ones(trainer.run.layout.dim)]
    drawn.draw(7)
    path = str(tmp_path / "trajectory_000007.png")
    assert logged == [{"key": "pictures/trajectory", "images": [path], "step": 7}]


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"`layer=backbone.feature` of FeaturePictures names no submodule .* near it"):
        train([FeaturePictures("backbone.feature")], tmp_path)
    with pytest.raises(ValueError, match=r"`target=2` of FeaturePictures names no part of a batch"):
        train([FeaturePictures(target=2)], tmp_path)
    with pytest.raises(ValueError, match=r"`rounds=0` of TrajectoryPictures must be a whole number of at least 1"):
        TrajectoryPictures(rounds=0)
