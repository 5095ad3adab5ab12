"""The programs that crash: a world is a disk or bucket with processes; a program is one writer that wants to get on.

Promises: the same calls in the same order with the same ids, whenever the store behaves the same; what a call has
promised by returning is in `truth.told` before the next call begins; a program does what a reasonable one does: it
tries again when the store was unavailable, opens its writer again after any other failure, and stops when fenced.
Relies on: `opening.open_sink` over any store, with clock and ids given from here.
Does not promise: to judge anything. That is `crash_check`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from types import ModuleType
from typing import Any, TypeAlias, TypeVar, cast

import pyarrow as pa

from txsink import paths, records
from txsink.choices import OnNewer
from txsink.environment import Stamps
from txsink.errors import CorruptError, FencedError, TxsinkError, UnavailableError
from txsink.log import entry, log, segment
from txsink.log.log import Log
from txsink.store.local.store import LocalStore
from txsink.store.protocol import Store
from txsink.testing.crash_book import ROOT, Told, Truth, day_of
from txsink.testing.names import DIRECTORY, MOUNTED, Names, mounted
from txsink.testing.objects import Objects
from txsink.testing.simdisk import SimDisk
from txsink.writing.opening import open_sink
from txsink.writing.transaction import Transaction
from txsink.writing.writer import Writer

_T = TypeVar("_T")
Disk: TypeAlias = SimDisk | Objects | Names

START_MS = 1_760_000_000_000
TRIES = 3

OTHER_ROOT = ROOT.replace(DIRECTORY, MOUNTED, 1)  # another spelling of the same table
_LOG = f"{ROOT}/{paths.LOG_DIRECTORY}/"


def stamps_of(life: int) -> Stamps:
    """Clock and ids of one process: no two processes share an id, and nobody waits."""
    ids, times = itertools.count(), itertools.count(START_MS)
    return Stamps(lambda: next(times), lambda: f"{life:04x}{next(ids):06x}", lambda _: None)


@cache
def rows_table(rows: tuple[int, ...]) -> pa.Table:
    """The rows of an epoch as data."""
    return pa.table({"id": pa.array(rows, pa.int64()), "day": [day_of(row) for row in rows]})


@contextmanager
def small_blocks() -> Iterator[None]:
    """Summaries and segments every four entries, merged by twos, hints every third: a log grows old in no time."""
    sizes = [(segment, "BLOCK", 4), (log, "BLOCK", 4), (segment, "FANOUT", 2), (log, "HINT_EVERY", 3)]
    before = [getattr(module, name) for module, name, _ in sizes]
    try:
        for module, name, size in sizes:
            setattr(module, name, size)
        yield
    finally:
        for (module, name, _), size in zip(sizes, before, strict=True):
            setattr(module, name, size)


#: Pure functions of bytes or text, asked the same all the time, with what they said. One run holds a few hundred
#: entries, and two runs share few: to remember more costs more than it saves.
_REMEMBERED: tuple[tuple[ModuleType, str, Callable[..., Any]], ...] = tuple(
    (module, name, lru_cache(size)(getattr(module, name)))
    for module, name, size in (
        (entry, "decode", 1 << 11),
        (entry, "digest", 1 << 11),
        (entry, "seal", 1 << 11),
        (entry, "unseal", 1 << 11),
        (records, "is_data_path", 1 << 11),
        (paths, "entry_path", 1 << 10),
        (paths, "is_same_run", 1 << 10),
        (paths, "parse_version", 1 << 10),
        (paths, "run_directory", 1 << 10),
        (segment, "decode", 1 << 8),
    )
)


@contextmanager
def remembered() -> Iterator[None]:
    """Pure functions remember what they said: every entry and segment is decoded once."""
    before = [getattr(module, name) for module, name, _ in _REMEMBERED]
    try:
        for module, name, remembering in _REMEMBERED:
            setattr(module, name, remembering)
        yield
    finally:
        for (module, name, _), former in zip(_REMEMBERED, before, strict=True):
            setattr(module, name, former)


class World:
    """A disk, the processes that use it, and what they were told. `table_layout`: that of its table."""

    def __init__(self, disk: Disk, truth: Truth | None = None, life: int = 0, table_layout: str = "parquet") -> None:
        self.disk = disk
        if truth is None:
            truth = Truth(keeps_replaced=not isinstance(disk, Objects), is_delta=table_layout == "delta")
        self.layout = "delta" if truth.is_delta else "parquet"
        self.truth = truth
        self.life = life
        self.wrap: Callable[[Store], Store] = lambda store: store

    def store(self) -> Store:
        """The disk as a new process has it."""
        if isinstance(self.disk, SimDisk):
            return self.wrap(LocalStore(cast("ModuleType", self.disk)))
        return self.wrap(self.disk.store())

    def sink(self, writer: str = "w", *, is_one_shot: bool = False, is_mounted: bool = False, **options: Any) -> Writer:
        """A new process opens the writer; `is_mounted`: by the table's other name."""
        self.life += 1
        store, root = (mounted(self.store()), OTHER_ROOT) if is_mounted else (self.store(), ROOT)
        chosen = {"layout": self.layout, **options}
        return open_sink(store, stamps_of(self.life), root, writer, chosen, is_one_shot=is_one_shot)

    def open(self, writer: str = "w", **options: Any) -> Program:
        """A new program opens the writer."""
        return Program(self, writer, options)

    def put(self, path: str, data: bytes) -> None:
        """Another program writes a file, and syncs nothing."""
        if isinstance(self.disk, SimDisk):
            LocalStore(cast("ModuleType", self.disk))._write_new(path, data, durable=False)
        else:
            self.disk.store().replace(path, data, "")

    def copy(self, root: str) -> None:
        """Copy the table as it is at this moment, as `cp -r` does, but for what it has staged."""
        for path, data in self.disk.files().items():
            if path.startswith(f"{ROOT}/"):
                self.put(f"{root}{path.removeprefix(ROOT)}", data)

    def log(self) -> Log:
        """The log, not read yet, in a new process."""
        self.life += 1
        return Log(self.store(), ROOT, stamps_of(self.life))

    def reader(self) -> Log:
        """The log, read."""
        found = self.log()
        found.load()
        return found

    def tell(self, what: str, writer: str, epoch: int) -> None:
        """Note what a call has just promised."""
        self.truth.told.add(Told(what, writer, epoch))

    def remember(self) -> None:
        """Keep the entries as they are now: expiry is about to delete some."""
        for path, data in self.disk.files().items():
            if path.startswith(_LOG) and (version := paths.parse_version(path[len(_LOG) :])) is not None:
                # The first wins: a writer that slept may have put another one into the slot since it expired.
                self.truth.history.setdefault(version, data)

    def remember_before(self, verb: str, path: str) -> None:
        """Keep the entry that this call is about to expire."""
        if verb in {"delete", "replace"} and path.startswith(_LOG):
            version, data = paths.parse_version(path[len(_LOG) :]), self.disk.files().get(path)
            if version is not None and data is not None and data != entry.EXPIRED:
                # The first wins: a writer that slept may have put another one into the slot since it expired.
                self.truth.history.setdefault(version, data)


