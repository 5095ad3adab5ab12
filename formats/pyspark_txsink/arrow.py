"""Staging through Arrow on the executors: for the format, and for the fast path where Spark cannot stage itself.

Promises: the plan runs once; the records that come back are those of the task attempts that Spark counts, each once,
and hold as many rows as the task was handed; what carries the credentials is pickled with the function, and no plan,
log or message shows it.
Relies on: `Stager`, all of a task's rows or none; Spark, which takes one result of each task, however many tried.
Does not promise: that attempts which do not count leave nothing. Their uploads are orphans, and a sweep finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame

from pyspark_txsink import parcel
from txsink.errors import InternalError
from txsink.staging.epoch_stager import StagedFile
from txsink.staging.stager import Stager

_RECORDS = pa.schema([("staged", pa.string())])


def stage(df: DataFrame, stager: Stager) -> list[StagedFile]:
    """Run the plan of `df`, and stage its rows where they are."""
    # mapInArrow looks its columns up one by one, each among all, and takes a dot in a name for a field of a struct.
    names = [f"c{number}" for number in range(len(df.columns))]
    whole = df.toDF(*names).selectExpr(f"struct({', '.join(names)}) row")
    rows = whole.mapInArrow(_task(stager, df.columns), "staged string").collect()
    return [record for row in rows for record in records_of(row.staged)]


def staged(stager: Stager, batches: Iterable[pa.RecordBatch]) -> str:
    """Stage a task's rows; its records, as text that Spark carries."""
    handed: list[int] = []
    records = stager.stage(_counted(batches, handed))
    if (found := sum(one.file.rows for one in records)) != sum(handed):
        raise InternalError(
            f"stage epoch {stager.epoch} of {stager.writer!r}",
            f"the task was handed {sum(handed)} rows, and its files hold {found}",
            "Nothing was committed. Report it",
        )
    return msgspec.json.encode([one.to_dict() for one in records]).decode()


def records_of(text: str) -> list[StagedFile]:
    """The inverse, believing nothing."""
    return [StagedFile.from_dict(one) for one in msgspec.json.decode(text)]


def _counted(batches: Iterable[pa.RecordBatch], handed: list[int]) -> Iterator[pa.RecordBatch]:
    """The batches, and how many rows each has."""
    for batch in batches:
        handed.append(batch.num_rows)
        yield batch


def _task(stager: Stager, names: list[str]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    opened, (content,) = parcel.sent(partial, _stage, stager, names)

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return opened(content)(batches)

    return task


def _stage(stager: Stager, names: list[str], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    named = (pa.RecordBatch.from_arrays(batch.column(0).flatten(), names=names) for batch in batches)
    yield pa.RecordBatch.from_arrays([pa.array([staged(stager, named)])], schema=_RECORDS)
