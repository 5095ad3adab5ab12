"""The book: what the log says, worked out anew by a model that knows only rows. Reads bytes, not the engine.

Promises: `book_of` reads every entry of a disk and says what is visible, pending, aborting, committed; the first entry
that may not stand where it stands is a `Violation` whose kind cites the invariant of `txsink.protocol.resolving`.
Relies on: `entry.decode` for the bytes of an entry; what an epoch holds is told by the scenario (`Truth`).
Does not promise: that files are where the log says. That is `crash_check`.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from txsink import paths
from txsink.errors import TxsinkError
from txsink.log import entry as entries
from txsink.log.entry import Abort, AnyEntry, Claim, Commit, Create, Maintenance, Prepare, WriterEntry
from txsink.records import DataFile

ROOT = "/d/t"
STAGING = "/d/.t.txsink"

Files: TypeAlias = dict[str, bytes]
Row: TypeAlias = tuple[str, int, int]  # writer, epoch, id
Epoch: TypeAlias = tuple[str, int]


class Violation(Exception):  # noqa: N818 -- it is a finding, not an error of the checker
    """An invariant does not hold: its number and name, and what was seen."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class Told(NamedTuple):
    """Something a call that returned has promised: what (prepared, committed, aborted, rewound), and of which epoch."""

    what: str
    writer: str
    epoch: int


@dataclass
class Truth:
    """What a scenario knows of its own doing."""

    rows: dict[Epoch, tuple[int, ...]] = field(default_factory=dict)  # what each epoch is to hold
    told: set[Told] = field(default_factory=set)
    history: dict[int, bytes] = field(default_factory=dict)  # entries seen before they were expired
    keeps_replaced: bool = True  # a bucket cannot move files: those that are replaced are deleted
    is_delta: bool = False  # the table has the Delta layout

    def fork(self) -> Truth:
        """A copy that may learn more."""
        return Truth(dict(self.rows), set(self.told), dict(self.history), self.keeps_replaced, self.is_delta)


def day_of(row: int) -> str:
    """The partition a row belongs to."""
    return "ab"[row % 2]


@lru_cache(maxsize=1 << 14)
def ids_in(data: bytes) -> tuple[int, ...]:
    """The ids of the rows of a Parquet file."""
    try:
        return tuple(pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True).read(["id"])["id"].to_pylist())
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Violation("I6 damaged file", f"{len(data)} bytes: {error}") from error


# -- the book: what the log says, worked out anew ---------------------------------------------------------


@dataclass
class Waiting:
    """A prepared transaction, and what it will take away."""

    prepare: Prepare
    doomed: dict[Row, str]  # with the path it lies under
    is_publishing: bool = False


@dataclass
class Book:
    """The log replayed by a model that knows only rows."""

    log: list[AnyEntry] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    boundary: int = 0
    is_partitioned: bool = False
    visible: dict[Row, str] = field(default_factory=dict)
    waiting: dict[int, Waiting] = field(default_factory=dict)
    aborting: dict[int, Prepare] = field(default_factory=dict)
    committed: list[tuple[Epoch, str]] = field(default_factory=list)  # with the mode
    aborted: list[Epoch] = field(default_factory=list)
    prepared: list[tuple[Epoch, str]] = field(default_factory=list)
    removed: dict[str, tuple[DataFile, int, int]] = field(default_factory=dict)  # file, prepared, committed at
    holders: dict[str, tuple[str, int]] = field(default_factory=dict)
    files: dict[str, DataFile] = field(default_factory=dict)
    retired: set[tuple[str, str]] = field(default_factory=set)  # writer and run


def book_of(files: Files, truth: Truth, last: int | None = None) -> Book:
    """Read every entry (up to `last`) (I7, I13), follow the rules (I4, I5, I10), and say what should be seen."""
    found = slots_of(files)
    read = {version: decoded(data, version) for version, data in found.items()}
    boundaries = [one.boundary for one in read.values() if isinstance(one, Maintenance) and one.boundary]
    book = Book(boundary=max(boundaries, default=0))
    previous = entries.GENESIS
    for version in range((max(found, default=-1) if last is None else last) + 1):
        data = found.get(version)
        if version < book.boundary:  # what is there may be a stalled writer's, in the slot of one that has gone
            data = truth.history.get(version, data)
        if data is None:
            raise Violation("I13 lost entry", f"entry {version} of {max(found)} is missing")
        entry = decoded(data, version)
        if entry.previous != previous:
            raise Violation("I7 broken chain", f"entry {version} does not follow the one before")
        previous = entries.digest(data)
        _take(book, entry, truth)
        book.log.append(entry)
        book.digests.append(previous)
    return book


def slots_of(files: Files) -> dict[int, bytes]:
    """The bytes in each slot of the log."""
    start = f"{ROOT}/{paths.LOG_DIRECTORY}/"
    names = ((path[len(start) :], data) for path, data in files.items() if path.startswith(start))
    return {
        at: data for name, data in names if (at := paths.parse_version(name)) is not None and data != entries.EXPIRED
    }


@lru_cache(maxsize=1 << 11)
def decoded(data: bytes, version: int) -> AnyEntry:
    """The entry in a slot."""
    try:
        return entries.decode(data, version)
    except TxsinkError as error:
        raise Violation("I13 torn entry", str(error)) from error


