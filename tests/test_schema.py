"""Which types a table keeps, that making data fit loses nothing, and partition values as text."""

from __future__ import annotations

import base64
import datetime as dt
import mmap
import re
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, strategies as st

from txsink import paths
from txsink.errors import CorruptError, InvalidRequestError
from txsink.records import Column
from txsink.schema import (
    check_partition_columns,
    columns_of,
    folded,
    merge,
    partition_text,
    partition_values,
    schema_of,
    storable,
)
from txsink.staging.conform import conform, require_kept, require_shallow

KEPT: list[pa.DataType] = [
    *(pa.null(), pa.bool_(), pa.string(), pa.binary(), pa.date32(), pa.float32(), pa.float64()),
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.decimal128(38, 10), pa.decimal128(3, 3)),
    pa.list_(pa.struct([("a", pa.int8()), ("b", pa.map_(pa.string(), pa.list_(pa.date32())))])),
]
OF_ARROW: list[pa.DataType] = [
    *(pa.float16(), pa.time32("ms"), pa.time64("us"), pa.time64("ns"), pa.timestamp("ns"), pa.timestamp("ns", "UTC")),
    *(pa.decimal256(39, 0), pa.decimal256(76, 76)),
]
ZONED = dt.datetime(2026, 1, 31, 12, tzinfo=dt.timezone.utc)
NAIVE = ZONED.replace(tzinfo=None)
LISTS: list[Any] = [[1, 2], None, [], [3]]
CHANGED: list[tuple[pa.DataType, pa.DataType, list[Any]]] = [
    (pa.dictionary(pa.int32(), pa.string()), pa.string(), ["a", None, "a"]),
    (pa.dictionary(pa.int8(), pa.timestamp("ns")), pa.timestamp("us"), [NAIVE, None]),
    (pa.dictionary(pa.uint32(), pa.string_view()), pa.string(), ["a" * 40, None]),
    (pa.list_(pa.dictionary(pa.int32(), pa.large_string())), pa.list_(pa.string()), [["a", None], None]),
    (pa.large_string(), pa.string(), ["a", None]),
    (pa.string_view(), pa.string(), ["a" * 40, None]),
    (pa.large_binary(), pa.binary(), [b"a", None]),
    (pa.binary_view(), pa.binary(), [b"a" * 40, None]),
    (pa.binary(2), pa.binary(), [b"ab", None]),
    (pa.timestamp("s"), pa.timestamp("us"), [NAIVE, None]),
    (pa.timestamp("ms"), pa.timestamp("us"), [NAIVE, None]),
    (pa.timestamp("ns"), pa.timestamp("us"), [NAIVE, None]),
    (pa.timestamp("ns", "Europe/Berlin"), pa.timestamp("us", "UTC"), [ZONED, None]),
    (pa.timestamp("us", "+02:00"), pa.timestamp("us", "UTC"), [ZONED, None]),
    (pa.float16(), pa.float32(), [1.5, None]),
    (pa.date64(), pa.date32(), [dt.date(2026, 1, 31), None]),
    (pa.decimal32(5, 2), pa.decimal128(5, 2), [Decimal("1.50"), None]),
    (pa.decimal64(15, 2), pa.decimal128(15, 2), [Decimal("1.50"), None]),
    (pa.decimal256(38, 2), pa.decimal128(38, 2), [Decimal("1.50"), None]),
    (pa.large_list(pa.int8()), pa.list_(pa.int8()), LISTS),
    (pa.list_(pa.int8(), 2), pa.list_(pa.int8()), [[1, 2], None, [3, 4]]),
    (pa.list_view(pa.int8()), pa.list_(pa.int8()), LISTS),
    (pa.large_list_view(pa.int8()), pa.list_(pa.int8()), LISTS),
    (pa.list_view(pa.string_view()), pa.list_(pa.string()), [["a"], None, [], ["b", "c"]]),
    (
        pa.struct([pa.field("a", pa.large_list(pa.field("x", pa.string_view(), nullable=False)), nullable=False)]),
        pa.struct([("a", pa.list_(pa.string()))]),
        [{"a": ["x"]}, {"a": []}],
    ),
    (
        pa.map_(pa.large_string(), pa.list_(pa.timestamp("ns"))),
        pa.map_(pa.string(), pa.list_(pa.timestamp("us"))),
        [[("k", [NAIVE])], None],
    ),
]
REFUSED: list[tuple[pa.DataType, str]] = [
    (pa.time32("ms"), "c"),
    (pa.time64("us"), "c"),
    (pa.duration("us"), "c"),
    (pa.month_day_nano_interval(), "c"),
    (pa.uuid(), "c"),
    (pa.json_(), "c"),
    (pa.dense_union([pa.field("a", pa.int32())]), "c"),
    (pa.decimal256(39, 2), "c"),
    (pa.decimal128(5, -2), "c"),
    (pa.decimal128(2, 3), "c"),
    (pa.struct([]), "c"),
    (pa.list_(pa.duration("us")), "c.element"),
    (pa.list_(pa.list_view(pa.int8())), "c.element"),
    (pa.list_(pa.run_end_encoded(pa.int32(), pa.int8())), "c.element"),
    (pa.struct([("a", pa.struct([("b", pa.time64("us"))]))]), "c.a.b"),
    (pa.map_(pa.string(), pa.uuid()), "c.value"),
    (pa.map_(pa.uuid(), pa.string()), "c.key"),
    (pa.dictionary(pa.int8(), pa.duration("us")), "c"),
]


