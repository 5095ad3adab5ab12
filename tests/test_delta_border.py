"""What others leave in a Delta table, and a crash between both logs: read rightly, or refused by name (I1, I5, I11)."""

from __future__ import annotations

import json
import random
import shutil
import string
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from place import Place, prepared
from txsink import paths
from txsink.delta import checkpoints as delta_upkeep
from txsink.delta.log import DeltaLog
from txsink.delta.state import path_in_table
from txsink.environment import Stamps
from txsink.errors import ConflictError, CorruptError, InvalidRequestError, TxsinkError
from txsink.publish.delta.publisher import FRESH_MS, DeltaPublisher
from txsink.store.local.store import LocalStore
from txsink.testing.faults import FaultyStore
from txsink.writing.opening import open_sink
from txsink.writing.writer import Writer


def log_of(path: Path) -> Path:
    return path / "_delta_log"


def versions(path: Path) -> list[int]:
    return sorted(int(one.stem) for one in log_of(path).glob("*.json"))


def lines(path: Path) -> list[dict[str, Any]]:
    logs = sorted(log_of(path).glob("*.json"))
    return [json.loads(line) for log in logs for line in log.read_text().splitlines()]


def append(path: Path, *actions: dict[str, Any]) -> None:
    """Another program commits."""
    log = log_of(path) / f"{versions(path)[-1] + 1:020d}.json"
    log.write_text("".join(json.dumps(action) + "\n" for action in actions))


def ids(path: Path) -> list[int]:
    return sorted(pa.table(deltalake.DeltaTable(str(path)).to_pyarrow_table())["id"].to_pylist())


def own_ids(place: Place) -> list[int]:
    return sorted(place.table().to_arrow()["id"].to_pylist())


def commit(sink: Writer, epoch: int, *rows: int, **options: Any) -> None:
    with sink.begin(epoch, **options) as txn:
        txn.write({"id": list(rows)})


def lived(place: Place, epochs: int = 2, **options: Any) -> Writer:
    sink = place.sink(layout="delta", **options)
    for epoch in range(epochs):
        commit(sink, epoch, epoch)
    return sink


# -- between prepare and commit ---------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0, FRESH_MS // 1000])
def test_a_file_is_looked_at_again_at_commit_unless_the_look_is_seconds_old(place: Place, seconds: int) -> None:
    clock = [1_760_000_000_000]
    place.stamps = Stamps(lambda: clock[0], place.stamps.new_id, place.stamps.pause)
    store = FaultyStore(LocalStore())
    sink = open_sink(store, place.stamps, str(place.path), "w", {"layout": "delta"})
    commit(sink, 0, 0)
    (file,) = prepared(sink, 1, {"id": [1]}).files
    before = len(store.trace)
    clock[0] += 1000 * seconds
    if seconds:
        (place.path / file.path).unlink()  # VACUUM of another engine
        with pytest.raises(CorruptError, match="is absent"):
            sink.commit(1)
        assert ids(place.path) == [0]
        sink.abort(1)
        commit(sink, 1, 7)
        assert ids(place.path) == [0, 7]
    else:
        sink.commit(1)
        assert [path for _, path in store.trace[before:] if path.endswith(file.path)] == []


@pytest.mark.parametrize("name", ["txsink:a", "txsink-abort-5:a", "txsink:"])
def test_a_writer_whose_name_is_one_of_anothers_records_is_refused(place: Place, name: str) -> None:
    with pytest.raises(InvalidRequestError, match="keeps the outcomes of writers"):
        place.sink(name, layout="delta")
    lived(place).close()
    for other in ("a", "txsink", "Txsink:a", "my-txsink:a"):
        with place.sink(other) as sink:
            commit(sink, 0, 7)
    assert ids(place.path) == [0, 1, 7, 7, 7, 7]


def other_sink_commits(path: Path, epoch: int) -> None:
    """Delta's own sink, under the writer's name."""
    properties = deltalake.CommitProperties(app_transactions=[deltalake.Transaction("w", epoch)])
    rows = pa.table({"id": pa.array([100 + epoch], pa.int64())})
    deltalake.write_deltalake(str(path), rows, mode="append", commit_properties=properties)


def test_a_rewind_behind_an_epoch_of_another_program_is_a_conflict_that_can_be_aborted(place: Place) -> None:
    """It would take the record back, and the epoch could be committed once more."""
    sink = lived(place)
    other_sink_commits(place.path, 2)
    with pytest.raises(ConflictError, match="has committed epoch 2"):
        sink.recover(0, "rewind")
    sink.abort(0)
    assert sink.last_epoch == 2
    for again in (sink, place.sink()):
        with again.begin(2) as txn:
            txn.write({"id": [102]})
        assert txn.outcome == "already-committed"
    assert ids(place.path) == own_ids(place) == [0, 1, 102]


