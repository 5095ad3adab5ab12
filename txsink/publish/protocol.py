"""How staged files become visible, and how they go again: one small protocol, one module per strategy.

Promises (of every strategy, checked by `tests/contract_publish.py`): `publish`, `replace` and `withdraw` may be
repeated, from any process, after a crash at any point; nothing is overwritten; a file whose identity is not the
recorded one is never touched.
Relies on: `Store`; `decision.decide`.
Does not promise: to know whether it may. The caller holds the log entries that allow each call.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol, TypeAlias

from txsink import paths
from txsink.errors import CorruptError
from txsink.log.entry import Prepare
from txsink.log.state import State
from txsink.paths import StagedName
from txsink.publish.decision import End
from txsink.publish.delta.agreement import Disagreement
from txsink.records import Column, DataFile
from txsink.staging.epoch_stager import StagedFile, identity
from txsink.staging.place import Place
from txsink.store.protocol import Store

PARQUET, DELTA = "parquet", "delta"
Epoch: TypeAlias = tuple[str, int]  # a writer, and its number


class Admission(NamedTuple):
    """What the table says of an epoch before it is prepared; `base`: where Delta's log is."""

    is_committed: bool = False
    base: int | None = None


class Published(NamedTuple):
    """Whether a transaction is visible now, or never can be; `delta`: a version of Delta's log that says so."""

    is_visible: bool = True
    delta: int | None = None

    @property
    def told(self) -> dict[str, Any]:
        """What the commit or abort entry tells of it."""
        return {} if self.delta is None else {"delta": self.delta}


class Publisher(Protocol):
    """One publish strategy.

    `is_in_place`: files are staged under their final names. `staging`: where they are moved, the table's own staging
    directory, relative to the table.
    """

    layout: str
    is_in_place: bool
    staging: str

    def columns(self, state: State) -> tuple[Column, ...]:
        """The columns that new data has to fit."""

    def last_epoch(self, writer: str) -> int | None:
        """An epoch of the writer that is committed, by whatever program, as far as the log alone does not tell."""

    def base(self) -> int | None:
        """Where Delta's log is."""

    def brought_back(self, writer: str) -> list[str]:
        """Files with rows of epochs that a rewind took back, which readers see again: another program's deed."""

    def require_agreement(self, writer: str, *, is_lenient: bool) -> None:
        """Refuse a table whose logs are not of one age; `is_lenient`: only what a `repair` has to come before."""

    def disagreements(self) -> list[Disagreement]:
        """All that shows that the table's logs are not of one age."""

    def give_up(self, writer: str) -> None:
        """Go on without the writer's transactions that our log does not know any more; what they wrote stays."""

    def named(self) -> set[str]:
        """The files that another log than ours names, or did before they were removed; relative to the table."""

    def admit(self, name: Epoch, mode: str, columns: tuple[Column, ...], files: list[DataFile]) -> Admission:
        """Refuse what the table could not take at publish, when nothing of it is logged yet."""

    def place(self, writer: str, run: str) -> Place:
        """Where a run creates its files."""

    def staged_path(self, prepare: Prepare, file: DataFile) -> str:
        """Where a file of a transaction lies as long as it is staged: its full path."""

    def problem(self, staged: StagedFile) -> str | None:
        """What is wrong with a file that was staged just now; None when it can be prepared."""

    def settle(self, staged: Iterable[StagedFile]) -> None:
        """Make it durable that the files are there."""

    def ends(self, prepare: Prepare, file: DataFile) -> tuple[End, End]:
        """What lies in staging and what under its name in the table."""

    def goes_only_on(self, prepare: Prepare) -> bool:
        """Whether a publish that has begun can only go on; CorruptError, ConflictError when it could not end."""

    def publish(self, prepare: Prepare) -> Published:
        """Make every file of the transaction visible and durable."""

    def forbid(self, prepare: Prepare) -> Published:
        """Make sure that nobody publishes the transaction from now on; it is visible when it is published already."""

    def replace(self, prepare: Prepare) -> None:
        """Take the files the transaction removes out of the readers' sight."""

    def withdraw(self, prepare: Prepare) -> None:
        """Delete every file of an aborted transaction, staged first."""

    def left(self, writer: str | None, known: Iterable[str]) -> list[StagedName]:
        """What lies staged, by one writer or by all; by those `known` where a staged file does not tell its writer."""

    def unproven(self) -> list[str]:
        """What lies where this table stages, and carries no proof that it is this table's: full paths."""

    def drop(self, names: Iterable[StagedName]) -> None:
        """Delete staged files, which nobody can name any more."""

    def tidy(self, writer: str, run: str) -> None:
        """Remove what is empty once a run's files are gone."""

    def leave(self, writer: str, run: str) -> None:
        """The same when the run is over, and knows that nothing of it is left staged."""

    def remain(self, writer: str, run: str) -> None:
        """Lead later runs to what a retired run has staged; a sweep may have come before it had."""

    def upkeep(self) -> None:
        """What is due from time to time, off the commit path; never raises."""


class LogDecides:
    """What strategies have in common whose tables only our log decides on."""

    layout = PARQUET
    is_in_place = False
    staging = ""

    def columns(self, state: State) -> tuple[Column, ...]:
        """Those in the log."""
        return state.known_columns()

    def last_epoch(self, writer: str) -> int | None:  # noqa: ARG002
        """The log alone tells."""
        return None

    def base(self) -> int | None:
        """There is no Delta log."""
        return None

    def brought_back(self, writer: str) -> list[str]:  # noqa: ARG002
        """None: what goes here is moved away."""
        return []

    def require_agreement(self, writer: str, *, is_lenient: bool) -> None:
        """There is one log."""

    def disagreements(self) -> list[Disagreement]:
        """There is one log."""
        return []

    def give_up(self, writer: str) -> None:
        """There is one log."""

    def named(self) -> set[str]:
        """There is one log."""
        return set()

    def admit(self, name: Epoch, mode: str, columns: tuple[Column, ...], files: list[DataFile]) -> Admission:  # noqa: ARG002
        """Anything: `prepare` itself looks at what the log says."""
        return Admission()

    def goes_only_on(self, prepare: Prepare) -> bool:
        """Files go and come one by one, so a removal that has begun can only go on."""
        return bool(prepare.removes)

    def unproven(self) -> list[str]:
        """Nothing: what is staged bears the tags of writer and run, below the table's own name."""
        return []

    def forbid(self, prepare: Prepare) -> Published:  # noqa: ARG002
        """Nothing: the abort entry itself forbids it."""
        return Published(is_visible=False)

    def remain(self, writer: str, run: str) -> None:
        """Nothing: where it stages, nobody else's files lie."""

    def upkeep(self) -> None:
        """Nothing."""


def names_of(prepare: Prepare) -> list[StagedName]:
    """The staged files that a transaction names."""
    if not prepare.uploads:
        return [
            StagedName(prepare.writer, prepare.run, paths.data_epoch(file.path), file.path) for file in prepare.files
        ]
    run = paths.tag(prepare.run)
    return [
        StagedName(prepare.writer, run, paths.data_epoch(file.path), file.path, upload.id)
        for file, upload in zip(prepare.files, prepare.uploads, strict=True)
    ]


def name_of(staged: StagedFile) -> StagedName:
    """What a staged file is called while it is staged."""
    run, upload = (paths.tag(staged.run), staged.upload.id) if staged.upload else (staged.run, "")
    return StagedName(staged.writer, run, paths.data_epoch(staged.file.path), staged.file.path, upload)


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
