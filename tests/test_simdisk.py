"""The simulated disk is tested itself: it does what `os` does, and a power cut does what POSIX allows, no less."""

from __future__ import annotations

import errno
import os
import random
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from txsink.testing.simdisk import Crash, SimDisk
from txsink.testing.simimage import every_choice, some_choices

NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
LONG = "n" * 256
PATHS = ["a", "b", "a/c", "a/d", "b/c", "a/c/e", LONG, f"a/{LONG}"]

Script = list[tuple[str, str, str]]


def make(system: Any, path: str, data: bytes, *, synced: bool = True) -> None:
    handle = system.open(path, NEW, 0o666)
    try:
        assert system.write(handle, data) == len(data)
        if synced:
            system.fsync(handle)
    finally:
        system.close(handle)


def read(system: Any, path: str) -> bytes:
    handle = system.open(path, os.O_RDONLY)
    try:
        assert facts(system.fstat(handle)) == facts(system.stat(path))
        return bytes(system.pread(handle, 100, 1))
    finally:
        system.close(handle)


def sync(system: Any, path: str) -> None:
    handle = system.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        system.fsync(handle)
    finally:
        system.close(handle)


def facts(status: Any) -> tuple[object, ...]:
    if stat.S_ISDIR(status.st_mode):
        return ("directory",)
    return "file", status.st_nlink, status.st_size


# -- the same behaviour as os -------------------------------------------------------------------------------

CALLS: dict[str, Callable[[Any, str, str], object]] = {
    "make": lambda system, one, two: make(system, one, f"content of {one[-1]}".encode(), synced=False),
    "read": lambda system, one, two: read(system, one),
    "stat": lambda system, one, two: facts(system.stat(one)),
    "lstat": lambda system, one, two: facts(system.lstat(one)),
    "link": lambda system, one, two: system.link(one, two),
    "unlink": lambda system, one, two: system.unlink(one),
    "replace": lambda system, one, two: system.replace(one, two),
    "mkdir": lambda system, one, two: system.mkdir(one, 0o777),
    "rmdir": lambda system, one, two: system.rmdir(one),
    "listdir": lambda system, one, two: sorted(system.listdir(one)),
    "sync": lambda system, one, two: sync(system, one),
    "same": lambda system, one, two: system.stat(one).st_ino == system.stat(two).st_ino,
}


def outcome(system: Any, root: str, step: tuple[str, str, str]) -> object:
    name, one, two = step
    try:
        return CALLS[name](system, f"{root}/{one}", f"{root}/{two}")
    except OSError as error:
        return type(error), error.errno


