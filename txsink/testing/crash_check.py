"""The checker of the crash proof: what must hold of a disk, whatever happened to it. Reads bytes, not the engine.

Promises: `check_wounded` judges a disk as the crash left it, `check_healed` one that was recovered; the first thing
that is wrong is a `Violation` whose kind cites the invariant of `txsink.protocol.resolving`.
Relies on: `entry.decode` for bytes of entries, pyarrow for rows; what epochs hold is told by the scenario, and which of
them are committed by a model of its own (`crash_book`), not by `state.fold`. The engine's log reader is compared to it.
Does not promise: to find a second thing that is wrong.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import cast

import msgspec

from txsink import paths
from txsink.log import segment, state as states
from txsink.log.entry import Abort, Claim, Commit, Prepare
from txsink.records import DataFile
from txsink.testing.crash_book import (
    ROOT,
    STAGING,
    Book,
    Files,
    Row,
    Truth,
    Violation,
    book_of,
    decoded,
    ids_in,
    leaving,
    rows_of,
    slots_of,
)
from txsink.testing.crash_delta import check_delta, check_delta_healed

# -- readers ----------------------------------------------------------------------------------------------


@lru_cache(maxsize=1 << 14)
def identity_of(data: bytes) -> tuple[int, str]:
    """Size and digest of the footer region, as `txsink.staging.epoch_stager` defines a file's identity."""
    size = int.from_bytes(data[-8:-4], "little") + 8
    return len(data), hashlib.sha256(data[-size:]).hexdigest()


def directory_ids(files: Files) -> Counter[int]:
    """What a reader sees that takes every `*.parquet` below the root, hidden directories too, as DuckDB does."""
    return _counted(data for path, data in files.items() if path.startswith(f"{ROOT}/") and path.endswith(".parquet"))


def _counted(contents: Iterable[bytes]) -> Counter[int]:
    found: Counter[int] = Counter()
    for data in contents:
        found.update(ids_in(data))
    return found


def ids_of(rows: Iterable[Row]) -> Counter[int]:
    """Rows as ids."""
    return Counter(row for _, _, row in rows)


# -- the checks -------------------------------------------------------------------------------------------


def check_wounded(files: Files, truth: Truth) -> Book:
    """What must hold at every moment, before any recovery."""
    book = book_of(files, truth)
    _check_told(book, truth)
    if truth.is_delta:
        _check_derived(book, files)
        check_delta(files, truth, book)
        return book
    _check_files(book, files, truth)
    _check_derived(book, files)
    seen = directory_ids(files)
    if twice := [row for row, count in seen.items() if count > 1]:
        raise Violation("I1 seen twice", f"a directory reader sees {twice} twice")
    going = leaving(book)
    required = ids_of(row for row in book.visible if row not in going)
    coming = [one.prepare for one in book.waiting.values()] + list(book.aborting.values())
    allowed = required | ids_of(book.visible)
    for prepare in coming:
        allowed |= ids_of(rows_of(prepare, truth))
    if lost := required - seen:
        raise Violation("I1 rows lost", f"a directory reader misses {sorted(lost)}")
    if extra := seen - allowed:
        raise Violation("I1 rows not committed", f"a directory reader sees {sorted(extra)}, which nobody prepared")
    return book


def check_log_reader(files: Files, live: Mapping[str, DataFile], book: Book, truth: Truth) -> None:
    """The engine's log reader names exactly the committed files, and their rows are those of whole epochs (I2)."""
    # Statistics stand in prepare entries alone: readers of our log have no use for them.
    if {**live} != {path: msgspec.structs.replace(file, stats="") for path, file in book.files.items()}:
        raise Violation("I2 log reader", f"it sees {sorted(live)}, committed are {sorted(book.files)}")
    if truth.is_delta:
        return
    contents = [places[0] for file in live.values() if (places := _places(files, file))]
    going = set() if truth.keeps_replaced else leaving(book)
    expected = ids_of(row for row, path in book.visible.items() if row not in going or f"{ROOT}/{path}" in files)
    if (seen := _counted(contents)) != expected:
        raise Violation("I1 log reader", f"it reads {sorted(seen.elements())}, not {sorted(expected)}")


def check_healed(files: Files, truth: Truth, before: Files, book_before: Book) -> Book:
    """What must hold after recover and sweep; `before` is the disk they found."""
    book = check_wounded(files, truth)
    if truth.is_delta:
        check_delta_healed(files, truth, before, book)
    elif directory_ids(files) != ids_of(book.visible):
        raise Violation(
            "I1 directory reader", f"sees {sorted(directory_ids(files))}, not {sorted(ids_of(book.visible))}"
        )
    slots = slots_of(files)
    for version, data in slots_of(before).items():
        if version >= book.boundary and slots.get(version) != data:
            raise Violation("I7 entry changed", f"entry {version} is not what it was")
    if book.log[: len(book_before.log)] != book_before.log:
        raise Violation("I7 entry changed", "the log is not a continuation of what it was")
    if book.waiting or book.aborting:
        raise Violation("I9 unresolved", f"still waiting: {sorted(book.waiting)}, aborting: {sorted(book.aborting)}")
    if left := [path for path in files if path.startswith(f"{STAGING}/")]:
        raise Violation("I9 staged left-over", f"{left}")
    if left := [path for path in files if path.startswith(f"{ROOT}/") and paths.is_temporary(path)]:
        raise Violation("I9 temporary left-over", f"{left}")
    return book