def one(kind: pa.DataType, name: str = "c") -> pa.Schema:
    return pa.schema([pa.field(name, kind)])


def array_of(values: list[Any], kind: pa.DataType) -> pa.Array[Any]:
    if not isinstance(kind, pa.DictionaryType):
        return pa.array(values, kind)
    plain = pa.array(values).dictionary_encode()
    return pa.DictionaryArray.from_arrays(plain.indices.cast(kind.index_type), plain.dictionary.cast(kind.value_type))


def columns(**kinds: pa.DataType) -> tuple[Column, ...]:
    return columns_of(pa.schema(list(kinds.items())))


# -- storable and conform ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KEPT, ids=str)
def test_a_type_that_spark_reads_is_kept_as_it_is(kind: pa.DataType) -> None:
    assert storable(one(kind)) == one(kind)


@pytest.mark.parametrize("kind", OF_ARROW, ids=str)
def test_a_type_of_arrow_is_kept_where_the_tables_types_are_arrows(kind: pa.DataType) -> None:
    for form in (kind, pa.list_(kind), pa.struct([("x", kind)]), pa.map_(pa.string(), kind)):
        given = pa.schema([("c", form)])
        assert storable(given, types="arrow") == given
        assert schema_of(columns_of(given, "arrow")) == given
    with pytest.raises(InvalidRequestError, match="no text form") as refused:
        check_partition_columns(["c"], pa.schema([("c", kind), ("x", pa.int8())]))
    assert refused.value.context == {"column": "c", "type": str(kind)}


@pytest.mark.parametrize("kind", [pa.duration("us"), pa.decimal128(5, -1), pa.decimal256(50, 51)], ids=str)
def test_a_type_that_no_files_tell_is_refused_where_the_tables_types_are_arrows_too(kind: pa.DataType) -> None:
    with pytest.raises(InvalidRequestError, match=f"'c' is of type {re.escape(str(kind))}, which no table holds"):
        storable(one(kind), types="arrow")
    with pytest.raises(InvalidRequestError, match="which Spark cannot read"):
        storable(one(kind))


@pytest.mark.parametrize(("kind", "stored", "values"), CHANGED, ids=lambda value: str(value)[:40])
def test_another_representation_is_stored_plainly_with_the_same_values(
    kind: pa.DataType, stored: pa.DataType, values: list[Any]
) -> None:
    assert storable(one(kind)) == one(stored)
    # Slices too: a cast that forgets the offset passes on whole arrays only.
    table = pa.table({"c": pa.chunked_array([array_of(values, kind), array_of(values, kind).slice(1)])})
    plain = conform(table, storable(table.schema))
    plain.validate(full=True)
    assert plain.schema == one(stored)
    assert plain["c"].to_pylist() == pa.array(values + values[1:], stored).to_pylist()
    batch = pa.record_batch({"c": array_of(values, kind)})
    assert conform(batch, storable(batch.schema)).column(0).to_pylist() == pa.array(values, stored).to_pylist()