# Of epoch 2, which is 102 in the table: what happens to it, in order.
ORDERS = {
    "theirs, ours": ("theirs 2", "ours 2"),
    "ours prepared, theirs, ours": ("prepare 2", "theirs 2", "commit 2"),
    "ours prepared, theirs, recovery": ("prepare 2", "theirs 2", "open"),
    "ours prepared, theirs, abort": ("prepare 2", "theirs 2", "abort 2"),
    "ours aborted, theirs": ("prepare 2", "abort 2", "theirs 2"),
    "theirs twice, ours": ("theirs 2", "theirs 3", "ours 4"),
    "ours, theirs, ours": ("ours 2", "theirs 3", "ours 4"),
    "the next of ours prepared, theirs, ours": ("prepare 3", "theirs 2", "commit 3"),
}


def act(place: Place, sink: Writer, deed: str) -> None:
    verb, _, epoch = deed.partition(" ")
    if verb == "theirs":
        other_sink_commits(place.path, int(epoch))
    elif verb == "ours":
        commit(sink, int(epoch), 100 + int(epoch))
    elif verb == "prepare":
        prepared(sink, int(epoch), {"id": [100 + int(epoch)]})
    elif verb == "commit":
        sink.commit(int(epoch))
    elif verb == "abort":
        sink.abort(int(epoch))
    else:
        place.sink()


@pytest.mark.parametrize("order", ORDERS)
def test_an_epoch_that_deltas_own_sink_has_committed_stays_refused_under_every_order(place: Place, order: str) -> None:
    sink = lived(place)
    for deed in ORDERS[order]:
        with suppress(TxsinkError):
            act(place, sink, deed)
    before = ids(place.path)
    assert before.count(102) == 1
    for again in (place.sink(), place.sink()):
        for epoch in (0, 1, 2):
            with suppress(InvalidRequestError), again.begin(epoch) as txn:
                txn.write({"id": [100 + epoch]})
        again.close()
    assert ids(place.path) == own_ids(place) == before


def test_an_epoch_of_ours_whose_commit_is_in_deltas_log_is_committed_by_whoever_comes_next(place: Place) -> None:
    """Ours is looked for before theirs: the record of the epoch is by our own commit."""
    sink = lived(place)
    prepare = prepared(sink, 2, {"id": [2]})
    DeltaPublisher(sink.log, sink.publisher.delta).publish(prepare)  # type: ignore[attr-defined]
    # A crash here: the entry is missing.
    with place.sink() as after:
        assert (after.last_epoch, after.pending) == (2, [])
    assert ids(place.path) == own_ids(place) == [0, 1, 2]
    assert place.table().explain("w", 2).outcome == "committed"


def test_between_deltas_commit_and_our_entry_explain_and_the_rows_agree(place: Place) -> None:
    sink = lived(place)
    prepare = prepared(sink, 2, {"id": [2]})
    table = place.table()
    assert (own_ids(place), table.explain("w", 2).outcome) == ([0, 1], "pending")
    assert [item.state for item in table.pending()] == ["prepared"]
    sink.publisher.publish(prepare)
    assert (own_ids(place), table.explain("w", 2).outcome) == ([0, 1, 2], "committed")
    assert "recover appends it" in table.explain("w", 2).sentence
    assert [item.state for item in table.pending()] == ["publishing"]
    assert table.to_arrow()["id"].to_pylist() == [0, 1], "what was opened before stays as it is until it is refreshed"
    sink.commit(2)
    assert table.explain("w", 2).version == table.refresh().version


def test_a_column_dropped_behind_a_checkpoint_is_a_conflict_for_the_next_process(place: Place) -> None:
    sink = place.sink(layout="delta")
    with sink.begin(0) as txn:
        txn.write({"id": [0], "x": [1.5]})
    prepared(sink, 1, {"id": [1], "x": [2.5]})
    kept = pa.table({"id": pa.array([0], pa.int64())})
    deltalake.write_deltalake(str(place.path), kept, mode="overwrite", schema_mode="overwrite")
    deltalake.DeltaTable(str(place.path)).create_checkpoint()
    with pytest.raises(ConflictError, match="no column 'x' any more"):
        place.sink()
    late = place.sink(recover=False)
    late.abort(1)
    assert ids(place.path) == own_ids(place) == [0]


