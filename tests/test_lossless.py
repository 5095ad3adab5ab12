"""Each call of `write` is stored exactly or refused as a whole, and what was stored is what every reader finds.

Tables are drawn: their types, nested to depth 3, and calls in every form, some with values of other types.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

import ledger
from lossless import (
    ARROW,
    FORMS,
    OF_ARROW,
    PARTITIONS,
    PLAIN,
    SIGNED,
    Call,
    Life,
    arrows,
    as_key,
    canonical_rows,
    given_rows,
    kinds,
    lives,
    plain_parts,
    values,
)
from other_readers import NO_COLUMNS, by_duckdb, by_polars, spark_frame
from place import Place
from txsink.errors import InvalidRequestError
from txsink.reading.table import open_log
from txsink.store.local.store import LocalStore
from txsink.store.memory import MemoryStore
from txsink.writing.opening import open_sink

SCALE = 10 if ledger.is_full() else 1
MEMORY = Path("/dev/shm")
CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example, HealthCheck.filter_too_much]


def tried(tables: int) -> settings:
    return settings(max_examples=tables * SCALE, suppress_health_check=CHECKS, phases=[Phase.generate])


@pytest.fixture
def directory() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
    yield place
    shutil.rmtree(place)


class Memory(MemoryStore):
    """A store in memory that nothing else sees."""

    def __init__(self) -> None:
        super().__init__()
        self._files.clear()


class Written:
    """A table after the calls of its life: which of them were taken."""

    def __init__(self, life: Life, place: Place, store: Any, **options: Any) -> None:
        self.taken: list[Call] = []
        self.refused: list[Call] = []
        self.error: InvalidRequestError | None = None
        by = {"partition_by": [life.names[-1]]} if life.is_partitioned else {}
        options = {"merge_schema": life.merges, **by, **options}
        with open_sink(store, place.stamps, str(place.path), "w", options) as sink, sink.begin(0) as txn:
            for call in life.calls:
                try:
                    count = txn.write(call.data())
                except InvalidRequestError as error:
                    check_refusal(error, call)
                    self.refused.append(call)
                else:
                    assert count == len(call.rows)
                    self.taken.append(call)
            try:
                result = txn.commit()
            except InvalidRequestError as error:
                self.error = error  # a type that Delta does not have: all is refused
                check_refusal(error, None)
                txn.abort()
                self.taken = []
            else:
                assert result.rows == sum(len(call.rows) for call in self.taken)
        self.table = open_log(store, place.stamps, str(place.path))
        self.schema = self.table.schema
        self.expected = Counter(given_rows(self.taken, self.schema))


def check_refusal(error: InvalidRequestError, call: Call | None) -> None:
    context = error.context
    assert "column" in context, error
    name = str(context["column"])
    assert repr(name.split(".", maxsplit=1)[0]).strip("'") in str(error)
    assert {"type", "given"} & context.keys(), error
    assert call is None or name.split(".", maxsplit=1)[0] in call.names


def check_taken(life: Life, written: Written) -> None:
    """What is of the table's types is never refused, once the table has them."""
    first = life.calls[0]
    is_typed = first.form == "table" and first in written.taken and first.rows and not life.is_partitioned
    for call in written.refused:
        assert not (is_typed and call.is_plain), call


def by_pyarrow(store: Any, written: Written) -> pa.Table:
    """The files as pyarrow finds them, with the values of the paths."""
    tables = []
    for file in written.table.files():
        table = pq.ParquetFile(pa.BufferReader(store.read(f"{written.table.path}/{file.path}", file.bytes))).read()
        for name, value in file.partition.items():
            kind = written.schema.field(name).type
            table = table.append_column(name, pa.array([value] * table.num_rows, kind))
        for field in written.schema:
            if field.name not in table.column_names:
                table = table.append_column(field.name, pa.nulls(table.num_rows, field.type))
        assert all(table.schema.field(field.name).type.equals(field.type) for field in written.schema)
        tables.append(table.select(written.schema.names))
    return pa.concat_tables(tables) if tables else written.schema.empty_table()


def check(life: Life, place: Place, store: Any, seen: Counter[str], **options: Any) -> Written:
    written = Written(life, place, store, **options)
    check_taken(life, written)
    for found in (written.table.to_arrow(), by_pyarrow(store, written)):
        assert Counter(canonical_rows(found, written.schema)) == written.expected
    seen["tables"] += 1
    seen["calls taken"] += len(written.taken)
    seen["calls refused"] += len(written.refused)
    seen["rows"] += written.expected.total()
    seen["refused at prepare"] += written.error is not None
    return written


def tell(capsys: pytest.CaptureFixture[str], what: str, store: str, seen: Counter[str]) -> None:
    with capsys.disabled():
        print(f"\n{what}: {', '.join(f'{count:,} {name}' for name, count in seen.items())}")
        if ledger.is_full():
            ledger.report("rows", store, {}, {name.replace(" ", "_"): count for name, count in seen.items()})


