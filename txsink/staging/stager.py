"""Staging on any worker: a picklable description of where and how, and the records that come back.

Promises: a `Stager` never opens the log; two attempts of one task never write the same name, so losing attempts
leave only files that nothing names.
Relies on: `EpochStager`.
Does not promise: that what it staged is ever published. The coordinator adds the records it believes in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from txsink.records import Column
from txsink.staging.epoch_stager import EpochStager, StagedFile, StageOptions
from txsink.staging.place import Place, leave_mark
from txsink.store.opening import open_store
from txsink.store.protocol import StorageOptions


class Settings(NamedTuple):
    """What an open writer stages with: `place` as its publisher says."""

    uri: str
    storage_options: StorageOptions
    place: Place
    merge_schema: bool
    stage: StageOptions


class Stager(msgspec.Struct, frozen=True, kw_only=True):
    """Made by `Transaction.stager()`, sent to workers; `stage(data)` returns what to add to the transaction."""

    uri: str
    storage_options: StorageOptions
    directory: str
    id_prefix: str
    writer: str
    run: str
    epoch: int
    partition_columns: tuple[str, ...]
    columns: tuple[Column, ...]
    merge_schema: bool
    options: StageOptions
    new_id: Callable[[], str]
    part: str | None = None
    is_in_place: bool = False
    types: str = "spark"
    mark: str = ""  # to be left before the first file; empty where somebody has

    def __post_init__(self) -> None:
        # Also of a stager that was made by hand. The one thing that carries the options to where they are needed.
        msgspec.structs.force_setattr(self, "storage_options", StorageOptions.of(self.storage_options))

    def stage(self, data: object) -> list[StagedFile]:
        """Write `data` to staged files: all of it, or none."""
        store = open_store(self.uri, self.storage_options)
        if self.mark:
            # ORDER: mark durable before a worker's first file, else a crash leaves a file that no run looks for (I9).
            leave_mark(store, self.mark, self.new_id())
        stager = EpochStager(
            store,
            self.directory,
            writer=self.writer,
            run=self.run,
            epoch=self.epoch,
            partition_columns=self.partition_columns,
            columns=self.columns,
            merge_schema=self.merge_schema,
            options=self.options,
            new_id=lambda: f"{self.id_prefix}{self.new_id()}",
            part=self.part,
            is_in_place=self.is_in_place,
            types=self.types,
        )
        try:
            stager.write(data)
            return stager.finish()
        except BaseException:
            stager.discard()
            raise