def test_a_delta_log_that_went_back_takes_no_commit(place: Place) -> None:
    sink = lived(place)
    copy = place.path.with_name("copy")
    shutil.copytree(log_of(place.path), copy)
    commit(sink, 2, 2)
    prepared(sink, 3, {"id": [3]})
    shutil.rmtree(log_of(place.path))
    shutil.copytree(copy, log_of(place.path))
    with pytest.raises(CorruptError, match="is at version 1, and was at 2 before"):
        place.sink()
    assert versions(place.path) == [0, 1]


# -- what an overwrite replaces ---------------------------------------------------------------------------

MOMENTS = ["2024-02-29 01:02:03.456789", "2024-03-01 00:00:00", "1969-12-31 23:59:59.5"]


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("is_checkpointed", [False, True], ids=["", "checkpoint"])
@pytest.mark.parametrize("by_others", [False, True], ids=["ours", "theirs"])
def test_a_dynamic_overwrite_replaces_the_partition_of_a_time(
    place: Place, zone: str | None, *, by_others: bool, is_checkpointed: bool
) -> None:
    moments = pa.array(MOMENTS).cast(pa.timestamp("us"))
    at = moments if zone is None else moments.cast(pa.timestamp("us", zone))
    rows = pa.table({"id": [0, 1, 2], "at": at})
    if by_others:
        deltalake.write_deltalake(str(place.path), rows, partition_by=["at"])
    else:
        place.write(0, rows, layout="delta", partition_by=["at"])
    if is_checkpointed:
        deltalake.DeltaTable(str(place.path)).create_checkpoint()
    new = pa.table({"id": [7, 8], "at": at.take([0, 2])})
    place.write(1, new, mode="overwrite", partition_overwrite="dynamic")
    assert ids(place.path) == own_ids(place) == [1, 7, 8]


SPELLED = ["2024-03-01T00:00:00Z", "2024-03-01 00:00:00.0", "2024-03-01T01:00:00.000+01:00", "2024-02-29 23:30:00-0030"]


@pytest.mark.parametrize("text", SPELLED)
def test_a_dynamic_overwrite_knows_a_time_in_every_spelling(place: Place, text: str) -> None:
    at = pa.array(["2024-03-01"]).cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC"))
    place.write(0, pa.table({"id": [0], "at": at}), layout="delta", partition_by=["at"])
    (known,) = [line["add"] for line in lines(place.path) if "add" in line]
    append(place.path, {"remove": {"path": known["path"]}}, {"add": {**known, "partitionValues": {"at": text}}})
    place.write(1, pa.table({"id": [7], "at": at}), mode="overwrite", partition_overwrite="dynamic")
    assert own_ids(place) == [7]


def test_an_overwrite_replaces_what_an_earlier_epoch_of_its_writer_brings_meanwhile(place: Place) -> None:
    sink = lived(place)
    for epoch, mode in ((2, "append"), (3, "overwrite")):
        prepared(sink, epoch, {"id": [epoch]}, mode=mode)
    sink.commit(3)
    assert ids(place.path) == own_ids(place) == [3]


def test_an_overwrite_whose_base_was_cleaned_up_says_what_to_do_and_that_works(place: Place) -> None:
    sink = lived(place, 3)
    prepared(sink, 3, {"id": [7]}, mode="overwrite")
    for number in range(10, 13):
        rows = pa.table({"id": pa.array([number], pa.int64())})
        deltalake.write_deltalake(str(place.path), rows, mode="append")
    deltalake.DeltaTable(str(place.path)).create_checkpoint()
    for version in range(5):
        (log_of(place.path) / f"{version:020d}.json").unlink()
    for again in (sink, place.sink(recover=False)):
        with pytest.raises(ConflictError, match="were cleaned up") as found:
            again.commit(3)
        assert "txsink abort" in found.value.advice
    late = place.sink(recover=False)
    late.abort(3)
    commit(late, 3, 7, mode="overwrite")
    assert ids(place.path) == own_ids(place) == [7]


# -- what others leave in the log -------------------------------------------------------------------------

OUTSIDE = {
    "../../secret/x.parquet": CorruptError,
    "%2e%2e/%2E%2E/secret/x.parquet": CorruptError,
    "a/../../../secret/x.parquet": CorruptError,
    "./x.parquet": CorruptError,
    "a//x.parquet": CorruptError,
    "x%00.parquet": CorruptError,
    "": CorruptError,
    "/secret/x.parquet": InvalidRequestError,
    "%2Fsecret/x.parquet": InvalidRequestError,
    "file:///secret/x.parquet": InvalidRequestError,
    "s3://bucket/x.parquet": InvalidRequestError,
    "S3A:x.parquet": InvalidRequestError,
}


