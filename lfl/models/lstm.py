"""LSTMs that read words, or characters.

S. Hochreiter, J. Schmidhuber, "Long Short-Term Memory", Neural Computation 9(8), 1997.
"""

import torch
from jsonargparse.typing import NonNegativeInt, PositiveInt
from torch import Tensor, nn
from typing_extensions import override

from lfl.models.backbone import Backbone
from lfl.vocabulary import PADDING, glove_vectors


class CharLSTM(Backbone):
    """Two layers of LSTM that read characters, and a linear layer for the next one: LEAF's model of Shakespeare.

    S. Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018, https://arxiv.org/abs/1812.01097. It has 819,920
    parameters, of which torch's second biases of the gates are 4,096.

    Args:
        vocabulary_size: number of different characters, and of logits.
        dimensions: length of a character's vector.
        hidden: width of a layer.
        num_layers: number of layers.

    Example:
        >>> sum(p.numel() for p in CharLSTM().parameters())
        819920
    """

    def __init__(
        self,
        vocabulary_size: PositiveInt = 80,
        dimensions: PositiveInt = 8,
        hidden: PositiveInt = 256,
        num_layers: PositiveInt = 2,
    ) -> None:
        features = _LastState(nn.Embedding(vocabulary_size, dimensions), hidden, num_layers)
        super().__init__(features, hidden, vocabulary_size)


class TextLSTM(Backbone):
    """Layers of LSTM, in both directions, that read the words of a text, then a small layer of units, and the head.

    The defaults are the model of Sentiment140 in "Straggler-Resilient Personalized Federated Learning", Appendix C. The
    state behind the last word of the forward direction, and before the first one of the backward direction, is what a
    text is classified by. The backward direction begins at what fills the text up, which has vectors of zeros.

    Args:
        vocabulary_size: number of different indices of words; index 0 fills texts up.
        dimensions: length of a word's vector; ignored with `glove`.
        hidden: width of a layer in one direction.
        num_layers: number of layers.
        bidirectional: whether texts are read in both directions.
        dropout: share of what is dropped between the layers, and behind the last one.
        units: of the layer before the head; 0 for no such layer.
        num_classes: number of logits.
        glove: file of GloVe that has the words' vectors, that of the data's source; none for vectors that begin at
            random.
        trains_embedding: whether words' vectors are trained, and sent; those of `glove` are usually not.

    Raises:
        FileNotFoundError: there is no file `glove`.
    """

    def __init__(
        self,
        vocabulary_size: PositiveInt = 10_000,
        dimensions: PositiveInt = 100,
        hidden: PositiveInt = 256,
        num_layers: PositiveInt = 2,
        bidirectional: bool = True,
        dropout: float = 0.5,
        units: NonNegativeInt = 5,
        num_classes: PositiveInt = 2,
        glove: str | None = None,
        trains_embedding: bool = True,
    ) -> None:
        embedding = nn.Embedding(vocabulary_size, dimensions, padding_idx=PADDING)
        if glove is not None:
            embedding = nn.Embedding.from_pretrained(glove_vectors(glove, vocabulary_size), padding_idx=PADDING)
        embedding.requires_grad_(trains_embedding)
        width = hidden * (2 if bidirectional else 1)
        features: list[nn.Module] = [
            _LastState(embedding, hidden, num_layers, bidirectional, dropout),
            nn.Dropout(dropout),
        ]
        if units:
            features += [nn.Linear(width, units), nn.ReLU()]
        super().__init__(nn.Sequential(*features), units or width, num_classes)


class _LastState(nn.Module):
    """The output of an LSTM's last layer behind the last word, and before the first if it reads backwards too."""

    def __init__(
        self,
        embedding: nn.Embedding,
        hidden: int,
        num_layers: int,
        bidirectional: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.lstm = nn.LSTM(
            embedding.embedding_dim,
            hidden,
            num_layers,
            batch_first=True,
            bidirectional=bidirectional,
            dropout=dropout if num_layers > 1 else 0.0,  # torch warns of one that has no place
        )

    @override
    def forward(self, words: Tensor) -> Tensor:
        """States (texts, hidden), or twice as wide, of indices (texts, length)."""
        outputs, _ = self.lstm(self.embedding(words.long()))
        hidden = self.lstm.hidden_size
        if self.embedding.padding_idx is None:
            last = outputs[:, -1, :hidden]
        else:
            place = (words != PADDING).sum(1).sub(1).clamp(min=0)
            last = outputs[..., :hidden].gather(1, place[:, None, None].expand(-1, 1, hidden)).squeeze(1)
        return torch.cat([last, outputs[:, 0, hidden:]], dim=1) if self.lstm.bidirectional else last
