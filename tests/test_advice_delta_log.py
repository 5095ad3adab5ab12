"""What errors about Delta's own log advise, when others changed or cleaned it meanwhile, done word for word."""

from __future__ import annotations

import json
import shutil
import string
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from advice import advised
from place import Place, commit, prepared, rows
from seen import by_log
from txsink import paths
from txsink.cli import commands, main as cli
from txsink.delta import checkpoints, files
from txsink.delta.log import DeltaLog
from txsink.publish.delta import publisher as publishing
from txsink.publish.protocol import Admission
from txsink.schema import columns_of
from txsink.writing.writer import Writer


def table_of(place: Place) -> Any:
    return deltalake.DeltaTable(str(place.path))


def deltas(place: Place) -> list[int]:
    """What the reader of Delta sees that applies all that Delta has."""
    found = deltalake.QueryBuilder().register("t", table_of(place)).execute("select * from t").read_all()
    return sorted(pa.table(found).column(0).to_pylist())


def ids(place: Place) -> list[int]:
    """Seen the same by the table's reader and by Delta's."""
    found = by_log(place.path)
    assert deltas(place) == found
    return found


def opened(place: Place, **options: Any) -> Writer:
    return place.sink(layout="delta", **options)


def command(place: Place, *words: str) -> int:
    return cli.main([words[0], str(place.path), *words[1:]])


def log_of(place: Place) -> Path:
    return place.path / paths.DELTA_DIRECTORY


def commit_file(place: Place, version: int) -> Path:
    return place.path / paths.delta_commit_path(version)


def actions(place: Place) -> list[dict[str, Any]]:
    commits = sorted(log_of(place).glob("*.json"))
    return [json.loads(line) for file in commits for line in file.read_text(encoding="utf-8").splitlines()]


def foreign(place: Place, *given: dict[str, Any]) -> Path:
    """The next commit, by another program."""
    file = commit_file(place, table_of(place).version() + 1)
    file.write_text("".join(json.dumps(action) + "\n" for action in given), encoding="utf-8")
    return file


def changed(place: Place, change: Callable[[dict[str, Any]], object], **configuration: str) -> None:
    """Another program changes the schema, or sets properties."""
    found = [action["metaData"] for action in actions(place) if "metaData" in action][-1]
    schema = json.loads(found["schemaString"])
    change(schema)
    known = {**found["configuration"], **configuration}
    foreign(place, {"metaData": {**found, "schemaString": json.dumps(schema), "configuration": known}})


def appended(place: Place, *numbers: int) -> None:
    """By another program, a commit each."""
    for number in numbers:
        deltalake.write_deltalake(str(place.path), pa.table(rows(number)), mode="append")


def cleaned(place: Place, below: int) -> None:
    """Another program makes a checkpoint and deletes the commits before it."""
    table_of(place).create_checkpoint()
    for version in range(below):
        commit_file(place, version).unlink()


def rewritten(place: Place, *names: str) -> None:
    """Another program keeps these columns only."""
    kept = pa.table(table_of(place).to_pyarrow_table(columns=[*names]))
    deltalake.write_deltalake(str(place.path), kept, mode="overwrite", schema_mode="overwrite")


# -- columns -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [{}, {"x": ["text"]}], ids=["dropped", "of another type"])
def test_a_table_whose_columns_another_program_changed_is_copied(place: Place, again: dict[str, Any]) -> None:
    with opened(place) as sink, sink.begin(1) as txn:
        txn.write({"id": [1], "x": [1.5]})
    rewritten(place, "id")
    place.write(2, {"id": [2], **again}, mode="overwrite", merge_schema=True)
    with advised("conversion._require_columns", "Copy it: read it, and write what was read to another path"):
        assert place.table().to_arrow().num_rows == 1
        commands.convert(str(place.path), "parquet", yes=True)
    there = Place(place.path.with_name("other"))
    there.write(1, place.table().to_arrow(), layout="parquet")
    assert (
        there.table().to_arrow().to_pylist()
        == place.table().to_arrow().to_pylist()
        == [{"id": 2, **{name: given[0] for name, given in again.items()}}]
    )


