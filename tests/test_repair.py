"""`txsink repair` leads out of every state that `verify` names, or says what has to be restored."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest

from advice import advised
from logs import grow, opened
from place import Place, begin_publish, commit, prepared, rows
from seen import entry_file, names, rows_of, small_blocks, staging
from txsink import paths
from txsink.cli import commands_repair
from txsink.cli.commands import UNHEALTHY
from txsink.cli.commands_repair import repair as command
from txsink.errors import CorruptError, InvalidRequestError
from txsink.log import expiry, segment
from txsink.log.log import Log
from txsink.log.segment import Fact
from txsink.store.local.store import LocalStore
from txsink.testing.faults import FaultyStore, crash_before
from txsink.testing.simdisk import Crash
from txsink.upkeep import repair

__all__ = ["small_blocks"]

EPOCHS = 5


@pytest.fixture
def filled(place: Place) -> Place:
    for epoch in range(EPOCHS):
        place.write(epoch, rows(epoch))
    return place


def run(place: Place, *, yes: bool) -> dict[str, Any]:
    return command(str(place.path), yes=yes).data


def actions(data: dict[str, Any]) -> list[tuple[str, str]]:
    return [(step["action"], step["path"]) for step in data["plan"]]


def stray(place: Place, version: int) -> None:
    """An entry of another log."""
    other = Place(place.path.parent / "other")
    other.stamps = place.stamps
    grow(opened(other), version)
    shutil.copy(entry_file(other.path, version), entry_file(place.path, version))


def stray_at_the_head(place: Place) -> None:
    stray(place, 2 * EPOCHS + 1)


def stray_above_the_head(place: Place) -> None:
    stray(place, 2 * EPOCHS + 4)


def torn_newest_entry(place: Place) -> None:
    (place.path / paths.HEAD_PATH).unlink()
    entry_file(place.path, 2 * EPOCHS).write_bytes(b"{")


def hole_among_the_newest(place: Place) -> None:
    (place.path / paths.HEAD_PATH).unlink()
    entry_file(place.path, 2 * EPOCHS - 1).unlink()


def newest_lost_and_the_hint_knows(place: Place) -> None:
    for version in (2 * EPOCHS, 2 * EPOCHS - 1):
        entry_file(place.path, version).unlink()


def newest_lost_and_nothing_tells(place: Place) -> None:
    newest_lost_and_the_hint_knows(place)
    (place.path / paths.HEAD_PATH).unlink()


def torn_hint(place: Place) -> None:
    (place.path / paths.HEAD_PATH).write_bytes(b"torn")


def staged_file_of_a_pending_epoch_lost(place: Place) -> None:
    prepared(place.sink(), EPOCHS, rows(EPOCHS))
    for path in staging(place.path).rglob("*.parquet"):
        path.unlink()


# What is done to a table of epochs 0 to 4, and which of them are there afterwards.
STATES: dict[Callable[[Place], None], list[int]] = {
    stray_at_the_head: [0, 1, 2, 3, 4],
    stray_above_the_head: [0, 1, 2, 3, 4],
    torn_newest_entry: [0, 1, 2, 3, 4],  # the epoch was published: its prepare entry tells of it
    hole_among_the_newest: [0, 1, 2, 3],
    newest_lost_and_the_hint_knows: [0, 1, 2, 3],
    newest_lost_and_nothing_tells: [0, 1, 2, 3],
    torn_hint: [0, 1, 2, 3, 4],
    staged_file_of_a_pending_epoch_lost: [0, 1, 2, 3, 4],
}


def contents(place: Place) -> dict[str, bytes]:
    return {name: (place.path / name).read_bytes() for name in names(place.path)}


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_a_repair_leads_out_of_the_state_and_destroys_nothing(filled: Place, state: Callable[[Place], None]) -> None:
    state(filled)
    found = command(str(filled.path), yes=False)
    assert (found.code, found.data["is_dry_run"]) == (UNHEALTHY, True)
    before = contents(filled)
    plan = run(filled, yes=False)["plan"]
    assert plan
    assert contents(filled) == before
    done = run(filled, yes=True)
    assert done["plan"][: len(plan)] == plan
    assert done["problems"] == []
    assert command(str(filled.path), yes=True).text == ["There is nothing to repair."]
    kept = set(contents(filled).values())
    assert [name for name, data in before.items() if data not in kept and name != paths.HEAD_PATH] == []
    with filled.sink() as sink:
        commit(sink, EPOCHS + 1)
    assert rows_of(filled.path) == [*STATES[state], EPOCHS + 1]
    assert filled.table().verify(deep=True) == []


@pytest.mark.parametrize("state", [stray_at_the_head, stray_above_the_head, hole_among_the_newest, torn_hint])
def test_a_repair_may_crash_at_any_store_call_and_is_finished_by_doing_it_again(
    filled: Place, state: Callable[[Place], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """I12."""
    state(filled)
    copy = filled.path.parent / "copy"
    shutil.copytree(filled.path, copy)
    crashed = 0
    for number in range(1, 200):
        shutil.rmtree(filled.path)
        shutil.copytree(copy, filled.path)
        store = FaultyStore(LocalStore(), [crash_before(number)])
        with monkeypatch.context() as patch:
            patch.setattr(commands_repair, "open_store", lambda path, store=store: store)
            patch.setattr(commands_repair, "open_table", lambda path, store=store: filled.table(store))
            try:
                run(filled, yes=True)
            except Crash:
                crashed += 1
            else:
                break
        run(filled, yes=True)
        assert rows_of(filled.path) == STATES[state]
        assert filled.table().verify(deep=True) == []
    assert crashed > 20


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("damage", ["torn", "empty"])
def test_damaged_summaries_and_segments_are_made_again(place: Place, damage: str) -> None:
    sink = place.sink()
    for epoch in range(12):
        commit(sink, epoch)
    expiry.expire(sink.log, sink.log.state.version)
    expected = opened(place).facts()
    for directory in (paths.STATE_DIRECTORY, paths.SEGMENT_DIRECTORY):
        for path in sorted((place.path / directory).iterdir()):
            data = path.read_bytes()
            path.write_bytes(data[:-9] if damage == "torn" else b"")
            assert [path for action, path in actions(run(place, yes=True))] == [str(path.relative_to(place.path))]
            assert opened(place).facts() == expected
            assert place.table().verify() == []
    assert rows_of(place.path) == [*range(12)]


def test_a_segment_is_made_of_parts_that_hold_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty part is a part: what it was made of is not asked for, and may have expired."""
    log = opened(place)
    held: dict[str, list[Fact] | None] = {"a": [], "b": []}
    monkeypatch.setattr(repair, "_held", lambda _, path: held.get(path))
    monkeypatch.setattr(paths, "segment_path", lambda first, _: {0: "a", 8: "b"}.get(first, "gone"))
    monkeypatch.setattr(segment, "children", lambda first, last: [(0, 7), (8, 15)] if (first, last) == (0, 15) else [])
    monkeypatch.setattr(log, "facts_of", lambda *_: pytest.fail("the entries are not asked"))
    assert repair._parts(log, 0, 15) == []


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("is_missing", [False, True], ids=["damaged", "missing"])
def test_a_list_of_files_that_is_lost_twice_is_rebuilt_from_their_footers(place: Place, *, is_missing: bool) -> None:
    """What the entries said of them is gone: their writer, and the moment of their commit."""
    sink = place.sink()
    for epoch in range(12):
        commit(sink, epoch)
    expiry.expire(sink.log, sink.log.state.version)
    sink.close()
    for path in sorted((place.path / paths.SEGMENT_DIRECTORY).iterdir()):
        path.unlink() if is_missing else path.write_bytes(b"torn")
    damaged = advised("log.segment.decode", "Restore it from a copy, or see what `txsink repair` would do")
    with advised("log.gaps.unlisted", "Restore {} from a copy, or {}") if is_missing else damaged:
        place.table().to_arrow()
    found = {action for action, _ in actions(run(place, yes=False))}
    assert repair.REBUILD in found
    run(place, yes=True)
    assert rows_of(place.path) == [*range(12)]
    assert run(place, yes=True)["plan"] == []


