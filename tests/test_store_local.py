"""The local store: the contract on a real and on a simulated disk, its errors, and its durability."""

from __future__ import annotations

import errno
import itertools
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, cast

import pytest

from contract_store import MoveContract, StoreRaces, contents, stage
from txsink.errors import (
    InvalidRequestError,
    OutcomeUnknownError,
    TxsinkError,
    UnavailableError,
)
from txsink.store.local.store import LocalStore
from txsink.store.opening import open_store
from txsink.store.protocol import Store
from txsink.testing.simdisk import Crash, SimDisk
from txsink.testing.simimage import every_choice


def on(disk: SimDisk, kind: type[LocalStore] = LocalStore) -> LocalStore:
    return kind(system=cast("ModuleType", disk))


# -- the contract -------------------------------------------------------------------------------------------


class LocalContract(MoveContract):
    """What a local store promises more than any store."""

    def test_put_leaves_no_temporary_file(self, store: Store, root: str) -> None:
        store.put_if_absent(f"{root}/0", b"first", "a")
        store.put_if_absent(f"{root}/0", b"second", "b")
        store.put_hint(f"{root}/1", b"", "c")
        store.replace(f"{root}/2", b"", "d")
        assert store.list(root) == ["0", "1", "2"]

    def test_the_stamp_changes_when_another_file_takes_the_name(self, store: Store, root: str) -> None:
        stage(store, f"{root}/f", b"1")
        before = store.tail(f"{root}/f", 1)
        store.replace(f"{root}/f", b"1", "a")
        assert store.tail(f"{root}/f", 1) != before

    def test_prune_removes_empty_parents_below_the_root_and_never_the_root(self, store: Store, root: str) -> None:
        stage(store, f"{root}/w/r/1/k=v/f", b"1")
        store.delete(f"{root}/w/r/1/k=v/f")
        store.prune(f"{root}/w/r/1/k=v", f"{root}/w")
        assert self.names_in(store, f"{root}") == ["w"]
        assert self.names_in(store, f"{root}/w") == []
        store.prune(f"{root}/w", f"{root}/w")
        assert self.names_in(store, root) == ["w"]

    def test_prune_goes_on_where_an_earlier_one_died(self, store: Store, root: str) -> None:
        stage(store, f"{root}/keep", b"")
        stage(store, f"{root}/w/r/1/f", b"1")
        store.delete(f"{root}/w/r/1/f")
        store.prune(f"{root}/w/r/1", f"{root}/w/r")
        store.prune(f"{root}/w/r/1", root)
        assert self.names_in(store, root) == ["keep"]

    def test_a_move_that_died_after_its_link_is_finished_by_the_next(self, store: Store, root: str) -> None:
        stage(store, f"{root}/s/f", b"1")
        stage(store, f"{root}/t/g", b"")
        self.link(store, f"{root}/s/f", f"{root}/t/f")
        assert store.move([(f"{root}/s/f", f"{root}/t/f")]) == []
        assert contents(store, root) == {"t/f": b"1", "t/g": b""}

    def test_a_temporary_file_left_by_the_same_attempt_is_made_again(self, store: Store, root: str) -> None:
        for name, verb in (("0", store.put_if_absent), ("1", store.replace), ("2", store.put_hint)):
            stage(store, f"{root}/.a.tmp", b"torn")
            assert verb(f"{root}/{name}", b"whole", "a") in {True, None}
        assert contents(store, root) == dict.fromkeys("012", b"whole")

    @staticmethod
    def names_in(store: Store, path: str) -> list[str]:
        return sorted(cast("LocalStore", store)._os.listdir(path))

    @staticmethod
    def link(store: Store, source: str, target: str) -> None:
        cast("LocalStore", store)._os.link(source, target)


class TestOnARealDisk(LocalContract, StoreRaces):
    @pytest.fixture
    def opened(self) -> Callable[[], Store]:
        return LocalStore

    @pytest.fixture
    def store(self) -> Store:
        return LocalStore()

    @pytest.fixture
    def other(self) -> Store:
        return LocalStore()

    @pytest.fixture
    def root(self, tmp_path: Path) -> str:
        return str(tmp_path / "a table")