def test_an_epoch_whose_column_another_program_dropped_is_dropped_and_written_again(place: Place) -> None:
    sink = opened(place)
    with sink.begin(1) as txn:
        txn.write({"id": [1], "x": [1.5]})
    prepared(sink, 2, {"id": [2], "x": [2.5]})
    rewritten(place, "id")
    with advised("publish.delta.publisher._require_fit", "Drop the epoch (`txsink abort`) and write it again"):
        sink.commit(2)
    sink.close()
    assert command(place, "abort", "w", "2", "--yes") == 0
    commit(opened(place), 2)
    assert ids(place) == [1, 2]


def test_the_first_rows_of_a_table_have_a_column_with_a_type(place: Place) -> None:
    """Staging refuses such rows before; here a publisher is given them all the same."""
    sink, name = opened(place), ("w", 1)
    txn = sink.begin(1)
    txn.write(rows(1))
    staged = list(prepared(opened(Place(place.path.with_name("other"))), 1, rows(1)).files)
    with advised("publish.delta.publisher.admit", "Give a column a type: Delta has no columns without one"):
        sink.publisher.admit(name, "append", columns_of(pa.schema([("id", pa.null())])), staged)
    assert sink.publisher.admit(name, "append", columns_of(pa.schema([("id", pa.int64())])), staged) == Admission()
    txn.commit()
    assert ids(place) == [1]


# -- files -------------------------------------------------------------------------------------------------


