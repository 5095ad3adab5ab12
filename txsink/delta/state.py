"""What a Delta table is at one of its versions: a record, and how a commit changes it. Pure.

Promises: `fold` takes every action of a commit that bears on writing; a commit that is torn or no JSON is CorruptError
naming its version; `require_writable` names what a table asks of its writers that txsink does not do.
Relies on: commits in the form of the Delta protocol (actions as lines of JSON).
Does not promise: to be a reader of Delta. Deletion vectors and column mapping are deltalake's to apply.

`version` is that of Delta's log here, never one of ours. A file is known by the `path` of its add action, as it stands
there, percent-encoded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

import msgspec

from txsink.errors import CorruptError, InvalidRequestError

Action: TypeAlias = dict[str, dict[str, Any]]

_READER, _WRITER, _FEATURES_FROM = 1, 2, 7
_COLUMN_MAPPING, _TIMESTAMP_NTZ = "columnMapping", "timestampNtz"
# What each writer version below 7 stands for.
_LEGACY = {
    3: ("checkConstraints",),
    4: ("changeDataFeed", "generatedColumns"),
    5: (_COLUMN_MAPPING,),
    6: ("identityColumns",),
}
# Features that ask nothing of a writer who adds and removes whole files, as long as no column or property uses them.
_SERVED = {
    *("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "identityColumns"),
    *(_COLUMN_MAPPING, _TIMESTAMP_NTZ, "deletionVectors", "v2Checkpoint", "vacuumProtocolCheck", "domainMetadata"),
}
_IN_FIELDS = {
    "delta.invariants": "invariants",
    "delta.generationExpression": "generatedColumns",
    "delta.identity.start": "identityColumns",
}
_IN_PROPERTIES = {
    "delta.enableInCommitTimestamps": "inCommitTimestamp",
    "delta.enableRowTracking": "rowTracking",
    "delta.enableIcebergCompatV1": "icebergCompatV1",
    "delta.enableIcebergCompatV2": "icebergCompatV2",
}
# Features that ask for something of the files a commit brings, or of columns, and nothing of one without any.
_OF_FILES = {
    *("checkConstraints", "generatedColumns", "identityColumns", "invariants", _COLUMN_MAPPING, "rowTracking"),
    *(
        "icebergCompatV1",
        "icebergCompatV2",
        "clustering",
        "allowColumnDefaults",
        "typeWidening",
        "typeWidening-preview",
    ),
    "char or varchar within another type",
    *("variantType", "variantType-preview", "variantShredding-preview", "changeDataFeed"),
}
_RETENTION = "delta.setTransactionRetentionDuration"
TEXT_TYPE = "__CHAR_VARCHAR_TYPE_STRING"  # how Spark keeps the length of a text, in the metadata of its column
_ELSEWHERE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")  # a URI
_TEXT_TYPES = re.compile(r"(?:var)?char\(\d+\)")


# What a commit must hold at least where its actions bear on ours.


class _Add(msgspec.Struct):
    path: str
    size: int
    partitionValues: dict[str, str | None]  # noqa: N815 -- Delta's names
    dataChange: bool = True  # noqa: N815
    stats: str | None = None
    deletionVector: dict[str, Any] | None = None  # noqa: N815


class _Remove(msgspec.Struct):
    path: str


class _Txn(msgspec.Struct):
    appId: str  # noqa: N815
    version: int


class _Protocol(msgspec.Struct):
    minReaderVersion: int  # noqa: N815
    minWriterVersion: int  # noqa: N815
    readerFeatures: list[str] | None = None  # noqa: N815
    writerFeatures: list[str] | None = None  # noqa: N815


class _Metadata(msgspec.Struct):
    id: str
    schemaString: str  # noqa: N815
    partitionColumns: list[str]  # noqa: N815
    configuration: dict[str, str | None] | None = None


class _Field(msgspec.Struct):
    name: str
    type: str | dict[str, Any]
    nullable: bool = True
    metadata: dict[str, Any] = {}


class _Schema(msgspec.Struct):
    fields: list[_Field]


_BODIES: dict[str, Any] = {
    "add": _Add,
    "remove": _Remove,
    "txn": _Txn,
    "protocol": _Protocol,
    "metaData": _Metadata,
}


_Line: TypeAlias = dict[str, dict[str, Any] | None]


class DeltaState(msgspec.Struct):
    """A Delta table at `version` (-1: there is none). `files`, by path, is None until somebody needs it.

    `gone`: the paths of all files that were removed; None when this record did not begin with the first commit.
    `txn_of` answers for what happened before this record began.
    """

    version: int = -1
    metadata_version: int = -1  # where the metadata changed last, as far as this record can tell
    protocol: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    txns: dict[str, int] = {}
    files: dict[str, dict[str, Any]] | None = None
    gone: set[str] | None = None
    txn_of: Callable[[str], int | None] = lambda _: None

    def txn(self, app_id: str) -> int | None:
        """The newest version that was recorded under an application's id."""
        found = self.txns.get(app_id)
        return self.txn_of(app_id) if found is None else found

    def keep(self, count: int) -> None:
        """Hold no more than so many files of a kind."""
        self.files = None if len(self.files or ()) > count else self.files
        self.gone = None if len(self.gone or ()) > count else self.gone

    @property
    def table_id(self) -> str:
        """The id Delta knows the table by."""
        return str(self.metadata.get("id", ""))

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """The partition columns."""
        return tuple(self.metadata.get("partitionColumns") or ())

    @property
    def properties(self) -> dict[str, str]:
        """The table's properties."""
        return self.metadata.get("configuration") or {}

    @property
    def fields(self) -> list[dict[str, Any]]:
        """The fields of its schema, as Delta spells them."""
        found: list[dict[str, Any]] = msgspec.json.decode(self.metadata.get("schemaString") or '{"fields":[]}')[
            "fields"
        ]
        return found


