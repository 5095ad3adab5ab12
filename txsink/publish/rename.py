"""Publish by giving staged files their names in the table: local disk and HDFS.

Promises: those of `txsink.publish`. Files that are replaced move to where no reader of the directory looks.
Relies on: `Store.move`, which gives a name durably or not at all.
Does not promise: to move between file systems. A table's staging root is chosen on its own.
"""

from __future__ import annotations

from collections.abc import Iterable

from txsink import layout
from txsink.decision import Action, End, LogFact, decide
from txsink.entry import DataFile, Prepare
from txsink.layout import StagedName
from txsink.place import Place
from txsink.publish import LogDecides, Published, corrupt, end_of
from txsink.stage import StagedFile, verify
from txsink.store import Store


class RenamePublisher(LogDecides):
    """Staged files lie in `<staging root>/<writer>/<run>/` under the names they will have in the table."""

    def __init__(self, store: Store, table_root: str, staging_root: str) -> None:
        self.store = store
        self.table_root = table_root
        self.staging_root = staging_root

    def place(self, writer: str, run: str) -> Place:
        """The run's own directory."""
        return Place(f"{self.staging_root}/{layout.run_directory(writer, run)}")

    def problem(self, staged: StagedFile) -> str | None:
        """Another identity than recorded; damage in a page, when the file was touched since."""
        path = self._path(staged.writer, staged.run, staged.file)
        return verify(self.store, path, staged.file, staged.stamp)

    def settle(self, staged: Iterable[StagedFile]) -> None:
        """Sync the names."""
        self.store.settle([self._path(one.writer, one.run, one.file) for one in staged])

    def ends(self, prepare: Prepare, file: DataFile) -> tuple[End, End]:
        """One look at each name."""
        staged, target = self._staged(prepare, file), f"{self.table_root}/{file.path}"
        return end_of(self.store, staged, file), end_of(self.store, target, file)

    def publish(self, prepare: Prepare) -> Published:
        """Move what is not there yet; find out what a crash or another run has moved."""
        moves, published = [], []
        for file in prepare.files:
            move = (self._staged(prepare, file), f"{self.table_root}/{file.path}")
            staged, target = self.ends(prepare, file)
            match decide(LogFact.PENDING, staged, target):
                case Action.MOVE:
                    moves.append(move)
                case Action.DROP_STAGED:
                    published.append(move)
                case _:
                    raise corrupt(prepare, file, staged, target)
        if published:
            # ORDER: names found in place durable before the commit entry, else a power cut leaves a commit
            # without its file (I6).
            self.store.settle([target for _, target in published])
        undone = self.store.move(moves)
        files = {f"{self.table_root}/{file.path}": file for file in prepare.files}
        for source, goal in undone:
            if (reached := end_of(self.store, goal, files[goal])) is not End.SAME:
                raise corrupt(prepare, files[goal], end_of(self.store, source, files[goal]), reached)
        for source, _ in [*published, *undone]:
            self.store.delete(source)
        # Up to the run's directory, which its next epoch needs again.
        self._prune(prepare, self.place(prepare.writer, prepare.run).directory)
        return Published()

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
        for file in prepare.files:
            if decide(LogFact.ABORTED, *self.ends(prepare, file)) is Action.DROP_BOTH:
                self.store.delete(f"{self.table_root}/{file.path}")
        # ORDER: published names durably gone before the `cleaned` entry, else a power cut brings rows back that
        # nobody drops any more (I1).
        self.store.settle([f"{self.table_root}/{file.path}" for file in prepare.files])
        self._prune(prepare, f"{self.staging_root}/{layout.writer_directory(prepare.writer)}")

    def left(self, writer: str | None, known: Iterable[str]) -> list[StagedName]:  # noqa: ARG002 -- paths tell writers
        """What the directories of the writer, or of all, hold."""
        below = f"{layout.writer_directory(writer)}/" if writer is not None else ""
        found = self.store.list(f"{self.staging_root}/{below}".rstrip("/"))
        names = (layout.parse_staged(f"{below}{path}") for path in found)
        return [name for name in names if name is not None]

    def drop(self, names: Iterable[StagedName]) -> None:
        """Delete the files and the directories they leave empty, up to the run's."""
        parents = []
        for name in names:
            root = self.place(name.writer, name.run).directory
            self.store.delete(f"{root}/{name.path}")
            parents.append((f"{root}/{name.path}".rpartition("/")[0], root))
        for directory, root in dict.fromkeys(parents):
            self.store.prune(directory, root)

    def tidy(self, writer: str, run: str) -> None:
        """The run's directory. Not the writer's: who finds it there trusts that its name is durable."""
        self.store.prune(self.place(writer, run).directory, f"{self.staging_root}/{layout.writer_directory(writer)}")

    leave = tidy

    def _path(self, writer: str, run: str, file: DataFile) -> str:
        return f"{self.place(writer, run).directory}/{file.path}"

    def _staged(self, prepare: Prepare, file: DataFile) -> str:
        return self._path(prepare.writer, prepare.run, file)

    def _prune(self, prepare: Prepare, root: str) -> None:
        for directory in dict.fromkeys(self._staged(prepare, file).rpartition("/")[0] for file in prepare.files):
            self.store.prune(directory, root)