def test_run_end_encoded_values_are_stored_plainly() -> None:
    table = pa.table({"c": pc.call_function("run_end_encode", [pa.array(["a", "a", None])])})
    assert conform(table, storable(table.schema)).to_pydict() == {"c": ["a", "a", None]}


def test_a_table_without_rows_takes_the_stored_types() -> None:
    for kind, stored, _ in CHANGED:
        assert conform(one(kind).empty_table(), one(stored)).schema == one(stored)


def test_data_that_fits_already_is_not_copied() -> None:
    table = pa.table({"c": [1, 2, 3]})
    assert conform(table, storable(table.schema)) is table


@pytest.mark.parametrize(("kind", "path"), REFUSED, ids=str)
def test_a_type_that_spark_cannot_read_is_refused_by_the_columns_name(kind: pa.DataType, path: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        storable(one(kind), "stage it")
    assert caught.value.attempted == "stage it"
    assert repr(path) in caught.value.found
    assert caught.value.context["column"] == path


@pytest.mark.parametrize("prefix", ["", "c."])
def test_names_that_are_empty_or_hold_nul_or_differ_only_by_case_are_refused(prefix: str) -> None:
    for fields, found in (
        ([("Day", pa.int8()), ("day", pa.int8())], f"'{prefix}Day' and '{prefix}day' have the same name"),
        ([("a", pa.int8()), ("a", pa.int8())], f"'{prefix}a' and '{prefix}a' have the same name"),
        ([("", pa.int8())], "is empty"),
        ([("a\x00", pa.int8())], "NUL"),
    ):
        given_schema = pa.schema(fields)
        with pytest.raises(InvalidRequestError, match=found):
            storable(one(pa.struct(list(given_schema))) if prefix else given_schema)


def test_every_field_is_nullable_and_without_metadata() -> None:
    inner = pa.struct([pa.field("b", pa.int8(), nullable=False, metadata={"k": "v"})])
    stored = storable(pa.schema([pa.field("a", pa.list_(inner), nullable=False, metadata={"k": "v"})], {"k": "v"}))
    assert stored.metadata is None
    assert stored.field("a").nullable
    assert stored.field("a").metadata is None
    assert stored.field("a").type.value_type.field("b").nullable
    assert stored.field("a").type.value_type.field("b").metadata is None


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1001], pa.timestamp("ns")),
        pa.array([[1001]], pa.list_(pa.timestamp("ns"))),
        pa.array([2**60], pa.timestamp("s")),
        pa.array([None, [2**60]], pa.list_(pa.timestamp("s"))),
        pa.array([[("a", {"x": 2**60})]], pa.map_(pa.string(), pa.struct([("x", pa.timestamp("s"))]))),
        pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([2**60], pa.timestamp("s"))),
        pa.array([86_400_000 + 1], pa.int64()).view(pa.date64()),
    ],
    ids=lambda array: str(array.type),
)
def test_a_value_that_does_not_fit_is_refused_by_the_columns_name(array: pa.Array[Any]) -> None:
    table = pa.table({"when": array})
    with pytest.raises(InvalidRequestError, match=r"column 'when' does not fit .* Cast it to") as caught:
        conform(table, storable(table.schema))
    assert caught.value.context["column"] == "when"


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        (pa.decimal256(39, 2), "Cast it to a decimal of at most 38 digits and a scale from 0 to its precision"),
        (pa.time32("ms"), "Cast it to an integer or to a string"),
        (pa.duration("s"), "Cast it to an integer or to a string"),
        (pa.month_day_nano_interval(), "Cast it to an integer or to a string"),
        (pa.uuid(), "Cast it to its storage type, fixed_size_binary[16]"),
        (pa.struct([]), "Give the struct a field, or drop it"),
        (pa.dense_union([pa.field("a", pa.int8())]), "Cast it to a type the documentation of txsink.schema lists"),
    ],
    ids=str,
)
def test_each_type_that_no_table_keeps_has_an_advice_of_its_own(kind: pa.DataType, advice: str) -> None:
    for form in (kind, pa.list_(kind)):
        with pytest.raises(InvalidRequestError) as caught:
            storable(one(form))
        assert caught.value.advice.startswith(advice)
        assert caught.value.context["type"] == str(kind)