class TestOnASimulatedDisk(LocalContract):
    @pytest.fixture
    def disk(self) -> SimDisk:
        return SimDisk()

    @pytest.fixture
    def store(self, disk: SimDisk) -> Store:
        return on(disk)

    @pytest.fixture
    def other(self, disk: SimDisk) -> Store:
        return on(disk)

    @pytest.fixture
    def root(self) -> str:
        return "/data/a table"


class TestWhereEveryWriteIsShort(TestOnASimulatedDisk):
    @pytest.fixture
    def disk(self) -> SimDisk:
        disk = SimDisk()
        disk.write_bytes_max = 100_003
        return disk


# -- the verbs, as cases --------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A verb on a table that is warm or was never seen; `names`: what it changes, old and new content."""

    act: Callable[[Store], object]
    old: dict[str, bytes | None]
    new: dict[str, bytes | None]
    syncs: int
    torn: bool = False  # a staged file may be torn until it is sealed, and a hint for ever


def staged(store: Store) -> None:
    stage(store, "/s/w/new", b"new")


CASES = {
    "put_if_absent": Case(
        lambda store: store.put_if_absent("/t/log/1", b"new", "x"), {"/t/log/1": None}, {"/t/log/1": b"new"}, 2
    ),
    "put_if_absent in a new directory": Case(
        lambda store: store.put_if_absent("/t/x/y/1", b"new", "x"), {"/t/x/y/1": None}, {"/t/x/y/1": b"new"}, 4
    ),
    "replace": Case(lambda store: store.replace("/t/head", b"new", "x"), {"/t/head": b"old"}, {"/t/head": b"new"}, 2),
    "create, seal, settle": Case(staged, {"/s/w/new": None}, {"/s/w/new": b"new"}, 2, torn=True),
    "move": Case(
        lambda store: store.move([("/s/w/a", "/t/a"), ("/s/w/b", "/t/b")]),
        {"/t/a": None, "/t/b": None},
        {"/t/a": b"a", "/t/b": b"b"},
        1,
    ),
    "move to a new partition": Case(
        lambda store: store.move([("/s/w/a", "/t/k=1/a"), ("/s/w/b", "/t/k=2/b")]),
        {"/t/k=1/a": None, "/t/k=2/b": None},
        {"/t/k=1/a": b"a", "/t/k=2/b": b"b"},
        4,
    ),
}


def warm_disk(kind: type[LocalStore] = LocalStore) -> tuple[SimDisk, LocalStore]:
    """A disk with a table, all of it durable, and the store of the process that made it."""
    disk = SimDisk()
    store = on(disk, kind)
    for path, data in (("/t/log/0", b"zero"), ("/t/head", b"old"), ("/s/w/a", b"a"), ("/s/w/b", b"b")):
        stage(on(disk), path, data)
    store.settle(["/t/log/0", "/t/head", "/s/w/a"])
    return disk, store


def sync_directory(disk: SimDisk, path: str) -> None:
    handle = disk.open(path, os.O_RDONLY | os.O_DIRECTORY)
    disk.fsync(handle)
    disk.close(handle)


def seen(disk: SimDisk, names: dict[str, bytes | None]) -> dict[str, bytes | None]:
    files = disk.files()
    return {name: files.get(name) for name in names}


# -- durability -----------------------------------------------------------------------------------------------


def states(disk: SimDisk) -> Iterator[SimDisk]:
    """What the next process may find: the disk after a kill, and after every possible power cut."""
    yield disk.after_kill()
    for choice in every_choice():
        yield disk.after_power_cut(choice)


def violations(case: Case, kind: type[LocalStore] = LocalStore) -> list[str]:
    """Crash at every call of the verb and after it; what is found and may not be."""
    disk, store = warm_disk(kind)
    found: list[str] = []
    copies: list[SimDisk] = []
    disk.watch = lambda disk: copies.append(disk.after_kill())
    case.act(store)
    disk.watch = None
    for number, copy in enumerate(copies):
        for state in states(copy):
            for name, content in seen(state, case.new).items():
                whole = {case.old[name], case.new[name]}
                if content not in whole and not case.torn:
                    found.append(f"before call {number + 1}: {name} is {content!r}")
            if kept := lost(state, case):
                found.append(f"before call {number + 1}: lost {kept}")
    after = (seen(state, case.new) for state in states(disk))
    return [*found, *(f"after it returned: {content}" for content in after if content != case.new)]


