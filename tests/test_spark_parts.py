"""The parts of the Spark plug-in one by one, without Java: each condition and constant that decides over rows.

Promises: skipped, with the reason, where pyspark is missing. Nothing here starts a session, so all of it is quick.
Relies on: stand-ins for sessions and DataFrames; real tables on the local disk.
Does not promise: what Spark makes of it. The other tests of Spark have that.
"""

from __future__ import annotations

import importlib.util
import json
import pickle
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

import txsink
from seen import rows_of
from txsink.errors import ConflictError, FencedError, InternalError, InvalidRequestError, UnavailableError
from txsink.schema import columns_of
from txsink.writing.opening import open_workplace, open_writer

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark import cloudpickle
from pyspark.sql import datasource as source, types as kinds
from pyspark.sql.types import ArrayType, NullType, StructField, StructType

import pyspark_txsink
from pyspark_txsink import (
    arrow,
    counted_rows,
    fast,
    identity,
    listener,
    options,
    parcel,
    reader,
    session,
    table,
    types,
    writers,
)
from pyspark_txsink.identity import Batch

IDS = StructType([StructField("id", kinds.LongType())])


# -- identity: which epoch a batch is ---------------------------------------------------------------------


def a_sink(last: int | None, last_metadata: dict[str, Any], in_our_log: int | None = None) -> Any:
    state = SimpleNamespace(last_epoch=lambda writer: in_our_log)
    return SimpleNamespace(writer="w", last_epoch=last, last_metadata=last_metadata, log=SimpleNamespace(state=state))


def by_spark(query: str, base: int) -> dict[str, Any]:
    return {"spark": {"query_id": query, "base": base, "batch_id": 0}}


def test_the_first_batch_of_a_writer_is_the_epoch_of_its_number() -> None:
    epoch, metadata = identity.epoch_of(a_sink(None, {}), Batch("q", "r", 3), "fail")
    assert (epoch, metadata) == (3, {"spark": {"query_id": "q", "base": 0, "batch_id": 3}})


def test_a_query_goes_on_from_its_first_epoch() -> None:
    epoch, metadata = identity.epoch_of(a_sink(12, by_spark("q", 10), 12), Batch("q", "r", 3), "fail")
    assert (epoch, metadata["spark"]["base"]) == (13, 10)


@pytest.mark.parametrize(("batch", "epoch"), [(0, 13), (5, 13)])
def test_another_query_is_refused_or_numbered_after_the_last_epoch(batch: int, epoch: int) -> None:
    sink = a_sink(12, by_spark("q", 0), 12)
    with pytest.raises(ConflictError, match="another checkpoint"):
        identity.epoch_of(sink, Batch("p", "r", batch), "fail")
    found, metadata = identity.epoch_of(sink, Batch("p", "r", batch), "resume")
    assert found == epoch
    again, _ = identity.epoch_of(a_sink(found, metadata, found), Batch("p", "r", batch), "fail")
    after, _ = identity.epoch_of(a_sink(found, metadata, found), Batch("p", "r", batch + 1), "fail")
    assert (again, after) == (epoch, epoch + 1)


def test_a_stream_of_deltas_own_sink_goes_on_and_an_older_batch_is_of_another_checkpoint() -> None:
    for batch in (7, 8):
        epoch, metadata = identity.epoch_of(a_sink(7, {}, None), Batch("q", "r", batch), "fail")
        assert (epoch, metadata["spark"]["base"]) == (batch, 0)
    with pytest.raises(ConflictError):
        identity.epoch_of(a_sink(7, {}, None), Batch("q", "r", 6), "fail")


def test_epochs_that_our_log_has_without_a_query_are_no_streams() -> None:
    with pytest.raises(ConflictError):
        identity.epoch_of(a_sink(7, {}, 7), Batch("q", "r", 8), "fail")


# -- each_batch: one part of a batch for each table and name ----------------------------------------------