STRUCT, LIST = pa.struct([("x", pa.int64())]), pa.list_(pa.int64())


@pytest.mark.parametrize(
    ("known", "new"),
    [
        *((pa.int64(), kind) for kind in (pa.bool_(), pa.float32(), pa.string(), STRUCT, LIST)),
        *((pa.uint64(), kind) for kind in (pa.bool_(), pa.float32(), pa.date32())),
        *((STRUCT, kind) for kind in (pa.int64(), LIST, pa.struct([("y", pa.int64())]))),
        *((LIST, kind) for kind in (pa.int64(), STRUCT, pa.map_(pa.int64(), pa.int64()))),
        (pa.float64(), pa.int8()),
        (pa.decimal128(9, 2), pa.int8()),
    ],
    ids=str,
)
def test_data_of_another_kind_is_not_converted(known: pa.DataType, new: pa.DataType) -> None:
    """However few bits it has."""
    for around in (lambda kind: kind, pa.list_):
        with pytest.raises(InvalidRequestError, match=r"column 'c' is .* in the table and .* in the data"):
            merge(columns(c=around(known)), columns(c=around(new)), merge_schema=True, is_converted=True)


def test_a_recorded_type_with_a_stray_character_is_not_guessed() -> None:
    (good,) = columns(c=pa.int64())
    for odd in ("!", "\n", " "):
        bad = Column(good.name, good.type, good.arrow[:8] + odd + good.arrow[8:])
        with pytest.raises(CorruptError, match="read the type of column 'c'"):
            schema_of((bad,))


def nested(depth: int, kind: pa.DataType) -> pa.DataType:
    for _ in range(depth):
        kind = pa.list_(kind) if kind.id % 2 else pa.struct([("x", kind)])
    return kind


def test_a_column_may_be_nested_48_deep_and_no_deeper() -> None:
    for inner in (pa.int64(), pa.string()):
        require_shallow(pa.schema([("a", pa.int8()), ("c", nested(48, inner))]), "write rows")
        with pytest.raises(InvalidRequestError, match="column 'c' is nested more than 48 deep"):
            require_shallow(pa.schema([("a", pa.int8()), ("c", nested(49, inner))]), "write rows")


def test_columns_are_those_that_a_table_of_such_types_keeps() -> None:
    given = columns_of(pa.schema([("a", pa.int64()), ("h", pa.float16())]), "arrow")
    require_kept(given, "arrow", "prepare")
    require_kept(given[:1], "spark", "prepare")
    with pytest.raises(InvalidRequestError, match="column 'h' is halffloat, and a table of types='spark' keeps float"):
        require_kept(given, "spark", "prepare")


@pytest.mark.parametrize("at", range(5))
def test_the_very_value_that_does_not_fit_is_named(at: int) -> None:
    values = [dt.datetime(2026, 1, 31)] * 5  # noqa: DTZ001
    table = pa.table({"when": pa.array(values, pa.timestamp("ns"))})
    odd = pa.array([0] * at + [1001 + at] + [0] * (4 - at), pa.timestamp("ns"))
    with pytest.raises(InvalidRequestError) as caught:
        conform(table.set_column(0, "when", odd), storable(table.schema))
    assert caught.value.context["value"] == f"1970-01-01 00:00:00.00000100{1 + at}"


