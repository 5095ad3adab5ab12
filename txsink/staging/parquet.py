"""One Parquet file: written through an Output, recognised by its identity, checked when in doubt.

Promises: `seal` makes the file durable and returns its record, taken from the very bytes that were written; a file
that was abandoned gets no more bytes; `verify` finds a file that is missing, shortened, lengthened, or has another
footer, and, when it was touched after it was sealed, damage in any page.
Relies on: pyarrow's Parquet writer and its page checksums; SHA-256.
Does not promise: to notice bits that rot in a file nobody touched, unless `deep`.

A file's identity is (bytes, digest): its size, and the SHA-256 of its footer region, which is the last
`footer length + 8` bytes. The footer holds position, size and statistics of each column chunk.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple, get_type_hints

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from txsink import paths, schema
from txsink.choices import Compression, converted, require_choice
from txsink.errors import CorruptError, InvalidRequestError, did_you_mean
from txsink.records import Column, DataFile, Upload
from txsink.staging import statistics
from txsink.store.protocol import Output, Store

_WHAT = "choose how files are written"
_MAGIC = b"PAR1"
_TAIL_BYTES = 16 << 10
_FOOTER_BYTES_MAX = 1 << 30
_BATCH_ROWS = 64 << 10
_LOOKED_AT_BYTES_MAX = 256 << 20  # of a file that others wrote, whose rows are read for the sake of its statistics

# A dictionary pays for itself where each value occurs twice, as long as it fits a page: 1 MiB, of eight bytes a value.
_DICTIONARY_VALUES_MAX = 128 << 10
_SAMPLED_FROM_ROWS = 4 << 10
_SAMPLE_ROWS, _SAMPLE_ROWS_MAX = 512, 64 << 10
_SAMPLE_PART = 16
_SAMPLE_SLICES = 8


class StageOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How files are written."""

    compression: Compression = "zstd"
    compression_level: int | None = None
    target_file_bytes: int = 256 << 20
    row_group_rows: int = 1 << 20
    row_group_bytes: int = 128 << 20
    file_rows_max: int = 1 << 62
    open_partitions_max: int = 64

    def __post_init__(self) -> None:
        require_choice(_WHAT, "compression", self.compression, Compression)
        if self.compression_level is not None:
            self._check_level(self.compression_level)
        for name in ("target_file_bytes", "row_group_rows", "row_group_bytes", "file_rows_max", "open_partitions_max"):
            if getattr(self, name) < 1:
                raise _bad_option(f"{name} is {getattr(self, name)}", "Use a number from 1 on")

    def _check_level(self, level: int) -> None:
        if self.compression not in {"gzip", "zstd"}:
            raise _bad_option(f"{self.compression} has no levels", "Drop compression_level, or use zstd or gzip")
        codec: Any = self.compression
        least, most = pa.Codec.minimum_compression_level(codec), pa.Codec.maximum_compression_level(codec)
        if not least <= level <= most:
            raise _bad_option(f"compression_level is {level}", f"Use {least} to {most} for {self.compression}")

    @classmethod
    def of(cls, **options: Any) -> StageOptions:
        """Options by name; numbers may be given as text."""
        kinds = get_type_hints(cls)
        for name in options:
            if name not in kinds:
                known = f"Known options: {', '.join(sorted(kinds))}"
                raise InvalidRequestError(_WHAT, f"unknown option {name!r}", did_you_mean(name, kinds, known))
        return cls(**{name: converted(_WHAT, name, one, kinds[name], is_strict=False) for name, one in options.items()})


class Identity(NamedTuple):
    """What makes a file that file; `stamp` only says whether it was touched since."""

    bytes: int
    digest: str
    stamp: str


