"""What an offline run of W&B has in its file."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_records(folder: Path) -> Iterator[Any]:
    """The records of a ``.wandb`` file: LevelDB's log format (blocks of 32 KiB) with a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = folder.glob("*.wandb")
    data, position, message = path.read_bytes(), 7, b""
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
        _, length, kind = struct.unpack("<IHB", data[position : position + 7])
        message += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(message)
            message = b""