def check_same(files: Files, before: Files) -> None:
    """I12: a second opening adds its claim and what can be made again, and changes nothing else."""
    made_again = (paths.STATE_DIRECTORY, paths.SEGMENT_DIRECTORY, paths.HEAD_PATH, paths.MARK_DIRECTORY)
    derived = tuple(f"{ROOT}/{path}" for path in made_again)
    changed = {path for path in files.keys() | before.keys() if files.get(path) != before.get(path)}
    changed = {path for path in changed if not path.startswith(derived)}
    for path in changed:
        is_new_entry = path.startswith(f"{ROOT}/{paths.LOG_DIRECTORY}/") and path not in before
        version = paths.parse_version(path.rpartition("/")[2]) if is_new_entry else None
        if version is None or not isinstance(decoded(files[path], version), Claim):
            raise Violation("I12 second recovery", f"it changed {path}")


def _check_told(book: Book, truth: Truth) -> None:
    """I3: what a call has promised by returning is in the log."""
    known = {
        "prepared": {epoch for epoch, _ in book.prepared},
        "committed": {epoch for epoch, mode in book.committed if mode != "rewind"},
        "rewound": {epoch for epoch, mode in book.committed if mode == "rewind"},
        "aborted": set(book.aborted),
    }
    for told in truth.told:
        if (told.writer, told.epoch) not in known[told.what]:
            raise Violation(f"I3 {told.what} was told", f"epoch {told.epoch} of {told.writer!r} is not")


def _check_files(book: Book, files: Files, truth: Truth) -> None:
    """I6, I8: what is committed, what is pending and what a retained version names lies where it should."""
    going = [file.path for one in book.waiting.values() if one.is_publishing for file in one.prepare.removes]
    for file in book.files.values():
        if truth.keeps_replaced or file.path not in going:
            _check_file(files, file, "I6 committed file")
    for file, _, version in book.removed.values():
        if truth.keeps_replaced and version > book.boundary:
            _check_file(files, file, "I8 replaced file")
    for waiting in book.waiting.values():
        prepare = waiting.prepare
        home = posixpath.normpath(f"{ROOT}/{prepare.staging}") if prepare.staging else STAGING
        directory = f"{home}/{paths.run_directory(prepare.writer, prepare.run)}"
        for at, file in enumerate(prepare.files):
            staged = f"{STAGING}/{prepare.uploads[at].id}" if prepare.uploads else directory
            found = [files.get(f"{staged}/{file.path}"), files.get(f"{ROOT}/{file.path}")]
            if not any(data is not None and _is_same(data, file) for data in found):
                raise Violation("I8 pending file", f"{file.path} is neither staged nor published as recorded")


def _check_derived(book: Book, files: Files) -> None:
    """Segments and summaries say what the entries say that are there: none was made of an entry that got lost."""
    for directory in (paths.SEGMENT_DIRECTORY, paths.STATE_DIRECTORY):
        start = f"{ROOT}/{directory}/"
        for name, data in ((path[len(start) :], data) for path, data in files.items() if path.startswith(start)):
            pair = paths.parse_segment(name)
            last = paths.parse_version(name) if pair is None else pair[1]
            if last is None:
                continue
            if last >= len(book.log):
                raise Violation("I7 made of a lost entry", name)
            if pair is None:
                state = states.decode(data)
                is_true = state is not None and state.digest == book.digests[last]
            else:
                is_true = _says(data, book.digests[last]) or _is_said(f"{start}{name}", data, book, *pair)
            if not is_true:
                raise Violation("I7 made of a lost entry", f"{name} does not say what the entries say")


_SAID_MAX = 1 << 14
_said: set[tuple[bytes, str]] = set()  # segments that were found true, with the digest of their last entry


def _says(data: bytes, digest: str) -> bool:
    return (data, digest) in _said


def _is_said(path: str, data: bytes, book: Book, first: int, last: int) -> bool:
    expected = []
    for entry in book.log[first : last + 1]:
        prepare = book.log[entry.prepared] if isinstance(entry, Commit | Abort) else None
        expected += segment.facts(entry, cast("Prepare | None", prepare))
    is_true = segment.rows_of(segment.decode(data, path)) == expected
    if is_true:
        if len(_said) >= _SAID_MAX:
            _said.clear()
        _said.add((data, book.digests[last]))
    return is_true


def _check_file(files: Files, file: DataFile, kind: str) -> None:
    found = _places(files, file)
    if not found:
        raise Violation(f"{kind} is missing", file.path)
    if not all(_is_same(data, file) for data in found):
        raise Violation(f"{kind} is another", file.path)


def _is_same(data: bytes, file: DataFile) -> bool:
    return identity_of(data) == (file.bytes, file.digest) and len(ids_in(data)) == file.rows


def _places(files: Files, file: DataFile) -> list[bytes]:
    """The bytes of a file under its name or under that of a replaced one."""
    if (data := files.get(f"{ROOT}/{file.path}")) is not None:
        return [data]
    start, end = f"{ROOT}/{paths.REMOVED_DIRECTORY}/", f"/{file.path}.removed"
    return [data for path, data in files.items() if path.startswith(start) and path.endswith(end)]
