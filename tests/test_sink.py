"""The door: opening, one-call writes, options, threads, and where files are staged."""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import txsink
from place import Place, prepared, rows
from seen import names, rows_of, small_blocks, staging
from txsink import paths
from txsink.environment import new_id, stamps
from txsink.errors import ConflictError, FencedError, InvalidRequestError
from txsink.protocol import blank
from txsink.store.local.store import LocalStore
from txsink.testing.faults import FaultyStore, delay
from txsink.writing.opening import open_sink

__all__ = ["small_blocks"]


# -- one call -----------------------------------------------------------------------------------------------


def test_one_call_writes_an_epoch_and_calling_again_writes_nothing(place: Place) -> None:
    """S1."""
    first = txsink.write(str(place.path), rows(1, 2), writer="nightly", epoch=7, metadata={"a": 1}, compression="gzip")
    again = txsink.write(str(place.path), rows(3), writer="nightly", epoch=7)
    assert (first.outcome, first.rows, first.files, first.version) == ("committed", 2, 1, 2)
    assert (again.outcome, again.rows, again.version) == ("already-committed", 0, 2)
    assert rows_of(place.path) == [1, 2]
    assert [one.kind for one in place.table().history()][::-1] == ["create", "prepare", "commit"]


def test_one_call_after_a_crash_finishes_what_was_left_first(place: Place) -> None:
    dead = place.sink("nightly")
    prepared(dead, 1, rows(1))
    assert txsink.write(str(place.path), rows(2), writer="nightly", epoch=2).outcome == "committed"
    assert txsink.write(str(place.path), rows(9), writer="nightly", epoch=1).outcome == "already-committed"
    assert rows_of(place.path) == [1, 2]


def test_one_call_that_fails_leaves_nothing_but_the_table(place: Place) -> None:
    def broken() -> Any:
        yield pa.table(rows(1))
        raise OSError

    with pytest.raises(OSError):  # noqa: PT011 -- the producer's own error passes through as it is
        txsink.write(str(place.path), broken(), writer="w", epoch=1)
    assert names(place.path.parent) == [f"T/{paths.HEAD_PATH}", f"T/{paths.entry_path(0)}"]
    txsink.write(str(place.path), rows(1), writer="w", epoch=1)
    assert rows_of(place.path) == [1]


