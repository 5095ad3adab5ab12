"""A table as workers need it that learn only where they run which epoch they stage for: Spark's executors.

Promises: it can be pickled, knows no log, and makes the `Stager` of any writer, run and epoch.
Relies on: `stager`; the publish strategy for where a run stages.
Does not promise: to know of columns that came later than it was made; `prepare` decides on those.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable

import msgspec

from txsink.publish.choose import open_publisher
from txsink.publish.protocol import DELTA
from txsink.records import Column
from txsink.staging.epoch_stager import StageOptions
from txsink.staging.place import place_in_table
from txsink.staging.stager import Stager
from txsink.store.opening import open_store
from txsink.store.protocol import StorageOptions


class Workplace(msgspec.Struct, frozen=True, kw_only=True):
    """Made by `opening.open_workplace`, sent to workers."""

    uri: str
    storage_options: StorageOptions
    layout: str
    staging: str
    partition_columns: tuple[str, ...]
    columns: tuple[Column, ...]
    merge_schema: bool
    types: str
    options: StageOptions
    new_id: Callable[[], str]

    def stager(self, writer: str, run: str, epoch: int) -> Stager:
        """What stages for this epoch."""
        store = open_store(self.uri, self.storage_options)
        root = store.resolve(self.uri)
        is_in_place = self.layout == DELTA
        place = (
            place_in_table(root, writer, run)
            if is_in_place
            else open_publisher(store, root, posixpath.normpath(f"{root}/{self.staging}")).place(writer, run)
        )
        return Stager(
            uri=self.uri,
            storage_options=self.storage_options,
            directory=place.directory,
            id_prefix=place.id_prefix,
            is_in_place=is_in_place,
            mark=place.mark,
            writer=writer,
            run=run,
            epoch=epoch,
            partition_columns=self.partition_columns,
            columns=self.columns,
            merge_schema=self.merge_schema,
            types=self.types,
            options=self.options,
            new_id=self.new_id,
        )
