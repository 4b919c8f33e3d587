"""A tiny GPT-2 with LoRA adapters, trained on the sequences of users: only adapters train and travel."""

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import seed_everything
from torch import Tensor, optim
from torch.nn import functional as F

from lfl.callback import FederatedCallback
from lfl.callbacks import FLSS, SSF
from lfl.data import FederatedDataModule, HuggingFaceSource, NaturalPartitioner, PadCollate
from lfl.models import CausalLM
from lfl.participation import FullParticipation
from lfl.subspace import DenseSubspace
from lfl.trainer import FederatedTrainer
from tools.toy_text import VOCABULARY, write

GPT = {
    "model_type": "gpt2",
    "vocab_size": VOCABULARY,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "n_positions": 32,
    "n_embd": 16,
    "n_layer": 1,
    "n_head": 2,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
LORA = {"r": 2, "target_modules": ["c_attn"], "fan_in_fan_out": True}
ADAPTER = 2 * 16 + 48 * 2  # A is 2 x 16, B is 48 x 2: queries, keys and values
PADS = {"input_ids": 0, "attention_mask": 0, "labels": -100}


class SGDLM(CausalLM):
    """With plain SGD, for methods that correct gradients."""

    def configure_optimizers(self) -> optim.Optimizer:
        return optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.5)


def model_of(kind: type[CausalLM] = CausalLM, **options: Any) -> CausalLM:
    seed_everything(1, verbose=False)
    return kind(GPT, **{"lora": LORA, "lr": 0.02, **options})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("text") / "counting"
    write(str(path), users=4, train=6, test=2)
    return str(path)


def fit(
    root: Path,
    folder: str,
    model: CausalLM,
    callbacks: list[FederatedCallback] | None = None,
    multiple_of: int = 8,
    **options: Any,
) -> FederatedTrainer:
    source = HuggingFaceSource(folder, target=None, groups="user", collate_fn=PadCollate(PADS, multiple_of))
    data = FederatedDataModule(source, NaturalPartitioner(), num_clients=4, batch_size=3)
    trainer = FederatedTrainer(
        participation=FullParticipation(),
        callbacks=callbacks,
        default_root_dir=str(root),
        enable_progress_bar=False,
        **{"max_rounds": 3, "engine": "vectorized", **options},
    )
    trainer.fit(model, data)
    return trainer


def value_of(trainer: FederatedTrainer, name: str) -> float:
    found = trainer.summary.last(name)
    assert found is not None
    return found[0]


def test_only_adapters_train_and_travel(tmp_path: Path, folder: str) -> None:
    model = model_of(lr=0.1)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    trainer = fit(tmp_path, folder, model, max_rounds=8)
    assert trainer.layout.dim == ADAPTER
    for direction in ("up", "down"):
        assert value_of(trainer, f"comm/{direction}_bytes") == 4 * ADAPTER * 4  # four clients, four bytes a number
    changed = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert {name.rsplit(".", 3)[1] for name in changed} == {"lora_A", "lora_B"}
    # A model that knows nothing has log(32) = 3.466; adapters learn little where the layers below are random.
    assert value_of(trainer, "train/loss") < math.log(VOCABULARY) - 0.03


def test_engines_padding_and_recording_agree(tmp_path: Path, folder: str) -> None:
    """The same clients one at a time, together, padded further, and replayed: the same adapters."""
    vectors = [
        fit(tmp_path, folder, model_of(SGDLM), multiple_of=multiple_of, **options).server.vector
        for multiple_of, options in (
            (1, {"engine": "sequential"}),
            (8, {"engine": "vectorized"}),
            (16, {"engine": "vectorized", "trace_steps": True}),
        )
    ]
    for vector in vectors[1:]:
        torch.testing.assert_close(vector, vectors[0], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    "method",
    [lambda: SSF(DenseSubspace(rank=20)), lambda: FLSS(warmup_rounds=2, rank=2, sample_every=None)],
    ids=["SSF", "FLSS"],
)
def test_subspace_methods_train_adapters(tmp_path: Path, folder: str, method: Any) -> None:
    trainer = fit(tmp_path, folder, model_of(SGDLM), [method()], max_rounds=4)
    assert trainer.layout.dim == ADAPTER
    assert trainer.server.vector.isfinite().all()
    assert value_of(trainer, "comm/up_bytes") < 4 * ADAPTER * 4
    assert value_of(trainer, "train/loss") < 3.5


