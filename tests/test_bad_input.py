"""Bad input, and nothing lost: each gets a clear error, the table keeps its rows, and the next right call succeeds."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import txsink
from place import Place, prepared, tree
from seen import by_directory, entry_file, rows_of, staging
from simtable import SimTable
from txsink.errors import (
    ConflictError,
    CorruptError,
    FencedError,
    InvalidRequestError,
    OutcomeUnknownError,
    TxsinkError,
    UnavailableError,
)
from txsink.log import entry as entries
from txsink.paths import HEAD_PATH, VERSION_MAX
from txsink.store.local.store import LocalStore
from txsink.testing.simdisk import SimDisk
from txsink.writing.opening import open_sink
from txsink.writing.writer import Writer

ROWS = {"id": [1, 2], "day": ["a", "b"]}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A table, partitioned by day, with ids 1 and 2 in epoch 0."""
    found = Place(tmp_path / "T")
    found.write(0, ROWS, partition_by="day")
    return found


def check_told(error: TxsinkError, *parts: str) -> None:
    """It says what was attempted, what was found (`parts`), and what to do."""
    assert error.attempted
    assert error.found
    assert error.advice
    for part in parts:
        assert part in str(error), f"{part!r} is not in {error}"


@contextmanager
def refused(*parts: str, kind: type[TxsinkError] = InvalidRequestError) -> Iterator[pytest.ExceptionInfo[TxsinkError]]:
    """The call fails with an error of this class, which is clear."""
    with pytest.raises(kind) as caught:
        yield caught
    check_told(caught.value, *parts)


def check_unharmed(place: Place, *, epoch: int = 1) -> None:
    """The rows of before are there, and the next right call adds its own once."""
    assert rows_of(place.path) == [1, 2]
    place.write(epoch, {"id": [3], "day": ["c"]})
    place.write(epoch, {"id": [3], "day": ["c"]})
    assert rows_of(place.path) == [1, 2, 3]


# -- values and columns ------------------------------------------------------------------------------------

HOSTILE = ["..", ".", "../../../etc", "/", "/etc/passwd", "a/b", "a=b", "%2E%2E", "\x01\x1f\x7f", "a\nb", "a\\b",
           " ", "ü", "*?[", "_txsink", ".hidden", "x" * 240]  # fmt: skip


@pytest.mark.parametrize("value", HOSTILE)
def test_a_hostile_partition_value_stays_in_the_table_and_is_read_back_as_it_was(place: Place, value: str) -> None:
    before = tree(place.path.parent)
    place.write(1, {"id": [3], "day": [value]})
    new = set(tree(place.path.parent)) - set(before)
    assert all(path.startswith("T/") for path in new)
    assert rows_of(place.path) == [1, 2, 3]
    found = place.table().to_arrow()
    assert dict(zip(found["id"].to_pylist(), found["day"].to_pylist(), strict=True))[3] == value


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("a\x00b", "NUL"),
        ("\x00", "NUL"),
        ("x" * 300, "at most 255 fit"),
        ("ü" * 150, "at most 255 fit"),
        ("/" * 100, "at most 255 fit"),
        ("__HIVE_DEFAULT_PARTITION__", "stands for null"),
        ("", "is empty, which every reader takes for null"),
    ],
)
def test_a_partition_value_that_can_be_no_directory_is_refused(place: Place, value: str, found: str) -> None:
    with refused("epoch 1", "'day'", found), place.sink() as sink, sink.begin(1) as txn:
        txn.write({"id": [4, 5], "day": ["a", value]})
    assert not list(staging(place.path).rglob("*.parquet"))
    check_unharmed(place)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        ({"id": [3], "ID": [4], "day": ["a"]}, "same name but for case"),
        ({"ID": [3], "day": ["a"]}, "differs only by case"),
        ({"id": [3], "Day": ["a"]}, "day"),
        ({"id": pa.array(["3"]), "day": ["a"]}, "is int64 in the table and string in the data"),
        ({"id": pa.array([3], pa.uint64()), "day": ["a"]}, "is int64 in the table and uint64 in the data"),
        ({"id": pa.array([3.0]), "day": ["a"]}, "is int64 in the table and double in the data"),
        ({"id": [3], "day": pa.array([7])}, "is string in the table and int64 in the data"),
        ({"id": [3], "day": ["a"], "more": [1]}, "no column 'more'"),
        ({"id": [3]}, "day"),
        ({"id": [3], "day": ["a"], "": [1]}, "is empty"),
        ({"id": [3], "day": ["a"], "n\x00": [1]}, "NUL"),
        ({"id": [3], "day": ["a", "b"]}, "differ in length"),
    ],
)
def test_columns_that_are_not_the_tables_are_refused_by_name(place: Place, data: Any, found: str) -> None:
    with refused("epoch 1", found):
        place.write(1, data)
    check_unharmed(place)


