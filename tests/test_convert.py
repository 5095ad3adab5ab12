"""Conversion in place: from one layout to the other and back, whatever crashes, whoever writes meanwhile."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import delete_fence
import txsink
from crash import images, moments
from txsink import conversion as convert
from txsink.choices import Layout
from txsink.cli import commands
from txsink.cli.main import main
from txsink.delta.log import DeltaLog
from txsink.environment import stamps
from txsink.errors import ConflictError, CorruptError, InvalidRequestError
from txsink.log.entry import Convert
from txsink.log.log import Log
from txsink.log.state import fold
from txsink.store.local.store import LocalStore
from txsink.store.protocol import Store
from txsink.testing.crash_check import directory_ids
from txsink.testing.crash_world import World
from txsink.testing.faults import FaultyStore, crash_after, crash_before, delay
from txsink.testing.objects import Objects
from txsink.testing.simdisk import Crash, SimDisk
from txsink.writing.opening import open_sink

ROWS = Counter({1: 1, 11: 1, 20: 1, 21: 1, 90: 1})


def data(*ids: int) -> dict[str, list[Any]]:
    return {"id": list(ids), "day": ["ab"[one % 2] for one in ids]}


def made(path: Path, layout: Layout = "parquet") -> str:
    """A table with appends, a partition that was replaced, an empty epoch and an aborted one."""
    table = str(path / "t")
    for epoch in range(3):
        txsink.write(
            table, data(10 * epoch, 10 * epoch + 1), writer="w", epoch=epoch, partition_by=["day"], layout=layout
        )
    txsink.write(table, data(90), writer="w", epoch=3, mode="overwrite", partition_overwrite="dynamic")
    txsink.write(table, data(20), writer="other", epoch=0)
    with txsink.open_writer(table, "w") as sink:
        sink.begin(4).commit()
        txn = sink.begin(5)
        txn.write(data(77))
        txn.prepare()
        txn.abort()
    return table


def copied(template: str, place: Path) -> str:
    """The same table once more: it holds no path of its own."""
    shutil.copytree(Path(template).parent, place)
    return str(place / "t")


def ids(table: Any) -> Counter[int]:
    return Counter(pa.table(table)["id"].to_pylist())


def seen(path: str) -> Counter[int]:
    """What the table's own readers see, and the readers that its layout is for."""
    table = txsink.open_table(path)
    found = ids(table.to_arrow())
    if table.layout == "delta":
        assert ids(DeltaTable(path).to_pyarrow_table()) == found
    else:
        listed = duckdb.sql(f"select id from read_parquet('{path}/**/*.parquet')").fetchall()
        assert Counter(one for (one,) in listed) == found
    assert table.verify(deep=True) == []
    return found


def run(path: str, to: Layout, store: Store | None = None) -> convert.Converted:
    store = store or LocalStore()
    log = Log(store, store.resolve(path), stamps())
    log.load()
    delta = DeltaLog(store, log.root, stamps(), path)
    return convert.to_delta(log, delta) if to == "delta" else convert.to_parquet(log, delta)


@pytest.mark.parametrize("first", ["parquet", "delta"])
def test_a_table_is_converted_and_back_and_keeps_rows_epochs_and_versions(tmp_path: Path, first: Layout) -> None:
    path = made(tmp_path, first)
    assert seen(path) == ROWS
    before = txsink.open_table(path)
    rows = [before.to_arrow(version=at).num_rows for at in range(before.version + 1)]
    other: Layout = "delta" if first == "parquet" else "parquet"
    for number, to in enumerate((other, first, other)):
        assert run(path, to).layout == to
        assert seen(path) == ROWS + Counter(range(200, 200 + number))
        table = txsink.open_table(path)
        assert [table.to_arrow(version=at).num_rows for at in range(len(rows))] == rows
        assert txsink.write(path, data(21), writer="w", epoch=2).outcome == "already-committed"
        assert txsink.write(path, data(200 + number), writer="w", epoch=10 + number).outcome == "committed"
        assert run(path, to).layout == to  # once more: nothing is left to be done
    assert seen(path) == ROWS + Counter(range(200, 203))


def test_deltas_own_record_of_a_writer_is_that_of_the_log(tmp_path: Path) -> None:
    path = made(tmp_path)
    run(path, "delta")
    assert (DeltaTable(path).transaction_version("w"), DeltaTable(path).transaction_version("other")) == (4, 0)


