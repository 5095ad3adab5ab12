"""Files that another program wrote become staged files of an epoch: Spark's own Parquet writer, DuckDB's COPY.

Promises: a record is taken from the file's own footer; the file is durable before its record exists; what the program
left besides (empty files, `_SUCCESS`, checksums) is deleted; until `prepare` nothing here is visible, and a crash
leaves files that a sweep finds.
Relies on: the program being done: its files are closed, and only those of its successful tasks are there.
Does not promise: that the file holds what the program was told to write.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from txsink import layout, stats
from txsink.entry import Column, DataFile
from txsink.errors import CorruptError, InvalidRequestError
from txsink.parquet import footer_of
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
            self.store.delete(f"{self.path}/{path}")
        for parent in dict.fromkeys(path.rpartition("/")[0] for path in ("", *paths)):
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
        rows = pq.read_metadata(pa.BufferReader(found.region)).num_rows
        if not rows:
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
        self.store.adopt(where, f"{self.place.directory}/{data}")
        told = stats.of_region(found.region) if self.place.mark else ""
        file = DataFile(data, found.identity.bytes, found.identity.digest, rows, layout.parse_partitions(data), told)
        return StagedFile(self.writer, self.run, self.epoch, file, columns, found.identity.stamp)


def _is_hidden(part: str) -> bool:
    """Whether Spark passes a file or directory by: `_k=1` holds rows, so it is not dropped without a word."""
    return part.startswith(".") or (part.startswith("_") and "=" not in part)