class Worlds:
    """`each_batch` whose writers are stand-ins: which tables there are, and what was written to them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.batch = Batch("q", "r", 0)
        self.tables: dict[str, str] = {}
        self.written: list[tuple[str, str, int]] = []
        self.opened: list[tuple[str, str]] = []
        self.error: Exception | None = None
        self.outcome = "committed"
        patch.setattr(fast, "_written", {})
        patch.setattr(fast, "batch_of", lambda df, number: self.batch)
        patch.setattr(fast, "_open", self._open)
        patch.setattr(fast, "_stage_and_commit", self._commit)

    def _open(self, path: str, writer: str, given: Any, run: str) -> Any:
        self.opened.append((path, run))
        log = SimpleNamespace(root=path, state=SimpleNamespace(table_id=self.tables.get(path, path)))
        return SimpleNamespace(writer=writer, run=run, log=log, last_epoch=None, last_metadata={})

    def _commit(self, sink: Any, df: Any, epoch: int, given: Any) -> Any:
        if self.error is not None:
            raise self.error
        self.written.append((sink.log.root, sink.writer, epoch))
        return SimpleNamespace(outcome=self.outcome)


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch) -> Worlds:
    return Worlds(monkeypatch)


def call(each: Callable[..., None], df: Any = None) -> None:
    each(df, 0)


def test_several_tables_get_the_batch_and_each_once(worlds: Worlds) -> None:
    one, two = pyspark_txsink.each_batch("/a"), pyspark_txsink.each_batch("/b")
    call(one)
    call(two)
    with pytest.raises(InvalidRequestError, match="has written the batch to the same table"):
        call(one)
    with pytest.raises(InvalidRequestError, match="has written the batch to the same table"):
        call(pyspark_txsink.each_batch("/b"))
    assert worlds.written == [("/a", "q", 0), ("/b", "q", 0)]


@pytest.mark.parametrize("change", ["name", "table made again", "batch", "run", "query"])
def test_what_is_another_part_of_another_writer_table_or_batch_is_written(worlds: Worlds, change: str) -> None:
    call(pyspark_txsink.each_batch("/a"))
    given: dict[str, Any] = {}
    if change == "name":
        given = {"txn_app_id": "mine"}
    elif change == "table made again":
        worlds.tables["/a"] = "another"
    else:
        worlds.batch = {"batch": Batch("q", "r", 1), "run": Batch("q", "s", 0), "query": Batch("p", "r", 0)}[change]
    call(pyspark_txsink.each_batch("/a", **given))
    assert len(worlds.written) == 2


def test_a_batch_that_failed_is_no_part_that_was_written(worlds: Worlds) -> None:
    each = pyspark_txsink.each_batch("/a")
    worlds.error = FencedError("x", "y", "z")
    with pytest.raises(FencedError):
        call(each)
    worlds.error = None
    call(each)
    assert worlds.written == [("/a", "q", 0)]
    assert len(worlds.opened) == 2  # what the log says is read again after an error


def test_the_writer_stays_open_for_a_run_and_is_opened_by_the_next(worlds: Worlds) -> None:
    each = pyspark_txsink.each_batch("/a")
    for run, number in (("r", 0), ("r", 1), ("s", 2)):
        worlds.batch = Batch("q", run, number)
        call(each)
    assert worlds.opened == [("/a", "r"), ("/a", "s")]


@pytest.mark.parametrize(("outcome", "runs"), [("committed", 0), ("already-committed", 1)])
def test_only_a_batch_that_was_committed_before_is_computed_into_nothing(
    worlds: Worlds, outcome: str, runs: int
) -> None:
    saved: list[str] = []
    writer = SimpleNamespace(mode=lambda mode: SimpleNamespace(save=lambda: saved.append(mode)))
    df = SimpleNamespace(write=SimpleNamespace(format=lambda name: writer))
    worlds.outcome = outcome
    call(pyspark_txsink.each_batch("/a"), df)
    assert len(saved) == runs


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"partitionby": []}, "Did you mean 'partition_by'"),
        ({"nonsense_": 1}, "Known options: compression"),
        ({"on_new_checkpoint": "go"}, "on_new_checkpoint is 'go'"),
        *(({name: bad}, f"{name} is {bad!r}") for name in fast._OF_FILES if name != "compression" for bad in (0, "8")),
    ],
)
def test_options_of_the_fast_path_are_refused_by_name(given: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidRequestError, match=match) as caught:
        pyspark_txsink.each_batch("/a", **given)
    assert "?." not in str(caught.value)
    pyspark_txsink.each_batch("/a", max_records_per_file=1, target_file_bytes=1, on_new_checkpoint="resume")


def test_a_batch_is_named_by_spark_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"streaming.sql.batchId": "7", "sql.streaming.queryId": "q", "spark.jobGroup.id": "r"}
    context = SimpleNamespace(getLocalProperty=known.get)
    df: Any = SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=context))
    assert fast.batch_of(df, 7) == Batch("q", "r", 7)
    with pytest.raises(InvalidRequestError, match="no micro-batch"):
        fast.batch_of(df, 8)
    for name in ("sql.streaming.queryId", "spark.jobGroup.id"):
        kept = known.pop(name)
        with pytest.raises(InvalidRequestError, match="no micro-batch"):
            fast.batch_of(df, 7)
        known[name] = kept


# -- what Spark's writer is asked for ---------------------------------------------------------------------


class Writing:
    """A DataFrameWriter that notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Callable[..., Writing]:
        def note(*values: object, **named: object) -> Writing:
            self.asked[name] = named or values
            return self

        return note


