"""What a write hands to Spark's tasks, against what the staged files hold.

Promises: an epoch whose files do not hold as many rows as were handed over is refused, wherever the difference comes
from; so is one with a value that could not be read back: text that is not UTF-8, a key twice in a map, and a partition
value that the name of a directory cannot tell.
Relies on: Spark's observation, which counts each task once however often it was tried.
Does not promise: to compare values. Spark's writer is believed in what it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

from pyspark.sql import Column, DataFrame, Observation, SparkSession, functions as sql
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructType

from pyspark_txsink import session
from pyspark_txsink.types import quoted
from txsink.errors import InternalError, InvalidRequestError
from txsink.paths import NULL_PARTITION
from txsink.staging.epoch_stager import StagedFile

_TEXT = "column {!r} holds text that is not UTF-8: 0x"
_KEY = "column {!r} holds a map with "
_NAME = "partition column {!r} holds {!r}, which stands for null in the names of directories"
_IsBad: TypeAlias = Callable[[Column, DataType], Column | None]


class Counted:
    """A DataFrame whose rows are counted, and looked at, while they are written."""

    def __init__(self, df: DataFrame, partition_columns: Sequence[str]) -> None:
        self._observed = Observation()
        rows = sql.count(sql.lit(1)).alias("rows")
        faults = [fault for field in df.schema.fields for fault in _faults(field.name, field.dataType)]
        texts = [name for name in partition_columns if df.schema[name].dataType == StringType()]
        faults += [_taken_for_null(name, text) for name in texts for text in ("", NULL_PARTITION)]
        # One of them, whichever: a metric for each column would be sent by each task.
        found = [sql.max(sql.coalesce(*faults)).alias("fault")] if faults else []
        self.df = df.observe(self._observed, rows, *found)
        self._spark = df.sparkSession

    def check(self, staged: Sequence[StagedFile], uri: str) -> None:
        """Refuse what is not all of it, or not what was handed over."""
        observed = self._observed.get
        fault = observed.get("fault")
        if fault is not None:
            raise InvalidRequestError("write rows", fault, "Change the value: no reader gives it back")
        handed = observed["rows"]
        found = sum(one.file.rows for one in staged)
        if handed == found:
            return
        what, difference = f"stage in {uri}", f"Spark wrote {handed} rows, and {found} of them are found here"
        if uri.startswith("file:") and not is_one_machine(self._spark):
            raise InvalidRequestError(
                what,
                f"{difference}: other machines have other disks",
                "Give a path that the driver and all executors share: hdfs://, s3://, or a file system mounted by all",
            )
        raise InternalError(what, difference, "Nothing was committed. Report it, with Spark's version and settings")


def is_one_machine(spark: SparkSession) -> bool:
    """Whether the executors have the file system of this process."""
    return not session.is_connect(spark) and spark.sparkContext.master.startswith("local")


def _faults(name: str, kind: DataType) -> list[Column]:
    """For a row whose value in the column no reader gives back: what is wrong with it, else null."""
    column = sql.col(quoted(name))
    text = sql.hex(sql.substring(column.cast("binary"), 1, 32)) if kind == StringType() else sql.lit("..")
    key = _first_repeated(column) if isinstance(kind, MapType) and kind.keyType != BinaryType() else sql.lit("a key")
    looks = [(_is_not_utf8, _TEXT, text, ""), (_has_key_twice, _KEY, key, " twice")]
    bad = [(_in_any_part(column, kind, is_bad), sql.lit(said.format(name)), *shown) for is_bad, said, *shown in looks]
    return [sql.when(one, sql.concat(said, value, sql.lit(end))) for one, said, value, end in bad if one is not None]


def _is_not_utf8(column: Column, kind: DataType) -> Column | None:
    return ~sql.is_valid_utf8(column) if isinstance(kind, StringType) else None


def _has_key_twice(column: Column, kind: DataType) -> Column | None:
    if not isinstance(kind, MapType):
        return None
    keys = sql.map_keys(column)
    return sql.size(sql.array_distinct(keys)) < sql.size(keys)


def _first_repeated(column: Column) -> Column:
    keys = sql.map_keys(column)
    again = sql.filter(keys, lambda key: sql.size(sql.filter(keys, lambda other: other.eqNullSafe(key))) > 1)
    return sql.coalesce(sql.concat(sql.lit("the key "), sql.get(again, 0).cast("string")), sql.lit("a key"))


def _in_any_part(column: Column, kind: DataType, is_bad: _IsBad) -> Column | None:
    """Whether the value, or a part of it at any depth, is bad; null for a type that has no such parts."""
    found = [is_bad(column, kind)]
    if isinstance(kind, ArrayType):
        found.append(_in_any_element(column, kind.elementType, is_bad))
    elif isinstance(kind, MapType):
        found.append(_in_any_element(sql.map_keys(column), kind.keyType, is_bad))
        found.append(_in_any_element(sql.map_values(column), kind.valueType, is_bad))
    elif isinstance(kind, StructType):
        found += [_in_any_part(column.getField(field.name), field.dataType, is_bad) for field in kind.fields]
    some = [sql.coalesce(one, sql.lit(False)) for one in found if one is not None]  # noqa: FBT003 -- a value
    return sql.greatest(*some) if len(some) > 1 else (some[0] if some else None)


def _in_any_element(column: Column, element: DataType, is_bad: _IsBad) -> Column | None:
    if _in_any_part(column, element, is_bad) is None:
        return None
    return sql.exists(column, lambda one: cast("Column", _in_any_part(one, element, is_bad)))


def _taken_for_null(name: str, text: str) -> Column:
    return sql.when(sql.col(quoted(name)) == text, sql.lit(_NAME.format(name, text)))
