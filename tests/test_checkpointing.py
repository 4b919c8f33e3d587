"""At which rounds checkpoints are written."""

from pathlib import Path

import pytest
import torch
from worlds import mlp, train

from lfl.checkpointing import Checkpointing


def test_best_checkpoint_is_the_best_round(tmp_path: Path) -> None:
    options = {"check_val_every_n_rounds": 1, "max_rounds": 6, "precision": "32-true", "cohort_size": 3}
    options["server_optimizer"] = lambda params: torch.optim.SGD(params, lr=0.7, momentum=0.5)
    options["checkpoint"] = Checkpointing(every_n_rounds=100, monitor="val_acc")
    trainer = train([], tmp_path, mlp(), **options)
    best, round_number = trainer.summary.best("val_acc")
    saved = torch.load(Path(trainer.log_dir) / "checkpoints" / "best.ckpt", weights_only=True)
    assert (saved["round"], saved["checkpointing"]["best"]) == (round_number, best)


def test_last_every_second_round_and_at_the_end() -> None:
    checkpoint = Checkpointing(every_n_rounds=2, keep_all=True)
    due = [checkpoint.due_after(number, {}, is_final=number == 5) for number in range(1, 6)]
    assert due == [[] if number in (1, 3) else ["last.ckpt", f"round_00000{number}.ckpt"] for number in range(1, 6)]
    assert checkpoint.due_at_end(5) == []


def test_a_run_that_stops_between_two_checkpoints_writes_one() -> None:
    checkpoint = Checkpointing(every_n_rounds=2)
    assert checkpoint.due_after(2, {}, is_final=False) == ["last.ckpt"]
    assert checkpoint.due_after(3, {}, is_final=False) == []
    assert checkpoint.due_at_end(3) == ["last.ckpt"]
    assert checkpoint.due_at_end(3) == []
    checkpoint.start()
    assert checkpoint.due_at_end(1) == ["last.ckpt"]


@pytest.mark.parametrize(
    ("monitor", "mode", "due"),
    [("val_acc", "auto", [1, 3]), ("val_acc", "min", [1, 2, 5]), ("val_loss", "auto", [1, 2, 5]), ("a", "max", [1, 3])],
)
def test_best_where_the_metric_improves(monitor: str, mode: str, due: list[int]) -> None:
    checkpoint = Checkpointing(every_n_rounds=100, monitor=monitor, mode=mode)  # type: ignore[arg-type]
    found = []
    for number, value in enumerate([0.5, 0.25, 0.75, float("nan"), 0.125, None], start=1):
        metrics = {} if value is None else {monitor: value}
        found += [number] if checkpoint.due_after(number, metrics, is_final=False) == ["best.ckpt"] else []
    assert found == due
    assert checkpoint.state_dict() == {"best": 0.75 if due == [1, 3] else 0.125}


def test_a_metric_without_direction_and_one_that_is_never_logged() -> None:
    with pytest.raises(ValueError, match="`monitor=size` does not say what is better: set `mode` to max or min"):
        Checkpointing(monitor="size")
    checkpoint = Checkpointing(monitor="val_acc")
    checkpoint.due_after(1, {"loss": 1.0}, is_final=True)
    with pytest.warns(UserWarning, match="No round logged `checkpoint.monitor=val_acc`"):
        assert checkpoint.due_at_end(1) == []
