"""Checkpoints of Delta's log: whole or not there, whoever dies or works at the same time (I3, I5)."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake.exceptions import DeltaError

from crash import images, moments
from place import Place, commit, copied, rows
from txsink import paths
from txsink.delta import checkpoints as delta_upkeep
from txsink.delta.log import TABLE_READS, DeltaLog
from txsink.errors import TxsinkError, UnavailableError
from txsink.store.local.store import LocalStore
from txsink.testing.crash_book import ROOT
from txsink.testing.crash_world import World, stamps_of
from txsink.testing.faults import Fault, FaultyStore, crash_after, crash_before, delay, fail_before
from txsink.testing.simdisk import Crash, SimDisk
from txsink.writing.opening import open_sink
from txsink.writing.writer import Writer


def opened(place: Place, store: Any = None, writer: str = "w") -> Writer:
    return open_sink(store or LocalStore(), place.stamps, str(place.path), writer, {"layout": "delta"})


def delta_of(place: Place, store: Any = None) -> DeltaLog:
    return DeltaLog(store or LocalStore(), str(place.path), place.stamps, str(place.path))


def ids(place: Place) -> list[int]:
    return sorted(pa.table(deltalake.DeltaTable(str(place.path)).to_pyarrow_table())["id"].to_pylist())


def checkpoints(place: Place) -> list[int]:
    return sorted(int(one.name[:20]) for one in (place.path / "_delta_log").glob("*.checkpoint*.parquet"))


def left(place: Place) -> list[str]:
    root = place.path.parent / f".{place.path.name}.txsink"
    return [one.name for one in root.rglob("*") if one.is_file()] if root.exists() else []


def pointed(place: Place) -> int:
    return int(json.loads((place.path / "_delta_log" / "_last_checkpoint").read_text())["version"])


def test_checkpoints_come_by_themselves_and_writers_open_through_them(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly once still holds: the records of epochs are read from the checkpoint."""
    monkeypatch.setattr(delta_upkeep, "EVERY", 10)
    sink = opened(place)
    commit(sink, *range(25))
    thread = sink.publisher.delta.upkeep  # type: ignore[attr-defined]
    sink.close()
    assert thread is not None
    assert not thread.is_alive()
    assert len(checkpoints(place)) >= 1
    assert pointed(place) == checkpoints(place)[-1]
    assert left(place) == []
    for at in range(5):
        (place.path / "_delta_log" / f"{at:020d}.json").unlink()
    again = opened(place)
    delta = again.publisher.delta  # type: ignore[attr-defined]
    assert delta.state.txn("w") == again.last_epoch == 24
    assert delta.state.txns.get("w") is None or delta.state.version > pointed(place)
    for epoch in (3, 24):
        assert again.begin(epoch).outcome == "already-committed"
    commit(again, 25)
    # A run that lost our log's answer looks the outcome up in the checkpoint.
    assert ids(place) == list(range(26))


def test_a_commit_that_only_a_checkpoint_tells_of_is_not_made_again(place: Place) -> None:
    """The Delta commit landed, the commit entry did not, and the log was compacted meanwhile (I5)."""
    sink = opened(place)
    commit(sink, *range(3))
    txn = sink.begin(3)
    txn.write(rows(3))
    txn.prepare()
    prepare = sink.log.prepare_entry(sink.log.state.pending[0].prepared)
    assert sink.publisher.publish(prepare).is_visible
    delta_upkeep.checkpoint(delta_of(place))
    for at in range(4):
        (place.path / "_delta_log" / f"{at:020d}.json").unlink()
    again = opened(place)
    assert (again.last_epoch, again.pending) == (3, [])
    assert ids(place) == [0, 1, 2, 3]


@pytest.mark.parametrize("is_second", [False, True])
@pytest.mark.parametrize("fault", [crash_before, crash_after, fail_before])
def test_a_checkpoint_that_dies_anywhere_leaves_the_table_as_it_was(
    place: Place, fault: Callable[[int], Fault], is_second: bool
) -> None:
    sink = opened(place)
    commit(sink, *range(3))
    if is_second:
        delta_upkeep.checkpoint(delta_of(place))
        commit(sink, 3)
    sink.close()
    expected = ids(place)
    for call in range(1, 100):
        there = copied(place, call)
        store = FaultyStore(LocalStore(), [fault(call)])
        with suppress(Crash, TxsinkError):
            delta_upkeep.checkpoint(delta_of(there, store))
        assert ids(there) == expected
        for version in checkpoints(there):
            deltalake.DeltaTable(str(there.path), version)
        if not store.delivered:
            break
        delta_upkeep.checkpoint(delta_of(there))
        assert (ids(there), left(there)) == (expected, [])
        assert pointed(there) == checkpoints(there)[-1] == 2 + is_second
    assert call > 8


