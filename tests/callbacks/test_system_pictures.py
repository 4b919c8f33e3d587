"""Pictures of the simulated system: the numbers that are drawn, and that a run does not change by them."""

import math
from pathlib import Path

import matplotlib.image
import pytest
import torch
from worlds import Rounds, ragged_data, train

from lfl.callbacks import SystemPictures, TopK
from lfl.participation import FastestParticipation, FullParticipation
from lfl.system import Consecutive, FixedTimes, Links, TimeSharing, Unreliable


def test_what_is_drawn_of_a_round(tmp_path: Path) -> None:
    """Of five clients two are waited for, 4 drops out; bars of who sent are of their bits, of others what is expected.

    Times 1 to 5 for computing, 832 float64 numbers at 1e5 down and 1e4 up: 0.53248 and, for all of them, 5.3248
    seconds.
    """
    clock = Consecutive([FixedTimes([[1.0, 2.0, 3.0, 4.0, 5.0]]), Links(up=1e4, down=1e5)])
    system = Unreliable(clock, deadline=8.5, dropout=[0.0, 0.0, 0.0, 0.0, 1.0])
    drawn, kept = SystemPictures(every_n_rounds=2), Rounds()
    stack = [TopK(0.1), kept, drawn]
    options = {"system": system, "max_rounds": 3, "data": ragged_data(5)}
    trainer = train(stack, tmp_path, participation=FastestParticipation(2), **options)
    found = drawn.timeline(kept.kept[-1])
    assert found.ids.tolist() == [0, 1, 2, 3, 4]
    assert found.fates == ["answers", "answers", "not needed", "not needed", "dropped"]
    model, sent = trainer.layout.dim * 64, float(kept.kept[-1].totals.uplink_bits[0])
    assert sent < 0.2 * model
    assert found.times.download.tolist() == pytest.approx([model / 1e5] * 5)
    assert found.times.compute.tolist() == [1.0, 2.0, 3.0, 4.0, math.inf]
    assert found.times.upload.tolist() == pytest.approx([sent / 1e4] * 2 + [model / 1e4] * 3)
    folder = Path(trainer.log_dir) / "pictures"
    names = [f"{name}_{number:06d}.png" for name in ("round", "speeds") for number in (2, 3)]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert all(bool((matplotlib.image.imread(folder / name)[..., :3] < 0.5).any()) for name in names)
    plain = train([TopK(0.1)], tmp_path, participation=FastestParticipation(2), **options)
    assert torch.equal(trainer.server.vector, plain.server.vector)
    assert trainer.run.progress.simulated_seconds == plain.run.progress.simulated_seconds
    everybody = train(stack, tmp_path, participation=FullParticipation(), **options)
    assert drawn.timeline(kept.kept[-1]).fates == ["answers"] * 2 + ["late"] * 2 + ["dropped"]
    assert everybody.run.progress.simulated_seconds == {"time": 8.5 * 3}


def test_what_is_refused(tmp_path: Path) -> None:
    for system in (None, TimeSharing(1.0)):
        with pytest.raises(ValueError, match=r"SystemPictures draws clients' times: it needs a `trainer.system`"):
            train([SystemPictures()], tmp_path, system=system)
    with pytest.raises(ValueError, match="`bins=0` of SystemPictures must be a whole number of at least 1"):
        SystemPictures(bins=0)
