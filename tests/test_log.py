"""The log over a store: appends, lost answers, races."""

from __future__ import annotations

import itertools

import pytest

from advice import advised
from logs import LOOKS, claim_by, grow, opened
from place import Place
from seen import entry_file, names, rows_of
from txsink import paths
from txsink.errors import ConflictError, InvalidRequestError, OutcomeUnknownError, TxsinkError, UnavailableError
from txsink.log import entry as entries, log, segment, slots
from txsink.log.entry import AnyEntry
from txsink.log.log import Make, Slot
from txsink.log.state import State
from txsink.store.local.store import LocalStore
from txsink.store.protocol import Store
from txsink.testing.faults import FaultyStore, delay, fail_before, lose_answer, lose_request
from txsink.writing.opening import open_sink
from txsink.writing.writer import Writer


def put(store: Store, place: Place, writer: str = "w") -> Writer:
    return open_sink(store, place.stamps, str(place.path), writer, {})


# -- appending ----------------------------------------------------------------------------------------------


def test_an_append_takes_the_slot_after_the_newest_entry(place: Place) -> None:
    found = opened(place)
    assert found.append(claim_by("w")) == found.entry(1)
    assert [found.entry(version).version for version in range(2)] == [0, 1]
    assert names(place.path) == [paths.entry_path(0), paths.entry_path(1)]


def test_nothing_to_append_is_an_answer(place: Place) -> None:
    found = opened(place)
    assert found.append(lambda state, slot: None) is None
    assert found.state.version == 0


def test_a_lost_race_is_decided_again_on_what_the_winner_wrote(place: Place) -> None:
    one, two = opened(place), opened(place)
    one.append(claim_by("w"))
    seen: list[int] = []

    def make(state: State, slot: Slot) -> AnyEntry | None:
        seen.append(state.version)
        return claim_by("w")(state, slot)

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

    with advised("log.log.append", "Retry with fewer writers"):
        two.append(make)
    assert "w" not in one.refresh().writers
    two.append(claim_by("w"))
    assert "w" in one.refresh().writers


