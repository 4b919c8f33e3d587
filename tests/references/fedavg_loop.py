"""Federated averaging by hand: the loop that `lfl` must equal bit for bit.

Plain PyTorch: one model, `torch.optim.SGD`, `loss.backward()`, a mean of updates in float64. The only things taken from
`lfl` are the draws (who takes part, how a client's examples are shuffled) and the data.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from lfl.data import FederatedData
from lfl.participation import Participation, UniformParticipation
from lfl.randomness import client_keys, fold, random_bits


class FedAvgLoop:
    """FedAvg with local SGD and cross entropy, on the CPU, for models without dropout and without buffers.

    Args:
        model: from a batch of inputs to logits; starts at its own parameters and holds the server's after each round.
        data: a data module that was set up, its training set without random transforms.
        lr: learning rate of the clients' SGD.
        local_epochs: passes of a client over its data in a round.
        weighted: weigh clients by their examples, or all alike.
        participation: who takes part.
        seed: of all draws; the same as the trainer's.
    """

    def __init__(
        self,
        model: nn.Module,
        data: FederatedData,
        lr: float,
        local_epochs: int = 1,
        weighted: bool = True,
        participation: Participation | None = None,
        seed: int = 0,
    ) -> None:
        self.model, self.data, self.lr, self.local_epochs = model, data, lr, local_epochs
        self.weighted, self.seed = weighted, seed
        self.participation = participation or UniformParticipation(clients_per_round=10)
        self.vector = parameters_to_vector(model.parameters()).detach().clone()

    def run_round(self, number: int) -> Tensor:
        """Run one round, counted from 1; returns the server's new parameters [D]."""
        total = torch.zeros_like(self.vector, dtype=torch.float64)
        weights = 0.0
        for client in self.participation.select(number, self.data.num_clients, self.seed).tolist():
            weight = float(self.data.client_sizes[client]) if self.weighted else 1.0
            total += weight * self._train(client, number).double()
            weights += weight
        self.vector = self.vector + (total / weights).float()
        vector_to_parameters(self.vector.clone(), self.model.parameters())
        return self.vector

    def _train(self, client: int, number: int) -> Tensor:
        """A client's update [D]."""
        vector_to_parameters(self.vector.clone(), self.model.parameters())
        self.model.train()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=self.lr)
        examples = self.data.partition.client(client)
        key = client_keys(torch.tensor([client]), self.seed, "shuffle", number)
        for epoch in range(self.local_epochs):
            order = examples[random_bits(fold(key, epoch), len(examples))[0].argsort(stable=True)]
            for batch in order.split(self.data.batch_size):
                x, y = self.data.gather(batch)
                loss = F.cross_entropy(self.model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return parameters_to_vector(self.model.parameters()).detach() - self.vector
