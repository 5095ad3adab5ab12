"""The fast path: Spark's own Parquet writer stages, the driver prepares, publishes and commits.

On a store that cannot move files (S3), where Spark's writer could only write what readers see, the executors stage
through Arrow instead; the rest is the same.

Promises: a batch is committed once, whatever is replayed, stopped or killed; a failed write leaves nothing that a
reader sees; a second live run of a query is fenced.
Relies on: Spark's file committer (algorithm 1: what a lost task attempt wrote never counts), whatever the session
says; `txsink.staging.adopt`, which makes the files durable and takes their records from their footers; the local
properties of a micro-batch.
Does not promise: to run where the driver cannot open the table's store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyspark.sql import DataFrame

from pyspark_txsink import arrow, counted_rows, identity, session, types
from pyspark_txsink.identity import Batch
from pyspark_txsink.options import absolute
from txsink.choices import OnNewCheckpoint, require_choice
from txsink.errors import FencedError, InvalidRequestError, TxsinkError
from txsink.options import unknown
from txsink.protocol import fencing
from txsink.protocol.outcome import Result
from txsink.records import Column
from txsink.staging.adopt import Guest
from txsink.staging.epoch_stager import StagedFile
from txsink.writing.opening import open_writer
from txsink.writing.transaction import Transaction
from txsink.writing.writer import Writer

# Algorithm 1, although 2 is faster: under 2 files of a task attempt that was lost after its commit can stay.
_WRITE = {
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "mapreduce.output.basename": "part",  # under a name that begins with an underscore no file counts
    "parquet.summary.metadata.level": "NONE",
    "timeZone": "UTC",  # in the names of directories, as everybody reads them
}
# No checksum file beside each file.
_WRITE_LOCALLY = {"fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem", "fs.file.impl.disable.cache": "true"}
_OF_BEGIN = ("mode", "partition_overwrite", "metadata")
_OF_SINK = ("layout", "partition_by", "merge_schema", "storage_options", "staging_path")
# By the name that a writer of our own knows them by.
_OF_FILES = {
    "compression": "compression",
    "max_records_per_file": "file_rows_max",
    "target_file_bytes": "target_file_bytes",
}
OPTIONS = (*_OF_BEGIN, *_OF_FILES, *_OF_SINK)
# By table and writer: the last batch that was written. Stores may hold the same path, copies of a table its id.
_written: dict[tuple[str, str, str], Batch] = {}


class EachBatch:
    """Called by `foreachBatch`. Keeps its writer open from batch to batch."""

    def __init__(self, path: str, options: Mapping[str, Any]) -> None:
        self._path = absolute(path)  # once: a stream outlives a change of directory
        self._options = dict(options)
        self._app_id = self._options.pop("txn_app_id", None)
        self._on_new = self._options.pop("on_new_checkpoint", "fail")
        _require(path, self._options)
        require_choice(f"write to {path}", "on_new_checkpoint", self._on_new, OnNewCheckpoint)
        self._sink: Writer | None = None

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write one micro-batch."""
        batch = batch_of(df, batch_id)
        writer = self._app_id or batch.query_id
        if self._sink is None or (self._sink.writer, self._sink.run) != (writer, batch.run_id):
            self._sink = _open(self._path, writer, self._options, run=batch.run_id)
        try:
            written = self._sink.log.root, self._sink.log.state.table_id, writer
            self._refuse_another_part(batch, _written.get(written))
            epoch, metadata = identity.epoch_of(self._sink, batch, self._on_new)
            given = {**(self._options.get("metadata") or {}), **metadata}
            result = _stage_and_commit(self._sink, df, epoch, {**self._options, "metadata": given})
        except TxsinkError:
            # What the next batch builds on is what the log says.
            self._sink = None
            raise
        _written[written] = batch
        if result.outcome == "already-committed":
            # Nobody needs the rows, but Spark keeps the state of the query (counts, what was seen) only of a batch
            # that was computed: the next one would start without it, or fail.
            df.write.format("noop").mode("overwrite").save()

    def _refuse_another_part(self, batch: Batch, written: Batch | None) -> None:
        """Spark gives a run each batch once, so this is no replay of the first part, and its rows would be dropped."""
        if written == batch:
            raise InvalidRequestError(
                f"write batch {batch.batch_id} of query {batch.query_id} to {self._path}",
                "this run has written the batch to the same table under the same name before",
                "Give each further part an each_batch with a txn_app_id of its own; written as one DataFrame now, the"
                " rest of this batch would be dropped, as its epoch is committed",
            )


def each_batch(path: str, **options: Any) -> Callable[[DataFrame, int], None]:
    """See `pyspark_txsink.each_batch`."""
    return EachBatch(path, options)


def write(df: DataFrame, path: str, *, writer: str, epoch: int, **options: Any) -> Result:
    """See `pyspark_txsink.write`."""
    _require(path, options)
    with _open(absolute(path), writer, options) as sink:
        return _stage_and_commit(sink, df, epoch, options)


