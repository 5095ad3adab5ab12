"""Small batches of a stream, taken to the driver as Arrow data and staged there: no Spark writer, no Python worker.

Promises: what comes back is every row of the batch, or nothing; however large the batch turns out to be, the driver
receives no more than a fixed number of bytes; every task runs to its end, as the state of a query needs it.
Relies on: `monotonically_increasing_id`, whose lower 33 bits count the rows of a task from 0, and which Spark's
optimizer moves past nothing that drops rows, because it is not deterministic; `internalCreateDataFrame`, which is not
public and is what makes the DataFrame that `foreachBatch` hands over.
Does not promise: that a batch which did not fit is computed once. It is computed again, by whoever stages it then; the
batches after it go that way too, twice as many each time, so that a stream pays next to nothing for trying.

How a row that does not fit is noticed. Each task may deliver `rows` rows, each of `bytes` bytes at most besides its
numbers. The row that comes after those, and a row that is wider, arrive as null; what comes later does not arrive. As
rows are numbered without a gap, a task that kept one back has delivered a null. LIMIT would not do: the rest of the
task would not be computed, and with it the state of the query.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as kinds

from txsink.txn import Result

# Batches up to this size are small; Spark's writer, which works in parallel, does the larger ones sooner.
ROWS_MAX = 10_000
BYTES_MAX = 4 << 20
# What the driver may receive: 64 MiB, less where its heap or what it lets results be is small.
_RECEIVED_MAX = 64 << 20
_HEAP_PART, _RESULT_PART = 16, 4
_LEAF_BYTES = 24  # a decimal or an offset, with its place in the mask of nulls
_LEAF_BYTES_IN_BATCH = 512  # the buffers of a column, padded, and their description: in each batch of each task
_TEXT_BYTES = 1 << 10  # room for the text and the bytes of a row, at least
_TEXT_WEIGHT = 24  # of a nested value, for each character of its text, and for each of its leaves
_PAUSE_MAX = 1_024

_NUMBERS = (
    kinds.BooleanType, kinds.ByteType, kinds.ShortType, kinds.IntegerType, kinds.LongType, kinds.FloatType,
    kinds.DoubleType, kinds.DecimalType, kinds.DateType, kinds.TimestampType, kinds.TimestampNTZType,
)  # fmt: skip
_TEXTS = (kinds.StringType, kinds.BinaryType)


class Shape(NamedTuple):
    """The columns of a batch: how many values a row has, and what tells the bytes of those that vary."""

    leaves: int
    texts: tuple[str, ...]


class Room(NamedTuple):
    """What each of so many tasks may deliver: rows, and bytes of text in a row."""

    tasks: int
    rows: int
    bytes: int


class Batches:
    """What the batches of a run so far say about the next one."""

    def __init__(self) -> None:
        self._last: Result | None = None
        self._received_max: int | None = None
        self._question: Question | None = None
        self._pause = self._waiting = 0

    def note(self, result: Result) -> None:
        """A batch was committed, whichever way."""
        self._last = result

    def rows_of(self, df: DataFrame) -> pa.Table | None:
        """All rows of the next batch. None: stage it otherwise."""
        last = self._last
        shape = shape_of(df.schema)
        # The first batch of a run may be a backlog of any size.
        if last is None or shape is None or last.rows > ROWS_MAX or last.bytes > BYTES_MAX:
            return None
        if self._waiting:
            self._waiting -= 1
            return None
        if self._received_max is None:
            self._received_max = received_max(df.sparkSession)
        rows = self._received(df, shape, wanted(last.rows))
        if rows is None:
            self._pause = self._waiting = min(2 * self._pause + 1, _PAUSE_MAX)
        return rows

    def _received(self, df: DataFrame, shape: Shape, rows: int) -> pa.Table | None:
        if self._question is None or self._question.schema != df.schema:
            self._question = Question(df, shape)
        numbered = Numbered(df, self._question)
        room = room_of(self._received_max or 0, shape, numbered.tasks, rows)
        return None if room is None else numbered.rows_within(room)


class Question:
    """What is asked of all batches of one schema. Made once, because each word with the JVM takes time."""

    def __init__(self, df: DataFrame, shape: Shape) -> None:
        self.schema = df.schema
        self._shape = shape
        self._names = [f"c{number}" for number in range(len(self.schema))]
        self._spark = df.sparkSession
        self._sql = self._spark._jvm.org.apache.spark.sql  # noqa: SLF001
        # Other names, because a name may hold a dot. What a schema declares not to be null, data need not keep; and a
        # row without room is null in every column.
        fields = [kinds.StructField(name, field.dataType) for name, field in zip(self._names, self.schema, strict=True)]
        self._plain = self._sql.types.DataType.fromJson(kinds.StructType(fields).json()).asNullable()
        self._number = self._sql.functions.expr("monotonically_increasing_id()")
        self._rows: dict[Room, Any] = {}

    def numbered(self, rows: Any) -> Any:
        """The rows with their numbers, as a DataFrame of the JVM."""
        plain = self._spark._jsparkSession.internalCreateDataFrame(rows, self._plain, False)  # noqa: FBT003, SLF001
        return plain.withColumn("n", self._number)

    def within(self, numbered: Any, room: Room) -> DataFrame:
        """One struct for each row that a task has room for, and null for one that it has not."""
        index = "(n & 8589934591L)"
        if room not in self._rows:
            fits = [f"{index} < {room.rows}"]
            if self._shape.texts:
                fits.append(f"{' + '.join(self._shape.texts)} <= {room.bytes}")
            row = self._sql.functions.expr(f"if({' and '.join(fits)}, struct({', '.join(self._names)}), null)")
            self._rows[room] = self._spark._jvm.PythonUtils.toSeq([row.alias("row")])  # noqa: SLF001
        return DataFrame(numbered.filter(f"{index} <= {room.rows}").select(self._rows[room]), self._spark)


class Numbered:
    """The rows of a batch, planned: from here on no optimizer moves anything in or out of them."""

    def __init__(self, df: DataFrame, question: Question) -> None:
        # As a plan of its own, which knows what was cached since `df` was made.
        rows = df._jdf.alias("batch").queryExecution().toRdd()  # noqa: SLF001
        self.tasks = max(rows.getNumPartitions(), 1)
        self._question = question
        self._numbered = question.numbered(rows)

    def rows_within(self, room: Room) -> pa.Table | None:
        """All of them, if each task has room for its own."""
        found = self._question.within(self._numbered, room).toArrow().column(0)
        if found.null_count:
            return None
        return pa.Table.from_arrays(found.flatten(), names=self._question.schema.names)


def shape_of(schema: kinds.StructType) -> Shape | None:
    """The shape of a batch; None when it has a type that is not told here."""
    leaves, texts = 0, []
    for number, field in enumerate(schema.fields):
        found = _leaves(field.dataType)
        if found is None:
            return None
        leaves += found
        if type(field.dataType) in _TEXTS:
            texts.append(f"1L * octet_length(c{number})")  # a sum of integers could overflow
        elif _varies(field.dataType):
            texts.append(f"{_TEXT_WEIGHT * found}L * octet_length(cast(c{number} as string))")
    return Shape(leaves, tuple(f"coalesce({text}, 0L)" for text in texts))


def received_max(spark: SparkSession) -> int:
    """How many bytes the driver may receive."""
    context = spark.sparkContext
    result = context._jsc.sc().conf().getSizeAsBytes("spark.driver.maxResultSize", "1g")  # noqa: SLF001
    heap = context._jvm.java.lang.Runtime.getRuntime().maxMemory()  # noqa: SLF001
    return min(_RECEIVED_MAX, heap // _HEAP_PART, *([result // _RESULT_PART] if result else []))


def wanted(last_rows: int) -> int:
    """Room for twice the rows of the last batch; rounded up, as Spark compiles code anew for each number."""
    return 1 << (2 * last_rows + 255).bit_length()


def room_of(received_max: int, shape: Shape, tasks: int, rows: int) -> Room | None:
    """What each task may deliver so that all together fit; `rows` are enough. None when too few do."""
    left = received_max - tasks * shape.leaves * _LEAF_BYTES_IN_BATCH
    fixed = shape.leaves * _LEAF_BYTES
    fit = left // (tasks * (fixed + (_TEXT_BYTES if shape.texts else 0)))
    if fit < 1:
        return None
    rows = min(rows, fit)
    return Room(tasks, rows, left // (tasks * rows) - fixed)


def _leaves(kind: kinds.DataType) -> int | None:
    """How many arrays Arrow makes of a value of this type."""
    if isinstance(kind, kinds.StructType):
        parts = [_leaves(field.dataType) for field in kind.fields]
    elif isinstance(kind, kinds.ArrayType):
        parts = [_leaves(kind.elementType)]
    elif isinstance(kind, kinds.MapType):
        parts = [_leaves(kind.keyType), _leaves(kind.valueType), 1]
    else:
        return 1 if type(kind) in (*_NUMBERS, *_TEXTS) else None
    return None if None in parts else 1 + sum(part for part in parts if part)


def _varies(kind: kinds.DataType) -> bool:
    """Whether a value of this type may take any number of bytes."""
    if isinstance(kind, kinds.StructType):
        return any(_varies(field.dataType) for field in kind.fields)
    return type(kind) not in _NUMBERS
