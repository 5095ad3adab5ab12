"""What a write hands to Spark's tasks, against what the staged files hold.

Promises: an epoch whose files do not hold as many rows as were handed over is refused, wherever the difference comes
from; so is one with a value that could not be read back: text that is not UTF-8, and a partition value that the name
of a directory cannot tell.
Relies on: Spark's observation, which counts each task once however often it was tried.
Does not promise: to compare values. Spark's writer is believed in what it writes.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Observation, SparkSession, functions as sql
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from pyspark_txsink import session
from pyspark_txsink.types import quoted
from txsink.errors import InternalError, InvalidRequestError
from txsink.paths import NULL_PARTITION
from txsink.staging.epoch_stager import StagedFile

_TEXT = "column {!r} holds text that is not UTF-8: 0x"
_NAME = "partition column {!r} holds {!r}, which stands for null in the names of directories"


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
    """For a row whose text in the column is not UTF-8: what is wrong with it, else null."""
    column = sql.col(quoted(name))
    bad = _is_bad(column, kind)
    if bad is None:
        return []
    value = sql.hex(sql.substring(column.cast("binary"), 1, 32)) if kind == StringType() else sql.lit("..")
    return [sql.when(bad, sql.concat(sql.lit(_TEXT.format(name)), value))]


def _is_bad(column: Column, kind: DataType) -> Column | None:
    if isinstance(kind, StringType):
        return ~sql.is_valid_utf8(column)
    if isinstance(kind, ArrayType):
        return _is_any(column, kind.elementType)
    if isinstance(kind, MapType):
        return _any([_is_any(sql.map_keys(column), kind.keyType), _is_any(sql.map_values(column), kind.valueType)])
    if isinstance(kind, StructType):
        return _any([_is_bad(column.getField(field.name), field.dataType) for field in kind.fields])
    return None


def _is_any(column: Column, element: DataType) -> Column | None:
    if _is_bad(column, element) is None:
        return None
    return sql.exists(column, lambda one: sql.coalesce(_is_bad(one, element), sql.lit(False)))  # noqa: FBT003 -- a value


def _any(conditions: Sequence[Column | None]) -> Column | None:
    found = [sql.coalesce(condition, sql.lit(False)) for condition in conditions if condition is not None]  # noqa: FBT003
    return sql.greatest(*found) if len(found) > 1 else (found[0] if found else None)


def _taken_for_null(name: str, text: str) -> Column:
    return sql.when(sql.col(quoted(name)) == text, sql.lit(_NAME.format(name, text)))
