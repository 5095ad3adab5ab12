"""The checker of Delta tables: a small reader of Delta's log, and a model of what each of its versions has to show.

Promises: `check_delta` judges a disk as the crash left it, `check_delta_healed` one that was recovered; what is wrong
first is a `Violation` whose kind cites the invariant of `txsink.protocol.resolving`. Every version of Delta's log is
judged, because readers may have stood at each of them (I2).
Relies on: `json` for commits and pyarrow for rows, not on the engine's reader of Delta's log; the book for what our own
log says; prepare entries for what an epoch replaces (`base`).
Does not promise: to read what other programs write (checkpoints, deletion vectors): here all commits are txsink's.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias
from urllib.parse import unquote

from txsink import paths
from txsink.log.entry import Commit, Prepare
from txsink.testing.crash_book import ROOT, Book, Files, Row, Truth, Violation, day_of, ids_in, rows_of

_COMMIT = re.compile(r"([0-9]{20})\.json")
_LOG = f"{ROOT}/{paths.DELTA_DIRECTORY}/"
_MARKS = f"{ROOT}/{paths.MARK_DIRECTORY}/"

Body: TypeAlias = dict[str, Any]


@dataclass
class DeltaBook:
    """Delta's log replayed: what is in the table at each version, and what was published and poisoned where."""

    files: list[dict[str, Body]] = field(default_factory=list)  # by version
    published: dict[int, int] = field(default_factory=dict)  # prepare version: Delta's version
    poisoned: dict[int, int] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)  # by writer: what Delta's own sink would go by


def delta_book_of(files: Files) -> DeltaBook:
    """Read every commit: none is torn, none is missing (I13), no file comes twice or goes without being there (I1)."""
    names = {path[len(_LOG) :]: data for path, data in files.items() if path.startswith(_LOG)}
    found = {int(match[1]): data for name, data in names.items() if (match := _COMMIT.fullmatch(name))}
    if strange := [name for name in names if not (_COMMIT.fullmatch(name) or paths.is_temporary(name))]:
        raise Violation("I13 strange file in Delta's log", f"{strange}")
    book, ids = DeltaBook(), set()
    for version in range(max(found, default=-1) + 1):
        if version not in found:
            raise Violation("I13 gap in Delta's log", f"version {version} of {max(found)} is missing")
        actions = actions_in(found[version], version)
        kinds = [next(iter(action)) for action in actions]
        if kinds[0] != "commitInfo" or (version == 0) is not ({"protocol", "metaData"} <= {*kinds}):
            is_evolution = version > 0 and "metaData" in kinds and "protocol" not in kinds
            if not is_evolution:
                raise Violation("I13 Delta commit", f"version {version} holds {kinds}")
        ids.add(actions[0]["commitInfo"]["txnId"])
        _take(book, actions, version)
    if len(ids) != len(found):
        raise Violation("I5 one commit twice in Delta's log", f"{len(found)} versions, {len(ids)} ids")
    return book


@lru_cache(maxsize=1 << 12)
def actions_in(data: bytes, version: int) -> list[dict[str, Body]]:
    """The actions of a commit."""
    try:
        found = [json.loads(line) for line in data.decode().splitlines()]
    except ValueError as error:
        raise Violation("I13 torn Delta commit", f"version {version}: {error}") from error
    if not found or not data.endswith(b"\n"):
        raise Violation("I13 torn Delta commit", f"version {version} has {len(data)} bytes")
    return found


def _take(book: DeltaBook, actions: list[dict[str, Body]], version: int) -> None:
    now = dict(book.files[-1]) if book.files else {}
    for action in actions:
        for kind, body in action.items():
            if kind == "remove" and now.pop(body["path"], None) is None:
                raise Violation("I1 removed twice", f"version {version} removes {body['path']}, which is not there")
            if kind == "txn":
                _take_txn(book, body, version)
    for action in actions:
        if (added := action.get("add")) is not None:
            if added["path"] in now:
                raise Violation("I1 added twice", f"version {version} adds {added['path']}, which is there")
            now[added["path"]] = added
    book.files.append(now)