def lost(state: SimDisk, case: Case) -> set[bytes]:
    """Content that was durable and is nowhere: moved files must be under one name or the other."""
    kept = {b"zero", b"a", b"b"} | ({b"old"} if "/t/head" not in case.new else set())
    return kept - set(state.files().values())


@pytest.mark.parametrize("name", CASES)
def test_a_crash_leaves_old_or_new_and_what_returned_is_durable(name: str) -> None:
    """I3, I13."""
    assert violations(CASES[name]) == []


@pytest.mark.parametrize("name", CASES)
def test_crashing_at_every_call_in_turn_leaves_the_states_that_were_watched(name: str) -> None:
    disk, store = warm_disk()
    watched: list[str] = []
    disk.watch = lambda disk: watched.append(disk.fingerprint())
    first = disk.calls
    CASES[name].act(store)
    for number, expected in enumerate(watched):
        disk, store = warm_disk()
        disk.crash_at(first + number + 1)
        with pytest.raises(Crash):
            CASES[name].act(store)
        assert disk.fingerprint() == expected


class WithoutFileSync(LocalStore):
    """Negative control: content is not synced before it gets its name."""

    def _write_new(self, path: str, data: bytes, *, durable: bool) -> None:
        super()._write_new(path, data, durable=False)


class WithoutDirectorySync(LocalStore):
    """Negative control: names are not synced."""

    def _sync_names(self, path: str) -> None:
        """Nothing."""


class WithoutParentSync(LocalStore):
    """Negative control: the directory is synced, its own name is not."""

    def _sync_names(self, path: str) -> None:
        self._sync_directory(path)


class WritesInPlace(LocalStore):
    """Negative control: the name is there before the content."""

    def put_if_absent(self, path: str, data: bytes, token: str) -> bool | None:
        try:
            self._write_new(path, data, durable=True)
        except FileExistsError:
            return False
        self._sync_names(path.rpartition("/")[0])
        return True


class DeletesBeforeSync(LocalStore):
    """Negative control: old names go before new ones are durable."""

    def move(self, moves: list[tuple[str, str]]) -> list[tuple[str, str]]:
        for source, target in moves:
            self._link(source, target)
            self._os.unlink(source)
            self._sync_directory(source.rpartition("/")[0])
        self.settle([target for _, target in moves])
        return []


@pytest.mark.parametrize(
    ("kind", "name", "what"),
    [
        (WithoutFileSync, "put_if_absent", "/t/log/1 is b''"),
        (WithoutFileSync, "replace", "/t/head is b'n'"),
        (WithoutDirectorySync, "put_if_absent", "after it returned"),
        (WithoutDirectorySync, "replace", "after it returned: {'/t/head': b'old'}"),
        (WithoutDirectorySync, "create, seal, settle", "after it returned"),
        (WithoutDirectorySync, "move", "after it returned"),
        (WithoutParentSync, "put_if_absent in a new directory", "after it returned"),
        (WithoutParentSync, "move to a new partition", "after it returned"),
        (WritesInPlace, "put_if_absent", "/t/log/1 is b''"),
        (DeletesBeforeSync, "move", "lost {b'a'}"),
    ],
)
def test_a_broken_store_is_caught(kind: type[LocalStore], name: str, what: str) -> None:
    found = violations(CASES[name], kind)
    assert any(what in violation for violation in found), found


def test_a_put_by_rename_would_be_caught_taking_a_name_twice() -> None:
    class Renames(LocalStore):
        def put_if_absent(self, path: str, data: bytes, token: str) -> bool | None:
            self.replace(path, data, token)
            return True

    suite = LocalContract()
    with pytest.raises(AssertionError):
        suite.test_put_if_absent_creates_once_and_keeps_the_first_content(on(SimDisk(), Renames), "/t")


def test_a_directory_above_that_could_not_be_synced_is_synced_by_the_retry() -> None:
    disk = SimDisk()
    store = on(disk)
    output = store.create("/a/b/c/f")
    output.write(b"1")
    output.seal()
    disk.fail_at(disk.calls + 3, errno.EIO)  # the third directory of four
    with pytest.raises(UnavailableError):
        store.settle(["/a/b/c/f"])
    store.settle(["/a/b/c/f"])
    assert disk.after_power_cut("lost").files() == {"/a/b/c/f": b"1"}


