"""A log that has grown old: opened in a few reads, summed up, merged and expired under those who read and write it."""

from __future__ import annotations

import pytest

from logs import LOOKS, claim_by, grow, opened, retired_runs
from place import Place
from seen import entry_file, rows_of, small_blocks
from txsink import paths
from txsink.choices import Mode
from txsink.errors import CorruptError, FencedError, InvalidRequestError
from txsink.log import entry as entries, expiry, log, segment
from txsink.log.entry import AnyEntry
from txsink.log.log import Log, Slot
from txsink.log.state import State
from txsink.store.local.store import LocalStore
from txsink.testing.faults import FaultyStore, delay, fail_before
from txsink.testing.objects import Objects, ObjectStore

__all__ = ["small_blocks"]


# -- old logs -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_blocks")
def test_opening_an_old_log_reads_a_handful_of_objects(place: Place) -> None:
    grow(opened(place), 60)
    counts = []
    for count in (60, 200):
        grow(opened(place), count)
        store = FaultyStore(LocalStore())
        state = opened(place, store).state
        counts.append(store.calls)
        assert state == opened(place).state
    assert max(counts) <= 4 + log.HINT_EVERY
    assert "list" not in [verb for verb, _ in store.trace]


def test_opening_a_log_of_a_thousand_entries_reads_at_most_sixteen_after_the_hint(place: Place) -> None:
    """S12, with the real sizes."""
    grow(opened(place), 150)
    store = FaultyStore(LocalStore())
    found = opened(place, store)
    assert found.state.version == 150
    assert store.calls <= 4 + log.HINT_EVERY


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("lost", ["head", "state", "files", "head state files", "torn head", "torn state"])
def test_whatever_is_derived_can_be_lost_and_is_made_again(place: Place, lost: str) -> None:
    grow(opened(place), 30)
    expected = opened(place).state, opened(place).facts()
    for part in lost.replace("torn ", "").split():
        for file in [place.path / paths.HEAD_PATH] if part == "head" else (place.path / "_txsink" / part).iterdir():
            if lost.startswith("torn"):
                file.write_bytes(file.read_bytes()[:-9])
            else:
                file.unlink()
    fresh = opened(place)
    assert (fresh.state, fresh.facts()) == expected
    grow(fresh, 5)
    assert opened(place).state.version == 35


@pytest.mark.usefixtures("small_blocks")
def test_a_hint_that_a_power_cut_left_of_another_life_is_not_believed(place: Place) -> None:
    grow(opened(place), 10)
    other = Place(place.path.parent / "other")
    other.stamps = place.stamps  # ids that nobody else has: so is the birth of its log
    grow(opened(other), 14)
    (place.path / paths.HEAD_PATH).write_bytes((other.path / paths.HEAD_PATH).read_bytes())
    assert opened(place).state.version == 10
    grow(opened(other), 1)
    (place.path / paths.HEAD_PATH).unlink()
    found = opened(place)
    grow(found, 20)
    (place.path / paths.HEAD_PATH).write_bytes((other.path / paths.HEAD_PATH).read_bytes())
    assert opened(place).state == found.state


@pytest.mark.usefixtures("small_blocks")
def test_house_work_that_fails_never_fails_a_commit(place: Place) -> None:
    counts = FaultyStore(LocalStore())
    grow(opened(place, counts), 12)
    failed = 0
    for number in range(1, counts.calls + 1):
        verb, path = counts.trace[number - 1]
        there = Place(place.path.parent / f"T{number}")
        if verb in {"put_if_absent", "put_hint", "settle"} and "/log/" not in path:
            faulty = FaultyStore(LocalStore(), [fail_before(number)])
            grow(opened(there, faulty), 12)
            faulty.check_delivered()
            assert opened(there).facts().num_rows == 12
            failed += 1
    assert failed > 5


@pytest.mark.usefixtures("small_blocks")
def test_the_same_facts_come_from_segments_and_from_entries(place: Place) -> None:
    """F26: at every age."""
    writing = opened(place)
    for count in range(1, 40):
        grow(writing, 1)
        fresh = opened(place)
        assert retired_runs(fresh) == retired_runs(writing)
        assert len(retired_runs(fresh)) == count


@pytest.mark.usefixtures("small_blocks")
def test_files_are_followed_the_same_from_any_age(place: Place) -> None:
    sink = place.sink()
    reader = opened(place)
    for epoch in range(20):
        mode: Mode = "overwrite" if epoch % 7 == 6 else "append"
        with sink.begin(epoch, mode=mode) as txn:
            txn.write({"id": [epoch]})
        if epoch % 3 == 0:
            reader.refresh()
            assert list(reader.live()) == list(opened(place).live()) == list(sink.log.live())
    assert rows_of(place.path) == [13, 14, 15, 16, 17, 18, 19]