def _take_txn(book: DeltaBook, body: Body, version: int) -> None:
    app, value = body["appId"], body["version"]
    if "lastUpdated" in body:
        raise Violation("I5 Delta may forget an epoch", f"version {version}: the record of {app} has a time")
    if not app.startswith("txsink"):
        book.epochs[app] = value
        return
    # Either one record for each writer, or one for a single abort: `txsink:<writer>`, `txsink-abort-<2v + 1>:<writer>`.
    known = book.poisoned if value % 2 else book.published
    if value // 2 in {**book.poisoned, **book.published}:
        raise Violation("I5 resolved twice", f"version {version} resolves the transaction {value // 2} again")
    known[value // 2] = version


# -- the checks -------------------------------------------------------------------------------------------


def check_delta(files: Files, truth: Truth, book: Book) -> DeltaBook:
    """What must hold at every moment of a Delta table."""
    delta = delta_book_of(files)
    _check_outcomes(delta, book, truth)
    for version, expected in enumerate(expected_rows(delta, book, truth)):
        seen = Counter(row for body in delta.files[version].values() for row in _rows_in(files, body))
        wanted = Counter(row for _, _, row in expected)
        if lost := wanted - seen:
            raise Violation("I1 rows lost", f"version {version} of the Delta log misses {sorted(lost)}")
        if extra := seen - wanted:
            raise Violation("I1 rows not committed", f"version {version} of the Delta log shows {sorted(extra)}")
    for waiting in book.waiting.values():
        for file in waiting.prepare.files:
            if f"{ROOT}/{file.path}" not in files:
                raise Violation("I8 pending file", f"{file.path} is not there")
    return delta


def _check_outcomes(delta: DeltaBook, book: Book, truth: Truth) -> None:
    """What Delta's log resolved is what our log resolved, as far as that has come."""
    prepares = {entry.version: entry for entry in book.log if isinstance(entry, Prepare)}
    committed = {entry.prepared: entry for entry in book.log if isinstance(entry, Commit)}
    for prepared in delta.published:
        if prepared not in prepares:
            raise Violation("I6 published what was never prepared", f"{prepared}")
        if prepared not in committed and prepared not in book.waiting:
            raise Violation("I1 published and aborted", f"the transaction prepared at {prepared}")
    for prepared in delta.poisoned:
        if prepared in committed:
            raise Violation("I1 poisoned and committed", f"the transaction prepared at {prepared}")
    for prepared, entry in committed.items():
        at = delta.published.get(prepared)
        if at is None and (prepares[prepared].files or prepares[prepared].base is not None):
            raise Violation("I6 committed and not in Delta's log", f"the transaction prepared at {prepared}")
        if at is not None and (entry.delta is None or entry.delta < at):
            raise Violation("I6 committed elsewhere", f"entry {entry.version} says {entry.delta}, not {at}")


def expected_rows(delta: DeltaBook, book: Book, truth: Truth) -> list[set[Row]]:
    """What every version of the Delta table has to show."""
    prepares = {entry.version: entry for entry in book.log if isinstance(entry, Prepare)}
    at = {version: prepares[prepared] for prepared, version in delta.published.items()}
    now: set[Row] = set()
    found: list[set[Row]] = []
    for version in range(len(delta.files)):
        if prepare := at.get(version):
            named = {file.path for file in prepare.removes}
            paths = {row: path for one in at.values() for row, path in rows_of(one, truth).items()}
            before = found[prepare.base] if prepare.base is not None else set()
            match prepare.mode:
                case "append":
                    doomed: set[Row] = set()
                case "rewind":
                    doomed = {row for row in now if row[0] == prepare.writer and row[1] > prepare.epoch}
                case _:
                    # What Delta's log showed, and what our own log had, when the epoch was prepared.
                    doomed = before | {row for row in now if paths[row] in named}
            if prepare.mode == "overwrite-partitions":
                days = {day_of(row) for _, _, row in rows_of(prepare, truth)}
                doomed = {row for row in doomed if day_of(row[2]) in days}
            now = (now - doomed) | set(rows_of(prepare, truth))
        found.append(now)
    return found


def _rows_in(files: Files, body: Body) -> tuple[int, ...]:
    """The rows of an active file, which is what its add action says it is (I6)."""
    path = unquote(body["path"])
    data = files.get(f"{ROOT}/{path}")
    if data is None:
        raise Violation("I6 active file is missing", path)
    if len(data) != body["size"]:
        raise Violation("I6 active file is another", f"{path} has {len(data)} bytes, not {body['size']}")
    rows = ids_in(data)
    stats = json.loads(body["stats"])
    bounds = [stats["minValues"].get("id"), stats["maxValues"].get("id")]
    if stats["numRecords"] != len(rows) or bounds != [min(rows), max(rows)] or stats["nullCount"].get("id") != 0:
        raise Violation("I6 statistics", f"{path} holds {rows}, its statistics are {body['stats']}")
    values = paths.parse_partitions(path)
    if body["partitionValues"] != values or any({"day": day_of(row)} != values for row in rows if values):
        raise Violation("I6 partition values", f"{path} holds {rows} under {body['partitionValues']}")
    return rows


def check_delta_healed(files: Files, truth: Truth, before: Files, book: Book) -> None:
    """What must hold of a Delta table after recover and sweep."""
    for path, data in before.items():
        if path.startswith(_LOG) and not paths.is_temporary(path) and files.get(path) != data:
            raise Violation("I7 Delta commit changed", path)
    delta = delta_book_of(files)
    # An epoch without rows in a table without columns stands in our log alone.
    commits = [entry for entry in book.log if isinstance(entry, Commit) and entry.prepared in delta.published]
    last = {entry.writer: entry.epoch for entry in commits}
    for writer, epoch in delta.epochs.items():
        if last.get(writer, -1) != epoch:
            raise Violation("I5 epoch in Delta's log", f"{epoch} of {writer!r}, our log says {last.get(writer)}")
    committed = {entry.prepared for entry in book.log if isinstance(entry, Commit)}
    if unfinished := set(delta.published) - committed:
        raise Violation("I9 published and not committed", f"{sorted(unfinished)}")
    named = {
        f"{ROOT}/{file.path}"
        for entry in book.log
        if isinstance(entry, Prepare) and entry.version in committed
        for file in entry.files
    }
    inside = [path for path in files if path.startswith(f"{ROOT}/") and not path.startswith((_LOG, f"{ROOT}/_txsink/"))]
    if left := [path for path in inside if path not in named]:
        raise Violation("I9 orphan in the table", f"{left}")
    for path in (path for path in files if path.startswith(_MARKS)):
        writer, run = paths.parse_mark(path[len(_MARKS) :]) or ("", "")
        # In a bucket a request of a dead run may still be done, so its mark goes with the recovery after this one.
        if book.holders.get(writer, ("", 0))[0] != run and truth.keeps_replaced:
            raise Violation("I9 mark of a run that is over", path)


def check_delta_reader(files: Files, seen: set[str]) -> None:
    """The engine's reader names exactly the files of the newest version (I2)."""
    versions = delta_book_of(files).files
    active = {unquote(path) for path in versions[-1]} if versions else set()
    if seen != active:
        raise Violation("I2 Delta reader", f"the engine sees {sorted(seen)}, active are {sorted(active)}")
