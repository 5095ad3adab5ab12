"""The log over a store: appends, lost answers, races, damage, and how it is read when it is old."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from faults import FaultyStore, delay, fail_before, lose_answer, lose_request
from place import Place
from seen import by_directory, entry_file, names, rows_of, small_blocks
from txsink import entry as entries
from txsink import layout, log, recovery, transaction
from txsink.entry import FORMAT, AnyEntry, Claim
from txsink.errors import (
    CorruptError,
    FencedError,
    InvalidRequestError,
    OutcomeUnknownError,
    TxsinkError,
    UnavailableError,
)
from txsink.log import Log, Make, Slot
from txsink.sink import open_sink
from txsink.state import State
from txsink.store import Store
from txsink.store.local import LocalStore
from txsink.writer import Sink

__all__ = ["small_blocks"]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "T")


def opened(place: Place, store: Store | None = None) -> Log:
    """A log as a new process reads it; created when it is not there."""
    found = Log(store or LocalStore(), str(place.path), place.stamps)
    found.load()
    if not found.exists:
        transaction.create(found, "parquet", (), None)
    return found


def claim_by(writer: str) -> Make:
    """A new run claims the writer: the smallest entry there is."""

    def make(state: State, slot: Slot) -> Claim:
        known = state.writers.get(writer)
        generation = 1 if known is None else known.generation + 1
        return Claim(**slot, writer=writer, run=slot["write_id"], generation=generation, retires=())

    return make


def grow(found: Log, count: int, writer: str = "w") -> None:
    """Append `count` entries, with the house work a sink does."""
    for _ in range(count):
        found.append(claim_by(writer))
        found.maintain()


def put(store: Store, place: Place, writer: str = "w") -> Sink:
    return open_sink(store, place.stamps, str(place.path), writer, {})


def retired_runs(found: Log) -> list[str]:
    return [fact["run"] for fact in found.facts().to_pylist()]


# -- appending ----------------------------------------------------------------------------------------------


def test_an_append_takes_the_slot_after_the_newest_entry(place: Place) -> None:
    found = opened(place)
    assert found.append(claim_by("w")) == found.entry(1)
    assert [found.entry(version).version for version in range(2)] == [0, 1]
    assert names(place.path) == [layout.entry_path(0), layout.entry_path(1)]


def test_nothing_to_append_is_an_answer(place: Place) -> None:
    found = opened(place)
    assert found.append(lambda state, slot: None) is None
    assert found.state.version == 0


def test_a_lost_race_is_decided_again_on_what_the_winner_wrote(place: Place) -> None:
    one, two = opened(place), opened(place)
    one.append(claim_by("w"))
    seen: list[int] = []

    def make(state: State, slot: Slot) -> AnyEntry:
        seen.append(state.version)
        return claim_by("w")(state, slot)  # type: ignore[return-value] -- this one always answers

    two.append(make)
    assert seen == [0, 1]
    assert [one.refresh().version, two.state.writers["w"].generation] == [2, 2]


def test_whoever_loses_every_race_is_told_to_retry(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """I14: the tries are bounded."""
    monkeypatch.setattr(log, "APPEND_TRIES", 3)
    one, two = opened(place), opened(place)

    def make(state: State, slot: Slot) -> AnyEntry | None:
        one.append(claim_by("v"))
        return claim_by("w")(state, slot)

    with pytest.raises(UnavailableError, match="3 other appends came first"):
        two.append(make)
    assert "w" not in one.refresh().writers


def test_an_entry_that_could_not_be_read_back_is_not_written(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    found = opened(place)
    monkeypatch.setattr(entries, "ENTRY_BYTES_MAX", 100)
    with pytest.raises(InvalidRequestError):
        found.append(claim_by("w"))
    assert not entry_file(place.path, 1).exists()


# -- lost answers -------------------------------------------------------------------------------------------


def test_an_answer_lost_after_the_append_landed_is_success_once(place: Place) -> None:
    """F22: for create, claim, prepare, publishing and commit alike."""
    puts = []
    for number in itertools.count(1):
        faulty = FaultyStore(LocalStore(), [lose_answer(number)])
        there = Place(place.path.parent / f"T{number}")
        try:
            overwrite_twice(faulty, there)
        except TxsinkError:
            assert faulty.trace[number - 1][0] != "put_if_absent"
        if not faulty.delivered:
            break
        if faulty.trace[number - 1][0] == "put_if_absent":
            puts.append(faulty.trace[number - 1][1].rpartition("/")[2])
            assert rows_of(there.path) == [2]
            assert [one.kind for one in there.table().history()][::-1] == EXPECTED
    assert puts == [f"{version:020d}.json" for version in range(len(EXPECTED))]


EXPECTED = ["create", "claim", "prepare", "commit", "prepare", "publishing", "commit"]


def overwrite_twice(store: Store, there: Place) -> None:
    with put(store, there) as sink:
        for epoch in (1, 2):
            with sink.begin(epoch, mode="overwrite") as txn:
                txn.write({"id": [epoch]})


def test_a_request_that_was_lost_is_made_again(place: Place) -> None:
    base = FaultyStore(LocalStore())
    found = opened(place, base)
    found.append(claim_by("w"))
    base.plan.append(lose_request(base.calls + 1))  # settled already: the put comes first
    found.append(claim_by("w"))
    base.check_delivered()
    assert [verb for verb, _ in base.trace].count("put_if_absent") == 4
    assert opened(place).state.version == 2


def test_a_store_that_never_says_leaves_the_outcome_unknown(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """I11."""
    found = opened(place, FaultyStore(LocalStore()))
    monkeypatch.setattr(found.store, "put_if_absent", lambda path, data, token: None)
    with pytest.raises(OutcomeUnknownError, match="did not say 5 times"):
        found.append(claim_by("w"))


def test_an_unknown_answer_for_a_slot_that_another_took_is_a_lost_race(place: Place) -> None:
    """F22: only the same bytes are mine."""
    base = FaultyStore(LocalStore())
    found, other = opened(place, base), opened(place)
    found.append(claim_by("w"))
    at = base.calls + 1
    base.plan += [delay(at, lambda: other.append(claim_by("v"))), lose_answer(at)]
    found.append(claim_by("w"))
    base.check_delivered()
    assert base.trace[at - 1][0] == "put_if_absent"
    state = opened(place).state
    assert (state.version, sorted(state.writers)) == (3, ["v", "w"])


def test_an_unknown_outcome_of_a_prepare_deletes_nothing_and_recovery_commits(place: Place) -> None:
    """I11, F22."""
    base = FaultyStore(LocalStore())
    sink = put(base, place)
    txn = sink.begin(1)
    txn.write({"id": [1]})
    entry = layout.entry_path(sink.log.state.version + 1)
    real = base.put_if_absent

    def landed_but_who_knows(path: str, data: bytes, token: str) -> bool | None:
        created = real(path, data, token)
        if path.endswith(entry):
            raise OutcomeUnknownError(f"write {path}", "the answer was lost", "Recover")
        return created

    base.put_if_absent = landed_but_who_knows  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknownError):
        txn.commit()
    assert txn.outcome == "unknown"
    txn.abort()
    sink.close()
    with place.sink() as again:
        assert again.recovered is not None
        assert again.recovered.committed == [1]
    assert rows_of(place.path) == [1]


# -- damage -------------------------------------------------------------------------------------------------

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "torn": lambda data: data[: len(data) // 2],
    "torn at the end": lambda data: data[:-1],
    "altered": lambda data: data.replace(b'"kind"', b'"kinD"'),
    "another entry": lambda data: data.replace(b'"time_ms":1', b'"time_ms":2'),
    "zeroes": lambda data: b"\x00" * len(data),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("version", [1, 4])
def test_a_damaged_entry_is_corruption_with_its_version_and_nothing_is_appended(
    place: Place, damage: str, version: int
) -> None:
    """F23, I13: also the newest entry, and also for a writer that is open."""
    with place.sink() as sink, sink.begin(1) as txn:
        txn.write({"id": [1]})
    waiting = place.sink("other")
    file = entry_file(place.path, version)
    whole = file.read_bytes()
    file.write_bytes(DAMAGE[damage](whole))
    with pytest.raises(CorruptError) as caught:
        place.sink()
    assert caught.value.context["version"] == version
    if version == 4:
        with pytest.raises(CorruptError) as caught, waiting.begin(1) as txn:
            txn.write({"id": [9]})
        assert caught.value.context["version"] == version
        assert by_directory(place.path) == [1]
    file.write_bytes(whole)
    waiting.close()
    place.write(2, {"id": [2]})
    assert rows_of(place.path) == [1, 2]
    place.sink("other").close()  # its prepare entry landed on the damaged one, and was not acknowledged
    assert rows_of(place.path) == ([1, 2, 9] if version == 4 else [1, 2])


def test_an_entry_of_another_chain_is_refused(place: Place) -> None:
    """I7."""
    other = Place(place.path.parent / "other")
    for writer, one in (("w", place), ("v", other)):
        grow(opened(one), 3, writer)
    entry_file(place.path, 2).write_bytes(entry_file(other.path, 2).read_bytes())
    entry_file(place.path, 3).unlink()
    with pytest.raises(CorruptError, match="the chain is broken"):
        opened(place)


def test_an_entry_of_a_future_format_says_both_versions(place: Place) -> None:
    """F24."""
    grow(opened(place), 1)
    body = b'{"kind":"commit","format":7,"version":2,"novel":true}'
    entry_file(place.path, 2).write_bytes(entries.seal(body))
    with pytest.raises(InvalidRequestError, match=f"format 7, this txsink reads format {FORMAT}"):
        opened(place)


@pytest.mark.usefixtures("small_blocks")
def test_a_hint_of_a_future_format_says_both_versions(place: Place) -> None:
    """F24: whoever wrote it may write entries that this release misreads."""
    grow(opened(place), 9)
    (place.path / layout.HEAD_PATH).write_bytes(entries.seal(b'{"format":7}'))
    with pytest.raises(InvalidRequestError, match="format 7"):
        opened(place)


def test_an_entry_in_the_middle_that_is_lost_is_never_the_end_of_the_log(place: Place) -> None:
    """I13: the hint remembers a longer log."""
    grow(opened(place), log.HINT_EVERY + 2)
    head = log.HINT_EVERY - 1
    for version in range(head, log.HINT_EVERY + 3):
        entry_file(place.path, version).unlink()
    with pytest.raises(CorruptError, match="yet it had been read before"):
        opened(place)
    (place.path / layout.HEAD_PATH).unlink()
    assert opened(place).state.version == head - 1


def test_a_lost_first_entry_is_not_an_empty_log(place: Place) -> None:
    """I13: a writer must not create the table anew."""
    grow(opened(place), 3)
    entry_file(place.path, 0).unlink()
    with pytest.raises(CorruptError, match="it is missing, yet later ones are there"):
        place.sink()
    assert not entry_file(place.path, 0).exists()


def test_a_table_created_while_it_is_looked_for_is_found(place: Place) -> None:
    base = FaultyStore(LocalStore())
    found = Log(base, str(place.path), place.stamps)
    found.load()
    calls = [verb for verb, _ in base.trace]
    base.plan.append(delay(base.calls + 1 + calls.index("list", 2), lambda: opened(place)))
    found.load()
    base.check_delivered()
    assert found.exists


def test_a_missing_or_wrong_entry_is_named(place: Place) -> None:
    found = opened(place)
    grow(found, 2)
    fresh = opened(place)
    with pytest.raises(CorruptError, match="it is missing"):
        fresh.entry(17)
    with pytest.raises(CorruptError, match="it is no prepare entry"):
        fresh.prepare_entry(1)


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
        for file in [place.path / layout.HEAD_PATH] if part == "head" else (place.path / "_txsink" / part).iterdir():
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
    grow(opened(other), 14)
    (place.path / layout.HEAD_PATH).write_bytes((other.path / layout.HEAD_PATH).read_bytes())
    with pytest.raises(CorruptError, match="delete _txsink/head"):
        opened(place)
    grow(opened(other), 1)
    (place.path / layout.HEAD_PATH).unlink()
    found = opened(place)
    grow(found, 20)
    (place.path / layout.HEAD_PATH).write_bytes((other.path / layout.HEAD_PATH).read_bytes())
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
        mode = "overwrite" if epoch % 7 == 6 else "append"
        with sink.begin(epoch, mode=mode) as txn:
            txn.write({"id": [epoch]})
        if epoch % 3 == 0:
            reader.refresh()
            assert list(reader.live()) == list(opened(place).live()) == list(sink.log.live())
    assert rows_of(place.path) == [13, 14, 15, 16, 17, 18, 19]


def test_entries_are_read_between_two_versions(place: Place) -> None:
    grow(opened(place), 5)
    assert [one.version for one in opened(place).entries(2, 4)] == [2, 3, 4]


# -- expiry -------------------------------------------------------------------------------------------------


def expire(found: Log, before: int) -> int:
    return recovery.expire(found, before)


@pytest.mark.usefixtures("small_blocks")
def test_a_stalled_writer_never_uses_an_expired_slot(place: Place) -> None:
    """F25, I7."""
    grow(opened(place), 6)
    stalled = opened(place)
    slot = stalled.state.version + 1
    grow(opened(place), 20, "v")
    used = entry_file(place.path, slot).read_bytes()
    living = opened(place)
    expire(living, living.state.version)
    assert not entry_file(place.path, slot).exists()
    written = stalled.append(claim_by("w"))
    assert written is not None
    assert written.version == living.refresh().version
    assert opened(place).state == stalled.state
    assert entry_file(place.path, slot).read_bytes() != used
    # What it wrote below the boundary is read by nobody, and goes with the next expiry.
    grow(opened(place), 9, "v")
    expire(living, living.refresh().version)
    assert not entry_file(place.path, slot).exists()


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
        assert len(runs) >= len([run for run in retired_runs(writing)]) - 9 - (writing.state.version - known)
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
    (place.path / layout.HEAD_PATH).unlink()
    for file in (place.path / layout.STATE_DIRECTORY).iterdir():
        file.unlink()
    with pytest.raises(CorruptError, match="no summary tells what they followed"):
        opened(place)
    with pytest.raises(CorruptError, match="is gone or altered, and no later summary tells"):
        stalled.append(claim_by("w"))


def test_the_newest_entry_altered_behind_an_open_log_is_noticed(place: Place) -> None:
    """I7, F23."""
    found = opened(place)
    grow(found, 2)
    file = entry_file(place.path, 2)
    file.write_bytes(b"\x00" * os.path.getsize(file))
    with pytest.raises(CorruptError, match="is gone or altered"):
        found.refresh()
    with pytest.raises(CorruptError):
        found.append(claim_by("w"))