def test_an_entry_that_could_not_be_read_back_is_not_written(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    found = opened(place)
    monkeypatch.setattr(entries, "ENTRY_BYTES_MAX", 100)
    with pytest.raises(InvalidRequestError):
        found.append(claim_by("w"))
    assert not entry_file(place.path, 1).exists()


def test_entries_of_others_are_durable_before_ours_gets_its_name_or_is_not_needed(place: Place) -> None:
    """I3, I13: also at the second try, when the first could not make them so."""
    store = FaultyStore(LocalStore())
    one, two = opened(place), opened(place, store)

    def appended(make: Make) -> list[tuple[str, str]]:
        before = store.calls
        two.append(make)
        return [call for call in store.trace[before:] if call[0] in {"settle", "put_if_absent"}]

    def entry(version: int) -> str:
        return f"{place.path}/{paths.entry_path(version)}"

    one.append(claim_by("v"))
    two.refresh()
    store.plan.append(fail_before(store.calls + 1))
    with pytest.raises(UnavailableError):
        two.append(claim_by("w"))
    assert store.trace[-1] == ("settle", entry(1))
    assert appended(claim_by("w")) == [("settle", entry(1)), ("put_if_absent", entry(2))]
    one.append(claim_by("v"))
    two.refresh()
    assert appended(lambda state, slot: None) == [("settle", entry(3))]


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


def test_an_entry_found_in_its_slot_is_made_durable_before_it_counts(place: Place) -> None:
    """I3: the put that landed may have ended before the name was synced."""
    store = FaultyStore(LocalStore())
    found = opened(place, store)
    store.plan.append(lose_answer(store.calls + LOOKS + 1))
    found.append(claim_by("w"))
    store.check_delivered()
    path = f"{place.path}/{paths.entry_path(1)}"
    assert store.trace[-4:-1] == [("put_if_absent", path), ("read", path), ("settle", path)]


def test_a_request_that_was_lost_is_made_again(place: Place) -> None:
    base = FaultyStore(LocalStore())
    found = opened(place, base)
    found.append(claim_by("w"))
    base.plan.append(lose_request(base.calls + LOOKS + 1))  # settled already: the put comes after the looks
    found.append(claim_by("w"))
    base.check_delivered()
    assert [verb for verb, _ in base.trace].count("put_if_absent") == 4
    assert opened(place).state.version == 2


def test_a_store_that_never_says_leaves_the_outcome_unknown(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """I11."""
    found = opened(place, FaultyStore(LocalStore()))
    monkeypatch.setattr(found.store, "put_if_absent", lambda path, data, token: None)
    with pytest.raises(OutcomeUnknownError, match="did not say 2 times"):
        found.append(claim_by("w"))


def test_a_store_that_refuses_the_read_back_leaves_the_outcome_unknown(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I11: credentials expired after the put; the entry may stand."""

    def refuse(path: str, limit: int) -> bytes | None:
        raise InvalidRequestError(f"read {path}", "the credentials have expired", "Open it again with valid ones")

    found = opened(place, FaultyStore(LocalStore()))
    monkeypatch.setattr(found.store, "put_if_absent", lambda path, data, token: None)
    monkeypatch.setattr(found.store, "read", refuse)
    with pytest.raises(OutcomeUnknownError, match="may have been written, but then: the credentials have expired"):
        found.append(claim_by("w"))


def test_an_unknown_answer_for_a_slot_that_another_took_is_a_lost_race(place: Place) -> None:
    """F22: only the same bytes are mine."""
    base = FaultyStore(LocalStore())
    found, other = opened(place, base), opened(place)
    found.append(claim_by("w"))
    at = base.calls + LOOKS + 1
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
    entry = paths.entry_path(sink.log.state.version + 1)
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


def test_entries_are_read_between_two_versions(place: Place) -> None:
    grow(opened(place), 5)
    assert [one.version for one in opened(place).entries(2, 4)] == [2, 3, 4]


def test_facts_are_told_after_one_look_at_each_entry(place: Place) -> None:
    """Where a look is a request, a commit's prepare entry is not fetched twice."""
    with place.sink() as sink:
        for epoch in range(3):
            with sink.begin(epoch) as txn:
                txn.write({"id": [epoch]})
        sink.log.keep_hint()
    store = FaultyStore(LocalStore())
    fresh = opened(place, store)
    before = store.calls
    assert [fact.kind for fact in segment.rows_of(fresh.facts())].count("add") == 3
    read = [path for verb, path in store.trace[before:] if verb == "read"]
    assert len(read) == len(set(read)) == fresh.state.version + 1


def test_a_refusal_made_on_an_old_state_is_made_again_on_the_newest(place: Place) -> None:
    """Whoever was in the way may have gone; whoever was not may have come."""
    one, two = opened(place), opened(place)
    one.append(claim_by("w"))

    def make(state: State, slot: Slot) -> AnyEntry | None:
        if "w" not in state.writers:
            raise ConflictError("append", "nobody has claimed 'w'", "Wait")
        return claim_by("w")(state, slot)

    assert two.append(make) is not None
    assert two.state == one.refresh()
    with pytest.raises(ConflictError):
        two.append(lambda state, slot: make(State(), slot))


def test_an_entry_too_large_to_look_at_whole_is_told_by_its_end(place: Place) -> None:
    sink = place.sink()
    metadata = {"text": "x" * (slots.ENTRY_TAIL_BYTES + 1)}
    for epoch in (1, 2):
        with sink.begin(epoch, metadata=metadata):
            pass
    with place.sink() as again:
        assert (again.last_epoch, again.last_metadata) == (2, metadata)


def test_a_segment_that_the_store_does_not_confirm_is_not_counted_on(place: Place) -> None:
    base = FaultyStore(LocalStore())
    found = opened(place, base)
    real = base.put_if_absent

    def unsure(path: str, data: bytes, token: str) -> bool | None:
        return None if path.endswith(".segment") else real(path, data, token)

    base.put_if_absent = unsure  # type: ignore[method-assign]
    grow(found, segment.BLOCK)
    assert not list((place.path / "_txsink").glob("files/*"))
    assert not list((place.path / "_txsink").glob("state/*"))
    with pytest.raises(UnavailableError, match="did not say that it is there"):
        found.ensure_segments()
    base.put_if_absent = real  # type: ignore[method-assign]
    found.ensure_segments()
    assert opened(place).facts().num_rows == segment.BLOCK
