"""A Delta log that lost its newest commits, and txsink's alone, gets them again by `txsink repair` (I1, I2, I3)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from advice import advised
from place import Place, commit, prepared, rows, tree
from seen import small_blocks
from test_delta_older_log import DELTAS, LAST, OWN, SEEN, by_others, ids, lived, own_ids, replayed
from txsink.choices import Mode
from txsink.cli import commands_repair
from txsink.cli.commands_repair import repair as command
from txsink.log import expiry
from txsink.publish.delta import again as delta_again
from txsink.store.local.store import LocalStore
from txsink.testing.faults import FaultyStore, crash_before
from txsink.testing.simdisk import Crash
from txsink.upkeep import repair

__all__ = ["small_blocks"]


def run(place: Place, *, yes: bool = True) -> dict[str, Any]:
    return command(str(place.path), yes=yes).data


def commits(place: Place) -> list[Path]:
    return sorted((place.path / DELTAS).glob("*.json"))


def lose(place: Place, after: int) -> None:
    """The newest commits of Delta's log, as when an older copy of it is put in its place."""
    for path in commits(place)[after + 1 :]:
        path.unlink()


def shown(place: Place) -> list[list[str]]:
    """The files at every version of the Delta table."""
    last = deltalake.DeltaTable(str(place.path)).version()
    return [sorted(deltalake.DeltaTable(str(place.path), version).file_uris()) for version in range(last + 1)]


def copied_to(place: Place, name: str) -> Path:
    return Path(shutil.copytree(place.path, place.path.with_name(name)))


def back_from(place: Place, copy: Path) -> None:
    shutil.rmtree(place.path)
    shutil.copytree(copy, place.path)


def steps(data: dict[str, Any], action: str) -> list[str]:
    return [step["what"] for step in data["plan"] if step["action"] == action]


# -- all that was lost was ours ----------------------------------------------------------------------------


def test_at_every_version_what_was_lost_is_committed_again_under_its_number(place: Place) -> None:
    """Aborts, overwrites and two writers among it; also when nothing of Delta's log is left."""
    for _ in lived(place):
        pass
    whole, last = copied_to(place, "whole"), len(commits(place)) - 1
    expected = shown(place)
    for version in range(-1, last):
        back_from(place, whole)
        lose(place, version)
        before = tree(place.path)
        plan = run(place, yes=False)
        assert tree(place.path) == before
        assert len(steps(plan, repair.COMMIT_AGAIN)) == len(plan["plan"]) == last - version
        done = run(place)
        assert (done["problems"], place.table().verify(deep=True)) == ([], [])
        assert shown(place) == expected
        assert ids(place.path) == own_ids(place) == SEEN
        assert run(place)["plan"] == []
        replayed(place)
        assert ids(place.path) == own_ids(place) == [*SEEN, LAST + 1]
        assert place.table().verify() == []


def test_what_is_pending_is_committed_after_what_was_lost(place: Place) -> None:
    sink = place.sink(layout="delta")
    commit(sink, 0, 1)
    prepared(sink, 2, rows(2))
    lose(place, 0)
    run(place)
    place.sink().close()
    assert ids(place.path) == own_ids(place) == [0, 1, 2]


def test_rewinds_and_new_columns_are_made_again_as_they_were(place: Place) -> None:
    sink = place.sink(layout="delta", merge_schema=True, partition_by=["day"])
    for epoch in (0, 1, 2):
        with sink.begin(epoch) as txn:
            txn.write({"id": [epoch], "day": [f"a b%{epoch}"], f"c{epoch}": [epoch]})
    sink.recover(1, "rewind")
    epochs: list[tuple[int, Mode]] = [(2, "append"), (3, "overwrite")]
    for epoch, mode in epochs:
        with sink.begin(epoch, mode=mode, partition_overwrite="dynamic" if mode == "overwrite" else "static") as txn:
            txn.write({"id": [10 * epoch], "day": ["a b%1"]})
    expected, whole = shown(place), copied_to(place, "whole")
    for version in range(-1, len(expected) - 1):
        back_from(place, whole)
        lose(place, version)
        assert run(place)["problems"] == []
        assert shown(place) == expected
        assert place.table().schema == whole_schema(whole)
    with place.sink() as again, again.begin(4) as txn:
        txn.write({"id": [4], "day": ["x"], "c2": [4]})
    assert ids(place.path) == own_ids(place) == [0, 4, 30]