@pytest.mark.parametrize("to", ["delta", "parquet"])
@pytest.mark.parametrize("when", [crash_before, crash_after])
def test_a_conversion_may_crash_at_any_store_call_and_is_finished_by_doing_it_again(
    tmp_path: Path, to: Layout, when: Any
) -> None:
    layout: Layout = "parquet" if to == "delta" else "delta"
    template = made(tmp_path / "0", layout)
    for call in itertools.count(1):
        path = copied(template, tmp_path / str(call))
        store = FaultyStore(LocalStore(), [when(call)])
        try:
            run(path, to, store)
        except Crash:
            store.check_delivered()
        else:
            break
        table = txsink.open_table(path)
        assert ids(table.to_arrow()) == ROWS
        if table.layout != "parquet":
            assert ids(DeltaTable(path).to_pyarrow_table()) == ROWS
        expected = Counter(ROWS)
        if table.layout == "closed":
            with pytest.raises(ConflictError, match="stopped half-way"):
                txsink.write(path, data(300), writer="w", epoch=20)
            if call % 2:
                run(path, "delta")  # back
        if table.layout != "closed" or call % 2:
            txsink.write(path, data(300), writer="w", epoch=20)
            expected[300] += 1
        run(path, to)
        assert seen(path) == expected
        left = {at.relative_to(path).parts[0] for at in Path(path).rglob("*") if at.is_file()}
        assert ("_delta_log" in left) is (to == "delta")
    assert call > 10


@pytest.mark.parametrize("to", ["delta", "parquet"])
def test_an_epoch_that_is_committed_at_any_store_call_of_a_conversion_is_in_it(tmp_path: Path, to: Layout) -> None:
    layout: Layout = "parquet" if to == "delta" else "delta"
    template = made(tmp_path / "0", layout)
    for call in itertools.count(1):
        path = copied(template, tmp_path / str(call))
        write = partial(txsink.write, path, data(300), writer="w", epoch=20)
        store = FaultyStore(LocalStore(), [delay(call, write)])
        closed = False
        try:
            run(path, to, store)
        except ConflictError as error:
            closed = "stopped half-way" in str(error)  # what the writer was told, who came while the table was closed
            assert closed
            run(path, to)
        if not store.delivered:
            break
        assert seen(path) == ROWS + Counter({} if closed else {300: 1})
    assert call > 10


@pytest.mark.parametrize("to", ["delta", "parquet"])
def test_a_conversion_at_any_store_call_of_a_writer_takes_its_epoch_along_or_refuses_it(
    tmp_path: Path, to: Layout
) -> None:
    layout: Layout = "parquet" if to == "delta" else "delta"
    template = made(tmp_path / "0", layout)
    outcomes = Counter[str]()
    for call in itertools.count(1):
        path = copied(template, tmp_path / str(call))

        def conversion(path: str = path) -> None:
            with suppress(ConflictError):  # an epoch is pending
                run(path, to)

        store = FaultyStore(LocalStore(), [delay(call, conversion)])
        outcome = "refused"
        try:
            with open_sink(store, stamps(), path, "slow", {}) as sink:
                txn = sink.begin(0)
                try:
                    txn.write(data(400))
                    txn.commit()
                finally:
                    outcome = txn.outcome
        except ConflictError as error:
            assert "was converted" in str(error)  # noqa: PT017 -- both outcomes are right
            outcome = "refused" if outcome == "open" else outcome
        outcomes[outcome] += 1
        run(path, to)
        assert seen(path) == ROWS + Counter({400: 1} if outcome == "committed" else {})
        if not store.delivered:
            break
    assert outcomes["committed"] > 10
    assert outcomes["refused"] > 5


def test_a_conversion_that_dies_just_before_an_epoch_is_prepared_takes_none_of_its_files(tmp_path: Path) -> None:
    template = made(tmp_path / "0")

    def write(path: str, store: FaultyStore) -> str:
        with open_sink(store, stamps(), path, "slow", {}) as sink:
            txn = sink.begin(0)
            txn.write(data(400))
            with suppress(ConflictError):
                txn.commit()
        return txn.outcome

    dry = FaultyStore(LocalStore())
    write(copied(template, tmp_path / "dry"), dry)
    puts = [at for at, (verb, where) in enumerate(dry.trace, 1) if verb == "put_if_absent" and "/log/" in where]
    outcomes = Counter[str]()
    for call in itertools.count(1):
        path = copied(template, tmp_path / str(call))
        dying = FaultyStore(LocalStore(), [crash_before(call)])

        def conversion(path: str = path, dying: Store = dying) -> None:
            with suppress(Crash):
                run(path, "delta", dying)

        outcome = write(path, FaultyStore(LocalStore(), [delay(puts[1], conversion)]))  # after the claim: prepare
        outcomes[outcome] += 1
        run(path, "delta")
        assert seen(path) == ROWS + Counter({400: 1} if outcome == "committed" else {})
        if not dying.delivered:
            break
    assert min(outcomes["committed"], outcomes["aborted"]) > 1


