"""A log that is not what it was: restored or made anew under a writer, entries lost, entries that nobody can follow."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest

from advice import advised
from logs import LOOKS, claim_by, grow, opened
from place import Place, commit, tree
from seen import entry_file, small_blocks
from txsink import paths
from txsink.errors import ConflictError, CorruptError, TxsinkError
from txsink.log import expiry, gaps, log
from txsink.log.log import Log
from txsink.log.state import decode
from txsink.store.local.store import LocalStore
from txsink.testing.faults import FaultyStore, delay
from txsink.testing.objects import Objects, ObjectStore
from txsink.writing.writer import Writer

__all__ = ["small_blocks"]

ENTRIES = 6


def log_names(place: Place) -> list[str]:
    return sorted(path.name for path in (place.path / paths.LOG_DIRECTORY).iterdir())


def restore(place: Place, copy: Path) -> None:
    shutil.rmtree(place.path)
    shutil.copytree(copy, place.path)


def overwrite(sink: Writer, epoch: int) -> None:
    with sink.begin(epoch, mode="overwrite") as txn:
        txn.write({"id": [epoch]})


# -- a log that went back under a writer ------------------------------------------------------------------


@pytest.mark.parametrize("version", range(ENTRIES))
def test_a_writer_of_a_table_that_was_restored_plants_nothing_and_says_so(place: Place, version: int) -> None:
    """I3, I7: whatever version the copy is of."""
    writing = opened(place)
    grow(writing, version)
    copy = place.path.parent / "copy"
    shutil.copytree(place.path, copy)
    grow(writing, ENTRIES - version)
    restore(place, copy)
    names = log_names(place)
    with advised("log.gaps.went_back", "Open it again if it was restored. If not, restore the lost entries"):
        writing.append(claim_by("w"))
    assert log_names(place) == names
    again = opened(place)
    grow(again, ENTRIES + 2)  # what was planted would be met here
    with advised("log.gaps.went_back", "Open it again: it goes on from what is there"):
        writing.append(claim_by("w"))
    assert opened(place).state == again.state


def test_who_lived_through_a_restore_is_told_also_when_a_hint_leads_past_what_was_read(place: Place) -> None:
    """I1: the files that were read before are of no use, and another entry in a slot is none that has expired."""
    writing = place.sink("w")
    commit(writing, 1)
    copy = place.path.parent / "copy"
    shutil.copytree(place.path, copy)
    overwrite(writing, 2)
    reader = place.table()
    assert [file.epoch for file in reader.files()] == [2]
    restore(place, copy)
    for epoch in range(20):
        place.write(epoch, {"id": [epoch]}, writer="other")
    before = tree(place.path / paths.LOG_DIRECTORY)
    for act in (reader.refresh, lambda: overwrite(writing, 3)) * 2:
        with pytest.raises(ConflictError, match="restored from a copy and written to since"):
            act()
    assert tree(place.path / paths.LOG_DIRECTORY) == before


def test_a_writer_of_a_table_that_was_made_anew_plants_nothing_and_says_so(place: Place) -> None:
    """I7, I15: also when the new log is longer, and also under the same id."""
    writing = opened(place)
    grow(writing, 3)
    for count in (0, 3, 9):
        shutil.rmtree(place.path)
        living = opened(place)
        grow(living, count)
        with advised("log.gaps.went_back", "Open it again: what is written now goes into the new table"):
            writing.append(claim_by("w"))
        assert opened(place).state == living.state
        assert len(log_names(place)) == count + 1


def test_a_writer_of_a_table_that_was_renamed_is_not_sent_to_a_new_one(place: Place) -> None:
    """Seen: "made anew (its birth is none). Open it again", which made a new table without the rows."""
    sink = place.sink("w")
    commit(sink, 1)
    reader = place.table()
    moved = place.path.rename(place.path.parent / "moved")
    for act in (reader.refresh, lambda: commit(sink, 2)):
        with advised("log.gaps.went_back", "Name the path where it is now: opened here it would be a new table"):
            act()
    assert not place.path.exists()
    place.path = moved
    with place.sink("w") as again:
        commit(again, 2)
    assert [file.epoch for file in place.table().files()] == [1, 2]


def test_a_reader_of_a_table_that_went_back_says_so(place: Place) -> None:
    writing = opened(place)
    copy = place.path.parent / "copy"
    grow(writing, 2)
    shutil.copytree(place.path, copy)
    grow(writing, 2)
    reader = opened(place)
    restore(place, copy)
    with pytest.raises(CorruptError, match="the log ends at entry 2"):
        reader.refresh()


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("act", [Log.facts, Log.live])
def test_who_lists_the_files_of_a_table_that_went_back_is_told_and_goes_on_with_nothing(
    place: Place, act: Callable[[Log], object]
) -> None:
    """I1: seen: the list was that of the copy, and the writer then committed on top of it, told nothing."""
    writing = opened(place)
    grow(writing, 5)
    copy = place.path.parent / "copy"
    shutil.copytree(place.path, copy)
    grow(writing, 40)
    expiry.expire(writing, writing.state.version)
    restore(place, copy)
    for _ in range(2):
        with pytest.raises(CorruptError, match="the log ends at entry 5: it was restored from a copy"):
            act(writing)
    names = log_names(place)
    with pytest.raises(CorruptError, match="the log ends at entry 5: it was restored from a copy"):
        writing.append(claim_by("w"))
    assert log_names(place) == names


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("later", [0, 3, 30])
def test_an_overwrite_of_a_table_that_went_back_below_an_expiry_is_refused_as_such(place: Place, later: int) -> None:
    """I3: seen: InternalError, as what it was to replace was listed by the log of the copy."""
    sink = place.sink("w")
    commit(sink, 1, 2)
    copy = place.path.parent / "copy"
    shutil.copytree(place.path, copy)
    commit(sink, *range(3, 20))
    sink.close()
    expiry.expire(place.table().log, 100)
    sink = place.sink("w")
    restore(place, copy)
    for epoch in range(later):
        place.write(epoch, {"id": [epoch]}, writer="other")
    before = tree(place.path)
    with pytest.raises((ConflictError, CorruptError), match="restored from a copy"):
        overwrite(sink, 50)
    assert tree(place.path) == before


def test_in_a_bucket_a_writer_that_has_rested_is_not_told_that_it_committed(place: Place) -> None:
    """I3: names are kept there, so nothing is looked at after the put."""
    bucket = Objects()
    store = ObjectStore(bucket)
    writing = opened(place, store)
    copy = dict(bucket.objects)
    grow(writing, 3)
    bucket.objects.clear()
    bucket.objects.update(copy)
    with pytest.raises(CorruptError, match="the log ends at entry 0"):
        writing.append(claim_by("w"))
    assert dict(bucket.objects) == copy


def test_a_writer_that_falls_asleep_between_look_and_put_is_not_told_that_it_committed(place: Place) -> None:
    """I3: what it has planted is found by everybody, and an append below it is refused before it counts."""
    store = FaultyStore(LocalStore())
    writing = opened(place, store)
    grow(writing, 1)
    copy = place.path.parent / "copy"
    shutil.copytree(place.path, copy)
    grow(writing, 3)
    store.plan.append(delay(store.calls + LOOKS + 1, lambda: restore(place, copy)))
    with pytest.raises(CorruptError, match="it is missing, yet entry 5 is there, of this very log"):
        writing.append(claim_by("w"))
    store.check_delivered()
    assert entry_file(place.path, 5).exists()
    for act in (lambda: opened(place), place.table, place.sink):
        with pytest.raises(CorruptError, match=r"read log entry 2 .* entry 5 is there") as caught:
            act()
        assert (caught.value.context["version"], caught.value.context["beyond"]) == (2, 5)
    assert not entry_file(place.path, 2).exists()


def test_an_append_that_arrives_below_a_stray_entry_is_refused_before_it_counts(place: Place) -> None:
    """I3: it would be the last one that anybody can read."""
    writing = opened(place)
    grow(writing, 2)
    other = Place(place.path.parent / "other")
    other.stamps = place.stamps
    grow(opened(other), 4)
    shutil.copy(entry_file(other.path, 4), entry_file(place.path, 4))
    found = "entry 4 is there, a stray one of another log"
    with pytest.raises(CorruptError, match=found):
        writing.append(claim_by("w"))
    assert not entry_file(place.path, 3).exists()
    with pytest.raises(CorruptError, match=found):
        opened(place)
    entry_file(place.path, 4).write_bytes(b"torn")
    with pytest.raises(CorruptError, match="entry 4 is there, and it cannot be read"):
        opened(place)
    shutil.copy(entry_file(other.path, 3), entry_file(place.path, 3))
    with pytest.raises(CorruptError, match=r"read log entry 3: it is of another log .*repair"):
        opened(place)


# -- entries that are lost --------------------------------------------------------------------------------


@pytest.mark.parametrize("opens", [Place.table, Place.sink], ids=["reader", "writer"])
def test_no_loss_below_an_entry_that_is_there_passes_for_a_shorter_log(
    place: Place, opens: Callable[[Place], object]
) -> None:
    """I13: every set of lost entries that leaves a later one."""
    grow(opened(place), ENTRIES)
    whole = {version: entry_file(place.path, version).read_bytes() for version in range(ENTRIES + 1)}
    tried = 0
    for count in range(1, ENTRIES + 1):
        for lost in combinations(range(ENTRIES), count):
            for version in lost:
                entry_file(place.path, version).unlink()
            with pytest.raises(CorruptError, match="it is missing, yet") as caught:
                opens(place)
            assert caught.value.context["version"] == lost[0]
            assert len(log_names(place)) == ENTRIES + 1 - len(lost)
            for version in lost:
                entry_file(place.path, version).write_bytes(whole[version])
            tried += 1
    print(f"{tried} sets of lost entries")
    assert tried == 2**ENTRIES - 1
    opens(place)


@pytest.mark.parametrize("opens", [Place.table, Place.sink], ids=["reader", "writer"])
@pytest.mark.parametrize("lost", range(ENTRIES))
def test_an_entry_that_is_lost_below_the_hint_stops_writers_as_it_stops_readers(
    place: Place, opens: Callable[[Place], object], lost: int
) -> None:
    """I3: seen: writers went on committing what no reader could list, until the entry was put back."""
    living = opened(place)
    grow(living, ENTRIES)
    living.leave()
    whole = entry_file(place.path, lost).read_bytes()
    entry_file(place.path, lost).unlink()
    before = tree(place.path)
    with pytest.raises(CorruptError, match=f"read log entry {lost} .* it is missing, yet entry {lost + 1} is there"):
        opens(place)
    assert tree(place.path) == before
    entry_file(place.path, lost).write_bytes(whole)
    opens(place)


@pytest.mark.usefixtures("small_blocks")
def test_an_entry_that_a_segment_repeats_may_be_lost(place: Place) -> None:
    """Below the newest whole block no entry is looked for."""
    grow(opened(place), 10)
    for version in range(1, 8):
        entry_file(place.path, version).unlink()
    assert len(opened(place).facts()) == 10


def test_a_loss_as_long_as_the_way_to_the_next_hint_is_seen(place: Place) -> None:
    """What is lost after a hint and before the newest entry is never longer than what is looked at."""
    grow(opened(place), 2 * log.HINT_EVERY - 1)
    head = log.HINT_EVERY - 1
    for version in range(head + 1, 2 * log.HINT_EVERY - 2):
        entry_file(place.path, version).unlink()
    (place.path / paths.HEAD_PATH).unlink()
    with pytest.raises(CorruptError, match=f"it is missing, yet entry {2 * log.HINT_EVERY - 2} is there"):
        opened(place)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("teller", [paths.HEAD_PATH, paths.STATE_DIRECTORY, paths.SEGMENT_DIRECTORY])
def test_what_was_written_after_an_entry_tells_that_it_is_lost(place: Place, teller: str) -> None:
    """I13: hint, summary and segment, each by itself."""
    grow(opened(place), 10)
    for other in {paths.HEAD_PATH, paths.STATE_DIRECTORY, paths.SEGMENT_DIRECTORY} - {teller}:
        path = place.path / other
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for version in range(6, 11):
        entry_file(place.path, version).unlink()
    told = "(8|9|10)" if teller == paths.HEAD_PATH else "7"
    with pytest.raises(CorruptError, match=f"read log entry {told} .*it had been read before: {teller} tells of it"):
        opened(place)


def test_the_newest_entries_lost_after_a_writer_was_closed_are_missed(place: Place) -> None:
    """I13: its last act is a hint."""
    place.write(1, {"id": [1]})
    for version in (2, 1):
        entry_file(place.path, version).unlink()
        for act in (place.table, place.sink):
            with pytest.raises(CorruptError, match=r"read log entry 2 .*it had been read before"):
                act()


def test_a_writer_that_was_idle_leaves_the_hint_of_others_where_it_is(place: Place) -> None:
    """Set back, it would tell of less than there is."""
    idle = place.sink("idle")
    commit(idle, 1)
    for epoch in range(1, 30):
        place.write(epoch, {"id": [100 + epoch]})
    idle.close()
    hint = decode((place.path / paths.HEAD_PATH).read_bytes())
    assert hint is not None
    assert hint.version == opened(place).state.version


def test_entries_that_land_while_the_end_is_looked_at_are_no_gap(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two appends between the look at the first slot and the look at the second."""
    grow(opened(place), 2)
    real = LocalStore.present
    left = [1]

    def overtaken(store: LocalStore, paths: list[str]) -> list[str]:
        if left and "/log/" in paths[0]:
            left.pop()
            grow(opened(place), 2)
            return real(store, paths)[1:]
        return real(store, paths)

    found = Log(LocalStore(), str(place.path), place.stamps)
    monkeypatch.setattr(LocalStore, "present", overtaken)
    assert found.load().version == 4
    left.append(1)
    assert found.append(claim_by("w")) is not None
    assert opened(place).state == found.state