def test_a_file_whose_sync_failed_cannot_be_sealed_by_trying_again() -> None:
    disk = SimDisk()
    output = on(disk).create("/f")
    output.write(b"1")
    disk.fail_on("fsync", errno.EIO)
    for _ in range(2):
        with pytest.raises(UnavailableError):
            output.seal()
    output.discard()
    assert disk.files() == {}


def test_a_directory_made_again_after_prune_is_made_durable_again() -> None:
    disk = SimDisk()
    store = on(disk)
    for _ in range(2):
        store.put_if_absent("/t/a/b/f", b"1", "x")
        assert disk.after_power_cut("lost").files()["/t/a/b/f"] == b"1"
        store.delete("/t/a/b/f")
        store.prune("/t/a/b", "/t")
        sync_directory(disk, "/t")  # or the removed directory would still be durable


def test_a_directory_pruned_here_and_made_by_another_process_is_made_durable_here() -> None:
    disk = SimDisk()
    store = on(disk)
    store.put_if_absent("/t/a/0", b"", "x")
    store.delete("/t/a/0")
    store.prune("/t/a", "/t")
    sync_directory(disk, "/t")
    disk.mkdir("/t/a")  # by one that died before its sync
    store.put_if_absent("/t/a/f", b"1", "x")
    assert disk.after_power_cut("lost").files()["/t/a/f"] == b"1"


def test_a_name_that_a_move_found_taken_is_durable_when_the_move_returns() -> None:
    """I3: the caller may find it to be the very file, moved by a process that died before its sync."""
    disk, store = warm_disk()
    disk.link("/s/w/b", "/t/a")
    assert store.move([("/s/w/a", "/t/a")]) == [("/s/w/a", "/t/a")]
    assert disk.after_power_cut("lost").files()["/t/a"] == b"b"


def test_directories_made_by_two_at_the_same_time_serve_both() -> None:
    disk, store = warm_disk()
    made: list[str] = []

    def make(disk: SimDisk) -> None:
        if disk.trace[-1] == ("mkdir", "/t/k=1") and not made:
            made.append("/t/k=1/l=1")
            disk.mkdir("/t/k=1/l=1")

    disk.watch = make
    stage(store, "/t/k=1/l=1/f", b"1")
    assert made
    assert disk.after_power_cut("lost").files()["/t/k=1/l=1/f"] == b"1"


@pytest.mark.parametrize("prunes", [False, True])
def test_a_deleted_name_that_was_settled_stays_gone(prunes: bool) -> None:
    disk, store = warm_disk()
    for name in ("a", "b"):
        store.delete(f"/s/w/{name}")
    if prunes:
        store.prune("/s/w", "/")
    assert "/s/w/a" in disk.after_power_cut("lost").files()
    store.settle(["/s/w/a", "/s/w/b"])
    assert sorted(disk.after_power_cut("lost").files()) == ["/t/head", "/t/log/0"]


def test_a_hint_is_old_or_new_for_readers_and_costs_no_sync() -> None:
    disk, store = warm_disk()
    copies: list[SimDisk] = []
    disk.watch = lambda disk: copies.append(disk.after_kill())
    syncs = disk.syncs()
    store.put_hint("/t/head", b"new", "x")
    assert disk.syncs() == syncs
    assert {copy.files()["/t/head"] for copy in copies} == {b"old"}
    assert disk.files()["/t/head"] == b"new"


@pytest.mark.parametrize("name", CASES)
def test_each_verb_syncs_what_it_must_and_no_more(name: str) -> None:
    disk, store = warm_disk()
    syncs = disk.syncs()
    CASES[name].act(store)
    assert disk.syncs() - syncs == CASES[name].syncs


def test_a_put_in_a_warm_store_is_nine_calls_and_a_read_is_four() -> None:
    disk, store = warm_disk()
    disk.trace.clear()
    store.put_if_absent("/t/log/1", b"new", "x")
    assert [name for name, _ in disk.trace] == [
        "open",
        "write",
        "fsync",
        "close",
        "link",
        "open",
        "fsync",
        "close",
        "unlink",
    ]
    disk.trace.clear()
    store.read("/t/log/1", 99)
    assert [name for name, _ in disk.trace] == ["open", "fstat", "pread", "close"]


