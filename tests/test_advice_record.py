"""What errors about entries, segments and the store below them advise, done word for word: every row is there once."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from advice import advised
from logs import claim_by, opened
from place import Place, commit, prepared, rows, staged_files
from seen import entry_file, rows_of, small_blocks
from txsink import paths
from txsink.cli.main import main
from txsink.errors import UnavailableError
from txsink.log import entry as entries, expiry, segment
from txsink.log.entry import Commit, Create, Prepare
from txsink.log.log import Log, Slot
from txsink.log.state import State
from txsink.store.local.store import LocalStore
from txsink.testing import Objects, open_on, table_on
from txsink.upkeep import repair

__all__ = ["small_blocks"]


def without_hint(place: Place) -> None:
    """So that every entry is read."""
    (place.path / paths.HEAD_PATH).unlink(missing_ok=True)


def put_back(
    place: Place, version: int, change: Callable[[bytes], bytes], act: Callable[[], object], block: Any
) -> None:
    """Change an entry, meet the error, and restore the entry."""
    without_hint(place)
    file = entry_file(place.path, version)
    good = file.read_bytes()
    file.write_bytes(change(good))
    with block:
        act()
    file.write_bytes(good)
    without_hint(place)


def test_an_entry_that_is_torn_or_does_not_follow_is_restored_from_a_copy(place: Place) -> None:
    sink = place.sink()
    commit(sink, 1, 2)
    last = sink.log.state.version
    put_back(
        place,
        last,
        lambda data: data[:-3],
        place.table,
        advised("log.entry._corrupt", "Restore the entry from a copy; nothing"),
    )

    def of_another_epoch(data: bytes) -> bytes:
        return entries.encode(msgspec.structs.replace(entries.decode(data, last), epoch=9))

    advice = "Restore the log from a copy, or see what `txsink repair` would do"
    put_back(place, last, of_another_epoch, place.table, advised("log.state._refused", advice))

    assert rows_of(place.path) == [1, 2]


def test_a_column_of_no_type_is_restored_with_the_log(place: Place) -> None:
    sink = place.sink()
    prepared(sink, 1, rows(1))
    last = sink.log.state.version
    write = partial(place.write, 1, rows(9), writer="v")
    put_back(place, last, partial(of_no_type, last), write, advised("schema._field", "Restore the log from a copy"))
    place.sink()
    assert rows_of(place.path) == [1]


def of_no_type(version: int, data: bytes) -> bytes:
    found = entries.decode(data, version)
    assert isinstance(found, Prepare)
    columns = tuple(msgspec.structs.replace(one, arrow="AAAA") for one in found.columns)
    return entries.encode(msgspec.structs.replace(found, columns=columns))


@pytest.mark.usefixtures("small_blocks")
def test_an_entry_that_is_gone_is_restored_from_a_copy(place: Place) -> None:
    sink = place.sink()
    commit(sink, *range(30))
    (middle, kept), newest = (entry_file(place.path, 4), entry_file(place.path, 4).read_bytes()), sink.log.state.version
    sink.log.keep_hint()
    log = opened(place)
    middle.unlink()
    with advised("log.gaps.missing", "Restore it from a copy; nothing was changed"):
        log.entry(4)
    middle.write_bytes(kept)
    assert log.entry(4).version == 4
    last = entry_file(place.path, newest)
    kept = last.read_bytes()
    last.unlink()
    with advised("log.gaps.untold", "Restore it from a copy, or {}"):
        place.table()
    last.write_bytes(kept)
    assert rows_of(place.path) == [*range(30)]


def test_metadata_that_is_nested_too_deep_is_given_flatter(place: Place) -> None:
    deep: Any = 1
    for _ in range(entries.METADATA_DEPTH_MAX + 1):
        deep = [deep]
    with advised("log.entry._unfit", "Give metadata that JSON can hold, at most {} deep; nothing was written"):
        place.write(1, rows(1), metadata={"at": deep})
    place.write(1, rows(1), metadata={"at": deep[0][0]})
    assert (rows_of(place.path), place.sink().last_metadata) == ([1], {"at": deep[0][0]})


@pytest.mark.usefixtures("small_blocks")
def test_a_segment_that_the_store_did_not_take_is_written_by_the_next_try(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(place)
    for _ in range(12):
        log.append(claim_by("w"))
    put = LocalStore.put_if_absent

    def unsure(store: LocalStore, path: str, data: bytes, token: str) -> bool | None:
        return None if paths.SEGMENT_DIRECTORY in path else put(store, path, data, token)

    with monkeypatch.context() as silent:
        silent.setattr(LocalStore, "put_if_absent", unsure)
        with advised("log.log._ensure", "Retry"):
            log.maintain()
            expiry.expire(log, log.state.version)
    expiry.expire(log, log.state.version)
    assert [*(place.path / paths.SEGMENT_DIRECTORY).iterdir()]
    assert opened(place).state == log.state


def altered(place: Place, change: Callable[[segment.Fact], segment.Fact]) -> dict[Path, bytes]:
    """Say something else of every file, in all segments; what they said."""
    good = {name: name.read_bytes() for name in (place.path / paths.SEGMENT_DIRECTORY).iterdir()}
    for name, data in good.items():
        found = segment.rows_of(segment.decode(data, name.name))
        name.write_bytes(segment.encode(segment.table([change(fact) if fact.path else fact for fact in found])))
    return good


def of_decode() -> Any:
    return advised("log.segment.decode", "Restore it from a copy, or see what `txsink repair` would do")


def of_file() -> Any:
    return advised("log.segment.file", "Restore the segment from a copy, or see what `txsink repair` would do")


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("does", ["copy", "repair"])
@pytest.mark.parametrize(
    ("block", "change"),
    [
        (of_decode, lambda fact: fact._replace(path="../x.parquet")),
        (of_decode, lambda fact: fact._replace(partition="{")),
        (of_file, lambda fact: fact._replace(path=f"n=%zz/{fact.path}")),
    ],
)
def test_a_segment_that_tells_of_an_impossible_file_is_restored_or_repaired(
    place: Place, does: str, block: Any, change: Callable[[segment.Fact], segment.Fact]
) -> None:
    sink = place.sink()
    commit(sink, *range(12))
    expiry.expire(sink.log, sink.log.state.version)
    sink.close()
    good = altered(place, change)
    with block():
        place.write(50, rows(50), mode="overwrite")
    if does == "copy":
        for name, data in good.items():
            name.write_bytes(data)
    else:
        assert main(["repair", str(place.path), "--yes"]) == 0
    assert (rows_of(place.path), place.table().verify(deep=True)) == ([*range(12)], [])
    place.write(50, rows(50), mode="overwrite")
    assert rows_of(place.path) == [50]


@pytest.mark.usefixtures("small_blocks")
def test_a_segment_that_tells_of_a_conversion_is_whole(place: Place) -> None:
    commit(place.sink(), *range(3))
    for target in ("delta", "parquet"):
        assert main(["convert", str(place.path), "--to", target, "--yes"]) == 0
    commit(place.sink(), *range(3, 9))
    assert [*repair.derived_steps(opened(place))] == []
    assert rows_of(place.path) == [*range(9)]


def test_an_entry_that_no_reader_would_take_is_reported_and_nothing_is_written(place: Place) -> None:
    sink = place.sink()

    def impossible(state: State, slot: Slot) -> Commit:
        run = sink.identity
        return Commit(**slot, writer="w", run=run.run, generation=run.generation or 0, epoch=1, prepared=0)

    before = sink.log.state.version
    with advised("log.log._require_fit", "Report it"):
        sink.log.append(impossible)
    assert opened(place).state.version == before
    with advised("log.log.prepare_entry", "Inspect the log"):
        sink.log.prepare_entry(0)
    assert isinstance(sink.log.entry(0), Create)  # what an inspection finds
    commit(sink, 1)
    assert rows_of(place.path) == [1]


def test_a_repair_that_came_second_looks_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = place.sink()
    commit(sink, *range(3))
    log = Log(LocalStore(), str(place.path), place.stamps)
    log.load()
    with advised("upkeep.repair.move_aside", "Look again: `txsink repair`"):
        repair.move_aside(log, "part-9-0-gone.parquet")
    monkeypatch.setattr(repair, "_source", lambda *given: None)
    with advised("upkeep.repair.make_again", "Look again"):
        repair.make_again(log, repair.Step(repair.MAKE_AGAIN, paths.segment_path(0, 63), "it is damaged"))
    monkeypatch.undo()
    assert main(["repair", str(place.path), "--yes"]) == 0
    assert rows_of(place.path) == [0, 1, 2]


@pytest.mark.parametrize("answers", ["never", "not at all"])
def test_a_writer_that_does_not_know_what_became_of_an_entry_is_opened_again(
    place: Place, monkeypatch: pytest.MonkeyPatch, answers: str
) -> None:
    sink = place.sink()
    txn = sink.begin(1)
    txn.write(rows(1))
    put, read = LocalStore.put_if_absent, LocalStore.read
    entry = paths.entry_path(sink.log.state.version + 1)

    def unsure(store: LocalStore, path: str, data: bytes, token: str) -> bool | None:
        return None if path.endswith(entry) else put(store, path, data, token)

    def broken(store: LocalStore, path: str, limit: int) -> bytes | None:
        if path.endswith(entry):
            raise UnavailableError(f"read {path}", "the disk is gone", "Retry")
        return read(store, path, limit)

    with monkeypatch.context() as disk:
        disk.setattr(LocalStore, "put_if_absent", unsure)
        if answers == "never":
            with advised("chain.put_once.put", "Open the writer again"):
                txn.commit()
        else:
            disk.setattr(LocalStore, "read", broken)
            with advised("chain.put_once.possibly_written", "Open the writer again: recovery finds out"):
                txn.commit()
    sink.close()
    commit(place.sink(), 1)
    assert (rows_of(place.path), staged_files(place)) == ([1], [])


@pytest.mark.usefixtures("small_blocks")
def test_a_later_version_is_there_where_names_stay_taken() -> None:
    bucket = Objects()
    with open_on(bucket.store(), "/t", "w", life=1, layout="parquet") as sink:
        commit(sink, *range(30))
        boundary = expiry.expire(sink.log, sink.log.state.version)
    log = table_on(bucket.store(), "/t").log
    with advised("log.slots.read", "Name a later version"):
        log.entry(1)
    assert log.entry(boundary).version == boundary


def test_a_mark_that_the_store_did_not_take_is_left_by_the_next_try(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = place.sink(layout="delta")
    txn = sink.begin(1)
    put = LocalStore.put_if_absent

    def unsure(store: LocalStore, path: str, data: bytes, token: str) -> bool | None:
        return None if paths.MARK_DIRECTORY in path else put(store, path, data, token)

    with monkeypatch.context() as silent:
        silent.setattr(LocalStore, "put_if_absent", unsure)
        with advised("staging.place.leave_mark", "Retry"):
            txn.write(rows(1))
    txn.write(rows(1))
    txn.commit()
    assert rows_of(place.path) == [1]


def test_an_epoch_whose_rows_do_not_add_up_is_begun_again(place: Place) -> None:
    sink = place.sink()
    txn = sink.begin(1)
    txn.write(rows(1))
    assert txn._stager is not None
    txn._stager._rows += 1
    with advised("staging.epoch_stager._require_count", "Begin the epoch again, and report it; nothing was published"):
        txn.commit()
    txn.abort()
    commit(sink, 1)
    assert rows_of(place.path) == [1]


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("/nowhere"), os.mkfifo], ids=["link", "pipe"])
def test_what_lies_in_the_place_of_a_file_makes_way_for_it(place: Place, make: Callable[[Path], object]) -> None:
    sink = place.sink()
    commit(sink, 1)
    last = entry_file(place.path, sink.log.state.version)
    next_one = entry_file(place.path, sink.log.state.version + 1)
    sink.close()
    without_hint(place)
    copy = last.read_bytes()
    last.unlink()
    advice = "Put the file back, or where there was none take away what lies there; nothing was changed"
    for file in (last, next_one):
        make(file)
        for act in (place.table, place.sink):
            with advised("store.local.store._no_file", advice):
                act()
        file.unlink()
        if file == last:
            file.write_bytes(copy)
    commit(place.sink(), 2)
    assert rows_of(place.path) == [1, 2]
