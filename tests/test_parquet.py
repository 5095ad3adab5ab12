"""One Parquet file: its record, its identity, its damage, its options."""

from __future__ import annotations

import hashlib
import json
import math
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from txsink.errors import CorruptError, InvalidRequestError, UnavailableError
from txsink.records import DataFile
from txsink.staging import parquet
from txsink.staging.parquet import ParquetOutput, StageOptions, footer_of, identity, verify
from txsink.store.local.store import LocalStore

NAME = "part-7-0-abcd.parquet"
TABLE = pa.table({"id": range(5000), "text": [f"row {number}" for number in range(5000)]})


@pytest.fixture
def store() -> LocalStore:
    return LocalStore()


def written(store: LocalStore, path: Path, table: pa.Table = TABLE, **options: Any) -> DataFile:
    output = ParquetOutput(store.create(str(path)), NAME, table, StageOptions(**options))
    output.write(table)
    return output.seal()


# -- writing -------------------------------------------------------------------------------------------


def test_the_record_is_that_of_the_bytes_on_disk(store: LocalStore, tmp_path: Path) -> None:
    file = written(store, tmp_path / NAME)
    data = (tmp_path / NAME).read_bytes()
    footer = int.from_bytes(data[-8:-4], "little") + 8
    assert file == DataFile(NAME, len(data), hashlib.sha256(data[-footer:]).hexdigest(), 5000, {})
    assert pq.read_table(tmp_path / NAME).equals(TABLE)