def test_every_call_is_stored_exactly_or_refused_whole(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    seen: Counter[str] = Counter()

    @tried(4_000)
    @given(lives())
    def prop(life: Life) -> None:
        store = Memory()
        check(life, Place(tmp_path / "T"), store, seen)

    prop()
    tell(capsys, "lossless in memory, txsink and pyarrow", "memory", seen)
    assert seen["tables"] >= 4_000 * SCALE
    assert min(seen["calls taken"], seen["calls refused"], seen["rows"]) > 1_000 * SCALE


@pytest.mark.parametrize("layout", ["parquet", "delta"])
def test_tables_of_arrows_types_store_exactly_or_refuse_whole(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, layout: str
) -> None:
    """Delta has none of them, and takes no such table at all."""
    seen: Counter[str] = Counter()
    tables = 2_000 if layout == "parquet" else 50

    @tried(tables)
    @given(lives(stored=arrows()))
    def prop(life: Life) -> None:
        store = Memory()
        if layout == "delta":
            with pytest.raises(InvalidRequestError, match="its types are 'arrow', some of which Delta does not have"):
                Written(life, Place(tmp_path / "T"), store, types="arrow", layout=layout)
            assert not store._files
            seen["tables refused"] += 1
            return
        written = check(life, Place(tmp_path / "T"), store, seen, types="arrow")
        seen["tables with a type of Arrow's"] += bool(arrows_in(written) and written.expected)

    prop()
    tell(capsys, f"lossless with types of Arrow in layout {layout}", "memory", seen)
    if layout == "delta":
        assert seen["tables refused"] >= tables * SCALE
        return
    assert seen["tables"] >= tables * SCALE
    least = 300 * SCALE
    assert min(seen["calls taken"], seen["calls refused"], seen["tables with a type of Arrow's"]) > least


def arrows_in(written: Written) -> set[Any]:
    """The types of the table that only tables of `types="arrow"` hold, at any depth."""
    return {kind for field in written.schema for kind in plain_parts(field.type)} & {*OF_ARROW}


def in_files(written: Written) -> list[str]:
    """The columns that the files hold: those with a type that are not in the paths."""
    by = written.table.partition_columns
    return [field.name for field in written.schema if field.name not in by and not pa.types.is_null(field.type)]


def in_paths(written: Written) -> pa.Schema:
    """The columns whose values stand in the paths. One that has no type yet is read as text: all of it is null."""
    fields = [written.schema.field(name) for name in written.table.partition_columns]
    return pa.schema([field.with_type(pa.string()) if pa.types.is_null(field.type) else field for field in fields])


def check_read(found: pa.Table, written: Written, names: list[str], hive: pa.Schema = NO_COLUMNS) -> None:
    """Another reader's rows are those that were handed in, as far as it is asked for them."""
    schema = pa.schema([*(written.schema.field(name) for name in names), *hive])
    assert Counter(canonical_rows(found, schema)) == Counter(given_rows(written.taken, schema))


def read_by_others(written: Written, path: Path, names: list[str], seen: Counter[str]) -> None:
    """By DuckDB and Polars, which are told the types of what stands in the paths, and nothing else."""
    hive = in_paths(written)
    for read in (by_duckdb, by_polars):
        check_read(read(path, names, hive), written, names, hive)
    seen["read by DuckDB and Polars"] += 1
    seen["partition values read"] += len(hive) * written.expected.total()


@pytest.mark.parametrize("layout", ["parquet", "delta"])
def test_what_is_stored_on_disk_is_what_duckdb_and_polars_read(
    capsys: pytest.CaptureFixture[str], directory: Path, layout: str
) -> None:
    seen: Counter[str] = Counter()

    @tried(900)
    @given(st.one_of(lives(stored=SIGNED), lives(stored=SIGNED), lives()))
    def prop(life: Life) -> None:
        place = Place(directory / "T")
        shutil.rmtree(place.path, ignore_errors=True)  # of an example that failed
        written = check(life, place, LocalStore(), seen, layout=layout)
        if written.expected:
            read_by_others(written, place.path, in_files(written), seen)

    prop()
    tell(capsys, f"lossless on disk in layout {layout}", "Delta" if layout == "delta" else "local disk", seen)
    assert seen["read by DuckDB and Polars"] >= 500 * SCALE
    assert min(seen["calls taken"], seen["rows"], 5 * seen["calls refused"]) > 400 * SCALE
    assert seen["partition values read"] > 100 * SCALE


def test_types_of_arrow_on_disk_are_what_duckdb_and_polars_read(
    capsys: pytest.CaptureFixture[str], directory: Path
) -> None:
    """All but decimals of more than 38 digits, which DuckDB rounds and Polars refuses (docs/types.md)."""
    seen: Counter[str] = Counter()

    @tried(400)
    @given(lives(stored=arrows()))
    def prop(life: Life) -> None:
        place = Place(directory / "T")
        shutil.rmtree(place.path, ignore_errors=True)
        written = check(life, place, LocalStore(), seen, types="arrow")
        names = [name for name in in_files(written) if not is_beyond_others(written.schema.field(name).type)]
        if written.expected and names:
            read_by_others(written, place.path, names, seen)

    prop()
    tell(capsys, "lossless on disk with types of Arrow", "local disk", seen)
    assert seen["read by DuckDB and Polars"] >= 150 * SCALE


def is_beyond_others(kind: pa.DataType) -> bool:
    """Whether a part of the type is a decimal that only Arrow holds."""
    return any(pa.types.is_decimal256(part) for part in plain_parts(kind))


@pytest.mark.parametrize("kind", PARTITIONS, ids=str)
def test_every_value_of_a_partition_is_read_by_duckdb_and_polars(directory: Path, kind: pa.DataType) -> None:
    """Each in a directory of its own: what many readers take for another value stands next to what they take it for."""
    seen: Counter[str] = Counter()
    possible = values(kind).filter(lambda one: not isinstance(one, str) or (one != "" and "\x00" not in one))

    @tried(40)
    @given(st.lists(possible, min_size=8, max_size=8))
    def prop(drawn: list[Any]) -> None:
        place = Place(directory / "T")
        shutil.rmtree(place.path, ignore_errors=True)
        call = Call("table", ("id", "p"), (pa.int64(), kind), [*enumerate(drawn)], is_plain=True)
        written = check(Life(call.names, call.kinds, True, False, [call]), place, LocalStore(), seen)
        assert written.taken == [call]
        read_by_others(written, place.path, ["id"], seen)

    prop()
    assert seen["partition values read"] >= 8 * 30 * SCALE


AROUND = (lambda kind: kind, pa.list_, lambda kind: pa.struct([("x", kind)]), lambda kind: pa.map_(pa.string(), kind))


@st.composite
def maps(draw: Any) -> tuple[Call, bool]:
    """A map, alone or within another type, and whether one of its keys stands in it twice."""
    key = draw(st.one_of(kinds(st.sampled_from(PLAIN), 1, (pa.string(),)), st.sampled_from(OF_ARROW)))
    form = draw(st.sampled_from(FORMS))
    few = draw(st.lists(values(key, form in ARROW).filter(lambda one: one is not None), min_size=1, max_size=3))
    keys = draw(st.lists(st.sampled_from([*few, *(-one for one in few if isinstance(one, float))]), max_size=3))
    around = draw(st.integers(0, len(AROUND) - 1))
    pairs = [(one, 1) for one in keys]
    value = (pairs, [pairs], {"x": pairs}, [("a", pairs)])[around]
    call = Call(form, ("c", "id"), (AROUND[around](pa.map_(key, pa.int8())), pa.int64()), [(value, 1)], is_plain=True)
    return call, len({as_key(one, key) for one in keys}) < len(keys)


def test_a_key_twice_in_a_map_is_refused_and_no_other_map_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    seen: Counter[str] = Counter()

    @tried(600)
    @given(maps())
    def prop(drawn: tuple[Call, bool]) -> None:
        call, is_twice = drawn
        first = call._replace(form="table", rows=[])  # which tells the types
        life = Life(call.names, call.kinds, False, False, [first, call])
        written = check(life, Place(tmp_path / "T"), Memory(), seen, types="arrow")
        assert (call in written.refused) is is_twice
        seen["with a key twice"] += is_twice

    prop()
    tell(capsys, "maps in memory", "memory", seen)
    assert min(seen["with a key twice"], seen["tables"] - seen["with a key twice"]) > 100 * SCALE


SPARK_TABLES, SPARK_TABLES_A_QUERY = 300, 15


def test_what_is_stored_is_what_spark_reads(capsys: pytest.CaptureFixture[str], directory: Path, spark: Any) -> None:
    seen: Counter[str] = Counter()
    waiting: list[tuple[Path, Written]] = []

    @tried(SPARK_TABLES * 2)  # of some, nothing is stored
    @given(lives())
    def prop(life: Life) -> None:
        place = Place(directory / str(seen["tables"]))
        shutil.rmtree(place.path, ignore_errors=True)
        written = check(life, place, LocalStore(), seen)
        if written.expected and seen["read by Spark"] < SPARK_TABLES * SCALE:
            waiting.append((place.path, written))
            seen["read by Spark"] += 1
        if len(waiting) == SPARK_TABLES_A_QUERY:
            read_by_spark(spark, waiting)
            seen["queries"] += 1
            waiting.clear()

    prop()
    tell(capsys, "lossless for Spark", "local disk", seen)
    assert not waiting
    assert seen["read by Spark"] == SPARK_TABLES * SCALE


def read_by_spark(spark: Any, waiting: list[tuple[Path, Written]]) -> None:
    """Many tables in one query: each has columns of its own, and a number."""
    frames = []
    for number, (path, written) in enumerate(waiting):
        names = in_files(written)
        frame = spark_frame(spark, path, names).selectExpr(
            f"{number} AS number", *(f"`{name}` AS `{number} {name}`" for name in names)
        )
        frames.append(frame)
    whole = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames).toArrow()
    for number, (_, written) in enumerate(waiting):
        names = in_files(written)
        own = whole.filter(pc.equal(whole["number"], number)).select([f"{number} {name}" for name in names])
        check_read(own.rename_columns(names), written, names)
