"""Other programs commit to a Delta table in the middle of ours, at every single store call (I1, I5, I14, I15)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from place import Place
from txsink.errors import ConflictError, InvalidRequestError, TxsinkError
from txsink.store.local.store import LocalStore
from txsink.testing.faults import FaultyStore, delay, lose_answer
from txsink.writing.opening import open_sink
from txsink.writing.writer import Writer

Foreign = Callable[[Path], object]


def table_of(path: Path) -> Any:
    return deltalake.DeltaTable(str(path))


def ids(path: Path) -> list[int]:
    return sorted(pa.table(table_of(path).to_pyarrow_table())["id"].to_pylist())


def data(*rows: int) -> pa.Table:
    return pa.table({"id": pa.array(rows, pa.int64()), "day": [f"d{row % 2}" for row in rows]})


def opened(place: Place, store: Any = None, writer: str = "w", **options: Any) -> Writer:
    return open_sink(store or LocalStore(), place.stamps, str(place.path), writer, {"layout": "delta", **options})


def commit(sink: Writer, epoch: int, *rows: int, **options: Any) -> None:
    with sink.begin(epoch, **options) as txn:
        txn.write(data(*rows))


# -- what others do ---------------------------------------------------------------------------------------


def appends(path: Path) -> None:
    deltalake.write_deltalake(str(path), data(100), mode="append")


def deletes_a_file(path: Path) -> None:
    table_of(path).delete("id >= 2 and id < 4")


def deletes_a_row(path: Path) -> None:
    table_of(path).delete("id = 0")


def updates(path: Path) -> None:
    table_of(path).update(predicate="id = 0", updates={"id": "0"})


def compacts(path: Path) -> None:
    table_of(path).optimize.compact()


def vacuums(path: Path) -> None:
    table_of(path).vacuum(dry_run=False)


def sets_a_property(path: Path) -> None:
    table_of(path).alter.set_table_properties({"delta.logRetentionDuration": "interval 60 days"})


def uses_our_writer_name(path: Path) -> None:
    properties = deltalake.CommitProperties(app_transactions=[deltalake.Transaction("w", 2)])
    deltalake.write_deltalake(str(path), data(200), mode="append", commit_properties=properties)


def interrupted(place: Place, act: Callable[[Writer], object], foreign: Foreign, **options: Any) -> Iterator[Writer]:
    """The writer after its act, each store call of which the other one came before; two files are there."""
    parent = place.path.parent
    for call in range(1, 200):
        place.path = parent / f"t{call}"
        store = FaultyStore(LocalStore())
        sink = opened(place, store, **options)
        commit(sink, 0, 0, 1)
        commit(sink, 1, 2, 3)
        store.plan.append(delay(store.calls + call, lambda: foreign(place.path)))
        act(sink)
        if not store.delivered:
            assert call > 8
            return
        yield sink
        sink.close()
        versions = sorted(int(one.name[:20]) for one in (place.path / "_delta_log").glob("*.json"))
        assert versions == list(range(len(versions)))


@pytest.mark.parametrize(
    ("foreign", "expected"),
    [
        (appends, [0, 1, 2, 3, 7, 100]),
        (deletes_a_file, [0, 1, 7]),
        (deletes_a_row, [1, 2, 3, 7]),
        (updates, [0, 1, 2, 3, 7]),
        (compacts, [0, 1, 2, 3, 7]),
        (vacuums, [0, 1, 2, 3, 7]),
        (sets_a_property, [0, 1, 2, 3, 7]),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_an_append_never_conflicts_with_what_others_do(place: Place, foreign: Foreign, expected: list[int]) -> None:
    for sink in interrupted(place, lambda sink: commit(sink, 2, 7), foreign):
        assert ids(place.path) == expected
        assert sink.last_epoch == 2


@pytest.mark.parametrize("partition_overwrite", ["static", "dynamic"])
@pytest.mark.parametrize("foreign", [appends, deletes_a_file, deletes_a_row, compacts], ids=lambda one: one.__name__)
def test_an_overwrite_follows_what_others_did_or_is_a_conflict_that_can_be_aborted(
    place: Place, foreign: Foreign, partition_overwrite: str
) -> None:
    def overwrite(sink: Writer) -> None:
        conflicts.append(0)
        try:
            commit(sink, 2, 7, mode="overwrite", partition_overwrite=partition_overwrite)
        except ConflictError:
            conflicts[-1] = 1
            sink.abort(2)
            commit(sink, 2, 7, mode="overwrite", partition_overwrite=partition_overwrite)

    conflicts: list[int] = []
    by = ["day"] if partition_overwrite == "dynamic" else None
    others: dict[Foreign, list[int]] = {deletes_a_file: [0], deletes_a_row: [2]}
    kept = [] if by is None else others.get(foreign, [0, 2])
    seen = set()
    for _ in interrupted(place, overwrite, foreign, partition_by=by):
        found = ids(place.path)
        seen.add(tuple(found))
        allowed = [sorted([*kept, 7])]
        if foreign is appends:  # before the prepare, or after it; it is of another partition than what is replaced
            allowed = [sorted([*kept, 7, 100])] + ([[7]] if by is None else [])
        assert found in allowed
    assert len(seen) == (2 if foreign is appends and by is None else 1)
    assert any(conflicts) is (foreign is deletes_a_row and by is None)


def test_an_overwrite_replaces_what_another_program_deleted_and_brought_back_since(place: Place) -> None:
    """RESTORE adds files that the table held when the overwrite was prepared: no append."""
    sink = opened(place)
    commit(sink, 0, 0, 1)
    appends(place.path)
    txn = sink.begin(1, mode="overwrite")
    txn.write(data(7))
    txn.prepare()
    before = table_of(place.path).version()
    table_of(place.path).delete("id = 100")
    table_of(place.path).restore(before)
    deltalake.write_deltalake(str(place.path), data(101), mode="append")
    assert ids(place.path) == [0, 1, 100, 101]
    sink.commit(1)
    assert ids(place.path) == [7, 101]


@pytest.mark.parametrize("foreign", [appends, compacts], ids=lambda one: one.__name__)
def test_a_rewind_takes_back_its_own_files_or_is_a_conflict_that_can_be_aborted(place: Place, foreign: Foreign) -> None:
    def rewind(sink: Writer) -> None:
        conflicts.append(0)
        try:
            sink.recover(0, "rewind")
        except ConflictError:
            conflicts[-1] = 1
            sink.abort(0)

    conflicts: list[int] = []
    for sink in interrupted(place, rewind, foreign):
        kept = [0, 1, 2, 3] if conflicts[-1] or sink.last_epoch == 1 else [0, 1]
        assert ids(place.path) == [*kept, *([100] if foreign is appends else [])]
        assert sink.pending == []
    assert any(conflicts) is (foreign is compacts)


def test_an_epoch_that_another_program_committed_is_never_committed_twice_nor_skipped(place: Place) -> None:
    """Delta's own sink goes on under our writer's name in the middle of our epoch 2."""

    def go_on(sink: Writer) -> None:
        with suppress(ConflictError):
            commit(sink, 2, 7)

    for sink in interrupted(place, go_on, uses_our_writer_name):
        found = ids(place.path)
        # Ours, and then theirs by their own choice; or theirs alone.
        assert found in ([0, 1, 2, 3, 200], [0, 1, 2, 3, 7, 200])
        told = [json.loads(line) for line in _lines(place.path)]
        order = [one["txn"]["version"] for one in told if one.get("txn", {}).get("appId") == "w"]
        assert order.count(2) == 1 + (7 in found)
        assert (sink.last_epoch, sink.pending) == (2, [])
        commit(sink, 3, 8)
        assert ids(place.path) == sorted([*found, 8])


def _lines(path: Path) -> list[str]:
    return [line for one in sorted((path / "_delta_log").glob("*.json")) for line in one.read_text().splitlines()]


def test_a_lost_answer_of_a_delta_commit_is_found_out_while_others_commit(place: Place) -> None:
    def prepared(name: str) -> tuple[Writer, FaultyStore]:
        place.path = place.path.parent / name
        store = FaultyStore(LocalStore())
        sink = opened(place, store)
        commit(sink, 0, 0)
        txn = sink.begin(1)
        txn.write(data(1))
        txn.prepare()
        return sink, store

    sink, store = prepared("twin")
    before = store.calls
    sink.commit(1)
    (put,) = [
        at
        for at, (verb, path) in enumerate(store.trace[before:], 1)
        if verb == "put_if_absent" and "_delta_log" in path
    ]
    for raises in (False, True):
        sink, store = prepared(f"lost{raises}")
        store.plan.append(lose_answer(store.calls + put, raises=raises))
        store.plan.append(delay(store.calls + put + 1, lambda: appends(place.path)))
        with suppress(TxsinkError):
            sink.commit(1)
        again = opened(place, store)
        store.check_delivered()
        assert (again.last_epoch, again.pending) == (1, [])
        assert ids(place.path) == [0, 1, 100]


# -- what others make of the table ------------------------------------------------------------------------


def changed(path: Path, *actions: dict[str, Any]) -> None:
    """Another engine commits these actions."""
    version = table_of(path).version() + 1
    text = "".join(json.dumps(one) + "\n" for one in ({"commitInfo": {"operation": "ALTER"}}, *actions))
    (path / "_delta_log" / f"{version:020d}.json").write_text(text)


def metadata_of(path: Path) -> dict[str, Any]:
    found = [json.loads(line)["metaData"] for line in _lines(path) if "metaData" in line]
    return dict(found[-1])


def with_property(name: str, value: str) -> Foreign:
    def change(path: Path) -> None:
        known = metadata_of(path)
        changed(path, {"metaData": {**known, "configuration": {**known["configuration"], name: value}}})

    return change


def with_field(**more: Any) -> Foreign:
    def change(path: Path) -> None:
        known = metadata_of(path)
        schema = json.loads(known["schemaString"])
        schema["fields"][0] |= more
        changed(path, {"metaData": {**known, "schemaString": json.dumps(schema)}})

    return change


def with_features(*names: str) -> Foreign:
    def change(path: Path) -> None:
        protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": list(names)}
        changed(path, {"protocol": protocol})

    return change


REFUSED = {
    "checkConstraints": with_property("delta.constraints.c", "id > 0"),
    "columnMapping": with_property("delta.columnMapping.mode", "name"),
    "rowTracking": with_property("delta.enableRowTracking", "true"),
    "icebergCompatV1": with_property("delta.enableIcebergCompatV1", "true"),
    "icebergCompatV2": with_property("delta.enableIcebergCompatV2", "true"),
    "delta.setTransactionRetentionDuration": with_property("delta.setTransactionRetentionDuration", "interval 1 day"),
    "generatedColumns": with_field(metadata={"delta.generationExpression": "1"}),
    "identityColumns": with_field(metadata={"delta.identity.start": 1}),
    "invariants": with_field(metadata={"delta.invariants": "{}"}),
    "clustering": with_features("clustering"),
    "typeWidening": with_features("typeWidening"),
    "notInventedYet": with_features("notInventedYet"),
    "inCommitTimestamp": with_property("delta.enableInCommitTimestamps", "true"),
}
REFUSES_ABORTS = {"inCommitTimestamp", "notInventedYet"}  # they may ask for something of every commit


@pytest.mark.parametrize("name", REFUSED)
def test_what_we_do_not_do_is_refused_by_name_before_and_after_the_prepare(place: Place, name: str) -> None:
    sink = opened(place)
    commit(sink, 0, 0)
    txn = sink.begin(1)
    txn.write(data(1))
    txn.prepare()
    REFUSED[name](place.path)
    for again in (lambda: sink.commit(1), lambda: opened(place)):
        with pytest.raises(InvalidRequestError, match=name):
            again()
    late = opened(place, recover=False)
    if name in REFUSES_ABORTS:
        with pytest.raises(InvalidRequestError, match=name):
            late.abort(1)
        return
    late.abort(1)
    assert late.pending == []
    with pytest.raises(InvalidRequestError, match=name):
        commit(late, 1, 1)


@pytest.mark.parametrize("mode", ["overwrite", "rewind"])
def test_a_table_that_only_grows_takes_no_overwrite_and_no_rewind(place: Place, mode: str) -> None:
    sink = opened(place)
    for epoch in (0, 1):
        commit(sink, epoch, epoch)
    with_property("delta.appendOnly", "true")(place.path)
    if mode == "rewind":
        with pytest.raises(InvalidRequestError, match=r"delta\.appendOnly"):
            sink.recover(0, "rewind")
        sink.abort(0)
    else:
        with pytest.raises(InvalidRequestError, match=r"delta\.appendOnly"):
            commit(sink, 2, 7, mode="overwrite")
    commit(sink, 2, 2)
    assert ids(place.path) == [0, 1, 2]


CONFLICTS = {
    "another type": (with_field(type="string"), "of type string"),
    "another name": (with_field(name="key"), "'id'"),
    "no nulls": (with_field(nullable=False), "takes no nulls"),
}


@pytest.mark.parametrize("name", CONFLICTS)
def test_files_that_the_table_has_no_room_for_any_more_are_refused_and_the_epoch_can_be_aborted(
    place: Place, name: str
) -> None:
    change, text = CONFLICTS[name]
    sink = opened(place)
    commit(sink, 0, 0)
    txn = sink.begin(1)
    txn.write(pa.table({"id": pa.array([None, 1], pa.int64()), "day": ["a", "b"]}))
    txn.prepare()
    change(place.path)
    with pytest.raises((ConflictError, InvalidRequestError), match=text):
        sink.commit(1)
    sink.abort(1)
    assert sink.pending == []
    assert sorted(one.name[:6] for one in place.path.glob("*.parquet")) == ["part-0"]


def test_a_delta_log_that_is_gone_is_damage_and_no_new_table(place: Place) -> None:
    sink = opened(place)
    commit(sink, 0, 0)
    txn = sink.begin(1)
    txn.write(data(1))
    txn.prepare()
    for one in (place.path / "_delta_log").iterdir():
        one.unlink()
    for attempt in (lambda: sink.commit(1), lambda: opened(place)):
        with pytest.raises(TxsinkError, match="Delta log is gone"):
            attempt()
    late = opened(place, recover=False)
    late.abort(1)
    with pytest.raises(TxsinkError, match="Delta log is gone"):
        commit(late, 1, 1)
    assert not list((place.path / "_delta_log").iterdir())
