"""Which clients a scope is of, and what is made of their values."""

import math
from pathlib import Path

import pytest
import torch
from personal_toy import train_toy
from worlds import mlp, train

from lfl.scopes import Scope, ScopeEvaluation, statistics


def test_statistics_by_hand() -> None:
    """Of 11 clients, two are the worst tenth."""
    pairs = [(1, 1.0), (3, 0.0), (1, 0.5), *((1, 1.0),) * 8]
    found = statistics(pairs, direction=1)
    mean = 9.5 / 11
    assert found == pytest.approx(
        {
            "": 9.5 / 13,
            "client_mean": mean,
            "client_std": math.sqrt((mean**2 + (0.5 - mean) ** 2 + 9 * (1 - mean) ** 2) / 11),
            "worst_tenth": 0.25,
        }
    )
    assert statistics(pairs, direction=-1)["worst_tenth"] == 1.0
    assert "worst_tenth" not in statistics(pairs, direction=0)


def test_statistics_of_what_is_not_finite() -> None:
    assert math.isnan(statistics([(1, math.nan), (1, 0.5)], 1)["worst_tenth"])
    assert statistics([(1, math.inf), (1, 0.5)], -1)[""] == math.inf
    assert math.isnan(statistics([(1, math.inf), (1, -math.inf)], -1)[""])
    assert statistics([(1, 1e308), (1, 1e308), (1, -1e308)], 1)["client_std"] == math.inf


def test_clients_of_a_scope(tmp_path: Path) -> None:
    run = train_toy(tmp_path, max_rounds=0).run
    assert Scope("a").clients(run).tolist() == [True] * 4 + [False]
    assert Scope("a", of_new=True).clients(run).tolist() == [False] * 4 + [True]
    evaluation = ScopeEvaluation(Scope("a"), run)
    assert (evaluation.ids.tolist(), evaluation.num_left_out) == ([0, 1, 2], 1)
    fewer = ScopeEvaluation(Scope("a"), run, max_clients=2)
    assert (fewer.ids.tolist(), fewer.num_left_out) == ([0, 2], 1)


def test_results_are_those_of_each_client(tmp_path: Path) -> None:
    trainer = train([], tmp_path, mlp(), max_rounds=1)
    run = trainer.run
    evaluation = ScopeEvaluation(Scope("all", models="server"), run)
    results = evaluation.run(None)  # type: ignore[arg-type]  # only fine-tuning looks at the round
    assert [result.client for result in results] == evaluation.ids.tolist()
    assert [result.examples for result in results] == run.data.client_test_sizes[evaluation.ids].tolist()
    expected = run.evaluate_clients(evaluation.ids, run.server.vector.expand(len(results), -1))
    for result, metrics in zip(results, expected, strict=True):
        assert result.metrics == pytest.approx(metrics)
    assert sum(r.examples * r.metrics["val_loss"] for r in results) / 40 == pytest.approx(
        trainer.summary.last("val_loss")[0]
    )
    assert torch.equal(run.server.vector, trainer.server.vector)