def test_a_path_is_resolved_once(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """S9."""
    monkeypatch.chdir(tmp_path)
    with txsink.open_writer("T", "w") as sink:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        with sink.begin(1) as txn:
            txn.write(rows(1))
    assert rows_of(place.path) == [1]
    txsink.write(place.path.as_uri(), rows(2), writer="w", epoch=2)
    assert rows_of(place.path) == [1, 2]


def test_a_table_beside_a_table_is_another_table(tmp_path: Path) -> None:
    """S29, I15."""
    with txsink.open_writer(str(tmp_path / "T"), "w") as one, txsink.open_writer(str(tmp_path / "T.2"), "w") as two:
        first, second = one.begin(1), two.begin(1)
        first.write(rows(1))
        second.write(rows(2))
        second.abort()
        first.commit()
        two.sweep()
    assert rows_of(tmp_path / "T") == [1]
    assert rows_of(tmp_path / "T.2") == []


# -- opening and closing ------------------------------------------------------------------------------------


def test_two_processes_that_create_a_table_at_once_share_one(place: Place) -> None:
    base = FaultyStore(LocalStore())
    other: list[Any] = []
    open_sink(base, place.stamps, str(place.path), "w", {}).close()
    first_put = next(number for number, (verb, _) in enumerate(base.trace, 1) if verb == "put_if_absent")
    for call in range(1, first_put + 1):
        there = Place(place.path.parent / f"T{call}")

        def create(there: Place = there) -> None:
            other.append(there.sink("v"))

        store = FaultyStore(LocalStore(), [delay(call, create)])
        with open_sink(store, there.stamps, str(there.path), "w", {}) as sink, sink.begin(1) as txn:
            txn.write(rows(1))
        store.check_delivered()
        with other[-1].begin(1) as txn:
            txn.write(rows(2))
        assert rows_of(there.path) == [1, 2]
        assert [one.kind for one in there.table().history()][::-1].count("create") == 1


def test_creating_what_somebody_has_created_meanwhile_is_no_failure(place: Place) -> None:
    log = place.sink().log
    blank.create(log, "parquet", ("p",), None, "a table")
    assert (log.state.partition_columns, log.state.version) == ((), 1)


def test_closing_drops_what_is_not_prepared_and_keeps_what_is(place: Place) -> None:
    with place.sink() as sink:
        prepared(sink, 1, rows(1))
        sink.begin(2).write(rows(2))
        txn = sink.begin(3)
        txn.add(txn.stager().stage(rows(3)))
    sink.close()
    assert len(names(staging(place.path))) == 1
    with pytest.raises(InvalidRequestError, match="the writer is closed"):
        sink.begin(4)
    with pytest.raises(InvalidRequestError, match="the writer is closed"):
        sink.commit(1)
    with place.sink() as again:
        assert again.recovered is not None
        assert again.recovered.committed == [1]
    assert (rows_of(place.path), names(place.path.parent)[0][:2]) == ([1], "T/")


def test_a_writer_that_never_wrote_knows_nothing(place: Place) -> None:
    with place.sink() as sink:
        assert (sink.writer, sink.last_epoch, sink.last_metadata, sink.pending) == ("w", None, {}, [])
        assert len(sink.run) == 32


@pytest.mark.usefixtures("small_blocks")
def test_the_position_of_a_source_is_what_was_committed_whatever_its_owner_changes_later(place: Place) -> None:
    offsets = {"p0": 100}
    with place.sink() as sink:
        with sink.begin(0, metadata={"next": offsets}) as txn:
            offsets["p0"] = 200
            txn.write(rows(1))
        offsets["p0"] = 300  # the caller's own
        sink.last_metadata["next"]["p0"] = 400  # and what it was given
        txsink.open_table(str(place.path)).writers()["w"].metadata["next"]["p0"] = 500
        sink.log.hint()
    with place.sink() as sink:  # opens from the hint that the first one left
        assert sink.last_metadata == {"next": {"p0": 100}}


def test_ids_are_never_given_twice_and_time_is_given_in_milliseconds() -> None:
    made = {new_id() for _ in range(1000)}
    assert len(made) == 1000
    assert all(len(one) == 32 for one in made)
    real = stamps()
    assert 1_600_000_000_000 < real.now_ms() < 10**14
    real.pause(0)


@pytest.mark.usefixtures("small_blocks")
def test_a_run_id_that_was_retired_long_ago_is_fenced_at_any_age(place: Place) -> None:
    """I10."""
    place.sink(run="r1").close()
    with place.sink(run="r2") as sink:
        for epoch in range(12):
            with sink.begin(epoch) as txn:
                txn.write(rows(epoch))
    with pytest.raises(FencedError, match="retired by run r2"):
        place.sink(run="r1")
    with place.sink(run="r2") as sink, sink.begin(12) as txn:
        txn.write(rows(12))
    assert rows_of(place.path) == list(range(13))


# -- options ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"partition_bye": ["p"]}, "unknown option 'partition_bye'. Did you mean 'partition_by'"),
        ({"compresion": "zstd"}, "Did you mean 'compression'"),
        ({"parts": 3}, "Give 'parts' to `Writer.begin`, which takes it"),
        ({"zzz": 1}, "Known options: compression, "),
        ({"compression": "zst"}, "Did you mean 'zstd'"),
        ({"merge_schema": "yes"}, "merge_schema"),
        ({"layout": "iceberg"}, "layout"),
        ({"run": 3}, "run"),
        ({"storage_options": {"key": 1}}, "the local store takes no storage options"),
    ],
)
def test_options_that_do_not_exist_are_refused_with_a_suggestion(
    place: Place, option: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        txsink.open_writer(str(place.path), "w", **option)
    assert message in str(caught.value)
    assert not place.path.exists()
    place.write(1, rows(1))
    assert rows_of(place.path) == [1]


def test_the_partition_columns_are_the_tables(place: Place) -> None:
    """S15."""
    data = {"id": [1], "p": ["a"], "q": ["b"]}
    place.write(1, data, partition_by="p")
    for other in ([], "q", ["p", "q"]):
        with pytest.raises(InvalidRequestError, match=r"it is partitioned by \['p'\]"):
            place.sink(partition_by=other)
    place.write(2, {**data, "id": [2]})
    place.write(3, {**data, "id": [3]}, partition_by=("p",))
    assert rows_of(place.path) == [1, 2, 3]
    assert {one.rpartition("/")[0] for one in names(place.path) if one.endswith(".parquet")} == {"p=a"}


@pytest.mark.parametrize("columns", [[""], ["_p"], [".p"], ["p", "p"]])
def test_partition_columns_that_readers_would_hide_are_refused(place: Place, columns: list[str]) -> None:
    with pytest.raises(InvalidRequestError, match="partition column"):
        place.sink(partition_by=columns)
    assert not place.path.exists()


@pytest.mark.parametrize("name", ["", "a\x00b", "x" * 256, "\ud800", 7, None])
def test_names_that_cannot_be_are_refused(place: Place, name: Any) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be used"):
        place.sink(name)
    assert not place.path.exists()


@pytest.mark.parametrize("name", ["..", ".", "a/b", "a b=c%", "ü", "con", "x" * 250])
def test_names_that_look_odd_stay_names(place: Place, name: str) -> None:
    with place.sink(name) as sink:
        txn = sink.begin(1)
        txn.write(rows(1))
        txn.prepare()
        assert all(file.is_relative_to(staging(place.path)) for file in place.path.parent.rglob("*.parquet"))
        txn.commit()
    with place.sink(name) as sink:
        assert sink.last_epoch == 1
    assert rows_of(place.path) == [1]


# -- where files are staged ---------------------------------------------------------------------------------


def test_a_staging_path_of_ones_own_is_kept_with_the_table(place: Place, tmp_path: Path) -> None:
    with place.sink(staging_path=str(tmp_path / "elsewhere/staged")) as sink:
        prepared(sink, 1, rows(1))
    assert len(names(tmp_path / "elsewhere/staged")) == 1
    assert not (tmp_path / ".T.txsink").exists()
    with place.sink() as sink:
        assert sink.settings.place.directory.startswith(str(tmp_path / "elsewhere/staged"))
    with pytest.raises(InvalidRequestError, match="set when it was created"):
        place.sink(staging_path=str(tmp_path / "another"))
    place.sink(staging_path=str(tmp_path / "elsewhere/../elsewhere/staged")).close()
    assert rows_of(place.path) == [1]


@pytest.mark.parametrize("below", ["", "/staged", "/a/../b"])
def test_a_staging_path_in_the_table_is_refused(place: Place, below: str) -> None:
    with pytest.raises(InvalidRequestError, match="lies in the table"):
        place.sink(staging_path=f"{place.path}{below}")
    assert not place.path.exists()
    place.write(1, rows(1))
    assert rows_of(place.path) == [1]


def test_a_staging_path_on_another_file_system_is_refused(place: Place) -> None:
    store = LocalStore()
    store.same_place = lambda path, other: False  # type: ignore[method-assign]
    with pytest.raises(InvalidRequestError, match="lies on another file system"):
        open_sink(store, place.stamps, str(place.path), "w", {"staging_path": f"{place.path}-staged"})
    assert not place.path.exists()
    place.write(1, rows(1))
    assert rows_of(place.path) == [1]


def test_a_staging_path_on_a_real_other_file_system_is_refused(place: Place, tmp_path: Path) -> None:
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev or not os.access(other, os.W_OK):
        pytest.skip("no second writable file system here")
    with pytest.raises(InvalidRequestError, match="lies on another file system"):
        place.sink(staging_path=str(other / "txsink-never-made"))
    assert not (other / "txsink-never-made").exists()


# -- threads ------------------------------------------------------------------------------------------------


def test_epochs_of_many_threads_are_each_there_once(place: Place) -> None:
    """One sink, eight threads that stage side by side and commit in turn."""
    threads, turn = 8, [threading.Event() for _ in range(9)]
    turn[0].set()
    with place.sink() as sink:

        def work(epoch: int) -> None:
            txn = sink.begin(epoch)
            txn.write(rows(epoch))
            turn[epoch].wait(30)
            txn.commit()
            turn[epoch + 1].set()

        run_all([threading.Thread(target=work, args=(epoch,)) for epoch in range(threads)])
        assert sink.last_epoch == threads - 1
    assert rows_of(place.path) == list(range(threads))


def test_the_same_epoch_from_two_threads_is_committed_once(place: Place) -> None:
    """The other one hears that it is committed already, or that it is in the way."""
    outcomes: list[str] = []
    with place.sink() as sink:
        for epoch in range(10):
            barrier = threading.Barrier(2)

            def work(value: int, epoch: int = epoch, barrier: threading.Barrier = barrier) -> None:
                txn = sink.begin(epoch)
                txn.write(rows(value))
                barrier.wait(30)
                try:
                    outcomes.append(txn.commit().outcome)
                except ConflictError:
                    txn.abort()
                    outcomes.append("conflict")

            run_all([threading.Thread(target=work, args=(10 * epoch + one,)) for one in range(2)])
            pair = sorted(outcomes[-2:])
            assert pair[1] in {"committed", "conflict"}
            assert pair in [["already-committed", "committed"], ["committed", "conflict"]]
    found = rows_of(place.path)
    assert [value // 10 for value in found] == list(range(10))
    assert names(staging(place.path)) == [] if staging(place.path).exists() else True


def test_one_of_two_transactions_of_an_epoch_can_be_dropped_without_harm_to_the_other(place: Place) -> None:
    sink = place.sink()
    for first, second in itertools.permutations(range(2)):
        epoch = 1 + first
        txns = [sink.begin(epoch), sink.begin(epoch)]
        for number, txn in enumerate(txns):
            txn.write(rows(10 * epoch + number))
            txn.add(txn.stager().stage(rows(10 * epoch + number + 5)))
        txns[first].abort()
        txns[second].commit()
        assert rows_of(place.path)[-2:] == [10 * epoch + second, 10 * epoch + second + 5]
    assert names(staging(place.path)) == []


def run_all(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_a_delta_table_is_refused_under_a_path_that_deltas_readers_read_as_another(tmp_path: Path) -> None:
    path = str(tmp_path / "a%20b")
    with pytest.raises(InvalidRequestError, match="take for an escaped character"):
        txsink.write(path, rows(1), writer="w", epoch=0, layout="delta")
    assert txsink.write(path, rows(1), writer="w", epoch=0).outcome == "committed"