@pytest.mark.parametrize(("uri", "is_local"), [("file:///x", True), ("hdfs://h/x", False)])
def test_sparks_writer_is_told_what_the_promises_rest_on(uri: str, is_local: bool) -> None:
    writing = Writing()
    df: Any = SimpleNamespace(write=writing)
    settings = SimpleNamespace(stage=SimpleNamespace(compression="snappy"))
    sink: Any = SimpleNamespace(settings=settings, log=SimpleNamespace(state=SimpleNamespace(partition_columns=("p",))))
    fast._write_parquet(df, sink, uri, {"max_records_per_file": 7})
    told = writing.asked["options"]
    # Under algorithm 2 what a lost attempt wrote would count, and under a name with an underscore nothing would.
    assert told["mapreduce.fileoutputcommitter.algorithm.version"] == "1"
    assert told["mapreduce.output.basename"] == "part"
    assert told["timeZone"] == "UTC"
    assert (told["compression"], told["maxRecordsPerFile"]) == ("snappy", "7")
    assert ("fs.file.impl" in told, "fs.file.impl.disable.cache" in told) == (is_local, is_local)
    assert (writing.asked["mode"], writing.asked["partitionBy"], writing.asked["save"]) == (("append",), ("p",), (uri,))


def test_sparks_writer_is_not_told_what_nobody_asked_for() -> None:
    writing = Writing()
    df: Any = SimpleNamespace(write=writing)
    settings = SimpleNamespace(stage=SimpleNamespace(compression="zstd"))
    sink: Any = SimpleNamespace(settings=settings, log=SimpleNamespace(state=SimpleNamespace(partition_columns=())))
    fast._write_parquet(df, sink, "file:///x", {})
    assert "maxRecordsPerFile" not in writing.asked["options"]
    assert "partitionBy" not in writing.asked


@pytest.mark.parametrize("is_overtaken", [True, False])
def test_a_batch_that_was_overtaken_is_fenced_whatever_spark_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_overtaken: bool
) -> None:
    """The newer run's sweep takes away what Spark is writing into, which then misses it."""

    def write(*_: object) -> None:
        if is_overtaken:
            open_writer(tmp_path / "t", "w").close()
        raise FileNotFoundError("_temporary/0 does not exist")

    monkeypatch.setattr(fast, "_write_parquet", write)
    counted: Any = SimpleNamespace(df=None)
    with open_writer(tmp_path / "t", "w") as sink:
        txn = sink.begin(1)
        with pytest.raises(FencedError if is_overtaken else FileNotFoundError) as caught:
            fast._stage_by_spark(counted, sink, txn, (), {})
        assert isinstance(caught.value.__context__, FileNotFoundError) is is_overtaken
        if not is_overtaken:
            txn.abort()


def test_a_path_of_sparks_is_the_same_place() -> None:
    assert fast.uri_of("/t", "/t/x y") == fast.uri_of("file:///t", "/t/x y") == "file:///t/x y"
    assert fast.uri_of("hdfs://h:1/t", "/t/x") == "hdfs://h:1/t/x"


# -- the session ------------------------------------------------------------------------------------------


class Conf(dict[str, str]):
    """A session's settings, as text."""

    def set(self, name: str, value: str) -> None:
        self[name] = value

    def unset(self, name: str) -> None:
        del self[name]


def a_session(name: str = "one", **conf: str) -> Any:
    jvm = SimpleNamespace(sessionUUID=lambda: name)
    return SimpleNamespace(conf=Conf(conf), _jsparkSession=jvm)


def test_settings_last_as_long_as_the_last_write_and_then_are_what_they_were() -> None:
    spark = a_session(known="before")
    wanted = {"known": "now", "unknown": "now"}
    first, second = session.settings(spark, wanted), session.settings(spark, wanted)
    first.__enter__()
    second.__enter__()
    assert dict(spark.conf) == wanted
    first.__exit__(None, None, None)
    assert dict(spark.conf) == wanted
    second.__exit__(None, None, None)
    assert dict(spark.conf) == {"known": "before"}
    assert not session._held


def test_settings_of_a_failed_write_are_taken_back() -> None:
    spark = a_session()
    with pytest.raises(ZeroDivisionError), session.settings(spark, {"x": "y"}):
        raise ZeroDivisionError
    assert dict(spark.conf) == {}


def test_sessions_do_not_share_settings() -> None:
    one, two = a_session("one", x="1"), a_session("two", x="2")
    with session.settings(one, {"x": "now"}):
        with session.settings(two, {"x": "now"}):
            assert (one.conf["x"], two.conf["x"]) == ("now", "now")
        assert (one.conf["x"], two.conf["x"]) == ("now", "2")
    assert one.conf["x"] == "1"


def test_the_size_of_files_is_asked_for_where_one_was_given() -> None:
    assert session.sizes(None) == {}
    asked = session.sizes(1000)
    assert asked["spark.sql.adaptive.advisoryPartitionSizeInBytes"] == "1750b"
    assert asked["spark.sql.adaptive.enabled"] == asked["spark.sql.adaptive.coalescePartitions.enabled"] == "true"
    assert asked["spark.sql.adaptive.coalescePartitions.parallelismFirst"] == "false"
    assert asked["spark.sql.adaptive.coalescePartitions.minPartitionSize"] == "1b"


def test_registering_sets_the_interpreter_unless_one_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys  # noqa: PLC0415

    registered: list[type] = []
    for chosen, expected in (("", sys.executable), ("/chosen/python", "python3")):
        monkeypatch.setenv("PYSPARK_PYTHON", chosen)
        context = SimpleNamespace(pythonExec="python3")
        spark: Any = SimpleNamespace(sparkContext=context, dataSource=SimpleNamespace(register=registered.append))
        pyspark_txsink.register(spark)
        assert context.pythonExec == expected
    assert registered == [pyspark_txsink.DefaultSource] * 2


