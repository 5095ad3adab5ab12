"""The actions that txsink's commits to Delta's log are made of. Pure.

Promises: paths, partition values and schemas as the Delta protocol spells them; a column that the table has with
another type is refused before anything is committed.
Relies on: `delta.log` for types, `delta.state` for what the table is.
Does not promise: that the actions may be committed. `publish.delta` decides on that.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from txsink import schema
from txsink.delta import state as states
from txsink.delta.log import ZONED, fields_of, zoned_text
from txsink.delta.state import Action, DeltaState
from txsink.errors import ConflictError, InvalidRequestError
from txsink.records import Column, DataFile


class Made(NamedTuple):
    """What a Delta table is made with."""

    table_id: str
    partition_columns: tuple[str, ...]
    time_ms: int


def txn_of(app_id: str, version: int) -> Action:
    """The newest epoch, or outcome, of an application."""
    return {"txn": {"appId": app_id, "version": version}}  # without a time, which readers could forget it by


def info_of(
    operation: str, parameters: dict[str, str], metadata: dict[str, Any] | None = None, *, is_append: bool = False
) -> Action:
    """What Delta's history shows of a commit."""
    info: dict[str, Any] = {
        "operation": operation,
        "operationParameters": parameters,
        "engineInfo": "txsink",
        "isBlindAppend": is_append,
    }
    if metadata:
        info["userMetadata"] = msgspec.json.encode(metadata).decode()
    return {"commitInfo": info}


def add_of(file: DataFile, time_ms: int, zoned: set[str], stats: str) -> Action:
    """A file that comes. `zoned`: the partition columns that are times of a zone."""
    values = {name: zoned_text(text) if name in zoned else text for name, text in file.partition.items()}
    return {
        "add": {
            "path": states.encoded_path(file.path),
            "partitionValues": values,
            "size": file.bytes,
            "modificationTime": time_ms,
            "dataChange": True,
            "stats": stats,
        }
    }


def remove_of(file: dict[str, Any], time_ms: int) -> Action:
    """A file that goes, by its add action."""
    body: dict[str, Any] = {"path": file["path"], "deletionTimestamp": time_ms, "dataChange": True}
    if "partitionValues" in file:
        body |= {"extendedFileMetadata": True, "partitionValues": file["partitionValues"], "size": file["size"]}
    if file.get("deletionVector") is not None:
        body["deletionVector"] = file["deletionVector"]
    return {"remove": body}


def begun(found: DeltaState, made: Made, columns: tuple[Column, ...], what: str) -> list[Action]:
    """Protocol and metadata, where a commit is the first, or brings columns."""
    new = new_fields(found, columns, what)
    protocol = states.protocol_for(found, new)
    metadata = _metadata(found, new, made) if new else None
    return [action for action in (protocol, metadata) if action is not None]


def require_partition_types(by: tuple[str, ...], columns: tuple[Column, ...], what: str) -> None:
    """Refuse a new Delta table that would not have a column for each of its partitions: no reader opens it."""
    typed = {field["name"] for field in fields_of(columns, what)}
    for name in by:
        if name not in typed:
            found = f"partition column {name!r} has no type yet: its values are all null, and Delta needs one"
            raise InvalidRequestError(
                what, found, "Give the column a type: write it with a schema", column=name, type="null"
            )


def zoned_columns(columns: tuple[Column, ...], partition_columns: tuple[str, ...]) -> set[str]:
    """The partition columns whose values are times of a zone."""
    fields = schema.schema_of(columns)
    return {field.name for field in fields if field.type == ZONED and field.name in partition_columns}


def _metadata(found: DeltaState, new: list[dict[str, Any]], made: Made) -> Action:
    text = msgspec.json.encode({"type": "struct", "fields": [*found.fields, *new]}).decode()
    if found.version >= 0:
        return {"metaData": {**found.metadata, "schemaString": text}}
    return {
        "metaData": {
            "id": made.table_id,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": text,
            "partitionColumns": list(made.partition_columns),
            "configuration": {},
            "createdTime": made.time_ms,
        }
    }


def new_fields(found: DeltaState, columns: tuple[Column, ...], what: str) -> list[dict[str, Any]]:
    """The fields of `columns` that the Delta table does not have; a field of another type is refused."""
    there = {field["name"].lower(): field for field in found.fields}
    new = []
    for field in fields_of(columns, what):
        known = there.get(field["name"].lower())
        if known is None:
            new.append(field)
        elif known["name"] != field["name"] or _kind(known["type"]) != _kind(field["type"]):
            raise ConflictError(
                what,
                f"the Delta table has a column {known['name']!r} of type {known['type']}, the data has"
                f" {field['name']!r} of type {field['type']}",
                "Write the column as the table has it",
                column=field["name"],
            )
    return new


def _kind(kind: Any) -> Any:
    """A type without what it says of nulls and the metadata of its parts."""
    if not isinstance(kind, dict):
        return kind
    if "fields" in kind:
        return [(part["name"], _kind(part["type"])) for part in kind["fields"]]
    return {name: _kind(kind[name]) for name in ("type", "elementType", "keyType", "valueType") if name in kind}
