"""The base class: hooks that are there or not, and stacks without a meaning."""

from pathlib import Path

import pytest
from worlds import HEAD, train

from lfl.callbacks import SSF
from lfl.engine import LocalPhase


def test_coordinates_move_all_parameters(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="SSF moves all parameters by coordinates"):
        train([SSF()], tmp_path, local_phases=[LocalPhase(HEAD)])
