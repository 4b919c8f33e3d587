"""Pictures of partitions."""

import json
from pathlib import Path

import pytest

from lfl.data import FederatedDataModule
from tools.plot_partition import main


def test_a_partition_is_drawn_from_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = FederatedDataModule(num_clients=5)
    data.setup("fit")
    data.partition.save(tmp_path / "partition.pt")
    settings = {"class_path": "lfl.data.FederatedDataModule", "init_args": {"num_clients": 5}}
    (tmp_path / "config.yaml").write_text(json.dumps({"data": settings}))
    main([str(tmp_path)])
    assert capsys.readouterr().out.strip() == str(tmp_path / "partition.png")
    assert (tmp_path / "partition.png").read_bytes().startswith(b"\x89PNG")


def test_a_missing_partition_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"^plot_partition: There is no partition at "):
        main([str(tmp_path)])