def test_a_log_whose_first_entry_is_lost_is_told_to_be_restored(filled: Place) -> None:
    first = entry_file(filled.path, 0).read_bytes()
    (filled.path / paths.HEAD_PATH).unlink()
    entry_file(filled.path, 0).unlink()
    before = contents(filled)
    with advised("log.gaps.headless", "Restore the log from a copy; nothing was changed"):
        filled.table()
    data = run(filled, yes=True)
    assert actions(data) == [(repair.RESTORE, paths.entry_path(0))]
    assert data["problems"]
    assert contents(filled) == before
    entry_file(filled.path, 0).write_bytes(first)
    assert run(filled, yes=True)["problems"] == []


@pytest.mark.parametrize("lost", [range(7, 8), range(2 * EPOCHS + 1)], ids=["one below the hint", "all"])
def test_entries_that_only_a_copy_has_are_told_to_be_restored(filled: Place, lost: range) -> None:
    """Seen: the plan was the error that had advised it."""
    kept = {version: entry_file(filled.path, version).read_bytes() for version in lost}
    for version in lost:
        entry_file(filled.path, version).unlink()
    with pytest.raises(CorruptError):
        filled.table().to_arrow()
    before = contents(filled)
    data = run(filled, yes=True)
    assert actions(data) == [(repair.RESTORE, paths.entry_path(lost[-1]))]
    assert data["problems"]
    assert contents(filled) == before
    for version, entry in kept.items():
        entry_file(filled.path, version).write_bytes(entry)
    assert run(filled, yes=True)["problems"] == []
    assert rows_of(filled.path) == [*range(EPOCHS)]


