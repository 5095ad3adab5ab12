"""How staged files become visible, and how they go again: one small protocol, one module per strategy.

Promises (of every strategy, checked by `tests/contract_publish.py`): `publish`, `replace` and `withdraw` may be
repeated, from any process, after a crash at any point; nothing is overwritten; a file whose identity is not the
recorded one is never touched.
Relies on: `Store`; `decision.decide`.
Does not promise: to know whether it may. The caller holds the log entries that allow each call.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from typing import Protocol, cast

from txsink import layout
from txsink.decision import End
from txsink.entry import DataFile, Prepare
from txsink.errors import CorruptError
from txsink.layout import StagedName
from txsink.stage import StagedFile, identity
from txsink.store import Store, Uploads


class Publisher(Protocol):
    """One publish strategy."""

    def place(self, writer: str, run: str) -> tuple[str, str]:
        """Where a run creates its files: the directory, and how their ids begin."""

    def problem(self, staged: StagedFile) -> str | None:
        """What is wrong with a file that was staged just now; None when it can be prepared."""

    def settle(self, staged: Iterable[StagedFile]) -> None:
        """Make it durable that the files are there."""

    def ends(self, prepare: Prepare, file: DataFile) -> tuple[End, End]:
        """What lies in staging and what under its name in the table."""

    def publish(self, prepare: Prepare) -> None:
        """Make every file of the transaction visible and durable."""

    def replace(self, prepare: Prepare) -> None:
        """Take the files the transaction removes out of the readers' sight."""

    def withdraw(self, prepare: Prepare) -> None:
        """Delete every file of an aborted transaction, staged first."""

    def left(self, writer: str | None, known: Iterable[str]) -> list[StagedName]:
        """What lies staged, by one writer or by all; by those `known` where a staged file does not tell its writer."""

    def drop(self, names: Iterable[StagedName]) -> None:
        """Delete staged files, which nobody can name any more."""

    def tidy(self, writer: str, run: str) -> None:
        """Remove what is empty once a run's files are gone."""


def open_publisher(store: Store, root: str, staging: str | None) -> Publisher:
    """The strategy of a parquet-layout table on this store. `staging`: relative to the table; None: beside it."""
    if store.traits.moves:
        from txsink.publish.rename import RenamePublisher  # noqa: PLC0415 -- it imports this module

        return RenamePublisher(store, root, staging_root_of(root, staging))
    from txsink.publish.multipart import MultipartPublisher  # noqa: PLC0415 -- the same

    return MultipartPublisher(cast("Uploads", store), root)


def staging_root_of(root: str, staging: str | None) -> str:
    """Where the transactions of a table whose files are moved are staged."""
    return layout.default_staging_root(root) if staging is None else posixpath.normpath(f"{root}/{staging}")


def names_of(prepare: Prepare) -> list[StagedName]:
    """The staged files that a transaction names."""
    if not prepare.uploads:
        return [
            StagedName(prepare.writer, prepare.run, layout.data_epoch(file.path), file.path) for file in prepare.files
        ]
    run = layout.tag(prepare.run)
    return [
        StagedName(prepare.writer, run, layout.data_epoch(file.path), file.path, upload.id)
        for file, upload in zip(prepare.files, prepare.uploads, strict=True)
    ]


def name_of(staged: StagedFile) -> StagedName:
    """What a staged file is called while it is staged."""
    run, upload = (layout.tag(staged.run), staged.upload.id) if staged.upload else (staged.run, "")
    return StagedName(staged.writer, run, layout.data_epoch(staged.file.path), staged.file.path, upload)


def end_of(store: Store, path: str, file: DataFile) -> End:
    """What lies at `path`, measured against the recorded identity."""
    found = identity(store, path)
    if found is None:
        return End.ABSENT
    return End.SAME if (found.bytes, found.digest) == (file.bytes, file.digest) else End.OTHER


def corrupt(prepare: Prepare, file: DataFile, staged: End, target: End) -> CorruptError:
    """A file that can be neither published nor found published."""
    return CorruptError(
        f"publish {file.path} of epoch {prepare.epoch} of {prepare.writer!r}",
        f"its staged file is {staged.value}, the file under its name in the table is {target.value}",
        "Inspect both; nothing was deleted. Put the recorded file back, or drop the epoch with `txsink abort`",
        path=file.path,
        epoch=prepare.epoch,
        writer=prepare.writer,
    )