def whole_schema(whole: Path) -> pa.Schema:
    return Place(whole).table().schema


def test_an_epoch_that_another_process_found_published_is_among_what_is_made_again(place: Place) -> None:
    """Its commit entry tells of a later version than its own: of one that another writer had committed since."""
    sink = place.sink(layout="delta")
    commit(sink, 0)
    sink.publisher.publish(prepared(sink, 1, rows(1)))  # and the process died before its commit entry
    with place.sink("v") as other:
        commit(other, 100)
    place.sink().close()
    expected = shown(place)
    lose(place, 0)
    assert len(steps(run(place), repair.COMMIT_AGAIN)) == 2
    assert shown(place)[-1] == expected[-1]
    assert place.table().verify() == []
    assert ids(place.path) == own_ids(place) == [0, 1, 100]


def test_a_checkpoint_below_what_was_lost_does_no_harm(place: Place) -> None:
    sink = place.sink(layout="delta")
    commit(sink, 0, 1)
    deltalake.DeltaTable(str(place.path)).create_checkpoint()
    commit(sink, 2, 3)
    lose(place, 1)
    assert run(place)["problems"] == []
    assert ids(place.path) == own_ids(place) == [0, 1, 2, 3]


def test_what_others_had_committed_before_stays_and_is_seen(place: Place) -> None:
    sink = place.sink(layout="delta")
    commit(sink, 0)
    by_others(place.path, 7000)
    commit(sink, 1, 2)
    lose(place, 2)
    assert run(place)["problems"] == []
    assert ids(place.path) == own_ids(place) == [0, 1, 2, 7000]


