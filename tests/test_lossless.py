"""Each call of `write` is stored exactly or refused as a whole, and what was stored is what every reader finds.

Tables are drawn: their types, nested to depth 3, and calls in every form, some with values of other types.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import ledger
from lossless import SIGNED, Call, Life, canonical_rows, given_rows, lives
from place import Place
from txsink.errors import InvalidRequestError
from txsink.sink import open_sink
from txsink.store.local import LocalStore
from txsink.store.memory import MemoryStore
from txsink.table import open_log

SCALE = 10 if ledger.is_full() else 1
MEMORY = Path("/dev/shm")  # noqa: S108 -- many small tables
CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example, HealthCheck.filter_too_much]


def tried(tables: int) -> Any:
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
    assert repr(name.split(".")[0]).strip("'") in str(error)
    assert {"type", "given"} & context.keys(), error
    assert call is None or name.split(".")[0] in call.names


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


def tell(capsys: pytest.CaptureFixture[str], what: str, seen: Counter[str]) -> None:
    with capsys.disabled():
        print(f"\n{what}: {', '.join(f'{count:,} {name}' for name, count in seen.items())}")


def test_every_call_is_stored_exactly_or_refused_whole(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    seen: Counter[str] = Counter()

    @tried(4_000)
    @given(lives())
    def prop(life: Life) -> None:
        store = Memory()
        check(life, Place(tmp_path / "T"), store, seen)

    prop()
    tell(capsys, "lossless in memory, txsink and pyarrow", seen)
    assert seen["tables"] >= 4_000 * SCALE
    assert min(seen["calls taken"], seen["calls refused"], seen["rows"]) > 1_000 * SCALE


def test_every_call_is_stored_exactly_or_refused_whole_in_delta_tables(
    capsys: pytest.CaptureFixture[str], directory: Path
) -> None:
    seen: Counter[str] = Counter()

    @tried(1_000)
    @given(st.one_of(lives(stored=SIGNED), lives(stored=SIGNED), lives()))
    def prop(life: Life) -> None:
        place = Place(directory / "T")
        check(life, place, LocalStore(), seen, layout="delta")
        shutil.rmtree(place.path)

    prop()
    tell(capsys, "lossless in Delta tables, txsink and pyarrow", seen)
    assert seen["tables"] >= 1_000 * SCALE
    assert min(seen["calls taken"], seen["calls refused"], seen["rows"]) > 200 * SCALE