class Program:
    """One writer's program."""

    def __init__(self, world: World, writer: str, options: dict[str, Any]) -> None:
        self._world = world
        self._options = options
        self.writer = writer
        self.has_failed = False  # recovery may have resolved what was pending, so fewer promises can be told
        self.sink = self._opened()

    def begin(self, epoch: int, rows: tuple[int, ...] | None = None, **options: Any) -> Transaction:
        """Begin and stage an epoch of two rows, or of `rows`; no second attempt."""
        if rows is None:
            start = 100 * epoch + (10_000 if self.writer != "w" else 0)
            rows = (start, start + 1)
        self._world.truth.rows.setdefault((self.writer, epoch), rows)
        txn = self.sink.begin(epoch, **options)
        try:
            if rows:
                txn.write(rows_table(rows))
        except TxsinkError:
            txn.abort()
            raise
        return txn

    def stage(self, epoch: int, rows: tuple[int, ...] | None = None) -> None:
        """Die between staging and preparing: the files are whole, and nothing names them."""

        def stage() -> None:
            txn = self.begin(epoch, rows)
            if txn._stager is not None:
                txn._stager.finish()

        self.persist(stage)

    def prepare(self, epoch: int, rows: tuple[int, ...] | None = None, **options: Any) -> None:
        """Stage and prepare."""
        self.persist(lambda: self.begin(epoch, rows, **options).prepare())
        self.tell("prepared", epoch)

    def commit(self, epoch: int, rows: tuple[int, ...] | None = None, **options: Any) -> None:
        """One whole epoch."""
        self.persist(lambda: self.begin(epoch, rows, **options).commit())
        self.tell("prepared", epoch)
        self.tell("committed", epoch)

    def finish(self, *epochs: int) -> None:
        """Commit what is prepared up to the last of the epochs."""
        self.persist(lambda: self.sink.commit(epochs[-1]))
        for epoch in epochs:
            self.tell("committed", epoch)

    def abort(self, epoch: int) -> None:
        """Drop a prepared epoch."""
        self.persist(lambda: self.sink.abort(epoch))
        if not self.has_failed:
            self.tell("aborted", epoch)

    def recover(self, up_to: int, on_newer: OnNewer) -> None:
        """Restore at an epoch, as a program does that was opened with `recover=False`."""
        self.persist(lambda: self.sink.recover(up_to, on_newer))
        self._options.pop("recover")  # if it has to open again, everything pending is to be committed

    def tell(self, what: str, epoch: int) -> None:
        """Note what a call has just promised."""
        self._world.tell(what, self.writer, epoch)

    def persist(self, act: Callable[[], _T]) -> _T:
        """Do it, in spite of the store."""
        for attempt in range(TRIES):
            try:
                return act()
            except (FencedError, CorruptError):
                raise
            except TxsinkError as error:
                if attempt == TRIES - 1:
                    raise
                self.has_failed = True
                if attempt or not isinstance(error, UnavailableError):
                    self.sink = self._opened()
        raise AssertionError

    def _opened(self) -> Writer:
        for attempt in range(TRIES):
            try:
                return self._world.sink(self.writer, **self._options)
            except CorruptError:
                raise  # nothing is damaged here, so trying again would hide a false alarm
            except TxsinkError:
                if attempt == TRIES - 1:
                    raise
                self.has_failed = True
        raise AssertionError
