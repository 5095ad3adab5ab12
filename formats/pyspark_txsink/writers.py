"""The format's writers: executors stage through Arrow, the driver prepares, publishes and commits.

Promises: what a micro-batch or job wrote is committed once, whatever is replayed; Spark's `abort` deletes nothing that
the log names, also when a commit raised after it had landed; files of task attempts that Spark does not report are
never published, and a sweep deletes them.
Relies on: the local properties of a streaming task, which name query, run and batch; messages of plain text.
Does not promise: that anything lives from one call to the next. Spark makes a new writer for each, in another process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_txsink import arrow, identity, options, parcel, types
from pyspark_txsink.identity import Batch
from txsink import schema
from txsink.environment import new_id
from txsink.errors import InvalidRequestError, TxsinkError
from txsink.protocol import sweeping
from txsink.publish.protocol import name_of
from txsink.records import Column
from txsink.staging.epoch_stager import StagedFile
from txsink.writing.opening import open_workplace, open_writer
from txsink.writing.transaction import Transaction
from txsink.writing.workplace import Workplace
from txsink.writing.writer import Writer

# What runs in a process of Spark that commits or aborts batches of a stream. After a failure it is a new process.
COMMITS = "pyspark.sql.worker.python_streaming_sink_runner"
# The process that commits is used again for the next batch: what it opened stays open.
_sinks: dict[tuple[str, str, str], Writer] = {}


class Message(WriterCommitMessage):
    """What one task staged."""

    def __init__(self, batch: Batch, staged: str) -> None:
        self.query_id, self.run_id, self.batch_id = batch
        self.staged = staged


class _Writer:
    """What both kinds have in common."""

    def __init__(self, given: Mapping[str, str], columns: StructType, *, overwrite: bool) -> None:
        self._given = options.parse(given)
        self._schema_json = columns.json()
        self._overwrite = overwrite
        self._columns()
        # Who commits or aborts batches of a stream has no use for it, and its failure would hide why a commit failed.
        self._workplace = None if COMMITS in sys.modules else self._open()

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickled on its way to the executors. What cannot be written was refused before, in words of ours.
        if self._workplace is None:
            self._workplace = self._open()
        return parcel.sent(parcel.restored, type(self), dict(self.__dict__))

    def _open(self) -> Workplace:
        """What the executors need; refused is, before a task runs, what each task would refuse."""
        columns = self._columns()
        workplace = open_workplace(self._given.path, **options.of_writer(self._given))
        self._fitted(workplace.columns)
        schema.check_partition_columns(workplace.partition_columns, schema.schema_of(columns))
        return workplace

    def _fitted(self, known: tuple[Column, ...]) -> tuple[Column, ...]:
        return types.fitted(known, self._columns(), merge_schema=self._given.merge_schema)

    def _columns(self) -> tuple[Column, ...]:
        found = StructType.fromJson(msgspec.json.decode(self._schema_json))
        return types.columns_of(found, self._given.partition_by or ())

    def _stage(self, batch: Batch, writer: str, iterator: Iterator[Any]) -> Message:
        if self._workplace is None:
            raise InvalidRequestError("stage", "the writer was not sent to this executor", "Report it")
        stager = self._workplace.stager(writer, batch.run_id, batch.batch_id)
        return Message(batch, arrow.staged(stager, iterator))

    def _modes(self) -> dict[str, Any]:
        if not self._overwrite:
            return {"mode": "append"}
        return {"mode": "overwrite", "partition_overwrite": self._given.partition_overwrite}


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Each micro-batch is an epoch of the writer named after the query, or after `txnAppId`."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage one task's rows."""
        context = TaskContext.get()
        keys = ("sql.streaming.queryId", "spark.jobGroup.id", "streaming.sql.batchId")
        query_id, run_id, batch_id = (context.getLocalProperty(key) if context else None for key in keys)
        if query_id is None or run_id is None or batch_id is None:
            raise InvalidRequestError("stage a micro-batch", "the task names no query", "Write it as a stream")
        batch = Batch(query_id, run_id, int(batch_id))
        return self._stage(batch, self._writer_of(batch), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit the micro-batch."""
        batch, staged = _read(messages)
        if batch is None or batch.batch_id != batchId:
            raise InvalidRequestError(f"commit batch {batchId}", "no task reported it", "Restart the query")
        sink = self._sink(batch)
        try:
            epoch, metadata = identity.epoch_of(sink, batch, self._given.on_new_checkpoint)
            txn = sink.begin(epoch, metadata={**self._given.user_metadata, **metadata}, **self._modes())
            _commit(sink, txn, [msgspec.structs.replace(one, epoch=epoch) for one in staged], self._fitted)
        except TxsinkError:
            self._forget(batch)
            raise

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Nothing: a commit that raised may have landed, or land yet. The next run sweeps what is left."""
        _sinks.clear()

    def _writer_of(self, batch: Batch) -> str:
        return self._given.app_id or batch.query_id

    def _sink(self, batch: Batch) -> Writer:
        key = (self._given.path, self._writer_of(batch), batch.run_id)
        if key not in _sinks:
            _sinks.clear()
            _sinks[key] = open_writer(self._given.path, key[1], run=batch.run_id, **options.of_writer(self._given))
        return _sinks[key]

    def _forget(self, batch: Batch) -> None:
        """What the next call builds on is what the log says."""
        _sinks.pop((self._given.path, self._writer_of(batch), batch.run_id), None)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """A job is one epoch: `txnVersion` of `txnAppId`, or the only one of a writer of its own."""

    def __init__(self, given: Mapping[str, str], columns: StructType, *, overwrite: bool) -> None:
        super().__init__(given, columns, overwrite=overwrite)
        known = self._given
        name = f"batch-{new_id()}" if known.app_id is None else known.app_id
        self._batch = Batch(name, new_id(), known.app_version or 0)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage one task's rows."""
        return self._stage(self._batch, self._batch.query_id, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the job."""
        _, staged = _read(messages)
        with self._opened() as sink:
            txn = sink.begin(self._batch.batch_id, metadata=self._given.user_metadata, **self._modes())
            _commit(sink, txn, staged, self._fitted)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """Drop what was staged, unless the log names it: the claim comes after whatever a commit has appended."""
        with self._opened() as sink:
            sweeping.forget(sink.log, sink.identity, sink.publisher, self._batch.batch_id)

    def _opened(self) -> Writer:
        given = options.of_writer(self._given)
        return open_writer(self._given.path, self._batch.query_id, run=self._batch.run_id, **given)


Columns = tuple[Column, ...]


def _commit(sink: Writer, txn: Transaction, staged: list[StagedFile], fitted: Callable[[Columns], Columns]) -> None:
    if txn.outcome == "already-committed":
        # A replay: what it staged is nobody's.
        sweeping.forget(sink.log, sink.identity, sink.publisher, txn.epoch, [name_of(one) for one in staged])
        return
    with txn:
        txn.add(staged, columns=fitted(sink.publisher.columns(sink.log.state)))


def _read(messages: Sequence[WriterCommitMessage | None]) -> tuple[Batch | None, list[StagedFile]]:
    """The batch that the tasks name, and what they staged: every task has a word in it."""
    found = [message for message in messages if isinstance(message, Message)]
    if len(found) != len(messages):
        raise InvalidRequestError(
            "commit", f"{len(messages) - len(found)} of {len(messages)} tasks reported nothing", "Write again"
        )
    if len({(one.query_id, one.run_id, one.batch_id) for one in found}) > 1:
        raise InvalidRequestError("commit", "the tasks report several batches", "Restart the query")
    staged = [record for message in found for record in arrow.records_of(message.staged)]
    return (Batch(found[0].query_id, found[0].run_id, found[0].batch_id) if found else None), staged
