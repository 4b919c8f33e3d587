"""Settings without a meaning are refused with their name and value."""

from pathlib import Path
from typing import Any

import pytest
import torch
from worlds import HEAD, train

from lfl.engine import LocalPhase
from lfl.participation import DoublingParticipation
from lfl.settings import local_work
from lfl.trainer import FederatedTrainer


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"engine": "vectorised"}, "`engine=vectorised` must be one of auto, sequential, vectorized"),
        ({"buffers": "avg"}, "`buffers=avg` must be one of"),
        ({"on_nonfinite": "ignore"}, "`on_nonfinite=ignore` must be one of stop, skip"),
        ({"gradient_clip_val": -1.0}, "`gradient_clip_val=-1.0` must be greater than 0"),
        ({"local_steps": 0}, "`local_steps=0` must be a whole number of at least 1"),
        ({"local_epochs": 1.5}, "`local_epochs=1.5` must be a whole number"),
        ({"max_rounds": -1}, "`max_rounds=-1` must be a whole number of at least 0"),
    ],
)
def test_values_that_cannot_be_from_python(option: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FederatedTrainer(**option)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"local_phases": [LocalPhase()], "local_epochs": 2}, "Give `local_phases`"),
        ({"local_phases": [LocalPhase(["haed"])]}, "Pattern 'haed' matches no parameter"),
        ({"participation": DoublingParticipation(5)}, "needs a `trainer.system` that knows their speeds"),
    ],
)
def test_settings_without_meaning(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        train([], tmp_path, **options)


def test_phases_may_be_given_as_dictionaries(tmp_path: Path) -> None:
    given = train([], tmp_path, local_phases=[{"parameters": HEAD, "epochs": 2}])
    built = train([], tmp_path, local_phases=[LocalPhase(HEAD, epochs=2)])
    assert torch.equal(given.server.vector, built.server.vector)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"trace_steps": "eager"}, "`trace_steps=eager` must be one of auto, True, False, compile."),
        ({"precision": "16-mixed"}, "`precision=16-mixed` must be one of 32-true, 64-true, bf16-mixed."),
        ({"client_state": "disk"}, "`client_state=disk` must be one of device, host, memmap."),
        ({"seed": 1.5}, "`seed=1.5` must be a whole number of at least 0."),
        ({"log_every_n_steps": None}, "`log_every_n_steps=None` must be a whole number of at least 1."),
        ({"num_threads": 2000}, "`num_threads=2000` must be a whole number of at least 1 and less than 1025."),
        ({"cohort_size": 0}, "`cohort_size=0` must be a whole number of at least 1."),
        ({"check_val_every_n_rounds": 0}, "`check_val_every_n_rounds=0` must be a whole number of at least 1."),
    ],
)
def test_other_settings_of_a_trainer(option: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011  # the message is compared whole
        FederatedTrainer(**option)
    assert str(refused.value) == message


WORK = {
    "epochs": None,
    "steps": None,
    "phases": None,
    "clip_value": None,
    "clip_algorithm": "norm",
    "sampling": "epochs",
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clip_algorithm": "length"}, "`gradient_clip_algorithm=length` must be one of norm, value."),
        ({"sampling": "all"}, "`local_sampling=all` must be one of epochs, replacement."),
        ({"epochs": 0}, "`local_epochs=0` must be a whole number of at least 1."),
        ({"clip_value": float("nan")}, "`gradient_clip_val=nan` must be greater than 0, or none for no clipping."),
        ({"clip_value": "1"}, "`gradient_clip_val=1` must be greater than 0, or none for no clipping."),
        ({"clip_value": 0.0}, "`gradient_clip_val=0.0` must be greater than 0, or none for no clipping."),
        ({"epochs": 2, "steps": 3}, "Give `local_epochs=2` or `local_steps=3`, not both."),
        ({"phases": [LocalPhase()], "steps": 3}, "Give `local_phases`, at least one, or `local_epochs=None` or"),
        ({"phases": []}, "Give `local_phases`, at least one, or `local_epochs=None` or `local_steps=None`, not both;"),
    ],
)
def test_local_work_that_cannot_be(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        local_work(**{**WORK, **change})  # type: ignore[arg-type]
    assert str(refused.value).startswith(message)


def test_local_work_that_is_asked_for() -> None:
    assert local_work(**WORK).phases == [LocalPhase()]  # type: ignore[arg-type]
    work = local_work(**{**WORK, "steps": 3, "clip_value": 2.0, "sampling": "replacement"})  # type: ignore[arg-type]
    assert work.phases == [LocalPhase(steps=3)]
    assert (work.clip_value, work.sampling) == (2.0, "replacement")