def test_a_repair_that_crashes_at_any_store_call_is_finished_by_doing_it_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I12."""
    sink = place.sink(layout="delta")
    commit(sink, 0, 1)
    prepared(sink, 2, rows(2))
    sink.abort(2)
    commit(sink, 3)
    expected = shown(place)
    lose(place, 0)
    copy = copied_to(place, "copy")
    crashed = 0
    for number in range(1, 400):
        back_from(place, copy)
        store = FaultyStore(LocalStore(), [crash_before(number)])
        with monkeypatch.context() as patch:
            patch.setattr(commands_repair, "open_store", lambda path, store=store: store)
            patch.setattr(commands_repair, "open_table", lambda path, store=store: place.table(store))
            try:
                run(place)
            except Crash:
                crashed += 1
            else:
                break
        assert run(place)["problems"] == []
        assert shown(place) == expected
    assert crashed > 30


# -- where others may have committed, nothing is done ------------------------------------------------------


def lost_alone(place: Place) -> None:
    """Nothing but what txsink committed is lost."""
    sink = place.sink(layout="delta")
    commit(sink, 0, 1, 2, 3)


def others_between(place: Place) -> None:
    sink = place.sink(layout="delta")
    commit(sink, 0, 1)
    deltalake.DeltaTable(str(place.path)).delete("id = 1")
    commit(sink, 3)
    lose(place, 0)


def others_since(place: Place) -> None:
    lost_alone(place)
    lose(place, 1)
    by_others(place.path, 7000)


def others_as_many_since(place: Place) -> None:
    lost_alone(place)
    lose(place, 1)
    for number in range(2):
        by_others(place.path, 7000 + number)


def others_at_the_end(place: Place) -> None:
    """What they committed is lost as well, and its file tells of it."""
    lost_alone(place)
    by_others(place.path, 7000)
    lose(place, 1)


def others_seen_by_a_prepare_entry(place: Place) -> None:
    lost_alone(place)
    deltalake.DeltaTable(str(place.path)).delete("id = 0")
    prepared(place.sink(), 4, rows(4))
    lose(place, 1)


def others_last(place: Place) -> None:
    """What is there may be what was there, or what another program committed since."""
    lost_alone(place)
    lose(place, 0)
    by_others(place.path, 7000)
    lose(place, 1)


def a_file_is_gone(place: Place) -> None:
    lost_alone(place)
    next(place.path.glob("part-3-*.parquet")).unlink()
    lose(place, 1)


def a_later_one_is_there(place: Place) -> None:
    lost_alone(place)
    commits(place)[2].unlink()


def made_anew(place: Place) -> None:
    lost_alone(place)
    shutil.rmtree(place.path / DELTAS)
    by_others(place.path, 7000)


def own_log_is_older_too(place: Place) -> None:
    lost_alone(place)
    with place.sink("v") as other:
        commit(other, 100)
        older = Path(shutil.copytree(place.path / OWN, place.path.with_name("older")))
        commit(other, 101)
    commits(place)[-1].rename(commits(place)[2])  # the record of 'v' stays, what 'w' committed is lost
    lose(place, 2)
    shutil.rmtree(place.path / OWN)
    older.rename(place.path / OWN)


REFUSED: dict[Callable[[Place], None], str] = {
    others_between: "3 versions are lost, and 2 of them were txsink's",
    others_since: "its newest commit, version 2, is none that",
    others_as_many_since: "its newest commit, version 3, is none that",
    others_at_the_end: "and no log names it: it may have been committed",
    others_seen_by_a_prepare_entry: "3 versions are lost, and 2 of them were txsink's",
    others_last: "its newest commit, version 1, is none that",
    a_file_is_gone: "of epoch 3 of 'w' is gone, or is another file",
    a_later_one_is_there: "is there, and version 2 is not",
    made_anew: "another program has made the Delta table anew",
    own_log_is_older_too: "the table's own log is an older copy as well",
}


@pytest.mark.parametrize("state", REFUSED, ids=lambda state: state.__name__)
def test_what_cannot_be_proven_is_not_committed_again_and_the_way_out_leads_on(
    place: Place, state: Callable[[Place], None]
) -> None:
    state(place)
    before = tree(place.path / DELTAS)
    data = run(place)
    assert steps(data, repair.COMMIT_AGAIN) == []
    (told,) = [what for what in steps(data, repair.RESTORE) if REFUSED[state] in what]
    assert told.endswith(delta_again.ELSEWHERE)
    assert tree(place.path / DELTAS) == before


def test_without_a_copy_rows_are_read_and_written_elsewhere(place: Place) -> None:
    """As the plan says; the epochs that the table lacks are replayed there."""
    others_between(place)
    assert delta_again.ELSEWHERE in steps(run(place), repair.RESTORE)[0]
    there = Place(place.path.with_name("there"))
    there.write(0, place.table().to_arrow())
    there.write(3, rows(3))
    assert own_ids(there) == [0, 3]


@pytest.mark.usefixtures("small_blocks")
def test_entries_that_have_expired_prove_nothing_of_what_they_told(place: Place) -> None:
    sink = place.sink(layout="delta")
    commit(sink, *range(20))
    assert expiry.expire(sink.log, 25) > 15
    whole = copied_to(place, "whole")
    lose(place, 17)
    assert len(steps(run(place), repair.COMMIT_AGAIN)) == 2
    assert ids(place.path) == own_ids(place) == [*range(20)]
    back_from(place, whole)
    lose(place, 3)
    (told,) = [what for what in steps(run(place), repair.RESTORE) if "has expired" in what]
    assert told.endswith(delta_again.ELSEWHERE)
    assert ids(place.path) == [*range(4)]


def test_a_commit_of_another_program_that_comes_first_stops_it(place: Place) -> None:
    lost_alone(place)
    lose(place, 1)
    store = FaultyStore(LocalStore())
    table = place.table(store)
    assert table.delta is not None
    proven = delta_again._proven
    with pytest.MonkeyPatch.context() as patch:

        def overtaken(*given: Any) -> Any:
            found = proven(*given)
            by_others(place.path, 7000)
            return found

        patch.setattr(delta_again, "_proven", overtaken)
        with advised("publish.delta.again._require_next", "Look again: `txsink repair`"):
            delta_again.commit_again(table.log, table.delta)
    assert len(commits(place)) == 3
    assert ids(place.path) == [0, 1, 7000]
    data = run(place)
    assert steps(data, repair.COMMIT_AGAIN) == []
    assert delta_again.ELSEWHERE in steps(data, repair.RESTORE)[0]


# -- the newest own log, put back after a repair ------------------------------------------------------------


def given_up(place: Place) -> Path:
    """A table whose own log was an older copy, and was repaired; the newest one, which was found again since."""
    sink = place.sink(layout="delta")
    commit(sink, 0)
    with place.sink("v") as other:
        commit(other, 100)
    older = Path(shutil.copytree(place.path / OWN, place.path.with_name("older")))
    commit(sink, 1, 2)
    prepared(sink, 3, rows(3))
    sink.abort(3)
    with place.sink("v") as other:
        commit(other, 101)
    newest = (place.path / OWN).rename(place.path.with_name("newest"))
    older.rename(place.path / OWN)
    assert run(place)["problems"] == []
    return newest


def put_back(place: Place, newest: Path) -> None:
    shutil.rmtree(place.path / OWN)
    shutil.copytree(newest, place.path / OWN)


@pytest.mark.parametrize("by_other_programs", [False, True], ids=["", "others have gone on"])
def test_the_newest_log_that_is_put_back_after_a_repair_is_taken_up_again(
    place: Place, *, by_other_programs: bool
) -> None:
    newest = given_up(place)
    if by_other_programs:
        by_others(place.path, 7000)
    expected = ids(place.path)
    put_back(place, newest)
    with advised(
        "publish.delta.agreement.problem", "Put the former Delta log back, and open the writer again; or see what"
    ):
        place.sink()
    data = run(place, yes=False)
    assert [(step["action"], step["path"]) for step in data["plan"]] == [(repair.TAKE_UP, "v"), (repair.TAKE_UP, "w")]
    assert run(place)["problems"] == []
    assert run(place)["plan"] == []
    for writer, last in (("w", 2), ("v", 101)):
        with place.sink(writer) as sink:
            assert sink.last_epoch == last
            commit(sink, last, last + 1)
    assert ids(place.path) == own_ids(place) == sorted([*expected, 3, 102])
    assert place.table().verify() == []


def test_the_newest_log_is_refused_once_the_table_went_on_with_the_repaired_one(place: Place) -> None:
    """Both have given the same numbers to different transactions. The way out is the log that was repaired."""
    newest = given_up(place)
    with place.sink() as sink:
        commit(sink, 3)
    repaired = Path(shutil.copytree(place.path / OWN, place.path.with_name("repaired")))
    put_back(place, newest)
    before = tree(place.path / DELTAS)
    data = run(place)
    assert [step["action"] for step in data["plan"]] == [repair.RESTORE]
    assert steps(data, repair.RESTORE)[0].endswith(delta_again.WENT_ON)
    assert tree(place.path / DELTAS) == before
    put_back(place, repaired)
    with place.sink() as sink:
        commit(sink, 4)
    assert ids(place.path) == own_ids(place) == [0, 1, 2, 3, 4, 100, 101]
    assert place.table().verify() == []


def test_a_commit_that_comes_before_what_is_taken_up_stops_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    put_back(place, given_up(place))
    table = place.table()
    assert table.delta is not None
    whole = delta_again.given_up

    def overtaken(*given: Any) -> Any:
        found = whole(*given)
        by_others(place.path, 7000)
        return found

    monkeypatch.setattr(delta_again, "given_up", overtaken)
    with advised("publish.delta.again._require_next", "Look again: `txsink repair`"):
        delta_again.take_up(table.log, table.delta)
    monkeypatch.undo()
    assert run(place)["problems"] == []
