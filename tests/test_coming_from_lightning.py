"""What Lightning's trainer has and lfl's has not: every name is said to be so, with what to use."""

import inspect
import re
from pathlib import Path

import lightning
import pytest

from lfl.coming_from_lightning import ATTRIBUTES, SETTINGS, missing_attribute
from lfl.trainer import FederatedTrainer

DOCS = Path(__file__).parent.parent / "docs" / "coming-from-lightning.md"


def test_each_setting_of_lightnings_trainer_is_one_here_or_has_advice() -> None:
    theirs = set(inspect.signature(lightning.Trainer).parameters)
    ours = set(inspect.signature(FederatedTrainer).parameters)
    assert theirs - ours == theirs & SETTINGS.keys()
    assert not ours & SETTINGS.keys()


def test_no_advice_for_what_is_there() -> None:
    trainer = FederatedTrainer(accelerator="cpu", enable_progress_bar=False)
    assert [name for name in ATTRIBUTES if hasattr(trainer, name)] == []


def test_advice_names_settings_that_exist() -> None:
    ours = set(inspect.signature(FederatedTrainer).parameters)
    for name, advice in SETTINGS.items():
        for word in re.findall(r"^use `(\w+)`", advice):
            assert word in ours, f"{name}: {word}"


def test_the_constructor_says_what_to_use() -> None:
    with pytest.raises(TypeError, match=r"^FederatedTrainer has no `max_epochs`: use `max_rounds`"):
        FederatedTrainer(max_epochs=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'max_round'"):
        FederatedTrainer(max_round=3)  # type: ignore[call-arg]


def test_attributes_say_what_to_use() -> None:
    trainer = FederatedTrainer(accelerator="cpu", enable_progress_bar=False)
    for name, words in {
        "train_dataloader": "`num_training_batches` and `estimated_stepping_batches` count",
        "max_time": "use Lightning's callback `Timer`",
        "tuner": "attribute `tuner`",
        "estimate_stepping": "attribute `estimate_stepping`",
    }.items():
        with pytest.raises(AttributeError, match=f"^FederatedTrainer has no .*{words}"):
            getattr(trainer, name)
    assert "docs/coming-from-lightning.md" in missing_attribute("FederatedTrainer", "num_sanity_val_batches")


def test_the_documentation_has_both_tables() -> None:
    text = DOCS.read_text()
    for name, advice in {**SETTINGS, **ATTRIBUTES}.items():
        assert f"| `{name}` | {advice} |" in text, name


def test_the_command_line_still_sees_the_types() -> None:
    parameters = inspect.signature(FederatedTrainer).parameters
    assert parameters["max_rounds"].default == 100
