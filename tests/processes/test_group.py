"""The processes of a run, as one of them sees the others."""

from types import SimpleNamespace

import torch
from lightning.fabric import Fabric

from lfl.processes.group import Processes, process_name


def test_one_process_is_everybody() -> None:
    processes = Processes(Fabric(accelerator="cpu", devices=1))
    assert (processes.count, processes.rank, processes.is_first) == (1, 0, True)
    assert processes.device == torch.device("cpu")
    assert processes.at_home(torch.arange(3)).tolist() == [True] * 3
    assert processes.gather("a") == ["a"]
    assert processes.ask_first(lambda: 5) == 5
    processes.barrier()
    assert process_name() == ""


def test_clients_live_with_the_process_of_their_remainder() -> None:
    ids = torch.tensor([0, 1, 2, 3, 4, 7])
    homes = []
    for rank in range(3):
        processes = Processes(SimpleNamespace(world_size=3, global_rank=rank))  # type: ignore[arg-type]
        assert processes.is_first == (rank == 0)
        homes.append(processes.at_home(ids).tolist())
    assert homes[0] == [True, False, False, True, False, False]
    assert homes[1] == [False, True, False, False, True, True]
    assert homes[2] == [False, False, True, False, False, False]