def image(system: Any, root: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name in sorted(system.listdir(root)):
        path = f"{root}/{name}"
        if stat.S_ISDIR(system.lstat(path).st_mode):
            found |= {f"{name}/": b""} | {f"{name}/{below}": data for below, data in image(system, path).items()}
        else:
            found[name] = read(system, path)
    return found


def differences(script: Script) -> list[object]:
    """The calls that the simulated and the real disk answer differently, and the images if they differ."""
    disk = SimDisk()
    disk.mkdir("/r")
    found: list[object] = []
    with tempfile.TemporaryDirectory() as root:
        for step in script:
            try:
                simulated = outcome(disk, "/r", step)
            except NotImplementedError:
                continue  # a rename of a directory: refused before anything happened
            real = outcome(os, root, step)
            if real != simulated:
                found.append((step, real, simulated))
        if image(os, root) != image(disk, "/r"):
            found.append((image(os, root), image(disk, "/r")))
    return found


def test_every_call_on_every_state_of_a_name_answers_as_os_does() -> None:
    prepare = [("mkdir", "a", ""), ("make", "a/c", ""), ("make", "b", ""), ("link", "a/c", "a/d")]
    for name in CALLS:
        for one in PATHS:
            for two in PATHS:
                assert differences([*prepare, (name, one, two)]) == []


steps = st.tuples(st.sampled_from(sorted(CALLS)), st.sampled_from(PATHS), st.sampled_from(PATHS))


@settings(derandomize=True, deadline=None, max_examples=150)
@given(st.lists(steps, min_size=5, max_size=60))
@example([("mkdir", "a", "a"), ("make", "a/c", "a"), ("replace", "a/c", "a")])
def test_random_calls_answer_as_os_does_and_leave_the_same_files(script: Script) -> None:
    assert differences(script) == []


@pytest.fixture(params=["os", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, str]:
    """A system and a directory on it."""
    return (os, str(tmp_path)) if request.param == "os" else (SimDisk(), "")


def test_a_file_stays_readable_after_its_name_is_gone(place: tuple[Any, str]) -> None:
    system, root = place
    make(system, f"{root}/a", b"abc")
    handle = system.open(f"{root}/a", os.O_RDONLY)
    system.unlink(f"{root}/a")
    assert system.pread(handle, 9, 0) == b"abc"
    assert system.fstat(handle).st_nlink == 0
    system.close(handle)
    with pytest.raises(OSError, match="Bad file descriptor"):
        system.pread(handle, 9, 0)


def test_handles_refuse_what_they_were_not_opened_for(place: tuple[Any, str]) -> None:
    system, root = place
    new = system.open(f"{root}/a", NEW)
    reader = system.open(f"{root}/a", os.O_RDONLY)
    directory = system.open(f"{root}/", os.O_RDONLY)
    cases: list[tuple[Callable[[], object], int | None]] = [
        (lambda: system.pread(new, 1, 0), errno.EBADF),
        (lambda: system.write(reader, b"x"), errno.EBADF),
        (lambda: system.pread(directory, 1, 0), errno.EISDIR),
        (lambda: system.open(f"{root}/a", os.O_RDONLY | os.O_DIRECTORY), errno.ENOTDIR),
        (lambda: system.open(f"{root}/\x00", os.O_RDONLY), None),
    ]
    for act, code in cases:
        with pytest.raises((OSError, ValueError)) as caught:
            act()
        assert getattr(caught.value, "errno", None) == code
    for handle in (new, reader, directory):
        system.close(handle)


def test_realpath_is_absolute_and_normal() -> None:
    for path in ("/a/b", "/a//b/", "/a/./c/../b", "//a/b"):
        assert SimDisk.path.realpath(path) == os.path.realpath(path) == "/a/b"
    assert SimDisk.path.realpath("/") == "/"


def test_what_is_not_modelled_is_refused() -> None:
    disk = SimDisk()
    make(disk, "/a", b"")
    disk.mkdir("/d")
    for act in (
        lambda: disk.open("/a", os.O_WRONLY),
        lambda: disk.open("/b", os.O_CREAT | os.O_RDWR),
        lambda: disk.replace("/d", "/e"),
        lambda: disk.stat("/d/../a"),
    ):
        with pytest.raises(NotImplementedError):
            act()


# -- power cuts ---------------------------------------------------------------------------------------------


def outcomes(disk: SimDisk) -> set[tuple[tuple[str, bytes], ...]]:
    """The files after every possible power cut."""
    return {tuple(disk.after_power_cut(choice).files().items()) for choice in every_choice()}


def test_a_new_disk_with_synced_content_and_name_keeps_both() -> None:
    disk = SimDisk()
    make(disk, "/a", b"ab")
    sync(disk, "/")
    assert outcomes(disk) == {(("/a", b"ab"),)}


def test_unsynced_content_is_lost_whole_torn_or_zeros() -> None:
    disk = SimDisk()
    make(disk, "/a", b"ab", synced=False)
    sync(disk, "/")
    assert outcomes(disk) == {(("/a", data),) for data in (b"", b"a", b"a\x00", b"\x00\x00", b"ab")}
    assert disk.after_power_cut("lost").files() == {"/a": b""}
    assert disk.after_power_cut("kept").files() == {"/a": b"ab"}


def test_content_after_the_last_fsync_is_at_risk_and_content_before_it_is_not() -> None:
    disk = SimDisk()
    handle = disk.open("/a", NEW)
    sync(disk, "/")
    disk.write(handle, b"ab")
    disk.fsync(handle)
    disk.write(handle, b"c")
    assert outcomes(disk) == {(("/a", data),) for data in (b"ab", b"abc", b"ab\x00")}


def test_synced_content_under_an_unsynced_name_may_be_lost() -> None:
    disk = SimDisk()
    make(disk, "/a", b"ab")
    assert outcomes(disk) == {(), (("/a", b"ab"),)}


def test_an_unlink_that_was_not_synced_may_come_back() -> None:
    disk = SimDisk()
    make(disk, "/a", b"ab")
    sync(disk, "/")
    disk.unlink("/a")
    assert disk.files() == {}
    assert outcomes(disk) == {(), (("/a", b"ab"),)}


def test_unsynced_names_survive_in_any_combination() -> None:
    disk = SimDisk()
    make(disk, "/a", b"1")
    disk.link("/a", "/b")
    disk.unlink("/a")
    gone, a, b = (), ("/a", b"1"), ("/b", b"1")
    assert outcomes(disk) == {gone, (a,), (b,), (a, b)}


def test_an_unsynced_replace_leaves_old_or_new_never_neither() -> None:
    disk = SimDisk()
    make(disk, "/a", b"old")
    make(disk, "/b", b"new")
    sync(disk, "/")
    disk.replace("/b", "/a")
    assert outcomes(disk) == {(("/a", b"old"), ("/b", b"new")), (("/a", b"new"),)}


def test_a_replace_over_two_directories_is_one_operation_until_one_of_them_is_synced() -> None:
    disk = SimDisk()
    disk.mkdir("/d")
    make(disk, "/a", b"1")
    sync(disk, "/")
    disk.replace("/a", "/d/a")
    assert outcomes(disk) == {(("/a", b"1"),), (("/d/a", b"1"),)}
    sync(disk, "/")
    assert outcomes(disk) == {(), (("/d/a", b"1"),)}


def test_a_synced_directory_is_lost_with_all_it_holds_when_its_own_name_is_not_synced() -> None:
    disk = SimDisk()
    disk.mkdir("/d")
    make(disk, "/d/a", b"1")
    sync(disk, "/d")
    assert outcomes(disk) == {(), (("/d/a", b"1"),)}


def test_a_directory_whose_removal_was_not_synced_comes_back_with_its_durable_names() -> None:
    disk = SimDisk()
    disk.mkdir("/d")
    make(disk, "/d/a", b"1")
    sync(disk, "/d")
    sync(disk, "/")
    disk.unlink("/d/a")
    disk.rmdir("/d")
    assert disk.after_power_cut("lost").files() == {"/d/a": b"1"}
    assert outcomes(disk) == {(), (("/d/a", b"1"),)}


def test_hard_links_still_share_one_file_after_a_power_cut() -> None:
    disk = SimDisk()
    make(disk, "/a", b"1")
    disk.link("/a", "/b")
    after = disk.after_power_cut("kept")
    assert after.stat("/a").st_ino == after.stat("/b").st_ino
    assert after.stat("/a").st_nlink == 2


def test_a_failed_fsync_drops_the_content_though_the_next_one_succeeds() -> None:
    disk = SimDisk()
    handle = disk.open("/a", NEW)
    disk.write(handle, b"ab")
    disk.fail_at(3, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        disk.fsync(handle)
    disk.fsync(handle)
    sync(disk, "/")
    assert disk.after_power_cut("lost").files() == {"/a": b""}
    assert disk.after_kill().after_power_cut("lost").files() == {"/a": b""}


def test_the_same_seed_makes_the_same_power_cut() -> None:
    disk = SimDisk()
    for number in range(20):
        make(disk, f"/{number}", b"content", synced=number % 2 == 0)
    first, second = ([disk.after_power_cut(choice).fingerprint() for choice in some_choices(9, 5)] for _ in range(2))
    assert first == second
    assert len(set(first)) == 11


# -- death --------------------------------------------------------------------------------------------------


def two_files(disk: SimDisk) -> None:
    make(disk, "/a", b"1")
    try:
        make(disk, "/b", b"2")
    finally:
        disk.unlink("/a")


def test_the_dead_do_nothing_more_not_even_in_finally() -> None:
    disk = SimDisk()
    disk.crash_at(4)
    with pytest.raises(Crash):
        two_files(disk)
    assert disk.files() == {"/a": b"1"}
    with pytest.raises(Crash):
        disk.listdir("/")
    assert disk.calls == 4
    assert disk.delivered == 1


def test_a_crash_after_a_call_has_its_effect_and_no_return() -> None:
    disk = SimDisk()
    disk.crash_at(7, "after")
    with pytest.raises(Crash):
        two_files(disk)
    assert disk.files() == {"/b": b"2"}


def test_a_crash_after_a_call_that_failed_comes_with_the_next_call() -> None:
    disk = SimDisk()
    disk.crash_at(1, "after")
    with pytest.raises(FileNotFoundError):
        disk.unlink("/none")
    with pytest.raises(Crash):
        disk.listdir("/")


def test_a_crash_beyond_the_last_call_is_not_delivered() -> None:
    disk = SimDisk()
    disk.crash_at(8)
    two_files(disk)
    assert disk.calls == 7
    assert disk.delivered == 0


def test_after_a_kill_nothing_is_lost_and_nothing_is_synced() -> None:
    disk = SimDisk()
    make(disk, "/a", b"1", synced=False)
    after = disk.after_kill()
    assert after.files() == {"/a": b"1"}
    assert (after.calls, after.trace) == (0, [])
    assert after.after_power_cut("lost").files() == {}
    make(after, "/b", b"2")
    assert disk.files() == {"/a": b"1"}


def test_watching_one_run_gives_the_states_of_all_its_crashes() -> None:
    watched: list[str] = []
    disk = SimDisk()
    disk.watch = lambda disk: watched.append(disk.fingerprint())
    two_files(disk)
    crashed = []
    for call in range(1, 8):
        disk = SimDisk()
        disk.crash_at(call)
        with pytest.raises(Crash):
            two_files(disk)
        crashed.append(disk.fingerprint())
    assert watched == crashed
    assert len(set(watched)) == 7


def test_fingerprint_tells_durable_from_seen_and_ignores_inode_numbers() -> None:
    one, two = SimDisk(), SimDisk()
    make(two, "/x", b"")
    two.unlink("/x")
    sync(two, "/")
    sync(one, "/")
    for disk in (one, two):
        make(disk, "/a", b"1", synced=False)
    assert one.fingerprint() == two.fingerprint() == "0bf7ec1974d1caf94559e477354644d1"
    sync(one, "/")
    assert one.fingerprint() != two.fingerprint()
    assert one.files() == two.files()


# -- faults -------------------------------------------------------------------------------------------------


def test_a_planned_fault_comes_once_and_changes_nothing() -> None:
    disk = SimDisk()
    disk.fail_at(1, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        make(disk, "/a", b"1")
    assert disk.files() == {}
    make(disk, "/a", b"1")
    assert disk.delivered == 1


def test_a_disk_that_turned_read_only_stays_so_and_can_be_read() -> None:
    disk = SimDisk()
    make(disk, "/a", b"12")
    disk.fail_at(disk.calls + 1, errno.EROFS)
    for _ in range(2):
        with pytest.raises(OSError, match="Read-only"):
            disk.unlink("/a")
    assert read(disk, "/a") == b"2"


def test_the_next_call_of_a_name_fails_once() -> None:
    disk = SimDisk()
    disk.fail_on("listdir", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        disk.listdir("/")
    assert disk.listdir("/") == []


def test_a_full_disk_writes_short_then_refuses_and_a_deletion_makes_room() -> None:
    disk = SimDisk()
    disk.capacity_bytes = 5
    make(disk, "/a", b"123")
    handle = disk.open("/b", NEW)
    assert disk.write(handle, b"4567") == 2
    for act in (lambda: disk.write(handle, b"67"), lambda: disk.mkdir("/d"), lambda: disk.open("/c", NEW)):
        with pytest.raises(OSError, match="No space"):
            act()
    disk.unlink("/a")
    assert disk.write(handle, b"67") == 2


def test_short_writes() -> None:
    disk = SimDisk()
    disk.write_bytes_max = 2
    assert disk.write(disk.open("/b", NEW), memoryview(b"123")) == 2


def test_a_mount_is_another_device_and_a_disk_without_hard_links_says_so() -> None:
    disk = SimDisk()
    make(disk, "/a", b"1")
    disk.mount("/m")
    disk.mkdir("/m/d")
    assert disk.stat("/m/d").st_dev == disk.stat("/m").st_dev != disk.stat("/").st_dev
    for call in (disk.link, disk.replace):
        with pytest.raises(OSError, match="Invalid cross-device"):
            call("/a", "/m/d/a")
    disk.has_hard_links = False
    with pytest.raises(PermissionError):
        disk.link("/a", "/b")


def test_a_copy_costs_microseconds() -> None:
    disk = SimDisk()
    for number in range(200):
        make(disk, f"/{number}", bytes(100_000))
    # Counted, not timed: a copy of the disk holds the very same values.
    copy = disk.after_kill()
    assert all(copy._nodes[inode] is node for inode, node in disk._nodes.items())
    cut = disk.after_power_cut(random.Random(0))
    assert all(cut._nodes[inode].data is disk._nodes[inode].data for inode in cut._nodes if inode > 1)  # type: ignore[union-attr]