class ParquetOutput:
    """A Parquet file being written, one row group at a time."""

    def __init__(
        self, output: Output, path: str, first: pa.Table, options: StageOptions, *, has_stats: bool = False
    ) -> None:
        self._output = output
        self._has_stats = has_stats
        self._nans: set[statistics.Leaf] = set()
        self._tap: Any = _Tap(output)  # the stubs know no file but Python's
        compression: Any = options.compression
        self._path = path
        self.rows = 0
        self.groups = 0
        self.upload: Upload | None = None
        self._writer = pq.ParquetWriter(
            self._tap,
            first.schema,
            compression=compression,
            compression_level=options.compression_level,
            use_dictionary=_dictionary_columns(first),
            write_page_checksum=True,
        )

    @property
    def bytes(self) -> int:
        """How many bytes were written so far."""
        return int(self._tap.bytes)

    def write(self, group: pa.Table) -> None:
        """Add one row group."""
        self._writer.write_table(group, group.num_rows)
        if self._has_stats:
            self._nans |= statistics.nans_in(group)
        self.rows += group.num_rows
        self.groups += 1

    def seal(self) -> DataFile:
        """End the file and make it durable."""
        end = self._tap.keep()
        self._writer.close()
        # ORDER: bytes durable before the record exists, else a prepare entry names a torn file (I3).
        self.upload = self._output.seal()
        region = bytes(end[-_footer_bytes(end) :])
        told = statistics.of_footer(pq.read_metadata(pa.BufferReader(region)), self._nans) if self._has_stats else ""
        digest = hashlib.sha256(region).hexdigest()
        return DataFile(self._path, self.bytes, digest, self.rows, paths.parse_partitions(self._path), told)

    def abandon(self) -> None:
        """Write no more: the writer adds a footer when it is collected, and the Output may be closed by then."""
        self._tap.drop()


class _Tap:
    """Between pyarrow and the Output: counts bytes, keeps the end, and falls silent once dropped."""

    closed = False

    def __init__(self, output: Output) -> None:
        self._output: Output | None = output
        self._end: bytearray | None = None
        self.bytes = 0

    def write(self, data: bytes, /) -> int:
        size = len(data)
        if self._output is not None:
            self._output.write(data)
            self.bytes += size
            if self._end is not None:
                self._end += data
        return size

    def flush(self) -> None:
        """Nothing: only `seal` makes bytes durable."""

    def keep(self) -> bytearray:
        """From here on keep what is written."""
        self._end = bytearray()
        return self._end

    def drop(self) -> None:
        self._output = None