def actions_of(data: bytes, version: int) -> list[Action]:
    """The actions of one commit."""
    try:
        # Some writers spell the actions that a line has not as null.
        lines = [
            {kind: body for kind, body in msgspec.json.decode(line, type=_Line).items() if body is not None}
            for line in data.splitlines()
            if line.strip()
        ]
        for line in lines:
            for kind, body in line.items():
                if (known := _BODIES.get(kind)) is not None:
                    msgspec.convert(body, known)
                if kind == "metaData":
                    msgspec.json.decode(body["schemaString"], type=_Schema)
    except (ValueError, RecursionError) as error:
        raise _corrupt(version, f"it is not as Delta's protocol has it: {error}") from error
    if not lines:
        raise _corrupt(version, "it is empty")
    return lines


def fold(state: DeltaState, actions: Iterable[Action], version: int) -> None:
    """Take the actions of the commit `version`, as `actions_of` gives them."""
    bodies = [(kind, body) for action in actions for kind, body in action.items()]
    for kind, body in bodies:
        if kind == "txn":
            state.txns[body["appId"]] = body["version"]
        elif kind == "protocol":
            state.protocol = body
        elif kind == "metaData":
            state.metadata, state.metadata_version = body, version
        elif kind == "remove":
            if state.files is not None:
                state.files.pop(body["path"], None)
            if state.gone is not None:
                state.gone.add(body["path"])
    if state.files is not None:
        # After the removes: a file that gets a deletion vector goes and comes in one commit, in any order.
        state.files |= {body["path"]: body for kind, body in bodies if kind == "add"}
    if not (state.protocol and state.metadata):
        raise _corrupt(version, "up to it the log has no protocol or no metadata")
    state.version = version


def features(state: DeltaState) -> set[str]:
    """What the table's protocol asks of a writer, by the names of table features."""
    writer = int(state.protocol.get("minWriterVersion", _WRITER))
    if writer >= _FEATURES_FROM:
        return set(state.protocol.get("writerFeatures") or ())
    return {name for version, names in _LEGACY.items() if version <= writer for name in names}


def require_writable(state: DeltaState, what: str, *, is_empty: bool = False) -> None:
    """Refuse, by name, a table that asks for what we do not do; `is_empty`: in a commit without files."""
    asked = features(state) - _SERVED
    asked |= {name for key, name in _IN_PROPERTIES.items() if str(state.properties.get(key)).lower() == "true"}
    if any(key.startswith("delta.constraints.") for key in state.properties):
        asked.add("checkConstraints")
    if state.properties.get("delta.columnMapping.mode", "none") != "none":
        asked.add(_COLUMN_MAPPING)
    every = _all_fields(state.fields)
    asked |= {name for field in every for key, name in _IN_FIELDS.items() if key in field["metadata"]}
    if any(not _TEXT_TYPES.fullmatch(str(field["metadata"].get(TEXT_TYPE, "char(1)"))) for field in every):
        asked.add("char or varchar within another type")
    if int(state.protocol.get("minWriterVersion", _WRITER)) > _FEATURES_FROM:
        asked.add(f"writer version {state.protocol['minWriterVersion']}")
    if is_empty:
        asked -= _OF_FILES
    if asked:
        found = f"the Delta table asks its writers for {', '.join(sorted(asked))}, which txsink does not do"
        raise InvalidRequestError(what, found, "Drop the feature, or write another table", features=sorted(asked))
    if _RETENTION in state.properties and not is_empty:
        found = f"its property {_RETENTION} lets Delta forget which epochs are committed"
        raise InvalidRequestError(what, found, "Unset the property: an epoch that is forgotten could be written twice")