def test_two_processes_at_once_leave_a_table_that_everybody_reads(place: Place) -> None:
    sink = opened(place)
    commit(sink, *range(3))
    sink.close()
    for call in range(1, 100):
        there = copied(place, call)
        store = FaultyStore(LocalStore(), [delay(call, partial(delta_upkeep.checkpoint, delta_of(there)))])
        with suppress(DeltaError, TxsinkError):  # which is told in a warning
            delta_upkeep.checkpoint(delta_of(there, store))
        assert ids(there) == [0, 1, 2]
        assert pointed(there) in checkpoints(there)
        if not store.delivered:
            break
    assert call > 8


def test_a_checkpoint_is_never_made_of_a_part_of_the_log(place: Place) -> None:
    """Another process clears the scratch, at every call: deltalake reads a log without its beginning, too."""

    def clear() -> None:
        scratch = place.path.parent / f".{place.path.name}.txsink"
        for one in scratch.rglob("*.json"):
            one.unlink()
            cleared.append(one.name)

    parent = place.path.parent
    cleared: list[str] = []
    for call in range(1, 100):
        place.path = parent / f"t{call}"
        with opened(place) as sink:
            commit(sink, 0, 1)
        with place.sink(merge_schema=True) as sink, sink.begin(2) as txn:  # its commit has protocol and metadata
            txn.write({**rows(2), "at": pa.array([0], pa.timestamp("us"))})
        store = FaultyStore(LocalStore())
        delta = delta_of(place, store)
        delta.load()
        store.plan.append(delay(store.calls + call, clear))
        with suppress(TxsinkError, DeltaError):
            delta_upkeep.checkpoint(delta)
        assert ids(place) == [0, 1, 2]
        if not store.delivered:
            break
    assert call > 10
    assert len(cleared) > 5


def test_a_power_cut_never_leaves_a_pointer_to_a_torn_checkpoint() -> None:
    """I3: deltalake's own files are in no way durable; what is moved in is."""
    checkpoint, pointer, commit_ = b"PAR1" * 500, b'{"version":1,"size":3}', b"{}"
    scratch = "/d/.t.txsink/checkpoint-1"
    name = f"{1:020d}.checkpoint.parquet"

    def make(world: World) -> None:
        store = world.store()
        for path, data in ((paths.delta_commit_path(1), commit_), (f"{paths.DELTA_DIRECTORY}/{name}", checkpoint)):
            store.put_hint(f"{scratch}/{path}", data, "aa")
        store.put_hint(f"{scratch}/{paths.DELTA_POINTER_PATH}", pointer, "ab")
        store.put_if_absent(f"{ROOT}/{paths.delta_commit_path(1)}", commit_, "ac")
        delta = DeltaLog(store, ROOT, stamps_of(1), ROOT)
        delta_upkeep._move_in(delta, scratch, [f"{1:020d}.json"], 1)

    found = set()
    for at, moment in enumerate(moments(World(SimDisk()), make)):
        for image in images(moment, f"checkpoint-{at}", 8):
            files = image.files()
            data = files.get(f"{ROOT}/{paths.DELTA_DIRECTORY}/{name}")
            if f"{ROOT}/{paths.DELTA_POINTER_PATH}" in files:
                found.add(files[f"{ROOT}/{paths.DELTA_POINTER_PATH}"])
                assert data == checkpoint
            assert data in (None, checkpoint)
    assert found == {pointer}


@pytest.mark.parametrize("newest", [0, 2])
def test_a_checkpoint_that_took_long_never_sets_the_pointer_back(place: Place, newest: int) -> None:
    """What a newer one made needless may be deleted by then, and the older one with it."""
    sink = place.sink(layout="delta")
    for epoch in range(3):
        with sink.begin(epoch) as txn:
            txn.write({"id": [epoch]})
    delta = DeltaLog(LocalStore(), str(place.path), place.stamps, str(place.path))
    real = delta_upkeep._move_in

    def late(of: DeltaLog, scratch: str, names: list[str], version: int) -> None:
        if newest:
            deltalake.DeltaTable(str(place.path), newest).create_checkpoint()
        real(of, scratch, names, version)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta_upkeep, "_move_in", late)
        delta_upkeep._checkpoint_aside(delta, deltalake.DeltaTable(str(place.path), 1))
    pointer = json.loads((place.path / paths.DELTA_POINTER_PATH).read_text())
    assert pointer["version"] == max(newest, 1)
    assert deltalake.DeltaTable(str(place.path)).to_pyarrow_table().num_rows == 3