# -- expiry -------------------------------------------------------------------------------------------------


def expire(found: Log, before: int) -> int:
    return expiry.expire(found, before)


@pytest.mark.usefixtures("small_blocks")
def test_a_stalled_writer_never_uses_an_expired_slot(place: Place) -> None:
    """F25, I7."""
    grow(opened(place), 6)
    store = FaultyStore(LocalStore())
    stalled = opened(place, store)
    slot = stalled.state.version + 1
    grow(opened(place), 20, "v")
    used = entry_file(place.path, slot).read_bytes()
    living = opened(place)
    # It falls asleep between its look at the log and its put.
    store.plan.append(delay(store.calls + LOOKS + 1, lambda: expire(living, living.state.version)))
    written = stalled.append(claim_by("w"))
    store.check_delivered()
    assert written is not None
    assert written.version == living.refresh().version
    assert opened(place).state == stalled.state
    assert entry_file(place.path, slot).read_bytes() != used
    # What it wrote below the boundary is read by nobody, and goes with the next expiry.
    grow(opened(place), 9, "v")
    expire(living, living.refresh().version)
    assert not entry_file(place.path, slot).exists()


@pytest.mark.usefixtures("small_blocks")
def test_in_a_bucket_an_expired_slot_stays_taken(place: Place) -> None:
    """I7: so that nobody has to look at the entry before it again."""
    store = ObjectStore(Objects())
    grow(opened(place, store), 20)
    living = opened(place, store)
    boundary = expire(living, living.state.version)
    assert boundary > 10
    # What stands in one segment alone stays in its entries, too.
    gone = min(boundary, segment.doubled(living.state.version + 1))
    assert gone > 10
    for version in range(gone):
        path = f"{place.path}/{paths.entry_path(version)}"
        assert store.put_if_absent(path, b"a stalled writer's", "ff") is False
        assert store.read(path, entries.ENTRY_BYTES_MAX) == entries.EXPIRED
        with pytest.raises(InvalidRequestError, match=f"read log entry {version}: it has expired") as caught:
            living.slots.read(version)
        assert caught.value.context == {"expired": version}
    assert opened(place, store).state == living.state


@pytest.mark.usefixtures("small_blocks")
def test_in_a_bucket_a_second_expiry_leaves_alone_what_the_first_overwrote(place: Place) -> None:
    """So that a table that is expired often pays for what is new, and not for its whole past."""
    store = FaultyStore(ObjectStore(Objects()))
    living = opened(place, store)
    grow(living, 20)
    done = segment.doubled(expire(living, living.state.version))
    grow(living, 40)
    before = len(store.trace)
    boundary = expire(living, living.state.version)
    found_paths = [f"{place.path}/{paths.entry_path(version)}" for version in range(boundary)]
    written = {path for verb, path in store.trace[before:] if verb == "replace"}
    gone = min(boundary, segment.doubled(living.state.version + 1))
    assert 0 < done < gone
    assert written.isdisjoint(found_paths[:done])
    assert all(store.read(path, entries.ENTRY_BYTES_MAX) == entries.EXPIRED for path in found_paths[:gone])
    assert opened(place, store).state == living.state


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("damage", ["torn", "lost"])
def test_every_segment_can_be_damaged_or_lost_after_an_expiry_and_no_fact_is(place: Place, damage: str) -> None:
    """I1, I8: what is irreplaceable stands twice until the next expiry."""
    tried = 0
    for count in (16, 22, 26, 31):
        there = Place(place.path.parent / f"{count}")
        living = opened(there)
        grow(living, count)
        expire(living, living.state.version)
        expected = opened(there).facts()
        for path in sorted((there.path / paths.SEGMENT_DIRECTORY).iterdir()):
            data = path.read_bytes()
            if damage == "torn":
                path.write_bytes(data[:-9])
            else:
                path.unlink()
            assert opened(there).facts() == expected
            path.write_bytes(data)
            tried += 1
        assert not entry_file(there.path, 7).exists()
    assert tried > 12