# -- errors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_a_fault_at_any_call_is_a_clear_error_and_the_next_attempt_succeeds(name: str, code: int) -> None:
    case = CASES[name]
    for fault in itertools.count(1):
        disk, store = warm_disk()
        disk.fail_at(disk.calls + fault, code)
        error = None
        try:
            case.act(store)
        except TxsinkError as caught:
            error = caught
        if not disk.delivered:
            break
        check_error(error, case, disk, code)
        if error and name.startswith(("put", "replace")):
            # Unavailable: nothing was changed; unknown: it was done.
            expected = case.new if isinstance(error, OutcomeUnknownError) else case.old
            assert seen(disk, case.new) in {"EIO": [case.old, case.new]}.get(errno.errorcode[code], [expected])
        disk.read_only = False
        if "/s/w/new" in disk.files():
            disk.unlink("/s/w/new")  # what a sweep does: a staged name is used once
        case.act(store)
        store.settle(list(case.new))  # what the log does with a slot that it finds to be its own
        assert seen(disk, case.new) == case.new
        assert seen(disk.after_power_cut("lost"), case.new) == case.new
    assert fault > 4


def check_error(error: TxsinkError | None, case: Case, disk: SimDisk, code: int) -> None:
    if error is None:
        # Only what is left for tidiness may fail unheard: the effect is there, durably.
        assert seen(disk.after_power_cut("lost"), case.new) == case.new
        return
    refusal = InvalidRequestError if code == errno.EROFS else UnavailableError
    assert isinstance(error, refusal | OutcomeUnknownError)
    assert error.context == {"errno": code}
    assert errno.errorcode[code] in error.found
    assert type(pickle.loads(pickle.dumps(error))) is type(error)


@pytest.mark.parametrize(
    ("code", "kind", "advice"),
    [
        (errno.ENOSPC, UnavailableError, "Make room, then retry"),
        (errno.EMFILE, UnavailableError, "Make room, then retry"),
        (errno.EROFS, InvalidRequestError, "Make it writable, then call again"),
        (errno.EACCES, InvalidRequestError, "Make it writable, then call again"),
        (errno.EIO, UnavailableError, "Retry when the disk answers again"),
        (errno.ESTALE, UnavailableError, "Retry when the disk answers again"),
        (errno.ELOOP, InvalidRequestError, "Name another path"),
        (errno.ENAMETOOLONG, InvalidRequestError, "Name another path"),
    ],
)
@pytest.mark.parametrize(
    ("name", "act"),
    [
        ("open", lambda store: store.read("/t/head", 9)),
        ("pread", lambda store: store.read("/t/head", 9)),
        ("fstat", lambda store: store.tail("/t/head", 9)),
        ("listdir", lambda store: store.list("/t")),
        ("stat", lambda store: store.list("/t")),
        ("unlink", lambda store: store.delete("/t/head")),
        ("stat", lambda store: store.same_place("/s", "/t")),
        ("stat", lambda store: store.resolve("/t")),
        ("open", lambda store: store.create("/t/f")),
        ("open", lambda store: store.put_if_absent("/t/0", b"", "x")),
        ("open", lambda store: store.settle(["/t/head"])),
        ("fsync", lambda store: store.settle(["/t/head"])),
        ("stat", lambda store: store.move([("/t/none", "/t/f")])),
    ],
)
def test_foreign_errors_arrive_as_ours(
    name: str, act: Callable[[Store], object], code: int, kind: type[TxsinkError], advice: str
) -> None:
    disk, store = warm_disk()
    disk.fail_on(name, code)
    with pytest.raises(kind) as caught:
        act(store)
    assert disk.delivered == 1
    assert caught.value.advice == advice
    assert f"{os.strerror(code)} (errno {errno.errorcode[code]})" in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)


def test_an_error_while_a_name_is_made_durable_is_unknown_and_the_name_is_there() -> None:
    for code in (errno.EIO, errno.ENOSPC, errno.EROFS):
        for verb in ("put_if_absent", "replace"):
            disk, store = warm_disk()
            getattr(store, verb)("/t/f", b"1", "x")
            disk.fail_at(disk.calls + 5, code)  # open, write, fsync, link or replace, fsync
            with pytest.raises(OutcomeUnknownError, match=f"write /t/g: {os.strerror(code)}"):
                getattr(store, verb)("/t/g", b"1", "y")
            assert disk.files()["/t/g"] == b"1"


