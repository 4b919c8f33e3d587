"""What all choices share."""

import torch
from torch import Tensor

from lfl.participation import Participation


class Even(Participation):
    """Clients of even ids; implements what it must."""

    def select(self, round_number: int, num_clients: int, seed: int) -> Tensor:
        return torch.arange(0, num_clients, 2)

    def check(self, num_clients: int) -> None:
        pass


def test_a_choice_needs_no_more_than_select_and_check() -> None:
    even = Even()
    chosen = even.select(1, 5, 0)
    assert even.invited(chosen, 1, 5, 0).tolist() == [0, 2, 4]
    assert not even.holds(1)
    assert even.count(5) is None
    assert even.system is even.client_sizes is None
