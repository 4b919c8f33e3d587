"""FedGen's generator."""

import torch

from lfl.models import FeatureGenerator


def test_its_size_is_the_published_formula() -> None:
    """``(q + C) H + H + 2 H + H d + d``; BatchNorm's statistics come on top."""
    q, classes, hidden, d = 5, 3, 7, 4
    generator = FeatureGenerator(classes, d, noise=q, hidden=hidden)
    size = (q + classes) * hidden + hidden + 2 * hidden + hidden * d + d
    assert sum(p.numel() for p in generator.parameters()) == size
    assert sum(b.numel() for b in generator.buffers() if b.is_floating_point()) == 2 * hidden


def test_classes_and_noise_make_the_features() -> None:
    torch.manual_seed(0)
    generator = FeatureGenerator(num_classes=3, num_features=4, noise=5, hidden=7).eval()
    noise, labels = torch.rand(1, 5).expand(3, -1), torch.arange(3)
    of_classes = generator(noise, labels)
    assert of_classes.shape == (3, 4)
    assert torch.equal(generator(noise, labels.flip(0)), of_classes.flip(0))
    assert (of_classes[0] - of_classes[1]).abs().max() > 0.01
    assert (generator(noise + 0.5, labels) - of_classes).abs().min() > 0
