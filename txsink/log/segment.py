"""Facts of log entries as rows: what readers and look-ups need of entries long gone. Pure.

Promises: `facts` gives the rows of one entry; segments hold the rows of a dense range of versions, in order;
`ranges(n)` says which segments cover the versions below `n`: O(log n) of them, each version merged O(log n) times.
Relies on: pyarrow for the bytes, which are Parquet; equal facts may have other bytes under another pyarrow.
Does not promise: that a segment exists, or is sound. It is made again from the segments it was merged of, or from the
entries: expiry leaves whatever stands nowhere else twice (`doubled`).

A fact's `kind` is add or remove (a file, at the version of its commit), commit, abort (with the version of the
prepare entry), claim or retire (a run), convert (its `path` is the new layout).
"""

from __future__ import annotations

import io
from itertools import pairwise
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from txsink import paths
from txsink.errors import CorruptError
from txsink.log.entry import Abort, AnyEntry, Claim, Commit, Convert, Prepare
from txsink.records import DataFile

BLOCK = 64
FANOUT = 8

SCHEMA = pa.schema(
    [
        ("version", pa.int64()),
        ("kind", pa.string()),
        ("writer", pa.string()),
        ("run", pa.string()),
        ("epoch", pa.int64()),
        ("prepared", pa.int64()),
        ("time_ms", pa.int64()),
        ("path", pa.string()),
        ("bytes", pa.int64()),
        ("digest", pa.string()),
        ("rows", pa.int64()),
        ("partition", pa.string()),
    ]
)


_KINDS = pa.array(["add", "remove", "commit", "abort", "claim", "retire", "convert"])
_THREADS_FROM_BYTES = 1 << 20
_partitions = msgspec.json.Decoder(dict[str, str | None])


class Fact(NamedTuple):
    """One row; the last five are of add and remove. No `rows`, no digest: another program's file in a Delta table."""

    version: int
    kind: str
    writer: str
    run: str
    epoch: int | None
    prepared: int | None
    time_ms: int
    path: str | None = None
    bytes: int | None = None
    digest: str | None = None
    rows: int | None = None
    partition: str | None = None

    def texts(self) -> dict[str, str | None]:
        """The partition values of a file, as text."""
        return _partitions.decode(self.partition or "{}")

    def file(self) -> DataFile:
        """The data file of an add or remove."""
        try:
            return DataFile(
                path=self.path or "",
                bytes=self.bytes or 0,
                digest=self.digest or "",
                rows=self.rows or 0,
                partition=self.texts(),
            )
        except ValueError as error:
            raise CorruptError(
                f"read what a segment says of log entry {self.version}",
                str(error),
                "Restore the segment from a copy, or see what `txsink repair` would do; nothing was changed",
                version=self.version,
            ) from error


def facts(entry: AnyEntry, prepare: Prepare | None) -> list[Fact]:
    """The rows of one entry; `prepare` is the one that a commit or abort resolves."""
    match entry:
        case Claim():
            rows = [_run(entry, "retire", run) for run in entry.retires]
            return [*rows, _run(entry, "claim", entry.run)]
        case Prepare():
            return [_run(entry, "claim", entry.run)] if entry.claims else []
        case Commit() if prepare is not None:
            removed = [_file(entry, "remove", prepare, file) for file in prepare.removes]
            added = [_file(entry, "add", prepare, file) for file in prepare.files]
            return [_end(entry, "commit"), *removed, *added]
        case Abort():
            return [_end(entry, "abort")]
        case Convert():
            return [Fact(entry.version, "convert", "", "", None, None, entry.time_ms, entry.layout)]
        case _:
            return []


def ranges(count: int) -> list[tuple[int, int]]:
    """The segments that cover all whole blocks of the versions below `count`, oldest first."""
    blocks, found, start = count // BLOCK, [], 0
    size = 1
    while size * FANOUT <= blocks:
        size *= FANOUT
    while size:
        while start + size <= blocks:
            found.append((start * BLOCK, (start + size) * BLOCK - 1))
            start += size
        size //= FANOUT
    return found


def children(first: int, last: int) -> list[tuple[int, int]]:
    """The segments a merged one is made of; empty for a single block, which is made of entries."""
    size = last - first + 1
    if size == BLOCK:
        return []
    step = size // FANOUT
    return [(start, start + step - 1) for start in range(first, last, step)]


def doubled(count: int) -> int:
    """Below which version, of `count`, all facts stand twice: in a merged segment and in those it was made of."""
    return count // (BLOCK * FANOUT) * (BLOCK * FANOUT)


