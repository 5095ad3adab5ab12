"""The pure parts of the Delta layout: what commits say, however hostile, and how names and values are spelled."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from txsink.delta import state as states
from txsink.delta.log import ZONED, plain_text, zoned_text
from txsink.delta.state import DeltaState
from txsink.errors import ConflictError, CorruptError
from txsink.publish.delta import overwrite as delta_overwrite

PROTOCOL = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
METADATA = {
    "metaData": {
        "id": "t",
        "schemaString": '{"type":"struct","fields":[]}',
        "partitionColumns": [],
        "configuration": {},
    }
}


def add(path: str, **more: Any) -> dict[str, Any]:
    return {"add": {"path": path, "partitionValues": {}, "size": 1, "dataChange": True, **more}}


def remove(path: str) -> dict[str, Any]:
    return {"remove": {"path": path, "dataChange": True}}


def folded(*commits: list[dict[str, Any]]) -> DeltaState:
    state = DeltaState(files={})
    for version, actions in enumerate(commits):
        states.fold(state, states.actions_of(states.encode(actions), version), version)
    return state


def test_a_file_that_goes_and_comes_in_one_commit_is_there_in_any_order() -> None:
    """As with a deletion vector: it is the same path."""
    vector = {"storageType": "u", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 1}
    for actions in ([remove("a"), add("a", deletionVector=vector)], [add("a", deletionVector=vector), remove("a")]):
        state = folded([PROTOCOL, METADATA, add("a")], actions)
        assert state.files is not None
        assert state.files["a"]["deletionVector"] == vector


HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "blank": b"\n \n",
    "torn": b'{"add":{"path":"a","partitionValues":{},"si',
    "zeros": bytes(100),
    "not text": b"\xff\xfe{}",
    "a list": b"[]\n",
    "a number": b"7\n",
    "deep": b'{"add":' + b"[" * 100_000,
    "an action that is no object": b'{"add":7}\n',
    "a path that is no text": b'{"add":{"path":7,"partitionValues":{},"size":1}}\n',
    "no partition values": b'{"add":{"path":"a","size":1}}\n',
    "a size that is no number": b'{"add":{"path":"a","partitionValues":{},"size":"1"}}\n',
    "a removed list": b'{"remove":{"path":["a"]}}\n',
    "a version that is no number": b'{"txn":{"appId":"w","version":"1"}}\n',
    "a version between two": b'{"txn":{"appId":"w","version":1.5}}\n',
    "no application": b'{"txn":{"version":1}}\n',
    "a protocol of text": b'{"protocol":{"minReaderVersion":"1","minWriterVersion":2}}\n',
    "a schema that is none": b'{"metaData":{"id":"t","schemaString":"7","partitionColumns":[]}}\n',
    "a field without a name": b'{"metaData":{"id":"t","schemaString":"{\\"fields\\":[{}]}","partitionColumns":[]}}\n',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_damaged_commit_is_named_and_never_empty(name: str) -> None:
    with pytest.raises(CorruptError, match="version 7 of the Delta log") as found:
        states.actions_of(HOSTILE[name], 7)
    assert found.value.context["delta_version"] == 7


def test_a_log_that_begins_without_protocol_or_metadata_is_damage() -> None:
    for first in ([METADATA], [PROTOCOL], [add("a")]):
        with pytest.raises(CorruptError, match="no protocol or no metadata"):
            folded(first)


@given(data=st.binary(max_size=200))
def test_no_bytes_at_all_make_anything_but_actions_or_corrupt_error(data: bytes) -> None:
    with suppress(CorruptError):
        states.fold(DeltaState(files={}), states.actions_of(data, 0), 0)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(
    kind=st.sampled_from(["add", "remove", "txn", "protocol", "metaData"]),
    changes=st.dictionaries(
        st.sampled_from(
            ["path", "size", "partitionValues", "version", "appId", "schemaString", "id", "minWriterVersion"]
        ),
        JSON,
        max_size=2,
    ),
)
def test_an_action_of_any_types_is_taken_or_named(kind: str, changes: dict[str, Any]) -> None:
    whole: dict[str, Any] = {**add("a"), **remove("a"), **PROTOCOL, **METADATA, "txn": {"appId": "w", "version": 1}}
    data = states.encode([PROTOCOL, METADATA]) + json.dumps({kind: {**whole[kind], **changes}}).encode() + b"\n"
    state = DeltaState(files={})
    try:
        states.fold(state, states.actions_of(data, 0), 0)
    except CorruptError:
        return
    # Whatever was taken can be used.
    assert isinstance(state.table_id, str)
    assert all(isinstance(field["name"], str) for field in state.fields)
    assert states.features(state) is not None


# -- what an overwrite replaces ---------------------------------------------------------------------------

PATHS = st.sampled_from("abcdefgh")


@given(st.lists(st.tuples(st.sampled_from(["append", "delete", "compact", "rewrite"]), st.sets(PATHS)), max_size=6))
def test_what_is_followed_is_what_a_model_of_rows_says(steps: list[tuple[str, set[str]]]) -> None:
    """Each file holds rows; doomed are those rows that were there at first and are there still."""
    held = {path: {path} for path in "abcd"}  # by file: the rows that were there at first
    held |= {"e": set(), "f": set()}
    doomed = {"a", "b", "c", "d"}
    for at, (kind, chosen) in enumerate(steps):
        gone = chosen & held.keys()
        new = f"n{at}"
        actions: list[dict[str, Any]] = [remove(path) for path in sorted(gone)] if kind != "append" else []
        rows: set[str] = set().union(*(held[path] for path in gone))
        if kind != "delete":
            actions.append(add(new, dataChange=kind != "compact"))
        mixed = {bool(held[path]) for path in gone} == {True, False}
        is_conflict = bool(rows) and (kind == "rewrite" or (kind == "compact" and mixed))
        try:
            doomed = delta_overwrite.followed(doomed, set(), actions, at, "test")
        except ConflictError:
            assert is_conflict
            return
        assert not is_conflict
        if kind != "append":
            for path in gone:
                del held[path]
        if kind != "delete":
            held[new] = rows if kind == "compact" else set()
        assert doomed == {path for path, inside in held.items() if inside}


# -- spelling ---------------------------------------------------------------------------------------------


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_a_path_comes_back_as_it_was(path: str) -> None:
    spelled = states.encoded_path(path)
    assert states.decoded_path(spelled) == path
    assert spelled.isascii()
    assert not set(spelled) & set(' "<>\\^`{|}#?')


MOMENTS = st.datetimes() | st.just(datetime.fromisoformat("1970-01-01"))


@given(moment=MOMENTS, is_whole=st.booleans())
def test_a_time_as_partition_value_comes_back_as_it_was(moment: datetime, is_whole: bool) -> None:
    from txsink import schema  # noqa: PLC0415

    value = moment.replace(microsecond=0 if is_whole else moment.microsecond, tzinfo=timezone.utc)
    (text,) = schema.partition_text(pa.array([value], ZONED), "t")
    spelled = zoned_text(text)
    assert spelled is not None
    assert spelled.endswith("Z")
    since = datetime(1970, 1, 1, tzinfo=timezone.utc)
    read = datetime.strptime(spelled, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)
    assert (read - since) // timedelta(microseconds=1) == (value - since) // timedelta(microseconds=1)
    assert plain_text(spelled, ZONED) == text


@pytest.mark.parametrize("kind", [pa.string(), pa.int32(), pa.date32(), ZONED, pa.decimal128(9, 2), pa.float64()])
def test_no_value_is_no_value(kind: pa.DataType) -> None:
    assert zoned_text(None) is None
    assert plain_text(None, kind) is None
    assert plain_text("", kind) is None
