"""What crashes: one small program for every kind of work there is.

Promises: `SCENARIOS` names each program, who recovers after its crash, and the sizes it runs with.
Relies on: `crash_world`, which says what a program is told, and what it does when the store fails.
Does not promise: to judge anything. That is `crash_check`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from txsink.errors import CorruptError
from txsink.log import expiry
from txsink.schema import columns_of
from txsink.testing.crash_book import day_of
from txsink.testing.crash_world import Program, World, remembered, rows_table, small_blocks, stamps_of
from txsink.writing.opening import open_sink

COPY = "/d/copy"


class Scenario(NamedTuple):
    """A program, and who recovers after its crash. `is_small`: summaries every 4 entries, merged by twos.

    `expires`: whoever recovers expires as well. `table_layout`: that of the table.
    """

    name: str
    run: Callable[[World], None]
    writers: tuple[str, ...] = ("w",)
    is_small: bool = False
    expires: bool = False
    table_layout: str = "parquet"


SCENARIOS: dict[str, Scenario] = {}


def scenario(
    *writers: str, is_small: bool = False, expires: bool = False
) -> Callable[[Callable[[World], None]], Callable[[World], None]]:
    """Register a program."""

    def register(run: Callable[[World], None]) -> Callable[[World], None]:
        name = run.__name__
        SCENARIOS[name] = Scenario(name, run, writers or ("w",), is_small, expires)
        return run

    return register


@contextmanager
def setting(chosen: Scenario) -> Iterator[None]:
    """The sizes the scenario runs with; pure functions of bytes remember what they said."""
    with remembered(), small_blocks() if chosen.is_small else nullcontext():
        yield


# -- the programs -----------------------------------------------------------------------------------------


@scenario()
def first_open(world: World) -> None:
    world.open()


@scenario()
def append_one_epoch(world: World) -> None:
    world.open().commit(0)


@scenario()
def append_an_empty_epoch(world: World) -> None:
    writer = world.open()
    writer.commit(0, ())
    writer.commit(1)


@scenario()
def append_two_partitions(world: World) -> None:
    writer = world.open(partition_by=["day"])
    writer.commit(0, (0, 1))
    writer.commit(1, (100, 101, 102))


@scenario()
def two_pending_then_commit_each(world: World) -> None:
    writer = world.open()
    for epoch in (0, 1):
        writer.prepare(epoch)
    for epoch in (0, 1, 0):
        writer.finish(epoch)


@scenario()
def commit_takes_earlier_pending_along(world: World) -> None:
    writer = world.open()
    writer.prepare(0)
    writer.prepare(1, ())
    writer.prepare(2)
    writer.finish(0, 1, 2)
    writer.commit(5)


@scenario()
def abort_a_prepared_epoch(world: World) -> None:
    writer = world.open(partition_by=["day"])
    writer.commit(0)
    writer.prepare(1)
    writer.abort(1)
    writer.commit(1)


@scenario()
def abort_an_open_transaction(world: World) -> None:
    writer = world.open()
    writer.persist(lambda: writer.begin(0).abort())
    writer.persist(lambda: writer.begin(0))
    writer.sink.close()
    world.open().commit(0)


@scenario()
def overwrite_the_table(world: World) -> None:
    writer = world.open()
    writer.commit(0, (0, 1))
    writer.commit(1, (2, 3))
    writer.commit(2, (0, 1, 5), mode="overwrite")
    writer.commit(3)


@scenario()
def overwrite_with_nothing(world: World) -> None:
    writer = world.open(partition_by=["day"])
    writer.commit(0, (0, 1))
    writer.commit(1, (), mode="overwrite")
    writer.commit(2, (2,))
    writer.commit(3, (5,), mode="overwrite")


@scenario()
def overwrite_some_partitions(world: World) -> None:
    writer = world.open(partition_by=["day"])
    writer.commit(0, (0, 1))
    writer.commit(1, (0, 2), mode="overwrite", partition_overwrite="dynamic")
    writer.prepare(2, (4, 7))
    writer.prepare(3, (7, 9), mode="overwrite", partition_overwrite="dynamic")
    writer.prepare(4, (11,))
    writer.finish(2, 3, 4)


@scenario()
def abort_an_overwrite(world: World) -> None:
    writer = world.open()
    writer.commit(0, (0, 1))
    writer.prepare(1, (2,))
    writer.prepare(2, (0, 5), mode="overwrite")
    writer.abort(2)
    writer.finish(1)


@scenario()
def rewind_to_an_earlier_epoch(world: World) -> None:
    writer = world.open()
    for epoch in (0, 1, 2):
        writer.commit(epoch)
    again = world.open(recover=False)
    again.recover(0, "rewind")
    again.tell("rewound", 0)
    again.commit(1)


@scenario()
def recover_commits_some_and_aborts_others(world: World) -> None:
    writer = world.open()
    for epoch in (0, 1, 2):
        writer.prepare(epoch)
    again = world.open(recover=False)
    again.recover(1, "skip")
    for epoch in (0, 1):
        again.tell("committed", epoch)
    if not writer.has_failed:
        again.tell("aborted", 2)
    again.commit(2)


@scenario()
def abort_what_was_half_published(world: World) -> None:
    writer = world.open(partition_by=["day"])
    writer.commit(0)
    writer.prepare(1)
    log = writer.sink.log
    for pending in log.state.pending:
        # The run published one of its two files, and stopped there.
        prepared = log.prepare_entry(pending.prepared)
        half = msgspec.structs.replace(prepared, files=prepared.files[:1], uploads=prepared.uploads[:1])
        writer.persist(lambda half=half: writer.sink.publisher.publish(half))  # type: ignore[misc]
    again = world.open(recover=False)
    again.recover(0, "skip")
    again.commit(1)


@scenario()
def sweep_what_a_dead_run_left(world: World) -> None:
    world.open().commit(0)
    dead = world.open(partition_by=[])
    dead.persist(lambda: dead.begin(1).write(rows_table((100,))))
    dead.stage(2)
    world.open(is_one_shot=True).stage(1)
    last = world.open()
    last.persist(lambda: last.sink.sweep())  # noqa: PLW0108 -- of the sink it has by then


@scenario()
def write_once_and_replay(world: World) -> None:
    for epoch in (0, 1, 0, 1):
        writer = world.open(is_one_shot=True)
        writer.commit(epoch)
        writer.sink.close()


@scenario("w", "v")
def two_writers_in_turn(world: World) -> None:
    first, second = world.open(), world.open("v")
    first.prepare(0)
    second.commit(0)
    second.persist(lambda: second.begin(1))
    first.finish(0)
    second.prepare(3)


@scenario("w", "v")
def overwrite_while_another_appends(world: World) -> None:
    first, second = world.open(partition_by=["day"]), world.open("v")
    first.commit(0, (0, 1))
    second.prepare(0, (10_000, 10_001))
    first.prepare(1, (0, 3), mode="overwrite")
    second.finish(0)
    first.finish(1)


@scenario()
def adopt_what_another_program_wrote(world: World) -> None:
    writer = world.open(partition_by=["day"])
    writer.commit(0)
    if not writer.sink.log.store.traits.moves:
        return  # refused there
    world.truth.rows["w", 1] = (100, 101)
    columns = columns_of(pa.schema({"id": pa.int64(), "day": pa.string()}))

    def adopt() -> None:
        txn = writer.sink.begin(1)
        guest = txn.guest()
        for row in (100, 101):
            world.put(f"{guest.path}/day={day_of(row)}/part-0.parquet", parquet_of({"id": [row]}))
        world.put(f"{guest.path}/_SUCCESS", b"")
        txn.add(guest.adopt(columns, writer.sink.log.stamps.new_id))
        txn.commit()

    writer.persist(adopt)
    writer.tell("committed", 1)


@scenario()
def open_a_copy_while_an_epoch_is_pending(world: World) -> None:
    """The copy's writer recovers, sweeps and writes: the original must not feel it."""
    writer = world.open()
    writer.commit(0)
    writer.prepare(1)
    writer.stage(2)
    world.copy(COPY)
    lives = itertools.count(0x7000)

    def use_the_copy() -> None:
        # It fails where an upload is pending under the original's name alone.
        with suppress(CorruptError), open_sink(world.store(), stamps_of(next(lives)), COPY, "w", {}) as sink:
            sink.sweep()
            with sink.begin(5) as txn:
                txn.write(rows_table((500,)))

    writer.persist(use_the_copy)
    writer.finish(1)


