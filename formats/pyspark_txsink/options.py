"""The options of the format, as Spark hands them over: text under lower-cased names.

Promises: an option nobody knows is refused with a suggestion; a value that cannot be is refused by name; what begins
with `storage.` goes to the store and is never shown.
Relies on: nothing of Spark.
Does not promise: to know which options make sense together. `writers` and `reader` see to that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from txsink import paths
from txsink.choices import Layout, OnNewCheckpoint, PartitionOverwrite, require_choice
from txsink.errors import InvalidRequestError, did_you_mean
from txsink.store.protocol import StorageOptions

# As documented: the argument of a call that each option is.
MEANING = {
    "path": "path",
    "layout": "layout",
    "partitionBy": "partition_by",
    "compression": "compression",
    "targetFileSize": "target_file_bytes",
    "maxRecordsPerFile": "max_records_per_file",
    "mergeSchema": "merge_schema",
    "txnAppId": "writer",
    "txnVersion": "epoch",
    "onNewCheckpoint": "on_new_checkpoint",
    "userMetadata": "metadata",
    "versionAsOf": "version",
    "partitionOverwriteMode": "partition_overwrite",
    "storage.<name>": "storage_options",
}
# By the name Spark hands over.
NAMES = {name.lower(): name for name in MEANING if "<" not in name}
CHOICES: dict[str, object] = {
    "layout": Layout,
    "onNewCheckpoint": OnNewCheckpoint,
    "partitionOverwriteMode": PartitionOverwrite,
}
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
            known = NAMES.values()
            advice = did_you_mean(name, known, f"Known options: {', '.join(known)}, storage.*")
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
        layout=_choice("layout", found["layout"]) if "layout" in found else None,
        storage_options=StorageOptions({name: _value(name, text) for name, text in storage.items()}),
        partition_by=_columns(found.get("partitionby")),
        stage=stage,
        merge_schema=_truth("mergeSchema", found.get("mergeschema", "false")),
        app_id=found.get("txnappid"),
        app_version=_integer("txnVersion", found["txnversion"]) if "txnversion" in found else None,
        on_new_checkpoint=_choice("onNewCheckpoint", found.get("onnewcheckpoint", "fail")),
        user_metadata=_metadata(found.get("usermetadata")),
        version=_integer("versionAsOf", found["versionasof"]) if "versionasof" in found else None,
        partition_overwrite=_choice("partitionOverwriteMode", found.get("partitionoverwritemode", "static")),
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


def _truth(name: str, text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise InvalidRequestError("use format txsink", f"{name} is {text!r}", "Give true or false")
    return text.lower() == "true"


def _choice(name: str, text: str) -> str:
    require_choice("use format txsink", name, text.lower(), CHOICES[name])
    return text.lower()
