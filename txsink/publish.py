"""How the files of a prepared transaction become visible, and how they go again.

Promises: `publish` and `withdraw` may be repeated, from any process, after a crash at any point; nothing is
overwritten; a file whose identity is not the recorded one is never touched.
Relies on: `Store.move`, which gives a name durably or not at all; `decision.decide`.
Does not promise: to know whether it may. The caller holds the log entries that allow each call.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from txsink import layout
from txsink.decision import Action, End, LogFact, decide
from txsink.entry import DataFile, Prepare
from txsink.errors import CorruptError
from txsink.stage import identity
from txsink.store import Store


class Publisher(Protocol):
    """One publish strategy."""

    def publish(self, prepare: Prepare) -> None:
        """Make every file of the transaction visible and durable."""

    def replace(self, prepare: Prepare) -> None:
        """Take the files the transaction removes out of the readers' sight."""

    def withdraw(self, prepare: Prepare) -> None:
        """Delete every file of an aborted transaction, staged first."""


class RenamePublisher(NamedTuple):
    """Publish by giving staged files their names in the table: local disk and HDFS."""

    store: Store
    table_root: str
    staging_root: str

    def publish(self, prepare: Prepare) -> None:
        """Move what is not there yet; find out what a crash or another run has moved."""
        moves, published = [], []
        for file in prepare.files:
            move = (self._staged(prepare, file), f"{self.table_root}/{file.path}")
            staged, target = (end_of(self.store, path, file) for path in move)
            match decide(LogFact.PENDING, staged, target):
                case Action.MOVE:
                    moves.append(move)
                case Action.DROP_STAGED:
                    published.append(move)
                case _:
                    raise _corrupt(prepare, file, staged, target)
        if published:
            # ORDER: names found in place durable before the commit entry, else a power cut leaves a commit
            # without its file (I6).
            self.store.settle([target for _, target in published])
        undone = self.store.move(moves)
        files = {f"{self.table_root}/{file.path}": file for file in prepare.files}
        for source, goal in undone:
            if (reached := end_of(self.store, goal, files[goal])) is not End.SAME:
                raise _corrupt(prepare, files[goal], end_of(self.store, source, files[goal]), reached)
        for source, _ in [*published, *undone]:
            self.store.delete(source)
        # Up to the run's directory, which its next epoch needs again.
        self._prune(prepare, f"{self.staging_root}/{layout.run_directory(prepare.writer, prepare.run)}")

    def replace(self, prepare: Prepare) -> None:
        """Move replaced files to where no reader looks. One that is gone was removed by somebody before us."""
        paths = [(file.path, layout.removed_path(prepare.version, file.path)) for file in prepare.removes]
        moves = [(f"{self.table_root}/{path}", f"{self.table_root}/{removed}") for path, removed in paths]
        self.store.move(moves)
        # ORDER: old names durably gone before new files come and before the commit entry, else a power cut brings
        # replaced rows back, next to what replaced them (I1).
        self.store.settle([path for path, _ in moves])

    def withdraw(self, prepare: Prepare) -> None:
        """Delete staged files, then those a publish had moved already."""
        staged = [self._staged(prepare, file) for file in prepare.files]
        for path in staged:
            self.store.delete(path)
        # ORDER: staged deleted before published, else a stalled run moves one into place behind us (I9).
        for file, path in zip(prepare.files, staged, strict=True):
            target = f"{self.table_root}/{file.path}"
            ends = end_of(self.store, path, file), end_of(self.store, target, file)
            if decide(LogFact.ABORTED, *ends) is Action.DROP_BOTH:
                self.store.delete(target)
        # ORDER: published names durably gone before the `cleaned` entry, else a power cut brings rows back that
        # nobody drops any more (I1).
        self.store.settle([f"{self.table_root}/{file.path}" for file in prepare.files])
        self._prune(prepare, f"{self.staging_root}/{layout.writer_directory(prepare.writer)}")

    def _staged(self, prepare: Prepare, file: DataFile) -> str:
        directory = layout.run_directory(prepare.writer, prepare.run)
        return f"{self.staging_root}/{directory}/{file.path}"

    def _prune(self, prepare: Prepare, root: str) -> None:
        for directory in {self._staged(prepare, file).rpartition("/")[0] for file in prepare.files}:
            self.store.prune(directory, root)


def end_of(store: Store, path: str, file: DataFile) -> End:
    """What lies at `path`, measured against the recorded identity."""
    found = identity(store, path)
    if found is None:
        return End.ABSENT
    return End.SAME if (found.bytes, found.digest) == (file.bytes, file.digest) else End.OTHER


def _corrupt(prepare: Prepare, file: DataFile, staged: End, target: End) -> CorruptError:
    return CorruptError(
        f"publish {file.path} of epoch {prepare.epoch} of {prepare.writer!r}",
        f"its staged file is {staged.value}, the file under its name in the table is {target.value}",
        "Inspect both; nothing was deleted. Put the recorded file back, or drop the epoch with `txsink abort`",
        path=file.path,
        epoch=prepare.epoch,
        writer=prepare.writer,
    )