def test_no_power_cut_in_a_conversion_shows_a_directory_reader_what_was_replaced() -> None:
    world = World(SimDisk(), table_layout="delta")
    writer = world.open()
    writer.commit(0, (0, 1))
    writer.commit(1, (2, 3), mode="overwrite")
    writer.sink.close()

    def to_parquet(world: World) -> None:
        log = world.reader()
        convert.to_parquet(log, DeltaLog(log.store, log.root, log.stamps, log.root))

    shown = 0
    for number, moment in enumerate(moments(world, to_parquet)):
        for image in images(moment, f"convert-{number}", 4):
            files = image.files()
            if any(path.endswith(".json") and b'"layout":"parquet"' in data for path, data in files.items()):
                shown += 1
                assert directory_ids(files) == Counter((2, 3))
    assert shown > 10


@pytest.mark.parametrize("to", ["delta", "parquet"])
def test_a_writer_that_was_open_is_refused_at_its_next_prepare_and_can_open_again(tmp_path: Path, to: Layout) -> None:
    path = made(tmp_path, "parquet" if to == "delta" else "delta")
    sink = txsink.open_writer(path, "slow")
    early, late = sink.begin(0), sink.begin(1)
    early.write(data(400))
    early._stager.finish() if early._stager else None  # whole files, which the conversion finds
    run(path, to)
    for txn in (early, late):
        with pytest.raises(ConflictError, match=f"it was converted to the layout {to} meanwhile"):
            txn.prepare()
    sink.close()
    with txsink.open_writer(path, "slow") as again, again.begin(0) as txn:
        txn.write(data(400))
    assert seen(path) == ROWS + Counter({400: 1})


@pytest.mark.parametrize("how", ["opening", "sweep"])
@pytest.mark.parametrize("is_marked", [False, True], ids=["first file", "later file"])
def test_what_a_run_stages_after_its_table_became_parquet_is_swept_before_its_epoch_is_replayed(
    tmp_path: Path, how: str, *, is_marked: bool
) -> None:
    """I1: it lies under a final name, where readers of the directory take it for rows, and the run died."""
    path = made(tmp_path, "delta")
    dead = txsink.open_writer(path, "slow")
    txn = dead.begin(0)
    stagers = [txn.stager() for _ in range(is_marked)]
    run(path, "parquet")
    (stagers or [txn.stager()])[0].stage(data(400))
    assert any("no log entry names it" in problem.what for problem in txsink.open_table(path).verify())
    if how == "sweep":  # not even the run that holds the writer can prepare it; the mark stays as long as that may live
        assert commands.sweep(path, None, yes=False).data["deletes"]["files"] == 1
        assert commands.sweep(path, None, yes=True).data["deleted"] == 1
        assert len([*Path(path).glob("_txsink/staged/slow/*")]) == 1
        with txsink.open_writer(path, "slow", recover=False, run="next") as again:
            again.sweep()
    else:
        txsink.open_writer(path, "slow").close()
    assert seen(path) == ROWS
    txsink.write(path, data(400), writer="slow", epoch=0)
    assert seen(path) == ROWS + Counter({400: 1})
    assert commands.sweep(path, "slow", yes=True).data["plan"] == []
    assert [one for one in Path(path).glob("_txsink/staged/*/*") if one.parent.name == "slow"] == []


def test_the_command_line_sweeps_what_a_run_that_never_claimed_left_under_a_final_name(tmp_path: Path) -> None:
    path = made(tmp_path, "delta")
    txn = open_sink(LocalStore(), stamps(), path, "slow", {}, is_one_shot=True).begin(0)
    stager = txn.stager()
    run(path, "parquet")
    stager.stage(data(400))
    plan = commands.sweep(path, "slow", yes=False).data["plan"]
    assert [step["action"] for step in plan] == ["retire its run, then delete"] * 2, "a file and the mark"
    assert all(step["bytes"] > 0 for step in plan if step["path"].endswith(".parquet"))
    assert commands.sweep(path, None, yes=True).data["deleted"] == 2
    assert seen(path) == ROWS


