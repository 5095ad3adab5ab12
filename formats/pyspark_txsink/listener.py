"""What each batch of a stream became: epoch, version, rows, bytes, and where its time went.

    spark.streams.addListener(Listener("/data/events", print))

Promises: one `Report` for each batch that wrote to the table, by whichever door, also by a query that writes to several
tables; of a batch that was committed before, what was committed then, and no time for publish and commit. The three
times add up to what Spark calls `addBatch`. A table that does not answer costs a warning, never the query.
Relies on: the table's log, where a batch is found by its query and its number, and the times in its entries: staging
ends when the prepare entry is made, publishing when the commit entry is. Where the batch begins and ends is told by the
progress event, in the clock of the same machine.
Does not promise: a report of a batch whose entries have expired; anything in `query.lastProgress`, where only sinks
written in Scala can tell of themselves. What a query counts by `df.observe` stands there as ever.

Each commit is also a line of the logger `txsink.protocol.resolving`, at INFO, in the process that commits: for the
fast path the driver; for the format a Python worker of the driver, whose lines Spark collects from 4.1 on where
spark.sql.pyspark.worker.logging.enabled is set.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from pyspark.sql.streaming.listener import StreamingQueryListener

from pyspark_txsink.identity import KEY
from pyspark_txsink.options import absolute
from txsink.errors import InvalidRequestError, TxsinkError
from txsink.log.entry import Commit
from txsink.log.log import Log
from txsink.reading.table import Table, open_table

_log = logging.getLogger(__name__)


class Report(NamedTuple):
    """One batch, as it stands in the table."""

    query_id: str
    run_id: str
    batch_id: int
    writer: str
    epoch: int
    version: int
    files: int
    rows: int
    bytes: int
    stage_ms: int
    publish_ms: int
    commit_ms: int


class Listener(StreamingQueryListener):
    """Calls `tell` with a `Report` of each batch of any query of the session that writes to the table."""

    def __init__(
        self, path: str, tell: Callable[[Report], object], storage_options: Mapping[str, object] | None = None
    ) -> None:
        self._path = absolute(path)
        self._tell = tell
        self._options = None if storage_options is None else dict(storage_options)
        self._table: Table | None = None

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 -- Spark's names, here and below
        """Nothing to tell yet."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Tell of the batch."""
        found = self._report(event.progress)
        if found is not None:
            self._tell(found)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Nothing was written."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Its last batch was told of."""

    def _report(self, progress: Any) -> Report | None:
        try:
            if self._table is None:
                self._table = open_table(self._path, storage_options=self._options)
            self._table.refresh()
            return report_of(self._table.log, progress)
        except InvalidRequestError:
            return None  # no table yet: another query's batch
        except TxsinkError as error:
            _log.warning("no report of batch %d of query %s: %s", progress.batchId, progress.id, error)
            return None


def report_of(log: Log, progress: Any) -> Report | None:
    """What the log says of the batch of a progress event; None when it wrote nothing here."""
    if "addBatch" not in progress.durationMs:
        return None
    found = _commit_of(log, str(progress.id), progress.batchId)
    if found is None:
        return None
    prepare = log.prepare_entry(found.prepared)
    took = progress.durationMs
    started = int(datetime.fromisoformat(progress.timestamp.replace("Z", "+00:00")).timestamp() * 1000)
    ended = started + took["triggerExecution"] - took.get("commitOffsets", 0)
    begun = ended - took["addBatch"]
    # In this order; a replay's entries lie before its begin, and clocks may be a little apart.
    prepared = min(max(prepare.time_ms, begun), ended)
    published = min(max(found.time_ms, prepared), ended)
    if found.time_ms < begun:
        prepared = published = ended
    return Report(
        query_id=str(progress.id),
        run_id=str(progress.runId),
        batch_id=progress.batchId,
        writer=found.writer,
        epoch=found.epoch,
        version=found.version,
        files=len(prepare.files),
        rows=sum(file.rows for file in prepare.files),
        bytes=sum(file.bytes for file in prepare.files),
        stage_ms=prepared - begun,
        publish_ms=published - prepared,
        commit_ms=ended - published,
    )


def _commit_of(log: Log, query_id: str, batch_id: int) -> Commit | None:
    """The commit entry of a batch; the writer is the query, or an application id that it wrote as last."""
    for writer, known in log.state.writers.items():
        spark = known.last_metadata.get(KEY, {})
        if spark.get("query_id") != query_id or known.last_version is None:
            continue
        epoch = spark["base"] + batch_id
        version: int | None = known.last_version
        if known.last_epoch != epoch:
            fact = log.commit_of(writer, epoch)
            version = None if fact is None else fact.version
        entry = None if version is None else log.entry(version)
        if isinstance(entry, Commit):
            return entry
    return None
