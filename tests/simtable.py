"""A table on a simulated disk, seen by both kinds of reader; ids and clock count."""

from __future__ import annotations

import io
import itertools
from functools import lru_cache
from types import ModuleType
from typing import Any, cast

import pyarrow.parquet as pq

from txsink.environment import Stamps
from txsink.log.log import Log
from txsink.reading.table import Table, open_log
from txsink.store.local.store import LocalStore
from txsink.testing.simdisk import SimDisk
from txsink.writing.opening import open_sink
from txsink.writing.writer import Writer

ROOT = "/d/t"


class SimTable:
    """The table at `ROOT`; every call works as a process of its own."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        ids, clock = itertools.count(1), itertools.count(1_760_000_000_000)
        self._stamps = Stamps(lambda: next(clock), lambda: f"{next(ids):032x}", lambda attempt: None)

    def open(self, writer: str = "w", *, is_one_shot: bool = False, **options: Any) -> Writer:
        return open_sink(self._store(), self._stamps, ROOT, writer, options, is_one_shot=is_one_shot)

    def log(self) -> Log:
        """The log, as a process has it that has not looked yet."""
        return Log(self._store(), ROOT, self._stamps)

    def table(self) -> Table:
        return open_log(self._store(), self._stamps, ROOT)

    def by_log(self) -> list[int]:
        """The ids that a reader of the log gets."""
        found = self.table().to_arrow()
        return sorted(found["id"].to_pylist()) if "id" in found.column_names else []

    def by_directory(self) -> list[int]:
        """The ids in all Parquet files below the root, wherever they lie."""
        files = self.disk.files().items()
        inside = [data for path, data in files if path.startswith(f"{ROOT}/") and path.endswith(".parquet")]
        return sorted(row for data in inside for row in _ids_in(data))

    def rows(self) -> list[int]:
        """The ids, seen the same by both."""
        found = self.by_log()
        assert found == self.by_directory()
        return found

    def _store(self) -> LocalStore:
        return LocalStore(cast("ModuleType", self.disk))


@lru_cache(maxsize=10_000)
def _ids_in(data: bytes) -> list[int]:
    return cast("list[int]", pq.ParquetFile(io.BytesIO(data)).read(["id"])["id"].to_pylist())