def test_an_epoch_whose_file_a_vacuum_took_before_it_was_looked_at_is_aborted_and_written_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(place)
    with sink.begin(1) as txn:
        txn.write({"id": [1], "n": ["a"]})
    changed(place, lambda found: found["fields"][1]["metadata"].update({"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}))
    txn = sink.begin(2)
    txn.write({"id": [2], "n": ["b"]})
    with monkeypatch.context() as race:
        whole = files.require_values

        def vacuumed(store: Any, root: str, found: Any, staged: Any, what: str) -> None:
            (place.path / staged[0].path).unlink()
            whole(store, root, found, staged, what)

        race.setattr(publishing, "require_values", vacuumed)
        with advised("delta.files._look", "Abort the epoch and write it again"):
            txn.commit()
    txn.abort()
    with sink.begin(2) as again:
        again.write({"id": [2], "n": ["b"]})
    assert ids(place) == [1, 2]


def test_verify_lists_a_file_that_a_vacuum_took_before_its_statistics_were_read(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    many = {f"c{at}": [at] for at in range(40)}
    sink = opened(place)
    with sink.begin(1) as txn:
        txn.write({"id": [1], **many})
    changed(place, lambda found: None, **{"delta.dataSkippingStatsColumns": "c39"})
    prepare = prepared(sink, 2, {"id": [2], **many})
    with monkeypatch.context() as race:
        whole = files.told

        def vacuumed(store: Any, root: str, file: Any, metadata: Any) -> str:
            (place.path / file.path).unlink()
            return whole(store, root, file, metadata)

        race.setattr(publishing, "told", vacuumed)
        with advised("delta.files.told", "`txsink verify` lists all that is damaged"):
            sink.commit(2)
    sink.close()
    capsys.readouterr()
    assert command(place, "verify") != 0
    assert prepare.files[0].path in capsys.readouterr().out
    assert command(place, "abort", "w", "2", "--yes") == 0
    with opened(place) as again, again.begin(2) as txn:
        txn.write({"id": [2], **many})
    assert command(place, "verify") == 0
    assert ids(place) == [1, 2]


# -- deletion vectors, mapped columns, files elsewhere -----------------------------------------------------


def first_row_deleted() -> dict[str, Any]:
    """A deletion vector within the log: a bitmap of 64 bits with one of 32 bits in it, spelled in base 85."""
    bitmap = struct.pack("<IIHHIH", 12346, 1, 0, 0, 16, 0)
    data = struct.pack("<IQI", 1681511377, 1, 0) + bitmap + bytes(2)
    digits = string.digits + string.ascii_letters + ".-:+=^!/*?&<>()[]{}@%$#"
    words = struct.unpack(f">{len(data) // 4}I", data)
    text = "".join(digits[word // 85**at % 85] for word in words for at in (4, 3, 2, 1, 0))
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": 34, "cardinality": 1}


def with_a_vector(place: Place) -> dict[str, Any]:
    """A table of 1 and 3: another program has deleted 2 from the second file; that file, as the log has it."""
    place.write(1, rows(1), layout="delta")
    place.write(2, rows(2, 3))
    known = [action["add"] for action in actions(place) if "add" in action][-1]
    asked = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    gone = {"path": known["path"], "dataChange": True, "deletionTimestamp": 1}
    file = {**known, "deletionVector": first_row_deleted()}
    foreign(
        place, {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **asked}}, {"remove": gone}, {"add": file}
    )
    return file


def purged(place: Place, file: dict[str, Any]) -> None:
    """What REORG TABLE ... APPLY (PURGE) does: the rows that are left are written to another file."""
    new = place.path / "purged.parquet"
    pq.write_table(pa.table(rows(3)), new)
    told = {"path": new.name, "size": new.stat().st_size, "partitionValues": {}, "modificationTime": 1}
    gone = {"path": file["path"], "deletionTimestamp": 1, "deletionVector": file["deletionVector"]}
    foreign(place, {"remove": {**gone, "dataChange": False}}, {"add": {**told, "dataChange": False}})


@pytest.mark.parametrize("does", ["purge", "append"])
def test_deletion_vectors_that_only_a_checkpoint_tells_are_purged_or_the_rows_appended(place: Place, does: str) -> None:
    file = with_a_vector(place)
    table_of(place).create_checkpoint()
    with opened(place) as sink:
        txn = sink.begin(3, mode="overwrite")
        txn.write(rows(4))
        with advised("delta.log._files_in", "Purge them first (REORG TABLE ... APPLY (PURGE)), or append"):
            txn.commit()
        sink.abort(3)
    if does == "purge":
        purged(place, file)
    place.write(4, rows(4), mode="overwrite" if does == "purge" else "append")
    assert deltas(place) == ([4] if does == "purge" else [1, 3, 4])


@pytest.mark.parametrize("does", ["deltalake", "duckdb"])
@pytest.mark.parametrize("feature", ["deletionVectors", "columnMapping"])
def test_what_only_deltas_own_readers_apply_is_read_with_them(place: Place, feature: str, does: str) -> None:
    name = "id"
    if feature == "deletionVectors":
        with_a_vector(place)
    else:
        name = "renamed"
        place.write(1, rows(1, 3), layout="delta")
        mapped(place, name)
    advice = (
        "Read it with deltalake's QueryBuilder (its to_pyarrow_table shows mapped columns as nulls), DuckDB or"
        " Spark's Delta"
    )
    with advised("reading.delta_view._require_plain", advice):
        place.table().to_arrow()
    assert (deltas(place) if does == "deltalake" else by_duckdb(place, name)) == [1, 3]


def mapped(place: Place, name: str) -> None:
    """Another program renames the column `id`."""
    foreign(place, {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}})

    def rename(schema: dict[str, Any]) -> None:
        told = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "id"}
        schema["fields"][0].update(name=name, metadata=told)

    changed(place, rename, **{"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "1"})


def by_duckdb(place: Place, name: str) -> list[int]:
    """As `make .venv-readers/made` has it."""
    tests = Path(__file__).parent
    python = tests.parent / ".venv-readers" / "bin" / "python"
    if not python.exists():
        pytest.skip("there is no .venv-readers: make .venv-readers/made")
    to = place.path.with_name("read.arrow")
    script = str(tests / "delta_readers_child.py")
    subprocess.run([str(python), script, "duckdb", str(place.path), json.dumps([name]), str(to)], check=True)
    return sorted(feather.read_table(to).column(0).to_pylist())


@pytest.mark.parametrize("does", ["read", "clone"])
def test_a_table_with_files_elsewhere_is_read_by_delta_or_cloned_deeply(place: Place, does: str) -> None:
    commit(opened(place), 1)
    elsewhere = place.path.with_name("x.parquet")
    pq.write_table(pa.table(rows(2)), elsewhere)
    told = {"path": elsewhere.as_uri(), "size": elsewhere.stat().st_size, "partitionValues": {}, "modificationTime": 0}
    foreign(place, {"add": {**told, "dataChange": True}})
    with advised("delta.state.path_in_table", "Read it with Delta's own readers, or clone it deeply"):
        place.table().to_arrow()
    assert deltas(place) == [1, 2]
    if does == "clone":
        inside = shutil.copy(elsewhere, place.path)
        gone = {"path": elsewhere.as_uri(), "dataChange": False, "deletionTimestamp": 1}
        foreign(place, {"remove": gone}, {"add": {**told, "path": Path(inside).name, "dataChange": False}})
        commit(opened(place), 2)
        assert ids(place) == [1, 2, 2]


def test_a_log_with_a_path_that_leaves_the_table_is_restored(place: Place) -> None:
    commit(opened(place), 1)
    copy = Path(shutil.copytree(log_of(place), place.path.with_name("copy")))
    told = {"path": "../x.parquet", "size": 9, "partitionValues": {}, "modificationTime": 0, "dataChange": True}
    foreign(place, {"add": told})
    with advised("delta.state.path_in_table", "Restore the log from a copy"):
        place.table().to_arrow()
    shutil.rmtree(log_of(place))
    copy.rename(log_of(place))
    commit(opened(place), 2)
    assert ids(place) == [1, 2]


# -- versions that were cleaned up ----------------------------------------------------------------------------


def test_a_version_that_was_cleaned_up_is_left_for_a_newer_one(place: Place) -> None:
    commit(opened(place), 1, 2)
    old = place.table().version
    commit(opened(place), 3)
    appended(place, 10)
    cleaned(place, 3)
    table = place.table()
    advice = "Read a newer version; delta.logRetentionDuration says for how long versions are kept"
    with advised("delta.log._cleaned_up", advice):
        table.to_arrow(old)
    assert sorted(table.to_arrow(table.version)["id"].to_pylist()) == ids(place) == [1, 2, 3, 10]


def test_an_overwrite_whose_base_was_cleaned_up_is_dropped_and_written_again(place: Place) -> None:
    sink = opened(place)
    commit(sink, 1, 2)
    prepared(sink, 3, rows(3), mode="overwrite")
    appended(place, 10, 11, 12)
    cleaned(place, 4)
    advice = (
        "Drop the epoch (`txsink abort`) and write it again, and commit epochs sooner than delta.logRetentionDuration"
    )
    with advised("publish.delta.overwrite._since", advice):
        sink.commit(3)
    sink.close()
    assert command(place, "abort", "w", "3", "--yes") == 0
    place.write(3, rows(3), mode="overwrite")
    assert ids(place) == [3]


def test_a_record_that_cannot_be_read_is_asked_for_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(opened(place), 1)
    table_of(place).create_checkpoint()
    with monkeypatch.context() as store:
        store.setattr(deltalake.DeltaTable, "transaction_version", fails)
        with advised("delta.log._recorded", "Retry"):
            commit(opened(place), 2)
    sink = opened(place)
    assert sink.last_epoch == 1
    commit(sink, 2)
    assert ids(place) == [1, 2]


def fails(*_given: Any, **_more: Any) -> Any:
    raise OSError("the store failed")


@pytest.mark.parametrize("does", ["retry", "deltalake"])
def test_a_table_that_deltalake_cannot_read_is_read_again_or_by_deltalake_alone(
    place: Place, does: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(opened(place), 1)
    table_of(place).create_checkpoint()
    whole = deltalake.DeltaTable
    with monkeypatch.context() as store:
        store.setattr(deltalake, "DeltaTable", fails)
        with advised("delta.log.table", "Retry; if it stays so, read it by deltalake alone"):
            place.table().to_arrow()
        if does == "deltalake":
            assert pa.table(whole(str(place.path)).to_pyarrow_table())["id"].to_pylist() == [1]
    commit(opened(place), 2)
    assert ids(place) == [1, 2]


def test_a_log_without_commits_is_restored(place: Place) -> None:
    commit(opened(place), 1)
    log = log_of(place)
    copy = Path(shutil.copytree(log, place.path.with_name("copy")))
    for file in log.iterdir():
        file.unlink()
    (log / f"{0:020d}.crc").write_text("{}", encoding="utf-8")
    before = sorted(place.path.rglob("*"))
    with advised("delta.log.table", "Restore its _delta_log from a copy; nothing was changed"):
        commit(opened(place), 2)
    assert sorted(place.path.rglob("*")) == before
    shutil.rmtree(log)
    copy.rename(log)
    commit(opened(place), 2)
    assert ids(place) == [1, 2]


# -- checkpoints -----------------------------------------------------------------------------------------------


def test_a_checkpoint_that_is_too_large_to_copy_is_made_by_deltalake(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(place)
    commit(sink, 1, 2)
    delta: DeltaLog = sink.publisher.delta  # type: ignore[attr-defined]
    monkeypatch.setattr(checkpoints, "_FILE_BYTES_MAX", 100)
    advice = "Make checkpoints of this table by deltalake's create_checkpoint or by Spark"
    with advised("delta.checkpoints._checkpoint_aside", advice):
        checkpoints.checkpoint(delta)
    table_of(place).create_checkpoint()
    commit(opened(place), 3)
    assert ids(place) == [1, 2, 3]


def test_a_checkpoint_whose_scratch_another_process_cleared_is_made_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(place)
    commit(sink, 1, 2)
    delta: DeltaLog = sink.publisher.delta  # type: ignore[attr-defined]
    other: DeltaLog = opened(place, writer="v").publisher.delta  # type: ignore[attr-defined]
    with monkeypatch.context() as race:
        whole = checkpoints._move_in

        def later(*given: Any) -> None:
            race.setattr(checkpoints, "_move_in", whole)
            checkpoints.checkpoint(other)
            whole(*given)

        race.setattr(checkpoints, "_move_in", later)
        with advised("delta.checkpoints._move_in", "Retry"):
            checkpoints.checkpoint(delta)
    commit(sink, 3)
    assert checkpoints.checkpoint(delta) == table_of(place).version()
    commit(opened(place), 4)
    assert ids(place) == [1, 2, 3, 4]


# -- rewinds ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("does", ["restore", "another path"])
def test_a_log_that_is_older_than_a_rewind_is_restored_or_the_table_written_elsewhere(place: Place, does: str) -> None:
    commit(opened(place), 1, 2)
    own = place.path / "_txsink"
    older = Path(shutil.copytree(own, place.path.with_name("older")))
    with opened(place) as sink:
        sink.recover(1, "rewind")
    newest = own.rename(place.path.with_name("newest"))
    older.rename(own)
    advice = "Restore the newest `_txsink` from a copy; or read the table, and write what it holds to another path"
    with advised("publish.delta.agreement.ahead", advice):
        opened(place)
    there = place
    if does == "restore":
        shutil.rmtree(own)
        newest.rename(own)
    else:
        there = Place(place.path.with_name("other"))
        there.write(1, place.table().to_arrow(), layout="delta")
    commit(opened(there), 2)
    assert ids(there) == [1, 2]


@pytest.mark.parametrize("does", ["overwrite", "restore"])
def test_rows_that_came_back_in_files_of_others_are_overwritten_or_restored_away(place: Place, does: str) -> None:
    sink = opened(place)
    commit(sink, 1, 2, 3)
    before = table_of(place).version()
    sink.recover(1, "rewind")
    without = table_of(place).version()
    table_of(place).restore(before)
    table_of(place).optimize.compact()
    txn = sink.begin(2)
    txn.write(rows(2))
    advice = "Write what the table is to hold with mode='overwrite', or restore the Delta table to a version without it"
    with advised("publish.delta.brought_back.require_no_replay", advice):
        txn.commit()
    txn.abort()
    if does == "restore":
        table_of(place).restore(without)
        commit(sink, 2)
    else:
        with sink.begin(2, mode="overwrite") as again:
            again.write(rows(1, 2))
    assert ids(place) == [1, 2]


def test_a_rewind_behind_an_epoch_of_another_program_is_aborted(place: Place) -> None:
    sink = opened(place)
    commit(sink, 1, 2)
    foreign(place, {"txn": {"appId": "w", "version": 5, "lastUpdated": 1}})
    with advised("publish.delta.publisher._require_no_later", "Abort the rewind, and go on after that epoch"):
        sink.recover(1, "rewind")
    for pending in sink.pending:
        sink.abort(pending)
    sink.close()
    again = opened(place)
    assert (again.last_epoch, again.pending) == (5, [])
    commit(again, 6)
    assert ids(place) == [1, 2, 6]