# -- counted rows -----------------------------------------------------------------------------------------


def counted(rows: int, *, master: str = "local[2]", fault: str | None = None) -> Any:
    found: Any = object.__new__(counted_rows.Counted)
    found._observed = SimpleNamespace(get={"rows": rows, "fault": fault})
    found._spark = SimpleNamespace(sparkContext=SimpleNamespace(master=master))
    return found


def files(*rows: int) -> Any:
    return [SimpleNamespace(file=SimpleNamespace(rows=count)) for count in rows]


def test_rows_that_are_handed_over_and_found_are_as_many() -> None:
    counted(5).check(files(2, 3), "file:///t")
    counted(0).check([], "file:///t")


@pytest.mark.parametrize("found", [(), (2, 2), (3, 3)])
@pytest.mark.parametrize(
    ("master", "uri", "error", "match"),
    [
        ("local[2]", "file:///t", InternalError, "Nothing was committed"),
        ("spark://h:1", "file:///t", InvalidRequestError, "other machines have other disks"),
        ("spark://h:1", "hdfs://h/t", InternalError, "Nothing was committed"),
    ],
)
def test_rows_that_are_missing_or_too_many_are_refused_with_any_master(
    master: str, uri: str, error: type[Exception], match: str, found: tuple[int, ...]
) -> None:
    with pytest.raises(error, match=f"wrote 5 rows, and {sum(found)} of them.*{match}"):
        counted(5, master=master).check(files(*found), uri)


def test_a_value_that_cannot_be_read_back_is_refused_though_the_rows_are_as_many() -> None:
    with pytest.raises(InvalidRequestError, match="column 'x' holds"):
        counted(5, fault="column 'x' holds text").check(files(5), "file:///t")


def test_the_rows_of_a_task_are_counted_where_they_are_staged() -> None:
    batches = [pa.record_batch({"id": [1, 2]}), pa.record_batch({"id": [3]})]
    for lost, match in ((0, None), (1, "was handed 3 rows, and its files hold 2"), (-1, "files hold 4")):

        class Stager:
            writer, epoch = "w", 0

            def stage(self, data: Iterator[Any], lost: int = lost) -> Any:
                return [
                    SimpleNamespace(
                        file=SimpleNamespace(rows=sum(one.num_rows for one in data) - lost), to_dict=lambda: {"a": 1}
                    )
                ]

        if match is None:
            assert json.loads(arrow.staged(cast("Any", Stager()), iter(batches))) == [{"a": 1}]
        else:
            with pytest.raises(InternalError, match=match):
                arrow.staged(cast("Any", Stager()), iter(batches))


@pytest.mark.parametrize("shape", ["string", "list", "key"])
def test_text_that_is_not_utf8_is_refused_by_its_column(tmp_path: Path, shape: str) -> None:
    """Spark carries any bytes as a string, and hands them over as they are."""
    bad = pa.StringArray.from_buffers(1, pa.py_buffer(b"\x00\x00\x00\x00\x01\x00\x00\x00"), pa.py_buffer(b"\xff"))
    column = {
        "string": lambda: bad,
        "list": lambda: pa.ListArray.from_arrays([0, 1], bad),
        "key": lambda: pa.MapArray.from_arrays([0, 1], bad, pa.array([1])),
    }[shape]()
    batch = pa.RecordBatch.from_arrays([pa.array([1]), column], names=["id", "odd"])
    stager = open_workplace(str(tmp_path / "t")).stager("w", "r", 0)
    with pytest.raises(InvalidRequestError, match="column 'odd' holds text that is not UTF-8"):
        arrow.staged(stager, iter([batch]))
    assert not list(tmp_path.rglob("*.parquet"))


# -- types ------------------------------------------------------------------------------------------------


def test_a_column_without_a_type_is_kept_a_part_without_one_is_not() -> None:
    void = StructField("v", NullType())
    assert [column.name for column in types.columns_of(StructType([*IDS.fields, void]), ())] == ["id", "v"]
    with pytest.raises(InvalidRequestError, match="no column has a type"):
        types.columns_of(StructType([void]), ())
    with pytest.raises(InvalidRequestError, match=r"column 'a\.element' has type void"):
        types.columns_of(StructType([*IDS.fields, StructField("a", ArrayType(NullType(), False))]), ())


@pytest.mark.parametrize(
    ("kind", "read"),
    [
        (pa.uint8(), kinds.ShortType()),
        (pa.uint16(), kinds.IntegerType()),
        (pa.uint32(), kinds.LongType()),
        (pa.uint64(), kinds.DecimalType(20, 0)),
        (pa.list_(pa.uint8()), ArrayType(kinds.ShortType())),
        (pa.struct([("u", pa.uint8())]), StructType([StructField("u", kinds.ShortType())])),
        (pa.map_(pa.uint8(), pa.uint16()), kinds.MapType(kinds.ShortType(), kinds.IntegerType())),
    ],
)
def test_numbers_that_spark_has_not_are_read_as_wider_ones(kind: pa.DataType, read: Any) -> None:
    assert types.struct_of(columns_of(pa.schema([("u", kind)])))[0].dataType == read