def test_a_gpt_without_adapters_is_trained_whole(tmp_path: Path, folder: str) -> None:
    model = model_of(lora=None, lr=0.01)
    trainer = fit(tmp_path, folder, model, max_rounds=2)
    # Vectors of tokens (the head too) and of places; queries, keys and values, the layer behind them, two of the MLP;
    # three normalisations.
    assert trainer.layout.dim == 2 * 32 * 16 + (17 * 48 + 17 * 16 + 17 * 64 + 65 * 16) + 3 * 2 * 16
    assert trainer.layout.dim == sum(parameter.numel() for parameter in model.parameters())
    assert value_of(trainer, "train/loss") < 3.4


def test_attention_that_looks_at_its_mask_is_trained_together_too(tmp_path: Path, folder: str) -> None:
    trainer = fit(tmp_path, folder, model_of(attention="sdpa"), engine="vectorized", max_rounds=1)
    expected = fit(tmp_path, folder, model_of(), engine="sequential", max_rounds=1)
    torch.testing.assert_close(trainer.server.vector, expected.server.vector, rtol=1e-3, atol=1e-5)


def test_the_loss_is_that_of_the_next_tokens() -> None:
    """Two examples of three tokens; the last one of the second is padding."""
    model = model_of().eval()
    ids = torch.tensor([[1, 2, 3], [4, 5, 0]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    logits = model(ids, mask)
    pairs = [(0, 0, 2), (0, 1, 3), (1, 0, 5)]
    expected = torch.stack([F.cross_entropy(logits[i, t], torch.tensor(token)) for i, t, token in pairs]).mean()
    for batch in (
        {"input_ids": ids, "attention_mask": mask},
        {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([[1, 2, 3], [4, 5, -100]])},
    ):
        torch.testing.assert_close(model.training_step(batch, 0), expected)
    logged: dict[str, Tensor] = {}
    model.log_dict = lambda values, batch_size: logged.update(values, size=batch_size)  # type: ignore[assignment]
    model.validation_step(batch, 0)
    hits = sum(int(logits[i, t].argmax()) == token for i, t, token in pairs)
    assert (logged["size"], float(logged["val_acc"])) == (3, pytest.approx(hits / 3))
    torch.testing.assert_close(logged["val_loss"], expected)
    assert model.predict_step(batch, 0).tolist() == logits.argmax(-1).tolist()


def test_a_trained_model_is_read_from_a_folder(tmp_path: Path) -> None:
    first = model_of(lora=None)
    first.network.save_pretrained(tmp_path / "gpt")
    again = CausalLM(pretrained=str(tmp_path / "gpt"), lora=LORA)
    ids = torch.tensor([[1, 2, 3]])
    torch.testing.assert_close(again.eval()(ids), first.eval()(ids))  # adapters begin as zero


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "Give `config=None` or `pretrained=None` of CausalLM, and not both"),
        ({"config": GPT, "pretrained": "gpt2"}, "and not both"),
        ({"config": {"n_layer": 2}}, "names no `model_type`, such as gpt2"),
    ],
)
def test_settings_that_make_no_model_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CausalLM(**options)


@pytest.mark.parametrize("package", ["transformers", "peft"])
def test_the_packages_are_asked_for(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        ModuleNotFoundError, match=r"CausalLM needs the packages .*: pip install 'lfl\[huggingface\]'\."
    ):
        model_of()


def test_a_missing_model_is_said_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=f"`pretrained='empty'` of CausalLM .*{tmp_path / 'empty'}"):
        CausalLM(pretrained="empty")
