"""Publish by one commit of Delta's log: the default on S3, on request anywhere.

Promises: those of `txsink.publish`. A staged file lies under its final name, where only the Delta log says who sees it;
a transaction becomes visible whole, by one commit that carries two `txn` actions (`docs/design.md`, Delta layout), or
never: an abort first commits the odd number, behind which no stalled run can publish.
Relies on: `DeltaLog.commit`, which decides on the newest state and commits exactly onto it.
Does not promise: to keep VACUUM of another engine, told to keep nothing, from files that are staged or prepared. They
are looked at before the commit, and what is missing is CorruptError.

    value of ("txsink:" + writer), v being the version of the prepare entry      publish            abort
    < 2v        nobody has resolved it                                           commit 2v          commit 2v + 1
    = 2v        published                                                        done               refused
    = 2v + 1    poisoned                                                         refused            done
    > 2v + 1    resolved, and our log says how                                   refused            done

A value says that all transactions up to it are resolved. So an abort while earlier epochs of the writer are pending has
a record of its own, ("txsink-abort-<2v + 1>:" + writer): to publish, it is the same as 2v + 1. Such aborts are rare,
and a record is 100 bytes in each checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import msgspec

from txsink import paths
from txsink.delta import actions as delta_actions, checkpoints as delta_upkeep, state as states
from txsink.delta.actions import Made, add_of, begun, info_of, new_fields, remove_of, txn_of, zoned_columns
from txsink.delta.files import require_values, told
from txsink.delta.log import DeltaLog, columns_of, fields_of
from txsink.delta.state import Action, DeltaState
from txsink.errors import ConflictError, InvalidRequestError, UnavailableError
from txsink.log.entry import Prepare
from txsink.log.log import Log
from txsink.log.state import APPEND, REWIND, State, union
from txsink.paths import StagedName
from txsink.publish.decision import End
from txsink.publish.delta import agreement as delta_agreement
from txsink.publish.delta.agreement import Disagreement
from txsink.publish.delta.brought_back import require_no_replay, shown_again
from txsink.publish.delta.overwrite import doomed
from txsink.publish.protocol import DELTA, Admission, Epoch, Published, corrupt, end_of
from txsink.records import Column, DataFile
from txsink.staging.epoch_stager import StagedFile, verify
from txsink.staging.parquet import columns_in, footer_of
from txsink.staging.place import Place, leave_mark, place_in_table

FRESH_MS = 10_000  # a look at a file tells that it is there, as long as it is not older


class DeltaPublisher:
    """Staged files lie under their final names; their ids begin with the tags of writer and run."""

    layout = DELTA
    is_in_place = True
    staging = ""

    def __init__(self, log: Log, delta: DeltaLog) -> None:
        self.log = log
        self.store = log.store
        self.delta = delta
        self._looks: dict[str, int] = {}  # when this process last saw a file whole

    def place(self, writer: str, run: str) -> Place:
        """The table itself, and the mark that leads a later run to what is left."""
        return place_in_table(self.log.root, writer, run)

    def columns(self, state: State) -> tuple[Column, ...]:
        """Those of the Delta table, then those that only our log knows yet: without a type, or of a pending epoch.

        A column that another program dropped is none of them: it has to come as a new one.
        """
        if not self.delta.exists:
            return state.known_columns()
        theirs = columns_of(self.delta.state.metadata["schemaString"], f"open {self.log.root}")
        ours = tuple(column for column in state.columns if column.type == "null")
        return union(theirs, msgspec.structs.replace(state, columns=ours).known_columns())

    def last_epoch(self, writer: str) -> int | None:
        """What Delta's log has under the writer's name, by whatever program."""
        known = self._recorded(writer)
        if known is not None:
            self.delta.settle()  # who hears of it goes on behind it
        return known

    def require_agreement(self, writer: str, *, is_lenient: bool) -> None:
        """Refuse an older copy of either log, unless a run has to get at what is pending (`is_lenient`)."""
        what = f"open {self.log.root} as {writer!r}"
        delta_agreement.require_whole(self.delta, what)
        found = self._with_record(self.delta.state, writer)
        if not is_lenient and delta_agreement.problem(self.log.state, found, what, None, writer):
            # What our log tells of was committed since Delta's log was read, perhaps.
            found = self._with_record(self.delta.refresh(), writer)
            self._require_ours(found, what, writer)
        if (lost := delta_agreement.ahead(self.log, found, writer, what)) is not None:
            raise lost

    def disagreements(self) -> list[Disagreement]:
        """What `verify` is to tell of."""
        return delta_agreement.disagreements(self.log, self.delta)

    def give_up(self, writer: str) -> None:
        """Take Delta's record back to what our log knows."""
        delta_agreement.give_up(self.log, self.delta, writer)

    def named(self) -> set[str]:
        """The files that Delta's log names, as it is now."""
        return delta_agreement.named(self.delta)

    def admit(self, name: Epoch, mode: str, columns: tuple[Column, ...], files: list[DataFile]) -> Admission:
        """Whether the Delta table takes the epoch, before anything of it is logged."""
        writer, epoch = name
        what = f"prepare epoch {epoch} of {writer!r}"
        found = self._with_record(self.delta.refresh(), writer)
        self._require_ours(found, what, writer)
        if not self.delta.exists:
            fields = fields_of(columns, what)  # also without files: a type that Delta does not have is refused here
            if files and not fields:
                problem = "its rows are the table's first, and no column has a type yet"
                raise InvalidRequestError(what, problem, "Give a column a type: Delta has no columns without one")
            if fields:
                all_columns = union(self.log.state.columns, columns)
                delta_actions.require_partition_types(self.log.state.partition_columns, all_columns, what)
            return Admission()
        states.require_writable(found, what)
        if mode != APPEND:
            states.require_overwritable(found, what)
        new_fields(found, columns, what)
        require_values(self.store, self.log.root, found, files, what)
        known = self._recorded(writer)
        is_committed = known is not None and known >= epoch
        if is_committed:
            self.delta.settle()
        elif mode == APPEND:
            self._require_no_replay(found, writer, set(), what)
        return Admission(is_committed, found.version)

    def base(self) -> int | None:
        """Where the Delta table is, if there is one."""
        return self.delta.state.version if self.delta.exists else None

    def brought_back(self, writer: str) -> list[str]:
        """What a RESTORE by another program brought back, in itself or in what was made of it since."""
        shown = shown_again(self.log, self.delta, self.delta.refresh(), writer)
        return sorted(shown.files | shown.others)

    # -- staged files ---------------------------------------------------------------------------------

    def staged_path(self, prepare: Prepare, file: DataFile) -> str:  # noqa: ARG002 -- the name it keeps
        """Where it stays."""
        return self._path(file.path)

    def problem(self, staged: StagedFile) -> str | None:
        """Another identity than recorded; damage in a page, when the file was touched since."""
        found = verify(self.store, self._path(staged.file.path), staged.file, staged.stamp)
        if found is None:
            self._looks[staged.file.path] = self.log.stamps.now_ms()
        return found

    def settle(self, staged: Iterable[StagedFile]) -> None:
        """Sync the names."""
        self.store.settle([self._path(one.file.path) for one in staged])

    def ends(self, prepare: Prepare, file: DataFile) -> tuple[End, End]:  # noqa: ARG002 -- one file has one name here
        """The file under the one name it has."""
        return end_of(self.store, self._path(file.path), file), End.ABSENT

    def left(self, writer: str | None, known: Iterable[str]) -> list[StagedName]:  # noqa: ARG002 -- marks tell writers
        """What lies under the table with the tags of a run that left a mark; last the marks themselves."""
        directory = f"{self.log.root}/{paths.MARK_DIRECTORY}"
        below = f"{paths.writer_directory(writer)}/" if writer is not None else ""
        found = (paths.parse_mark(f"{below}{path}") for path in self.store.list(f"{directory}/{below}".rstrip("/")))
        runs = [run for run in found if run is not None]
        if not runs:
            return []
        found_paths = paths.in_no_other_table(self.store.list(self.log.root))
        files = [name for path in found_paths for run in runs if (name := paths.parse_in_place(path, *run)) is not None]
        # A mark goes after the files it leads to, and never while its run may stage.
        return [*files, *(StagedName(*run, paths.VERSION_MAX, paths.mark_path(*run)) for run in runs)]

    def unproven(self) -> list[str]:
        """Nothing: what is staged bears the tags of writer and run, and a mark tells of them."""
        return []

    def drop(self, names: Iterable[StagedName]) -> None:
        """Delete the files, and the marks of runs that have none left."""
        given = list(names)
        kept = self.named() if given else set()
        given = [name for name in given if name.path not in kept]
        found = {(name.writer, name.run) for name in given if not name.is_mark}
        # Where a request of a dead run may be done after its file was deleted, its mark stays for the next run's look.
        stays = set() if self.store.traits.moves else found
        files = [self._path(name.path) for name in given if not name.is_mark]
        marks = [self._path(one.path) for one in given if one.is_mark and (one.writer, one.run) not in stays]
        self._delete(files)
        # ORDER: files durably gone before the marks that lead to them, else a power cut brings files back that nobody
        # looks for any more (I9).
        self.store.settle(files)
        self._delete(marks)

    def tidy(self, writer: str, run: str) -> None:  # noqa: ARG002
        """Wait for a checkpoint. Only `drop` and `leave` know that a mark leads nowhere."""
        delta_upkeep.finish(self.delta)

    def leave(self, writer: str, run: str) -> None:
        """Delete the run's mark: it leaves nothing behind."""
        self.tidy(writer, run)
        # DELETES: a run's mark; proof: the run itself, which staged nothing that is left (I8).
        self.store.delete(f"{self.log.root}/{paths.mark_path(writer, run)}")

    def remain(self, writer: str, run: str) -> None:
        """Leave the run's mark once more."""
        leave_mark(self.store, self.place(writer, run).mark, self.log.stamps.new_id())

    # -- publish and abort ----------------------------------------------------------------------------

    def goes_only_on(self, prepare: Prepare) -> bool:  # noqa: ARG002
        """Never: one commit publishes it."""
        return False

    def publish(self, prepare: Prepare) -> Published:
        """Make the Delta commit, unless it is made, or can never be."""
        if not self._needs_commit(prepare):
            return Published(is_visible=True)
        what = f"publish epoch {prepare.epoch} of {prepare.writer!r}"
        outcome: list[bool] = []

        def make(found: DeltaState) -> list[Action] | None:
            resolved = states.resolved(found, prepare.writer, prepare.version)
            outcome[:] = [resolved is not False]
            if resolved is not None:
                return None
            self._require_ours(found, what, prepare.writer, prepare.base)
            epoch = found.txn(prepare.writer)
            self._require_no_later(epoch, prepare, what)
            if prepare.mode != REWIND and epoch is not None and epoch >= prepare.epoch:
                outcome[:] = [False]  # somebody else has committed the epoch: ours must never follow
                return [self._poison(prepare)]
            return self._actions(found, prepare, what)

        version = self.delta.commit(make, _info("WRITE", prepare), what)
        for file in prepare.files:
            self._looks.pop(file.path, None)
        return Published(outcome[0], self.delta.state.version if version is None else version)

    def forbid(self, prepare: Prepare) -> Published:
        """Make the commit behind which nobody can publish the transaction, unless it is published."""
        if not self._needs_commit(prepare):
            return Published(is_visible=False)
        what = f"abort epoch {prepare.epoch} of {prepare.writer!r}"
        outcome: list[bool | None] = []

        def make(found: DeltaState) -> list[Action] | None:
            resolved = states.resolved(found, prepare.writer, prepare.version)
            outcome[:] = [resolved]
            lost = delta_agreement.problem(self.log.state, found, what, prepare.base, prepare.writer)
            if resolved is not None or lost:
                return None  # a log that is gone, or another table's, takes no commit of ours, now or by a stalled run
            if found.version >= 0:
                states.require_writable(found, what, is_empty=True)
                return [self._poison(prepare)]
            return [*begun(found, self._made(prepare), self._columns(prepare), what), self._poison(prepare)]

        version = self.delta.commit(make, _info("ABORT", prepare), what)
        if version is None and outcome[0] is not None:
            version = self.delta.state.version
        return Published(outcome[0] is True, version)

    def replace(self, prepare: Prepare) -> None:
        """Nothing: what is replaced goes by the commit that publishes."""

    def withdraw(self, prepare: Prepare) -> None:
        """Delete the files, which no commit can name any more; what Delta's log names all the same stays."""
        kept = self.named() if prepare.files else set()
        paths = [self._path(file.path) for file in prepare.files if file.path not in kept]
        self._delete(paths)
        # ORDER: files durably gone before the `cleaned` entry, else a power cut brings files back that nobody
        # looks for any more (I9).
        self.store.settle(paths)

    def upkeep(self) -> None:
        """A checkpoint of Delta's log, when one is due."""
        delta_upkeep.start(self.delta)

    # -- pieces ---------------------------------------------------------------------------------------

    def _recorded(self, writer: str) -> int | None:
        with suppress(UnavailableError):  # a clean-up came first: now it is known from the newest checkpoint
            return self.delta.state.txn(writer)
        return self.delta.state.txn(writer)

    def _with_record(self, found: DeltaState, writer: str) -> DeltaState:
        """A state that still tells of the writer's transactions; another one, when a clean-up came first."""
        with suppress(UnavailableError):
            found.txn(states.app_id(writer))
            return found
        return self.delta.state

    def _path(self, path: str) -> str:
        return f"{self.log.root}/{path}"

    def _delete(self, paths: list[str]) -> None:
        for path in paths:
            # DELETES: staged or aborted files, marks; proof: a retired run's tags and mark, or the abort (I8).
            self.store.delete(path)
        for directory in dict.fromkeys(path.rpartition("/")[0] for path in paths):
            # DELETES: a directory; proof: below the table, and empty (I8).
            self.store.prune(directory, self.log.root)

    def _poison(self, prepare: Prepare) -> Action:
        """The record behind which nobody can publish the transaction."""
        is_next = all(one.prepared >= prepare.version for one in self.log.state.pending_of(prepare.writer))
        name = states.app_id(prepare.writer) if is_next else states.abort_id(prepare.writer, prepare.version)
        return txn_of(name, states.published(prepare.version) + 1)

    def _columns(self, prepare: Prepare) -> tuple[Column, ...]:
        return union(self.log.state.columns, prepare.columns)

    def _needs_commit(self, prepare: Prepare) -> bool:
        """Not in a table without columns: Delta has no such table. The same answer, whoever asks, and whenever."""
        return prepare.base is not None or bool(prepare.files) or bool(fields_of(prepare.columns, "publish"))

    def _require_ours(self, found: DeltaState, what: str, writer: str, base: int | None = None) -> None:
        if (problem := delta_agreement.problem(self.log.state, found, what, base, writer)) is not None:
            raise problem

    def _actions(self, found: DeltaState, prepare: Prepare, what: str) -> list[Action]:
        """The commit that makes the transaction visible."""
        self._require_there(prepare)
        if found.version >= 0:
            states.require_writable(found, what)
            if found.metadata_version > (-1 if prepare.base is None else prepare.base):
                self._require_fit(found, prepare, what)
        made = self._made(prepare)
        columns = self._columns(prepare)
        actions = begun(found, made, columns if found.version < 0 else prepare.columns, what)
        actions += [
            txn_of(prepare.writer, prepare.epoch),
            txn_of(states.app_id(prepare.writer), states.published(prepare.version)),
        ]
        files = self.delta.files() if prepare.mode != APPEND else {}
        gone = doomed(self.log, self.delta, found, prepare, what)
        if prepare.mode != REWIND:
            self._require_no_replay(found, prepare.writer, gone, what)
        actions += [remove_of(files[path], prepare.time_ms) for path in sorted(gone)]
        zoned = zoned_columns(columns, made.partition_columns)
        metadata = next((one["metaData"] for one in actions if "metaData" in one), found.metadata)
        for file in prepare.files:
            stats = told(self.store, self.log.root, file, metadata)
            actions.append(add_of(file, prepare.time_ms, zoned, stats))
        return actions

    def _require_there(self, prepare: Prepare) -> None:
        """Refuse files that VACUUM has taken; what was seen whole seconds ago is not asked for again."""
        now = self.log.stamps.now_ms()
        for file in prepare.files:
            if not 0 <= now - self._looks.get(file.path, -FRESH_MS) < FRESH_MS:
                if (end := self.ends(prepare, file)[0]) is not End.SAME:
                    raise corrupt(prepare, file, end, End.ABSENT)
                self._looks[file.path] = now

    def _require_fit(self, found: DeltaState, prepare: Prepare, what: str) -> None:
        """Refuse files that were made for columns the table does not have any more."""
        require_values(self.store, self.log.root, found, prepare.files, what)
        own = {column.name for column in prepare.columns}
        for file in prepare.files:
            footer = footer_of(self.store, self._path(file.path))
            known = columns_in(footer.region) if footer else ()
            if lost := [field["name"] for field in new_fields(found, known, what) if field["name"] not in own]:
                raise ConflictError(
                    what,
                    f"the Delta table has no column {lost[0]!r} any more, {file.path} has",
                    "Drop the epoch (`txsink abort`) and write it again",
                )

    def _require_no_later(self, epoch: int | None, prepare: Prepare, what: str) -> None:
        """Refuse a rewind behind an epoch of another program, which could then be committed twice."""
        last = self.log.state.last_epoch(prepare.writer)
        if prepare.mode == REWIND and epoch is not None and (last is None or epoch > last):
            raise ConflictError(
                what,
                f"another program has committed epoch {epoch} of this writer since, in Delta's log",
                "Abort the rewind, and go on after that epoch",
            )

    def _require_no_replay(self, found: DeltaState, writer: str, gone: set[str], what: str) -> None:
        shown = shown_again(self.log, self.delta, found, writer)
        require_no_replay(shown, self.log.state.last_epoch(writer), gone, what)

    def _made(self, prepare: Prepare) -> Made:
        state = self.log.state
        return Made(state.table_id, state.partition_columns, prepare.time_ms)


def _info(operation: str, prepare: Prepare) -> Action:
    told = {"mode": prepare.mode, "writer": prepare.writer, "epoch": str(prepare.epoch)}
    return info_of(operation, told, prepare.metadata, is_append=prepare.mode == APPEND)
