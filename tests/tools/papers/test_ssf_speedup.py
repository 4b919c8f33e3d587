"""SSF's speed-up in the number of stochastic gradients: constants, rates and slopes by hand."""

import math

import pytest
import torch

from lfl.problems import MatrixRegression, MatrixRegressionData
from tools.papers import ssf_speedup
from tools.papers.kept import Numbers
from tools.papers.ssf_speedup import Cell, Constants

STUDY = ssf_speedup.TARGETS["ssf-speedup"]


def problem(features: list[float], targets: list[float], clients: int) -> MatrixRegressionData:
    """Examples of one feature and one target, dealt to clients in their order."""
    data = MatrixRegressionData(clients, len(features) // clients, 1, 1, batch_size=1)
    data.examples = (torch.tensor(features).double()[:, None], torch.tensor(targets).double()[:, None])
    return data


def test_constants_by_hand() -> None:
    """Clients (1, 1), (1, 3) and (2, 2), (2, 0), ridge 0.5.

    Hessians 1.5 and 4.5, of F 3. Gradients at 0: of the examples -1, -3, -4, 0, of the clients -2 and -2, of F -2.
    Variances 1 and 4; C_0 = 4; F(0) - F* = 2^2 / (2 * 3).
    """
    found = Constants.of(problem([1, 1, 2, 2], [1, 3, 2, 0], clients=2), ridge=0.5)
    assert found == Constants(
        smoothness=pytest.approx(4.5), variance=pytest.approx(2.5), gap=pytest.approx(4 + 2 / 3), start=pytest.approx(4)
    )


def test_the_gap_is_that_of_the_objective() -> None:
    data = MatrixRegressionData(3, 20, 5, 2)
    data.setup("fit")
    features, targets = data.examples
    module = MatrixRegression(5, 2).double()
    with torch.no_grad():
        start = module.training_step((features, targets))
        module.weight.copy_(module.optimum(features, targets))
        gap = float(start - module.training_step((features, targets)))
    own = [(features[i : i + 20].mT @ targets[i : i + 20] / 20).square().sum() for i in (0, 20, 40)]
    assert Constants.of(data, 0.1).gap == pytest.approx(gap + float(sum(own)) / 3, rel=1e-12)


def test_rates_are_those_of_the_corollary() -> None:
    """L = 2, sigma^2 = 8, gap 16, rho = 1/2, N = 3, K = 2, T = 25: local 1/8, sqrt(1/2 / 27648) = 0.00425..., and
    sqrt(16 / (100 * 2 * 2 * 8 * 25 / 2)) = 0.02; stable 1/8 and 1/8, quiet sqrt(2 * 6 * 16 / 400) = 0.6928..."""
    local, server = Constants(2.0, 8.0, 16.0, 1.0).rates(Cell(3, 2), 0.5, 25)
    assert local == pytest.approx(math.sqrt(0.5 / (864 * 4 * 8)))
    assert server * local * 2 == pytest.approx(1 / (8 + 1 / math.sqrt(0.48)))


def test_the_bound_by_hand() -> None:
    """112 * 2 * 16 / (25 / 4) + 8 sqrt(2) * 16 / (sqrt(6 * 25) / 2), as sigma sqrt(L gap) = sqrt(8 * 2 * 16) = 16."""
    found = Constants(2.0, 8.0, 16.0, 1.0).bound(Cell(3, 2), 0.5, 25)
    assert found == pytest.approx(573.44 + 16 * math.sqrt(2) * 16 / math.sqrt(150))


def test_slopes_are_by_seed() -> None:
    """The first seed's norms are 3 / sqrt(N K), the second's 1 / (N K)."""
    norms = {cell: [3 / math.sqrt(cell.gradients), 1 / cell.gradients] for cell in STUDY.cells}
    assert ssf_speedup.slopes(norms) == pytest.approx([-0.5, -1.0])


def test_numbers_have_cells_and_the_slope() -> None:
    norms = {cell: [1 / math.sqrt(cell.gradients)] for cell in STUDY.cells}
    numbers = Numbers(STUDY.numbers(norms, rounds=25))
    assert numbers.mean("SSF", "slope in N K", "all") == pytest.approx(-0.5)
    assert numbers.mean("N = 20, K = 5", "norm", "cells") == 0.1
    own = ssf_speedup.constants(20, 0)
    share = 0.1 * own.unit / own.bound(Cell(20, 5), 0.2, 25)
    assert numbers.mean("N = 20, K = 5", "of the bound", "cells") == pytest.approx(share)


def test_a_run_has_the_rates_of_its_own_problem() -> None:
    first, second = (dict(STUDY.run(Cell(10, 5), seed, 100).overrides) for seed in (0, 1))
    local, server = ssf_speedup.constants(10, 1).rates(Cell(10, 5), 0.2, 100)
    assert (second["model.init_args.lr"], second["trainer.server_optimizer.init_args.lr"]) == (local, server)
    assert first["model.init_args.lr"] != local
    assert (second["data.init_args.num_clients"], second["trainer.local_steps"]) == (10, 5)