def test_a_listing_that_shows_a_commit_and_not_the_one_before_is_read_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a local directory is listed while it grows."""
    with opened(place) as sink:
        commit(sink, 0)
    opens, failures = deltalake.DeltaTable, [DeltaError("found gap")] * (TABLE_READS - 1)

    def opened_late(*given: Any) -> deltalake.DeltaTable:
        if failures:
            raise failures.pop()
        return opens(*given)

    monkeypatch.setattr(deltalake, "DeltaTable", opened_late)
    assert delta_of(place).table().version() == 0
    failures += [DeltaError("found gap")] * TABLE_READS
    with pytest.raises(UnavailableError, match="deltalake cannot read it"):
        delta_of(place).table()
    assert not failures


# -- what has expired ---------------------------------------------------------------------------------------


def log_names(place: Place) -> list[str]:
    return sorted(one.name for one in (place.path / "_delta_log").iterdir())


def grown(place: Place, **properties: str) -> DeltaLog:
    """Ten commits, one a second by the clock of the test, with checkpoints at two of them."""
    sink = opened(place)
    commit(sink, *range(3))
    deltalake.DeltaTable(str(place.path)).alter.set_table_properties(
        {f"delta.{name}": value for name, value in properties.items()}
    )
    commit(sink, *range(3, 5))
    delta_upkeep.checkpoint(delta_of(place))
    commit(sink, *range(5, 9))
    delta_upkeep.checkpoint(delta_of(place))
    sink.close()
    return delta_of(place)


def test_the_checkpoint_itself_deletes_nothing_behind_our_back(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deltalake's own rule would forget every commit of this table."""
    monkeypatch.setattr(delta_upkeep, "_expire", lambda *_: None)
    grown(place, logRetentionDuration="interval 0 seconds")
    before = log_names(place)
    delta_upkeep.checkpoint(delta_of(place))
    deltalake.DeltaTable(str(place.path)).create_checkpoint()
    assert log_names(place) == before
    assert len([name for name in before if name.endswith(".json")]) == 10


@pytest.mark.parametrize(
    ("properties", "expires"),
    [
        ({"logRetentionDuration": "interval 0 seconds"}, True),
        ({"logRetentionDuration": "INTERVAL 1 millisecond"}, True),
        ({"logRetentionDuration": "interval 30 days"}, False),
        ({}, False),
        ({"logRetentionDuration": "interval 0 seconds", "enableExpiredLogCleanup": "false"}, False),
    ],
)
def test_commits_expire_below_a_whole_checkpoint_once_the_retention_is_over(
    place: Place, properties: dict[str, str], expires: bool
) -> None:
    """I8: never without a checkpoint that tells what they told."""
    delta = grown(place, **properties)
    stranger = place.path / "_delta_log" / "00000000000000000000.notes"
    stranger.write_text("theirs")
    delta_upkeep.checkpoint(delta)
    names = log_names(place)
    assert (f"{0:020d}.json" not in names) is expires
    assert f"{pointed(place):020d}.checkpoint.parquet" in names
    assert stranger.exists()
    assert ids(place) == [*range(9)]
    assert sorted(place.table().to_arrow()["id"].to_pylist()) == [*range(9)]
    with opened(place) as sink:
        commit(sink, 9)
    assert ids(place) == [*range(10)]


def test_a_clean_up_that_dies_anywhere_leaves_a_table_that_everybody_reads(place: Place) -> None:
    grown(place)
    deleted = 0
    for call in range(1, 200):
        there = copied(place, call)
        store = FaultyStore(LocalStore(), [crash_before(call)])
        with suppress(Crash):
            delta_upkeep._expire(delta_of(there, store), {"delta.logRetentionDuration": "interval 0 seconds"})
        assert ids(there) == [*range(9)]
        deleted += f"{0:020d}.json" not in log_names(there)
        if not store.delivered:
            break
    assert deleted > 5


@pytest.mark.parametrize("text", ["interval 1 month", "30", "", "interval -1 days", "soon"])
def test_an_interval_nobody_can_tell_expires_nothing(text: str) -> None:
    assert delta_upkeep._retention_ms(text) is None
