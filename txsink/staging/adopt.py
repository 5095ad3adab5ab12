"""Files that another program wrote become staged files of an epoch: Spark's own Parquet writer, DuckDB's COPY.

Promises: a record is taken from the file's own footer, and the file holds the columns it is said to hold, in the
types that this table keeps them in, and no other; it lies below the table's partition columns, each with a value of
its column's type, spelled as txsink spells it; the file is durable before its record exists; what the program left
besides (empty files, `_SUCCESS`, checksums) is deleted; until `prepare` nothing here is visible, and a crash leaves
files that a sweep finds.
Relies on: the program being done: its files are closed, and only those of its successful tasks are there.
Does not promise: that the rows are those the program was told to write.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from txsink import paths, schema
from txsink.errors import CorruptError, InvalidRequestError
from txsink.records import Column, DataFile
from txsink.staging.conform import require_kept, require_shallow
from txsink.staging.epoch_stager import StagedFile
from txsink.staging.parquet import footer_of, stats_of
from txsink.staging.place import Place
from txsink.store.protocol import Store

# How Java writes a floating-point number, by some versions with more digits than it takes to tell it from others.
_OF_JAVA = re.compile(r"-?(?:(?:0|[1-9][0-9]{0,6})\.(?:0|[0-9]*[1-9])|[1-9]\.(?:0|[0-9]*[1-9])E-?[1-9][0-9]*)")


class Guest(NamedTuple):
    """A directory that another program writes into, below the run's own."""

    store: Store
    place: Place
    writer: str
    run: str
    epoch: int
    guest_id: str
    partition_columns: tuple[str, ...]
    types: str

    @property
    def path(self) -> str:
        """Where the program is to write."""
        return f"{self.place.directory}/{paths.guest_directory(self.epoch, self.guest_id)}"

    def adopt(self, columns: tuple[Column, ...], new_id: Callable[[], str]) -> list[StagedFile]:
        """The files as staged files, sorted; those without rows are dropped."""
        require_kept(columns, self.types, f"adopt {_shown(self.path)}")
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
        what = f"adopt {_shown(where)}"
        found = footer_of(self.store, where)
        if found is None or not found.region:
            raise CorruptError(
                what, "it is no whole Parquet file", "Write the epoch again; nothing was published", path=_shown(path)
            )
        footer = pq.read_metadata(pa.BufferReader(found.region))
        if not footer.num_rows:
            return None
        partition = self._partition(path.rpartition("/")[0], columns, what)
        _require_columns(footer.schema, columns, self, what)
        directory = paths.partition_directory([*partition], [*partition.values()])
        name = paths.data_name(self.epoch, sequence, f"{self.place.id_prefix}{new_id()}")
        data = f"{directory}/{name}".lstrip("/")
        self.store.adopt(where, f"{self.place.directory}/{data}")
        told = stats_of(self.store, f"{self.place.directory}/{data}", found) if self.place.mark else ""
        file = DataFile(data, found.identity.bytes, found.identity.digest, footer.num_rows, partition, told)
        return StagedFile(self.writer, self.run, self.epoch, file, columns, found.identity.stamp)

    def _partition(self, directory: str, columns: tuple[Column, ...], what: str) -> dict[str, str | None]:
        """The partition values of a file that lies there, as txsink spells them."""
        if not paths.is_data_path(f"{directory}/{paths.data_name(0, 0, '0' * 32)}".lstrip("/")):
            raise InvalidRequestError(
                what,
                "it lies in a directory that no table has",
                "Write into the directory itself, or below column=value as Spark spells it; nothing was published",
                path=_shown(directory),
            )
        given = paths.parse_partitions(f"{directory}/")
        if tuple(given) != self.partition_columns or len(given) < len(directory.split("/")) * bool(directory):
            raise InvalidRequestError(
                what,
                f"its directory is {_shown(directory)!r}, and the table is partitioned by {[*self.partition_columns]}",
                "Write it below column=value for each of these, in their order; nothing was published",
                path=_shown(directory),
            )
        told = schema.schema_of(columns)
        for name in given:
            if name not in told.names:
                advice = "Name the columns of the directories, too, when `adopt` is called; nothing was published"
                raise InvalidRequestError(what, f"partition column {name!r} was not named", advice, column=name)
        schema.check_partition_columns(self.partition_columns, told, what)
        return {name: text and _spelled(text, name, told.field(name).type, what) for name, text in given.items()}


