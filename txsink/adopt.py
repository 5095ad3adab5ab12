"""Files that another program wrote become staged files of an epoch: Spark's own Parquet writer, DuckDB's COPY.

Promises: a record is taken from the file's own footer, and the file holds the columns it is said to hold, in the
types that a table keeps them in, and no other; the file is durable before its record exists; what the program
left besides (empty files, `_SUCCESS`, checksums) is deleted; until `prepare` nothing here is visible, and a crash
leaves files that a sweep finds.
Relies on: the program being done: its files are closed, and only those of its successful tasks are there.
Does not promise: that the rows are those the program was told to write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from txsink import layout, schema
from txsink.conform import require_shallow
from txsink.entry import Column, DataFile
from txsink.errors import CorruptError, InvalidRequestError
from txsink.parquet import footer_of, stats_of
from txsink.place import Place
from txsink.stage import StagedFile
from txsink.store import Store


class Guest(NamedTuple):
    """A directory that another program writes into, below the run's own."""

    store: Store
    place: Place
    writer: str
    run: str
    epoch: int
    guest_id: str

    @property
    def path(self) -> str:
        """Where the program is to write."""
        return f"{self.place.directory}/{layout.guest_directory(self.epoch, self.guest_id)}"

    def adopt(self, columns: tuple[Column, ...], new_id: Callable[[], str]) -> list[StagedFile]:
        """The files as staged files, sorted; those without rows are dropped."""
        records: list[StagedFile] = []
        found = self.store.list(self.path)
        for path in found:
            # What a task attempt that lost still writes lies below `_temporary`.
            if path.endswith(".parquet") and not any(map(_is_hidden, path.split("/"))):
                record = self._record(path, len(records), columns, new_id)
                if record is not None:
                    records.append(record)
        self._drop(found)
        return sorted(records, key=lambda record: record.file.path)

    def drop(self) -> None:
        """Delete what lies there."""
        self._drop(self.store.list(self.path))

    def _drop(self, paths: list[str]) -> None:
        for path in paths:
            # DELETES: what the program left; proof: below the guest's own directory, named for this epoch (I8).
            self.store.delete(f"{self.path}/{path}")
        for parent in dict.fromkeys(path.rpartition("/")[0] for path in ("", *paths)):
            # DELETES: directories; proof: below the run's own, and empty (I8).
            self.store.prune(f"{self.path}/{parent}".rstrip("/"), self.place.directory)

    def _record(
        self, path: str, sequence: int, columns: tuple[Column, ...], new_id: Callable[[], str]
    ) -> StagedFile | None:
        where = f"{self.path}/{path}"
        found = footer_of(self.store, where)
        if found is None or not found.region:
            raise CorruptError(
                f"adopt {where}",
                "it is no whole Parquet file",
                "Write the epoch again; nothing was published",
                path=path,
            )
        footer = pq.read_metadata(pa.BufferReader(found.region))
        if not footer.num_rows:
            return None
        name = layout.data_name(self.epoch, sequence, f"{self.place.id_prefix}{new_id()}")
        data = f"{path.rpartition('/')[0]}/{name}".lstrip("/")
        if not layout.is_data_path(data):
            raise InvalidRequestError(
                f"adopt {where}",
                "it lies in a directory that no table has",
                "Write into the directory itself, or below column=value as Spark spells it; nothing was published",
                path=path,
            )
        partition = layout.parse_partitions(data)
        _require_columns(footer.schema.to_arrow_schema(), columns, partition, f"adopt {where}")
        self.store.adopt(where, f"{self.place.directory}/{data}")
        told = stats_of(self.store, f"{self.place.directory}/{data}", found) if self.place.mark else ""
        file = DataFile(data, found.identity.bytes, found.identity.digest, footer.num_rows, partition, told)
        return StagedFile(self.writer, self.run, self.epoch, file, columns, found.identity.stamp)


def _require_columns(
    file: pa.Schema, columns: tuple[Column, ...], partition: Mapping[str, str | None], what: str
) -> None:
    """Refuse a file that holds a column that nobody was told of, or one that is of another type than was told."""
    require_shallow(file, what)
    told = {field.name: field.type for field in schema.schema_of(columns) if field.name not in partition}
    for field, stored in zip(file, schema.storable(file, what), strict=True):
        kind = told.get(field.name)
        if kind is None or kind != stored.type or _is_altered(field.type):
            expected = "is none of the columns of the data" if kind is None else f"is {kind} in the data"
            raise InvalidRequestError(
                what,
                f"column {field.name!r} {expected} and {field.type} in the file",
                "Write the file with the columns and types of the data; nothing was published",
                column=field.name,
                type=str(field.type),
            )


def _is_altered(kind: Any) -> bool:
    """Whether other readers of the file find another type in it than the one a table stores for this one."""
    types = pa.types
    if types.is_nested(kind):
        return any(_is_altered(kind.field(index).type) for index in range(kind.num_fields))
    if types.is_dictionary(kind):
        return _is_altered(kind.value_type)
    return bool(types.is_null(kind) or types.is_float16(kind) or (types.is_timestamp(kind) and kind.unit != "us"))


def _is_hidden(part: str) -> bool:
    """Whether Spark passes a file or directory by: `_k=1` holds rows, so it is not dropped without a word."""
    return part.startswith(".") or (part.startswith("_") and "=" not in part)
