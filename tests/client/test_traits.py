"""What keeps a step from being a function of its arguments, in words."""

import pytest

from lfl.client.traits import StepTraits


@pytest.mark.parametrize(
    ("traits", "text"),
    [
        (StepTraits(), None),
        (StepTraits(random_operations=True, reads=("`current_epoch`",)), None),
        (StepTraits(changed_buffers=("ema",)), "changes the buffer 'ema' in place"),
        (StepTraits(host_draws=("Python's `random`",)), "draws from Python's `random`"),
        (StepTraits(logged_metrics=("acc",)), "logs the Metric object 'acc', which keeps a state of its own"),
        (StepTraits(changed_parameters=("w",)), "changes the parameter 'w' by itself"),
        (StepTraits(changed_outside=("STEPS",)), "changes 'STEPS', which is outside of the module"),
        (StepTraits(gradient_hooks=("w",)), "calls a hook on the gradient of 'w'"),
        (StepTraits(changed_attributes=("outputs",)), "changes the module's attribute 'outputs'"),
    ],
)
def test_side_effects(traits: StepTraits, text: str | None) -> None:
    assert traits.side_effect == text


def test_what_is_missing_sometimes() -> None:
    one, other = (
        StepTraits(without_gradient=("a", "b"), missing=("a", "b")),
        StepTraits(without_gradient=("b",), missing=("b",)),
    )
    assert (one | other).without_gradient == ("b",)
    assert (one | other).sometimes_missing == ("a",)
