"""Rows -> staged Parquet files, buffered and split by partition. Knows no log.

Promises: a file that `finish` names is durable under its staged name, holds the rows that were written and has the
recorded identity; each call of `write` is whole, or none of its rows stay and what was there before does (a disk that
fails closes the stager instead); the files hold as many rows as were handed in, by their footers; memory is bounded
however much is written, as long as the batches that come in are; types are those of `schema.storable`.
Relies on: `parquet` for one file; the store's `create`, whose Output makes bytes durable at `seal`.
Does not promise: durable *names* (prepare settles them), the order of rows (those of one partition keep theirs), or
exact sizes: a file ends with the row group whose end comes closest to `target_file_bytes`.

How rows travel: write -> `tables_of` -> pieces -> `conform` -> buffer -> row groups -> files. Without partition
columns the buffer holds less than a row group. With them it holds two row groups' bytes over all partitions; when it
is full, the largest partitions are written until half of it is free: few rows wait long, and row groups stay large.

A stream may fail after more rows than memory holds, so what goes to files before its end goes to files of its own,
which are deleted if it fails; what was buffered before it is written first.

Columns that hold only nulls so far have no type: they are columns of the table, but stand in no file, because Spark
reads them as integers and then fails on the files whose values have a type. Rows of nothing else are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from txsink import paths, schema
from txsink.environment import OwnProcess
from txsink.errors import CorruptError, InvalidRequestError
from txsink.records import Column, DataFile, Upload
from txsink.staging.buffer import Buffer, copied, grouped, pieces
from txsink.staging.conform import conform, require_shallow, require_sound, require_typed
from txsink.staging.parquet import Identity, ParquetOutput, StageOptions, identity, verify
from txsink.staging.rows import Rows, tables_of
from txsink.staging.staged_file import StagedFile
from txsink.store.protocol import Output, Store, Uploads

__all__ = ["EpochStager", "Identity", "StageOptions", "StagedFile", "identity", "verify"]

_SMALL_TABLES_MAX = 256
_BUFFERED_GROUPS = 2  # row groups' bytes in the buffer of a partitioned write
_HALF_WAY = "an earlier write failed half-way"
_BUFFERED_ROWS = 8  # and row groups' rows, for the rows that hold next to no bytes


class _Call:
    """A call of `write`, and what there was before it."""

    def __init__(self, columns: tuple[Column, ...], target: pa.Schema, waiting: Buffer, rows: int) -> None:
        self.columns = columns
        self.target = target
        self.waiting = waiting
        self.rows = rows
        self.own = Buffer()  # of a stream, which may fail after rows that were taken already
        self.first_file: tuple[int, int] | None = None  # how many outputs and sealed files there were before its own


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
        types: str = "spark",
    ) -> None:
        self._what = f"stage epoch {epoch} of {writer!r}"
        for name in (writer, run):
            if problem := paths.name_problem(name):
                raise InvalidRequestError(self._what, f"the name {name!r} cannot be: {problem}", "Use another name")
        if type(epoch) is not int or not 0 <= epoch <= paths.VERSION_MAX:
            raise InvalidRequestError(
                self._what, "the epoch is no integer from 0 to 2^63 - 1", "Number epochs from 0", epoch=epoch
            )
        self._store = store
        self._directory = directory
        self._names = (writer, run, epoch)
        self._part = part
        self._is_in_place = is_in_place
        self._partition_columns = partition_columns
        self._types = types
        self._merge_schema = merge_schema
        self._options = options
        self._new_id = new_id
        self._process = OwnProcess()
        self.closed = ""  # why nothing more can be written
        self._rows = 0
        self._given: pa.Schema | None = None  # of the last data that came in
        self._checked: dict[str, Any] = {}  # partition values that can be directories
        self._waiting = Buffer()
        self._know(columns, schema.schema_of(columns))
        self._call: _Call | None = None  # of `write`, while it lasts
        self._sequence = 0
        self._open: dict[str, ParquetOutput] = {}  # by partition directory, the last used last
        self._outputs: list[Output] = []
        self._sealed: list[tuple[DataFile, str, Upload | None]] = []

    @property
    def columns(self) -> tuple[Column, ...]:
        """The table's columns, with those that this epoch's data brought."""
        return self._columns

    def write(self, data: object) -> int:
        """Take rows of any kind `rows.tables_of` knows; returns how many. After an error it has taken none of them."""
        self._require_open()
        call = self._call = _Call(self._columns, self._target, self._waiting.copy(), self._rows)
        try:
            for rows in tables_of(data, lambda: self._target, self._what):
                self._require_not_closed()
                conformed = [
                    self._conformed(piece, call) for piece in pieces(rows.table, self._options.row_group_bytes)
                ]
                for table in conformed:
                    self._take(table, rows, call)
            self._waiting.extend(call.own)
            self._drain_if_full(call)
            if self._waiting.small >= _SMALL_TABLES_MAX:
                self._waiting.compact()
            if self.closed == _HALF_WAY:
                self.closed = ""
        except BaseException as error:
            self._undo(call, error)
            raise
        finally:
            self._call = None
        return self._rows - call.rows

    def finish(self) -> list[StagedFile]:
        """Write what is buffered, make all files durable; their records, sorted by path."""
        if self.closed != "it is finished":
            self._require_open()
            self.closed = "finishing it failed"
            self._drain(is_last=True)
            self._seal_all()
            self._require_count()
            self.closed = "it is finished"
        records = [
            StagedFile(*self._names, file, self._columns, stamp, self._part, upload)
            for file, stamp, upload in self._sealed
        ]
        return sorted(records, key=lambda record: record.file.path)

    def discard(self) -> None:
        """Delete everything this stager made; never raises."""
        self.closed = "it was discarded"
        self._waiting = Buffer()
        if not self._process.is_this:
            return  # what the parent of this process has staged
        for file in self._open.values():
            file.abandon()
        for output in self._outputs:
            output.discard()
        self._open, self._sealed = {}, []

    def _require_open(self) -> None:
        if self._call is not None:
            found = "another write of this epoch is under way"
            raise InvalidRequestError(self._what, found, "Let one write end before the next call")
        self._require_not_closed()

    def _require_not_closed(self) -> None:
        if self.closed:
            raise InvalidRequestError(self._what, f"nothing can be written: {self.closed}", "Begin the epoch again")

    def _require_count(self) -> None:
        held = sum(file.rows for file, _, _ in self._sealed)
        if held != self._rows:
            found = f"{self._rows} rows were handed in, and the files hold {held}"
            raise CorruptError(self._what, found, "Begin the epoch again, and report it; nothing was published")

    # -- a call of write, whole or not at all -----------------------------------------------------------

    def _begin_files(self, call: _Call) -> None:
        """From here on the files hold rows of this call alone, so that they can be deleted if it fails."""
        columns, target = self._columns, self._target
        self.closed = _HALF_WAY
        # What was there before goes into its files as it was: this call may have brought columns, and may fail.
        self._know(call.columns, call.target)
        self._waiting = call.waiting
        self._drain(is_last=True)
        self._seal_all()
        self._know(columns, target)
        call.first_file = len(self._outputs), len(self._sealed)
        self._waiting, call.own = call.own, Buffer()
        self.closed = ""

    def _undo(self, call: _Call, error: BaseException) -> None:
        if self.closed == _HALF_WAY:
            self.closed = f"{_HALF_WAY} ({error})"
        if self.closed or not self._process.is_this:
            return
        self._given = None
        self._rows = call.rows
        self._know(call.columns, call.target)
        if call.first_file is None:
            self._waiting = call.waiting
            return
        outputs, sealed = call.first_file
        self._waiting = Buffer()
        for file in self._open.values():
            file.abandon()
        for output in self._outputs[outputs:]:
            # DELETES: files of a write that failed; proof: this call made them, and no record names them (I8).
            output.discard()
        self._open = {}
        del self._outputs[outputs:], self._sealed[sealed:]

    # -- columns --------------------------------------------------------------------------------------

    def _know(self, columns: tuple[Column, ...], target: pa.Schema) -> None:
        self._columns = columns
        self._target = target
        named = [name for name in target.names if name not in self._partition_columns]
        typed = [name for name in named if not pa.types.is_null(target.field(name).type)]
        self._file_columns = typed

    def _conformed(self, table: pa.Table, call: _Call) -> pa.Table:
        if self._given is not None and table.schema.equals(self._given):
            require_typed(table, self._target, self._partition_columns, self._what)
            conformed = conform(table, self._target, self._what)
            self._check_values(conformed)
            return conformed
        require_shallow(table.schema, self._what)
        try:
            columns = _merged(table.schema, self._columns, self._partition_columns, self._merge_schema, self._types)
        except InvalidRequestError as error:
            raise InvalidRequestError(self._what, error.found, error.advice, **error.context) from None
        target = schema.schema_of(columns)
        require_typed(table, target, self._partition_columns, self._what)
        conformed = conform(table, target, self._what)
        self._check_values(conformed)
        if columns != self._columns:
            # A file has one schema: files begun under the old one end here.
            self.closed = _HALF_WAY
            self._seal_all()
            self.closed = ""
            self._know(columns, target)
            for buffer in (self._waiting, call.own):
                buffer.tables = [conform(waiting, target) for waiting in buffer.tables]
        self._given = table.schema
        return conformed

    # -- buffer ---------------------------------------------------------------------------------------

    def _take(self, table: pa.Table, rows: Rows, call: _Call) -> None:
        if not table.num_rows:
            return
        self._rows += table.num_rows
        is_apart = not rows.is_all and call.first_file is None
        buffer = call.own if is_apart else self._waiting
        buffer.add(table)
        if is_apart and self._is_full(buffer):
            self._begin_files(call)
            is_apart = False
        if not is_apart:
            self._drain_if_full(call)
        buffer = call.own if is_apart else self._waiting
        if buffer.small >= _SMALL_TABLES_MAX:
            buffer.compact()
        if rows.is_borrowed:
            buffer.copy_last()

    def _is_full(self, buffer: Buffer) -> bool:
        options = self._options
        if self._partition_columns:
            return (
                buffer.bytes >= _BUFFERED_GROUPS * options.row_group_bytes
                or buffer.rows >= _BUFFERED_ROWS * options.row_group_rows
            )
        group_bytes = min(options.row_group_bytes, options.target_file_bytes)
        return buffer.bytes >= group_bytes or buffer.rows >= options.row_group_rows

    def _drain_if_full(self, call: _Call) -> None:
        if self._is_full(self._waiting):
            if call.first_file is None:
                self.closed = _HALF_WAY  # until the call ends: some of its rows are in files with others
            self._drain(is_last=False)

    def _check_values(self, table: pa.Table) -> None:
        """Refuse a value that nobody could read, or that cannot be a directory, before its row is taken."""
        require_sound(table, self._what)
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
        waiting = self._waiting
        if not waiting.tables:
            return
        table = pa.concat_tables(waiting.tables)
        options = self._options
        bytes_max = min(options.row_group_bytes, options.target_file_bytes)
        bytes_rows = table.num_rows * bytes_max // max(1, waiting.bytes)
        group_rows = max(1, min(options.row_group_rows, options.file_rows_max, bytes_rows))
        if self._partition_columns:
            rest = self._drain_partitions(table, group_rows, is_last=is_last)
        else:
            whole = table.num_rows if is_last else table.num_rows // group_rows * group_rows
            self._write((), table.slice(0, whole), group_rows)
            rest = table.slice(whole)
        self._waiting = Buffer([rest] if rest.num_rows else [])

    def _drain_partitions(self, table: pa.Table, group_rows: int, *, is_last: bool) -> pa.Table:
        table, groups = grouped(table, self._partition_columns, self._what)
        written, kept = 0, []
        for group in sorted(groups, key=lambda group: -group.rows):
            rows = table.slice(group.start, group.rows)
            if is_last or 2 * written < table.num_rows:
                self._write(group.values, rows, group_rows)
                written += group.rows
            else:
                kept.append(rows)
        return copied(pa.concat_tables(kept)) if kept else table.slice(0, 0)

    # -- files ----------------------------------------------------------------------------------------

    def _write(self, values: tuple[str | None, ...], table: pa.Table, group_rows: int) -> None:
        directory = paths.partition_directory(list(self._partition_columns), list(values))
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
        name = paths.data_name(self._names[2], self._sequence, self._new_id())
        self._sequence += 1
        path = f"{directory}/{name}" if directory else name
        output = self._new_output(f"{self._directory}/{path}")
        self._outputs.append(output)
        return ParquetOutput(output, path, first, self._options, has_stats=self._is_in_place)

    def _new_output(self, path: str) -> Output:
        if self._is_in_place and not self._store.traits.moves:
            return cast("Uploads", self._store).create_object(path)
        return self._store.create(path)

    def _seal_all(self) -> None:
        for directory in list(self._open):
            self._seal(directory)

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
    types: str,
) -> tuple[Column, ...]:
    """The table's columns once data of this schema is in. The same in most epochs, hence the cache."""
    stored = schema.storable(given, types=types)
    columns = schema.merge(known, schema.columns_of(stored, types), merge_schema=merge_schema, is_converted=True)
    # A partition column that the data lacks is a mistake, no column of nulls.
    lacks = not {*partition_columns} <= {*stored.names}
    schema.check_partition_columns(partition_columns, stored if lacks else schema.schema_of(columns))
    return columns