@pytest.mark.parametrize("path", OUTSIDE)
def test_a_file_outside_the_table_is_never_read_and_is_refused_by_name(place: Place, path: str) -> None:
    lived(place).close()
    secret = place.path.parent.parent / "secret"
    secret.mkdir(exist_ok=True)
    pq.write_table(pa.table({"id": [666]}), secret / "x.parquet")
    size = (secret / "x.parquet").stat().st_size
    body = {"path": path, "partitionValues": {}, "size": size, "modificationTime": 0, "dataChange": True}
    append(place.path, {"add": {**body, "stats": '{"numRecords":1}'}})
    table = place.table()
    for read in (table.to_arrow, table.files, lambda: list(table.to_reader())):
        with pytest.raises(OUTSIDE[path]) as found:
            read()
        assert path in str(found.value)
    assert any(path in problem.what for problem in table.verify())
    if OUTSIDE[path] is InvalidRequestError:
        assert "shallow clone" in str(found.value)


@pytest.mark.parametrize(
    "path", ["a=%2541/x.parquet", "day=1%3A2/x.parquet", "x%3Ay.parquet", "..a/b...parquet", "a b"]
)
def test_a_file_within_the_table_is_what_its_name_says(path: str) -> None:
    assert path_in_table(path, "read") == unquote(path)


BROKEN = ["{", "[]", "7", '"x"', '{"numRecords":"2"}', '{"numRecords":-2}', "null", '{"numRecords":1e99}']


@pytest.mark.parametrize("stats", BROKEN)
def test_statistics_of_others_that_nobody_can_read_count_as_none(place: Place, stats: str) -> None:
    lived(place).close()
    pq.write_table(pa.table({"id": [5, 6]}), place.path / "x.parquet")
    body = {"path": "x.parquet", "partitionValues": {}, "modificationTime": 0, "dataChange": True, "stats": stats}
    append(place.path, {"add": {**body, "size": (place.path / "x.parquet").stat().st_size}})
    assert own_ids(place) == [0, 1, 5, 6]
    with place.sink() as sink:
        commit(sink, 2, 2, mode="overwrite")
    assert own_ids(place) == [2]


def test_rows_that_others_counted_wrongly_are_told_by_verify_as_by_the_reader(place: Place) -> None:
    lived(place).close()
    pq.write_table(pa.table({"id": [5, 6]}), place.path / "x.parquet")
    body = {"path": "x.parquet", "partitionValues": {}, "modificationTime": 0, "dataChange": True}
    size = (place.path / "x.parquet").stat().st_size
    append(place.path, {"add": {**body, "size": size, "stats": '{"numRecords":3}'}})
    with pytest.raises(CorruptError, match="holds 2 rows, 3 were recorded"):
        place.table().to_arrow()
    (problem,) = place.table().verify()
    assert problem == ("x.parquet", "it holds 2 rows, recorded 3")


def test_actions_that_are_null_are_none(place: Place) -> None:
    sink = lived(place)
    known = next(line["add"] for line in lines(place.path) if "add" in line)
    append(place.path, {"add": None, "remove": {"path": known["path"], "dataChange": True}}, {"txn": None})
    commit(sink, 2, 2)
    assert own_ids(place) == [1, 2]


def test_a_last_checkpoint_that_is_not_there_is_named_and_the_advice_leads_out(place: Place) -> None:
    lived(place).close()
    pointer = place.path / paths.DELTA_POINTER_PATH
    pointer.write_text('{"version":1,"size":3}')
    for again in (place.sink, place.table):
        with pytest.raises(CorruptError, match="names a checkpoint of version 1, and there is none") as found:
            again()
        assert found.value.advice.startswith(f"Delete {paths.DELTA_POINTER_PATH}")
    pointer.unlink()
    with place.sink() as sink:
        commit(sink, 2, 2)
    assert ids(place.path) == own_ids(place) == [0, 1, 2]


