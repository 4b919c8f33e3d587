"""fastText: the mean of words' vectors, and a linear layer.

A. Joulin, E. Grave, P. Bojanowski, T. Mikolov, "Bag of Tricks for Efficient Text Classification", EACL 2017,
https://arxiv.org/abs/1607.01759
"""

from jsonargparse.typing import PositiveInt
from torch import Tensor, nn
from typing_extensions import override

from lfl.models.backbone import Backbone
from lfl.vocabulary import PADDING


class FastText(Backbone):
    """Mean of the vectors of a text's words, and a linear layer; (words + classes) x dimensions + classes parameters.

    Unlike the paper it has no vectors of pairs of words, and an ordinary softmax.

    Args:
        vocabulary_size: number of different indices of words; index 0 fills texts up, and is not averaged.
        dimensions: length of a word's vector.
        num_classes: number of logits.
        hidden: width of a linear layer before the head, as PFLlib's fastText has one; none for none.

    Example:
        >>> import torch
        >>> model = FastText(vocabulary_size=100, dimensions=8, num_classes=4)
        >>> model(torch.tensor([[5, 7, 0, 0]])).equal(model(torch.tensor([[5, 7, 0, 0, 0]])))
        True
    """

    def __init__(
        self,
        vocabulary_size: PositiveInt = 30_000,
        dimensions: PositiveInt = 32,
        num_classes: PositiveInt = 4,
        hidden: PositiveInt | None = None,
    ) -> None:
        mean = MeanEmbedding(vocabulary_size, dimensions)
        features = mean if hidden is None else nn.Sequential(mean, nn.Linear(dimensions, hidden))
        super().__init__(features, hidden or dimensions, num_classes)


class MeanEmbedding(nn.Module):
    """The mean of the vectors of a text's words; zeros for a text without words.

    It computes what ``nn.EmbeddingBag`` does, of which vmap cannot make one operation for all clients.

    Args:
        vocabulary_size: number of different indices; index 0 stands for no word.
        dimensions: length of a vector.
    """

    def __init__(self, vocabulary_size: int, dimensions: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, dimensions, padding_idx=PADDING)

    @override
    def forward(self, words: Tensor) -> Tensor:
        """Means (texts, dimensions) of indices (texts, length)."""
        vectors: Tensor = self.embedding(words.long())
        is_word = (words != PADDING).to(vectors.dtype)
        return (vectors * is_word.unsqueeze(2)).sum(1) / is_word.sum(1, keepdim=True).clamp(min=1)
