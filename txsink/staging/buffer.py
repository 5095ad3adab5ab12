"""Rows that wait to be written: buffered, cut into pieces, sorted by partition. Pure, pyarrow.

Promises: the rows that come in go out, each once; those of one partition keep their order.
Relies on: `schema.partition_text`.
Does not promise: pieces of a given size. A dictionary that all rows share cannot be cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from txsink.schema import partition_text


class Buffer:
    """Tables that wait to be written."""

    def __init__(self, tables: Iterable[pa.Table] = ()) -> None:
        self.tables = list(tables)
        self.rows = sum(table.num_rows for table in self.tables)
        self.bytes = sum(table.nbytes for table in self.tables)
        self.small = 0  # how many tables at the end came in small

    def add(self, table: pa.Table) -> None:
        """Hold one more."""
        self.tables.append(table)
        self.rows += table.num_rows
        self.bytes += table.nbytes
        self.small += 1

    def extend(self, more: Buffer) -> None:
        """Hold what another one holds, too."""
        self.tables += more.tables
        self.rows += more.rows
        self.bytes += more.bytes
        self.small += more.small

    def copy(self) -> Buffer:
        """Another one that holds the same."""
        found = Buffer()
        found.extend(self)
        return found

    def compact(self) -> None:
        """Arrow pads each array: thousands of tiny tables take far more memory than their bytes say."""
        self.tables[-self.small :] = [copied(pa.concat_tables(self.tables[-self.small :]))]
        self.small = 0

    def copy_last(self) -> None:
        """Hold the last rows in memory of their own: the memory they came in may change."""
        if self.tables:
            self.tables[-1] = copied(self.tables[-1])


class Group(NamedTuple):
    """The rows of one partition within a sorted table."""

    values: tuple[str | None, ...]
    start: int
    rows: int


def pieces(table: pa.Table, bytes_max: int) -> Iterator[pa.Table]:
    """Slices of a table that grows too large to handle at once."""
    if (size := table.nbytes) <= 2 * bytes_max:
        yield table
        return
    half = table.slice(0, table.num_rows // 2)
    # Halves that are no smaller share what makes them large (a dictionary).
    if not half.num_rows or half.nbytes > 0.9 * size:
        yield table
    else:
        yield from pieces(half, bytes_max)
        yield from pieces(table.slice(half.num_rows), bytes_max)


def copied(table: pa.Table) -> pa.Table:
    """The table in memory of its own, one chunk a column."""
    return pa.Table.from_arrays([pa.concat_arrays(column.chunks) for column in table.columns], schema=table.schema)


def grouped(table: pa.Table, partition_columns: tuple[str, ...], what: str) -> tuple[pa.Table, list[Group]]:
    """The table sorted by partition, and where in it each partition lies."""
    keys: list[tuple[str | None, ...]] = [()]
    ids: Any = None
    for column in partition_columns:
        encoded = _encoded(table.column(column))
        texts = partition_text(encoded.dictionary, column, what)
        codes = encoded.indices
        if ids is not None:
            codes = pc.add(pc.multiply(ids.cast(pa.int64()), len(texts)), codes.cast(pa.int64()))
            encoded = codes.dictionary_encode()
            codes = encoded.indices
            pairs = [divmod(code, len(texts)) for code in encoded.dictionary.to_pylist()]
        else:
            pairs = [(0, code) for code in range(len(texts))]
        keys = [(*keys[key], texts[code]) for key, code in pairs]
        ids = codes
    if len(keys) == 1:
        return table, [Group(keys[0], 0, table.num_rows)]
    groups, start = [], 0
    # Ids are numbered in order of appearance, and so are the counts.
    for key, rows in zip(keys, pc.value_counts(ids).field("counts").to_pylist(), strict=True):
        groups.append(Group(key, start, rows))
        start += rows
    return table.take(pc.array_sort_indices(ids)), groups


def _encoded(column: pa.ChunkedArray[Any]) -> Any:
    kind = column.type
    values = pa.concat_arrays((column.cast(pa.string()) if pa.types.is_null(kind) else column).chunks)
    return values.dictionary_encode(null_encoding="encode")