def _spelled(text: str, column: str, kind: pa.DataType, what: str) -> str:
    """A partition value as txsink spells it; refused unless it was spelled so, or by Java as the same number."""
    own = None
    try:
        values = schema.partition_values([text], kind)
        (own,) = schema.partition_text(values, column, what)
    except (CorruptError, InvalidRequestError, UnicodeError):
        pass
    if own is not None and (own == text or _is_of_java(text, values[0].as_py())):
        return own
    is_known = own is not None
    found = f"which is {own!r} as {kind}" if is_known else f"which no reader takes for {kind}"
    raise InvalidRequestError(
        what,
        f"the directory of partition column {column!r} says {text!r}, {found}",
        f"Name it {paths.partition_directory([column], [own])!r}; nothing was published"
        if is_known
        else "Change the value, or partition by another column; nothing was published",
        column=column,
        value=_shown(text),
        type=str(kind),
    )


def _is_of_java(text: str, value: object) -> bool:
    """Whether Java may write this number so: a decimal as `BigDecimal` does, a float with more digits than needed."""
    if isinstance(value, Decimal):
        return str(value) == text
    if not isinstance(value, float) or not _OF_JAVA.fullmatch(text):
        return False
    number = Decimal(text)
    digits = Context(prec=len(number.as_tuple().digits), rounding=ROUND_HALF_EVEN)
    return digits.create_decimal_from_float(value) == number


def _require_columns(file: pq.ParquetSchema, columns: tuple[Column, ...], guest: Guest, what: str) -> None:
    """Refuse a file that holds a column that nobody was told of, or one that is of another type than was told."""
    given = file.to_arrow_schema()
    require_shallow(given, what)
    told = {one.name: one.type for one in schema.schema_of(columns) if one.name not in guest.partition_columns}
    leaves = [file.column(at) for at in range(len(file))]
    old = {f"{leaf.path}." for leaf in leaves if leaf.physical_type == "INT96"}
    for field, stored in zip(given, schema.storable(given, what, guest.types), strict=True):
        kind = told.get(field.name)
        in_file = "INT96" if any(path.startswith(f"{field.name}.") for path in old) else str(field.type)
        if kind == stored.type and in_file != "INT96" and not _is_altered(field.type, guest.types):
            continue
        found = f"is {'no column' if kind is None else kind} in the data and {in_file} in the file"
        advice = "Write the file with the columns and types of the data; nothing was published"
        if str(kind) == in_file:
            found = f"is {in_file} in the file, which has no such type"
            advice = "Write the file with a type for it, or without it; nothing was published"
        raise InvalidRequestError(what, f"column {field.name!r} {found}", advice, column=field.name, type=in_file)


def _is_altered(kind: Any, types: str) -> bool:
    """Whether other readers of the file find another type in it than the one a table stores for this one."""
    if pa.types.is_nested(kind):
        return any(_is_altered(kind.field(index).type, types) for index in range(kind.num_fields))
    if pa.types.is_dictionary(kind):
        return _is_altered(kind.value_type, types)
    if pa.types.is_timestamp(kind):
        return kind.unit != "us" and (kind.unit, types) != ("ns", "arrow")
    return pa.types.is_null(kind) or (pa.types.is_float16(kind) and types != "arrow")


def _shown(path: str) -> str:
    """The path for a message; a name on disk need not be UTF-8."""
    return path.encode("utf-8", "backslashreplace").decode()


def _is_hidden(part: str) -> bool:
    """Whether Spark passes a file or directory by: `_k=1` holds rows, so it is not dropped without a word."""
    return part.startswith(".") or (part.startswith("_") and "=" not in part)
