"""What no rule allows is refused."""

import torch
from torch import Tensor

from lfl.engine.graph.rules import RULES
from lfl.engine.graph.separable import why_not_a_mean


def reason_of(function: object) -> str | None:
    return why_not_a_mean(lambda params, x: {"its loss": function(x * params)}, torch.ones(3), torch.randn(4, 3))


def test_an_operation_that_is_not_known_mixes() -> None:
    assert "rot90" not in RULES
    reason = reason_of(lambda x: x.rot90(1, (0, 1)).mean())
    assert reason is not None
    assert reason.startswith(
        "its loss uses an operation that is not known to keep examples apart (aten.rot90.default, at"
    )


def test_an_operation_of_the_users_own_mixes() -> None:
    with torch.library._scoped_library("lfl_tests", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: 2 * x, "CompositeExplicitAutograd")
        reason = reason_of(lambda x: torch.ops.lfl_tests.twice(x).mean())
    assert reason is not None
    assert "not known" in reason


def test_random_operations_mix() -> None:
    def noisy(x: Tensor) -> Tensor:
        return (x + torch.randn(3)).mean()

    assert "random numbers" in str(reason_of(noisy))


def test_what_is_not_used_does_not_count() -> None:
    def idle(x: Tensor) -> Tensor:
        (x - x.mean(0)).rot90(1, (0, 1))
        return x.mean()

    assert reason_of(idle) is None