@pytest.mark.parametrize("kind", [pa.timestamp("ns"), pa.decimal256(39, 2), pa.time64("us"), pa.list_(pa.float16())])
def test_a_table_with_a_column_that_spark_cannot_read_is_refused_by_name(kind: pa.DataType, tmp_path: Path) -> None:
    """As a table for Arrow's types may hold it: neither door reads it or writes to it."""
    path = str(tmp_path / "t")
    rows = pa.table({"id": pa.array([1], pa.int64()), "odd": pa.array([None], kind)})
    txsink.write(path, rows, writer="w", epoch=0, types="arrow")
    made = pyspark_txsink.DefaultSource({"path": path})
    known = txsink.open_table(path).columns()
    for refused in (
        made.schema,
        lambda: made.writer(IDS, False),
        lambda: types.struct_of(known),
        lambda: types.fitted(known, columns_of(pa.schema([("id", pa.int64())])), merge_schema=False),
    ):
        with pytest.raises(InvalidRequestError, match=r"column 'odd' is of type .*, which Spark cannot read"):
            refused()
    assert rows_of(Path(path)) == [1]


# -- the format's reader: which files a filter leaves out -------------------------------------------------


@pytest.mark.parametrize(
    ("one", "kept"),
    [
        (source.EqualTo(("p",), 1), [1]),
        (source.EqualTo(("p",), 9), []),
        (source.EqualNullSafe(("p",), 1), [1]),
        (source.EqualNullSafe(("p",), None), [None]),
        (source.In(("p",), (1, 2)), [1, 2]),
        (source.In(("p",), (9,)), []),
        (source.IsNull(("p",)), [None]),
        (source.IsNotNull(("p",)), [1, 2]),
    ],
)
def test_a_filter_leaves_out_the_files_that_hold_no_row_of_it(one: Any, kept: list[int | None]) -> None:
    assert [value for value in (None, 1, 2) if reader._fits(one, {"p": value})] == kept


@pytest.mark.parametrize(
    "kind", [source.EqualTo, source.EqualNullSafe, lambda name, value: source.In(name, (1.0, value))]
)
def test_nan_is_found_where_it_is_looked_for(kind: Any) -> None:
    """To Spark NaN equals NaN, to Python it does not."""
    assert reader._fits(kind(("p",), float("nan")), {"p": float("nan")})


def test_only_filters_on_partition_columns_leave_files_out(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    txsink.write(path, {"id": [1, 2], "p": [1, 2]}, writer="w", epoch=0, partition_by=["p"])
    found = reader.PruningReader({"path": path}, StructType([*IDS.fields, StructField("p", kinds.LongType())]))
    told = [
        source.EqualTo(("id",), 9), source.EqualTo(("p", "x"), 9), source.GreaterThan(("p",), 9),
        source.Not(source.EqualTo(("p",), 1)),
    ]  # fmt: skip
    assert list(found.pushFilters(told)) == told
    assert len(found.partitions()) == 2
    assert list(found.pushFilters([source.EqualTo(("p",), 1)])) != []
    assert [one.value.partition("/")[0] for one in found.partitions()] == ["p=1"]
    assert sum(batch.num_rows for one in found.partitions() for batch in found.read(one)) == 1
    list(found.pushFilters([source.EqualTo(("p",), 9)]))
    (nothing,) = found.partitions()
    assert list(found.read(nothing)) == []


# -- the format's options ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"path": ""}, "there is no path"),
        ({}, "there is no path"),
        ({"owner": "me", "provider": "txsink", "path": "file:/x"}, "CREATE TEMPORARY VIEW"),
        ({"compresion": "zstd"}, r"Did you mean 'compression'\?$"),
        ({"txnAppId": "", "txnVersion": "0"}, "txnAppId '' cannot be used: it is empty"),
        ({"txnAppId": "a\x00", "txnVersion": "0"}, "NUL character"),
        ({"txnAppId": "a"}, "without the other"),
        ({"txnVersion": "1"}, "without the other"),
        ({"txnVersion": "x", "txnAppId": "a"}, "txnVersion is 'x'"),
        ({"targetFileSize": "1t"}, "targetFileSize is '1t'"),
        ({"targetFileSize": "m"}, "targetFileSize is 'm'"),
        ({"mergeSchema": "yes"}, "mergeSchema is 'yes'"),
        ({"partitionOverwriteMode": "some"}, "partitionOverwriteMode is 'some'"),
        ({"onNewCheckpoint": "go"}, "onNewCheckpoint is 'go'"),
    ],
)
def test_options_of_the_format_are_refused_by_name(given: dict[str, str], match: str) -> None:
    with pytest.raises(InvalidRequestError, match=match):
        options.parse(given if "path" in given or not given else {"path": "/t", **given})


