"""Attention, recurrent layers and Lightning's own demos: every way of computing their steps gives the same numbers."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from contract.methods import also
from lightning.pytorch import LightningModule
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.demos.lstm import LightningLSTM, SimpleLSTM
from lightning.pytorch.demos.transformer import LightningTransformer, Transformer
from torch import Tensor, nn
from worlds import train

from lfl.data import FederatedDataModule, IIDPartitioner, TensorData
from lfl.data.sources import Source
from lfl.participation import FullParticipation
from lfl.trainer import FederatedTrainer

pytestmark = pytest.mark.filterwarnings("ignore:.*_dataloader` is never called")  # Lightning's demos have some

WORDS, LENGTH = 7, 5
WAYS = [("sequential", True), ("vectorized", False), ("vectorized", True)]


class Tokens(Source):
    """Sequences of words, each with the next word as its target; 0 stands for the padding at the ends of some."""

    num_classes = 0

    def load(self) -> tuple[TensorData, TensorData]:
        draws = torch.Generator().manual_seed(0)
        words = torch.randint(1, WORDS, (24, LENGTH + 1), generator=draws)
        words[::3, -2:] = 0
        data = TensorData(words[:, :-1], words[:, 1:])
        return data, data


class Vectors(Source):
    """Inputs of 32 numbers, as BoringModel takes them."""

    num_classes = 0

    def load(self) -> tuple[TensorData, TensorData]:
        data = TensorData(torch.randn(24, 32, generator=torch.Generator().manual_seed(0)), torch.zeros(24))
        return data, data


class Text(LightningModule):
    """Predicts the next word of every place."""

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        inputs, targets = batch
        loss = F.cross_entropy(self(inputs).flatten(0, 1), targets.flatten())
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


class Encoder(Text):
    """torch's encoder, that looks at words before each place alone and at no padding."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8, padding_idx=0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, WORDS)

    def forward(self, inputs: Tensor) -> Tensor:
        future = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        hidden = self.encoder(self.words(inputs), mask=future, src_key_padding_mask=inputs == 0)
        return self.head(hidden)


class Recurrent(Text):
    """Two layers of an LSTM or a GRU."""

    def __init__(self, kind: type[nn.RNNBase], dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 6)
        self.layers = kind(6, 8, num_layers=2, dropout=dropout, batch_first=True)
        self.head = nn.Linear(8, WORDS)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.layers(self.words(inputs))[0])


class Boring(BoringModel):
    """Lightning's simplest module, which takes inputs alone."""

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> dict[str, Tensor]:
        return super().training_step(batch[0], 0)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> dict[str, Tensor]:
        return super().validation_step(batch[0], 0)


class Demo(LightningTransformer):
    """Lightning's transformer for a few words; its table of positions and its mask are made in its first step."""

    def __init__(self, dropout: float) -> None:
        super().__init__(vocab_size=WORDS)
        self.model = Transformer(WORDS, 8, 2, 16, 1, dropout)


class DemoLSTM(Text):
    """Lightning's LSTM, beginning with nothing at every batch."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.model = SimpleLSTM(WORDS, 6, 8, 2, dropout)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        inputs, targets = batch
        output, _ = self.model(inputs, self.model.init_hidden(len(inputs)))
        return F.nll_loss(output, targets.flatten())


class TinyGPT2(Text):
    """GPT-2 of transformers, from a configuration, with the two-dimensional mask that its users give it."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        transformers = pytest.importorskip("transformers")
        sizes = {"vocab_size": WORDS, "n_positions": LENGTH, "n_embd": 8, "n_layer": 1, "n_head": 2}
        options = {"bos_token_id": None, "eos_token_id": None, "use_cache": False}
        dropouts = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), dropout)
        self.model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **options, **dropouts)).train()

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        inputs, targets = batch
        logits = self.model(input_ids=inputs, attention_mask=(inputs > 0).long()).logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=0)


MODELS: dict[str, Callable[[float], LightningModule]] = {
    "boring": lambda dropout: Boring(),
    "encoder": Encoder,
    "lstm": lambda dropout: Recurrent(nn.LSTM, dropout),
    "gru": lambda dropout: Recurrent(nn.GRU, dropout),
    "lightning's transformer": Demo,
    "lightning's lstm": DemoLSTM,
    "gpt-2": TinyGPT2,
}


def fitted(module: LightningModule, folder: Path, engine: str, trace_steps: bool | str) -> FederatedTrainer:
    source = Vectors() if isinstance(module, BoringModel) else Tokens()
    data = FederatedDataModule(source=source, partitioner=IIDPartitioner(), num_clients=4, batch_size=3)
    options = {"max_rounds": 2, "participation": FullParticipation(), "logger": False}
    return train([], folder, module, data, engine=engine, trace_steps=trace_steps, **options)


def made(name: str, dropout: float) -> LightningModule:
    torch.manual_seed(0)
    return MODELS[name](dropout)


@pytest.mark.filterwarnings("ignore:.*enable_nested_tensor")
@pytest.mark.parametrize("dropout", [also(0.0), 0.3])
@pytest.mark.parametrize("name", MODELS)
def test_every_way_gives_the_same(name: str, dropout: float, tmp_path: Path) -> None:
    start = torch.cat([p.detach().double().flatten() for p in made(name, dropout).parameters()])
    plain = fitted(made(name, dropout), tmp_path, "sequential", False).server.vector
    assert not torch.allclose(plain, start)
    for engine, recorded in WAYS:
        found = fitted(made(name, dropout), tmp_path, engine, recorded).server.vector
        torch.testing.assert_close(found, plain, rtol=0, atol=1e-9, msg=f"{engine}, recorded: {recorded}")


@pytest.mark.parametrize("name", ["encoder", "lstm", "lightning's transformer", "gpt-2"])
def test_dropout_matters(name: str, tmp_path: Path) -> None:
    runs = [fitted(made(name, dropout), tmp_path, "vectorized", False).server.vector for dropout in (0.0, 0.3)]
    assert not torch.allclose(*runs, rtol=0, atol=1e-4)


@pytest.mark.filterwarnings("ignore:.*sequential engine")
def test_what_is_carried_from_batch_to_batch_stays_with_one_client_at_a_time(tmp_path: Path) -> None:
    """Lightning's LSTM keeps its hidden state between batches: that is no function of a batch."""
    torch.manual_seed(0)
    module = LightningLSTM(WORDS)
    module.model = SimpleLSTM(WORDS, 6, 8, 1, 0.0)
    with pytest.raises(ValueError, match="its training step changes the module's attribute 'hidden'"):
        fitted(module, tmp_path, "vectorized", "auto")
    trainer = fitted(module, tmp_path, "auto", "auto")
    assert trainer.engine.name == "sequential"
    assert not trainer.engine.steps.are_recorded