def test_statistics_and_checksums_are_in_the_file(store: LocalStore, tmp_path: Path) -> None:
    written(store, tmp_path / NAME)
    metadata = pq.read_metadata(tmp_path / NAME)
    column = metadata.row_group(0).column(0)
    assert column.compression == "ZSTD"
    assert column.statistics is not None
    assert (column.statistics.min, column.statistics.max, column.statistics.null_count) == (0, 4999, 0)
    data = bytearray((tmp_path / NAME).read_bytes())
    data[column.total_compressed_size // 2] ^= 1
    with pytest.raises(OSError, match="verif"):
        pq.read_table(pa.BufferReader(bytes(data)), page_checksum_verification=True)


@pytest.mark.parametrize("compression", ["gzip", "lz4", "none", "snappy", "zstd"])
def test_each_compression_is_written_and_read(store: LocalStore, tmp_path: Path, compression: str) -> None:
    written(store, tmp_path / NAME, compression=compression)
    assert pq.read_table(tmp_path / NAME).equals(TABLE)


def test_a_higher_level_makes_a_smaller_file(store: LocalStore, tmp_path: Path) -> None:
    words = pa.array(["alpha", "beta", "gamma", "delta"]).take(
        pa.array(np.random.default_rng(7).integers(0, 4, 60_000))
    )
    lines = pa.table({"line": [" ".join(words.slice(start, 12).to_pylist()) for start in range(0, 60_000, 12)]})
    sizes = [written(store, tmp_path / str(level), lines, compression_level=level).bytes for level in (1, 19)]
    assert sizes[1] < sizes[0]


def test_large_columns_have_a_dictionary_only_where_values_repeat(store: LocalStore, tmp_path: Path) -> None:
    rows = 1 << 18
    numbers = np.random.default_rng(7).permutation(rows)
    columns = {"key": numbers, "few": numbers % 1000, "runs": np.arange(rows) // 64, "flag": numbers % 2 == 0}
    columns["spread"] = np.where(np.arange(rows) < rows // 2, numbers, 5)
    table = pa.table({**columns, "none": pa.nulls(rows, pa.int8()), "dotted.name": pa.array(numbers % 9)})
    written(store, tmp_path / NAME, table)
    group = pq.read_metadata(tmp_path / NAME).row_group(0)
    with_dictionary = {table.column_names[number] for number in range(7) if group.column(number).has_dictionary_page}
    assert with_dictionary == {"few", "runs", "spread", "none", "dotted.name"}
    assert pq.read_table(tmp_path / NAME).equals(table)


@pytest.mark.parametrize("rows", [1000, 10_000, 100_000])
def test_columns_of_an_epoch_have_a_dictionary_only_where_values_repeat(
    store: LocalStore, tmp_path: Path, rows: int
) -> None:
    """A column of values that come three times each pays for its dictionary, one of values alone does not."""
    numbers = np.random.default_rng(7).permutation(rows)
    gaps = pa.array(numbers // 8, mask=numbers % 8 > 0)
    table = pa.table({"once": numbers, "thrice": numbers // 3, "text": pa.array(map(str, numbers)), "gaps": gaps})
    written(store, tmp_path / NAME, table)
    group = pq.read_metadata(tmp_path / NAME).row_group(0)
    with_dictionary = {table.column_names[number] for number in range(4) if group.column(number).has_dictionary_page}
    assert with_dictionary == (set(table.column_names) if rows == 1000 else {"thrice"})


def test_a_large_nested_table_keeps_its_dictionaries(store: LocalStore, tmp_path: Path) -> None:
    table = pa.table({"tags": pa.array([["a"]]).take(pa.array(np.zeros(1 << 18, dtype=np.int64)))})
    written(store, tmp_path / NAME, table)
    assert pq.read_metadata(tmp_path / NAME).row_group(0).column(0).has_dictionary_page


class FullDisk:
    """An Output that takes so many bytes and no more."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.closed = False
        self.written_when_closed = 0

    def write(self, data: bytes, /) -> int:
        if self.closed:
            self.written_when_closed += len(data)
        self.room -= len(data)
        if self.room < 0:
            raise UnavailableError("write x", "no room", "Make room, then retry")
        return len(data)

    def flush(self) -> None: ...

    def seal(self) -> None:
        self.closed = True

    def discard(self) -> None:
        self.closed = True


@pytest.mark.parametrize("room", [0, 4, 100, 1_000])
def test_the_stores_error_passes_through_the_writer(room: int) -> None:
    output = FullDisk(room)
    with pytest.raises(UnavailableError, match="no room"):
        ParquetOutput(output, NAME, TABLE, StageOptions()).write(TABLE)


def test_an_abandoned_file_gets_no_more_bytes() -> None:
    """A writer adds its footer when it is collected: by then the descriptor may be another file's."""
    for room in (1_000, 1 << 20):
        disk = FullDisk(room)
        output = ParquetOutput(disk, NAME, TABLE, StageOptions())
        with suppress(UnavailableError):
            output.write(TABLE)
        output.abandon()
        disk.discard()
        del output
        assert disk.written_when_closed == 0


# -- identity and verify -------------------------------------------------------------------------------


def test_identity_is_that_of_the_record(store: LocalStore, tmp_path: Path) -> None:
    file = written(store, tmp_path / NAME)
    found = identity(store, str(tmp_path / NAME))
    assert found is not None
    assert (found.bytes, found.digest) == (file.bytes, file.digest)
    assert identity(store, str(tmp_path / "absent")) is None


def test_identity_reads_a_footer_longer_than_its_first_look(store: LocalStore, tmp_path: Path) -> None:
    wide = pa.table({f"a column with quite a long name, number {number}": [number] for number in range(800)})
    file = written(store, tmp_path / NAME, wide)
    data = (tmp_path / NAME).read_bytes()
    assert int.from_bytes(data[-8:-4], "little") > 64 << 10
    found = identity(store, str(tmp_path / NAME))
    assert found is not None
    assert found.digest == file.digest


@pytest.mark.parametrize(
    "data",
    [b"", b"PAR1", b"PAR1PAR1", b"x" * 100, b"\xff\xff\xff\xffPAR1", b"x" * 90 + b"\x00\x01\x00\x00PAR1"],
    ids=repr,
)
def test_bytes_that_are_no_parquet_file_are_never_the_recorded_one(
    store: LocalStore, tmp_path: Path, data: bytes
) -> None:
    (tmp_path / NAME).write_bytes(data)
    found = identity(store, str(tmp_path / NAME))
    assert found is not None
    assert found.bytes == len(data)
    assert found.digest == ""
    assert footer_of(store, str(tmp_path / NAME)) == (found, b"")
    assert verify(store, str(tmp_path / NAME), DataFile(NAME, len(data), found.digest[:0], 0, {})) is not None


@pytest.mark.parametrize(
    ("end", "size"),
    [
        (b"", 0),
        (b"PAR1", 0),
        (b"\x01PAR1", 0),
        (b"\0\0\0\0PAR2", 0),
        (b"\0\0\0\0PAR1", 8),
        (b"x\x02\x01\0\x01PAR1", 8 + 2 + (1 << 8) + (1 << 24)),
    ],
    ids=repr,
)
def test_the_last_eight_bytes_tell_how_long_the_footer_is(end: bytes, size: int) -> None:
    assert parquet._footer_bytes(end) == size


class Unread(LocalStore):
    """A store whose files are looked at by their ends alone."""

    def read(self, path: str, limit: int) -> bytes | None:
        raise AssertionError(path)


def test_the_pages_of_a_file_that_nobody_touched_are_not_read(store: LocalStore, tmp_path: Path) -> None:
    file, path = written(store, tmp_path / NAME), str(tmp_path / NAME)
    stamp = store.tail(path, 0).stamp  # type: ignore[union-attr]
    for known in ("", stamp):
        assert verify(Unread(), path, file, known) is None
    for known, is_deep in (("touched since", False), (stamp, True)):
        with pytest.raises(AssertionError):
            verify(Unread(), path, file, known, deep=is_deep)


def test_a_file_as_recorded_is_fine_at_any_depth(store: LocalStore, tmp_path: Path) -> None:
    file, path = written(store, tmp_path / NAME), str(tmp_path / NAME)
    stamp = store.tail(path, 0).stamp  # type: ignore[union-attr]
    assert verify(store, path, file) is None
    assert verify(store, path, file, stamp) is None
    assert verify(store, path, file, "touched since") is None
    assert verify(store, path, file, deep=True) is None


def test_damage_is_named(store: LocalStore, tmp_path: Path) -> None:
    """F19."""
    path = tmp_path / NAME
    file = written(store, path)
    data = path.read_bytes()
    assert verify(store, str(tmp_path / "absent"), file) == "is missing"
    path.write_bytes(data[:100])
    assert verify(store, str(path), file) == f"has 100 bytes, recorded {len(data)}"
    path.write_bytes(data[:-20] + b"?" + data[-19:])
    assert verify(store, str(path), file) == "has another footer than recorded"
    path.write_bytes(b"?" + data[1:])
    assert verify(store, str(path), file, deep=True) == "does not begin as a Parquet file does"
    path.write_bytes(data)
    more = DataFile(file.path, file.bytes, file.digest, file.rows + 1, {})
    assert verify(store, str(path), more, deep=True) == "holds 5000 rows, recorded 5001"


def test_a_flipped_bit_of_a_page_is_found_once_the_file_was_touched(store: LocalStore, tmp_path: Path) -> None:
    """F19: same size, same footer."""
    path = tmp_path / NAME
    file = written(store, path)
    stamp = store.tail(str(path), 0).stamp  # type: ignore[union-attr]
    data = path.read_bytes()
    footer = int.from_bytes(data[-8:-4], "little") + 8
    found = 0
    for place in range(4, len(data) - footer, 397):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        problem = verify(store, str(path), file, stamp)
        assert problem or pq.read_table(path).equals(TABLE), f"byte {place} changed the rows unseen"
        found += "damaged pages" in (problem or "")
    assert found > 20


# -- options -------------------------------------------------------------------------------------------


def test_an_unknown_option_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(InvalidRequestError, match=r"unknown option 'compresion'\. Did you mean 'compression'"):
        StageOptions.of(compresion="zstd")
    with pytest.raises(InvalidRequestError, match=r"unknown option 'colour'\. Known options: compression, "):
        StageOptions.of(colour="red")


def test_numbers_may_come_as_text() -> None:
    assert StageOptions.of(row_group_rows="5", compression_level="3").row_group_rows == 5
    assert StageOptions.of() == StageOptions()


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"compression": "zstandard"}, "compression is 'zstandard', not one of"),
        ({"compression": "brotli"}, "'snappy', 'zstd'. Give one of these"),
        ({"compression": "snappy", "compression_level": 1}, "snappy has no levels"),
        ({"compression_level": 99}, "compression_level is 99. Use"),
        ({"target_file_bytes": 0}, "target_file_bytes is 0"),
        ({"row_group_rows": -1}, "row_group_rows is -1"),
        ({"row_group_bytes": 0}, "row_group_bytes is 0"),
        ({"open_partitions_max": 0}, "open_partitions_max is 0"),
        ({"row_group_rows": "many"}, "row_group_rows"),
        ({"compression": 5}, "compression"),
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_by_the_options_name(options: dict[str, Any], found: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        StageOptions.of(**options)
    assert found in str(caught.value)


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_every_level_that_there_is_is_taken_and_no_other(compression: Any) -> None:
    least, most = pa.Codec.minimum_compression_level(compression), pa.Codec.maximum_compression_level(compression)
    for level in (least, most):
        assert StageOptions(compression=compression, compression_level=level).compression_level == level
    for level in (least - 1, most + 1):
        with pytest.raises(InvalidRequestError, match=f"compression_level is {level}. Use {least} to {most} for"):
            StageOptions(compression=compression, compression_level=level)


def test_a_column_with_nan_in_any_row_group_has_no_bounds(store: LocalStore, tmp_path: Path) -> None:
    """A footer leaves NaN out, so that its bounds would have a reader pass the row by."""
    groups = [pa.table({"id": [at], "x": [value], "y": [float(at)]}) for at, value in enumerate((1.0, 2.0, 2.5))]
    groups.append(pa.table({"id": [3, 3], "x": [3.0, math.nan], "y": [3.0, 3.0]}))
    output = ParquetOutput(store.create(str(tmp_path / NAME)), NAME, groups[0], StageOptions(), has_stats=True)
    assert (output.rows, output.groups) == (0, 0)
    for count, group in enumerate(groups, 1):
        output.write(group)
        assert (output.rows, output.groups) == (count + count // 4, count)
    found = json.loads(output.seal().stats)
    assert found["minValues"] == {"id": 0, "y": 0.0}
    assert found["maxValues"] == {"id": 3, "y": 3.0}
    assert pq.read_metadata(tmp_path / NAME).num_row_groups == 4


def test_the_columns_asked_for_are_read_and_damage_in_them_is_found(store: LocalStore, tmp_path: Path) -> None:
    written(store, tmp_path / NAME, compression="none")
    data = bytearray((tmp_path / NAME).read_bytes())
    (found,) = parquet.groups_of(bytes(data), {"text", "absent"}, "read it")
    assert found.equals(TABLE.select(["text"]))
    column = pq.read_metadata(tmp_path / NAME).row_group(0).column(1)
    data[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    with pytest.raises(CorruptError, match="read it: the file cannot be read"):
        list(parquet.groups_of(bytes(data), {"text"}, "read it"))
    (found,) = parquet.groups_of(bytes(data), {"id"}, "read it")
    assert found.equals(TABLE.select(["id"]))


def test_a_nan_within_a_struct_of_a_file_of_others_is_found(store: LocalStore, tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1, 2], "s": [{"x": 1.0}, {"x": math.nan}]}), tmp_path / NAME)
    end = footer_of(store, str(tmp_path / NAME))
    assert end is not None
    found = json.loads(parquet.stats_of(store, str(tmp_path / NAME), end))
    assert (found["minValues"], found["maxValues"]) == ({"x": 1}, {"x": 2})


def test_options_survive_pickling() -> None:
    options = StageOptions(compression="snappy", row_group_rows=10)
    assert pickle.loads(pickle.dumps(options)) == options
