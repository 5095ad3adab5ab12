"""Small Parquet files, encoded once for each content: what makes thousands of transactions a second affordable.

Promises: `stage` gives a transaction the very files that `Transaction.write` would have staged for the rows, through
the same verbs of the store and with the same records; the next time the bytes come from memory.
Relies on: `EpochStager`, which encodes each content once, on a store in memory; bytes that do not depend on the path.
Does not promise: anything about staging itself. Whoever wants that tested calls `write`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, cast

import msgspec

from txsink import paths
from txsink.records import Column, DataFile
from txsink.staging.epoch_stager import EpochStager, StagedFile
from txsink.staging.parquet import StageOptions
from txsink.store.protocol import Uploads
from txsink.testing.crash_world import rows_table
from txsink.testing.names import Names
from txsink.writing.transaction import Transaction


class _Encoded(NamedTuple):
    """One file of a content: its directory below the table, record, columns and bytes."""

    directory: str
    file: DataFile
    columns: tuple[Column, ...]
    data: bytes


@lru_cache(maxsize=1 << 12)
def _encoded(rows: tuple[int, ...], partition_columns: tuple[str, ...]) -> tuple[_Encoded, ...]:
    names = Names()
    stager = EpochStager(
        names.store(),
        "/s",
        writer="w",
        run="r",
        epoch=0,
        partition_columns=partition_columns,
        columns=(),
        merge_schema=False,
        options=StageOptions(),
        new_id=lambda: "0" * 32,
    )
    stager.write(rows_table(rows))
    return tuple(
        _Encoded(one.file.path.rpartition("/")[0], one.file, one.columns, names.held[f"/s/{one.file.path}"])
        for one in stager.finish()
    )


def stage(txn: Transaction, rows: tuple[int, ...]) -> None:
    """Stage the rows for the transaction, without encoding them anew."""
    owner = txn._sink
    store, settings = owner.log.store, owner.settings
    owner.about_to_stage(by_others=False)
    staged = []
    for at, (directory, file, columns, data) in enumerate(_encoded(rows, owner.log.state.partition_columns)):
        name = paths.data_name(txn.epoch, at, f"{settings.place.id_prefix}{owner.log.stamps.new_id()}")
        path = f"{directory}/{name}" if directory else name
        full_path = f"{settings.place.directory}/{path}"
        is_object = owner.publisher.is_in_place and not store.traits.moves
        output = cast("Uploads", store).create_object(full_path) if is_object else store.create(full_path)
        output.write(data)
        upload = output.seal()
        tail = None if upload else store.tail(full_path, 0)
        record = msgspec.structs.replace(file, path=path)
        identity = owner.identity
        stamp = tail.stamp if tail else ""
        staged.append(StagedFile(identity.writer, identity.run, txn.epoch, record, columns, stamp, None, upload))
    txn.add(staged)