def require_overwritable(state: DeltaState, what: str) -> None:
    """Refuse to remove files of a table that only grows."""
    if str(state.properties.get("delta.appendOnly")).lower() == "true":
        found = "the Delta table has delta.appendOnly set"
        raise InvalidRequestError(what, found, "Append, or unset the property")


def _all_fields(fields: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The fields and those nested in them."""
    found = []
    for field in fields:
        found.append({"metadata": {}, **field})
        waiting = [field.get("type")]
        while waiting:
            kind = waiting.pop()
            if isinstance(kind, dict):
                found += _all_fields(kind.get("fields") or ())
                waiting += [kind.get(part) for part in ("elementType", "keyType", "valueType")]
    return found


# -- actions ------------------------------------------------------------------------------------------


def protocol_for(state: DeltaState, fields: Iterable[dict[str, Any]]) -> Action | None:
    """The protocol the table needs with these fields; None when it has it."""
    kinds = {str(field.get("type")) for field in _all_fields(fields)} | _nested_kinds(fields)
    needs_ntz = "timestamp_ntz" in kinds
    if state.version < 0 and not needs_ntz:
        return {"protocol": {"minReaderVersion": _READER, "minWriterVersion": _WRITER}}
    if not needs_ntz or _TIMESTAMP_NTZ in features(state):
        return None
    reader = set(state.protocol.get("readerFeatures") or ())
    writer = features(state)
    if state.protocol and int(state.protocol["minWriterVersion"]) < _FEATURES_FROM:
        writer |= {"appendOnly", "invariants"}
        reader |= {_COLUMN_MAPPING} & writer
    return {
        "protocol": {
            "minReaderVersion": 3,
            "minWriterVersion": _FEATURES_FROM,
            "readerFeatures": sorted(reader | {_TIMESTAMP_NTZ}),
            "writerFeatures": sorted(writer | {_TIMESTAMP_NTZ}),
        }
    }


def _nested_kinds(fields: Iterable[dict[str, Any]]) -> set[str]:
    """The names of all types that lists and maps hold."""
    found = set()
    waiting = [field.get("type") for field in fields]
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, dict):
            waiting += [kind.get(part) for part in ("elementType", "keyType", "valueType")]
            waiting += [part.get("type") for part in kind.get("fields") or ()]
        else:
            found.add(str(kind))
    return found


# -- outcomes ---------------------------------------------------------------------------------------------


def app_id(writer: str) -> str:
    """The name under which the outcomes of a writer's transactions stand."""
    return f"txsink:{writer}"


def abort_id(writer: str, prepared: int) -> str:
    """The same for one abort, while earlier epochs of the writer are pending."""
    return f"txsink-abort-{published(prepared) + 1}:{writer}"


def published(prepared: int) -> int:
    """What says that the transaction prepared at a version of our log is published; one more: that it never can be."""
    return 2 * prepared


def resolved(found: DeltaState, writer: str, prepared: int) -> bool | None:
    """Whether a transaction is published, or can never be; None: neither yet."""
    if found.txn(abort_id(writer, prepared)) is not None:
        return False
    value = found.txn(app_id(writer))
    return None if value is None or value < published(prepared) else value == published(prepared)


def is_ours(actions: Iterable[Action]) -> bool:
    """Whether a commit publishes a transaction of txsink's."""
    return any(str(action["txn"].get("appId")).startswith(app_id("")) for action in actions if "txn" in action)


def encoded_path(path: str) -> str:
    """A path as the Delta log spells it."""
    return quote(path, safe="/=-_.~!$&'()*+,;:@")


def decoded_path(path: str) -> str:
    """The inverse, of any spelling."""
    return unquote(path)


def path_in_table(path: str, what: str) -> str:
    """The path of a file of the table, relative to it; one that leads out of the table is refused."""
    found = decoded_path(path)
    if _ELSEWHERE.match(path) or found.startswith("/"):
        raise InvalidRequestError(
            what,
            f"its file {path!r} lies elsewhere, as those of a shallow clone do",
            "Read it with Delta's own readers, or clone it deeply",
            path=path,
        )
    if "\x00" in found or not {"", ".", ".."}.isdisjoint(found.split("/")):
        raise CorruptError(
            what, f"its log names the file {path!r}, which is no path within the table", "Restore the log from a copy"
        )
    return found


def encode(actions: Iterable[Action]) -> bytes:
    """A commit's bytes."""
    return b"".join(msgspec.json.encode(action) + b"\n" for action in actions)


def _corrupt(version: int, found: str) -> CorruptError:
    return CorruptError(
        f"read version {version} of the Delta log",
        found,
        "Restore the commit from a copy; nothing was changed and nothing may be committed",
        delta_version=version,
    )
