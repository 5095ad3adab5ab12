"""The options of the format, as Spark hands them over: text under lower-cased names.

Promises: an option nobody knows is refused with a suggestion; a value that cannot be is refused by name; what begins
with `storage.` goes to the store and is never shown.
Relies on: nothing of Spark.
Does not promise: to know which options make sense together. `writers` and `reader` see to that.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from txsink import paths
from txsink.errors import InvalidRequestError
from txsink.store.protocol import StorageOptions

# As documented, by the name Spark hands over.
NAMES = {
    name.lower(): name
    for name in (
        "path", "layout", "partitionBy", "compression", "targetFileSize", "maxRecordsPerFile", "mergeSchema",
        "txnAppId", "txnVersion", "onNewCheckpoint", "userMetadata", "versionAsOf", "partitionOverwriteMode",
    )
}  # fmt: skip
# What it hands over when it asks for the columns of a table of its catalog.
_CATALOGS = {"owner", "provider"}
# Spark's own, which it hands over as well.
_SPARKS = {"checkpointlocation", "queryname", "outputmode"}
_STORAGE = "storage."
_NUMBERS = ("deadline_seconds", "part_bytes")  # of the stores' own options
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}


class Given(NamedTuple):
    """The options, understood."""

    path: str
    layout: str | None
    storage_options: StorageOptions
    partition_by: tuple[str, ...] | None
    stage: dict[str, object]
    merge_schema: bool
    app_id: str | None
    app_version: int | None
    on_new_checkpoint: str
    user_metadata: dict[str, Any]
    version: int | None
    partition_overwrite: str


def parse(options: Mapping[str, str]) -> Given:
    """The options of one read or write."""
    found = {name.lower(): value for name, value in options.items()}
    storage = {name[len(_STORAGE) :]: value for name, value in found.items() if name.startswith(_STORAGE)}
    if not found.get("path") or found.keys() >= _CATALOGS:
        raise InvalidRequestError(
            "use format txsink",
            "there is no path: Spark gives a format none for tables of its catalog (saveAsTable, CREATE TABLE, INSERT)",
            "Use .save(path), .start(path) and .load(path), or for SQL CREATE TEMPORARY VIEW name USING txsink OPTIONS"
            " (path '...')",
        )
    for name in found:
        if name not in NAMES and name not in _SPARKS and not name.startswith(_STORAGE):
            near = difflib.get_close_matches(name, NAMES, 1)
            advice = f"Did you mean {NAMES[near[0]]!r}" if near else f"Known: {', '.join(NAMES.values())}, storage.*"
            raise InvalidRequestError("read the options of format txsink", f"unknown option {name!r}", advice)
    if ("txnappid" in found) is not ("txnversion" in found) and "checkpointlocation" not in found:
        raise InvalidRequestError(
            "use format txsink", "one of txnAppId and txnVersion is given without the other", "Give both, or neither"
        )
    if problem := paths.name_problem(found.get("txnappid", "-")):
        raise InvalidRequestError(
            "use format txsink", f"txnAppId {found['txnappid']!r} cannot be used: {problem}", "Give another name"
        )
    stage: dict[str, object] = {}
    if "compression" in found:
        stage["compression"] = found["compression"]
    if "targetfilesize" in found:
        stage["target_file_bytes"] = _bytes(found["targetfilesize"])
    if "maxrecordsperfile" in found:
        stage["file_rows_max"] = _integer("maxRecordsPerFile", found["maxrecordsperfile"])
    return Given(
        path=absolute(found["path"]),
        layout=_one_of("layout", found["layout"].lower(), ("parquet", "delta")) if "layout" in found else None,
        storage_options=StorageOptions({name: _value(name, text) for name, text in storage.items()}),
        partition_by=_columns(found.get("partitionby")),
        stage=stage,
        merge_schema=_one_of("mergeSchema", found.get("mergeschema", "false").lower(), ("true", "false")) == "true",
        app_id=found.get("txnappid"),
        app_version=_integer("txnVersion", found["txnversion"]) if "txnversion" in found else None,
        on_new_checkpoint=_one_of("onNewCheckpoint", found.get("onnewcheckpoint", "fail").lower(), ("fail", "resume")),
        user_metadata=_metadata(found.get("usermetadata")),
        version=_integer("versionAsOf", found["versionasof"]) if "versionasof" in found else None,
        partition_overwrite=_one_of(
            "partitionOverwriteMode", found.get("partitionoverwritemode", "static").lower(), ("static", "dynamic")
        ),
    )


def absolute(path: str) -> str:
    """The path as every process of the cluster finds it: a relative one is resolved here, on the driver."""
    if path.startswith("file:/") and not path.startswith("file://"):
        return f"file://{path.removeprefix('file:')}"  # as Hadoop spells it
    return path if "://" in path or path.startswith("file:") else str(Path(path).absolute())


def of_writer(given: Given) -> dict[str, Any]:
    """What `open_writer` takes."""
    options: dict[str, Any] = {**given.stage, "merge_schema": given.merge_schema, "layout": given.layout}
    if given.partition_by is not None:
        options["partition_by"] = given.partition_by
    if given.storage_options:
        options["storage_options"] = given.storage_options
    return options


def of_storage(given: Mapping[str, object]) -> dict[str, str]:
    """Storage options, as the format takes them."""
    return {
        f"{_STORAGE}{name}": value if isinstance(value, str) and _value(name, value) == value else json.dumps(value)
        for name, value in given.items()
    }


def _columns(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    # A JSON list for names with commas.
    names = json.loads(text) if text.startswith("[") else [name.strip() for name in text.split(",") if name.strip()]
    return tuple(names)


def _value(name: str, text: str) -> object:
    """What a storage option is: JSON where it cannot be plain text."""
    is_json = name in _NUMBERS or text.startswith(("{", "[", '"')) or text in {"true", "false"}
    try:
        return json.loads(text) if is_json else text
    except ValueError:
        return text  # the store says what is wrong with it, and shows no value


def _metadata(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = text
    return found if isinstance(found, dict) else {"userMetadata": found}


def _integer(name: str, text: str) -> int:
    if not text.strip().isdecimal():
        raise InvalidRequestError("use format txsink", f"{name} is {text!r}", "Give a number")
    return int(text)


def _bytes(text: str) -> int:
    number = text.strip().lower().rstrip("kmgb")
    unit = text.strip().lower()[len(number) :]
    if not number.isdecimal() or unit not in _UNITS:
        raise InvalidRequestError("use format txsink", f"targetFileSize is {text!r}", "Give bytes, or say 128m")
    return int(number) * _UNITS[unit]


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise InvalidRequestError("use format txsink", f"{name} is {value!r}", f"Give one of {', '.join(choices)}")
    return value
