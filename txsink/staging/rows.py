"""Whatever a caller passes to `write`, as a stream of Arrow tables.

Promises: a stream is taken batch by batch; names and types are as the caller gave them; Python values take the
type the table already has for their column, exactly or not at all; what is no tabular data is InvalidRequestError
saying what is accepted.
Relies on: `values` for Python objects; the Arrow C data interface; pandas and polars only where the caller has
imported them. In a pandas frame NaN and NaT are null, as they are to pandas.
Does not promise: that the tables outlive the caller's next step. Where their memory may change under us
(numpy's, which pandas, polars and pyarrow lend on), `is_borrowed` says so; a stream hands its memory over.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, NamedTuple

import pyarrow as pa

from txsink.errors import InvalidRequestError
from txsink.staging import values as python_values
from txsink.staging.conform import DEPTH_MAX, too_deep

_ROWS_PER_TABLE = 10_000
_CONTAINERS = (list, tuple, set, frozenset, Mapping)
_PLAIN = "Give a list of plain values, or an Arrow array"
_ACCEPTED = (
    "Pass an Arrow table, batch or reader, a pyarrow dataset, a pandas or polars frame, any object with "
    "__arrow_c_stream__ or __arrow_c_array__, an iterable of these, a dict of lists, or an iterable of dicts (rows)"
)


class Rows(NamedTuple):
    """A table, whether its memory is on loan from something mutable, and whether it is all there is."""

    table: pa.Table
    is_borrowed: bool = False
    is_all: bool = False


def tables_of(data: Any, known: Callable[[], pa.Schema], what: str) -> Iterator[Rows]:
    """The rows of `data`. `known()`: the columns the table has at that moment."""
    if isinstance(data, pa.Table):
        yield Rows(data, is_borrowed=True, is_all=True)
    elif isinstance(data, pa.RecordBatch):
        yield Rows(pa.Table.from_batches([data]), is_borrowed=True, is_all=True)
    elif isinstance(data, Mapping):
        yield Rows(_from_columns(data, known(), what), is_borrowed=True, is_all=True)
    elif _is_a(data, "pandas", "DataFrame"):
        yield Rows(_from_pandas(data, what), is_borrowed=True, is_all=True)
    elif _is_a(data, "polars", "LazyFrame"):
        yield from tables_of(data.collect(), known, what)
    elif _is_a(data, "polars", "DataFrame"):
        yield Rows(_checked(lambda: pa.table(_without_objects(data, what)), data, what), is_borrowed=True, is_all=True)
    elif (reader := _reader_of(data, what)) is not None:
        # An empty table first: a stream without batches still has columns.
        yield Rows(reader.schema.empty_table())
        for batch in reader:
            yield Rows(pa.Table.from_batches([batch]))
    elif isinstance(data, Iterable) and not isinstance(data, (str, bytes, bytearray, memoryview)):
        yield from _from_items(data, known, what)
    else:
        raise _refused(data, what)


def _reader_of(data: Any, what: str) -> pa.RecordBatchReader | None:
    """A reader over anything that speaks Arrow; None for what does not."""
    if isinstance(data, pa.RecordBatchReader):
        return data
    if _is_a(data, "pyarrow.dataset", "Dataset"):
        data = data.scanner()
    reader: pa.RecordBatchReader
    if _is_a(data, "pyarrow.dataset", "Scanner"):
        reader = _checked(data.to_reader, data, what)
    elif hasattr(data, "__arrow_c_stream__"):
        reader = _checked(lambda: pa.RecordBatchReader.from_stream(data), data, what)
    elif hasattr(data, "__arrow_c_array__"):
        batch = _checked(lambda: pa.record_batch(data), data, what)
        reader = pa.RecordBatchReader.from_batches(batch.schema, [batch])
    else:
        return None
    return reader


def _from_items(items: Iterable[Any], known: Callable[[], pa.Schema], what: str) -> Iterator[Rows]:
    iterator = iter(items)
    for item in iterator:
        if isinstance(item, Mapping):
            # A list is here already, so its types are inferred from all of it; a generator is taken piece by piece.
            count = None if isinstance(items, (list, tuple)) else _ROWS_PER_TABLE
            mappings = list(islice(chain([item], iterator), count))
            is_all = isinstance(items, (list, tuple)) and len(mappings) == len(items)
            yield Rows(_from_mappings(mappings, known(), what), is_borrowed=True, is_all=is_all)
        elif isinstance(item, (list, tuple)):
            raise _refused(item, what)
        else:
            for rows in tables_of(item, known, what):
                yield rows._replace(is_all=False)


def _from_mappings(rows: list[Any], known: pa.Schema, what: str) -> pa.Table:
    names: dict[Any, None] = {}
    for row in rows:
        if not isinstance(row, Mapping):
            raise _refused(row, what)
        names.update(dict.fromkeys(row))
    if not names:
        raise InvalidRequestError(what, "the rows have no columns", "Name the columns in the rows")
    return _from_columns({name: [row.get(name) for row in rows] for name in names}, known, what)


def _from_columns(columns: Mapping[Any, Any], known: pa.Schema, what: str) -> pa.Table:
    if wrong := [name for name in columns if not isinstance(name, str)]:
        raise InvalidRequestError(what, f"the column name {wrong[0]!r} is no string", "Name columns with strings")
    arrays = {name: _array(values, name, known, what) for name, values in columns.items()}
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise InvalidRequestError(what, f"the columns differ in length: {lengths}", "Give each column the same length")
    return _checked(lambda: pa.table(arrays), columns, what)


def _array(values: Any, name: str, known: pa.Schema, what: str) -> pa.ChunkedArray[Any]:
    if isinstance(values, (str, bytes, Mapping)) or not hasattr(values, "__iter__"):
        raise InvalidRequestError(
            what, f"column {name!r} is of type {type(values).__name__}, not a list of values", _ACCEPTED, column=name
        )
    try:
        if _holds_objects(values):
            values = _objects(values)
        elif isinstance(values, pa.ChunkedArray) or hasattr(values, "__arrow_c_stream__"):
            column = pa.chunked_array(values)
            _check_categories(values, column, name)
            return column
        elif isinstance(values, pa.Array) or hasattr(values, "__arrow_c_array__") or hasattr(values, "__array__"):
            column = pa.chunked_array([pa.array(values)])
            _check_categories(values, column, name)
            return column
        kind = known.field(name).type if name in known.names else pa.null()
        values = list(values)
        if pa.types.is_null(kind):
            _require_shallow(values, name, what)
        return pa.chunked_array([python_values.exact(values, name, None if pa.types.is_null(kind) else kind)])
    except python_values.UnfitError as error:
        raise _unfit(error, what) from error
    except InvalidRequestError:  # a ValueError, too, and it says more
        raise
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidRequestError(
            what, f"the values of column {name!r} are no column: {error}", _PLAIN, column=name
        ) from error


def _require_shallow(values: Iterable[Any], name: object, what: str) -> None:
    """Refuse values nested so deep that pyarrow, which calls itself for each level, would end the process."""
    values = list(values)
    kinds = {kind for kind in set(map(type, values)) if issubclass(kind, _CONTAINERS)}
    level = [value for value in values if type(value) in kinds] if kinds else []
    for _ in range(DEPTH_MAX):
        parts = chain.from_iterable(value.values() if isinstance(value, Mapping) else value for value in level)
        # Each once: a list may hold itself.
        level = list({id(part): part for part in parts if isinstance(part, _CONTAINERS)}.values())
        if not level:
            return
    raise too_deep(name, what)


def _holds_objects(values: Any) -> bool:
    """Whether numpy, pandas or polars holds Python objects here."""
    return str(getattr(values, "dtype", "")).lower() == "object" and hasattr(values, "__iter__")


def _objects(values: Any) -> list[Any]:
    found = values.tolist() if hasattr(values, "tolist") else values
    if not hasattr(values, "isna"):
        return list(found)
    return [None if is_missing else value for value, is_missing in zip(found, values.isna(), strict=True)]


def _unfit(error: python_values.UnfitError, what: str) -> InvalidRequestError:
    advice = "Convert the value yourself, rounding as you see fit, or write it under another name"
    return InvalidRequestError(what, str(error), advice, column=error.path, value=error.value, type=error.type)


def _check_categories(values: Any, column: Any, path: str) -> None:
    """Refuse what pyarrow made of the categories, where pandas holds them as Python objects."""
    categories = getattr(getattr(values, "dtype", None), "categories", None)
    if column.num_chunks and _holds_objects(categories):
        python_values.check(_objects(categories), column.chunk(0).dictionary, path)


def _from_pandas(frame: Any, what: str) -> pa.Table:
    # An index with a name is a column; the default one and what filtering leaves of it are row numbers.
    index = frame.index
    named = any(name is not None for name in index.names)
    if not named and len(frame) and not pa.types.is_integer(_checked(lambda: pa.array(index[:1]).type, frame, what)):
        found = f"its index is of type {index.dtype}, which is no row number, and has no name"
        raise InvalidRequestError(
            what, found, "Name it to store it as a column, or `reset_index(drop=True)` to drop it"
        )
    given = [frame.iloc[:, at] for at in range(frame.shape[1])]
    given += [index.get_level_values(at) for at in range(index.nlevels)] if named else []
    for values in given:
        if _holds_objects(values):
            _require_shallow(values, values.name, what)
    table: pa.Table = _checked(lambda: pa.Table.from_pandas(frame, preserve_index=named), frame, what)
    if table.num_rows != len(frame):
        raise InvalidRequestError(what, f"{len(frame)} rows without a column were given", "Give the rows a column")
    try:
        for name, values, column in zip(table.column_names, given, table.columns, strict=True):
            if _holds_objects(values):
                python_values.check(_objects(values), pa.concat_arrays(column.chunks), name)
            else:
                _check_categories(values, column, name)
    except python_values.UnfitError as error:
        raise _unfit(error, what) from error
    return table.replace_schema_metadata(None)


def _without_objects(frame: Any, what: str) -> Any:
    """The polars frame, which would hand over the addresses of Python objects instead of values."""
    for name, kind in frame.schema.items():
        if str(kind) == "Object":
            found = f"column {name!r} is of polars' type Object, which only its process can read"
            raise InvalidRequestError(what, found, "Give it a type of values", column=name, type="Object")
    return frame


def _checked(make: Callable[[], Any], data: object, what: str) -> Any:
    try:
        return make()
    except InvalidRequestError:  # a ValueError, too, and it says more
        raise
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidRequestError(
            what, f"{_name(data)} cannot be read as a table: {error}", _ACCEPTED, type=_name(data)
        ) from error


def _is_a(data: object, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(data, kind)


def _refused(data: object, what: str) -> InvalidRequestError:
    return InvalidRequestError(what, f"{_name(data)} is no tabular data", _ACCEPTED, type=_name(data))


def _name(data: object) -> str:
    kind = type(data)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