def test_a_long_value_that_does_not_fit_is_cut_after_80_characters() -> None:
    table = pa.table({"c": pa.array([[1.5] * 40], pa.list_(pa.float64()))})
    with pytest.raises(InvalidRequestError) as caught:
        conform(table, pa.schema([("c", pa.list_(pa.int64()))]))
    assert caught.value.context["value"] == str([1.5] * 40)[:80]


def test_missing_columns_are_null_and_the_order_is_the_targets() -> None:
    target = pa.schema([("a", pa.int64()), ("b", pa.list_(pa.string())), ("c", pa.string())])
    found = conform(pa.table({"c": ["x"], "a": [1]}), target)
    assert found.schema == target
    assert found.to_pylist() == [{"a": 1, "b": None, "c": "x"}]


def test_a_small_slice_of_strings_beyond_two_gibibytes_fits() -> None:
    start = (1 << 31) + 10
    offsets = pa.py_buffer(struct.pack("<3q", 0, start, start + 3))
    pages = mmap.mmap(-1, start + 64)  # never touched but for the last one
    pages[start : start + 3] = b"end"
    strings = pa.Array.from_buffers(pa.large_string(), 2, [None, offsets, pa.py_buffer(pages)])
    table = pa.table({"c": strings.slice(1)})
    assert conform(table, storable(table.schema)).to_pydict() == {"c": ["end"]}


# -- columns -------------------------------------------------------------------------------------------


def test_columns_give_back_the_stored_schema() -> None:
    schema = pa.schema([pa.field(f"c{number}", kind) for number, kind in enumerate(KEPT)])
    assert schema_of(columns_of(schema)) == schema
    assert [column.type for column in columns_of(schema)] == [str(kind) for kind in KEPT]


def test_columns_of_a_schema_that_is_not_stored_are_those_of_the_stored_one() -> None:
    assert columns_of(one(pa.large_string())) == columns_of(one(pa.string()))


@pytest.mark.parametrize(
    "arrow",
    ["", "not base64!", "AAAA", columns(other=pa.int8())[0].arrow, columns(c=pa.int8())[0].arrow[:-40]],
    ids=["empty", "no base64", "no schema", "another name", "torn"],
)
def test_a_recorded_type_that_cannot_be_read_is_corrupt_by_name(arrow: str) -> None:
    with pytest.raises(CorruptError, match="column 'c'"):
        schema_of((Column("c", "int8", arrow),))


def test_a_recorded_type_that_no_table_holds_is_corrupt() -> None:
    exact = columns_of(one(pa.int64()))[0]
    foreign = pa.schema([pa.field("c", pa.duration("us"))]).serialize().to_pybytes()
    with pytest.raises(CorruptError):
        schema_of((Column("c", exact.type, base64.b64encode(foreign).decode()),))


# -- merge ---------------------------------------------------------------------------------------------


def test_the_first_columns_need_no_permission() -> None:
    new = columns(a=pa.int64(), b=pa.string())
    assert merge((), new, merge_schema=False) == new


def test_the_tables_order_stands_and_new_columns_follow() -> None:
    known = columns(a=pa.int64(), b=pa.string())
    new = columns(c=pa.int8(), b=pa.string())
    assert merge(known, new, merge_schema=True) == (*known, *columns(c=pa.int8()))
    assert merge(known, columns(b=pa.string()), merge_schema=False) == known


def test_a_new_column_without_permission_is_named_with_what_to_do() -> None:
    with pytest.raises(
        InvalidRequestError, match=r"^add: .*'amuont'. Did you mean 'amount'[?] Else pass merge_schema=True"
    ):
        merge(columns(amount=pa.int64()), columns(amuont=pa.int64()), merge_schema=False, what="add")


def test_a_column_that_differs_by_case_is_refused_even_with_permission() -> None:
    with pytest.raises(InvalidRequestError, match="'Amount' differs only by case from the table's 'amount'"):
        merge(columns(amount=pa.int64()), columns(Amount=pa.int64()), merge_schema=True)