def batch_of(df: DataFrame, batch_id: int) -> Batch:
    """How Spark names the micro-batch that runs on this thread."""
    if session.is_connect(df.sparkSession):
        raise InvalidRequestError(
            f"write batch {batch_id}",
            "it runs in Spark Connect, which tells a batch neither its query nor its run",
            "Write the stream with format('txsink'), which Spark Connect serves as well",
        )
    context = df.sparkSession.sparkContext
    found = context.getLocalProperty("streaming.sql.batchId")
    names = [context.getLocalProperty(key) for key in ("sql.streaming.queryId", "spark.jobGroup.id")]
    if found != str(batch_id) or None in names:
        raise InvalidRequestError(
            f"write batch {batch_id}", "it is no micro-batch of a running stream", "Call it from foreachBatch"
        )
    return Batch(names[0], names[1], batch_id)


# -- pieces -----------------------------------------------------------------------------------------------


def _open(path: str, writer: str, options: Mapping[str, Any], **more: Any) -> Writer:
    given = {name: options[name] for name in _OF_SINK if name in options}
    given |= {known: options[name] for name, known in _OF_FILES.items() if options.get(name) is not None}
    return open_writer(path, writer, **given, **more)


def _stage_and_commit(sink: Writer, df: DataFrame, epoch: int, options: Mapping[str, Any]) -> Result:
    txn = sink.begin(epoch, **{name: options[name] for name in _OF_BEGIN if options.get(name) is not None})
    if txn.outcome == "already-committed":
        return txn.result()
    with txn:
        partition_columns = sink.log.state.partition_columns
        columns = types.columns_of(df.schema, partition_columns)
        # Refused before a task runs, and not by each task.
        known = sink.publisher.columns(sink.log.state)
        columns = types.fitted(known, columns, merge_schema=sink.settings.merge_schema)
        size = options.get("target_file_bytes")
        with session.settings(df.sparkSession, {**session.BYTES, **session.sizes(size)}):
            gathered = session.gathered(types.converted(df, columns, partition_columns), partition_columns, size)
            counted = counted_rows.Counted(gathered, partition_columns)
            if sink.log.store.traits.moves:
                staged = _stage_by_spark(counted, sink, txn, columns, options)
            else:
                staged = arrow.stage(counted.df, txn.stager())
                counted.check(staged, sink.settings.uri)
        txn.add(staged, columns=columns)
    return txn.result()


def _stage_by_spark(
    counted: counted_rows.Counted,
    sink: Writer,
    txn: Transaction,
    columns: tuple[Column, ...],
    options: Mapping[str, Any],
) -> list[StagedFile]:
    guest = txn.guest()
    try:
        uri = uri_of(sink.settings.uri, guest.path)
        with _attempts(guest, uri):
            _write_parquet(counted.df, sink, uri, options)
        staged = guest.adopt(columns, sink.log.stamps.new_id)
        counted.check(staged, uri)
    except BaseException as error:
        with suppress(TxsinkError):  # the error under way says more, and a sweep finds what is left
            guest.drop()
        if isinstance(error, Exception):
            _require_standing(sink)
        raise
    return staged


def _require_standing(sink: Writer) -> None:
    """FencedError where a newer run has taken over: its sweep took away what Spark then missed, which says less."""
    try:
        fencing.standing(sink.log, sink.log.refresh(), sink.identity)
    except FencedError:
        raise
    except TxsinkError:
        pass  # the error under way says more


@contextmanager
def _attempts(guest: Guest, uri: str) -> Iterator[None]:
    """Where Spark's committer has its attempts: it would make the directories in turn, and start a `chmod` for each."""
    if not uri.startswith("file:"):
        yield
        return
    path = f"{guest.path}/_temporary/0/_temporary"
    Path(path).mkdir(parents=True)
    try:
        yield
    finally:
        # DELETES: a directory of Spark's; proof: below the guest's own, and empty (I8).
        guest.store.prune(path, guest.path)  # if Spark has not come to it


def _write_parquet(df: DataFrame, sink: Writer, uri: str, options: Mapping[str, Any]) -> None:
    chosen = {**_WRITE, **(_WRITE_LOCALLY if uri.startswith("file:") else {})}
    chosen["compression"] = sink.settings.stage.compression
    if options.get("max_records_per_file") is not None:
        chosen["maxRecordsPerFile"] = str(options["max_records_per_file"])
    writer = df.write.format("parquet").mode("append").options(**chosen)
    if sink.log.state.partition_columns:
        writer = writer.partitionBy(*sink.log.state.partition_columns)
    writer.save(uri)


def uri_of(table_uri: str, path: str) -> str:
    """The path as Spark names it."""
    parts = urlsplit(table_uri)
    if parts.scheme in {"", "file"}:
        return f"file://{path}"
    return f"{parts.scheme}://{parts.netloc}{path}"


def _require(path: str, options: Mapping[str, Any]) -> None:
    for name in options:
        if name not in OPTIONS:
            raise unknown(f"write to {path}", name, [*OPTIONS, "txn_app_id", "on_new_checkpoint"])
    for name in ("max_records_per_file", "target_file_bytes"):
        value = options.get(name)
        if value is not None and (type(value) is not int or value < 1):
            raise InvalidRequestError(f"write to {path}", f"{name} is {value!r}", "Give a number from 1 on")