def test_a_changed_type_is_refused_with_merge_schema_too(place: Place) -> None:
    with refused("is int64 in the table and string in the data", "Cast it"):
        place.write(1, {"id": pa.array(["3"]), "day": ["a"]}, merge_schema=True)
    check_unharmed(place)


@pytest.mark.parametrize(
    "data", [object(), 5, "text", b"bytes", None, [1, 2], [[1]], [None], {"id": 1}, {1: [1]}, {"id": [1, "x"]}, len]
)
def test_what_is_no_table_is_refused_and_says_what_is_taken(place: Place, data: Any) -> None:
    with refused("epoch 1"), place.sink() as sink, sink.begin(1) as txn:
        txn.write(data)
    check_unharmed(place)


def test_a_source_that_fails_half_way_leaves_nothing(place: Place) -> None:
    def source() -> Iterator[pa.Table]:
        yield pa.table({"id": [3], "day": ["c"]})
        raise OSError("the source went away")

    with place.sink() as sink, pytest.raises(OSError, match="the source went away"), sink.begin(1) as txn:
        txn.write(source())
    assert not list(staging(place.path).rglob("*.parquet"))
    check_unharmed(place)


# -- paths -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("below", ["", "/t", "/t/u"])
def test_a_table_path_that_is_a_file_is_refused_and_the_file_is_as_it_was(tmp_path: Path, below: str) -> None:
    (tmp_path / "f").write_bytes(b"precious")
    with refused(str(tmp_path / "f")):
        txsink.write(f"{tmp_path}/f{below}", {"id": [1]}, writer="w", epoch=0)
    with refused(str(tmp_path / "f")):
        txsink.open_table(f"{tmp_path}/f{below}")
    assert tree(tmp_path) == {"f": b"precious"}
    txsink.write(str(tmp_path / "t"), {"id": [1]}, writer="w", epoch=0)
    assert rows_of(tmp_path / "t") == [1]


def test_a_symlink_loop_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    for path in ("a", "a/t"):
        with refused("ELOOP", "Name another path"):
            txsink.write(str(tmp_path / path), {"id": [1]}, writer="w", epoch=0)
    (tmp_path / "b").unlink()
    (tmp_path / "b").mkdir()
    txsink.write(str(tmp_path / "a" / "t"), {"id": [1]}, writer="w", epoch=0)
    assert rows_of(tmp_path / "b" / "t") == [1]


def test_a_table_reached_through_a_link_is_the_table(place: Place) -> None:
    link = place.path.parent / "link"
    link.symlink_to(place.path)
    txsink.write(str(link), {"id": [3], "day": ["c"]}, writer="w", epoch=1)
    txsink.write(str(place.path), {"id": [3], "day": ["c"]}, writer="w", epoch=1)
    assert rows_of(place.path) == [1, 2, 3]


@pytest.mark.parametrize("path", ["", "a\x00b", "file:relative", "ftp://host/t", "x" * 300, 5, None, b"/t", ["/t"]])
def test_what_is_no_path_of_a_store_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with refused():
        txsink.write(path, {"id": [1]}, writer="w", epoch=0)
    with refused():
        txsink.open_writer(path, "w")
    with refused():
        txsink.open_table(path)
    assert tree(tmp_path) == {}


class ElsewhereStore(LocalStore):
    """The staging root lies on another file system."""

    def same_place(self, path: str, other: str) -> bool:
        return False


def test_staging_on_another_file_system_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    found = Place(tmp_path / "T")
    with refused("another file system", "staging_path"):
        open_sink(ElsewhereStore(), found.stamps, str(found.path), "w", {})
    assert tree(tmp_path) == {}
    found.write(0, {"id": [1]})
    assert rows_of(found.path) == [1]


