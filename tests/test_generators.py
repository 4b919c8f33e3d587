"""Draws of code that asks no generator of ours: seeded by an address, and put back."""

import random
from typing import Any

import numpy as np
import pytest
import torch

from lfl.generators import HostGenerators


class Owner:
    """Has a generator of each kind, in each place where they are looked for."""

    shared = np.random.default_rng(9)

    def __init__(self) -> None:
        self.torch = torch.Generator()
        self.numpy = {"train": np.random.default_rng(0), "test": (np.random.Generator(np.random.MT19937(1)),)}
        self.old = np.random.RandomState(2)
        self.odd = np.random.RandomState(np.random.PCG64(3))
        self.python = [random.Random(4)]
        self.again = self.old
        self.system = random.SystemRandom()
        self.globals = [torch.default_generator, np.random.mtrand._rand]

    def draw(self) -> list[float]:
        """Three numbers of each global generator, and of each of its own; half of a pair of normal ones stays there."""
        return [
            *torch.randn(3).tolist(),
            *np.random.randn(3),
            *(random.gauss(0, 1) for _ in range(3)),
            *torch.randn(3, generator=self.torch).tolist(),
            *self.numpy["train"].normal(size=3),
            *self.numpy["test"][0].normal(size=3),
            *self.old.randn(3),
            *self.odd.randn(3),
            *(self.python[0].gauss(0, 1) for _ in range(3)),
            *self.shared.normal(size=3),
        ]


GLOBAL = ["torch's global generator", "numpy's global generator", "Python's `random`"]
OWN = ["torch", "numpy['train']", "numpy['test'][0]", "old", "odd", "python[0]", "shared"]


@pytest.fixture(autouse=True)
def _undisturbed() -> Any:
    with HostGenerators().kept():
        yield


def test_generators_are_found_once_each() -> None:
    assert list(HostGenerators(Owner()).own) == OWN


def test_an_address_decides_on_every_draw() -> None:
    owner = Owner()
    generators = HostGenerators(owner)
    drawn = []
    for address in (("item", 1), ("item", 2), ("item", 1)):
        generators.seed(*address)
        drawn.append(owner.draw())
        owner.draw()
    assert drawn[0] == drawn[2]
    # Each generator has a seed of its own, so nothing is drawn twice.
    assert len({*drawn[0], *drawn[1]}) == 2 * len(drawn[0])


def test_another_object_of_the_kind_draws_the_same() -> None:
    drawn = []
    for owner in (Owner(), Owner()):
        owner.draw()
        HostGenerators(owner).seed(5)
        drawn.append(owner.draw())
    assert drawn[0] == drawn[1]


def test_states_are_kept_after_an_error_too() -> None:
    owner = Owner()
    owner.draw()
    generators = HostGenerators(owner)
    state = generators.state()
    ahead = owner.draw()
    generators.restore(state)

    def fail() -> None:
        with generators.kept():
            generators.seed("elsewhere")
            owner.draw()
            raise KeyError("elsewhere")

    with pytest.raises(KeyError, match="elsewhere"):
        fail()
    assert generators.moved_since(state) == []
    assert owner.draw() == ahead


def test_what_has_drawn_is_named() -> None:
    owner = Owner()
    generators = HostGenerators(owner)
    state = generators.state()
    owner.old.rand()
    random.random()
    assert generators.moved_since(state) == ["Python's `random`", "its generator `old`"]
    owner.draw()
    assert generators.moved_since(state) == [*GLOBAL, *(f"its generator `{name}`" for name in OWN)]


def test_a_draw_that_leaves_half_a_pair_behind_counts() -> None:
    """The second normal number of a pair comes from the state, without moving the bits."""
    np.random.randn()
    state = HostGenerators().state()
    np.random.randn()
    assert HostGenerators().moved_since(state) == ["numpy's global generator"]


@pytest.mark.gpu
def test_cuda_counts_once_it_is_in_use() -> None:
    generators = HostGenerators()
    torch.zeros(1, device="cuda")
    state = generators.state()
    with generators.kept():
        generators.seed("a")
        first = torch.rand(3, device="cuda")
        assert "torch's generator of cuda:0" in generators.moved_since(state)
        generators.seed("a")
        assert torch.equal(first, torch.rand(3, device="cuda"))
    assert generators.moved_since(state) == []


class Mixing:
    """A helper object of the user's with a generator of its own."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)


class Reading:
    """Draws from its helper's generator, and from one of its file."""

    def __init__(self) -> None:
        self.mixing = Mixing()

    def draw(self) -> float:
        return float(OF_THIS_FILE.random()) + max(OTHER_OF_THIS_FILE.random() for _ in range(2))


OF_THIS_FILE = np.random.default_rng(1)
OTHER_OF_THIS_FILE = random.Random(2)


def test_generators_of_helpers_and_of_the_file_are_found() -> None:
    assert list(HostGenerators(Reading()).own) == ["mixing.rng", "OF_THIS_FILE", "OTHER_OF_THIS_FILE"]
