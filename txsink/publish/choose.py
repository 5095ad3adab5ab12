"""Choose the strategy that publishes a table's files: the one registration of all strategies.

Promises: one strategy for each layout and kind of store.
Relies on: the state of the log, and the traits of the store.
Does not promise: that the table is there.
"""

from __future__ import annotations

from typing import cast

from txsink.delta.log import DeltaLog
from txsink.log.log import Log
from txsink.publish.delta.publisher import DeltaPublisher
from txsink.publish.multipart import MultipartPublisher
from txsink.publish.protocol import DELTA, Publisher
from txsink.publish.rename import RenamePublisher
from txsink.staging.place import own_staging
from txsink.store.protocol import Store, Uploads


def publisher_of(log: Log, delta: DeltaLog | None) -> Publisher:
    """The strategy of a table; `delta`: its Delta log, if it has the Delta layout."""
    if delta is not None:
        return DeltaPublisher(log, delta)
    state = log.state
    own = own_staging(log.store, log.root, state.staging, state.birth) if log.store.traits.moves else ""
    return open_publisher(log.store, log.root, own)


def former_of(log: Log) -> Publisher | None:
    """The strategy that finds what runs staged when the table had the other layout; None: it never had.

    Such a run may have been open when the table was converted, and may have staged since: it can prepare nothing, and
    in a table that was a Delta table readers of the directory see its files.
    """
    if not log.state.converted:
        return None
    is_delta = log.state.layout == DELTA
    return publisher_of(log, None if is_delta else DeltaLog(log.store, log.root, log.stamps, log.root))


def open_publisher(store: Store, root: str, staging: str) -> Publisher:
    """The strategy of a parquet-layout table on this store. `staging`: the table's own directory, where files move."""
    if store.traits.moves:
        return RenamePublisher(store, root, staging)
    return MultipartPublisher(cast("Uploads", store), root)