def table(rows: list[Fact]) -> pa.Table:
    """Rows as an Arrow table."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(SCHEMA)
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], SCHEMA)


def rows_of(facts_table: pa.Table) -> list[Fact]:
    """The inverse of `table`."""
    return [Fact(*row) for row in zip(*(column.to_pylist() for column in facts_table.columns), strict=True)]


def chosen(facts_table: pa.Table, *kinds: str, writer: str | None = None) -> pa.Table:
    """The facts of some kinds, and of one writer if given. By masks: an expression sets a query engine going."""
    mask = pc.is_in(facts_table["kind"], value_set=pa.array(kinds))
    if writer is not None:
        mask = pc.and_(mask, pc.equal(facts_table["writer"], writer))
    return facts_table.filter(mask)


def commit_of(facts_table: pa.Table, writer: str, epoch: int) -> Fact | None:
    """The commit of an epoch (or the rewind to it); None when it was never committed, or was taken back."""
    known = chosen(facts_table, "commit", writer=writer)
    commits = rows_of(known.filter(pc.less_equal(known["epoch"], epoch)))
    # Only a rewind goes back (I4): when a lower epoch was committed after it, this one was taken back.
    return commits[-1] if commits and commits[-1].epoch == epoch else None


def replacements(facts_table: pa.Table, writer: str) -> list[Fact]:
    """The files the writer's epochs replaced: all that they removed, but for what rewinds took back."""
    found = rows_of(chosen(facts_table, "commit", "remove", writer=writer))
    commits = [fact for fact in found if fact.kind == "commit"]
    rewinds = {after.version for one, after in pairwise(commits) if (after.epoch or 0) < (one.epoch or 0)}
    return [fact for fact in found if fact.kind == "remove" and fact.version not in rewinds]


def encode(facts_table: pa.Table) -> bytes:
    """A table of facts as the bytes of a segment."""
    sink = io.BytesIO()
    pq.write_table(facts_table, sink, compression="zstd", write_page_checksum=True)
    return sink.getvalue()


def decode(data: bytes, path: str) -> pa.Table:
    """The facts in a segment, or CorruptError; none names a path outside of its table."""
    try:
        # Not `read_table`, which makes a dataset of the one file: twice the time.
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        found = file.read(use_threads=len(data) > _THREADS_FROM_BYTES).cast(SCHEMA)
        _require_facts(found, paths.parse_segment(path.rpartition("/")[2]) or (0, paths.VERSION_MAX))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptError(
            f"read the segment {path}",
            str(error),
            "Restore it from a copy, or see what `txsink repair` would do; nothing was changed",
            path=path,
        ) from error
    return found


def _require_facts(found: pa.Table, pair: tuple[int, int]) -> None:
    if any(found[name].null_count for name in ("version", "kind", "writer", "run", "time_ms")):
        raise ValueError("a fact lacks its version, kind, writer, run or time")
    versions = found["version"]
    is_within = pc.and_(pc.greater_equal(versions, pair[0]), pc.less_equal(versions, pair[1]))
    if not pc.all(is_within, min_count=0).as_py():
        raise ValueError("a fact is of a version that other segments hold")
    if not pc.all(pc.is_in(found["kind"], value_set=_KINDS), min_count=0).as_py():
        raise ValueError("a fact is of a kind that there is not")
    files = found.select(["path", "bytes", "rows", "partition"]).filter(pc.is_in(found["kind"], value_set=_KINDS[:2]))
    held = (files["path"].null_count, files["bytes"].null_count, files["rows"].null_count)
    if any(held) or not pc.all(pc.match_substring_regex(files["path"], paths.DATA_PATH), min_count=0).as_py():
        raise ValueError("a fact names a file outside of the table, or none")
    for text in pc.unique(files["partition"]).to_pylist():
        _partitions.decode(text or "{}")  # what it raises is a ValueError


def _run(entry: Claim | Prepare, kind: str, run: str) -> Fact:
    return Fact(entry.version, kind, entry.writer, run, None, None, entry.time_ms)


def _end(entry: Commit | Abort, kind: str) -> Fact:
    return Fact(entry.version, kind, entry.writer, entry.run, entry.epoch, entry.prepared, entry.time_ms)


def _file(entry: Commit, kind: str, prepare: Prepare, file: DataFile) -> Fact:
    return Fact(
        version=entry.version,
        kind=kind,
        writer=entry.writer,
        run=prepare.run,
        epoch=entry.epoch,
        prepared=entry.prepared,
        time_ms=entry.time_ms,
        path=file.path,
        bytes=file.bytes,
        digest=file.digest,
        rows=file.rows,
        partition=msgspec.json.encode(file.partition).decode(),
    )
