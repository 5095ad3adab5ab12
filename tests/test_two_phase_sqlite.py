"""The two-phase life cycle over SQLite: the class serves any target that can keep rows out of sight."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from test_two_phase import CheckpointMachine, Target, TwoPhaseSuite, machine_settings
from txsink.errors import InvalidRequestError
from txsink.two_phase.sink import TwoPhaseCommitSink

SCHEMA = """
CREATE TABLE IF NOT EXISTS result (value INTEGER);
CREATE TABLE IF NOT EXISTS txn (id INTEGER PRIMARY KEY AUTOINCREMENT, state TEXT);
CREATE TABLE IF NOT EXISTS staged (txn INTEGER, value INTEGER);
"""


def connected(path: Path) -> closing[sqlite3.Connection]:
    """A connection that does not wait for the disk: no test here cuts the power."""
    database = sqlite3.connect(path)
    database.execute("PRAGMA synchronous = OFF")
    return closing(database)


class SqliteSink(TwoPhaseCommitSink[int, int]):
    """A transaction is the id of rows in a table that no reader looks at."""

    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(**options)
        self.path = path
        with connected(path) as database:
            database.executescript(SCHEMA)

    def begin_transaction(self) -> int:
        return self.run(("INSERT INTO txn (state) VALUES ('open')", ()))

    def invoke(self, txn: int, value: int) -> None:
        if self.state(txn) != "open":
            raise sqlite3.IntegrityError(f"transaction {txn} is pre-committed")
        self.run(("INSERT INTO staged VALUES (?, ?)", (txn, value)))

    def pre_commit(self, txn: int) -> None:
        self.run(("UPDATE txn SET state = 'prepared' WHERE id = ?", (txn,)))

    def commit(self, txn: int) -> None:
        match self.state(txn):
            case "prepared":
                self.run(
                    ("INSERT INTO result SELECT value FROM staged WHERE txn = ?", (txn,)),
                    ("DELETE FROM staged WHERE txn = ?", (txn,)),
                    ("UPDATE txn SET state = 'committed' WHERE id = ?", (txn,)),
                )
            case "committed":
                pass
            case state:
                raise sqlite3.IntegrityError(f"transaction {txn} is {state}")

    def abort(self, txn: int) -> None:
        self.run(
            ("DELETE FROM staged WHERE txn = ?", (txn,)),
            ("DELETE FROM txn WHERE id = ? AND state <> 'committed'", (txn,)),
        )

    def finish_recovering(self, checkpoint_id: int | None) -> None:
        """Once a restore has settled what it knows, whatever is left was begun after its state was taken."""
        self.run(
            ("DELETE FROM staged", ()),
            ("DELETE FROM txn WHERE state <> 'committed'", ()),
        )

    def state(self, txn: int) -> str:
        with connected(self.path) as database:
            found = database.execute("SELECT state FROM txn WHERE id = ?", (txn,)).fetchone()
        return "gone" if found is None else str(found[0])

    def run(self, *statements: tuple[str, tuple[int, ...]]) -> int:
        """All of them or none; the id that the last one gave."""
        with connected(self.path) as database, database:
            for statement in statements:
                cursor = database.execute(*statement)
        return cursor.lastrowid or 0


class Database(Target):
    write_error = sqlite3.IntegrityError
    commit_error = sqlite3.IntegrityError
    stages_empty = True

    def __init__(self, directory: Path) -> None:
        self.path = directory / "database"
        self.damaged: tuple[int, ...] = ()

    def open(self, **options: Any) -> SqliteSink:
        return SqliteSink(self.path, **options)

    def row(self, value: int) -> int:
        return value

    def visible(self) -> list[int]:
        return self.column("SELECT value FROM result ORDER BY value")

    def staged(self) -> int:
        return self.column("SELECT count(*) FROM txn WHERE state <> 'committed'")[0]

    def break_staging(self) -> None:
        self.column("CREATE TRIGGER broken BEFORE INSERT ON staged BEGIN SELECT RAISE(ABORT, 'not writable'); END")

    def mend_staging(self) -> None:
        self.column("DROP TRIGGER broken")

    def damage(self, checkpoint_id: int) -> None:
        # The second of three, or the only one.
        prepared = self.column("SELECT id FROM txn WHERE state = 'prepared' ORDER BY id")
        self.damaged = (prepared[len(prepared) // 2],)
        self.column("UPDATE txn SET state = 'damaged' WHERE id = ?", self.damaged)

    def repair(self, checkpoint_id: int) -> None:
        self.column("UPDATE txn SET state = 'prepared' WHERE id = ?", self.damaged)

    def column(self, statement: str, values: tuple[int, ...] = ()) -> list[int]:
        with connected(self.path) as database, database:
            return [row[0] for row in database.execute(statement, values)]


class TestSqliteSink(TwoPhaseSuite):
    @pytest.fixture
    def target(self, tmp_path: Path) -> Target:
        return Database(tmp_path)

    @pytest.fixture
    def new_target(self, tmp_path: Path) -> Callable[[], Target]:
        return lambda: Database(Path(tempfile.mkdtemp(dir=tmp_path)))


class DatabaseMachine(CheckpointMachine):
    def make(self, directory: Path) -> Target:
        return Database(directory)


TestDatabaseMachine = DatabaseMachine.TestCase
TestDatabaseMachine.settings = machine_settings


class ListSink(TwoPhaseCommitSink[int, Any]):
    """Transactions that JSON cannot hold."""

    def begin_transaction(self) -> Any:
        return object()

    def invoke(self, txn: Any, value: int) -> None: ...

    def pre_commit(self, txn: Any) -> None: ...

    def commit(self, txn: Any) -> None: ...

    def abort(self, txn: Any) -> None: ...


def test_a_transaction_that_json_cannot_hold_needs_encode() -> None:
    with pytest.raises(InvalidRequestError, match="encode"):
        ListSink(now_ms=lambda: 0).snapshot_state(1)


def test_begin_is_told_the_smallest_id_its_checkpoint_can_have(tmp_path: Path) -> None:
    told: list[int] = []

    class Listening(SqliteSink):
        def begin_transaction(self) -> int:
            told.append(self.next_checkpoint_id)
            return super().begin_transaction()

    sink = Listening(tmp_path / "database")
    sink.write(1)
    sink.snapshot_state(4)
    saved = sink.snapshot_state(9)
    Listening(tmp_path / "database").restore_state(saved)
    assert told == [0, 5, 10, 10]


def test_what_was_open_when_the_state_was_taken_is_aborted_before_a_new_one_begins(tmp_path: Path) -> None:
    """F7."""
    told: list[str] = []

    class Listening(SqliteSink):
        def begin_transaction(self) -> int:
            txn = super().begin_transaction()
            told.append(f"begin {txn}")
            return txn

        def recover_and_commit(self, txn: int) -> None:
            told.append(f"commit {txn}")
            super().recover_and_commit(txn)

        def recover_and_abort(self, txn: int) -> None:
            told.append(f"abort {txn}")
            super().recover_and_abort(txn)

    sink = Listening(tmp_path / "database")
    sink.snapshot_state(1)
    saved = sink.snapshot_state(2)
    sink.snapshot_state(3)
    assert told == ["begin 1", "begin 2", "begin 3", "begin 4"]
    told.clear()
    Listening(tmp_path / "database").restore_state(saved)
    assert told == ["commit 1", "commit 2", "abort 3", "begin 5"]
