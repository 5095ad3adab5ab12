"""The crash proof for any sink: the checkers of the engine judge programs that are not txsink.

Promises: `crashes`, `takeovers` and `errors` stop at the first `Violation`: kills and power cuts at every changing call
and again in the recovery from it; another run that takes over in the middle of any call; a call that fails after, or
before, it did its work. After each, a new process opens the sink and its source replays from the first epoch that was
not acknowledged; `check_wounded` and `check_healed` judge, the very ones that judge the engine.
Relies on: a sink that writes the log of the format, or none: then `Adapter.book` says what a listing says.
Does not promise: anything of the reader through the log; that one is the engine's own.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import pytest

from crash import Moment, images
from naive_sinks import WRITER, Careful, FencedOff, Shell
from txsink.errors import TxsinkError
from txsink.log.entry import Prepare
from txsink.testing import crash_book, crash_check
from txsink.testing.crash_book import ROOT, STAGING, Book, Files, Told, Truth, Violation, Waiting
from txsink.testing.simdisk import SimDisk

EPOCHS = 3
SECONDS_EACH = 29  # of the crashes in a recovery, one in so many
ROWS = {epoch: (100 * epoch, 100 * epoch + 1) for epoch in range(EPOCHS)}


class Adapter(NamedTuple):
    """A kind of sink as the checkers see it."""

    sink: type[Careful]

    def book(self, files: Files, truth: Truth, last: int | None = None) -> Book:
        """What is committed: what the log says; without one, every epoch of which a file lies there."""
        if self.sink.has_log:
            return crash_book.book_of(files, truth, last)
        book = Book()
        present = {path.removeprefix(f"{ROOT}/part-") for path in files if path.startswith(f"{ROOT}/part-")}
        for writer, epoch in sorted(truth.rows):
            if any(name.startswith(f"{epoch}-") for name in present):
                book.committed.append(((writer, epoch), "append"))
                book.visible |= {(writer, epoch, row): "" for row in truth.rows[writer, epoch]}
            else:
                book.waiting[epoch] = Waiting(_unwritten(epoch), {})
        return book

    @contextmanager
    def judged(self) -> Iterator[None]:
        """The checkers read this sink's log."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(crash_check, "book_of", self.book)
            yield


def _unwritten(epoch: int) -> Prepare:
    return Prepare(
        format=1, version=epoch, time_ms=0, write_id="00", previous="00", table_id="t", birth="00",
        writer=WRITER, run="0", generation=1, epoch=epoch, claims=True, mode="append",
        files=(), removes=(), columns=(), metadata={},
    )  # fmt: skip


def work(adapter: Adapter, disk: SimDisk, truth: Truth, life: int, *, until: int = EPOCHS) -> None:
    """A process: open, then every epoch that was not acknowledged."""
    sink = adapter.sink(Shell(disk, life))
    sink.open()
    for epoch in range(len(truth.told), until):
        truth.rows[WRITER, epoch] = ROWS[epoch]
        sink.commit(epoch, ROWS[epoch])
        truth.told.add(Told("committed", WRITER, epoch))


def new_disk() -> SimDisk:
    """A disk with the table's directories."""
    disk = SimDisk()
    for path in ("/d", ROOT, STAGING):
        Shell(disk, 0).mkdirs(path)
    return disk


def moments(adapter: Adapter, disk: SimDisk, truth: Truth, life: int) -> list[Moment]:
    """The disk before every changing call of a process."""
    found: list[Moment] = []
    disk.watch = lambda now: found.append(Moment(now.after_kill(), truth.fork()))
    try:
        work(adapter, disk, truth, life)
    except (OSError, TxsinkError) as error:
        disk.watch = None
        crash_check.check_wounded(disk.files(), truth)  # what is broken says more than that work is refused
        raise Violation("I14 work refused", f"{type(error).__name__}: {error}") from error
    finally:
        disk.watch = None
    return [*found, Moment(disk.after_kill(), truth.fork())]


def judge(adapter: Adapter, moment: Moment, life: int) -> list[Moment]:
    """Check the wounded disk, let a new process work on it to the end, check that."""
    with adapter.judged():
        before = moment.disk.files()
        book = crash_check.check_wounded(before, moment.truth)
        disk, truth = moment.disk.after_kill(), moment.truth.fork()
        assert isinstance(disk, SimDisk)
        found = moments(adapter, disk, truth, life)
        crash_check.check_healed(disk.files(), truth, before, book)
    return found


def crashes(adapter: Adapter) -> int:
    """Kills and power cuts, at every call and in the recovery from them; how many disks were judged."""
    seen: set[tuple[str, int]] = set()

    def judged(moment: Moment, seed: str, life: int) -> Iterator[list[Moment]]:
        for image in images(moment, seed, 2):
            mark = (image.fingerprint(), len(moment.truth.told))
            if mark not in seen:
                seen.add(mark)
                yield judge(adapter, Moment(image, moment.truth), life)

    for at, moment in enumerate(moments(adapter, new_disk(), Truth(), 1)):
        for again in judged(moment, f"naive-{at}", 2):
            for second in again[at % SECONDS_EACH :: SECONDS_EACH]:
                list(judged(second, f"naive-{at}-second", 3))
    return len(seen)


def takeovers(adapter: Adapter) -> int:
    """Another run takes over in the middle of every changing call, writes an epoch, and the first one goes on."""
    call = 0
    while True:
        call += 1
        disk, truth = new_disk(), Truth()
        first = adapter.sink(Shell(disk, 1))
        first.open()
        for epoch in range(2):
            truth.rows[WRITER, epoch] = ROWS[epoch]
        first.commit(0, ROWS[0])
        truth.told.add(Told("committed", WRITER, 0))
        rival = _Rival(call, lambda disk=disk, truth=truth: work(adapter, disk, truth, 2, until=2))  # type: ignore[misc]
        disk.watch = rival
        with suppress(FencedOff, FileNotFoundError):  # fenced, or its files were swept or published under it
            first.commit(1, ROWS[1])
            truth.told.add(Told("committed", WRITER, 1))
        disk.watch = None
        if not rival.has_come:
            return call - 1
        judge(adapter, Moment(disk.after_kill(), truth), 3)


class _Rival:
    """Acts at one call that is watched."""

    def __init__(self, call: int, act: Callable[[], None]) -> None:
        self._call, self._act = call, act
        self.has_come = False

    def __call__(self, disk: SimDisk) -> None:
        self._call -= 1
        if self._call == 0:
            self.has_come = True
            self._act()


def errors(adapter: Adapter) -> int:
    """Every changing call fails once; the process ends with that error."""
    for call in range(1, 1000):
        disk, truth = new_disk(), Truth()
        disk.fail_at(disk.calls + call, errno.EIO)
        with suppress(OSError):
            work(adapter, disk, truth, 1)
        if not disk.delivered:
            return call - 1
        judge(adapter, Moment(disk.after_kill(), truth), 2)
    raise AssertionError