def test_a_full_disk_is_said_so_and_leaves_no_rubbish() -> None:
    disk, store = warm_disk()
    before = disk.files()
    disk.capacity_bytes = disk.used_bytes() + 5
    for verb in (store.put_if_absent, store.replace, store.put_hint):
        with pytest.raises(UnavailableError, match=r"write /t/head: No space left .* Make room, then retry"):
            verb("/t/head", b"123456", "x")
        assert disk.files() == before
    output = store.create("/s/w/f")
    output.write(b"123456")
    for _ in range(2):
        with pytest.raises(UnavailableError, match="No space left"):
            output.seal()
    output.discard()
    assert disk.files() == before
    disk.capacity_bytes = None
    assert store.put_if_absent("/t/log/1", b"123456", "x") is True


def test_a_big_write_that_fails_leaves_the_file_failed() -> None:
    disk = SimDisk()
    disk.capacity_bytes = 1 << 20
    output = on(disk).create("/f")
    with pytest.raises(UnavailableError):
        output.write(bytes(3 << 20))
    disk.capacity_bytes = None
    with pytest.raises(UnavailableError):
        output.write(bytes(3 << 20))
    with pytest.raises(UnavailableError):
        output.seal()


def test_an_answer_lost_by_link_or_rename_is_unknown() -> None:
    for verb, call in (("put_if_absent", "link"), ("replace", "replace")):
        disk, store = warm_disk()
        before = disk.files()
        disk.fail_on(call, errno.EIO)
        with pytest.raises(OutcomeUnknownError, match="Input/output error"):
            getattr(store, verb)("/t/g", b"1", "x")
        assert disk.files() == before


def test_another_file_system_is_another_place_and_nothing_is_moved_there() -> None:
    disk, store = warm_disk()
    disk.mount("/m")
    assert not store.same_place("/m/t/deep", "/t")
    with pytest.raises(InvalidRequestError, match="EXDEV"):
        store.move([("/s/w/a", "/m/t/a")])
    assert disk.files()["/s/w/a"] == b"a"


def test_a_file_system_without_hard_links_is_refused() -> None:
    disk, store = warm_disk()
    before = disk.files()
    disk.has_hard_links = False
    for act in (
        lambda: store.put_if_absent("/t/log/1", b"1", "x"),
        lambda: store.move([("/s/w/a", "/t/a")]),
    ):
        with pytest.raises(InvalidRequestError, match=r"makes no hard link here .* Use a file system with hard links"):
            act()
    assert disk.files() == before


def test_no_permission_to_write_is_not_taken_for_a_lack_of_hard_links() -> None:
    disk, store = warm_disk()
    disk.fail_on("open", errno.EPERM)
    with pytest.raises(InvalidRequestError, match="Make it writable"):
        store.put_if_absent("/t/log/1", b"1", "x")


def test_a_directory_above_that_we_may_not_read_is_left_alone_and_the_own_one_is_not() -> None:
    disk = SimDisk()
    disk.mkdir("/closed")
    store = on(disk)
    opened = disk.open

    def closed(path: str, flags: int, mode: int = 0o777) -> int:
        if path == forbidden:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return opened(path, flags, mode)

    disk.open = closed  # type: ignore[method-assign]
    forbidden = "/closed"
    assert store.put_if_absent("/closed/t/0", b"", "x") is True
    forbidden = "/closed/t"
    with pytest.raises(OutcomeUnknownError, match="Permission denied"):
        store.put_if_absent("/closed/t/1", b"", "x")


# -- paths ----------------------------------------------------------------------------------------------------


