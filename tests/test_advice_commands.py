"""What the command line, conversions and `adopt` advise, done word for word: every row is there once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import txsink
from advice import advised, advised_in_print
from place import Place, commit, prepared, rows
from seen import rows_of
from txsink import conversion as convert
from txsink.cli import main as cli
from txsink.delta.log import DeltaLog
from txsink.environment import stamps
from txsink.log.log import Log
from txsink.schema import columns_of
from txsink.staging.adopt import Guest
from txsink.store.local.store import LocalStore

OK = 0


def command(place: Place, *words: str) -> int:
    """`txsink WORDS`, with the path of the table as the second word."""
    return cli.main([words[0], str(place.path), *words[1:]])


def converted(place: Place, to: str) -> int:
    return command(place, "convert", "--to", to, "--yes")


# -- commands ----------------------------------------------------------------------------------------------


def test_a_checkpoint_is_made_once_the_table_is_delta(place: Place) -> None:
    commit(place.sink(), 1)
    with advised_in_print("cli.commands._delta_of", "Convert it first: `txsink convert --to delta`"):
        assert command(place, "checkpoint") != OK
    assert converted(place, "delta") == OK
    assert command(place, "checkpoint") == OK
    assert deltalake.DeltaTable(str(place.path)).to_pyarrow_table()["id"].to_pylist() == [1]


def test_a_writer_is_named_as_the_status_names_it(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    sink = place.sink("orders")
    prepared(sink, 1, rows(1))
    sink.close()
    with advised_in_print("cli.commands._known", "Did you mean {}?"):
        assert command(place, "recover", "--writer", "order", "--yes") != OK
    with advised_in_print("cli.commands._known", "See `txsink status` for its writers"):
        assert command(place, "recover", "--writer", "zzz", "--yes") != OK
    capsys.readouterr()
    assert command(place, "status") == OK
    assert "orders" in capsys.readouterr().out
    assert command(place, "recover", "--writer", "orders", "--yes") == OK
    assert rows_of(place.path) == [1]


def test_what_is_pending_is_what_can_be_aborted(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    sink = place.sink()
    prepared(sink, 1, rows(1))
    sink.close()
    with advised_in_print("cli.commands.abort", "See `txsink pending`"):
        assert command(place, "abort", "w", "2", "--yes") != OK
    capsys.readouterr()
    command(place, "pending", "--output", "json")
    (found,) = json.loads(capsys.readouterr().out)["pending"]
    assert command(place, "abort", found["writer"], str(found["epoch"]), "--yes") == OK
    commit(place.sink(), 2)
    assert rows_of(place.path) == [2]


@pytest.mark.parametrize(("choice", "left"), [("skip", [1, 2]), ("rewind", [1])])
def test_later_epochs_are_kept_or_removed_by_choice(place: Place, choice: str, left: list[int]) -> None:
    commit(place.sink(), 1, 2)
    words = ("recover", "--writer", "w", "--up-to", "1", "--yes")
    with advised_in_print("cli.plans.recovery_plan", "Choose --on-newer skip (keep them) or --on-newer rewind"):
        assert command(place, *words) != OK
    assert command(place, *words, "--on-newer", choice) == OK
    assert rows_of(place.path) == left


# -- conversions -------------------------------------------------------------------------------------------


def test_what_is_pending_is_finished_before_a_conversion(place: Place) -> None:
    sink = place.sink()
    commit(sink, 1)
    prepared(sink, 2, rows(2))
    sink.close()
    with advised_in_print("conversion._require_settled", "Finish them first: `txsink recover`"):
        assert converted(place, "delta") != OK
    assert command(place, "recover", "--yes") == OK
    assert converted(place, "delta") == OK
    assert (rows_of(place.path), place.table().layout) == ([1, 2], "delta")


def test_a_table_has_rows_before_it_is_converted(place: Place) -> None:
    place.sink().close()
    with advised_in_print("conversion.to_delta", "Write its first rows, then convert it"):
        assert converted(place, "delta") != OK
    commit(place.sink(), 1)
    assert converted(place, "delta") == OK
    assert rows_of(place.path) == [1]


def test_another_delta_table_is_taken_away_before_a_conversion(place: Place) -> None:
    commit(place.sink(), 1)
    elsewhere = place.path.with_name("other")
    deltalake.write_deltalake(elsewhere, pa.table({"id": [9]}))
    shutil.copytree(elsewhere / "_delta_log", place.path / "_delta_log")
    with advised_in_print("conversion.to_delta", "Remove its _delta_log first"):
        assert converted(place, "delta") != OK
    shutil.rmtree(place.path / "_delta_log")
    assert converted(place, "delta") == OK
    assert rows_of(place.path) == [1]


@pytest.mark.parametrize("to", ["delta", "parquet"])
def test_writers_are_stopped_where_a_conversion_never_gets_its_turn(
    place: Place, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = place.sink(layout="parquet" if to == "delta" else "delta")
    commit(sink, 1)
    epoch = iter(range(2, 100))
    append = convert._append
    with monkeypatch.context() as busy:

        def overtaken(*given: Any) -> bool:
            commit(sink, next(epoch))
            return append(*given)

        busy.setattr(convert, "_append", overtaken)
        if to == "delta":
            with advised_in_print("conversion.to_delta", "Stop its writers, then retry"):
                assert converted(place, to) != OK
        else:
            with advised_in_print("conversion.to_parquet", "Stop its writers, then retry"):
                assert converted(place, to) != OK
    sink.close()
    assert converted(place, to) == OK
    assert rows_of(place.path) == [*range(1, next(epoch))]


@pytest.mark.parametrize("does", ["to parquet", "to delta"])
def test_a_conversion_that_stopped_half_way_is_finished_or_taken_back(
    place: Place, does: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(place.sink(layout="delta"), 1)
    log = Log(LocalStore(), str(place.path), stamps())
    log.load()
    append = convert._append

    def stop(*given: Any) -> bool:
        append(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as stopped:
        stopped.setattr(convert, "_append", stop)
        with pytest.raises(KeyboardInterrupt):
            convert.to_parquet(log, DeltaLog(LocalStore(), log.root, stamps(), str(place.path)))
    advice = "Finish it: `txsink convert --to parquet`, or go back: `txsink convert --to delta`"
    with advised("writing.opening._require_agreement", advice):
        place.sink()
    assert converted(place, does.split()[1]) == OK
    commit(place.sink(), 2)
    assert rows_of(place.path) == [1, 2]


@pytest.mark.parametrize("does", ["move", "vacuum"])
def test_files_that_no_log_names_are_moved_or_vacuumed_before_a_conversion(place: Place, does: str) -> None:
    commit(place.sink(layout="delta"), 1)
    pq.write_table(pa.table(rows(9)), place.path / "stranger.parquet")
    with advised_in_print("conversion.leaving", "Move them out of the directory, or let VACUUM delete what is left"):
        assert converted(place, "parquet") != OK
    if does == "move":
        (place.path / "stranger.parquet").rename(place.path.with_name("stranger.parquet"))
    else:
        deltalake.DeltaTable(str(place.path)).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert converted(place, "parquet") == OK
    assert rows_of(place.path) == [1]


def test_what_others_wrote_is_copied_into_another_table(place: Place) -> None:
    commit(place.sink(layout="delta"), 1)
    deltalake.write_deltalake(place.path, pa.table(rows(2)), mode="append")
    log = Log(LocalStore(), str(place.path), stamps())
    log.load()
    with advised("conversion.to_parquet", "Copy it: read it, and write what was read to another path"):
        convert.to_parquet(log, DeltaLog(LocalStore(), log.root, stamps(), str(place.path)))
    # Seen: the command said that the file was of no log, and was to be moved out of the directory.
    with advised_in_print("conversion.leaving", "Copy it: read it, and write what was read to another path"):
        assert converted(place, "parquet") != OK
    other = place.path.with_name("other")
    txsink.write(other, place.table().to_arrow(), writer="w", epoch=1, layout="parquet")
    assert rows_of(other) == [1, 2]


def test_another_delta_log_in_a_parquet_table_is_deleted_by_hand(place: Place) -> None:
    commit(place.sink(), 1)
    elsewhere = place.path.with_name("other")
    deltalake.write_deltalake(elsewhere, pa.table({"id": [9]}))
    shutil.copytree(elsewhere / "_delta_log", place.path / "_delta_log")
    with advised_in_print(
        "conversion.delta_log_names", "Delete it by hand if nobody needs it: the table has the layout"
    ):
        assert converted(place, "parquet") != OK
    assert rows_of(place.path) == [1]
    shutil.rmtree(place.path / "_delta_log")
    assert converted(place, "parquet") == OK


@pytest.mark.parametrize("does", ["restore", "move"])
def test_a_log_older_than_deltas_is_restored_or_deltas_moved_away(place: Place, does: str) -> None:
    commit(place.sink(), 1)
    assert converted(place, "delta") == OK
    assert converted(place, "parquet") == OK
    older = place.path.with_name("older")
    shutil.copytree(place.path / "_txsink", older)
    assert converted(place, "delta") == OK
    commit(place.sink(), 2)
    newest = (place.path / "_txsink").rename(place.path.with_name("newest"))
    shutil.copytree(older, place.path / "_txsink")
    with advised_in_print("conversion._require_known", "Restore the newest `_txsink` from a copy; or move _delta_log"):
        assert converted(place, "delta") != OK
    if does == "restore":
        shutil.rmtree(place.path / "_txsink")
        newest.rename(place.path / "_txsink")
        assert rows_of(place.path) == [1, 2]
    else:
        (place.path / "_delta_log").rename(place.path.with_name("delta-log"))
        assert converted(place, "delta") == OK
        assert place.table().to_arrow()["id"].to_pylist() == [1]


# -- files of other programs -------------------------------------------------------------------------------

DAYS = pa.schema({"id": pa.int64(), "day": pa.string()})


def put(guest: Guest, name: str, table: pa.Table | None = None) -> None:
    path = Path(guest.path) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if table is None:
        path.write_bytes(b"no file of Parquet")
    else:
        pq.write_table(table, path)


ONE = pa.table(rows(1))
WRONG_FILES: list[tuple[str, pa.Table | None, pa.Schema, Any]] = [
    ("day=a/x.parquet", None, DAYS, advised("staging.adopt._record", "Write the epoch again; nothing was published")),
    (
        "_txsink=1/x.parquet",
        ONE,
        DAYS,
        advised("staging.adopt._partition", "Write into the directory itself, or below {}"),
    ),
    (
        "x.parquet",
        ONE,
        DAYS,
        advised("staging.adopt._partition", "Write it below column=value for each of these, in their"),
    ),
    (
        "day=a/x.parquet",
        ONE,
        pa.schema({"id": pa.int64()}),
        advised("staging.adopt._partition", "Name the columns of the directories, too, when `adopt` is called"),
    ),
    (
        "day=a/x.parquet",
        pa.table({"id": ["1"]}),
        DAYS,
        advised("staging.adopt._require_columns", "Write the file with the columns and types of the data"),
    ),
    (
        "day=a/x.parquet",
        pa.table({"id": [1], "n": pa.nulls(1)}),
        pa.schema({**dict(zip(DAYS.names, DAYS.types, strict=True)), "n": pa.null()}),
        advised("staging.adopt._require_columns", "Write the file with a type for it, or without it"),
    ),
]


@pytest.mark.parametrize(("name", "table", "schema", "block"), WRONG_FILES)
def test_a_file_that_another_program_wrote_wrongly_is_written_as_the_message_says(
    place: Place, name: str, table: pa.Table | None, schema: pa.Schema, block: Any
) -> None:
    with place.sink(partition_by="day") as sink:
        txn = sink.begin(1)
        guest = txn.guest()
        put(guest, name, table)
        with block:
            guest.adopt(columns_of(schema), sink.log.stamps.new_id)
        txn.abort()
        with sink.begin(1) as again:
            guest = again.guest()
            put(guest, "day=a/x.parquet", ONE)
            again.add(guest.adopt(columns_of(DAYS), sink.log.stamps.new_id))
    assert rows_of(place.path) == [1]


def test_a_directory_is_named_as_the_value_is_spelled_or_the_value_changed(place: Place) -> None:
    kinds = columns_of(pa.schema({"id": pa.int64(), "n": pa.int64()}))
    with place.sink(partition_by="n") as sink:
        for name, block in (
            ("n=007", advised("staging.adopt._spelled", "Name it {}; nothing was published")),
            ("n=seven", advised("staging.adopt._spelled", "Change the value, or partition by another column")),
        ):
            txn = sink.begin(1)
            guest = txn.guest()
            put(guest, f"{name}/x.parquet", ONE)
            with block:
                guest.adopt(kinds, sink.log.stamps.new_id)
            txn.abort()
        with sink.begin(1) as again:
            guest = again.guest()
            put(guest, "n=7/x.parquet", ONE)
            again.add(guest.adopt(kinds, sink.log.stamps.new_id))
    assert (rows_of(place.path), place.table().to_arrow()["n"].to_pylist()) == ([1], [7])