def test_options_of_the_format_are_what_they_say() -> None:
    found = options.parse(
        {
            "PATH": "/t", "partitionBy": " a , b", "targetFileSize": "2 mb".replace(" ", ""), "maxRecordsPerFile": "7",
            "mergeSchema": "TRUE", "txnAppId": "app", "txnVersion": "3", "storage.key": "k", "storage.part_bytes": "5",
            "userMetadata": '{"a": 1}', "versionAsOf": "2", "partitionOverwriteMode": "Dynamic", "layout": "Delta",
        }
    )  # fmt: skip
    assert found.partition_by == ("a", "b")
    assert found.stage == {"target_file_bytes": 2 << 20, "file_rows_max": 7}
    assert (found.merge_schema, found.app_id, found.app_version, found.version) == (True, "app", 3, 2)
    assert (found.partition_overwrite, found.layout, found.user_metadata) == ("dynamic", "delta", {"a": 1})
    assert found.storage_options["part_bytes"] == 5
    plain = options.parse({"path": "/t", "checkpointLocation": "/c", "txnAppId": "app", "userMetadata": "text"})
    assert (plain.merge_schema, plain.app_version, plain.partition_overwrite) == (False, None, "static")
    assert (plain.on_new_checkpoint, plain.user_metadata) == ("fail", {"userMetadata": "text"})
    assert options.parse({"path": "/t", "partitionBy": '["a,b"]'}).partition_by == ("a,b",)


@pytest.mark.parametrize(("text", "size"), [("7", 7), ("7b", 7), ("1k", 1024), ("1kb", 1024), ("2G", 2 << 30)])
def test_sizes_have_units(text: str, size: int) -> None:
    assert options.parse({"path": "/t", "targetFileSize": text}).stage == {"target_file_bytes": size}


def test_a_path_is_absolute_and_a_uri_as_hadoop_spells_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert options.absolute("t") == str(tmp_path / "t")
    assert options.absolute("file:/x") == options.absolute("file:///x") == "file:///x"
    assert options.absolute("s3://b/k") == "s3://b/k"


def test_storage_options_come_through_as_text() -> None:
    given = {"key": "a", "part_bytes": 5, "endpoint": "true", "nested": {"a": [1]}}
    text = options.of_storage(given)
    assert all(isinstance(value, str) for value in text.values())
    assert dict(options.parse({"path": "/t", **text}).storage_options) == given


# -- the format's writers, as Spark calls them ------------------------------------------------------------


class Spark:
    """What Spark does with a writer of the format: it is pickled to tasks, and made again to commit."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch = patch
        patch.setattr(writers, "_sinks", {})

    def job(self, path: Path, *tasks: list[int], overwrite: bool = False, **given: str) -> None:
        writer = pyspark_txsink.DefaultSource({"path": str(path), **given}).writer(IDS, overwrite)
        sent = pickle.loads(cloudpickle.dumps(writer))
        pickle.loads(cloudpickle.dumps(writer)).commit([sent.write(batches(ids)) for ids in tasks])

    def staged(self, path: Path, batch: Batch, *tasks: list[int], **given: str) -> list[Any]:
        """The messages of a micro-batch."""
        writer = self.stream(path, **given)
        sent = pickle.loads(cloudpickle.dumps(writer))
        keys = {"sql.streaming.queryId": batch.query_id, "spark.jobGroup.id": batch.run_id}
        keys["streaming.sql.batchId"] = str(batch.batch_id)
        context = SimpleNamespace(getLocalProperty=keys.get)
        self.patch.setattr(writers, "TaskContext", SimpleNamespace(get=lambda: context))
        return [pickle.loads(pickle.dumps(sent.write(batches(ids)))) for ids in tasks]

    def stream(self, path: Path, **given: str) -> Any:
        made = pyspark_txsink.DefaultSource({"path": str(path), "checkpointLocation": "/c", **given})
        return made.streamWriter(IDS, False)


def batches(ids: list[int]) -> Iterator[pa.RecordBatch]:
    return iter([pa.record_batch({"id": pa.array(ids, pa.int64())})])


@pytest.fixture
def as_spark(monkeypatch: pytest.MonkeyPatch) -> Spark:
    return Spark(monkeypatch)


def test_jobs_of_the_format_append_replace_and_are_written_once(as_spark: Spark, tmp_path: Path) -> None:
    path = tmp_path / "t"
    as_spark.job(path, [1, 2], [3], txnAppId="a", txnVersion="4")
    as_spark.job(path, [1, 2], [3], txnAppId="a", txnVersion="4")
    as_spark.job(path, [4])
    assert rows_of(path) == [1, 2, 3, 4]
    assert txsink.open_table(str(path)).writers()["a"].last_epoch == 4
    as_spark.job(path, [5], overwrite=True)
    assert rows_of(path) == [5]


def test_a_stream_of_the_format_commits_each_batch_once_and_keeps_its_writer_open(
    as_spark: Spark, tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for number in (0, 1):
        for path in (one, two):
            messages = as_spark.staged(path, Batch("q", "r", number), [number], [])
            for _ in range(2):
                as_spark.stream(path).commit(messages, number)
    assert (rows_of(one), rows_of(two)) == ([0, 1], [0, 1])
    (known,) = writers._sinks
    assert known == (str(two), "q", "r")
    as_spark.stream(two).abort([], 1)
    assert not writers._sinks


def test_an_abort_opens_nothing_that_could_fail_as_the_commit_did(
    as_spark: Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen on HDFS: Spark then tells of the failed abort alone, and nobody reads why the commit failed."""

    def refused(*_: object, **__: object) -> None:
        raise UnavailableError("open it", "its quota is used up", "Make room, then retry")

    path = tmp_path / "t"
    messages = as_spark.staged(path, Batch("q", "r", 0), [0])
    monkeypatch.setattr(writers, "open_workplace", refused)
    with pytest.raises(UnavailableError):
        as_spark.stream(path)
    assert importlib.util.find_spec(writers.COMMITS)
    monkeypatch.setitem(sys.modules, writers.COMMITS, ModuleType(writers.COMMITS))  # where Spark commits and aborts
    as_spark.stream(path).abort(messages, 0)
    as_spark.stream(path).commit(messages, 0)
    assert rows_of(path) == [0]


