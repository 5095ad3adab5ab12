"""Which epoch a micro-batch is: the writer is the query, or an application id of the user's own.

Promises: a replayed batch gets the epoch it had; a new checkpoint under an application id that another query used is
refused, or (`on_new_checkpoint="resume"`) goes on after its last epoch, and its replays find theirs again. A stream
that comes from Delta's own sink, which numbers by batches and tells no query, goes on where it was.
Relies on: the metadata of the writer's last epoch, which names the query and its first epoch.
Does not promise: anything for a batch id that Spark takes back below one it gave before.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from txsink.errors import ConflictError
from txsink.writing.writer import Writer

KEY = "spark"


class Batch(NamedTuple):
    """A micro-batch as Spark names it."""

    query_id: str
    run_id: str
    batch_id: int


def epoch_of(sink: Writer, batch: Batch, on_new_checkpoint: str) -> tuple[int, dict[str, Any]]:
    """The epoch of a batch, and what its metadata must tell the next one."""
    known = sink.last_metadata.get(KEY, {})
    last = sink.last_epoch
    if last is None or known.get("query_id") == batch.query_id:
        base = known.get("base", 0)
    elif not known and sink.log.state.last_epoch(sink.writer) != last and batch.batch_id >= last:
        # By Delta's own sink. A stream that moves replays its last batch at most; an older one is of a new checkpoint.
        base = 0
    elif on_new_checkpoint == "resume":
        base = last + 1 - batch.batch_id
    else:
        raise ConflictError(
            f"write batch {batch.batch_id} of query {batch.query_id} as {sink.writer!r}",
            f"its last epoch {last} was written by query {known.get('query_id')}, from another checkpoint",
            "Go on with that checkpoint; choose another txn_app_id; or choose on_new_checkpoint='resume' to number the "
            "batches of this one after it (what both read is then written twice)",
            query_id=batch.query_id,
            known_query_id=known.get("query_id"),
        )
    return base + batch.batch_id, {KEY: {"query_id": batch.query_id, "base": base, "batch_id": batch.batch_id}}