def first_row_deleted() -> str:
    """A deletion vector within the log: a bitmap of 64 bits with one of 32 bits in it, spelled in base 85."""
    bitmap = struct.pack("<IIHHIH", 12346, 1, 0, 0, 16, 0)
    data = struct.pack("<IQI", 1681511377, 1, 0) + bitmap + bytes(2)
    digits = string.digits + string.ascii_letters + ".-:+=^!/*?&<>()[]{}@%$#"
    words = struct.unpack(f">{len(data) // 4}I", data)
    return "".join(digits[word // 85**at % 85] for word in words for at in (4, 3, 2, 1, 0))


@pytest.mark.parametrize("has_vector", [False, True])
def test_files_with_deletion_vectors_are_refused_where_these_would_be_lost(place: Place, *, has_vector: bool) -> None:
    """Behind a checkpoint nobody tells which: an overwrite, which has to name them, and a reader are refused."""
    lived(place).close()
    features = ["deletionVectors"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}
    known = next(line["add"] for line in lines(place.path) if "add" in line)
    vector = {"storageType": "i", "pathOrInlineDv": first_row_deleted(), "sizeInBytes": 34, "cardinality": 1}
    actions: list[dict[str, Any]] = [{"protocol": protocol}]
    if has_vector:
        actions.append({"add": {**known, "deletionVector": vector}})
    append(place.path, *actions)
    deltalake.DeltaTable(str(place.path)).create_checkpoint()
    sink = place.sink()
    commit(sink, 2, 2)
    if has_vector:
        with pytest.raises(InvalidRequestError, match="deletionVectors"):
            place.table().to_arrow()
        with pytest.raises(InvalidRequestError, match="deletionVectors"):
            commit(sink, 3, 3, mode="overwrite")
        sink.abort(3)
    else:
        commit(sink, 3, 3, mode="overwrite")
        assert own_ids(place) == [3]


def test_a_deletion_vector_in_a_commit_is_not_read_past_and_goes_with_its_file(place: Place) -> None:
    lived(place).close()
    features = ["deletionVectors"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}
    known = next(line["add"] for line in lines(place.path) if "add" in line)
    vector = {"storageType": "i", "pathOrInlineDv": first_row_deleted(), "sizeInBytes": 34, "cardinality": 1}
    append(place.path, {"protocol": protocol}, {"add": {**known, "deletionVector": vector}})
    with pytest.raises(InvalidRequestError, match="deletionVectors"):
        place.table().to_arrow()
    place.write(2, {"id": [2]}, mode="overwrite")
    removed = {
        line["remove"]["path"]: line["remove"].get("deletionVector") for line in lines(place.path) if "remove" in line
    }
    assert removed.pop(known["path"]) == vector
    assert list(removed.values()) == [None]
    assert own_ids(place) == [2]


# -- checkpoints ------------------------------------------------------------------------------------------


def test_a_checkpoint_is_made_of_one_in_parts_elsewhere(place: Place) -> None:
    """Spark's newer checkpoints are a list of files below `_sidecars`."""
    sink = lived(place, 3)
    table = deltalake.DeltaTable(str(place.path))
    table.create_checkpoint()
    (classic,) = log_of(place.path).glob("*.checkpoint.parquet")
    content = pq.read_table(classic)
    (log_of(place.path) / "_sidecars").mkdir()
    sidecar = log_of(place.path) / "_sidecars" / "part.parquet"
    adds = content.select(["add"])
    pq.write_table(adds.filter(pa.compute.is_valid(adds["add"])), sidecar)
    named = {"path": "part.parquet", "sizeInBytes": sidecar.stat().st_size, "modificationTime": 0}
    features = ["v2Checkpoint"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}
    metadata = next(line["metaData"] for line in lines(place.path) if "metaData" in line)
    body = [{"checkpointMetadata": {"version": 2}}, {"protocol": protocol}, {"metaData": metadata}, {"sidecar": named}]
    body += {line["txn"]["appId"]: line for line in lines(place.path) if "txn" in line}.values()  # the newest of each
    classic.unlink()
    name = f"{2:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"
    (log_of(place.path) / name).write_text("".join(json.dumps(one) + "\n" for one in body))
    (place.path / paths.DELTA_POINTER_PATH).write_text('{"version":2,"size":6}')
    for version in range(3):
        (log_of(place.path) / f"{version:020d}.json").unlink()
    commit(sink, 3, 3)
    assert own_ids(place) == [0, 1, 2, 3]
    assert delta_upkeep.checkpoint(sink.publisher.delta) == 3  # type: ignore[attr-defined]
    assert [one.name[:20] for one in log_of(place.path).glob("*.checkpoint*.parquet")] == [f"{3:020d}"]
    assert own_ids(place) == [0, 1, 2, 3]


@pytest.mark.parametrize(("interval", "expected"), [("2", [2, 4]), (None, []), ("none", []), ("0", [])])
def test_a_checkpoint_is_made_as_often_as_the_table_says(
    place: Place, interval: str | None, expected: list[int]
) -> None:
    known = pa.schema([("id", pa.int64())])
    told = {} if interval is None else {"delta.checkpointInterval": interval}
    deltalake.DeltaTable.create(str(place.path), known)
    metadata = next(line["metaData"] for line in lines(place.path) if "metaData" in line)
    append(place.path, {"metaData": {**metadata, "configuration": told}})
    sink = place.sink()
    for epoch in range(4):
        commit(sink, epoch, epoch)
        delta_upkeep.finish(sink.publisher.delta)  # type: ignore[attr-defined]
    found = sorted(int(one.name[:20]) for one in log_of(place.path).glob("*.checkpoint.parquet"))
    assert len(found) == len(expected)
    assert ids(place.path) == own_ids(place) == [0, 1, 2, 3]


def test_a_checkpoint_too_large_to_copy_is_refused_by_name(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sink = lived(place)
    delta: DeltaLog = sink.publisher.delta  # type: ignore[attr-defined]
    delta_upkeep.checkpoint(delta)
    commit(sink, 2, 2)
    (made,) = log_of(place.path).glob("*.checkpoint.parquet")
    monkeypatch.setattr(delta_upkeep, "_FILE_BYTES_MAX", made.stat().st_size - 1)
    with pytest.raises(InvalidRequestError, match="is larger than") as found:
        delta_upkeep.checkpoint(delta)
    assert "create_checkpoint" in found.value.advice
    delta.commits = 100
    delta_upkeep.start(delta)
    delta_upkeep.finish(delta)
    assert "is larger than" in caplog.text
    assert ids(place.path) == own_ids(place) == [0, 1, 2]


# -- any order of both sinks ------------------------------------------------------------------------------

DEEDS = (
    "theirs 2",
    "theirs 3",
    "ours 2",
    "ours 3",
    "prepare 2",
    "prepare 3",
    "commit 3",
    "abort 2",
    "open",
    "rewind 1",
)
SEQUENCES, DEEDS_EACH = 40, 6


class BothSinks:
    """One stream, written by us and by Delta's own sink, which passes by what its record says is committed."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.sink = lived(place)
        self.ours: set[int] = {0, 1}
        self.theirs: set[int] = set()

    def act(self, deed: str) -> None:
        verb, _, text = deed.partition(" ")
        epoch = int(text or 0)
        pending = set(self.sink.pending) if verb == "commit" else set()
        if verb == "theirs":
            known = deltalake.DeltaTable(str(self.place.path)).transaction_version("w")
            if known is None or known < epoch:
                other_sink_commits(self.place.path, epoch)
                self.theirs.add(100 + epoch)
        elif verb == "ours":
            with self.sink.begin(epoch) as txn:
                txn.write({"id": [100 + epoch]})
            self.ours |= {100 + epoch} if txn.outcome == "committed" else set()
        elif verb == "rewind":
            self.sink.recover(epoch, "rewind")
            self.ours = {0, 1}
        elif verb == "open":
            self.sink = self.place.sink()
        elif verb == "prepare":
            txn = self.sink.begin(epoch)
            txn.write({"id": [100 + epoch]})
            txn.prepare()
        else:
            act(self.place, self.sink, deed)
            self.ours |= {100 + one for one in pending if one <= epoch}


def test_no_order_of_both_sinks_loses_or_doubles_an_epoch(tmp_path: Path) -> None:
    done = refused = 0
    for seed in range(SEQUENCES):
        chance = random.Random(seed)
        both = BothSinks(Place(tmp_path / f"t{seed}"))
        deeds = [chance.choice(DEEDS) for _ in range(DEEDS_EACH)]
        for deed in deeds:
            try:
                both.act(deed)
                done += 1
            except TxsinkError:
                refused += 1
            found = ids(both.place.path)
            assert len(found) == len(set(found)), (seed, deeds, deed, found)
            assert both.ours | both.theirs <= set(found), (seed, deeds, deed, found)
        for epoch in (2, 3):
            with suppress(TxsinkError):
                both.act(f"ours {epoch}")
        found = ids(both.place.path)
        assert len(found) == len(set(found)), (seed, deeds, found)
        assert found == own_ids(both.place)
    print(f"\n{SEQUENCES} sequences of both sinks: {done} deeds done, {refused} refused")
    assert done > refused > 0