@pytest.mark.usefixtures("small_blocks")
def test_a_summary_that_expires_while_it_is_looked_for_tells_of_no_loss(place: Place) -> None:
    """I13: its entry is gone, and so is the summary, in that order of looking."""
    grow(opened(place), 10)
    (place.path / paths.HEAD_PATH).unlink()
    real = gaps._last_told
    told = iter([9, 7])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gaps, "_last_told", lambda *given: next(told, None) or real(*given))
        entry_file(place.path, 9).unlink()
        with pytest.raises(CorruptError, match=r"read log entry 9 .*yet entry 10 is there"):
            opened(place)
    assert next(told, None) is None


def test_a_hint_whose_log_is_gone_altogether_tells_so(place: Place) -> None:
    """I13: nothing is left that would say whose hint it is; a damaged first entry says nothing either."""
    place.write(1, {"id": [1]})
    first = entry_file(place.path, 0).read_bytes()
    shutil.rmtree(place.path / paths.LOG_DIRECTORY)
    for data in (None, b"torn"):
        if data is not None:
            entry_file(place.path, 0).parent.mkdir()
            entry_file(place.path, 0).write_bytes(data)
        with pytest.raises(CorruptError, match=f"read log entry 2 .*{paths.HEAD_PATH} tells of it"):
            place.sink()
    entry_file(place.path, 0).write_bytes(first)
    with pytest.raises(TxsinkError, match="had been read before"):
        place.sink()


@pytest.mark.usefixtures("small_blocks")
def test_a_writer_that_slept_through_an_expiry_expires_by_the_newest_state(place: Place) -> None:
    """I8: by its own it would have segments made of what has been merged and deleted."""
    grow(opened(place), 22)
    asleep = opened(place)
    living = opened(place)
    grow(living, 50)
    boundary = expiry.expire(living, 12)
    assert entry_file(place.path, asleep.state.version).exists()
    assert expiry.expire(asleep, 5) == boundary
    assert opened(place).facts() == living.facts()


@pytest.mark.usefixtures("small_blocks")
def test_a_writer_of_a_table_that_was_restored_expires_nothing_of_it(place: Place) -> None:
    """I8: where names are kept, no look at the entry it started from tells it."""
    bucket = Objects()
    store = ObjectStore(bucket)
    writing = opened(place, store)
    grow(writing, 6)
    copy = dict(bucket.objects)
    grow(writing, 20)
    bucket.objects.clear()
    bucket.objects.update(copy)
    with pytest.raises(CorruptError, match="it was restored from a copy"):
        expiry.expire(writing, 5)
    assert dict(bucket.objects) == copy
