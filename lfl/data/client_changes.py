"""Changes of clients' data that differ from client to client: feature skew, and labels that are wrong.

They are made once, when the data is dealt, to the examples of each client, those that it is tested on included.
Examples of nobody (held out for validation) stay as they are.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from jsonargparse.typing import ClosedUnitInterval, PositiveFloat
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_number
from lfl.data.examples import Examples, TensorData
from lfl.data.partition import IndexSets
from lfl.randomness import generator


class Client(NamedTuple):
    """A client whose examples are changed.

    Attributes:
        number: of the client.
        total: number of clients (N).
        seed: of the draws.
        part: ``train`` or ``test``.
    """

    number: int
    total: int
    seed: int
    part: str


class ClientChange(ABC):
    """Base class of changes.

    Attributes:
        of_tests: whether test examples are changed too.
    """

    of_tests: ClassVar[bool] = True

    @abstractmethod
    def __call__(self, inputs: Tensor, targets: Tensor, client: Client) -> tuple[Tensor, Tensor]:
        """Change the examples of a client.

        Args:
            inputs: (n, ...).
            targets: (n, ...).
            client: whose examples they are.

        Returns:
            Inputs and targets, of the same shapes and types.
        """

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in vars(self).items())})"


class ClientRotation(ClientChange):
    """Rotates images by an angle of the client; those of MNIST by quarters are usual ("Rotated MNIST").

    Args:
        degrees: angles, counter-clockwise; client i has that at ``i`` modulo their number.

    Raises:
        ValueError: there are none.
    """

    def __init__(self, degrees: list[float]) -> None:
        if not degrees:
            raise ValueError(f"`degrees={degrees}` of ClientRotation must name an angle.")
        self.degrees = degrees

    @override
    def __call__(self, inputs: Tensor, targets: Tensor, client: Client) -> tuple[Tensor, Tensor]:
        from torchvision.transforms.functional import InterpolationMode, rotate

        _check_images(self, inputs)
        angle = self.degrees[client.number % len(self.degrees)]
        quarters, rest = divmod(angle, 90)
        if not rest:  # exactly
            return inputs.rot90(int(quarters), (2, 3)), targets
        mode = InterpolationMode.BILINEAR if inputs.is_floating_point() else InterpolationMode.NEAREST
        return rotate(inputs, angle, mode), targets


class ClientNoise(ClientChange):
    """Adds Gaussian noise, to client i with a standard deviation of ``std (i + 1) / N``.

    The "noise-based feature distribution skew" of Li et al., "Federated Learning on Non-IID Data Silos", ICDE 2022,
    section IV-B, whose levels count clients from 1.

    Args:
        std: standard deviation of the last client's noise, positive.
    """

    def __init__(self, std: PositiveFloat = 0.1) -> None:
        check_number("ClientNoise", "std", std, above=0)
        self.std = std

    @override
    def __call__(self, inputs: Tensor, targets: Tensor, client: Client) -> tuple[Tensor, Tensor]:
        _check_floats(self, inputs)
        draws = generator(client.seed, "client_noise", client.number, client.part)
        noise = torch.randn(inputs.shape, generator=draws, dtype=inputs.dtype)
        return inputs + self.std * (client.number + 1) / client.total * noise, targets


class ClientColour(ClientChange):
    """Multiplies each channel of a client's images by a factor that is drawn once, from U[1 - spread, 1 + spread].

    Args:
        spread: from 0 to 1.
    """

    def __init__(self, spread: ClosedUnitInterval = 0.5) -> None:
        _check_share(self, spread=spread)
        self.spread = spread

    @override
    def __call__(self, inputs: Tensor, targets: Tensor, client: Client) -> tuple[Tensor, Tensor]:
        _check_images(self, inputs)
        _check_floats(self, inputs)
        draws = generator(client.seed, "client_colour", client.number)  # the same for training and testing
        factors = 1 + self.spread * (2 * torch.rand(inputs.shape[1], generator=draws, dtype=inputs.dtype) - 1)
        return inputs * factors[:, None, None], targets


class ClientLabelNoise(ClientChange):
    """Gives a share of a client's training examples another label; the share is drawn for each client from U[0, most].

    Test examples keep their labels.

    Args:
        num_classes: number of classes; a wrong label is any of the others, equally likely.
        most: largest share, from 0 to 1.
    """

    of_tests: ClassVar[bool] = False

    def __init__(self, num_classes: int, most: ClosedUnitInterval = 0.4) -> None:
        check_number("ClientLabelNoise", "num_classes", num_classes, least=2, whole=True)
        _check_share(self, most=most)
        self.num_classes = num_classes
        self.most = most

    @override
    def __call__(self, inputs: Tensor, targets: Tensor, client: Client) -> tuple[Tensor, Tensor]:
        if targets.dim() != 1 or targets.is_floating_point():
            raise ValueError("ClientLabelNoise needs one class label per example, and these targets are none.")
        draws = generator(client.seed, "client_label_noise", client.number)
        share = self.most * float(torch.rand((), generator=draws))
        is_wrong = torch.rand(len(targets), generator=draws) < share
        shift = torch.randint(1, self.num_classes, targets.shape, generator=draws)
        return inputs, torch.where(is_wrong, (targets + shift) % self.num_classes, targets)


def changed(data: Examples, sets: IndexSets, changes: Sequence[ClientChange], seed: int, part: str) -> Examples:
    """The data with all changes of its clients' examples, in order.

    Args:
        data: a training or test set.
        sets: who has what of it.
        changes: in order.
        seed: of the draws.
        part: ``train`` or ``test``.

    Raises:
        ValueError: the data is not in memory, as tensors (inputs, targets), or is none that a change is for.
    """
    kept = [change for change in changes if change.of_tests or part == "train"]
    if not kept:
        return data
    if not isinstance(data, TensorData):
        raise ValueError(
            f"`client_changes` ({', '.join(type(change).__name__ for change in kept)}) are for data in memory whose "
            "items are (input, target): set `in_memory: true`, or leave them out."
        )
    inputs, targets = data.inputs.clone(), data.targets.clone()
    for number in range(len(sets)):
        positions = sets.client(number)
        for change in kept:
            found = change(inputs[positions], targets[positions], Client(number, len(sets), seed, part))
            inputs[positions], targets[positions] = found
    return TensorData(inputs, targets, data.groups, data.classes, data.users)


def _check_images(change: ClientChange, inputs: Tensor) -> None:
    if inputs.dim() != 4:
        raise ValueError(
            f"{type(change).__name__} needs images [n, channels, height, width], got {list(inputs.shape)}."
        )


def _check_floats(change: ClientChange, inputs: Tensor) -> None:
    if not inputs.is_floating_point():
        raise ValueError(f"{type(change).__name__} got {inputs.dtype} inputs: set `as_uint8: false` of the source.")


def _check_share(change: ClientChange, **settings: float) -> None:
    for name, value in settings.items():
        if not 0 <= value <= 1:
            raise ValueError(f"`{name}={value}` of {type(change).__name__} must be from 0 to 1.")
