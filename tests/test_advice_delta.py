"""What errors about Delta tables advise, done word for word: every row is there once."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from advice import advised, advised_in_print
from advised_calls import Wrong, follow, gives
from place import Place, commit, prepared, rows
from seen import by_log
from txsink import conversion as convert, paths
from txsink.cli import main as cli
from txsink.delta import log as delta
from txsink.schema import columns_of
from txsink.writing.writer import Writer

NEW = {"layout": "delta"}


def table_of(place: Place) -> Any:
    return deltalake.DeltaTable(str(place.path))


def ids(place: Place) -> list[int]:
    """Seen the same by the table's reader and by Delta's."""
    found = by_log(place.path)
    assert sorted(pa.table(table_of(place).to_pyarrow_table())["id"].to_pylist()) == found
    return found


def opened(place: Place, **options: Any) -> Writer:
    return place.sink(**NEW, **options)


def command(place: Place, *words: str) -> int:
    return cli.main([words[0], str(place.path), *words[1:]])


def commit_file(place: Place, version: int) -> Path:
    return place.path / paths.delta_commit_path(version)


def foreign(place: Place, *actions: dict[str, Any]) -> None:
    """The next commit, by another program."""
    at = table_of(place).version() + 1
    commit_file(place, at).write_text("".join(json.dumps(action) + "\n" for action in actions), encoding="utf-8")


def metadata_of(place: Place) -> dict[str, Any]:
    for version in range(table_of(place).version(), -1, -1):
        for line in commit_file(place, version).read_text(encoding="utf-8").splitlines():
            if "metaData" in json.loads(line):
                return dict(json.loads(line)["metaData"])
    raise AssertionError


def properties(place: Place, **given: str) -> None:
    found = metadata_of(place)
    kept = {name: text for name, text in found["configuration"].items() if name.replace(".", "_") not in given}
    new = {name.replace("_", "."): text for name, text in given.items() if text}
    foreign(place, {"metaData": {**found, "configuration": {**kept, **new}}})


# -- what the table asks for -------------------------------------------------------------------------------


def test_a_property_that_forgets_epochs_is_unset(place: Place) -> None:
    commit(opened(place), 1)
    properties(place, delta_setTransactionRetentionDuration="interval 1 day")
    with advised("delta.state.require_writable", "Unset the property: an epoch that is forgotten could be written twi"):
        commit(opened(place), 2)
    properties(place, delta_setTransactionRetentionDuration="")
    commit(opened(place), 2)
    assert ids(place) == [1, 2]


@pytest.mark.parametrize("does", ["drop", "another"])
def test_a_feature_is_dropped_or_another_table_written(place: Place, does: str) -> None:
    commit(opened(place), 1)
    properties(place, delta_constraints_few="id < 9")
    with advised("delta.state.require_writable", "Drop the feature, or write another table"):
        commit(opened(place), 2)
    there = place
    if does == "drop":
        properties(place, delta_constraints_few="")
    else:
        there = Place(place.path.with_name("other"))
    commit(opened(there), 2)
    assert ids(there) == ([1, 2] if does == "drop" else [2])


@pytest.mark.parametrize("does", ["append", "unset"])
def test_a_table_that_only_grows_is_appended_to_or_its_property_unset(place: Place, does: str) -> None:
    commit(opened(place), 1)
    properties(place, delta_appendOnly="true")
    with advised("delta.state.require_overwritable", "Append, or unset the property"):
        place.write(2, rows(2), mode="overwrite")
    if does == "unset":
        properties(place, delta_appendOnly="")
    place.write(2, rows(2), mode="append" if does == "append" else "overwrite")
    assert ids(place) == ([1, 2] if does == "append" else [2])


def fields(place: Place, change: Callable[[dict[str, Any]], object]) -> None:
    """Another program changes the schema."""
    found = metadata_of(place)
    schema = json.loads(found["schemaString"])
    change(schema)
    foreign(place, {"metaData": {**found, "schemaString": json.dumps(schema)}})


def test_a_column_without_nulls_is_filled(place: Place) -> None:
    place.write(1, {"id": [1], "n": [1]}, **NEW)
    fields(place, lambda schema: schema["fields"][1].update(nullable=False))
    with advised("delta.files._require", "Fill them"):
        place.write(2, {"id": [2], "n": pa.array([None], pa.int64())})
    place.write(2, {"id": [2], "n": [0]})
    assert ids(place) == [1, 2]


@pytest.mark.parametrize("rows_of_it", [1, 0])
def test_a_partition_column_of_a_new_table_is_given_a_type(place: Place, rows_of_it: int) -> None:
    """Found: the table was made, and no reader of Delta opened it."""
    nulls = pa.table({"id": pa.array([1], pa.int64()), "p": pa.nulls(1)}).slice(0, rows_of_it)
    words = "Give the column a type: write it with a schema"
    with advised("delta.actions.require_partition_types", words):
        place.write(1, nulls, partition_by=["p"], **NEW)
    assert not (place.path / paths.DELTA_DIRECTORY).exists()
    place.write(1, nulls.set_column(1, "p", nulls["p"].cast(pa.string())))
    place.write(2, {"id": [2], "p": [None]})
    assert ids(place) == ([1, 2] if rows_of_it else [2])


def test_a_partition_column_of_a_table_to_be_converted_is_given_a_type(place: Place) -> None:
    place.write(1, {"id": [1], "p": [None]}, partition_by=["p"])
    with advised("delta.actions.require_partition_types", "Give the column a type: write it with a schema"):
        to_delta(place)
    place.write(2, {"id": [2], "p": pa.array([None], pa.date32())})
    to_delta(place)
    assert ids(place) == [1, 2]


def to_delta(place: Place) -> None:
    log = place.table().log
    convert.to_delta(log, delta.DeltaLog(log.store, log.root, place.stamps, str(place.path)))


def test_text_that_is_too_long_or_too_short_is_cut_or_filled(place: Place) -> None:
    place.write(1, {"id": [1], "n": ["abc"], "m": ["abc"]}, **NEW)

    def limited(schema: dict[str, Any]) -> None:
        for at, kind in ((1, "varchar(3)"), (2, "char(3)")):
            schema["fields"][at]["metadata"] = {"__CHAR_VARCHAR_TYPE_STRING": kind}

    fields(place, limited)
    with advised("delta.files._require_length", "Cut it"):
        place.write(2, {"id": [2], "n": ["abcd"], "m": ["abc"]})
    with advised("delta.files._require_length", "Cut it, or fill it with spaces to {}"):
        place.write(2, {"id": [2], "n": ["abc"], "m": ["a"]})
    place.write(2, {"id": [2], "n": ["abc"], "m": ["a  "]})
    assert ids(place) == [1, 2]


def test_a_column_is_written_as_the_table_has_it(place: Place) -> None:
    txn = opened(place).begin(1)
    txn.write({"id": [1], "n": [1]})
    txn.commit()
    two = opened(place, merge_schema=True)
    txn = two.begin(2)
    txn.write({"id": [2], "n": [2], "m": [2]})
    fields(
        place, lambda schema: schema["fields"].append({"name": "m", "type": "string", "nullable": True, "metadata": {}})
    )
    with advised("delta.actions.new_fields", "Write the column as the table has it"):
        txn.commit()
    txn.abort()
    with opened(place) as sink, sink.begin(2) as again:
        again.write({"id": [2], "n": [2], "m": ["2"]})
    assert ids(place) == [1, 2]


CALLS = (
    Wrong(
        "delta.log.fields_of",
        "Cast it to a signed integer",
        gives({"id": [1], "n": pa.array([1], pa.uint8())}, **NEW),
        (gives({"id": [1], "n": pa.array([1], pa.int16())}, **NEW),),
    ),
)


@pytest.mark.parametrize("case", CALLS, ids=lambda case: case.place)
def test_a_type_that_delta_has_not_is_changed_as_the_message_says(place: Place, case: Wrong) -> None:
    follow(case, place)


@pytest.mark.parametrize("does", ["install", "parquet"])
def test_a_delta_table_waits_for_its_package_or_is_none(
    place: Place, does: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as bare:
        bare.setitem(sys.modules, "deltalake", None)
        with advised("delta.log.deltalake_for", "Install it: pip install 'txsink[delta]', or choose layout='parquet'"):
            place.write(1, {"id": [1], "n": pa.array([1.5], pa.float32())}, **NEW)
        there = place if does == "install" else Place(place.path.with_name("other"))
        if does == "parquet":
            there.write(1, rows(1), layout="parquet")
    if does == "install":
        there.write(1, rows(1))
    assert by_log(there.path) == [1]


# -- what others do meanwhile ------------------------------------------------------------------------------


@pytest.mark.parametrize("does", ["back", "repair", "abort, repair"])
def test_a_delta_log_that_is_gone_is_put_back_or_made_again(place: Place, does: str) -> None:
    sink = opened(place)
    commit(sink, 1)
    prepared(sink, 2, rows(2))
    sink.close()
    kept = (place.path / "_delta_log").rename(place.path.with_name("kept"))
    advice = "Put the former Delta log back, and open the writer again; or see what `txsink repair` would do"
    with advised("publish.delta.agreement.problem", advice):
        opened(place)
    if does == "back":
        kept.rename(place.path / "_delta_log")
    if "abort" in does:
        assert command(place, "abort", "w", "2", "--yes") == 0
    if "repair" in does:
        command(place, "repair")
        assert command(place, "repair", "--yes") == 0
    opened(place)
    assert ids(place) == ([1] if "abort" in does else [1, 2])


def test_a_log_that_is_older_than_deltas_is_restored(place: Place) -> None:
    commit(opened(place), 1)
    older = place.path.with_name("older")
    shutil.copytree(place.path / "_txsink", older)
    commit(opened(place), 2)
    newest = (place.path / "_txsink").rename(place.path.with_name("newest"))
    shutil.copytree(older, place.path / "_txsink")
    with advised(
        "publish.delta.agreement.ahead", "Restore the newest `_txsink` from a copy; or, if there is none, see what"
    ):
        commit(opened(place), 3)
    shutil.rmtree(place.path / "_txsink")
    newest.rename(place.path / "_txsink")
    commit(opened(place), 3)
    assert ids(place) == [1, 2, 3]


def test_a_log_that_is_older_than_deltas_and_has_no_copy_is_repaired(place: Place) -> None:
    commit(opened(place), 1)
    older = place.path.with_name("older")
    shutil.copytree(place.path / "_txsink", older)
    commit(opened(place), 2)
    shutil.rmtree(place.path / "_txsink")
    older.rename(place.path / "_txsink")
    with advised(
        "publish.delta.agreement.ahead", "Restore the newest `_txsink` from a copy; or, if there is none, see what"
    ):
        commit(opened(place), 3)
    command(place, "repair", "--yes")
    commit(opened(place), 3)
    assert ids(place) == [1, 2, 3]


def rewound_and_restored(place: Place) -> Writer:
    sink = opened(place)
    commit(sink, 1, 2)
    before = table_of(place).version()
    sink.recover(1, "rewind")
    table_of(place).restore(before)
    return sink


def test_a_file_that_came_back_is_taken_away_again_and_its_epoch_replayed(place: Place) -> None:
    rewound_and_restored(place).close()
    with advised(
        "publish.delta.brought_back.require_no_replay",
        "Recover with up_to={}, on_newer='rewind', which takes it away again",
    ):
        commit(opened(place), 2)
    sink = opened(place, recover=False)
    sink.recover(1, "rewind")
    commit(sink, 2)
    assert ids(place) == [1, 2]


def test_a_file_that_a_rewind_misses_is_left_and_the_former_content_written(place: Place) -> None:
    sink = opened(place)
    commit(sink, 1, 2)
    table_of(place).delete("id = 2")
    with advised("publish.delta.overwrite.doomed", "Abort the rewind, and write the former content again"):
        sink.recover(1, "rewind")
    for pending in sink.pending:
        sink.abort(pending)
    place.sink().close()
    place.write(3, rows(1), mode="overwrite")
    assert ids(place) == [1]


def test_an_overwrite_of_files_that_were_rewritten_is_dropped_and_written_again(place: Place) -> None:
    place.write(1, rows(1, 2, 3), **NEW)
    sink = opened(place)
    prepared(sink, 2, rows(9), mode="overwrite")
    table_of(place).update(updates={"id": "7"}, predicate="id = 1")
    with advised("publish.delta.overwrite.followed", "Drop the epoch (`txsink abort`) and write it again"):
        sink.commit(2)
    sink.close()
    assert command(place, "abort", "w", "2", "--yes") == 0
    place.write(3, rows(9), mode="overwrite")
    assert ids(place) == [9]


def test_a_commit_of_deltas_log_that_is_torn_is_restored(place: Place) -> None:
    commit(opened(place), 1)
    file = commit_file(place, table_of(place).version())
    good = file.read_bytes()
    file.write_bytes(good[:-20])
    with advised("delta.state._corrupt", "Restore the commit from a copy; nothing was changed and nothing may be"):
        commit(opened(place), 2)
    file.write_bytes(good)
    commit(opened(place), 2)
    assert ids(place) == [1, 2]


def test_a_commit_that_loses_every_race_is_retried(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = opened(place)
    commit(sink, 1)
    txn = sink.begin(2)
    txn.write(rows(2))
    txn.prepare()
    with monkeypatch.context() as busy:
        busy.setattr(delta, "COMMIT_TRIES", 2)
        busy.setattr(delta, "put", lambda *given: False)
        with advised("delta.log.commit", "Retry when fewer programs write to the table"):
            sink.publisher.publish(sink.log.prepare_entry(sink.log.state.pending_of("w")[0].prepared))
    txn.commit()
    assert ids(place) == [1, 2]


def test_a_pointer_to_a_checkpoint_that_is_lost_is_deleted(place: Place) -> None:
    commit(opened(place), 1, 2)
    table_of(place).create_checkpoint()
    for file in (place.path / "_delta_log").glob("*.checkpoint.*"):
        file.unlink()
    with advised("delta.log._require_whole", "Delete {}, which only saves time, and retry"):
        commit(opened(place), 3)
    (place.path / paths.DELTA_POINTER_PATH).unlink()
    commit(opened(place), 3)
    assert ids(place) == [1, 2, 3]


def test_the_outcome_that_delta_shows_already_is_left_or_overwritten(place: Place) -> None:
    sink = opened(place)
    commit(sink, 1)
    prepare = prepared(sink, 2, rows(2))
    sink.publisher.publish(prepare)  # and the process died before its commit entry
    again = opened(place, recover=False)
    with advised("writing.writer.drop", "Leave it, or overwrite its content"):
        again.abort(2)
    assert ids(place) == [1, 2]
    place.write(3, rows(1), mode="overwrite")
    assert ids(place) == [1]


# -- what other programs did -------------------------------------------------------------------------------


def test_a_writer_goes_on_after_the_epoch_that_another_program_has_committed(place: Place) -> None:
    sink = opened(place)
    commit(sink, 1)
    txn = sink.begin(2)
    txn.write(rows(2))
    txn.prepare()
    foreign(place, {"txn": {"appId": "w", "version": 3, "lastUpdated": 1}})
    with advised("protocol.resolving.commit", "Go on after `last_epoch`: what was written here is dropped"):
        txn.commit()
    sink.close()
    again = opened(place)
    assert (again.last_epoch, again.pending) == (3, [])
    commit(again, 4)
    assert ids(place) == [1, 4]


def test_a_delta_table_that_was_made_anew_is_left_alone(place: Place) -> None:
    place.write(1, {"id": [1], "day": ["a"]}, **NEW, partition_by="day")
    shutil.rmtree(place.path / "_delta_log")
    deltalake.write_deltalake(place.path, pa.table({"id": [7], "hour": ["b"]}), partition_by=["hour"])
    other = Place(place.path.with_name("other"))
    with advised(
        "writing.opening._require_agreement", "Another program made the Delta table anew: write to another path"
    ):
        opened(place)
    other.write(1, {"id": [1], "day": ["a"]}, **NEW, partition_by="day")
    assert ids(other) == [1]
    assert pa.table(table_of(place).to_pyarrow_table())["id"].to_pylist() == [7]


@pytest.mark.parametrize("does", ["remove", "overwrite"])
def test_a_partition_value_of_another_type_is_removed_or_overwritten(place: Place, does: str) -> None:
    place.write(1, {"id": [1], "n": [7]}, **NEW, partition_by="n")
    path = "n=abc/part-0.parquet"
    file = place.path / path
    file.parent.mkdir()
    pq.write_table(pa.table({"id": [2]}), file)
    at = table_of(place).version()
    told = {"path": path, "size": file.stat().st_size, "partitionValues": {"n": "abc"}, "modificationTime": 0}
    line = {"add": {**told, "dataChange": True}}
    commit_file(place, at + 1).write_text(f"{json.dumps(line)}\n", encoding="utf-8")
    with advised("schema.partition_values", "Remove the file with the program that wrote it, or write the table again"):
        place.table().to_arrow()
    if does == "remove":
        gone = {"remove": {"path": path, "deletionTimestamp": 1, "dataChange": True}}
        commit_file(place, at + 2).write_text(f"{json.dumps(gone)}\n", encoding="utf-8")
    else:
        place.write(2, {"id": [3], "n": [8]}, mode="overwrite")
    assert by_log(place.path) == ([1] if does == "remove" else [3])


# -- files that cannot be read -----------------------------------------------------------------------------


def damaged(file: Path) -> bytes:
    """Alter a byte of its first page, so that its checksum does not fit; what it was."""
    good = file.read_bytes()
    at = len(good) // 4
    file.write_bytes(good[:at] + bytes([good[at] ^ 255]) + good[at + 1 :])
    return good


def test_a_committed_file_that_cannot_be_read_is_put_back_before_the_conversion(place: Place, capsys: Any) -> None:
    place.write(1, {"id": [1] * 500, "x": [float(number) for number in range(500)]})
    (file,) = place.path.glob("*.parquet")
    good = damaged(file)
    advice = "Put the file back from a copy; or, if its epoch is not committed, abort it and write it again"
    with advised_in_print("staging.parquet.groups_of", advice):
        assert command(place, "convert", "--to", "delta", "--yes") != 0
    file.write_bytes(good)
    assert command(place, "convert", "--to", "delta", "--yes") == 0
    assert ids(place) == [1] * 500
    assert capsys.readouterr().out


def test_a_file_of_another_program_that_cannot_be_read_is_written_again(place: Place) -> None:
    data = pa.table({"id": [1] * 500, "x": [float(number) for number in range(500)]})
    with opened(place) as sink:
        txn = sink.begin(1)
        guest = txn.guest()
        file = Path(guest.path) / "part-0.parquet"
        file.parent.mkdir(parents=True)
        pq.write_table(data, file, write_page_checksum=True)
        damaged(file)
        advice = "Put the file back from a copy; or, if its epoch is not committed, abort it and write it again"
        with advised("staging.parquet.groups_of", advice):
            guest.adopt(columns_of(data.schema), sink.log.stamps.new_id)
        txn.abort()
        with sink.begin(1) as again:
            again.write(data)
    assert ids(place) == [1] * 500