def _take(book: Book, entry: AnyEntry, truth: Truth) -> None:
    if isinstance(entry, Create) is not (entry.version == 0):
        raise Violation("I7 broken chain", f"entry {entry.version} is a {type(entry).__name__}")
    if isinstance(entry, Create):
        book.is_partitioned = bool(entry.partition_columns)
    if isinstance(entry, WriterEntry):
        _check_holder(book, entry)
    if isinstance(entry, Prepare):
        _prepare(book, entry, truth)
    elif isinstance(entry, entries.Publishing):
        book.waiting[entry.prepared].is_publishing = True
    elif isinstance(entry, Commit):
        _commit(book, entry, truth)
    elif isinstance(entry, Abort):
        waiting = book.waiting.pop(entry.prepared)
        if waiting.is_publishing:
            raise Violation("I8 aborted while it removed", f"entry {entry.version}")
        book.aborting[entry.prepared] = waiting.prepare
        book.aborted.append((entry.writer, entry.epoch))
    elif isinstance(entry, Maintenance):
        for version in entry.cleaned:
            book.aborting.pop(version, None)


def _check_holder(book: Book, entry: WriterEntry) -> None:
    run = (entry.run, entry.generation)
    if isinstance(entry, Claim) or (isinstance(entry, Prepare) and entry.claims):
        known = book.holders.get(entry.writer, ("", 0))
        if run not in (known, (entry.run, known[1] + 1)):
            raise Violation("I10 generation", f"entry {entry.version} claims {run} after {known}")
        if (entry.writer, entry.run) in book.retired:
            raise Violation("I10 retired run wrote", f"entry {entry.version} claims for {run} again")
        gone = entry.retires if isinstance(entry, Claim) else ()
        book.retired |= {(entry.writer, one) for one in (known[0], *gone) if one != entry.run}
        book.holders[entry.writer] = run
    elif book.holders.get(entry.writer) != run:
        raise Violation("I10 retired run wrote", f"entry {entry.version} is of {run}")


def _prepare(book: Book, entry: Prepare, truth: Truth) -> None:
    epoch = (entry.writer, entry.epoch)
    last = _last(book, entry.writer)
    book.prepared.append((epoch, entry.mode))
    doomed = dict(book.visible)
    for waiting in book.waiting.values():
        if waiting.prepare.writer == entry.writer:
            doomed = {row: path for row, path in doomed.items() if row not in waiting.doomed}
            doomed |= rows_of(waiting.prepare, truth)
    match entry.mode:
        case "append":
            doomed = {}
        case "overwrite-partitions":
            days = {day_of(row) for row in truth.rows[epoch]}
            if book.is_partitioned or not days:  # else all rows are of one partition
                doomed = {row: path for row, path in doomed.items() if day_of(row[2]) in days}
        case "rewind":
            doomed = {row: at for row, at in doomed.items() if row[0] == entry.writer and row[1] > entry.epoch}
    if entry.mode != "rewind" and entry.epoch <= max([last, *_waiting(book, entry.writer)]):
        raise Violation("I4 epochs do not grow", f"entry {entry.version} prepares epoch {entry.epoch} after {last}")
    book.waiting[entry.version] = Waiting(entry, doomed)


def _commit(book: Book, entry: Commit, truth: Truth) -> None:
    waiting = book.waiting.pop(entry.prepared, None)
    if waiting is None:
        raise Violation("I5 committed twice", f"entry {entry.version} commits {entry.prepared}, which is not pending")
    prepare = waiting.prepare
    for row in taken_by(book, waiting):
        del book.visible[row]
    for row, path in rows_of(prepare, truth).items():
        if row in book.visible:
            raise Violation("I5 committed twice", f"entry {entry.version} commits {row} again")
        book.visible[row] = path
    for file in prepare.removes:
        # One that was pending when this was prepared, and was aborted since, never came.
        if book.files.pop(file.path, None) is not None:
            book.removed[file.path] = (file, prepare.version, entry.version)
    book.files |= {file.path: file for file in prepare.files}
    book.committed.append(((entry.writer, entry.epoch), prepare.mode))


def taken_by(book: Book, waiting: Waiting) -> list[Row]:
    """The visible rows that the transaction takes away. An epoch that was rewound and written again is another file."""
    return [row for row, path in waiting.doomed.items() if book.visible.get(row) == path]


def leaving(book: Book) -> set[Row]:
    """The visible rows whose files are being taken away."""
    return {row for one in book.waiting.values() if one.is_publishing for row in taken_by(book, one)}


def rows_of(prepare: Prepare, truth: Truth) -> dict[Row, str]:
    """The rows a transaction is to add, and the path each lies under."""
    if prepare.mode == "rewind":
        return {}
    where = {(file.partition.get("day") if file.partition else None): file.path for file in prepare.files}
    rows = truth.rows[prepare.writer, prepare.epoch]
    return {(prepare.writer, prepare.epoch, row): where.get(day_of(row), where.get(None, "")) for row in rows}


def _last(book: Book, writer: str) -> int:
    mine = [(epoch, mode) for (name, epoch), mode in book.committed if name == writer]
    return mine[-1][0] if mine else -1


def _waiting(book: Book, writer: str) -> list[int]:
    return [one.prepare.epoch for one in book.waiting.values() if one.prepare.writer == writer]
