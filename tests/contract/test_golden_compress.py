"""Compressors in both directions on heterogeneous quadratics, against golden/compress.json."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from contract.test_golden_objectives import FullQuadratic, N, WorkAsSizes, tensor
from worlds import GOLDEN_FILES, Bystander, train

from lfl.callbacks import LBGM, STC, FederatedCallback, FetchSGD, Sign
from lfl.callbacks.codes import golomb_parameter
from lfl.callbacks.fetchsgd import CountSketch
from lfl.callbacks.qsgd import round_at_random
from lfl.participation import FixedParticipation

GOLDEN = json.loads((GOLDEN_FILES / "compress.json").read_text())
ENTRIES, SCHEDULES, PIECES = GOLDEN["Q"]["entries"], GOLDEN["Q"]["schedule"], GOLDEN["pieces"]


class States(Bystander):
    """What server and clients hold after every round; and the reference's hash, in place of ours."""

    def __init__(self, entry: dict[str, Any]) -> None:
        self.entry = entry
        self.found: list[dict[str, Any]] = []

    def on_run_start(self, federation: Any) -> None:
        super().on_run_start(federation)
        if (drawn := self.entry.get("hash")) is not None:
            buckets, signs = torch.tensor(drawn["bucket"]).int(), torch.tensor(drawn["sign"]).to(torch.int8)
            self.run.callbacks[0].sketch = CountSketch(buckets, signs, drawn["c"])

    def on_round_end(self, round: Any) -> None:
        method, store, everyone = self.run.callbacks[0], self.run.store, torch.arange(N)
        found = {"x": self.run.server.vector.clone()}
        if isinstance(method, STC):
            found |= {"E": method.state_dict()["residual"], "e_i": store.gather("stc/error", everyone)}
        if isinstance(method, LBGM):
            found["lookback"] = store.gather("lbgm/look-back", everyone)
        if isinstance(method, FetchSGD):
            # The reference sketches gradients and multiplies by the rate when they enter S_e; we sketch movements.
            eta = self.entry["hp"]["eta"]
            found |= {"S_u": -method.momentum_table / eta, "S_e": -method.error_table}
        self.found.append(found)


def fetchsgd(hp: dict[str, Any]) -> FetchSGD:
    assert (hp["removal"], hp["mask_momentum"]) == ("zero", False)
    return FetchSGD(rows=3, columns=5, k=hp["k"], momentum=hp["rho"])


METHODS: dict[str, Any] = {
    "stc/k2_partial": lambda hp: STC(hp["k"]),
    "fetchsgd/zero_partial": fetchsgd,
    "lbgm/partial": lambda hp: LBGM(hp["delta"]),
    "signsgd_vote/full": lambda hp: Sign(error_feedback=False, vote="majority"),
}


def test_every_trajectory_is_compared() -> None:
    assert METHODS.keys() == ENTRIES.keys()


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("name", METHODS)
def test_state_after_each_round(name: str, engine: str, tmp_path: Path) -> None:
    entry = ENTRIES[name]
    method: FederatedCallback = METHODS[name](entry["hp"])
    states, rounds = States(entry), entry["rounds"]
    # The rate of a vote is the server's, whatever the clients' is.
    rate = entry["hp"]["eta"] if isinstance(method, Sign) else 1.0
    train(
        [method, states],
        tmp_path,
        FullQuadratic(0.0),
        WorkAsSizes(entry["K"] or [1] * N),
        max_rounds=len(rounds),
        local_epochs=1,
        engine=engine,
        participation=FixedParticipation(SCHEDULES[entry["schedule"]]),
        server_optimizer=lambda params: torch.optim.SGD(params, lr=rate),
        logger=False,
    )
    for expected, found in zip(rounds, states.found, strict=True):
        values = {"x": expected["x"], **expected["server"], **expected["clients"]}
        assert values.keys() == found.keys()
        for key, value in values.items():
            rows = [[0.0] * 12 if row is None else row for row in value] if key == "lookback" else value
            torch.testing.assert_close(found[key], tensor(rows), rtol=0, atol=1e-10)


def test_quantized_values_are_kept_by_the_draws_that_made_them() -> None:
    """The file lacks the vector; its quantized values, at their norm, are levels which no draw changes."""
    piece = PIECES["qsgd"]
    values, draws, levels = tensor(piece["out"])[None], tensor(piece["u"])[None], piece["s"]
    norm = values.abs().max() * levels / max(piece["xi"])
    found = round_at_random(values, norm.reshape(1, 1), levels, draws)
    assert found[0].tolist() == piece["xi"]
    torch.testing.assert_close(norm * values.sign() * found / levels, values, rtol=0, atol=1e-10)


@pytest.mark.parametrize("piece", PIECES["golomb"], ids=lambda piece: str(piece["p"]))
def test_low_digits_of_golomb_codes(piece: dict[str, float]) -> None:
    assert golomb_parameter(piece["p"]) == piece["b_star"]