def test_staging_on_another_real_file_system_is_refused(tmp_path: Path) -> None:
    shm = Path("/dev/shm")
    if not shm.is_dir() or shm.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("/dev/shm is no other file system than the temporary directory")
    with refused("another file system", "staging_path"):
        txsink.open_writer(str(tmp_path / "T"), "w", staging_path=str(shm / "txsink-none"))
    assert tree(tmp_path) == {}
    assert not (shm / "txsink-none").exists()


def test_a_table_in_a_directory_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere; the simulated disk stands in, see below")
    tmp_path.chmod(0o500)
    try:
        with refused("EACCES", "Make it writable"):
            txsink.write(str(tmp_path / "T"), {"id": [1]}, writer="w", epoch=0)
    finally:
        tmp_path.chmod(0o700)
    txsink.write(str(tmp_path / "T"), {"id": [1]}, writer="w", epoch=0)
    assert rows_of(tmp_path / "T") == [1]


# -- epochs and other arguments ----------------------------------------------------------------------------

BAD_EPOCHS = [-1, np.int64(-1), np.bool_(True), True, False, 1.0, "7", None, 2**63, 2**70, [1], b"1"]


@pytest.mark.parametrize("epoch", BAD_EPOCHS, ids=repr)
def test_an_epoch_that_is_no_count_is_refused_by_every_verb(place: Place, epoch: Any) -> None:
    with place.sink() as sink:
        verbs: list[Callable[[Any], object]] = [sink.begin, sink.commit, sink.abort]
        if epoch is not None:
            verbs.append(sink.recover)
        for act in verbs:
            with refused(repr(epoch), "Give an integer from 0 to 9223372036854775807"):
                act(epoch)
    with refused(repr(epoch)):
        txsink.write(str(place.path), {"id": [3], "day": ["c"]}, writer="w", epoch=epoch)
    check_unharmed(place)