@pytest.mark.parametrize(
    ("known", "new"),
    [
        (pa.int64(), pa.int32()),
        (pa.int32(), pa.int64()),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.list_(pa.int8()), pa.list_(pa.int16())),
        (pa.list_(pa.int8()), pa.int8()),
        (pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int16())),
        (pa.struct([("a", pa.int8())]), pa.struct([("b", pa.int8())])),
        (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int8()), ("b", pa.int8())])),
        (pa.struct([("a", pa.int8()), ("b", pa.int8())]), pa.struct([("a", pa.int8())])),
        (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int16())])),
    ],
    ids=str,
)
def test_a_changed_type_is_refused_with_both_types(known: pa.DataType, new: pa.DataType) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        merge(columns(c=known), columns(c=new), merge_schema=True)
    assert f"column 'c' is {known} in the table and {new} in the data" in str(caught.value)


WIDER: list[tuple[pa.DataType, pa.DataType]] = [
    (pa.int64(), pa.int32()),
    (pa.int16(), pa.uint8()),
    (pa.int64(), pa.uint32()),
    (pa.uint64(), pa.uint8()),
    (pa.float64(), pa.float32()),
    (pa.decimal128(38, 2), pa.decimal128(5, 2)),
    (pa.decimal128(7, 4), pa.decimal128(5, 2)),
    (pa.list_(pa.int64()), pa.list_(pa.int8())),
    (pa.map_(pa.int64(), pa.float64()), pa.map_(pa.int8(), pa.float32())),
    (pa.struct([("a", pa.int64()), ("b", pa.list_(pa.int8()))]), pa.struct([("a", pa.int8()), ("b", pa.null())])),
]
NOT_WIDER: list[tuple[pa.DataType, pa.DataType]] = [
    (pa.int32(), pa.int64()),
    (pa.uint16(), pa.int8()),
    (pa.uint64(), pa.int8()),
    (pa.int64(), pa.uint64()),
    (pa.int32(), pa.uint32()),
    (pa.float64(), pa.int32()),
    (pa.float32(), pa.float64()),
    (pa.decimal128(5, 1), pa.decimal128(5, 2)),
    (pa.decimal128(5, 3), pa.decimal128(5, 2)),
    (pa.decimal128(20, 0), pa.int64()),
    (pa.timestamp("us"), pa.date32()),
    (pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int8()), ("b", pa.int8())])),
    (pa.struct([("a", pa.int64()), ("b", pa.int8())]), pa.struct([("a", pa.int8())])),
    (pa.map_(pa.string(), pa.int8()), pa.list_(pa.int8())),
]


@pytest.mark.parametrize(("wide", "narrow"), WIDER, ids=str)
def test_data_of_a_narrower_type_fits_where_it_is_converted(wide: pa.DataType, narrow: pa.DataType) -> None:
    known = columns(c=wide)
    assert merge(known, columns(c=narrow), merge_schema=False, is_converted=True) == known
    with pytest.raises(InvalidRequestError):
        merge(known, columns(c=narrow), merge_schema=True)


@pytest.mark.parametrize(("wide", "narrow"), NOT_WIDER, ids=str)
def test_data_of_a_type_that_the_column_cannot_hold_is_refused(wide: pa.DataType, narrow: pa.DataType) -> None:
    with pytest.raises(InvalidRequestError):
        merge(columns(c=wide), columns(c=narrow), merge_schema=True, is_converted=True)


@pytest.mark.parametrize(("one", "other"), [("ID", "id"), ("ſ", "S"), ("K", "k"), ("ı", "I"), ("İ", "i"), ("ς", "Σ")])
def test_names_that_are_one_name_to_spark_are_refused(one: str, other: str) -> None:
    assert folded(one) == folded(other)
    with pytest.raises(InvalidRequestError):
        merge(columns(**{one: pa.int8()}), columns(**{other: pa.int8()}), merge_schema=True)
    with pytest.raises(InvalidRequestError):
        storable(pa.schema([(one, pa.int8()), (other, pa.int8())]))


def test_names_that_are_two_names_to_spark_are_two_names() -> None:
    assert len({folded(name) for name in ("straße", "strasse", "STRASE", "i_d", "id")}) == 5


