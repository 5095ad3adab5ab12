"""Publish by completing multipart uploads: stores that cannot move files (S3).

Promises: those of `txsink.publish`. A staged file is a pending upload to its final name, which no reader sees; the
prepare entry holds what completes it, so any process can. Replaced files are deleted: the store cannot move them.
Relies on: `Uploads.complete`, which makes an object appear whole or not at all, and never over another one.
Does not promise: that a store keeps pending uploads. Where a life-cycle rule aborts one, publish is CorruptError, and
nothing of the epoch is committed.
"""

from __future__ import annotations

from collections.abc import Iterable

from txsink import paths
from txsink.errors import UnavailableError
from txsink.log.entry import Prepare
from txsink.paths import StagedName
from txsink.publish.decision import Action, End, LogFact, decide
from txsink.publish.protocol import LogDecides, Published, corrupt, end_of
from txsink.records import DataFile, Upload
from txsink.staging.epoch_stager import StagedFile
from txsink.staging.place import Place
from txsink.store.protocol import Uploads


class MultipartPublisher(LogDecides):
    """Staged files are pending uploads; the ids in their names begin with the tags of writer and run."""

    def __init__(self, store: Uploads, table_root: str) -> None:
        self.store = store
        self.table_root = table_root
        self._untried: set[str] = set()  # uploads that nobody can have tried to complete

    def place(self, writer: str, run: str) -> Place:
        """The table itself."""
        return Place(self.table_root, f"{paths.tag(writer)}{paths.tag(run)}")

    def staged_path(self, prepare: Prepare, file: DataFile) -> str:  # noqa: ARG002 -- the upload's name is the object's
        """The name that its upload is made for."""
        return self._path(file.path)

    def problem(self, staged: StagedFile) -> str | None:
        """An upload nobody holds. The store has answered every part with its tag, and checks the tags at the end."""
        return "is no pending upload" if staged.upload is None else None

    def settle(self, staged: Iterable[StagedFile]) -> None:
        """Nothing: an upload is durable once its parts are answered. What is not in the log yet, nobody completes."""
        self._untried.update(one.upload.id for one in staged if one.upload is not None)

    def ends(self, prepare: Prepare, file: DataFile) -> tuple[End, End]:
        """A look at the upload's parts, and one at the object."""
        upload = prepare.uploads[prepare.files.index(file)]
        return self._staged(file, upload), end_of(self.store, self._path(file.path), file)

    def publish(self, prepare: Prepare) -> Published:
        """Complete every upload. One that cannot be was completed before, or is lost: then look.

        Look also where somebody may have tried before: some stores say yes while another is still at it, or when it
        was killed half way.
        """
        for file, upload in zip(prepare.files, prepare.uploads, strict=True):
            is_first = upload.id in self._untried
            self._untried.discard(upload.id)
            is_made = self.store.complete(self._path(file.path), upload)
            if not (is_made and is_first):
                self._look(prepare, file, upload, is_made=is_made)
        return Published()

    def replace(self, prepare: Prepare) -> None:
        """Delete the files that are replaced. One that is gone was deleted by somebody before us."""
        for file in prepare.removes:
            # DELETES: replaced files; proof: the prepare entry names them, and `publishing` stands (I8).
            self.store.delete(self._path(file.path))

    def withdraw(self, prepare: Prepare) -> None:
        """Drop the uploads, then delete what a publish had completed already."""
        for file, upload in zip(prepare.files, prepare.uploads, strict=True):
            self._untried.discard(upload.id)
            # DELETES: uploads of an aborted epoch; proof: the abort entry, and the id in the prepare entry (I8).
            self.store.cancel(self._path(file.path), upload.id)
        # ORDER: uploads dropped before completed files are deleted, else a stalled run completes one behind us (I9).
        for file in prepare.files:
            path = self._path(file.path)
            if decide(LogFact.ABORTED, End.ABSENT, end_of(self.store, path, file)) is Action.DROP_BOTH:
                # DELETES: completed files of an aborted epoch; proof: the abort entry, and their identity (I8).
                self.store.delete(path)

    def left(self, writer: str | None, known: Iterable[str]) -> list[StagedName]:
        """The pending uploads of the writer, or of those known."""
        writers = sorted(known) if writer is None else [writer]
        found = self.store.uploads(self.table_root)
        names = (paths.parse_upload(path, upload, one) for path, upload in found for one in writers)
        own = [name for name in names if name is not None]
        # No set, which has no order: the same run asks for the same directories in the same order.
        above = dict.fromkeys(directory for name in own for directory in paths.directories_above(name.path))
        others = {directory for directory in above if self._holds_log(directory)}
        return [name for name in own if others.isdisjoint(paths.directories_above(name.path))]

    def drop(self, names: Iterable[StagedName]) -> None:
        """Drop the uploads."""
        for name in names:
            # DELETES: uploads nobody can name; proof: the tags of a run that the log has retired (I8).
            self.store.cancel(self._path(name.path), name.upload)

    def tidy(self, writer: str, run: str) -> None:
        """Nothing: there are no directories."""

    leave = tidy

    def _look(self, prepare: Prepare, file: DataFile, upload: Upload, *, is_made: bool) -> None:
        target = end_of(self.store, self._path(file.path), file)
        if is_made and target is End.SAME:
            return
        staged = self._staged(file, upload)
        action = decide(LogFact.PENDING, staged, target)
        if action is Action.DROP_STAGED:
            if staged is not End.ABSENT:
                # DELETES: an upload; proof: its object stands under its name with the recorded identity (I8).
                self.store.cancel(self._path(file.path), upload.id)
        elif action is Action.MOVE or (is_made and target is End.ABSENT):
            said = (
                "said that its upload is complete"
                if is_made
                else "refused to complete its upload, which is there whole"
            )
            raise UnavailableError(
                f"publish {file.path} of epoch {prepare.epoch} of {prepare.writer!r}",
                f"the store {said}, but there is no such object",
                "Retry. If it stays so, the store has lost the upload: drop the epoch with `txsink abort`",
            )
        else:
            raise corrupt(prepare, file, staged, target)

    def _holds_log(self, directory: str) -> bool:
        """Whether a directory below the table is a table of its own."""
        return any(self.store.list(f"{self._path(directory)}/{name}", 1) for name in paths.LOG_NAMES)

    def _path(self, path: str) -> str:
        return f"{self.table_root}/{path}"

    def _staged(self, file: DataFile, upload: Upload) -> End:
        parts = self.store.parts(self._path(file.path), upload.id)
        if parts is None:
            return End.ABSENT
        return End.SAME if parts == upload.parts else End.OTHER
