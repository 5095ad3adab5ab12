"""Publish by giving staged files their names in the table: local disk and HDFS.

Promises: those of `txsink.publish`. Files that are replaced move to where no reader of the directory looks. What lies
in another table's staging directory is never taken away: a copy of a table with a pending epoch gives the files a
second name, after an entry that keeps an abort from coming in between.
Relies on: `Store.move`, which gives a name durably or not at all; `place.own_staging`, whose name is the proof.
Does not promise: to move between file systems. A table's staging root is chosen on its own.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from typing import cast

from txsink import paths
from txsink.errors import ConflictError, InvalidRequestError
from txsink.log.entry import Prepare
from txsink.paths import StagedName
from txsink.publish.decision import Action, End, LogFact, decide
from txsink.publish.protocol import Admission, Epoch, LogDecides, Published, corrupt, end_of
from txsink.records import Column, DataFile
from txsink.staging.epoch_stager import StagedFile, verify
from txsink.staging.place import Place
from txsink.store.protocol import Links, Store


class RenamePublisher(LogDecides):
    """Staged files lie in `<own staging>/<writer>/<run>/` under the names they will have in the table."""

    def __init__(self, store: Store, table_root: str, own: str) -> None:
        self.store = store
        self.table_root = table_root
        self.own = own
        self.staging = posixpath.relpath(own, table_root)
        self._reached: set[str] = set()  # directories of the table that files can be moved to

    def admit(self, name: Epoch, mode: str, columns: tuple[Column, ...], files: list[DataFile]) -> Admission:  # noqa: ARG002
        """Anything that can be moved: a partition may be the mount point of another disk, or a link to one."""
        for directory in sorted({file.path.rpartition("/")[0] for file in files} - self._reached):
            target = f"{self.table_root}/{directory}".rstrip("/")
            if not self.store.same_place(target, self.own):
                raise InvalidRequestError(
                    f"prepare epoch {name[1]} of {name[0]!r}",
                    f"{target} lies on another file system or mount than {self.own}, so no file can be moved there",
                    "Take the mount or link away, and call it again: nothing was prepared",
                    path=target,
                )
            self._reached.add(directory)
        return Admission()

    def place(self, writer: str, run: str) -> Place:
        """The run's own directory."""
        return Place(f"{self.own}/{paths.run_directory(writer, run)}")

    def staged_path(self, prepare: Prepare, file: DataFile) -> str:
        """Where the entry says that its run staged, or where that was moved along with the table."""
        below = f"{paths.run_directory(prepare.writer, prepare.run)}/{file.path}"
        found = f"{self._home(prepare)}/{below}"
        if self._home(prepare) == self.own or not self._is_own(prepare) or self.store.tail(found, 0) is not None:
            return found
        return f"{self.own}/{below}"  # the staging root was moved along with the table

    def problem(self, staged: StagedFile) -> str | None:
        """Another identity than recorded; damage in a page, when the file was touched since."""
        path = self._path(staged.writer, staged.run, staged.file)
        return verify(self.store, path, staged.file, staged.stamp)

    def settle(self, staged: Iterable[StagedFile]) -> None:
        """Sync the names."""
        self.store.settle([self._path(one.writer, one.run, one.file) for one in staged])

    def ends(self, prepare: Prepare, file: DataFile) -> tuple[End, End]:
        """One look at each name."""
        staged, target = self.staged_path(prepare, file), f"{self.table_root}/{file.path}"
        return end_of(self.store, staged, file), end_of(self.store, target, file)

    def goes_only_on(self, prepare: Prepare) -> bool:
        """A removal; and files in another table's staging directory, which a stalled run could link after an abort."""
        if self._is_own(prepare):
            return bool(prepare.removes)
        if not self.store.traits.links:
            raise ConflictError(
                f"publish epoch {prepare.epoch} of {prepare.writer!r}",
                f"its files lie in {self._home(prepare)}, which is not provably this table's: the table is a copy,"
                " or was moved while the epoch was pending",
                "Copy the table again when the epoch is committed in the other; or drop it here with `txsink abort`",
                writer=prepare.writer,
                epoch=prepare.epoch,
            )
        for file in prepare.files:
            staged, target = self.ends(prepare, file)
            if decide(LogFact.PENDING, staged, target) is Action.CORRUPT:
                raise corrupt(prepare, file, staged, target)
        return True

    def publish(self, prepare: Prepare) -> Published:
        """Move what is not there yet; find out what a crash or another run has moved."""
        moves, published = [], []
        for file in prepare.files:
            move = (self.staged_path(prepare, file), f"{self.table_root}/{file.path}")
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
        is_own = self._is_own(prepare)
        undone = self.store.move(moves) if is_own else cast("Links", self.store).link(moves)
        files = {f"{self.table_root}/{file.path}": file for file in prepare.files}
        for source, goal in undone:
            if (reached := end_of(self.store, goal, files[goal])) is not End.SAME:
                raise corrupt(prepare, files[goal], end_of(self.store, source, files[goal]), reached)
        if is_own:
            for source, _ in [*published, *undone]:
                # DELETES: a staged file; proof: own staging directory, and its identity under its final name (I8).
                self.store.delete(source)
            # Up to the run's directory, which its next epoch needs again.
            self._prune(prepare, f"{self._home(prepare)}/{paths.run_directory(prepare.writer, prepare.run)}")
        return Published()

    def replace(self, prepare: Prepare) -> None:
        """Move replaced files to where no reader looks. One that is gone was removed by somebody before us."""
        found_paths = [(file.path, paths.removed_path(prepare.version, file.path)) for file in prepare.removes]
        moves = [(f"{self.table_root}/{path}", f"{self.table_root}/{removed}") for path, removed in found_paths]
        self.store.move(moves)
        # ORDER: old names durably gone before new files come and before the commit entry, else a power cut brings
        # replaced rows back, next to what replaced them (I1).
        self.store.settle([path for path, _ in moves])

    def withdraw(self, prepare: Prepare) -> None:
        """Delete staged files, then those a publish had moved already."""
        for path in [self.staged_path(prepare, file) for file in prepare.files] if self._is_own(prepare) else []:
            # DELETES: staged files of an aborted epoch; proof: the abort entry, own staging directory (I8).
            self.store.delete(path)
        # ORDER: staged deleted before published, else a stalled run moves one into place behind us (I9).
        for file in prepare.files:
            if decide(LogFact.ABORTED, *self.ends(prepare, file)) is Action.DROP_BOTH:
                # DELETES: published files of an aborted epoch; proof: the abort entry, and the identity it names (I8).
                self.store.delete(f"{self.table_root}/{file.path}")
        # ORDER: published names durably gone before the `cleaned` entry, else a power cut brings rows back that
        # nobody drops any more (I1).
        self.store.settle([f"{self.table_root}/{file.path}" for file in prepare.files])
        if self._is_own(prepare):
            self._prune(prepare, f"{self._home(prepare)}/{paths.writer_directory(prepare.writer)}")

    def left(self, writer: str | None, known: Iterable[str]) -> list[StagedName]:  # noqa: ARG002 -- paths tell writers
        """What the directories of the writer, or of all, hold."""
        below = f"{paths.writer_directory(writer)}/" if writer is not None else ""
        found = self.store.list(f"{self.own}/{below}".rstrip("/"))
        names = (paths.parse_staged(f"{below}{path}") for path in found)
        return [name for name in names if name is not None]

    def unproven(self) -> list[str]:
        """What lies below the staging root, yet not in the table's own directory."""
        root, _, key = self.own.rpartition("/")
        return [f"{root}/{path}" for path in self.store.list(root) if not path.startswith(f"{key}/")]

    def drop(self, names: Iterable[StagedName]) -> None:
        """Delete the files and the directories they leave empty, up to the run's."""
        parents = []
        for name in names:
            root = self.place(name.writer, name.run).directory
            # DELETES: what nobody can name; proof: own staging directory, and a run the log has retired (I8).
            self.store.delete(f"{root}/{name.path}")
            parents.append((f"{root}/{name.path}".rpartition("/")[0], root))
        for directory, root in dict.fromkeys(parents):
            # DELETES: a directory; proof: own staging directory, and that it is empty (I8).
            self.store.prune(directory, root)

    def tidy(self, writer: str, run: str) -> None:
        """The run's directory. Not the writer's: who finds it there trusts that its name is durable."""
        # DELETES: the run's directory; proof: own staging directory, and that it is empty (I8).
        self.store.prune(self.place(writer, run).directory, f"{self.own}/{paths.writer_directory(writer)}")

    leave = tidy

    def _path(self, writer: str, run: str, file: DataFile) -> str:
        return f"{self.place(writer, run).directory}/{file.path}"

    def _home(self, prepare: Prepare) -> str:
        """Where the entry says that its run staged: a path computed anew would lose what was staged before a move."""
        return posixpath.normpath(f"{self.table_root}/{prepare.staging}") if prepare.staging else self.own

    def _is_own(self, prepare: Prepare) -> bool:
        """Whether that is provably this table's: the name is, wherever it lies."""
        return self._home(prepare).rpartition("/")[2] == self.own.rpartition("/")[2]

    def _prune(self, prepare: Prepare, root: str) -> None:
        for directory in dict.fromkeys(self.staged_path(prepare, file).rpartition("/")[0] for file in prepare.files):
            # DELETES: a directory; proof: own staging directory, and that it is empty (I8).
            self.store.prune(directory, root)
