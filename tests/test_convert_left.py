"""A conversion at any moment of a writer's life, and the writer's death at any later one: nothing stays behind (I9).

Enumerated are the store call before which the table is converted and the one before which the writer dies: every pair
in `make faults`, one in `SHARE` here. Afterwards the next run opens the writer, and writes what the source still has.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any, NamedTuple

import pytest

import ledger
from caller import ROUNDS_MAX, WORLDS, convert_to, rows_of
from txsink import paths
from txsink.errors import ConflictError, TxsinkError
from txsink.protocol.blank import lay_anew
from txsink.testing import tiny
from txsink.testing.crash_book import ROOT, ids_in
from txsink.testing.crash_world import World, remembered, rows_table, stamps_of
from txsink.testing.faults import Fault, FaultyStore, crash_before, delay
from txsink.testing.simdisk import Crash
from txsink.writing.opening import open_sink

SHARE = 1 if ledger.is_full() else 31


class Course(NamedTuple):
    """What happens in one trial; `is_blank`: the table holds no rows yet; `run`: that of both lives."""

    world: str
    layouts: tuple[str, ...]
    is_blank: bool
    run: str | None = None


def convert(world: World, course: Course, to: str) -> None:
    """Another process changes the layout."""
    world.life += 1
    if course.is_blank:
        log = world.reader()
        if log.state.columns or log.state.pending or log.state.aborting or log.state.layout == to:
            return
        lay_anew(log, log.state, to, ())
    else:
        convert_to(to, world.store(), stamps_of(world.life))


def live(world: World, course: Course, faults: list[Fault]) -> FaultyStore:
    """A writer that stages, prepares and commits one epoch, and stages the next one."""
    world.life += 1
    store = FaultyStore(world.store(), faults)
    options = {"run": course.run} if course.run else {}
    with suppress(Crash, TxsinkError), open_sink(store, stamps_of(world.life), ROOT, "w", options) as sink:
        for epoch in (1, 2):
            txn = sink.begin(epoch)
            tiny.stage(txn, rows_of(epoch))
            tiny.stage(txn, rows_of(epoch + 5))
            if epoch == 1:
                txn.commit()
    return store


def finish(world: World, **options: Any) -> None:
    """The next process, which does what it is told where it began at a hint of before the conversion."""
    for _ in range(ROUNDS_MAX):
        try:
            with world.sink(layout=None, **options) as sink:
                for epoch in (1, 2):
                    with sink.begin(epoch) as txn:
                        txn.write(rows_table(rows_of(epoch)))
                if options:
                    sink.sweep()
                return
        except ConflictError as error:
            if error.advice != "Open the writer again":
                raise
    raise AssertionError(options)


def left(world: World) -> list[str]:
    """What lies there of ours, as data, mark or upload, and no reader is shown."""
    log = world.reader()
    found_paths = [path for path in world.disk.files() if path.endswith(".parquet") and "/_delta_log/" not in path]
    marks = [path for path in world.disk.files() if f"/{paths.MARK_DIRECTORY}/" in path]
    shown = {f"{ROOT}/{path}" for path in log.live()}
    store = world.store()
    uploads = [str(one) for one in store.uploads(ROOT)] if not store.traits.moves else []  # type: ignore[attr-defined]
    return [path for path in (*found_paths, *marks, *uploads) if path not in shown]


def trial(course: Course, converted: int, dies: int) -> tuple[list[str], bool]:
    """What was left, and whether the conversion came before the call."""
    world = World(WORLDS[course.world](), table_layout=course.layouts[0])
    with world.sink() as sink:
        if not course.is_blank:
            with sink.begin(0) as txn:
                txn.write(rows_table(rows_of(0)))

    def meanwhile() -> None:
        with suppress(ConflictError):  # an epoch is pending
            for to in course.layouts[1:]:
                convert(world, course, to)

    faults = [delay(converted, meanwhile), *([crash_before(dies)] if dies else [])]
    store = live(world, course, faults)
    is_delivered = any(one.kind == "delay" for one in store.delivered)
    options = {"run": course.run} if course.run else {}
    finish(world, **options)
    # A worker of the same run may live, and in a bucket a request of a dead one may be done late: marks stay once.
    found = [path for path in left(world) if f"/{paths.MARK_DIRECTORY}/" not in path]
    finish(world)
    found += left(world)
    log, files = world.reader(), world.disk.files()
    held = Counter(one for path in log.live() for one in ids_in(files[f"{ROOT}/{path}"]))
    epochs = {fact.epoch for fact in log.live().values()}
    assert epochs == ({1, 2} if course.is_blank else {0, 1, 2})
    assert set(held.values()) == {1}
    return found, is_delivered


LAYOUTS = (("parquet", "delta"), ("delta", "parquet"), ("parquet", "delta", "parquet"), ("delta", "parquet", "delta"))
COURSES = [
    Course(world, layouts, is_blank, run)
    for world in WORLDS
    for layouts in LAYOUTS
    for is_blank in (False, True)
    for run in (None, "same")
]


@pytest.mark.parametrize("course", COURSES, ids=str)
def test_whenever_a_table_is_converted_and_its_writer_dies_the_next_run_leaves_nothing_of_it(course: Course) -> None:
    """Seen: what a run staged for the parquet layout once the table was Delta's, and pending uploads."""
    wrong, delivered = list[str](), 0
    with remembered():
        calls = calls_of(course)
        pairs = [(at, dies) for at in range(1, calls + 1) for dies in range(at, calls + 2)]
        for at, dies in pairs[::SHARE]:
            found, is_delivered = trial(course, at, dies)
            delivered += is_delivered
            wrong += [f"converted before call {at}, dead before call {dies}: {one}" for one in found]
    assert not wrong, "\n".join([f"{len(wrong)} of {delivered}", *wrong[:10]])
    assert delivered > 5


def calls_of(course: Course) -> int:
    """How many calls the writer makes in a table that is not converted."""
    world = World(WORLDS[course.world](), table_layout=course.layouts[0])
    world.sink().close()
    return live(world, course, []).calls
