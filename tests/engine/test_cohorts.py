"""Cohorts come again if they were not trained: fewer clients at a time, or for another engine."""

from pathlib import Path

import torch
from worlds import mlp, ragged_data, train

from lfl.engine.cohorts import cohorts_of
from lfl.round import Round


def test_each_client_comes_once_and_those_not_trained_again(tmp_path: Path) -> None:
    engine = train([], tmp_path / "a", mlp(), ragged_data(), engine="vectorized", max_rounds=0).engine
    other = train([], tmp_path / "b", mlp(), ragged_data(), engine="sequential", max_rounds=0).engine
    engine.cohort_size = 4
    ids = torch.arange(8)
    round = Round(1, ids, torch.zeros(engine.model.layout.dim).double(), ids, ids)
    current = [engine]
    seen = []
    for number, cohort in enumerate(cohorts_of(lambda: current[0], round, torch.empty(0), [])):
        seen.append(cohort.ids.tolist())
        if number == 0:
            engine.cohort_size = 2  # out of memory
        if number == 2:
            current[0] = other
    first = seen[0]
    assert seen[1] == first[:2]
    assert seen[2] == first[2:]
    assert sorted(client for ids in seen[3:] for client in ids) == sorted(set(range(8)) - set(first[:2]))
    assert all(len(ids) == 1 for ids in seen[3:])


def test_a_round_without_clients_has_no_cohort(tmp_path: Path) -> None:
    engine = train([], tmp_path, mlp(), ragged_data(), engine="vectorized", max_rounds=0).engine
    none = torch.empty(0, dtype=torch.int64)
    round = Round(1, none, torch.zeros(engine.model.layout.dim), none, none)
    assert list(cohorts_of(lambda: engine, round, torch.empty(0), [])) == []
