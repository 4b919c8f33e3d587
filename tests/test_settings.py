"""Settings without a meaning are refused with their name and value."""

from pathlib import Path
from typing import Any

import pytest
import torch
from worlds import HEAD, train

from lfl.engine import LocalPhase
from lfl.participation import DoublingParticipation
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
        ({"max_rounds": -1}, "`max_rounds=-1` must be at least 0"),
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