@pytest.mark.usefixtures("small_blocks")
def test_facts_that_are_lost_twice_are_corruption_and_the_advice_does_not_destroy_the_rest(place: Place) -> None:
    living = opened(place)
    grow(living, 16)
    expire(living, living.state.version)
    segments = sorted((place.path / paths.SEGMENT_DIRECTORY).iterdir())
    for path in segments:
        path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CorruptError, match=r"read the segment .*Restore it from a copy, or see what `txsink repair`"):
        opened(place).facts()
    for path in segments:
        path.unlink()
    with pytest.raises(CorruptError, match=r"a segment is missing, and what it was made of has expired.*Restore"):
        opened(place).facts()


@pytest.mark.usefixtures("small_blocks")
def test_a_stalled_writer_learns_that_it_was_fenced_even_when_the_claim_has_expired(place: Place) -> None:
    """F25, I10."""
    stalled = place.sink()
    txn = stalled.begin(1)
    txn.write({"id": [1]})
    newer = place.sink()
    for epoch in range(1, 12):
        with newer.begin(epoch) as other:
            other.write({"id": [epoch]})
    expire(newer.log, newer.log.state.version)
    with pytest.raises(FencedError):
        txn.commit()
    assert rows_of(place.path) == list(range(1, 12))


@pytest.mark.usefixtures("small_blocks")
def test_a_reader_that_slept_through_an_expiry_reloads(place: Place) -> None:
    """F26."""
    writing = opened(place)
    grow(writing, 6)
    reader = opened(place)
    grow(writing, 20)
    expire(writing, writing.state.version)
    grow(writing, 1)  # which no hint and no summary tells of
    assert reader.refresh() == writing.state
    assert retired_runs(reader) == retired_runs(writing)
    with pytest.raises(InvalidRequestError, match="have expired"):
        reader.entry(2)


@pytest.mark.usefixtures("small_blocks")
def test_a_reader_has_the_full_list_whenever_segments_are_merged_and_expired(place: Place) -> None:
    """F26: others merge and expire before each of the reader's calls."""
    writing = opened(place)
    grow(writing, 14)
    for number in range(1, 30):
        base = FaultyStore(LocalStore())
        reader = opened(place, base)
        known = reader.state.version

        def others() -> None:
            grow(writing, 9)
            expire(writing, writing.state.version)

        base.plan.append(delay(base.calls + number, others))
        runs = retired_runs(reader)
        if not base.delivered:
            break
        assert runs == retired_runs(writing)[: len(runs)]
        assert len(runs) >= len(retired_runs(writing)) - 9 - (writing.state.version - known)
    else:
        pytest.fail("the reader never came to an end")
    assert number > 2


@pytest.mark.usefixtures("small_blocks")
def test_a_log_whose_summaries_are_lost_and_whose_entries_expired_is_corrupt(place: Place) -> None:
    """I13."""
    writing = opened(place)
    grow(writing, 20)
    stalled = opened(place)
    grow(writing, 9)
    expire(writing, writing.state.version)
    (place.path / paths.HEAD_PATH).unlink()
    for file in (place.path / paths.STATE_DIRECTORY).iterdir():
        file.unlink()
    with pytest.raises(CorruptError, match="no summary tells what they followed"):
        opened(place)
    with pytest.raises(CorruptError, match="no summary tells what they followed"):
        stalled.append(claim_by("w"))


@pytest.mark.usefixtures("small_blocks")
def test_a_reader_that_expiry_overtakes_again_and_again_still_has_the_full_list(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F26: each try finds its segments merged away."""
    monkeypatch.setattr(log, "FACTS_TRIES", 2)
    writing = opened(place)
    grow(writing, 14)
    reader = opened(place)
    real = reader._all_facts
    rounds: list[int] = []

    def overtaken() -> object:
        if len(rounds) < 2:
            rounds.append(1)
            grow(writing, 9)
            expire(writing, writing.state.version)
        return real()

    monkeypatch.setattr(reader, "_all_facts", overtaken)
    assert retired_runs(reader) == retired_runs(writing)
    assert len(rounds) == 2


@pytest.mark.usefixtures("small_blocks")
def test_what_was_decided_while_the_log_was_loaded_anew_is_decided_again(place: Place) -> None:
    """F25, F26: looking up facts finds them merged away, and with them the state the entry was made for."""
    writing = opened(place)
    grow(writing, 14)
    stalled = opened(place)
    grow(writing, 20)
    expire(writing, writing.state.version)
    seen: list[int] = []

    def make(state: State, slot: Slot) -> AnyEntry | None:
        stalled.facts()
        seen.append(slot["version"])
        return claim_by("w")(state, slot)

    assert stalled.append(make) is not None
    assert seen == [15, writing.state.version + 1]
    assert opened(place).state == stalled.state