def test_what_is_pending_has_to_be_finished_first(tmp_path: Path) -> None:
    path = made(tmp_path)
    with txsink.open_writer(path, "slow") as sink:
        txn = sink.begin(0)
        txn.write(data(1))
        txn.prepare()
        with pytest.raises(ConflictError, match="transactions of slow are not finished"):
            run(path, "delta")


def test_files_of_other_programs_keep_a_delta_table_from_becoming_a_directory(tmp_path: Path) -> None:
    path = made(tmp_path, "delta")
    write_deltalake(path, pa.table(data(500)), mode="append")
    with pytest.raises(ConflictError, match="1 of its files were written or removed by other programs"):
        run(path, "parquet")
    assert seen(path) == ROWS + Counter({500: 1})


def test_another_delta_table_in_the_place_is_left_alone(tmp_path: Path) -> None:
    path = made(tmp_path)
    write_deltalake(path, pa.table(data(500)), mode="append", partition_by=["day"])
    with pytest.raises(ConflictError, match="another Delta table lies there"):
        run(path, "delta")


def test_a_table_without_columns_cannot_be_converted_yet(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    txsink.open_writer(path, "w").close()
    with pytest.raises(InvalidRequestError, match="it has no columns yet"):
        run(path, "delta")


def test_the_command_line_converts_verifies_and_makes_checkpoints(tmp_path: Path) -> None:
    path = made(tmp_path)
    with pytest.raises(InvalidRequestError, match="its layout is parquet"):
        commands.checkpoint(path)
    assert commands.convert(path, "delta", yes=False).data["is_dry_run"]
    assert txsink.open_table(path).layout == "parquet"
    assert commands.convert(path, "delta", yes=True).data["problems"] == []
    assert commands.convert(path, "delta", yes=True).text == ["It is delta already."]
    assert commands.checkpoint(path).data["delta_version"] == DeltaTable(path).version()
    assert commands.convert(path, "parquet", yes=True).data["layout"] == "parquet"
    assert seen(path) == ROWS


def test_no_log_is_believed_that_changes_its_layout_while_something_is_pending(tmp_path: Path) -> None:
    with txsink.open_writer(made(tmp_path), "slow") as sink:
        txn = sink.begin(0)
        txn.write(data(1))
        txn.prepare()
        state = sink.log.state
        given: dict[str, Any] = {"format": 1, "version": state.version + 1, "time_ms": 0, "previous": state.digest}
        given |= {"table_id": state.table_id, "birth": state.birth}
        with pytest.raises(CorruptError, match="while transactions are pending"):
            fold(state, Convert(**given, write_id="ff", layout="delta"), "")


def test_an_epoch_that_delta_has_is_committed_by_the_abort_that_comes_too_late(tmp_path: Path) -> None:
    path = made(tmp_path, "delta")
    with txsink.open_writer(path, "slow") as sink:
        txn = sink.begin(0)
        txn.write(data(400))
        txn.prepare()
        sink.publisher.publish(sink.log.prepare_entry(sink.log.state.pending[0].prepared))
        with pytest.raises(ConflictError, match="it was published, and is committed now"):
            sink.abort(0)
        assert (sink.last_epoch, sink.pending) == (0, [])
    assert seen(path) == ROWS + Counter({400: 1})


# -- whose files the conversion takes away -------------------------------------------------------------------


def grown(tmp_path: Path) -> str:
    """A Delta table, and what a dead run staged in it."""
    path = made(tmp_path, "delta")
    dead = txsink.open_writer(path, "dead")
    txn = dead.begin(0)
    txn.add(txn.stager().stage(data(700)))
    return path


def test_a_conversion_to_parquet_takes_away_only_what_the_logs_prove(tmp_path: Path) -> None:
    """I15: of tables below it, and of anybody's hidden files, nothing."""
    path = grown(tmp_path)
    nested, delta_table = f"{path}/day=a/nested", f"{path}/their/delta"
    (tmp_path / "aside").mkdir()
    txsink.write(tmp_path / "aside" / "nested", data(1, 2), writer="w", epoch=0)
    Path(nested).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "aside" / "nested").rename(nested)
    write_deltalake(delta_table, pa.table(data(5)))
    hidden = Path(path) / "_mine" / "report.parquet"
    hidden.parent.mkdir()
    hidden.write_text("mine")
    run(path, "parquet")
    assert ids(txsink.open_table(path).to_arrow()) == ROWS
    assert ids(txsink.open_table(nested).to_arrow()) == Counter([1, 2])
    assert ids(DeltaTable(delta_table).to_pyarrow_table()) == Counter([5])
    assert hidden.read_text() == "mine"
    assert not (Path(path) / "_delta_log").exists()
    own = [one for one in Path(path).rglob("*.parquet") if "their" not in one.parts and "nested" not in one.parts]
    assert len([one for one in own if "_mine" not in one.parts]) == len(txsink.open_table(path).files())


