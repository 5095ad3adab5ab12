"""What others have committed to a Delta table is durable before we believe it, or build on it."""

from __future__ import annotations

import pytest

from place import Place
from test_delta_foreign import appends, commit, data, opened, uses_our_writer_name
from txsink.store.local.store import LocalStore
from txsink.testing.faults import FaultyStore


def made_durable(store: FaultyStore, before: int, path: str) -> list[str]:
    """What was done since to make the commit durable, and to make commits."""
    return [
        verb
        for verb, target in store.trace[before:]
        if (verb in {"sync", "settle"} and path in target) or (verb == "put_if_absent" and "_delta_log" in target)
    ]


def newest_commit(place: Place) -> str:
    return max(str(one) for one in (place.path / "_delta_log").glob("*.json"))


@pytest.mark.parametrize("is_staged", [False, True])
def test_what_another_program_committed_is_durable_before_it_is_believed(place: Place, is_staged: bool) -> None:
    """I3: its content and its name, whether it is found when the epoch begins or when it is prepared."""
    commit(opened(place), 0, 0)
    if not is_staged:
        uses_our_writer_name(place.path)
    store = FaultyStore(LocalStore())
    sink = opened(place, store)
    before = store.calls
    txn = sink.begin(2)
    if is_staged:
        txn.write(data(2))
        uses_our_writer_name(place.path)
        txn.prepare()
    assert txn.outcome == "already-committed"
    assert made_durable(store, before, newest_commit(place)) == ["sync", "settle"]


def test_what_another_program_committed_is_durable_before_our_commit_gets_its_name(place: Place) -> None:
    """I13."""
    store = FaultyStore(LocalStore())
    sink = opened(place, store)
    commit(sink, 0, 0)
    appends(place.path)
    theirs, before = newest_commit(place), store.calls
    commit(sink, 1, 1)
    assert made_durable(store, before, theirs) == ["sync", "settle", "put_if_absent"]


def test_what_another_process_published_is_durable_before_it_counts(place: Place) -> None:
    """I3."""
    store = FaultyStore(LocalStore())
    sink = opened(place, store, run="r")
    txn = sink.begin(1)
    txn.write(data(1))
    txn.prepare()
    entry = sink.log.prepare_entry(sink.log.state.pending[0].prepared)
    opened(place, run="r", recover=False).publisher.publish(entry)
    before = store.calls
    sink.publisher.publish(entry)
    assert made_durable(store, before, newest_commit(place)) == ["put_if_absent", "sync", "settle"]