def parquet_of(rows: dict[str, list[int]]) -> bytes:
    """A file as another program writes it."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(rows), sink)
    return sink.getvalue().to_pybytes()


def expire(world: World, writer: Program, before: int) -> None:
    """Expire entries, which the checker has to know nevertheless."""
    world.remember()
    writer.persist(lambda: expiry.expire(writer.sink.log, before))


@scenario(is_small=True)
def summaries_and_merges(world: World) -> None:
    writer = world.open()
    for epoch in range(7):
        writer.commit(epoch)
    world.open()


@scenario(is_small=True, expires=True)
def expire_what_is_old(world: World) -> None:
    writer = world.open()
    for epoch in range(3):
        writer.commit(epoch)
    writer.commit(3, (0, 7), mode="overwrite")
    writer.commit(4)
    writer.commit(5)
    expire(world, writer, 12)
    writer.commit(6)
    expire(world, writer, 16)


@scenario("w", "v", is_small=True, expires=True)
def expire_while_something_is_pending(world: World) -> None:
    writer, other = world.open(), world.open("v")
    writer.commit(0)
    writer.commit(1)
    other.prepare(0)
    for epoch in (2, 3, 4):
        writer.commit(epoch)
    expire(world, writer, 12)
    other.finish(0)


@scenario()
def two_spellings_of_one_table(world: World) -> None:
    """Each finishes what the other has prepared, and drops what it only staged."""
    world.open().prepare(0)
    mounted = world.open(is_mounted=True)
    mounted.tell("committed", 0)
    mounted.prepare(1)
    mounted.stage(2)
    world.open().tell("committed", 1)


# Half of a Delta commit is no commit; and our own log expires alike in every layout.
NOT_IN_DELTA = {
    *("abort_what_was_half_published", "summaries_and_merges"),
    *("expire_what_is_old", "expire_while_something_is_pending"),
}
DELTA_SCENARIOS = {
    f"delta_{name}": chosen._replace(name=f"delta_{name}", table_layout="delta")
    for name, chosen in SCENARIOS.items()
    if name not in NOT_IN_DELTA
}
ALL_SCENARIOS = {**SCENARIOS, **DELTA_SCENARIOS}