def test_null_fits_every_type_in_both_directions_at_any_depth() -> None:
    full = columns(
        a=pa.int64(),
        b=pa.list_(pa.string()),
        c=pa.map_(pa.string(), pa.int8()),
        d=pa.struct([("x", pa.int8()), ("y", pa.list_(pa.int8()))]),
    )
    empty = columns(
        a=pa.null(),
        b=pa.list_(pa.null()),
        c=pa.map_(pa.string(), pa.null()),
        d=pa.struct([("x", pa.null()), ("y", pa.list_(pa.null()))]),
    )
    assert merge(full, empty, merge_schema=False) == full
    assert merge(empty, full, merge_schema=False) == full
    assert merge(columns(a=pa.null()), columns(a=pa.null(), b=pa.int8()), merge_schema=True) == columns(
        a=pa.null(), b=pa.int8()
    )


@pytest.mark.parametrize("kind", [pa.list_(pa.null()), pa.struct([("x", pa.list_(pa.null()))])], ids=str)
def test_a_nested_part_without_a_type_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(InvalidRequestError, match=r"column 'c\..* has no type yet"):
        merge((), columns(c=kind), merge_schema=True)


# -- partition columns ---------------------------------------------------------------------------------

TABLE = pa.schema(
    [
        ("day", pa.date32()),
        ("n", pa.int64()),
        ("_hidden", pa.string()),
        (".dot", pa.string()),
        ("raw", pa.binary()),
        ("tags", pa.list_(pa.string())),
    ]
)


