"""What users of `txsink.testing` get: models that keep the contract of a store, faults, fixtures that fail a test."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from contract_store import MoveContract, UploadContract
from txsink.errors import OutcomeUnknownError
from txsink.store.protocol import Store
from txsink.testing import (
    Crash,
    FaultyStore,
    Names,
    Objects,
    Violation,
    crash_book,
    every_fault,
    fail_after,
    open_on,
    reorder,
    repeat,
    stale,
    table_on,
    tear,
)
from txsink.testing.crash_book import Truth


class TestNames(MoveContract):
    names = Names()

    @pytest.fixture
    def root(self) -> str:
        return "/place/T"

    @pytest.fixture
    def store(self) -> Store:
        type(self).names = Names()
        return self.names.store()

    @pytest.fixture
    def other(self) -> Store:
        return self.names.store()


class TestObjects(UploadContract):
    # One part is all that a model needs.
    test_a_file_of_many_parts_holds_every_byte_in_order = None  # type: ignore[assignment]

    objects = Objects()

    @pytest.fixture
    def root(self) -> str:
        return "/place/T"

    @pytest.fixture
    def store(self) -> Store:
        type(self).objects = Objects()
        return self.objects.store()

    @pytest.fixture
    def other(self) -> Store:
        return self.objects.store()


# -- faults ------------------------------------------------------------------------------------------------


def test_a_torn_seal_leaves_half_the_bytes_and_the_process_is_dead() -> None:
    names = Names()
    store = FaultyStore(names.store(), [tear(2)])
    output = store.create("/a")
    output.write(b"abcd")
    with pytest.raises(Crash):
        output.seal()
    assert names.held == {"/a": b"ab"}
    with pytest.raises(Crash):
        store.read("/a", 9)
    store.check_delivered()


def test_a_torn_move_gives_half_the_files_their_names_and_a_torn_hint_half_its_bytes() -> None:
    names = Names({"/a": b"1", "/b": b"2"})
    with pytest.raises(Crash):
        FaultyStore(names.store(), [tear(1)]).move([("/a", "/c"), ("/b", "/d")])
    assert names.held == {"/c": b"1", "/b": b"2"}
    with pytest.raises(Crash):
        FaultyStore(names.store(), [tear(1)]).put_hint("/h", b"abcd", "t")
    assert names.held["/h"] == b"ab"


def test_what_cannot_be_torn_is_not_counted_as_delivered() -> None:
    store = FaultyStore(Names().store(), [tear(1)])
    assert store.read("/a", 9) is None
    with pytest.raises(AssertionError, match="never happened"):
        store.check_delivered()


def test_an_error_after_the_call_took_effect() -> None:
    names = Names()
    with pytest.raises(OutcomeUnknownError):
        FaultyStore(names.store(), [fail_after(1)]).put_if_absent("/a", b"1", "t")
    assert names.held == {"/a": b"1"}


@pytest.mark.parametrize(("later", "calls"), [(0, 0), (2, 2)])
def test_a_request_is_delivered_once_more_whatever_happened_meanwhile(later: int, calls: int) -> None:
    names = Names()
    store = FaultyStore(names.store(), [repeat(1, later)])
    store.put_hint("/h", b"old", "t")
    names.held["/h"] = b"new"
    for _ in range(calls):
        assert names.held["/h"] == b"new"
        store.read("/x", 1)
    assert names.held["/h"] == (b"old" if later else b"new")
    store.check_delivered()


def test_a_request_under_way_outlives_its_process() -> None:
    names = Names()
    store = FaultyStore(names.store(), [repeat(1, 50)])
    store.put_if_absent("/a", b"1", "t")
    names.held.clear()
    store.deliver_rest()
    assert names.held == {"/a": b"1"}


def test_listings_are_stale_or_reordered() -> None:
    names = Names({"/d/a": b"", "/d/b": b""})
    store = FaultyStore(names.store(), [reorder(1), stale(2), stale(3)])
    assert store.list("/d") == ["b", "a"]
    names.held["/d/c"] = b""
    assert store.list("/d") == ["a", "b"], "that of the call before"
    assert store.list("/e") == [], "never listed before"
    store.check_delivered()


# -- every fault -------------------------------------------------------------------------------------------


def test_a_program_that_acknowledges_too_early_is_found_by_every_fault() -> None:
    told: list[int] = []

    def program(store: Store) -> None:
        told.clear()
        with open_on(store, "/t", "w", life=1 + len(told)) as sink:
            txn = sink.begin(0)
            txn.write({"id": [1]})
            told.append(0)  # too early
            txn.commit()

    def is_lost(store: Store) -> bool:
        open_on(store, "/t", "w", life=2).close()
        return bool(told) and table_on(store, "/t").to_arrow().num_rows == 0

    cases = [(case.fault.kind, is_lost(case.store)) for case in every_fault(lambda: Names().store(), program)]
    assert len(cases) > 60
    assert ("crash-before", True) in cases
    assert ("repeat", True) not in cases


def test_a_retired_run_that_claims_again_is_seen_in_the_log() -> None:
    """I10: the checker of histories, on a log that was written by hand."""
    names = Names()
    first = open_on(names.store(), crash_book.ROOT, "w", run="one")
    open_on(names.store(), crash_book.ROOT, "w", run="two", life=2)
    crash_book.book_of(names.files(), Truth())
    first.log.refresh()
    claim = first.log.entry(1)
    first.log.append(lambda _, slot: type(claim)(**slot, writer="w", run="one", generation=3, retires=()))  # type: ignore[call-arg]
    with pytest.raises(Violation, match="I10"):
        crash_book.book_of(names.files(), Truth())


# -- fixtures ----------------------------------------------------------------------------------------------

USES = """
import pytest
from txsink.testing import Crash, crash_before, table_on, open_on

def test_good(faulty_store, memory_store, local_store, sim_disk):
    store = faulty_store(memory_store, crash_before(3))
    with pytest.raises(Crash):
        open_on(store, "/t", "w")
    open_on(local_store, "/t", "w")
    assert sim_disk.files()

def test_fewer_faults_than_planned(faulty_store, memory_store):
    faulty_store(memory_store, crash_before(3))
"""


def test_the_fixtures_fail_a_test_whose_faults_did_not_happen(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["txsink.testing.fixtures"]\n')
    (tmp_path / "test_mine.py").write_text(USES)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 passed, 1 error" in done.stdout
    assert "1 planned faults never happened in 0 calls" in done.stdout


@pytest.mark.parametrize("name", ["txsink", "txsink.reading.table", "txsink.writing.opening"])
def test_nothing_of_txsink_loads_the_testing_package(name: str) -> None:
    program = f"import sys, {name}; print([one for one in sys.modules if 'txsink.testing' in one or one == 'pytest'])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("make", [Names, Objects])
def test_a_copy_of_a_model_is_a_store_of_its_own(make: Callable[[], Names | Objects]) -> None:
    first = make()
    first.store().replace("/d/t/a", b"1", "t")
    second = first.after_kill()
    assert second.fingerprint() == first.fingerprint()
    second.store().delete("/d/t/a")
    assert (list(first.files()), list(second.files())) == (["/d/t/a"], [])
