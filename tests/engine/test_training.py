"""A fast path is left as soon as it is seen to be wrong, and what hooks change is followed."""

import os
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from worlds import Stock, ragged_data, train

from lfl.callbacks import SSF
from lfl.engine.graph.traced import TraceError
from lfl.subspace import LayerwiseSubspace


def hidden_round() -> int:
    """Where no one can see it: in the environment."""
    return int(os.environ["LFL_TEST_ROUND"])


class Net(Stock):
    """Keeps the round out of sight."""

    def on_train_epoch_start(self) -> None:
        os.environ["LFL_TEST_ROUND"] = str(self.current_epoch)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        del batch_idx
        return self.loss(self.layers(batch[0]), batch[1])

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits, y)


def fitted(kind: type[Net], folder: Path, engine: str, rounds: int = 6, **options: Any) -> Any:
    torch.manual_seed(0)
    os.environ["LFL_TEST_ROUND"] = "0"
    return train([], folder, kind(), ragged_data(), engine=engine, max_rounds=rounds, **options)


def chosen_vectorized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `auto` find vectorized rounds faster, whatever the clock says."""
    monkeypatch.setattr("lfl.engine.select._Chooser._is_faster", lambda *_: True)


class Weighted(Net):
    """From round 4 on a weighted mean, which padding does not give."""

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits, y, weight=torch.tensor([0.1, 0.2, 0.3, 2.0]) if hidden_round() > 2 else None)


def test_a_step_that_changes_behind_its_back_is_found_out_and_only_padding_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen_vectorized(monkeypatch)
    with pytest.warns(UserWarning, match="From round 4 on, Weighted is trained without padding: the gradient of"):
        auto = fitted(Weighted, tmp_path, "auto")
    assert (auto.engine.name, auto.engine.padded_width) == ("vectorized", 0)
    plain = fitted(Weighted, tmp_path, "sequential")
    # Round 4 is one of those that are watched: nothing wrong has been kept.
    torch.testing.assert_close(auto.server.vector, plain.server.vector, rtol=0, atol=1e-9)
    assert auto.run.engine_choice["is_padded"] is False


class Drawing(Net):
    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits, y) * (np.random.rand() if hidden_round() > 2 else 1.0)


def test_clients_never_share_a_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Round 4 onwards: numpy's generator moves while a cohort is trained, and the cohort is trained again."""
    chosen_vectorized(monkeypatch)
    with pytest.warns(UserWarning, match="one client at a time: its training step draws from numpy's global generator"):
        auto = fitted(Drawing, tmp_path, "auto")
    assert auto.engine.name == "sequential"
    plain = fitted(Drawing, tmp_path, "sequential")
    torch.testing.assert_close(auto.server.vector, plain.server.vector, rtol=0, atol=1e-9)


class Branching(Net):
    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(logits, y)
        return 2 * loss if hidden_round() > 1 and loss > 1 else loss


def test_a_step_that_fails_on_its_path_goes_on_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen_vectorized(monkeypatch)
    with pytest.warns(UserWarning, match="From round 3 on, Branching is trained one client at a time: its training"):
        auto = fitted(Branching, tmp_path, "auto")
    plain = fitted(Branching, tmp_path, "sequential")
    torch.testing.assert_close(auto.server.vector, plain.server.vector, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("kind", "error"), [(Drawing, "numpy's global generator"), (Branching, "data-dependent")])
def test_a_path_that_was_asked_for_by_name_ends_the_run(kind: type[Net], error: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=error):
        fitted(kind, tmp_path, "vectorized")


def test_a_recording_that_was_asked_for_by_name_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot record the step of Weighted from round 4 on: the gradient of"):
        fitted(Weighted, tmp_path, "sequential", trace_steps=True)


class Ignoring(Net):
    """Ignores the class that only some clients have: an example of it has no mean of its own."""

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits, y, ignore_index=3)


def test_what_an_example_alone_has_no_loss_for_is_not_padded(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runs = [fitted(Ignoring, tmp_path, engine, on_nonfinite="skip") for engine in ("sequential", "vectorized")]
    assert not runs[1].engine.padded_width
    torch.testing.assert_close(runs[1].server.vector, runs[0].server.vector, rtol=0, atol=1e-9)


class Followed(Net):
    """What hooks change, and what depends on the round in sight."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.noise = nn.Dropout(0.0), 0.0

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.drop.p = 0.5
        if self.current_epoch == 2:
            self.layers[1].requires_grad_(False)
            self.noise = 0.1
        if self.current_epoch == 3:
            self.layers[1].requires_grad_(True)
            self.drop.eval()

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        noisy = self.drop(logits) + self.noise * torch.randn_like(logits)
        return F.cross_entropy(F.dropout(noisy, 0.2, training=self.current_epoch >= 4), y)


def test_what_hooks_change_is_followed_on_both_engines(tmp_path: Path) -> None:
    runs = [
        fitted(Followed, tmp_path, engine, server_optimizer=with_momentum) for engine in ("sequential", "vectorized")
    ]
    torch.testing.assert_close(runs[1].server.vector, runs[0].server.vector, rtol=0, atol=1e-9)
    assert runs[0].run.training.generation >= 4


def with_momentum(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.7, momentum=0.5)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("server_optimizer", [with_momentum, lambda params: torch.optim.Adam(params, lr=0.01)])
def test_what_is_frozen_does_not_move_at_the_server_either(engine: str, server_optimizer: Any, tmp_path: Path) -> None:
    kept: list[Tensor] = []

    class Frozen(Followed):
        def on_train_epoch_end(self) -> None:
            kept.append(self.layers[1].weight.detach().clone())

    fitted(Frozen, tmp_path, engine, rounds=5, server_optimizer=server_optimizer)
    assert [not torch.equal(a, b) for a, b in pairwise(kept)] == [True, False, True, True]


def test_a_resumed_run_finds_what_hooks_have_set(tmp_path: Path) -> None:
    from lfl.checkpointing import Checkpointing

    for engine in ("sequential", "vectorized"):
        folder = tmp_path / engine
        options = {"checkpoint": Checkpointing(every_n_rounds=1, keep_all=True)}
        unbroken = fitted(Followed, folder, engine, **options)
        for number in (2, 3, 4):
            checkpoint = Path(unbroken.log_dir) / "checkpoints" / f"round_{number:06d}.ckpt"
            torch.manual_seed(0)
            resumed = train(
                [], folder, Followed(), ragged_data(), str(checkpoint), engine=engine, max_rounds=6, **options
            )
            assert torch.equal(resumed.server.vector, unbroken.server.vector), (engine, number)


def test_coordinates_move_everything_so_that_nothing_may_be_frozen_later(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with pytest.raises(ValueError, match=r"SSF moves all parameters by coordinates, but 'layers.1.weight' is frozen"):
        train([SSF(LayerwiseSubspace(0.5))], tmp_path, Followed(), ragged_data(), max_rounds=4)


def test_a_part_that_nobody_knew_of_is_refused_with_the_way_to_do_it(tmp_path: Path) -> None:
    class Late(Net):
        """Unfreezes when it has seen a validation, which no look ahead can know."""

        def __init__(self) -> None:
            super().__init__()
            self.layers[1].requires_grad_(False)

        def on_validation_epoch_end(self) -> None:
            self.layers[1].requires_grad_(True)

    with pytest.raises(
        ValueError, match=r"'layers.1.weight' requires a gradient from round 2 on.*give it `requires_grad"
    ):
        fitted(Late, tmp_path, "sequential", check_val_every_n_rounds=1)
