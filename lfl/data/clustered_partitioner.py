"""Label skew in clusters: clients of a cluster have similar mixes of classes."""

import numpy as np
import torch
from jsonargparse.typing import PositiveFloat, PositiveInt
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_number
from lfl.data.partitioners import Partitioner, check_positive, class_labels
from lfl.data.sampling import ExamplesByClass, deal_by_mixes, log_gamma
from lfl.randomness import derive_seed, generator

_LEAST = 1e-9  # concentration; a class with less of it is not drawn while there are others


class ClusteredDirichletPartitioner(Partitioner):
    """A mixture of Dirichlet distributions, one a cluster of clients; for methods that look for clusters.

    Each cluster g has a mix of classes m_g ~ Dir(alpha, ..., alpha), and each of its clients one of its own,
    q_i ~ Dir(beta m_g), by which it draws as many examples as all others. Client i is in cluster ``i G // N``. All
    examples are dealt as by ``EqualDirichletPartitioner``, so that the last clients may have other mixes than they have
    drawn.

    Args:
        clusters: number of clusters (G).
        alpha: concentration of the clusters' mixes, positive; small means that clusters have few classes.
        beta: how much alike the clients of a cluster are, positive; large means that they have its mix.

    Raises:
        ValueError: a value is out of range, there are fewer clients than clusters, or the targets are not class labels.
    """

    def __init__(self, clusters: PositiveInt = 4, alpha: PositiveFloat = 0.3, beta: PositiveFloat = 100.0) -> None:
        check_number("ClusteredDirichletPartitioner", "clusters", clusters, least=1, whole=True)
        check_positive(self, alpha=alpha, beta=beta)
        self.clusters = clusters
        self.alpha = alpha
        self.beta = beta

    @override
    def assign(self, targets: Tensor, groups: Tensor | None, num_clients: int, seed: int) -> Tensor:
        del groups
        if num_clients < self.clusters:
            raise ValueError(
                f"`clusters={self.clusters}` of ClusteredDirichletPartitioner, but `num_clients={num_clients}`: each "
                "cluster needs a client."
            )
        rng = np.random.default_rng(derive_seed(seed, "clustered_dirichlet"))
        by_class = ExamplesByClass.shuffled(class_labels(targets, self), generator(seed, "clustered_dirichlet"))
        num_classes = len(by_class.counts)
        mixes = torch.stack([log_gamma(rng, self.alpha, num_classes) for _ in range(self.clusters)]).softmax(1)
        concentrations = (self.beta * mixes).clamp(min=_LEAST).numpy()

        def log_mix_of(client: int) -> Tensor:
            return log_gamma(rng, concentrations[client * self.clusters // num_clients], num_classes)

        return deal_by_mixes(by_class, num_clients, rng, log_mix_of)
