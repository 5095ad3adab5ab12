"""What a Delta table asks of the values in a data file, and what a commit tells of them.

Promises: a null where the table takes none, at any depth, and a text longer than its column takes are refused; what a
commit tells of a file never makes a reader pass by a row (`statistics`). Where the record of a file does not say
enough, the file itself is read.
Relies on: the record of the file, made while it was staged.
Does not promise: what the table asks beyond that. `delta.state.require_writable` refuses it by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from txsink import schema
from txsink.delta.log import columns_of
from txsink.delta.state import TEXT_TYPE, DeltaState
from txsink.errors import CorruptError, InvalidRequestError
from txsink.records import DataFile
from txsink.staging import statistics
from txsink.staging.parquet import columns_in, footer_of, groups_of, stats_of
from txsink.store.protocol import Store

_Field: TypeAlias = dict[str, Any]
_TEXT = re.compile(r"(var)?char\((\d+)\)")


def told(store: Store, root: str, file: DataFile, metadata: dict[str, Any]) -> str:
    """The statistics of a file as a table with this metadata wants them."""
    wanted = _wanted(metadata["schemaString"], tuple(metadata.get("partitionColumns") or ()))
    indexed = statistics.Indexed.of(metadata.get("configuration") or {})
    found = statistics.fitted(file.stats, wanted, indexed)
    if found is None:
        path = f"{root}/{file.path}"
        footer = footer_of(store, path)
        if footer is None or not footer.region:
            raise CorruptError(
                f"commit {file.path}", "it is missing or no Parquet file", "`txsink verify` lists all that is damaged"
            )
        # What the table asks for stands elsewhere in the file.
        names = indexed._replace(names=tuple(one.leaf for one in indexed.leaves(wanted)), first=-1)
        absent = {*wanted.names} - {column.name for column in columns_in(footer.region)}
        found = statistics.fitted(stats_of(store, path, footer, names), wanted, indexed, absent)
    return statistics.counted(file.rows) if found is None else found


@lru_cache(maxsize=16)
def _wanted(text: str, partition_columns: tuple[str, ...]) -> pa.Schema:
    """The columns that files of a table hold."""
    columns = columns_of(text, "commit files")
    return schema.schema_of(tuple(column for column in columns if column.name not in partition_columns))


def require_values(store: Store, root: str, found: DeltaState, files: Iterable[DataFile], what: str) -> None:
    """Refuse nulls, or missing columns, where the Delta table allows none, and texts that are too long."""
    asking = [field for field in found.fields if _asks(field)]
    for file in files if asking else ():
        partial = [field for field in asking if field["name"] in file.partition]
        for field in partial:
            _require(pa.array([file.partition[field["name"]]], pa.string()), field | {"type": "string"}, file, what)
        open_fields = [field for field in asking if field not in partial and not _is_shown(field, file)]
        if open_fields:
            _look(store, root, open_fields, file, what)


def _asks(field: _Field) -> bool:
    """Whether a column, or a part of it, takes some values only."""
    return not field.get("nullable", True) or TEXT_TYPE in (field.get("metadata") or {}) or _kind_asks(field["type"])


def _kind_asks(kind: Any) -> bool:
    if not isinstance(kind, dict):
        return False
    if kind.get("containsNull") is False or kind.get("valueContainsNull") is False:
        return True
    parts = [kind.get(name) for name in ("elementType", "keyType", "valueType")]
    return any(_asks(part) for part in kind.get("fields") or ()) or any(_kind_asks(part) for part in parts)


def _is_shown(field: _Field, file: DataFile) -> bool:
    """Whether the record alone shows that a plain column has no null."""
    is_plain = isinstance(field["type"], str) and TEXT_TYPE not in (field.get("metadata") or {})
    return is_plain and statistics.nulls_in(file.stats, (field["name"],)) == 0


def _look(store: Store, root: str, fields: list[_Field], file: DataFile, what: str) -> None:
    data = store.read(f"{root}/{file.path}", file.bytes)
    if data is None:
        raise CorruptError(what, f"{file.path} is missing", "Abort the epoch and write it again", path=file.path)
    for table in groups_of(data, {field["name"] for field in fields}, f"read {file.path}"):
        for field in fields:
            if field["name"] in table.column_names:
                _require(table.column(field["name"]).combine_chunks(), field, file, what)
            elif table.num_rows or not table.num_columns:
                _require(pa.nulls(1), {"nullable": True, **field, "type": "void"}, file, what)


def _require(values: pa.Array, field: _Field, file: DataFile, what: str, path: str = "") -> None:
    """Refuse the values of one column that it does not take."""
    path = f"{path}.{field['name']}".lstrip(".")
    if values.null_count and not field.get("nullable", True):
        found = f"column {path!r} of the Delta table takes no nulls, and {file.path} has some"
        raise InvalidRequestError(what, found, "Fill them", column=path)
    if asked := _TEXT.fullmatch(str((field.get("metadata") or {}).get(TEXT_TYPE, ""))):
        _require_length(values, asked[0], path, file, what)
    if isinstance(field["type"], dict):
        for part, kind in _parts(values, field["type"]):
            _require(part, kind, file, what, path)


def _parts(values: pa.Array, kind: _Field) -> list[tuple[pa.Array, _Field]]:
    """What the values that are there are made of, with what the table asks of it."""
    held: Any = values.filter(values.is_valid())
    if kind["type"] == "struct":
        names = [held.type.field(at).name for at in range(held.type.num_fields)]
        return [
            (held.field(part["name"]) if part["name"] in names else pa.nulls(len(held)), part)
            for part in kind["fields"]
        ]
    if kind["type"] == "map":
        entry = {"name": "value", "type": kind["valueType"], "nullable": kind.get("valueContainsNull", True)}
        return [(held.keys, {"name": "key", "type": kind["keyType"], "nullable": False}), (held.items, entry)]
    return [
        (
            pc.list_flatten(held),
            {"name": "element", "type": kind["elementType"], "nullable": kind.get("containsNull", True)},
        )
    ]


def _require_length(values: pa.Array, asked: str, path: str, file: DataFile, what: str) -> None:
    size = int(asked.partition("(")[2].rstrip(")"))
    lengths = pc.utf8_length(values.cast(pa.string()).drop_null())
    bad = lengths.filter(pc.greater(lengths, size) if asked.startswith("var") else pc.not_equal(lengths, size))
    if len(bad):
        raise InvalidRequestError(
            what,
            f"column {path!r} of the Delta table is {asked}, and {file.path} has a text of {bad[0].as_py()} characters",
            "Cut it" if asked.startswith("var") else f"Cut it, or fill it with spaces to {size}",
            column=path,
        )