def test_a_stuck_overwrite_that_has_begun_to_remove_is_told_to_be_restored(filled: Place) -> None:
    sink = filled.sink()
    prepare = prepared(sink, EPOCHS, rows(EPOCHS), mode="overwrite")
    begin_publish(sink, prepare)
    lost = next(staging(filled.path).rglob("*.parquet"))
    data = lost.read_bytes()
    lost.unlink()
    assert [action for action, _ in actions(run(filled, yes=True))] == [repair.RESTORE]
    lost.write_bytes(data)
    with filled.sink() as again:
        assert again.last_epoch == EPOCHS
    assert rows_of(filled.path) == [EPOCHS]


def test_history_says_what_a_repair_did(filled: Place) -> None:
    """It finished no aborts."""
    stray_at_the_head(filled)
    run(filled, yes=True)
    notes = [one.note for one in filled.table().history() if one.kind == "maintenance"]
    assert notes == ["repair: what nobody can follow or believe was set aside"]


def test_two_repairs_at_once_do_not_both_act(filled: Place) -> None:
    """I7: the slower one looks again."""
    stray_above_the_head(filled)
    log = Log(LocalStore(), str(filled.path), filled.stamps)
    head = repair.head_of(log)
    steps = repair.entry_steps(log, head)
    run(filled, yes=True)
    kept = names(filled.path)
    with advised("upkeep.repair.set_aside", "Look again: `txsink repair`"):
        repair.set_aside(log, head, steps)
    assert names(filled.path) == kept
    assert command(str(filled.path), yes=True).text == ["There is nothing to repair."]


def test_what_changed_after_it_was_copied_keeps_its_name(filled: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """I8: somebody has put another entry there."""
    stray_above_the_head(filled)
    file = entry_file(filled.path, 2 * EPOCHS + 4)
    real = repair._keep

    def overtaken(log: Log, path: str) -> bytes | None:
        data = real(log, path)
        file.write_bytes(b"another")
        return data

    monkeypatch.setattr(repair, "_keep", overtaken)
    with pytest.raises(CorruptError):
        run(filled, yes=True)
    assert file.read_bytes() == b"another"


@pytest.mark.usefixtures("small_blocks")
def test_an_expiry_whose_own_entry_is_lost_is_in_force_again(place: Place) -> None:
    """I13: seen: what it had deleted was called missing, for ever."""
    sink = place.sink()
    commit(sink, *range(20))
    expiry.expire(sink.log, sink.log.state.version)
    boundary = sink.log.state.boundary
    sink.close()
    entry_file(place.path, opened(place).load().version).unlink()
    assert run(place, yes=False)["plan"]
    run(place, yes=True)
    assert place.table().verify() == []
    assert opened(place).load().boundary == boundary
    assert rows_of(place.path) == [*range(20)]


def test_a_name_that_tells_of_no_version_is_no_step_of_a_repair(filled: Place) -> None:
    for directory in (paths.STATE_DIRECTORY, paths.SEGMENT_DIRECTORY):
        (filled.path / directory).mkdir(exist_ok=True)
        (filled.path / directory / "notes").write_bytes(b"of somebody")
    assert run(filled, yes=False)["plan"] == []


def test_a_path_without_a_table_is_refused(place: Place) -> None:
    with pytest.raises(InvalidRequestError, match="there is no txsink table"):
        run(place, yes=True)