def _dictionary_columns(first: pa.Table) -> bool | list[str]:
    """Columns worth a dictionary. Building one for values that hardly repeat costs a third of the time, and bytes."""
    rows = first.num_rows
    if rows < _SAMPLED_FROM_ROWS or any(pa.types.is_nested(kind) for kind in first.schema.types):
        return True
    size = min(max(_SAMPLE_ROWS, rows // _SAMPLE_PART), _SAMPLE_ROWS_MAX) // _SAMPLE_SLICES
    sample = pa.concat_tables([first.slice(index * (rows // _SAMPLE_SLICES), size) for index in range(_SAMPLE_SLICES)])
    weight = rows / len(sample)
    return [name for name, column in zip(sample.column_names, sample.columns, strict=True) if _repeats(column, weight)]


def _repeats(sample: pa.ChunkedArray[Any], weight: float) -> bool:
    """Whether the sample shows no more distinct values than if all those that pay were equally frequent."""
    found = len(sample) - sample.null_count
    paying = min(found * weight / 2, _DICTIONARY_VALUES_MAX)
    distinct: int = pc.count_distinct(sample).as_py()
    return not found or distinct <= -paying * math.expm1(-found / paying)


class Footer(NamedTuple):
    """A file's identity and the footer region it is taken from."""

    identity: Identity
    region: bytes


def identity(store: Store, path: str) -> Identity | None:
    """The identity of the file at `path`, its digest empty when it is no Parquet file; None when there is none."""
    found = footer_of(store, path)
    return None if found is None else found.identity


def footer_of(store: Store, path: str) -> Footer | None:
    """The same with the footer region, which is empty when it is no Parquet file."""
    tail = store.tail(path, _TAIL_BYTES)
    if tail is None:
        return None
    size = _footer_bytes(tail.data)
    if len(tail.data) < size <= min(tail.bytes, _FOOTER_BYTES_MAX):
        tail = store.tail(path, size)
        if tail is None:
            return None
    is_whole = 0 < size <= len(tail.data) and _footer_bytes(tail.data) == size
    region = tail.data[-size:] if is_whole else b""
    digest = hashlib.sha256(region).hexdigest() if is_whole else ""
    return Footer(Identity(tail.bytes, digest, tail.stamp), region)


def stats_of(store: Store, path: str, found: Footer, indexed: statistics.Indexed = statistics.Indexed()) -> str:  # noqa: B008 -- a tuple
    """The statistics of a file that others wrote. Whether a floating-point column holds a NaN, only its rows show."""
    footer = pq.read_metadata(pa.BufferReader(found.region))
    doubtful = statistics.doubtful(footer, indexed)
    if not doubtful:
        return statistics.of_footer(footer, frozenset(), indexed)
    data = store.read(path, found.identity.bytes) if found.identity.bytes <= _LOOKED_AT_BYTES_MAX else None
    if data is None:
        return statistics.of_footer(footer, None, indexed)
    nans: set[statistics.Leaf] = set()
    for table in groups_of(data, {leaf[0] for leaf in doubtful}, f"read {path}"):
        nans |= statistics.nans_in(table, indexed._replace(first=-1))
    return statistics.of_footer(footer, nans, indexed)


def groups_of(data: bytes, names: Collection[str], what: str) -> Iterator[pa.Table]:
    """Some columns of a file, those of them that it has, one row group after the other."""
    try:
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        held = [name for name in file.schema_arrow.names if name in names]
        for at in range(file.num_row_groups):
            yield file.read_row_group(at, held).select(held)
    except (pa.ArrowException, OSError, ValueError) as error:
        advice = "Put the file back from a copy; or, if its epoch is not committed, abort it and write it again"
        raise CorruptError(what, f"the file cannot be read: {error}", advice) from error


def columns_in(region: bytes) -> tuple[Column, ...]:
    """The columns of a file, from its footer region."""
    return schema.columns_of(pq.read_metadata(pa.BufferReader(region)).schema.to_arrow_schema())


def verify(store: Store, path: str, file: DataFile, stamp: str = "", *, deep: bool = False) -> str | None:
    """None when the file is as recorded, else what is wrong with it.

    Its pages are read when it was touched since `stamp`, or when `deep`.
    """
    try:
        found = identity(store, path)
    except CorruptError as error:  # no file at all: a link, a pipe
        return error.found.removeprefix("it ")
    if found is None:
        return "is missing"
    if found.bytes != file.bytes:
        return f"has {found.bytes} bytes, recorded {file.bytes}"
    if not found.digest or found.digest != file.digest:
        return "has another footer than recorded"
    if deep or (stamp and stamp != found.stamp):
        return _damage(store, path, file)
    return None


def _damage(store: Store, path: str, file: DataFile) -> str | None:
    data = store.read(path, file.bytes)
    if data is None:
        return "is missing"
    if not data.startswith(_MAGIC):
        return "does not begin as a Parquet file does"
    try:
        reader = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        rows = sum(batch.num_rows for batch in reader.iter_batches(_BATCH_ROWS))
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        return f"has damaged pages ({error})"
    return None if rows == file.rows else f"holds {rows} rows, recorded {file.rows}"


def _footer_bytes(end: bytes | bytearray) -> int:
    """Size of the footer region that ends here; 0 when none does."""
    if len(end) < 2 * len(_MAGIC) or end[-4:] != _MAGIC:
        return 0
    return int.from_bytes(end[-8:-4], "little") + 8


def _bad_option(found: str, advice: str) -> InvalidRequestError:
    return InvalidRequestError(_WHAT, found, advice)