def test_a_writer_made_where_spark_commits_can_still_be_sent_to_tasks(
    as_spark: Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, writers.COMMITS, ModuleType(writers.COMMITS))
    path = tmp_path / "t"
    as_spark.stream(path).commit(as_spark.staged(path, Batch("q", "r", 0), [0, 1]), 0)
    assert rows_of(path) == [0, 1]


def test_another_run_of_a_stream_has_a_writer_of_its_own(as_spark: Spark, tmp_path: Path) -> None:
    path = tmp_path / "t"
    as_spark.stream(path).commit(as_spark.staged(path, Batch("q", "r", 0), [0]), 0)
    as_spark.stream(path).commit(as_spark.staged(path, Batch("q", "s", 1), [1]), 1)
    assert list(writers._sinks) == [(str(path), "q", "s")]
    with pytest.raises(FencedError):
        as_spark.stream(path).commit(as_spark.staged(path, Batch("q", "r", 2), [2]), 2)
    assert (str(path), "q", "r") not in writers._sinks
    assert rows_of(path) == [0, 1]


@pytest.mark.parametrize("fault", ["none", "other batch", "two batches", "another number"])
def test_a_commit_needs_a_word_of_every_task_and_of_one_batch(as_spark: Spark, tmp_path: Path, fault: str) -> None:
    path = tmp_path / "t"
    messages = as_spark.staged(path, Batch("q", "r", 0), [0], [1])
    number = 0
    if fault == "none":
        messages[1] = None
    elif fault == "other batch":
        messages = []
    elif fault == "two batches":
        messages[1:] = as_spark.staged(path, Batch("q", "r", 1), [1])
    else:
        number = 1
    with pytest.raises(InvalidRequestError):
        as_spark.stream(path).commit(messages, number)
    assert rows_of(path) == []


@pytest.mark.parametrize("door", ["writer", "streamWriter"])
def test_what_cannot_be_written_is_refused_before_anything_is_pickled(
    as_spark: Spark, tmp_path: Path, door: str
) -> None:
    path = tmp_path / "t"
    txsink.write(str(path), {"id": [1]}, writer="w", epoch=0)
    made = pyspark_txsink.DefaultSource({"path": str(path)})
    for field, match in (
        (StructField("v", kinds.VariantType()), "column 'v' has type variant"),
        (StructField("new", kinds.LongType()), "merge_schema"),
        (StructField("id", kinds.StringType()), "column 'id' is int64 in the table and string"),
    ):
        with pytest.raises(InvalidRequestError, match=match):
            getattr(made, door)(StructType([*(IDS.fields if field.name != "id" else ()), field]), False)
    assert rows_of(path) == [1]


def test_the_format_reads_no_streams() -> None:
    with pytest.raises(InvalidRequestError, match=r"the format does not read streams.*again for each newer version"):
        pyspark_txsink.DefaultSource({"path": "/t"}).streamReader(IDS)


# -- what is sent, and where files are read ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "is_told"), [("txsink.staging.epoch_stager", True), ("msgspec", True), ("numpy", False)]
)
def test_an_executor_without_txsink_is_told_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch, module: str, is_told: bool
) -> None:
    opened, (content,) = parcel.sent(dict, [("a", 1)])
    assert opened(content) == {"a": 1}

    def lacking(text: bytes) -> Any:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(pickle, "loads", lacking)
    with pytest.raises(ModuleNotFoundError, match="Install txsink" if is_told else "No module named 'numpy'$"):
        opened(content)


