"""The record of one staged file, as it travels from a worker to the coordinator.

Promises: JSON-able; what comes back is checked, believing nothing.
Relies on: `paths` for names.
Does not promise: that the file is there. `parquet.verify` looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from txsink import paths
from txsink.errors import InvalidRequestError
from txsink.records import Column, Count, DataFile, Upload


class StagedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the coordinator needs to know of one staged file. JSON-able; checked when it comes back."""

    writer: str
    run: str
    epoch: Count
    file: DataFile
    columns: tuple[Column, ...]
    stamp: Annotated[str, msgspec.Meta(max_length=255)]
    part: str | None = None
    upload: Upload | None = None

    def __post_init__(self) -> None:
        for name in (self.writer, self.run):
            if problem := paths.name_problem(name):
                message = f"the name {name!r} cannot be: {problem}"
                raise ValueError(message)
        if self.file.partition != paths.parse_partitions(self.file.path):
            message = f"the partition values are not those of the path {self.file.path!r}"
            raise ValueError(message)

    def to_dict(self) -> dict[str, Any]:
        """Plain builtins, for JSON or any other carrier."""
        return msgspec.to_builtins(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> StagedFile:
        """The inverse of `to_dict`, believing nothing."""
        try:
            return msgspec.convert(record, cls)
        except (msgspec.ValidationError, RecursionError) as error:
            raise InvalidRequestError(
                "read the record of a staged file", str(error), "Pass on what the stager returned, unchanged"
            ) from error
