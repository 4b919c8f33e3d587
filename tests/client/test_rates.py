"""Learning rates over rounds, by the module's own schedulers."""

from pathlib import Path

import pytest
import torch
from worlds import Quadratic, QuadraticData, mlp, train_quadratic

from lfl.callbacks import Scaffold
from lfl.client.rates import LearningRates


def test_learning_rate_schedule_over_rounds(tmp_path: Path) -> None:
    """Round 1 uses the undecayed rate; round t the rate times gamma^(t-1); everything divides by the round's own."""

    def module() -> Quadratic:
        model = Quadratic()

        def configure() -> object:
            built = torch.optim.SGD(model.parameters(), lr=0.1)
            return [built], [torch.optim.lr_scheduler.ExponentialLR(built, 0.5)]

        model.configure_optimizers = configure  # type: ignore[method-assign]
        return model

    data = QuadraticData()
    x = torch.zeros(12, dtype=torch.float64)
    for t in range(3):
        x = x + ((1 - (1 - 0.1 * 0.5**t * data.curvature) ** 6) * (data.centre - x)).mean(0)
    trainer, _ = train_quadratic([], tmp_path, max_rounds=3, module=module())
    torch.testing.assert_close(trainer.server.vector, x, rtol=0, atol=1e-13)
    decayed, data = train_quadratic([Scaffold()], tmp_path, max_rounds=2, module=module())
    own = decayed.store.gather("scaffold/control", torch.arange(5))
    assert (own - data.curvature * (decayed.server.vector - data.centre)).abs().max() < 0.5


@pytest.mark.parametrize("form", ["optimizer", "list", "lists", "dict", "dict-with-config", "tuple-of-dicts"])
def test_every_form_of_configure_optimizers(form: str) -> None:
    module = mlp()

    def configure():
        built = torch.optim.SGD(module.parameters(), lr=0.4)
        schedule = torch.optim.lr_scheduler.ExponentialLR(built, 0.5)
        return {
            "optimizer": built,
            "list": [built],
            "lists": ([built], [schedule]),
            "dict": {"optimizer": built, "lr_scheduler": schedule},
            "dict-with-config": {"optimizer": built, "lr_scheduler": {"scheduler": schedule, "frequency": 2}},
            "tuple-of-dicts": ({"optimizer": built, "lr_scheduler": schedule},),
        }[form]

    module.configure_optimizers = configure
    rates = LearningRates(module)
    seen = []
    for number in range(1, 5):
        seen.append(rates.lr)
        rates.step(number, {})
    expected = {"optimizer": [0.4] * 4, "list": [0.4] * 4, "dict-with-config": [0.4, 0.4, 0.2, 0.2]}
    assert seen == expected.get(form, [0.4, 0.2, 0.1, 0.05])


def test_plateau_watches_a_metric() -> None:
    module = mlp()

    def configure():
        built = torch.optim.SGD(module.parameters(), lr=0.4)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(built, factor=0.5, patience=0)
        return {"optimizer": built, "lr_scheduler": schedule, "monitor": "val_loss"}

    module.configure_optimizers = configure
    rates = LearningRates(module)
    for number, loss in enumerate([1.0, 2.0, 0.5], 1):
        rates.step(number, {"val_loss": loss})
    assert rates.lr == 0.2
    with pytest.raises(ValueError, match="watches 'val_loss', which round 4 did not log; it logged: a, b"):
        rates.step(4, {"b": 1.0, "a": 0.0})
