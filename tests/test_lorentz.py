"""The squared Lorentzian distance: exact to the last digits of float32, with finite gradients everywhere."""

import math

import pytest
import torch
from torch import Tensor

from lfl.callbacks.hyperbolic import squared_lorentz_distance

NORMS = [0.0, 1e-4, 1.0, 30.0, 1e2, 1e4]


def pairs(norm: float, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Vectors of a norm, with others: near, radially near, double, opposite, zero, unrelated, equal."""
    draws = torch.Generator().manual_seed(0)
    a, other = (torch.nn.functional.normalize(torch.randn(16, generator=draws).double(), dim=0) for _ in range(2))
    a = norm * a
    others = [a + 1e-2 * other, a * (1 + 1e-3), 2 * a, -a, 0 * a, other, norm * other, a]
    return a.to(dtype).expand(len(others), -1), torch.stack(others).to(dtype)


def exact(a: Tensor, b: Tensor, beta: float) -> Tensor:
    """The printed form, in integers: inputs and square roots to 2^-400."""
    unit = 2**400
    found = []
    for u, v in zip(a.tolist(), b.tolist(), strict=True):
        p, q = ([int(x * 2**200) * 2**200 for x in w] for w in (u, v))
        scaled_beta = int(beta * 2**200) * 2**200
        roots = [math.isqrt(scaled_beta * unit + sum(x * x for x in w)) for w in (p, q)]
        inner = sum(x * y for x, y in zip(p, q, strict=True)) - roots[0] * roots[1]
        found.append(-2 * (scaled_beta * unit + inner) / unit**2)
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize("beta", [1e-3, 1.0, 10.0])
@pytest.mark.parametrize("norm", NORMS)
def test_distance_is_right_to_the_last_digits_of_float32(norm: float, beta: float) -> None:
    a, b = pairs(norm)
    found = squared_lorentz_distance(a, b, beta)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact(a, b, beta), rtol=1e-6, atol=1e-40)
    assert (found >= 0).all()
    assert found[-1] == 0
    assert torch.equal(found, squared_lorentz_distance(b, a, beta))
    assert (found <= (a - b).double().square().sum(dim=1) * (1 + 1e-6)).all()


@pytest.mark.parametrize("norm", NORMS)
def test_gradient_of_the_distance_is_the_closed_form(norm: float) -> None:
    """``2 (b_0 / a_0) a - 2 b``, also where a = b, a = -b, or one is zero; under vmap too."""
    a, b = pairs(norm)
    lifts = [(1.0 + z.double().square().sum(dim=1, keepdim=True)).sqrt() for z in (a, b)]
    expected = 2 * lifts[1] / lifts[0] * a.double() - 2 * b.double()
    a = a.clone().requires_grad_()
    (found,) = torch.autograd.grad(squared_lorentz_distance(a, b).sum(), a)
    # The closed form itself subtracts numbers of the size of the norm.
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-14 * max(norm, 1.0))
    assert found[-1].abs().max() == 0
    mapped = torch.func.vmap(torch.func.grad(squared_lorentz_distance))(a.detach(), b)
    torch.testing.assert_close(mapped, found, rtol=1e-6, atol=1e-14 * max(norm, 1.0))


def test_gradient_of_the_distance_against_differences() -> None:
    a, b = (torch.randn(3, 5, generator=torch.Generator().manual_seed(s)).double() for s in (0, 1))
    assert torch.autograd.gradcheck(lambda a, b: squared_lorentz_distance(a, b, 0.5), (a.requires_grad_(), b))


def test_types() -> None:
    a, b = pairs(300.0)
    for dtype, expected in (
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float64, torch.float64),
    ):
        found = squared_lorentz_distance(a.to(dtype), b.to(dtype))
        assert found.dtype == expected
        assert found.isfinite().all()


def test_a_doubled_norm_is_near() -> None:
    """z = (3, 4) and 2 z: ``-2 + 2 (sqrt(26) sqrt(101) - 50)``."""
    z = torch.tensor([3.0, 4.0])
    expected = -2 + 2 * (math.sqrt(26 * 101) - 50)
    assert float(squared_lorentz_distance(z, 2 * z)) == pytest.approx(expected, rel=1e-5)
    assert expected == pytest.approx(0.49, abs=0.01)
