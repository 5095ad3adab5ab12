"""The reader's side: exactly the committed rows, at every retained version, whatever is going on meanwhile."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from place import Place, begin_publish, prepared, tree
from txsink.errors import CorruptError, InvalidRequestError
from txsink.log import expiry, gaps
from txsink.log.state import OVERWRITE
from txsink.protocol import resolving
from txsink.reading.table import open_table
from txsink.store.local.store import LocalStore
from txsink.testing.faults import FaultyStore, delay


def ids(table: pa.Table) -> list[int | None]:
    return sorted(table["id"].to_pylist())


# -- opening ------------------------------------------------------------------------------------------


def test_a_path_without_a_table_is_refused_and_nothing_is_created(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="there is no txsink table"):
        open_table(str(tmp_path / "T"))
    assert list(tmp_path.iterdir()) == []


def test_a_lost_first_entry_is_corruption_and_never_an_empty_table(place: Place) -> None:
    """I13."""
    place.write(0, {"id": [1]})
    (place.path / "_txsink/log" / f"{0:020d}.json").unlink()
    (place.path / "_txsink/head").unlink(missing_ok=True)
    with pytest.raises(CorruptError, match=r"read log entry 0 .* is missing"):
        place.table()


def test_reading_changes_nothing(place: Place, tmp_path: Path) -> None:
    place.write(0, {"id": [1], "p": ["a"]}, partition_by="p")
    before = tree(tmp_path)
    table = place.table()
    table.to_arrow()
    table.to_arrow(1)
    table.history()
    table.verify(deep=True)
    table.explain("w", 0)
    assert tree(tmp_path) == before


def test_a_table_says_what_it_is(place: Place) -> None:
    place.write(3, {"id": [1], "p": ["a"]}, partition_by="p", metadata={"offset": 9})
    table = open_table(str(place.path))
    assert table.path == str(place.path)
    assert table.version == 2
    assert table.schema == pa.schema([("id", pa.int64()), ("p", pa.string())])
    assert table.partition_columns == ["p"]
    assert len(table.table_id) == 32
    known = table.writers()["w"]
    assert (known.generation, known.last_epoch, known.last_version, known.metadata) == (1, 3, 2, {"offset": 9})
    assert known.claimed.tzinfo is timezone.utc
    assert repr(table) == f"<txsink.Table {str(place.path)!r} version 2>"


# -- rows and files -----------------------------------------------------------------------------------


def test_every_version_has_exactly_the_rows_committed_by_then(place: Place) -> None:
    """I1."""
    for epoch in range(3):
        place.write(epoch, {"id": [epoch]})
    table = place.table()
    assert ids(table.to_arrow()) == [0, 1, 2]
    assert [ids(table.to_arrow(version)) for version in range(2, 7)] == [[0], [0], [0, 1], [0, 1], [0, 1, 2]]
    assert table.files(0) == []
    assert table.files(1) == []
    found = table.files()
    assert [(one.epoch, one.writer, one.version, one.rows, one.partition) for one in found] == [
        (0, "w", 2, 1, {}),
        (1, "w", 4, 1, {}),
        (2, "w", 6, 1, {}),
    ]
    assert all((place.path / one.path).stat().st_size == one.bytes for one in found)


def test_a_version_older_than_a_summary_is_read_like_any_other(place: Place) -> None:
    with place.sink() as sink:
        for epoch in range(70):
            with sink.begin(epoch) as txn:
                txn.write({"id": [epoch], **({"late": [1]} if epoch > 50 else {})})
            if epoch == 50:
                sink.settings = sink.settings._replace(merge_schema=True)
    table = place.table()
    assert sorted(gaps.summaries(table.log.slots)) == [63, 127]
    for version in (1, 60, 63, 64, 100, 127, 130, table.version):
        committed = [one for one in table.history() if one.kind == "commit" and one.version <= version]
        assert ids(table.to_arrow(version)) == list(range(len(committed))) if committed else True
        assert table.to_arrow(version).column_names == ["id", "late"][: 1 + (len(committed) > 51)] or not committed


def test_an_overwrite_leaves_the_versions_before_it_readable(place: Place) -> None:
    place.write(0, {"id": [1, 2]})
    place.write(1, {"id": [3]}, writer="other")
    place.write(1, {"id": [4]}, mode="overwrite")
    table = place.table()
    assert ids(table.to_arrow()) == [4]
    assert ids(table.to_arrow(4)) == [1, 2, 3]
    assert [one.writer for one in table.files(4)] == ["w", "other"]
    assert table.verify(deep=True) == []


def test_a_dynamic_overwrite_replaces_only_the_partitions_it_touches(place: Place) -> None:
    place.write(0, {"id": [1, 2, 3], "p": ["a", "b", None]}, partition_by="p")
    place.write(1, {"id": [9], "p": ["b"]}, mode="overwrite", partition_overwrite="dynamic")
    table = place.table()
    assert sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"]) == [
        {"id": 1, "p": "a"},
        {"id": 3, "p": None},
        {"id": 9, "p": "b"},
    ]
    assert ids(table.to_arrow(2)) == [1, 2, 3]


@pytest.mark.parametrize("moved", [0, 1, 2, 3])
def test_an_overwrite_half_published_shows_the_old_rows_whole_to_log_readers(place: Place, moved: int) -> None:
    """I2: whichever files have been taken away so far, and whether the new ones lie there already."""
    place.write(0, {"id": [1]})
    place.write(1, {"id": [2]})
    early = place.table()
    with place.sink() as sink:
        prepare = prepared(sink, 2, {"id": [3]}, mode="overwrite")
        waiting = place.table()
        begin_publish(sink, prepare)
        sink.publisher.replace(msgspec.structs.replace(prepare, removes=prepare.removes[: min(moved, 2)]))
        if moved == 3:
            sink.publisher.publish(prepare)
        for table in (early, waiting, place.table()):
            assert ids(table.to_arrow()) == [1, 2]
            assert ids(pa.table(table)) == [1, 2]
            assert ids(table.to_arrow(2)) == [1]
            assert table.verify() == []
        sink.commit(2)
    assert ids(place.table().to_arrow()) == [3]
    assert ids(early.to_arrow()) == [1, 2], "a table is read as of its version"
    assert ids(early.refresh().to_arrow()) == [3]


def test_new_columns_are_null_in_older_files_and_absent_from_older_versions(place: Place) -> None:
    place.write(0, {"id": [1], "void": pa.nulls(1)})
    place.write(1, {"id": [2], "void": ["x"], "name": ["n"]}, merge_schema=True)
    table = place.table()
    assert table.to_arrow().to_pylist() == [
        {"id": 1, "void": None, "name": None},
        {"id": 2, "void": "x", "name": "n"},
    ]
    assert table.to_arrow(2).schema == pa.schema([("id", pa.int64()), ("void", pa.null())])
    assert table.to_arrow().schema == table.schema


def test_partition_values_come_back_typed(place: Place) -> None:
    columns = {
        "i": pa.array([1, None], pa.int32()),
        "d": pa.array([date(2026, 1, 31), None]),
        "t": pa.array([datetime(2026, 1, 31, 1, 2, 3, 5, tzinfo=timezone.utc), None], pa.timestamp("us", "UTC")),
        "n": pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)),
        "s": pa.array(["a/b=%ü ", None]),
        "b": pa.array([True, None]),
    }
    place.write(0, pa.table({"id": [1, 2], **columns}), partition_by=tuple(columns))
    table = place.table()
    expected = {name: array[0].as_py() for name, array in columns.items()}
    by_id = {row["id"]: row for row in table.to_arrow().to_pylist()}
    assert by_id == {1: {"id": 1, **expected}, 2: {"id": 2, **dict.fromkeys(columns)}}
    assert table.to_arrow().schema == table.schema
    assert {tuple(one.partition.items()) for one in table.files()} == {
        tuple(expected.items()),
        tuple(dict.fromkeys(columns).items()),
    }


def test_an_empty_table_has_no_rows_and_an_epoch_without_rows_is_in_its_history(place: Place) -> None:
    place.write(0)
    table = place.table()
    assert table.to_arrow().num_rows == 0
    assert table.to_arrow().schema == pa.schema([])
    assert pa.table(table).num_rows == 0
    assert table.files() == []
    assert [(one.kind, one.epoch, one.files) for one in table.history(1)] == [("commit", 0, 0)]
    place.write(1, pa.table({"id": pa.array([], pa.int64()), "p": pa.array([], pa.string())}))
    assert place.table().to_arrow().schema.names == ["id", "p"]


def test_foreign_and_uncommitted_files_are_invisible(place: Place) -> None:
    """S8."""
    place.write(0, {"id": [1]})
    pq.write_table(pa.table({"id": [99]}), place.path / "stray.parquet")
    pq.write_table(pa.table({"id": [98]}), place.path / "part-0-0-abcd.parquet")
    with place.sink() as sink:
        prepared(sink, 1, {"id": [2]})
        assert ids(place.table().to_arrow()) == [1]


def _shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)


def _swap(path: Path) -> None:
    size = path.stat().st_size
    path.write_bytes(b"PAR1".ljust(size - 4) + b"PAR1")


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (Path.unlink, "it is missing"),
        (_shorten, r"it is \d+ bytes, \d+ were recorded"),
        (_lengthen, r"it is at least \d+ bytes, \d+ were recorded"),
        (_flip, "it cannot be read: .*CRC"),
        (_swap, "it cannot be read"),
    ],
)
def test_a_damaged_file_is_an_error_that_names_it(place: Place, damage: Callable[[Path], object], told: str) -> None:
    place.write(0, {"id": [1, 2, 3]}, compression="none")
    path = place.table().files()[0].path
    damage(place.path / path)
    with pytest.raises(CorruptError, match=told) as caught:
        place.table().to_arrow()
    assert caught.value.context["path"] == path
    assert len(place.table().files()) == 1, "the list is still there"


# -- ways to read -------------------------------------------------------------------------------------


def test_columns_are_chosen_by_name_in_the_order_given(place: Place) -> None:
    place.write(0, {"id": [1, 2], "p": ["a", "b"], "v": [0.5, 1.5]}, partition_by="p")
    table = place.table()
    assert table.to_arrow(columns=["p", "id"]).to_pydict() == {"p": ["a", "b"], "id": [1, 2]}
    assert table.to_arrow(columns=["p"]).to_pydict() == {"p": ["a", "b"]}
    assert table.to_arrow(columns="id").to_pydict() == {"id": [1, 2]}
    assert table.to_reader(columns="id").read_all().to_pydict() == {"id": [1, 2]}
    assert table.to_arrow(columns=["id", "p", "id"]).column_names == ["id", "p"]
    with pytest.raises(InvalidRequestError, match="Did you mean 'id'"):
        table.to_arrow(columns=["idd"])
    with pytest.raises(InvalidRequestError, match="Choose among id, p, v"):
        table.to_arrow(columns=["Q"])


def test_a_struct_and_a_column_with_a_dot_are_not_mistaken_for_each_other(place: Place) -> None:
    data = pa.table({"a": [{"b": 1, "c": 2}], "a.b": ["flat"]})
    place.write(0, data)
    table = place.table()
    assert table.to_arrow().to_pylist() == data.to_pylist()
    assert table.to_arrow(columns=["a.b"]).to_pylist() == [{"a.b": "flat"}]
    assert table.to_arrow(columns=["a"]).to_pylist() == [{"a": {"b": 1, "c": 2}}]


def test_duckdb_polars_and_pandas_read_the_arrow_stream(place: Place) -> None:
    place.write(0, {"id": [1, 2], "p": ["a", None]}, partition_by="p")
    place.write(1, {"id": [3], "p": ["a"]})
    table = place.table()
    query = "select p, sum(id)::int, count(*) from shown group by p order by p nulls last"
    with duckdb.connect() as connection:
        found = connection.register("shown", table).sql(query).fetchall()
    assert found == [
        ("a", 4, 2),
        (None, 2, 1),
    ]
    assert sorted(pl.DataFrame(table)["id"].to_list()) == [1, 2, 3]
    assert sorted(pl.from_arrow(pa.table(table))["id"].to_list()) == [1, 2, 3]
    assert sorted(pd.DataFrame(table.to_arrow().to_pandas())["id"]) == [1, 2, 3]


def test_a_stream_can_be_asked_for_another_schema(place: Place) -> None:
    place.write(0, {"id": [1]})
    asked = pa.schema([("id", pa.int32())])
    assert pa.table(place.table(), schema=asked).schema == asked


def test_a_stream_holds_one_file_at_a_time(place: Place) -> None:
    for epoch in range(3):
        place.write(epoch, {"id": [epoch]})
    store = FaultyStore(LocalStore())
    reader = place.table(store).to_reader()
    counts = []
    for batch in reader:
        counts.append(sum(path.endswith(".parquet") for verb, path in store.trace if verb == "read"))
        assert batch.num_rows == 1
    assert counts == [1, 2, 3]


def test_a_damaged_file_stops_a_stream_with_its_name(place: Place) -> None:
    place.write(0, {"id": [1]})
    path = place.table().files()[0].path
    (place.path / path).unlink()
    with pytest.raises((CorruptError, pa.ArrowException), match=path):
        pa.table(place.table())


def test_the_file_list_is_a_table_with_a_column_for_each_partition_column(place: Place) -> None:
    place.write(0, {"id": [1], "path": ["a"], "day": [date(2026, 1, 31)]}, partition_by=("day", "path"))
    found = place.table().file_list()
    assert found.schema.names == ["path", "bytes", "rows", "epoch", "writer", "version", "day", "partition.path"]
    assert found.schema.field("day").type == pa.date32()
    (row,) = found.to_pylist()
    (file,) = place.table().files()
    assert row == {
        "path": file.path,
        "bytes": file.bytes,
        "rows": 1,
        "epoch": 0,
        "writer": "w",
        "version": 2,
        "day": date(2026, 1, 31),
        "partition.path": "a",
    }
    assert place.table().file_list(0).num_rows == 0


def test_what_a_notebook_shows_is_escaped(tmp_path: Path) -> None:
    place = Place(tmp_path / "<b>T")
    place.write(0, {"<script>": [1], "p&q": ["a"]}, partition_by="p&q")
    shown = place.table()._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert "&lt;b&gt;T" in shown
    assert "<td>p&amp;q</td><td>string</td><td>partition</td>" in shown


# -- versions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [-1, 3, True, 2**64, "1"])
def test_a_version_that_is_not_there_is_refused_with_those_that_are(place: Place, version: Any) -> None:
    place.write(0, {"id": [1]})
    with pytest.raises(InvalidRequestError, match="versions 0 to 2 are there"):
        place.table().files(version)


def test_a_version_committed_since_is_found_when_asked_for(place: Place) -> None:
    place.write(0, {"id": [1]})
    table = place.table()
    place.write(1, {"id": [2]})
    assert ids(table.to_arrow()) == [1]
    assert ids(table.to_arrow(4)) == [1, 2]


def grown(place: Place, epochs: int) -> None:
    """`epochs` epochs, the fifth and every tenth after it an overwrite."""
    with place.sink() as sink:
        for epoch in range(epochs):
            with sink.begin(epoch, mode="overwrite" if epoch % 10 == 5 else "append") as txn:
                txn.write({"id": [epoch]})


def live_ids(epochs: int) -> list[int]:
    return list(range((epochs - 6) // 10 * 10 + 5, epochs))


def test_versions_below_the_boundary_have_expired_and_the_rest_is_readable(place: Place) -> None:
    grown(place, 40)
    table = place.table()
    boundary = expiry.expire(place.table().log, table.version)
    assert boundary == 63
    for reader in (place.table(), table.refresh()):
        assert reader.boundary == boundary
        with pytest.raises(InvalidRequestError, match="older ones have expired"):
            reader.files(boundary - 1)
        assert ids(reader.to_arrow()) == live_ids(40)
        assert reader.to_arrow(boundary).num_rows == len(reader.files(boundary))
        assert [one.version for one in reader.history()] == list(range(reader.version, boundary - 1, -1))
        assert reader.verify(deep=True) == []


def test_a_version_that_only_a_pending_transaction_keeps_is_read_with_later_columns_null(place: Place) -> None:
    place.write(0, {"id": [100]})
    with place.sink("slow") as slow:
        prepare = prepared(slow, 0, {"id": [0]})
        place.write(1, {"id": [101], "late": [1]}, merge_schema=True)
        with place.sink() as sink:
            for epoch in range(2, 70):
                with sink.begin(epoch) as txn:
                    txn.write({"id": [100 + epoch], "late": [epoch]})
        assert expiry.expire(place.table().log, 127) == prepare.version
        table = place.table()
        assert table.boundary == prepare.version
        assert table.to_arrow(prepare.version).to_pylist() == [{"id": 100, "late": None}]
        assert table.verify(deep=True) == []


def test_a_table_whose_version_expired_moves_on_to_the_newest(place: Place) -> None:
    """F26. So many epochs that a merged segment stands beside the entries it was made of, which then may go."""
    grown(place, 20)
    tables = [place.table() for _ in range(4)]
    grown_ids = live_ids(300)
    with place.sink() as sink:
        for epoch in range(20, 300):
            with sink.begin(epoch, mode="overwrite" if epoch % 10 == 5 else "append") as txn:
                txn.write({"id": [epoch]})
    expiry.expire(place.table().log, place.table().version)
    assert ids(tables[0].to_arrow()) == grown_ids
    assert [one.epoch for one in tables[1].files()] == grown_ids
    assert [one.version for one in tables[2].history()] == list(range(tables[2].version, tables[2].boundary - 1, -1))
    assert tables[3].pending() == []


def test_expiry_at_any_moment_leaves_a_reader_the_full_list(place: Place, tmp_path: Path) -> None:
    """F26: expiry before every single store call of a reader."""
    grown(place, 70)
    expected, done = live_ids(70), []

    def expire(copy: Place) -> Callable[[], object]:
        return lambda: expiry.expire(copy.table().log, 127)

    for call in itertools.count(1):
        copy = Place(tmp_path / f"copy-{call}")
        shutil.copytree(place.path, copy.path)
        store = FaultyStore(LocalStore(), [delay(call, expire(copy))])
        table = copy.table(store)
        assert ids(table.to_arrow()) == expected
        assert [one.version for one in table.history(3)] == [table.version - older for older in range(3)]
        if store.calls < call:
            break
        store.check_delivered()
        done.append(call)
    assert len(done) > 10


# -- history and pending ------------------------------------------------------------------------------


def test_history_tells_each_entry_newest_first(place: Place) -> None:
    place.write(0, {"id": [1], "p": ["a"]}, partition_by="p", metadata={"offset": 5})
    place.write(1, {"id": [2], "p": ["a"]}, mode="overwrite")
    with place.sink() as sink:
        prepared(sink, 2, {"id": [3], "p": ["b"]})
        sink.abort(2)
    found = place.table().history()
    assert [(one.version, one.kind, one.epoch) for one in found] == [
        (9, "maintenance", None),
        (8, "abort", 2),
        (7, "prepare", 2),
        (6, "claim", None),
        (5, "commit", 1),
        (4, "publishing", 1),
        (3, "prepare", 1),
        (2, "commit", 0),
        (1, "prepare", 0),
        (0, "create", None),
    ]
    commit = found[7]
    assert (commit.writer, commit.generation, commit.prepared, commit.mode) == ("w", 1, 1, "append")
    assert (commit.files, commit.rows, commit.removes, commit.metadata) == (1, 1, 0, {"offset": 5})
    assert commit.bytes == place.table().files(2)[0].bytes
    assert found[4].removes == 1
    assert found[4].mode == OVERWRITE
    assert [one.note for one in found if one.note] == [
        "cleaned: the aborts of 7 are finished",
        "claims the writer",
        "claims the writer",
        "layout parquet, partitioned by p",
    ]
    assert all(older.time < newer.time for newer, older in itertools.pairwise(found))
    assert place.table().history(2) == found[:2]
    assert place.table().history(0) == []
    with pytest.raises(InvalidRequestError, match="limit"):
        place.table().history(-1)


def test_history_of_a_commit_whose_prepare_entry_expired_goes_without_its_content(place: Place) -> None:
    grown(place, 70)
    expiry.expire(place.table().log, 127)
    *later, last = place.table().history()
    assert (last.version, last.kind, last.epoch, last.prepared, last.files) == (127, "commit", 59, 126, None)
    assert all(one.files == 1 for one in later if one.kind == "commit")


def test_pending_tells_what_waits_and_how_far_it_is(place: Place) -> None:
    place.write(0, {"id": [1]})
    with place.sink("a") as sink, place.sink("b") as other:
        prepare = prepared(sink, 1, {"id": [2, 3]}, mode="overwrite", metadata={"k": 1})
        prepared(other, 7, {"id": [4]})
        before = place.table()
        begin_publish(sink, prepare)
        resolving.abort(other.log, other.identity, other.publisher, other.log.refresh().pending_of("b")[0])
        for table, states in ((before, ["prepared", "prepared"]), (place.table(), ["publishing", "aborting"])):
            first, second = table.pending()
            assert [first.state, second.state] == states
            assert (first.writer, first.epoch, first.version) == ("a", 1, prepare.version)
            assert (first.files, first.rows, first.removes, first.metadata) == (1, 2, 1, {"k": 1})
            assert (second.writer, second.epoch, second.rows) == ("b", 7, 1)
            assert first.run == sink.run
        sink.commit(1)
        other.abort(7)
    assert place.table().pending() == []


def test_times_beyond_the_calendar_are_clamped(place: Place) -> None:
    place.stamps = place.stamps._replace(now_ms=lambda: 2**63 - 1)
    place.write(0, {"id": [1]})
    assert {one.time.year for one in place.table().history()} == {9999}
