"""The records that the log, staging, publishing and stores share.

Promises: a record that was decoded keeps the grammar of paths and the bounds of numbers.
Relies on: `paths` for that grammar; msgspec.
Does not promise: that a file is there, or is what its record says.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from txsink.paths import VERSION_MAX, is_data_path

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=VERSION_MAX)]
Digest: TypeAlias = Annotated[str, msgspec.Meta(max_length=64)]


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One column of the table: readable, and exact (`arrow`: the field as base64 of an Arrow IPC schema).

    Every column may hold nulls: what a producer declares non-null, its data need not keep.
    """

    name: str
    type: str
    arrow: str


class DataFile(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A Parquet file with its identity: byte count and digest of the footer region.

    `stats`, in a Delta table: what readers skip it by.
    """

    path: str
    bytes: Count
    digest: Digest
    rows: Count
    partition: dict[str, str | None]
    stats: str = ""

    def __post_init__(self) -> None:
        if not is_data_path(self.path):
            message = f"{self.path!r} is not a data path"
            raise ValueError(message)


class Upload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file that waits in an object store for its name: the id of its multipart upload, the tags of its parts."""

    id: Annotated[str, msgspec.Meta(min_length=1, max_length=2048)]
    parts: tuple[Annotated[str, msgspec.Meta(max_length=256)], ...]
