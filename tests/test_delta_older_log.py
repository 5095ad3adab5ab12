"""One of a Delta table's two logs restored from an older copy: no row is lost, doubled or hidden (I1, I3, I8)."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from advice import advised
from place import Place, commit, prepared, rows
from txsink import conversion as convert, paths
from txsink.cli.main import main
from txsink.delta.log import DeltaLog
from txsink.errors import ConflictError, CorruptError, InvalidRequestError, TxsinkError
from txsink.log.log import Log
from txsink.protocol import sweeping
from txsink.protocol.fencing import Run
from txsink.publish.decision import Action
from txsink.publish.delta import agreement as delta_agreement
from txsink.store.local.store import LocalStore
from txsink.testing.faults import FaultyStore, delay
from txsink.writing.writer import Writer

OWN, DELTAS = "_txsink", "_delta_log"


def ids(path: Path) -> list[int]:
    """What Delta's own reader finds."""
    return sorted(pa.table(deltalake.DeltaTable(str(path)).to_pyarrow_table())["id"].to_pylist())


def own_ids(place: Place) -> list[int]:
    return sorted(place.table().to_arrow()["id"].to_pylist())


def lived(place: Place) -> Iterator[Writer]:
    """A life with all kinds of entries, one call at a time: two writers, an abort, an overwrite, runs, an open end."""
    sink = place.sink(layout="delta")
    for epoch in (0, 1):
        prepared(sink, epoch, rows(epoch))
        yield sink
        sink.commit(epoch)
        yield sink
    with place.sink("v") as other:
        commit(other, 100)
        yield other
    prepared(sink, 2, rows(2))
    sink.abort(2)
    yield sink
    prepared(sink, 2, rows(2))
    prepared(sink, 3, rows(3))
    yield sink
    sink.commit(3)
    yield sink
    with sink.begin(4, mode="overwrite") as txn:
        txn.write(rows(4))
    yield sink
    commit(sink, 5)
    yield sink
    with place.sink() as after:
        commit(after, 6)
        yield after
        prepared(after, 7, rows(7))
        yield after
        after.abort(7)
        yield after


LAST = 6
SEEN = [4, 5, 6]  # in the end


def copies_of(place: Place, which: str) -> dict[int, Path]:
    """A copy of one of the logs at every version that our log had, made while the table lived."""
    found: dict[int, Path] = {}
    for number, sink in enumerate(lived(place)):
        copy = place.path.with_name(f"{which}-{number}")
        shutil.copytree(place.path / which, copy)
        for version in range(max(found, default=-1) + 1, sink.log.state.version + 1):
            found[version] = copy
    return found


def restore(place: Place, which: str, copy: Path, version: int | None = None) -> None:
    """Put the copy in the place of the log; of ours, without the entries after `version`."""
    shutil.rmtree(place.path / which)
    shutil.copytree(copy, place.path / which)
    if version is not None:
        later = [path for path in (place.path / paths.LOG_DIRECTORY).iterdir() if int(path.stem) > version]
        for path in later:
            path.unlink()
        if later:
            (place.path / paths.HEAD_PATH).unlink(missing_ok=True)


def opened_and_left(place: Place, *, recover: bool) -> None:
    with place.sink(recover=recover) as sink:
        sink.sweep()
        for epoch in sink.pending:
            sink.abort(epoch)


def repaired(place: Place) -> None:
    assert main(["repair", str(place.path), "--yes"]) == 0


def repaired_and_opened(place: Place) -> None:
    repaired(place)
    opened_and_left(place, recover=True)


ACTS: dict[str, Callable[[Place], object]] = {
    "open": lambda place: opened_and_left(place, recover=True),
    "open without recovery": lambda place: opened_and_left(place, recover=False),
    "txsink sweep": lambda place: main(["sweep", str(place.path), "--yes"]),
    "txsink recover": lambda place: main(["recover", str(place.path), "--yes"]),
    "txsink abort": lambda place: [
        main(["abort", str(place.path), "w", str(epoch), "--yes"]) for epoch in range(LAST + 1)
    ],
    "txsink convert": lambda place: main(["convert", str(place.path), "--to", "parquet", "--yes"]),
    "write": lambda place: place.write(5, rows(5)),
    "repair, open": repaired_and_opened,
    "another": lambda place: place.sink("u").close(),
}