def test_uris_are_resolved_to_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S9, S26."""
    monkeypatch.chdir(tmp_path)
    here = os.path.realpath(tmp_path)
    store = open_store(str(tmp_path))
    for uri in ("a ü", "./a ü/", f"{tmp_path}//a ü", f"file://{tmp_path}/a%20%C3%BC/", f"{tmp_path}/b/../a ü"):
        assert store.resolve(uri) == f"{here}/a ü"
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert store.resolve("link/t") == f"{here}/real/t"


@pytest.mark.parametrize("uri", ["", "a\x00b", "file://data/events", "file:data"])
def test_what_is_no_local_path_is_refused(uri: str) -> None:
    with pytest.raises(InvalidRequestError, match="Give a path, or file:///path"):
        LocalStore().resolve(uri)


def test_a_path_that_cannot_be_a_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for uri, found in (
        ("file", "it is a file, not a directory"),
        ("file/below", "Not a directory"),
        ("loop", "Too many levels of symbolic links"),
        ("loop/below", "Too many levels of symbolic links"),
        ("n" * 256, "File name too long"),
        ("n/" * 3000, "File name too long"),
    ):
        with pytest.raises(InvalidRequestError, match=found):
            LocalStore().resolve(f"{tmp_path}/{uri}")


def test_verbs_on_a_path_below_a_file_a_loop_or_nothing_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing" / "target")
    (tmp_path / "source").write_bytes(b"1")
    store = LocalStore()
    for directory, kind in (
        ("file", InvalidRequestError),
        ("loop", InvalidRequestError),
        ("n" * 256, InvalidRequestError),
        ("nowhere", UnavailableError),  # the target may be made some day
        ("nowhere/deep", UnavailableError),
    ):
        below = f"{tmp_path}/{directory}/x"
        for act in (
            lambda: store.put_if_absent(below, b"", "x"),  # noqa: B023 -- called at once
            lambda: store.put_hint(below, b"", "x"),  # noqa: B023
            lambda: store.replace(below, b"", "x"),  # noqa: B023
            lambda: store.create(below),  # noqa: B023
            lambda: store.move([(f"{tmp_path}/source", below)]),  # noqa: B023
        ):
            with pytest.raises(kind):
                act()
    assert (tmp_path / "source").read_bytes() == b"1"


def test_a_symbolic_link_below_the_root_is_a_file_and_no_way_out(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "f").write_bytes(b"1")
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "link").symlink_to(tmp_path / "out")
    assert LocalStore().list(f"{tmp_path}/t") == ["link"]
    assert LocalStore().delete(f"{tmp_path}/t/link") is True
    assert (tmp_path / "out" / "f").exists()


def test_a_file_that_vanishes_while_it_is_listed_is_not_listed() -> None:
    disk, store = warm_disk()
    disk.fail_on("stat", errno.ENOENT)
    assert store.list("/s/w") == ["b"]


def test_a_scheme_or_an_option_that_no_store_serves_is_refused() -> None:
    assert isinstance(open_store("file:///t"), LocalStore)
    with pytest.raises(InvalidRequestError, match="gopher"):
        open_store("gopher://t")
    with pytest.raises(InvalidRequestError, match=r"got \['key'\]"):
        open_store("/t", {"key": "secret"})


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    store = LocalStore()
    for act in (
        lambda: store.read(str(tmp_path), 9),
        lambda: store.tail(str(tmp_path), 9),
        lambda: store.delete(str(tmp_path)),
        lambda: store.replace(str(tmp_path), b"", "x"),
    ):
        with pytest.raises(InvalidRequestError, match="Is a directory"):
            act()


def test_a_put_whose_temporary_file_is_swept_makes_it_again_and_gives_up_in_the_end() -> None:
    for sweeps, outcome in ((2, True), (3, None)):
        disk, store = warm_disk()
        swept = 0

        def sweep(disk: SimDisk) -> None:
            nonlocal swept
            name = "/t/log/.x.tmp"
            if swept < sweeps and disk.files().get(name) == b"1" and disk.trace[-1][0] == "close":  # noqa: B023
                swept += 1
                disk.unlink(name)

        disk.watch = sweep
        if outcome:
            assert store.put_if_absent("/t/log/1", b"1", "x") is True
        else:
            with pytest.raises(UnavailableError, match="its temporary file vanished 3 times"):
                store.put_if_absent("/t/log/1", b"1", "x")
        assert swept == sweeps


def test_a_move_whose_directory_is_pruned_makes_it_again_and_gives_up_in_the_end() -> None:
    for prunes, kind in ((1, None), (2, UnavailableError)):
        disk, store = warm_disk()
        pruned = 0

        def prune(disk: SimDisk) -> None:
            nonlocal pruned
            if pruned < prunes and disk.trace[-1] == ("mkdir", "/t/k=1"):  # noqa: B023
                pruned += 1
                disk.rmdir("/t/k=1")

        disk.watch = prune
        if kind:
            with pytest.raises(kind, match="its directory vanished"):
                store.move([("/s/w/a", "/t/k=1/a")])
        else:
            assert store.move([("/s/w/a", "/t/k=1/a")]) == []
        assert disk.files()["/s/w/a" if kind else "/t/k=1/a"] == b"a"
