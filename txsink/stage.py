"""Rows -> staged Parquet files, buffered and split by partition. Knows no log.

Promises: a file that `finish` names is durable under its staged name, holds the rows that were written and has the
recorded identity; a failed write leaves nothing once `discard` is called; memory is bounded however much is written,
as long as the batches that come in are; types are those of `schema.storable`.
Relies on: `parquet` for one file; the store's `create`, whose Output makes bytes durable at `seal`.
Does not promise: durable *names* (prepare settles them), the order of rows (those of one partition keep theirs), or
exact sizes: a file ends with the row group whose end comes closest to `target_file_bytes`.

How rows travel: write -> `tables_of` -> pieces -> `conform` -> buffer -> row groups -> files. Without partition
columns the buffer holds less than a row group. With them it holds two row groups' bytes over all partitions; when it
is full, the largest partitions are written until half of it is free: few rows wait long, and row groups stay large.

Columns that hold only nulls so far have no type: they are columns of the table, but stand in no file, because Spark
reads them as integers and then fails on the files whose values have a type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from txsink import layout, schema
from txsink.entry import Column, Count, DataFile, Upload
from txsink.errors import InvalidRequestError
from txsink.parquet import Identity, ParquetOutput, StageOptions, identity, verify
from txsink.rows import tables_of
from txsink.store import Output, Store, Uploads

__all__ = ["EpochStager", "Identity", "StageOptions", "StagedFile", "identity", "verify"]

_SMALL_TABLES_MAX = 256
_BUFFERED_GROUPS = 2  # row groups' bytes in the buffer of a partitioned write
_BUFFERED_ROWS = 8  # and row groups' rows, for the rows that hold next to no bytes


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
            if problem := layout.name_problem(name):
                message = f"the name {name!r} cannot be: {problem}"
                raise ValueError(message)
        if self.file.partition != layout.parse_partitions(self.file.path):
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


class _Group(NamedTuple):
    """The rows of one partition within a sorted table."""

    values: tuple[str | None, ...]
    start: int
    rows: int


class EpochStager:
    """Stages what one part of one epoch writes: `write` as often as needed, then `finish` or `discard`."""

    def __init__(
        self,
        store: Store,
        directory: str,
        *,
        writer: str,
        run: str,
        epoch: int,
        partition_columns: tuple[str, ...],
        columns: tuple[Column, ...],
        merge_schema: bool,
        options: StageOptions,
        new_id: Callable[[], str],
        part: str | None = None,
        is_in_place: bool = False,
    ) -> None:
        self._what = f"stage epoch {epoch} of {writer!r}"
        for name in (writer, run):
            if problem := layout.name_problem(name):
                raise InvalidRequestError(self._what, f"the name {name!r} cannot be: {problem}", "Use another name")
        if type(epoch) is not int or not 0 <= epoch <= layout.VERSION_MAX:
            raise InvalidRequestError(
                self._what, "the epoch is no integer from 0 to 2^63 - 1", "Number epochs from 0", epoch=epoch
            )
        self._store = store
        self._directory = directory
        self._names = (writer, run, epoch)
        self._part = part
        self._is_in_place = is_in_place
        self._partition_columns = partition_columns
        self._merge_schema = merge_schema
        self._options = options
        self._new_id = new_id
        self.closed = ""  # why nothing more can be written
        self._rows = self._changes = 0
        self._given: pa.Schema | None = None  # of the last data that came in
        self._checked: dict[str, Any] = {}  # partition values that can be directories
        self._know(columns, schema.schema_of(columns))
        self._buffer: list[pa.Table] = []
        self._small = 0  # how many tables at the end of the buffer came in small
        self._buffered_rows = self._buffered_bytes = 0
        self._sequence = 0
        self._open: dict[str, ParquetOutput] = {}  # by partition directory, the last used last
        self._outputs: list[Output] = []
        self._sealed: list[tuple[DataFile, str, Upload | None]] = []

    @property
    def columns(self) -> tuple[Column, ...]:
        """The table's columns, with those that this epoch's data brought."""
        return self._columns

    def write(self, data: object) -> int:
        """Take rows of any kind `rows.tables_of` knows; returns how many."""
        self._require_open()
        before, changes = self._rows, self._changes
        try:
            for rows in tables_of(data, lambda: self._target, self._what):
                for piece in _pieces(rows.table, self._options.row_group_bytes):
                    self._take(self._conformed(piece), is_borrowed=rows.is_borrowed)
        except BaseException as error:
            if self._changes != changes:
                # Some rows of the call are in, some are not: only a fresh start gives the epoch its content.
                self.closed = f"an earlier write failed half-way ({error})"
            raise
        return self._rows - before

    def finish(self) -> list[StagedFile]:
        """Write what is buffered, make all files durable; their records, sorted by path."""
        if self.closed != "it is finished":
            self._require_open()
            self.closed = "finishing it failed"
            self._drain(is_last=True)
            for directory in list(self._open):
                self._seal(directory)
            self.closed = "it is finished"
        records = [
            StagedFile(*self._names, file, self._columns, stamp, self._part, upload)
            for file, stamp, upload in self._sealed
        ]
        return sorted(records, key=lambda record: record.file.path)

    def discard(self) -> None:
        """Delete everything this stager made; never raises."""
        self.closed = "it was discarded"
        self._buffer = []
        for file in self._open.values():
            file.abandon()
        for output in self._outputs:
            output.discard()
        self._open, self._sealed = {}, []

    def _require_open(self) -> None:
        if self.closed:
            raise InvalidRequestError(self._what, f"nothing can be written: {self.closed}", "Begin the epoch again")

    # -- columns --------------------------------------------------------------------------------------

    def _know(self, columns: tuple[Column, ...], target: pa.Schema) -> None:
        self._columns = columns
        self._target = target
        named = [name for name in target.names if name not in self._partition_columns]
        typed = [name for name in named if not pa.types.is_null(target.field(name).type)]
        self._file_columns = typed or named  # a file needs a column

    def _conformed(self, table: pa.Table) -> pa.Table:
        if self._given is not None and table.schema.equals(self._given):
            conformed = schema.conform(table, self._target, self._what)
            self._check_values(conformed)
            return conformed
        try:
            columns = _merged(table.schema, self._columns, self._partition_columns, self._merge_schema)
        except InvalidRequestError as error:
            raise InvalidRequestError(self._what, error.found, error.advice, **error.context) from None
        target = schema.schema_of(columns)
        conformed = schema.conform(table, target, self._what)
        self._check_values(conformed)
        if columns != self._columns:
            self._changes += 1
            # A file has one schema: files begun under the old one end here.
            for directory in list(self._open):
                self._seal(directory)
            self._know(columns, target)
            self._buffer = [schema.conform(waiting, target) for waiting in self._buffer]
        self._given = table.schema
        return conformed

    # -- buffer ---------------------------------------------------------------------------------------

    def _take(self, table: pa.Table, *, is_borrowed: bool) -> None:
        if not table.num_rows:
            return
        self._changes += 1
        self._rows += table.num_rows
        self._buffer.append(table)
        self._buffered_rows += table.num_rows
        self._buffered_bytes += table.nbytes
        self._small += 1
        options = self._options
        if self._partition_columns:
            is_full = (
                self._buffered_bytes >= _BUFFERED_GROUPS * options.row_group_bytes
                or self._buffered_rows >= _BUFFERED_ROWS * options.row_group_rows
            )
        else:
            group_bytes = min(options.row_group_bytes, options.target_file_bytes)
            is_full = self._buffered_bytes >= group_bytes or self._buffered_rows >= options.row_group_rows
        if is_full:
            self._drain(is_last=False)
        elif self._small >= _SMALL_TABLES_MAX:
            # Arrow pads each array: thousands of tiny tables take far more memory than their bytes say.
            self._buffer[-self._small :] = [_copied(pa.concat_tables(self._buffer[-self._small :]))]
            self._small = 0
        if is_borrowed and self._buffer:
            self._buffer[-1] = _copied(self._buffer[-1])

    def _check_values(self, table: pa.Table) -> None:
        """Refuse a value that cannot be a directory before its row is taken."""
        for column in self._partition_columns:
            values = table.column(column).unique()
            known = self._checked.get(column)
            if known is None or known.type != values.type:
                known = values.slice(0, 0)
            new = values.filter(pc.invert(pc.is_in(values, value_set=known)))
            if len(new):
                schema.partition_text(new, column, self._what)
                self._checked[column] = pa.concat_arrays([known, new])

    def _drain(self, *, is_last: bool) -> None:
        """Write what makes whole row groups; all there is when `is_last`."""
        if not self._buffer:
            return
        table = pa.concat_tables(self._buffer) if len(self._buffer) > 1 else self._buffer[0]
        options = self._options
        bytes_max = min(options.row_group_bytes, options.target_file_bytes)
        bytes_rows = table.num_rows * bytes_max // max(1, self._buffered_bytes)
        group_rows = max(1, min(options.row_group_rows, options.file_rows_max, bytes_rows))
        if self._partition_columns:
            rest = self._drain_partitions(table, group_rows, is_last=is_last)
        else:
            whole = table.num_rows if is_last else table.num_rows // group_rows * group_rows
            self._write((), table.slice(0, whole), group_rows)
            rest = table.slice(whole)
        self._buffer = [rest] if rest.num_rows else []
        self._small = 0
        self._buffered_rows = rest.num_rows
        self._buffered_bytes = rest.nbytes if rest.num_rows else 0

    def _drain_partitions(self, table: pa.Table, group_rows: int, *, is_last: bool) -> pa.Table:
        table, groups = self._grouped(table)
        written, kept = 0, []
        for group in sorted(groups, key=lambda group: -group.rows):
            rows = table.slice(group.start, group.rows)
            if is_last or 2 * written < table.num_rows:
                self._write(group.values, rows, group_rows)
                written += group.rows
            else:
                kept.append(rows)
        return _copied(pa.concat_tables(kept)) if kept else table.slice(0, 0)

    def _grouped(self, table: pa.Table) -> tuple[pa.Table, list[_Group]]:
        """The table sorted by partition, and where in it each partition lies."""
        keys: list[tuple[str | None, ...]] = [()]
        ids: Any = None
        for column in self._partition_columns:
            encoded = _encoded(table.column(column))
            texts = schema.partition_text(encoded.dictionary, column, self._what)
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
            return table, [_Group(keys[0], 0, table.num_rows)]
        groups, start = [], 0
        # Ids are numbered in order of appearance, and so are the counts.
        for key, rows in zip(keys, pc.value_counts(ids).field("counts").to_pylist(), strict=True):
            groups.append(_Group(key, start, rows))
            start += rows
        return table.take(pc.array_sort_indices(ids)), groups

    # -- files ----------------------------------------------------------------------------------------

    def _write(self, values: tuple[str | None, ...], table: pa.Table, group_rows: int) -> None:
        directory = layout.partition_directory(list(self._partition_columns), list(values))
        if len(self._file_columns) < table.num_columns:
            table = table.select(self._file_columns)
        rows_max = self._options.file_rows_max
        while table.num_rows:
            output = self._open.pop(directory, None)
            # What is open was begun with row groups of another size, perhaps.
            room = rows_max - (output.rows if output is not None else 0)
            group = table.slice(0, min(group_rows, room))
            table = table.slice(group.num_rows)
            output = output or self._create(directory, group)
            self._open[directory] = output
            output.write(group)
            is_full = output.bytes + output.bytes / output.groups / 2 >= self._options.target_file_bytes
            if is_full or output.rows >= rows_max:
                self._seal(directory)

    def _create(self, directory: str, first: pa.Table) -> ParquetOutput:
        if len(self._open) >= self._options.open_partitions_max:
            self._seal(next(iter(self._open)))
        name = layout.data_name(self._names[2], self._sequence, self._new_id())
        self._sequence += 1
        path = f"{directory}/{name}" if directory else name
        output = self._new_output(f"{self._directory}/{path}")
        self._outputs.append(output)
        return ParquetOutput(output, path, first, self._options, has_stats=self._is_in_place)

    def _new_output(self, path: str) -> Output:
        if self._is_in_place and not self._store.traits.moves:
            return cast("Uploads", self._store).create_object(path)
        return self._store.create(path)

    def _seal(self, directory: str) -> None:
        output = self._open[directory]
        file = output.seal()
        del self._open[directory]
        # A store that cannot move files has no stamps either.
        tail = self._store.tail(f"{self._directory}/{file.path}", 0) if self._store.traits.moves else None
        self._sealed.append((file, tail.stamp if tail else "", output.upload))


@lru_cache(maxsize=64)
def _merged(
    given: pa.Schema,
    known: tuple[Column, ...],
    partition_columns: tuple[str, ...],
    merge_schema: bool,  # noqa: FBT001 -- lru_cache tells keywords from positions
) -> tuple[Column, ...]:
    """The table's columns once data of this schema is in. The same in most epochs, hence the cache."""
    stored = schema.storable(given)
    columns = schema.merge(known, schema.columns_of(stored), merge_schema=merge_schema)
    # A partition column that the data lacks is a mistake, no column of nulls.
    lacks = not {*partition_columns} <= {*stored.names}
    schema.check_partition_columns(partition_columns, stored if lacks else schema.schema_of(columns))
    return columns


def _pieces(table: pa.Table, bytes_max: int) -> Iterator[pa.Table]:
    """Slices of a table that grows too large to handle at once."""
    if (size := table.nbytes) <= 2 * bytes_max:
        yield table
        return
    half = table.slice(0, table.num_rows // 2)
    # Halves that are no smaller share what makes them large (a dictionary).
    if not half.num_rows or half.nbytes > 0.9 * size:
        yield table
    else:
        yield from _pieces(half, bytes_max)
        yield from _pieces(table.slice(half.num_rows), bytes_max)


def _copied(table: pa.Table) -> pa.Table:
    """The table in memory of its own, one chunk a column."""
    return pa.Table.from_arrays([pa.concat_arrays(column.chunks) for column in table.columns], schema=table.schema)


def _encoded(column: pa.ChunkedArray[Any]) -> Any:
    kind = column.type
    values = pa.concat_arrays((column.cast(pa.string()) if pa.types.is_null(kind) else column).chunks)
    return values.dictionary_encode(null_encoding="encode")