class Hadoop:
    """Spark's configuration, as it tells of `s3a`."""

    def __init__(self, *, has_class: bool, told: dict[str, tuple[str, list[str]]]) -> None:
        self.has_class, self.told = has_class, told

    def get(self, name: str) -> str | None:
        return self.told.get(name, (None, []))[0]

    def getClassByNameOrNull(self, name: str) -> object | None:  # noqa: N802 -- Hadoop's name
        return self if self.has_class else None

    def getPropertySources(self, name: str) -> list[str]:  # noqa: N802 -- Hadoop's name
        return self.told[name][1]


@pytest.mark.parametrize(
    ("path", "has_class", "told", "given", "expected"),
    [
        ("/t", False, {}, {}, True),
        ("hdfs://h/t", False, {}, {}, True),
        ("s3://b/t", False, {}, {}, False),
        ("s3a://b/t", True, {}, {}, True),
        ("s3://b/t", True, {}, {"key": "k"}, False),
        ("s3://b/t", True, {"fs.s3a.access.key": ("k", ["spark"])}, {"key": "k"}, True),
        ("s3://b/t", True, {"fs.s3a.bucket.b.endpoint": ("e", ["spark"])}, {"key": "k"}, True),
        ("s3://b/t", True, {"fs.s3a.bucket.c.endpoint": ("e", ["spark"])}, {"key": "k"}, False),
        ("s3://b/t", True, {"fs.s3a.endpoint": ("e", ["core-default.xml"])}, {"key": "k"}, False),
    ],
)
def test_sparks_own_reader_is_asked_where_it_gets_at_the_files(
    path: str, has_class: bool, told: dict[str, tuple[str, list[str]]], given: dict[str, str], expected: bool
) -> None:
    conf = Hadoop(has_class=has_class, told=told)
    state = SimpleNamespace(newHadoopConf=lambda: conf)
    spark: Any = SimpleNamespace(_jsparkSession=SimpleNamespace(sessionState=lambda: state))
    assert table.is_reached(spark, path, cast("Any", given)) is expected


# -- the listener: what each batch became -----------------------------------------------------------------


class Told:
    """A table that a query wrote to, and the progress events of its batches."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.query = "11111111-0000-0000-0000-000000000000"
        with txsink.open_writer(str(path), "app") as sink:
            for number in (0, 1, 2):
                metadata = {"spark": {"query_id": self.query, "base": 5, "batch_id": number}}
                with sink.begin(5 + number, metadata=metadata) as txn:
                    txn.write({"id": [number] * (number + 1)})
        table = txsink.open_table(str(path))
        self.times = {one.epoch: self._times(table, one.version) for one in table.history() if one.kind == "commit"}

    @staticmethod
    def _times(found: txsink.Table, version: int) -> tuple[int, int]:
        """When it was prepared, and when it was committed."""
        entry: Any = found.log.entry(version)
        return found.log.prepare_entry(entry.prepared).time_ms, entry.time_ms

    def progress(self, batch: int, begun_ms: int, took_ms: int, **changes: Any) -> Any:
        """Of a batch that took so long to add, after 7 ms of other things, before 3 ms of Spark's own commit."""
        started = datetime.fromtimestamp((begun_ms - 7) / 1000, timezone.utc)
        durations = {"addBatch": took_ms, "triggerExecution": 7 + took_ms + 3, "commitOffsets": 3}
        told = {
            "id": self.query, "runId": "r", "batchId": batch, "durationMs": durations,
            "timestamp": started.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        }  # fmt: skip
        return SimpleNamespace(**{**told, **changes})


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_the_listener_tells_of_each_batch_what_the_log_says(tmp_path: Path, batch: int) -> None:
    told = Told(tmp_path / "t")
    prepared, committed = told.times[5 + batch]
    found = listener.report_of(
        txsink.open_table(str(told.path)).log, told.progress(batch, prepared - 10, committed - prepared + 30)
    )
    assert found is not None
    assert (found.batch_id, found.epoch, found.writer, found.rows, found.files) == (
        batch,
        5 + batch,
        "app",
        batch + 1,
        1,
    )
    assert (found.stage_ms, found.publish_ms, found.commit_ms) == (10, committed - prepared, 20)


def test_the_listener_tells_no_time_of_publishing_for_what_was_committed_before(tmp_path: Path) -> None:
    told = Told(tmp_path / "t")
    found = listener.report_of(txsink.open_table(str(told.path)).log, told.progress(2, told.times[7][1] + 1_000, 40))
    assert found is not None
    assert (found.stage_ms, found.publish_ms, found.commit_ms) == (40, 0, 0)


def test_the_listener_is_silent_of_what_was_not_written_here(tmp_path: Path) -> None:
    told = Told(tmp_path / "t")
    log = txsink.open_table(str(told.path)).log
    for changes in ({"id": "another"}, {"batchId": 9}, {"durationMs": {"triggerExecution": 5}}):
        assert listener.report_of(log, told.progress(0, 10**12, 5, **changes)) is None
    reports: list[listener.Report] = []
    for path in (tmp_path / "none", told.path):
        event = SimpleNamespace(progress=told.progress(1, told.times[6][0] - 1, 50))
        listener.Listener(str(path), reports.append).onQueryProgress(event)
    assert [one.epoch for one in reports] == [6]