@pytest.mark.parametrize("name", ["report.parquet", "day=a/part-00000-of-a-friend.snappy.parquet", "notes.txt"])
def test_a_conversion_to_parquet_is_refused_before_anything_is_changed_where_files_of_others_would_be_read(
    tmp_path: Path, name: str
) -> None:
    path = grown(tmp_path)
    theirs = Path(path) / name
    theirs.parent.mkdir(exist_ok=True)
    theirs.write_text("theirs")
    before = {one: one.read_bytes() for one in Path(path).rglob("*") if one.is_file()}
    with pytest.raises(ConflictError, match=f"1 files are there that neither log names, {name} for one"):
        run(path, "parquet")
    assert {one: one.read_bytes() for one in Path(path).rglob("*") if one.is_file()} == before
    theirs.unlink()
    run(path, "parquet")
    assert seen(path) == ROWS


def test_the_log_of_another_delta_table_is_never_deleted(tmp_path: Path) -> None:
    """Somebody writes Delta's log over a table that has the parquet layout."""
    path = made(tmp_path)
    write_deltalake(path, pa.table(data(5)), mode="append")
    before = sorted((Path(path) / "_delta_log").rglob("*"))
    with pytest.raises(ConflictError, match="it is the log of another Delta table"):
        run(path, "parquet")
    assert sorted((Path(path) / "_delta_log").rglob("*")) == before


def test_the_plan_of_a_conversion_counts_what_it_deletes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = grown(tmp_path)
    assert main(["convert", path, "--to", "parquet", "--output", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    log_files = [one for one in (Path(path) / "_delta_log").rglob("*") if one.is_file()]
    steps = {step["path"]: step for step in plan["plan"] if "path" in step}
    assert steps["_delta_log/"]["files"] == len(log_files), "the marks of runs that may live stay"
    assert steps["former files of the table"]["files"] == 1, "what the dead run staged"
    assert plan["deletes"]["files"] == len(log_files) + 1
    assert plan["deletes"]["bytes"] > sum(one.stat().st_size for one in log_files)
    assert main(["convert", path, "--to", "parquet"]) == 0
    told = capsys.readouterr().out
    assert f"To be deleted: {len(log_files) + 1} files, {plan['deletes']['bytes']} bytes." in told


def test_a_table_in_a_bucket_is_converted_to_parquet_though_nothing_can_be_moved_there() -> None:
    world = World(Objects(), table_layout="delta")
    writer = world.open()
    writer.commit(0, (0, 1))
    writer.commit(1, (2, 3), mode="overwrite")
    writer.sink.close()
    log = world.reader()
    convert.to_parquet(log, DeltaLog(log.store, log.root, log.stamps, log.root))
    assert (world.reader().state.layout, directory_ids(world.disk.files())) == ("parquet", Counter((2, 3)))
    assert not [path for path in world.disk.files() if "/_delta_log/" in path]
    writer = World(world.disk, world.truth, 9, table_layout="parquet").open(layout="parquet")
    writer.commit(2, (4, 5))
    assert directory_ids(world.disk.files()) == Counter((2, 3, 4, 5))


def test_files_that_only_a_checkpoint_tells_were_removed_leave_with_the_conversion(tmp_path: Path) -> None:
    """Another program's file that an overwrite replaced, in a log whose first commits were cleaned up."""
    path = made(tmp_path, "delta")
    write_deltalake(path, pa.table(data(500)), mode="append")
    txsink.write(path, data(600), writer="w", epoch=30, mode="overwrite")
    DeltaTable(path).create_checkpoint()
    for version in range(3):
        (Path(path) / "_delta_log" / f"{version:020d}.json").unlink()
    with delete_fence.holding(rf"{re.escape(path)}/day=a/part-.*\.snappy\.parquet"):
        run(path, "parquet")
    assert seen(path) == Counter([600])