def refusal(place: Place, act: str) -> str:
    """What it is told to do; nothing when it was not refused."""
    try:
        ACTS[act](place)
    except CorruptError as error:
        return error.advice
    return ""


def replayed(place: Place) -> None:
    """The whole source once more, and one epoch that is new."""
    for writer, epochs in (("w", range(LAST + 2)), ("v", range(100, 101))):
        with place.sink(writer) as sink:
            for epoch in epochs:
                with suppress(TxsinkError), sink.begin(epoch) as txn:
                    txn.write(rows(epoch))
            assert sink.last_epoch == max(epochs)


@pytest.mark.parametrize("act", ACTS)
def test_whatever_is_done_to_a_table_whose_own_log_is_an_older_copy_its_rows_stay(place: Place, act: str) -> None:
    """Seen: opening the writer swept the files of later epochs, which Delta's log names, and aborted pending ones.

    At every version, and without any: the way out is the newest copy, or a repair; the source is replayed after it.
    """
    copies = copies_of(place, OWN)
    newest, whole = place.path.with_name("newest"), place.path.with_name("whole")
    shutil.copytree(place.path / OWN, newest)
    shutil.copytree(place.path, whole)
    refused = 0
    for version, copy in copies.items():
        shutil.rmtree(place.path)
        shutil.copytree(whole, place.path)
        restore(place, OWN, copy, version)
        advice = refusal(place, act)
        assert "txsink repair" in advice or not advice
        refused += bool(advice)
        if place.table().layout == "parquet":  # the logs had the same files
            assert own_ids(place) == SEEN
            continue
        assert ids(place.path) == own_ids(place) == SEEN, version
        if (version + len(act)) % 2 and act != "repair, open":
            restore(place, OWN, newest)
            assert place.table().verify() == []
        else:
            repaired(place)
        replayed(place)
        assert ids(place.path) == own_ids(place) == [*SEEN, LAST + 1], version
        assert place.table().verify() == []
    assert refused > len(copies) / 2 or not act.startswith(("open", "write"))


def test_a_new_log_over_a_delta_table_of_txsinks_commits_nothing_that_it_takes_for_done(place: Place) -> None:
    """Seen: the numbers of prepare entries began anew, and an epoch with an old number was told `committed`."""
    lived_once(place)
    shutil.rmtree(place.path / OWN)
    with pytest.raises(CorruptError, match="or was made anew"):
        place.sink()
    repaired(place)
    replayed(place)
    assert ids(place.path) == own_ids(place) == [*SEEN, LAST + 1]


def lived_once(place: Place) -> None:
    for _ in lived(place):
        pass


def test_records_that_only_a_checkpoint_holds_are_found_by_verify_and_repaired(place: Place) -> None:
    copy = copies_of(place, OWN)[1]
    checkpointed(place)
    restore(place, OWN, copy)
    told = [problem.what for problem in place.table().verify()]
    assert [sum(f"a transaction of {writer!r}" in one for one in told) for writer in ("w", "v")] == [1, 1]
    opened = main(["sweep", str(place.path), "--yes"])
    assert opened == 0
    assert ids(place.path) == SEEN
    repaired(place)
    replayed(place)
    assert ids(place.path) == own_ids(place) == [*SEEN, LAST + 1]


