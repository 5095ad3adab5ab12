"""The faulty store is tested itself: a checker is trusted only for faults it has been seen to deliver."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import ModuleType
from typing import cast

import pytest

from txsink.errors import OutcomeUnknownError, UnavailableError
from txsink.store.local.store import LocalStore
from txsink.store.protocol import Store
from txsink.testing.faults import (
    Fault,
    FaultyStore,
    crash_after,
    crash_before,
    delay,
    fail_before,
    hide_from_list,
    lose_answer,
    lose_request,
)
from txsink.testing.simdisk import Crash, SimDisk


def faulty(*plan: Fault) -> tuple[FaultyStore, SimDisk]:
    disk = SimDisk()
    return FaultyStore(LocalStore(cast("ModuleType", disk)), plan), disk


def every_verb(store: Store) -> None:
    store.resolve("/t")
    store.put_if_absent("/t/a", b"1", "x")
    store.put_hint("/t/h", b"1", "y")
    store.replace("/t/r", b"1", "z")
    store.read("/t/a", 9)
    store.tail("/t/a", 9)
    store.list("/t")
    output = store.create("/s/d/f")
    output.write(b"1")
    output.flush()
    assert not output.closed
    output.seal()
    assert output.closed
    store.settle(["/s/d/f"])
    store.move([("/s/d/f", "/t/f")])
    store.create("/s/d/g").discard()
    store.delete("/t/f")
    store.prune("/s/d", "/s")
    store.same_place("/s", "/t")
    store.present(["/t/a", "/t/b"])


VERBS = ["resolve", "put_if_absent", "put_hint", "replace", "read", "tail", "list", "create", "seal", "settle", "move"]
VERBS += ["create", "discard", "delete", "prune", "same_place", "present"]


def test_without_a_plan_it_is_the_store_below_and_traces_every_verb_in_order() -> None:
    store, disk = faulty()
    plain = SimDisk()
    every_verb(store)
    every_verb(LocalStore(cast("ModuleType", plain)))
    assert [verb for verb, _ in store.trace] == VERBS
    assert store.calls == len(VERBS)
    assert disk.fingerprint() == plain.fingerprint()
    store.check_delivered()


@pytest.mark.parametrize("crash", [crash_before, crash_after])
def test_the_crash_loop_meets_every_call_once_and_ends(crash: Callable[[int], Fault]) -> None:
    states = set()
    for call in itertools.count(1):
        store, disk = faulty(crash(call))
        try:
            every_verb(store)
        except Crash:
            store.check_delivered()
            assert store.calls == call
            states.add(disk.fingerprint())
        else:
            break
    assert call == len(VERBS) + 1
    assert len(states) == 12  # nothing, then one more after each of the eleven verbs that change something


def test_a_crash_before_has_no_effect_and_one_after_has() -> None:
    for crash, files in ((crash_before(1), {}), (crash_after(1), {"/a": b"1"})):
        store, disk = faulty(crash)
        with pytest.raises(Crash):
            store.put_if_absent("/a", b"1", "x")
        assert disk.files() == files


def test_the_dead_do_nothing_more() -> None:
    store, disk = faulty(crash_before(2))
    output = store.create("/a")
    with pytest.raises(Crash):
        output.seal()
    with pytest.raises(Crash):
        output.discard()
    assert disk.files() == {"/a": b""}
    assert store.calls == 2


def test_a_lost_answer_has_its_effect_and_a_lost_request_has_none() -> None:
    for lose, files in ((lose_answer, {"/a": b"1"}), (lose_request, {})):
        store, disk = faulty(lose(1))
        assert store.put_if_absent("/a", b"1", "x") is None
        assert disk.files() == files
        store, disk = faulty(lose(1, raises=True))
        with pytest.raises(OutcomeUnknownError):
            store.put_if_absent("/a", b"1", "x")
        assert disk.files() == files
        store, disk = faulty(lose(1))
        with pytest.raises(OutcomeUnknownError):
            store.replace("/a", b"1", "x")
        assert disk.files() == files


def test_a_lost_answer_of_a_read_is_unavailable() -> None:
    store, _ = faulty(lose_answer(1))
    with pytest.raises(UnavailableError):
        store.list("/")


def test_a_failure_before_the_call_has_no_effect_and_comes_once() -> None:
    store, disk = faulty(fail_before(1))
    with pytest.raises(UnavailableError):
        store.put_if_absent("/a", b"1", "x")
    assert disk.files() == {}
    assert store.put_if_absent("/a", b"1", "x") is True


def test_a_delay_lets_another_writer_in_first() -> None:
    disk = SimDisk()
    other = LocalStore(cast("ModuleType", disk))
    plan = [delay(1, lambda: other.put_if_absent("/a", b"other", "y"))]
    store = FaultyStore(LocalStore(cast("ModuleType", disk)), plan)
    assert store.put_if_absent("/a", b"mine", "x") is False
    assert disk.files() == {"/a": b"other"}
    store.check_delivered()


def test_hidden_names_are_missing_from_listings_and_nowhere_else() -> None:
    store, _ = faulty(hide_from_list("a"))
    assert store.list("/") == []
    with pytest.raises(AssertionError, match="never happened"):
        store.check_delivered()
    store.put_if_absent("/a", b"1", "x")
    store.put_if_absent("/b", b"1", "x")
    assert store.list("/") == ["b"]
    assert store.read("/a", 9) == b"1"
    store.check_delivered()


def test_a_plan_that_did_not_come_about_fails_the_run() -> None:
    store, _ = faulty(crash_before(1), crash_before(99))
    with pytest.raises(Crash):
        every_verb(store)
    with pytest.raises(AssertionError, match="1 planned faults never happened in 1 calls"):
        store.check_delivered()