class Count:
    """An integer of somebody's own."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __index__(self) -> int:
        return self.number


@pytest.mark.parametrize("kind", [np.int64, np.int8, np.uint64, Count], ids=lambda kind: kind.__name__)
def test_an_epoch_may_be_any_integer(place: Place, kind: Callable[[int], Any]) -> None:
    with place.sink() as sink:
        txn = sink.begin(kind(1), parts=kind(0))
        txn.write({"id": [3], "day": ["c"]})
        txn.prepare()
        sink.commit(kind(1))
        prepared(sink, 2, {"id": [4], "day": ["d"]})
        sink.abort(kind(2))
        assert sink.last_epoch == 1
        sink.recover(kind(1))
    result = txsink.write(str(place.path), {"id": [4], "day": ["c"]}, writer="w", epoch=kind(2))
    assert (type(result.epoch), result.epoch) == (int, 2)
    assert rows_of(place.path) == [1, 2, 3, 4]


def test_a_bad_epoch_aborts_nothing(place: Place) -> None:
    """True is 1 to Python."""
    with place.sink() as sink:
        prepared(sink, 1, {"id": [3], "day": ["c"]})
        with refused("True"):
            sink.abort(True)
        sink.commit(1)
    assert rows_of(place.path) == [1, 2, 3]


def test_the_largest_epoch_is_an_epoch(place: Place) -> None:
    check_unharmed(place, epoch=VERSION_MAX)
    with place.sink() as sink:
        assert sink.last_epoch == VERSION_MAX
        with refused("yet epoch 9223372036854775807 is"):
            sink.begin(5)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"mode": "apend"}, "mode is 'apend'"),
        ({"mode": ["append"]}, "mode is"),
        ({"mode": None}, "mode is None"),
        ({"partition_overwrite": "dyn"}, "partition_overwrite is 'dyn'"),
        ({"parts": -1}, "parts"),
        ({"parts": "2"}, "parts"),
        ({"parts": True}, "parts"),
        ({"parts": 1.0}, "parts"),
    ],
)
def test_a_wrong_argument_of_begin_is_refused_there(place: Place, options: dict[str, Any], found: str) -> None:
    with place.sink() as sink, refused("begin epoch 1", found):
        sink.begin(1, **options)
    check_unharmed(place)


def test_a_wrong_choice_of_recover_is_refused(place: Place) -> None:
    with place.sink() as sink, refused("on_newer is 'rewnd'", "'fail', 'skip', 'rewind'", "Did you mean 'rewind'?"):
        sink.recover(0, "rewnd")  # type: ignore[arg-type]
    check_unharmed(place)


WRONG_OPTIONS: dict[str, list[Any]] = {
    "partition_by": [5, [5], [None], b"day", {"other": 1}],
    "merge_schema": ["yes", 1, None],
    "staging_path": [5, ["/s"]],
    "types": ["Arrow", 5],
    "storage_options": [5, "x", [1], {"a": 1}],
    "run": [5, "", "a\x00", "x" * 300, "\ud800"],
    "recover": ["no", 0, None],
    "layout": ["parqet", 5],
    "compression": ["zst", 5, None, "brotli"],
    "compression_level": ["high", 99, 1.5],
    "target_file_bytes": [0, -1, "big", None, 1.5],
    "row_group_rows": [0, -1, "many", None],
    "file_rows_max": [0, -1, "many", None],
    "row_group_bytes": [0, -1, "many", None],
    "open_partitions_max": [0, -1, "many", None],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG_OPTIONS.items() for value in values]
)
def test_an_option_of_the_wrong_type_or_size_is_refused_by_name(place: Place, name: str, value: Any) -> None:
    before = tree(place.path.parent)
    with refused():
        txsink.open_writer(str(place.path), "w", **{name: value})
    assert tree(place.path.parent) == before
    check_unharmed(place)


def test_every_option_has_a_wrong_value_above() -> None:
    from txsink.options import Options  # noqa: PLC0415
    from txsink.staging.epoch_stager import StageOptions  # noqa: PLC0415

    assert {*Options.__struct_fields__, *StageOptions.__struct_fields__} == WRONG_OPTIONS.keys()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("partitionby", "Did you mean 'partition_by'?"),
        ("compresion", "Did you mean 'compression'?"),
        ("target_file_size", "Did you mean 'target_file_bytes'?"),
        ("Merge_schema", "Did you mean 'merge_schema'?"),
        ("zzz", "Known options: "),
    ],
)
def test_an_unknown_option_is_refused_with_a_suggestion(place: Place, name: str, hint: str) -> None:
    given: dict[str, Any] = {name: 1}
    for act in (
        lambda: txsink.open_writer(str(place.path), "w", **given),
        lambda: txsink.write(str(place.path), {"id": [3]}, writer="w", epoch=1, **given),
    ):
        with refused(f"unknown option {name!r}", hint):
            act()
    check_unharmed(place)


@pytest.mark.parametrize("name", ["", "a\x00b", "x" * 256, "x" * 300, "/" * 100, "\ud800", 5, None, b"w", ["w"], True])
def test_a_writers_name_that_cannot_be_used_is_refused(place: Place, name: Any) -> None:
    before = tree(place.path.parent)
    with refused("cannot be used", "Give another name"):
        txsink.open_writer(str(place.path), name)
    with refused("cannot be used"):
        txsink.write(str(place.path), {"id": [3], "day": ["c"]}, writer=name, epoch=1)
    assert tree(place.path.parent) == before
    check_unharmed(place)


@pytest.mark.parametrize("name", ["..", ".", "a/b", "../../x", "/etc", "ü", "a b", "%2F", "%", ".x", "a\nb", "x" * 255])
def test_a_strange_name_of_a_writer_is_a_name_and_stages_in_its_place(place: Place, name: str) -> None:
    """I15."""
    before = tree(place.path.parent)
    with place.sink(name) as sink:
        prepared(sink, 0, {"id": [3], "day": ["c"]})
        staged = [path for path in set(tree(place.path.parent)) - set(before) if path.endswith(".parquet")]
        assert [path.startswith(".T.txsink/") and path.count("/") == 5 for path in staged] == [True]
        sink.commit(0)
        assert sink.last_epoch == 0
    with place.sink(name) as sink:
        assert sink.last_epoch == 0
        assert sink.sweep() == []
    assert rows_of(place.path) == [1, 2, 3]


@pytest.mark.parametrize("act", ["write", "open_writer", "open_table", "staging_path", "ParquetFileSink"])
def test_a_path_that_is_not_utf_8_is_refused_before_anything_is_there(tmp_path: Path, act: str) -> None:
    """pyarrow, and every reader that is told of a path as text, could not open its files."""
    path = os.fsdecode(os.fsencode(str(tmp_path)) + b"/\xff")
    acts: dict[str, Callable[[], object]] = {
        "write": lambda: txsink.write(Path(path), {"id": [1]}, writer="w", epoch=0),
        "open_writer": lambda: txsink.open_writer(path, "w"),
        "open_table": lambda: txsink.open_table(path),
        "staging_path": lambda: txsink.open_writer(str(tmp_path / "T"), "w", staging_path=path),
        "ParquetFileSink": lambda: txsink.ParquetFileSink(path, "w"),
    }
    with refused("open", "the path is not UTF-8", "Name another path") as caught:
        acts[act]()
    str(caught.value).encode()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", ["append", None])
def test_a_dynamic_overwrite_that_would_append_is_refused(place: Place, mode: str | None) -> None:
    options: dict[str, Any] = {} if mode is None else {"mode": mode}
    with (
        place.sink() as sink,
        refused("partition_overwrite is 'dynamic', and mode is 'append'", "Give mode='overwrite'"),
    ):
        sink.begin(1, partition_overwrite="dynamic", **options)
    with refused("partition_overwrite is 'dynamic'"):
        place.write(1, {"id": [3], "day": ["c"]}, partition_overwrite="dynamic", **options)
    check_unharmed(place)


def deep(depth: int, *, is_dict: bool) -> object:
    found: object = 1
    for _ in range(depth):
        found = {"k": found} if is_dict else [found]
    return found


CYCLIC: list[object] = []
CYCLIC += [CYCLIC, CYCLIC]


@pytest.mark.parametrize("shape", ["rows", "columns", "a generator", "pandas", "a known column"])
@pytest.mark.parametrize("kind", ["lists", "dicts", "a cycle"])
def test_values_nested_too_deep_are_refused_by_the_columns_name(place: Place, shape: str, kind: str) -> None:
    """Arrow calls itself for each level: 3,000 dicts in one another ended the process."""
    value = CYCLIC if kind == "a cycle" else deep(3000, is_dict=kind == "dicts")
    data: Any = {"id": [3], "day": ["c"], "deep": [value]}
    told = "column 'deep' is nested more than 48 deep"
    if shape == "a known column":
        data, told = {"id": [3], "day": [value]}, "column 'day' is string and would not hold"
    elif shape == "pandas":
        data = pd.DataFrame(data)
    elif shape != "columns":
        rows = [{"id": 3, "day": "c", "deep": value}]
        data = rows if shape == "rows" else iter(rows)
    with refused(told):
        place.write(1, data, merge_schema=True)
    check_unharmed(place)


def test_values_nested_as_deep_as_readers_go_are_taken(place: Place) -> None:
    place.write(1, [{"id": 3, "day": "c", "deep": deep(48, is_dict=False)}], merge_schema=True)
    assert rows_of(place.path) == [1, 2, 3]


def nested(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(depth):
        found = {"k": found}
    return found


CYCLE: dict[str, Any] = {}
CYCLE["self"] = CYCLE


BAD_METADATA: dict[str, Any] = {
    "an object": {"k": object()},
    "a set": {"k": {1, 2}},
    "bytes": {"k": b"x"},
    "a tuple": {"k": (1, 2)},
    "NaN": {"k": float("nan")},
    "infinity": {"k": float("inf")},
    "an integer key": {1: "x"},
    "an integer key below": {"k": {1: 2}},
    "a lone surrogate": {"k": "\ud800"},
    "a cycle": CYCLE,
    "too deep": nested(150),
    "far too deep": nested(5000),
    "too large": {"k": "x" * (1 << 20)},
    "text": "text",
    "a number": 5,
    "a list": [1],
    "pairs": [("a", 1)],
    "a flag": True,
}


@pytest.mark.parametrize("kind", BAD_METADATA)
def test_metadata_that_would_not_be_read_back_is_refused(place: Place, kind: str) -> None:
    metadata = BAD_METADATA[kind]
    with refused("metadata"), place.sink() as sink, sink.begin(1, metadata=metadata) as txn:
        txn.write({"id": [3], "day": ["c"]})
    assert not list(staging(place.path).rglob("*.parquet"))
    check_unharmed(place)


# -- the log -----------------------------------------------------------------------------------------------


def edited(data: bytes) -> bytes:
    return data.replace(b'"format":1', b'"format":1 ', 1)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "torn": lambda data: data[: len(data) // 2],
    "torn at the end": lambda data: data[:-1],
    "a byte flipped": lambda data: data[:30] + bytes([data[30] ^ 1]) + data[31:],
    "edited and sealed again": lambda data: entries.seal(
        entries.unseal(data).replace(b'"time_ms":', b'"time_ms":1', 1)
    ),
    "spelled otherwise": lambda data: entries.seal(edited(entries.unseal(data))),
    "deeply nested": lambda data: entries.seal(b'{"kind":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "zeros": lambda data: bytes(len(data)),
    "no JSON": lambda data: b"\xff\xfe garbage",
    "another entry": lambda data: entries.seal(entries.unseal(data).replace(b'"version":2', b'"version":1', 1)),
}


def check_damage_is_told(place: Place, version: int, kind: type[TxsinkError], *parts: str) -> None:
    """Nobody who needs the entry goes on, nothing is changed, and plain readers have their rows."""
    before = tree(place.path.parent)
    with refused(f"entry {version}", *parts, kind=kind):
        place.table()
    with refused(f"entry {version}", *parts, kind=kind):
        place.sink()
    with refused(f"entry {version}", *parts, kind=kind):
        place.write(1, {"id": [3], "day": ["c"]})
    assert tree(place.path.parent) == before
    assert by_directory(place.path) == [1, 2]


# Left out: what leaves the entry as it is, and a forged newest entry, which no later one contradicts.
NO_DAMAGE = {("edited and sealed again", 2), ("another entry", 0), ("another entry", 1)}


@pytest.mark.parametrize(
    ("damage", "version"), [(name, at) for name in DAMAGE for at in range(3) if (name, at) not in NO_DAMAGE]
)
def test_a_damaged_entry_is_named_and_once_restored_the_table_goes_on(place: Place, damage: str, version: int) -> None:
    """I13, I7."""
    file = entry_file(place.path, version)
    good = file.read_bytes()
    bad = DAMAGE[damage](good)
    file.write_bytes(bad)
    (place.path / HEAD_PATH).unlink()  # by which a table opens without a look at older entries
    with pytest.raises(CorruptError) as caught:
        place.table()
    # An entry that was sealed again is found by the one after it, whose chain it breaks.
    told = caught.value.context["version"]
    assert told == version or ("sealed again" in damage and told == version + 1), caught.value
    before = tree(place.path.parent)
    for act in (place.sink, lambda: place.write(1, {"id": [3], "day": ["c"]})):
        with refused("entry", kind=CorruptError):
            act()
    assert tree(place.path.parent) == before
    assert by_directory(place.path) == [1, 2]
    file.write_bytes(good)
    check_unharmed(place)


def test_a_sparse_gibibyte_for_an_entry_is_refused_without_reading_it_all(place: Place) -> None:
    file = entry_file(place.path, 2)
    good = file.read_bytes()
    os.truncate(file, 1 << 30)
    with refused("read log entry 2", "larger than", kind=CorruptError):
        place.table()
    with refused("read log entry 2", "larger than", kind=CorruptError):
        place.sink()
    assert by_directory(place.path) == [1, 2]
    file.write_bytes(good)
    check_unharmed(place)


def test_an_entry_of_a_future_format_says_which_txsink_reads_it(place: Place) -> None:
    file = entry_file(place.path, 2)
    good = file.read_bytes()
    file.write_bytes(entries.seal(entries.unseal(good).replace(b'"format":1', b'"format":9', 1)))
    check_damage_is_told(place, 2, InvalidRequestError, "format 9", "Upgrade txsink")
    file.write_bytes(good)
    check_unharmed(place)


# -- more than one -----------------------------------------------------------------------------------------


def test_of_two_live_runs_the_older_one_is_told_to_stop_and_nothing_is_lost(place: Place) -> None:
    """I10."""
    older = place.sink()
    txn = older.begin(1)
    txn.write({"id": [99], "day": ["c"]})
    newer = place.sink()
    for act in (txn.commit, txn.prepare, older.recover, lambda: older.begin(1).commit()):
        with refused("was retired by run", "Stop this process", kind=FencedError):
            act()
    older.close()
    newer.close()
    check_unharmed(place)


def commit_at_once(sink: Writer, epoch: int, row: int, barrier: threading.Barrier, told: list[str]) -> None:
    barrier.wait()
    txn = sink.begin(epoch)
    try:
        txn.write({"id": [row], "day": ["c"]})
        told.append(f"{txn.commit().outcome}-{row}")
    except ConflictError:
        txn.abort()
        told.append("conflict")


def test_the_same_epoch_from_two_threads_is_committed_once(place: Place) -> None:
    """I5."""
    with place.sink() as sink:
        for epoch in range(1, 9):
            barrier = threading.Barrier(2)
            told: list[str] = []

            threads = [
                threading.Thread(target=commit_at_once, args=(sink, epoch, 10 * epoch + number, barrier, told))
                for number in range(2)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(told) == 2
            committed = [text for text in told if text.startswith("committed")]
            assert len(committed) == 1, told
            found = [row for row in rows_of(place.path) if row // 10 == epoch]
            assert found == [int(committed[0].rpartition("-")[2])], told
    assert not list(staging(place.path).rglob("*.parquet"))


# -- a disk that refuses, at every call --------------------------------------------------------------------

# What the log's reader sees after each commit of `program`.
STATES = [[], [1, 2], [1, 2, 3], [2, 4], [2, 4, 5], [2, 4, 5, 6]]


def program(site: SimTable, told: list[int]) -> None:
    """Open, write, prepare, commit, overwrite, recover, abort; a second run of it does what the first one did not."""

    def step(sink: Writer, epoch: int, ids: list[int], days: list[str], **options: Any) -> None:
        with sink.begin(epoch, **options) as txn:
            txn.write({"id": ids, "day": days})
        told.append(epoch)

    with site.open(partition_by="day") as sink:
        step(sink, 0, [1, 2], ["a", "b"])
        step(sink, 1, [3], ["a"])
        step(sink, 2, [4], ["a"], mode="overwrite", partition_overwrite="dynamic")
        txn = sink.begin(3)
        txn.write({"id": [5], "day": ["b"]})
        txn.prepare()
    with site.open(recover=False) as sink:
        sink.recover(3, "skip")
        told.append(3)
        if (txn := sink.begin(4)).outcome == "open":
            txn.write({"id": [6], "day": ["a"]})
            txn.prepare()
            txn.abort()
        step(sink, 4, [6], ["a"])
        sink.sweep()


def full_from(disk: SimDisk, call: int) -> None:
    """No room for another byte or name from this changing call on."""

    def fill(found: SimDisk) -> None:
        if found.calls >= call - 1 and found.capacity_bytes is None:
            found.capacity_bytes = found.used_bytes()

    disk.watch = fill


FAULTS: dict[str, Callable[[SimDisk, int], None]] = {
    "full for a moment": lambda disk, call: disk.fail_at(call, errno.ENOSPC),
    "full from there on": full_from,
    "read-only from there on": lambda disk, call: disk.fail_at(call, errno.EROFS),
    "not writable there": lambda disk, call: disk.fail_at(call, errno.EACCES),
    "an input/output error": lambda disk, call: disk.fail_at(call, errno.EIO),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_disk_that_refuses_at_any_call_loses_nothing_and_the_next_run_completes(fault: str) -> None:
    """I1, I3, I14."""
    whole = SimTable()
    program(whole, [])
    assert whole.rows() == STATES[-1]
    failed = 0
    for call in range(1, whole.disk.calls + 1):
        site, told = SimTable(), list[int]()
        FAULTS[fault](site.disk, call)
        try:
            program(site, told)
        except (UnavailableError, OutcomeUnknownError, InvalidRequestError) as error:
            failed += 1
            check_told(error, "errno")
        check_readable(site, told, call)
        site.disk.read_only, site.disk.capacity_bytes, site.disk.watch = False, None, None
        program(site, [])
        assert site.rows() == STATES[-1], f"call {call}"
        staged = [path for path in site.disk.files() if "/.t.txsink/" in path]
        assert staged == [], f"call {call}"
    assert failed > whole.disk.calls // 3


def check_readable(site: SimTable, told: list[int], call: int) -> None:
    """With the disk as it is: the rows of every epoch that was acknowledged, and at most one epoch more."""
    seen: list[int] = []
    with suppress(InvalidRequestError):  # there is no table yet
        seen = site.by_log()
    count = len(told)
    assert seen in STATES[count : count + 2], f"call {call}: {seen} after {told}"