def checkpointed(place: Place) -> None:
    """All that commits tell is in a checkpoint alone."""
    deltalake.DeltaTable(str(place.path)).create_checkpoint()
    for commit_path in (place.path / DELTAS).glob("*.json"):
        commit_path.unlink()


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_what_deltas_log_names_or_named_is_no_orphan(place: Place, *, is_checkpointed: bool) -> None:
    """Files that were replaced are there for Delta's older versions, until VACUUM."""
    clock = itertools.count(time.time_ns() // 1_000_000)  # a checkpoint forgets what was removed long ago
    place.stamps = place.stamps._replace(now_ms=lambda: next(clock))
    copy = copies_of(place, OWN)[1]
    if is_checkpointed:
        checkpointed(place)
    restore(place, OWN, copy)
    before = {path.name for path in place.path.glob("*.parquet")}
    stray = next(path for path in place.path.glob("part-0-*.parquet"))
    orphan = stray.with_name(f"{stray.name.removesuffix('06.parquet')}ff.parquet")
    shutil.copy(stray, orphan)
    swept = place.table()
    names = swept.publisher.left(None, ())
    asked = sweeping.sweep(swept.log, Run("", "", swept.version), swept.publisher, names, dry_run=True)
    assert before.isdisjoint(one.name.path for one in asked if one.action is not Action.KEEP)
    repaired_and_opened(place)
    assert {path.name for path in place.path.glob("*.parquet")} == before


def test_what_another_run_has_prepared_and_published_meanwhile_is_not_lost(place: Place) -> None:
    with lived_on(place) as sink:
        place.write(LAST + 1, rows(LAST + 1))
        sink.publisher.delta.refresh()  # type: ignore[attr-defined]
        sink.publisher.require_agreement("w", is_lenient=False)
        place.write(LAST + 2, rows(LAST + 2))
        sink.log.refresh()
        sink.publisher.require_agreement("w", is_lenient=False)


def lived_on(place: Place) -> Writer:
    lived_once(place)
    return place.sink()


# -- Delta's log -------------------------------------------------------------------------------------------


def refused(place: Place) -> None:
    """A writer goes no further, and takes nothing away."""
    before = {path.name for path in place.path.rglob("*") if path.is_file() and OWN not in path.parts}
    with pytest.raises(CorruptError, match=r"Delta (table|log) (is|does)") as found:
        place.sink()
    assert found.value.advice.startswith("Put the former Delta log back")
    with place.sink(recover=False) as sink:
        for epoch in (LAST, LAST + 1):
            with suppress(InvalidRequestError, CorruptError), sink.begin(epoch) as txn:
                txn.write(rows(epoch))
        with pytest.raises(CorruptError, match=r"Delta (table|log) (is|does)"), sink.begin(LAST + 2) as txn:
            txn.write(rows(LAST + 2))
    assert before <= {path.name for path in place.path.rglob("*") if path.is_file() and OWN not in path.parts}


def by_others(path: Path, number: int) -> None:
    deltalake.write_deltalake(str(path), pa.table({"id": pa.array([number], pa.int64())}), mode="append")


@pytest.mark.parametrize("goes_on", [False, True], ids=["", "others go on"])
def test_an_older_delta_log_is_told_by_verify_and_takes_no_commit(place: Place, *, goes_on: bool) -> None:
    """Seen: the table was a shorter one, and `verify` called it sound; at every version of Delta's log."""
    lived_once(place)
    whole = place.path.with_name("whole")
    shutil.copytree(place.path, whole)
    last = max(int(path.stem) for path in (place.path / DELTAS).glob("*.json"))
    for version in range(last):
        shutil.rmtree(place.path)
        shutil.copytree(whole, place.path)
        for path in (place.path / DELTAS).glob("*.json"):
            if int(path.stem) > version:
                path.unlink()
        if goes_on:
            for number in range(version, last + 1):
                by_others(place.path, 1000 + number)
        if goes_on and version == last - 1:  # an abort alone is lost: no epoch
            continue
        told = [problem.what for problem in place.table().verify()]
        assert any("Put the former Delta log back" in one for one in told), version
        refused(place)
        shutil.rmtree(place.path / DELTAS)
        shutil.copytree(whole / DELTAS, place.path / DELTAS)
        assert place.table().verify() == []
        replayed(place)
        assert ids(place.path) == own_ids(place) == [*SEEN, LAST + 1]


def test_a_delta_log_that_is_gone_is_told_by_verify(place: Place) -> None:
    lived_once(place)
    (place.path / DELTAS).rename(place.path.with_name("kept"))
    assert any("the Delta log is gone" in problem.what for problem in place.table().verify())
    with pytest.raises(CorruptError, match="the Delta log is gone"):
        place.sink()
    place.path.with_name("kept").rename(place.path / DELTAS)
    assert place.table().verify() == []
    replayed(place)
    assert ids(place.path) == [*SEEN, LAST + 1]


@pytest.mark.parametrize("lost", range(9))
def test_a_commit_that_is_lost_is_told_by_verify_and_leads_back(place: Place, lost: int) -> None:
    lived_once(place)
    by_others(place.path, 7000)
    by_others(place.path, 8000)
    commit_path = place.path / DELTAS / f"{lost:020d}.json"
    commit_path.rename(place.path.with_name("kept"))
    try:
        told = [problem.what for problem in place.table().verify()]
    except CorruptError as error:
        told = [error.found]  # the first: there is nothing that could be read
    assert any(f"version {lost} " in one and "is missing" in one for one in told)
    for act in (place.sink, lambda: place.sink(recover=False), lambda: place.table().to_arrow()):
        if lost == 0:
            with advised("delta.log._require_whole", "Restore {} from a copy"):
                act()
        else:
            with advised("publish.delta.agreement.require_whole", "Restore {} from a copy"):
                act()
    if lost == 0:
        with advised("delta.log._require_whole", "Restore {} from a copy"):
            place.sink()
        assert (main(["verify", str(place.path)]), main(["repair", str(place.path)])) == (3, 1)
    place.path.with_name("kept").rename(commit_path)
    assert place.table().verify() == []
    replayed(place)
    assert ids(place.path) == [*SEEN, LAST + 1, 7000, 8000]


def test_commits_of_others_that_land_while_the_end_is_looked_at_are_no_hole(place: Place) -> None:
    lived_once(place)
    store = FaultyStore(LocalStore())
    delta = DeltaLog(store, str(place.path), place.stamps, str(place.path))
    before = delta.load().version

    def land() -> None:
        for number in (7000, 8000):
            by_others(place.path, number)

    store.plan.append(delay(store.calls + 1, land))
    delta_agreement.require_whole(delta, "look")
    assert delta.state.version == before + 2


def test_a_hole_among_commits_of_others_above_our_newest_is_not_filled(place: Place) -> None:
    """Seen: `verify` alone told of it, and a writer put its commit there, below those made of the lost one."""
    lived_once(place)
    for number in (7000, 8000):
        by_others(place.path, number)
    lost = sorted((place.path / DELTAS).glob("*.json"))[-2]
    kept = lost.rename(place.path.with_name("kept"))
    with advised("publish.delta.agreement.require_whole", "Restore {} from a copy"):
        place.write(LAST + 1, rows(LAST + 1))
    assert not lost.exists()
    kept.rename(lost)
    place.write(LAST + 1, rows(LAST + 1))
    assert ids(place.path) == own_ids(place) == [*SEEN, LAST + 1, 7000, 8000]


def test_what_other_programs_remove_is_no_loss(place: Place) -> None:
    """DELETE, overwrite, VACUUM, checkpoint, clean-up and RESTORE of others leave a table that is sound."""
    lived_once(place)
    deltalake.DeltaTable(str(place.path)).delete("id = 4")
    place.sink().close()
    assert place.table().verify() == []
    by_others(place.path, 9000)
    deltalake.DeltaTable(str(place.path)).restore(deltalake.DeltaTable(str(place.path)).version() - 2)
    assert place.table().verify() == []
    overwritten = pa.table({"id": pa.array([1], pa.int64())})
    deltalake.write_deltalake(str(place.path), overwritten, mode="overwrite")
    place.sink().close()
    assert place.table().verify() == []
    table = deltalake.DeltaTable(str(place.path))
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    checkpointed(place)
    assert place.table().verify() == []
    replayed(place)
    assert place.table().verify() == []
    assert ids(place.path) == own_ids(place) == [1, LAST + 1]


def test_a_conversion_takes_nothing_of_a_delta_log_that_is_newer_than_the_tables_own(place: Place) -> None:
    """Restored to a time when the table had the layout parquet: Delta's log alone names what came after."""
    place.write(0, rows(0))
    copy = place.path.with_name("copy")
    shutil.copytree(place.path / OWN, copy)
    assert main(["convert", str(place.path), "--to", "delta", "--yes"]) == 0
    place.write(1, rows(1))
    newest = place.path.with_name("newest")
    shutil.copytree(place.path / OWN, newest)
    restore(place, OWN, copy)
    for to in ("delta", "parquet"):
        with pytest.raises(ConflictError, match="that is an older copy") as found:
            run_convert(place, to)
        assert found.value.advice.startswith("Restore the newest `_txsink` from a copy")
        assert ids(place.path) == [0, 1]
    restore(place, OWN, newest)
    assert main(["convert", str(place.path), "--to", "parquet", "--yes"]) == 0
    assert own_ids(place) == [0, 1]


def run_convert(place: Place, to: str) -> None:
    log = Log(LocalStore(), str(place.path), place.stamps)
    log.load()
    delta = DeltaLog(log.store, log.root, place.stamps, log.root)
    (convert.to_delta if to == "delta" else convert.to_parquet)(log, delta)


def test_an_older_delta_log_under_an_open_writer_takes_no_commit_of_what_is_prepared(place: Place) -> None:
    """Other programs have gone on in it, so that its version tells nothing."""
    with lived_on(place) as sink:
        prepared(sink, LAST + 1, rows(LAST + 1))
        kept = place.path.with_name("kept")
        shutil.copytree(place.path / DELTAS, kept)
        for path in (place.path / DELTAS).glob("*.json"):
            if int(path.stem) > 4:
                path.unlink()
        for number in range(5):
            by_others(place.path, 1000 + number)
        with pytest.raises(CorruptError, match="does not know that epoch 6 of 'w' is committed"):
            sink.commit(LAST + 1)
        restore(place, DELTAS, kept)
    place.sink().close()
    assert ids(place.path) == own_ids(place) == [*SEEN, LAST + 1]


def test_a_writer_whose_log_is_whole_works_beside_one_whose_log_is_older(place: Place) -> None:
    """Its entries take the numbers of those that were lost, and prove nothing of the other writer's."""
    copy = copies_of(place, OWN)[1]
    restore(place, OWN, copy)
    with place.sink("u") as sink:
        commit(sink, *range(200, 220))
    for _ in range(2):
        with pytest.raises(CorruptError, match=r"of 'w' that was prepared at version 23.* own log, which ends at 43"):
            place.sink()
    repaired(place)
    replayed(place)
    assert ids(place.path) == own_ids(place) == sorted([*SEEN, LAST + 1, *range(200, 220)])


def test_a_rewind_that_our_log_has_lost_is_not_given_up(place: Place) -> None:
    """It would take the epochs for committed that were taken back, and their replay for done."""
    with place.sink(layout="delta") as sink:
        commit(sink, 0, 1, 2, 3)
        copy, newest = place.path.with_name("copy"), place.path.with_name("newest")
        shutil.copytree(place.path / OWN, copy)
        sink.recover(1, "rewind")
        shutil.copytree(place.path / OWN, newest)
        commit(sink, 2)
        later = place.path.with_name("later")
        shutil.copytree(place.path, later)
    for log, table in ((newest, None), (later / OWN, later)):
        if table is not None:
            shutil.rmtree(place.path)
            shutil.copytree(table, place.path)
        else:
            (place.path / DELTAS / f"{5:020d}.json").unlink()
        restore(place, OWN, copy)
        with pytest.raises(CorruptError, match="were taken back") as found:
            place.sink()
        assert found.value.advice.startswith("Restore the newest `_txsink`")
        assert main(["repair", str(place.path), "--yes"]) == 3
        with pytest.raises(CorruptError, match="were taken back"):
            place.sink()
        restore(place, OWN, log)
        with place.sink() as sink:
            for epoch in (2, 3):
                with sink.begin(epoch) as txn:
                    txn.write(rows(epoch))
        assert ids(place.path) == own_ids(place) == [0, 1, 2, 3]