def test_columns_of_a_type_with_a_text_form_can_partition() -> None:
    for kind in (*(kind for kind in KEPT if not pa.types.is_nested(kind) and kind != pa.binary()),):
        check_partition_columns(["c"], pa.schema([("c", kind), ("x", pa.int8())]))
    check_partition_columns([], TABLE)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["week"], "no such column"),
        (["Day"], "Did you mean 'day'?"),
        (["_hidden"], "readers hide"),
        ([".dot"], "readers hide"),
        (["raw"], "a value of type binary"),
        (["tags"], "a value of type list"),
        (["day", "n", "day"], "named twice"),
    ],
)
def test_a_column_that_cannot_partition_is_refused_by_name(names: list[str], found: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_partition_columns(names, TABLE)
    assert found in str(caught.value)
    assert repr(names[0]) in str(caught.value)


def test_partitioning_by_every_column_is_refused() -> None:
    """S16."""
    with pytest.raises(InvalidRequestError, match="every column is a partition column"):
        check_partition_columns(["a", "b"], pa.schema([("a", pa.int8()), ("b", pa.int8())]))


SPELLED: list[tuple[pa.DataType, list[Any], list[str | None]]] = [
    (pa.string(), ["a/b", None, "ü"], ["a/b", None, "ü"]),
    (pa.bool_(), [True, False, None], ["true", "false", None]),
    (pa.int8(), [-1, 0], ["-1", "0"]),
    (pa.uint64(), [2**64 - 1], ["18446744073709551615"]),
    (pa.date32(), [dt.date(2026, 1, 31), dt.date(1, 1, 1)], ["2026-01-31", "0001-01-01"]),
    (pa.timestamp("us"), [NAIVE, NAIVE.replace(microsecond=500_000)], ["2026-01-31 12:00:00", "2026-01-31 12:00:00.5"]),
    (pa.timestamp("us"), [NAIVE.replace(microsecond=1), None], ["2026-01-31 12:00:00.000001", None]),
    (pa.timestamp("us", "UTC"), [ZONED, None], ["2026-01-31 12:00:00", None]),
    (pa.decimal128(20, 10), [Decimal("1.5"), Decimal("1E-10"), None], ["1.5000000000", "0.0000000001", None]),
    (pa.decimal128(5, 0), [Decimal(12300)], ["12300"]),
    (pa.float64(), [1.0, 1e16, -1.5e-7, 123.456, 1e7], ["1.0", "1.0E16", "-1.5E-7", "123.456", "1.0E7"]),
    (pa.float64(), [0.001, 9999999.0, -0.0, 0.0001], ["0.001", "9999999.0", "-0.0", "1.0E-4"]),
    (pa.float64(), [float("inf"), float("-inf")], ["Infinity", "-Infinity"]),
    (pa.float32(), [1.1, 1e10], ["1.1", "1.0E10"]),
    (pa.null(), [None], [None]),
]


@pytest.mark.parametrize(("kind", "values", "texts"), SPELLED, ids=str)
def test_values_are_spelled_as_spark_does_and_read_back(
    kind: pa.DataType, values: list[Any], texts: list[str | None]
) -> None:
    array = pa.array(values, kind)
    assert partition_text(array, "c") == texts
    assert partition_values(texts, kind).equals(array)


def test_not_a_number_is_spelled_and_read_back() -> None:
    assert partition_text(pa.array([float("nan")]), "c") == ["NaN"]
    assert pc.is_nan(partition_values(["NaN"], pa.float64())).to_pylist() == [True]


@pytest.mark.parametrize(
    ("array", "found"),
    [
        (pa.array(["a", ""]), "is empty, which every reader takes for null"),
        (pa.array(["a\x00b"]), "NUL"),
        (pa.array(["__HIVE_DEFAULT_PARTITION__"]), "stands for null"),
        (pa.array(["x" * 300]), "takes 304 bytes in a path"),
        (pa.array(["/" * 100]), "takes 304 bytes in a path"),
        (pa.array(["ü" * 126]), "takes 256 bytes in a path"),
        (pa.array([2**62], pa.timestamp("us")), "outside the years"),
        (pa.array([3_000_000], pa.int32()).view(pa.date32()), "outside the years"),
        (pa.array([-800_000], pa.int32()).view(pa.date32()), "outside the years"),
        (pa.array([-719_163], pa.int32()).view(pa.date32()), "outside the years 0001 to 9999: 0000-12-31"),
        (pa.array([-719_163 * 86_400_000_000], pa.int64()).cast(pa.timestamp("us")), "outside the years 0001"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_value_that_no_path_can_hold_is_refused_by_the_columns_name(array: pa.Array[Any], found: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        partition_text(array, "key")
    assert "'key'" in caught.value.found
    assert found in caught.value.found


def test_the_longest_value_that_fits_is_taken() -> None:
    assert partition_text(pa.array(["x" * 251]), "key") == ["x" * 251]


def test_a_directory_that_is_no_value_of_the_type_is_corrupt() -> None:
    for text, kind in (("x", pa.int64()), ("2026-13-01", pa.date32()), ("noon", pa.timestamp("us", "UTC"))):
        with pytest.raises(CorruptError, match="read partition values"):
            partition_values([text], kind)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), min_size=1, max_size=5))
def test_no_string_leaves_its_root_or_changes_on_the_way(values: list[str]) -> None:
    for value in values:
        try:
            texts = partition_text(pa.array([value]), "key")
        except InvalidRequestError:
            assert not value or "\x00" in value or len(paths.escape(value).encode()) > 251
            continue
        path = f"{paths.partition_directory(['key'], texts)}/{paths.data_name(1, 0, 'abcd')}"
        assert paths.is_data_path(path)
        assert path.count("/") == 1
        assert paths.parse_partitions(path) == {"key": value}


@given(
    st.one_of(
        st.tuples(st.just(pa.int64()), st.integers(-(2**63), 2**63 - 1)),
        st.tuples(st.just(pa.float64()), st.floats(allow_nan=False)),
        st.tuples(st.just(pa.float32()), st.floats(allow_nan=False, width=32)),
        st.tuples(st.just(pa.timestamp("us")), st.datetimes()),
        st.tuples(st.just(pa.date32()), st.dates()),
        st.tuples(st.just(pa.decimal128(38, 9)), st.decimals(-(10**20), 10**20, places=9)),
    )
)
def test_every_value_of_a_partition_type_is_read_back_exactly(typed: tuple[pa.DataType, Any]) -> None:
    kind, value = typed
    array = pa.array([value], kind)
    assert partition_values(partition_text(array, "c"), kind).equals(array)
