"""What crashes: small programs over the public API, told in terms of epochs, with what they promise to their users.

Promises: the same scenario makes the same calls in the same order with the same ids; `SCENARIOS` holds every kind of
work there is; what a call has promised by returning is in `truth.told` before the next call begins.
Relies on: `sink.open_sink` over any store, with clock and ids given from here.
Does not promise: to judge anything. That is `crash_check`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from types import ModuleType
from typing import Any, NamedTuple, cast

import pyarrow as pa
import pytest

from crash_check import ROOT, Told, Truth, day_of
from simdisk import SimDisk
from txsink import entry, layout, log, recovery, segment
from txsink.sink import open_sink
from txsink.slots import Stamps
from txsink.store import Store
from txsink.store.local import LocalStore
from txsink.txn import Transaction
from txsink.writer import Sink

START_MS = 1_760_000_000_000


def stamps_of(life: int) -> Stamps:
    """Clock and ids of one process: no two processes share an id, and nobody waits."""
    ids, times = itertools.count(), itertools.count(START_MS)
    return Stamps(lambda: next(times), lambda: f"{life:04x}{next(ids):06x}", lambda _: None)


@cache
def rows_table(rows: tuple[int, ...]) -> pa.Table:
    """The rows of an epoch as data."""
    return pa.table({"id": pa.array(rows, pa.int64()), "day": [day_of(row) for row in rows]})


class World:
    """A disk, the programs that use it, and what they were told."""

    def __init__(self, disk: SimDisk, truth: Truth | None = None, life: int = 0) -> None:
        self.disk = disk
        self.truth = Truth() if truth is None else truth
        self.life = life
        self.wrap: Callable[[Store], Store] = lambda store: store

    def store(self) -> Store:
        """The disk as a new process has it."""
        return self.wrap(LocalStore(cast("ModuleType", self.disk)))

    def open(self, writer: str = "w", *, is_one_shot: bool = False, **options: Any) -> Sink:
        """A new process opens the writer."""
        self.life += 1
        sink = open_sink(self.store(), stamps_of(self.life), ROOT, writer, options, is_one_shot=is_one_shot)
        return sink

    def log(self) -> log.Log:
        """The log, not read yet, in a new process."""
        self.life += 1
        return log.Log(self.store(), ROOT, stamps_of(self.life))

    def reader(self) -> log.Log:
        """The log, read."""
        found = self.log()
        found.load()
        return found

    def begin(self, sink: Sink, epoch: int, rows: tuple[int, ...] | None = None, **options: Any) -> Transaction:
        """Begin and stage an epoch of two rows, or of `rows`."""
        if rows is None:
            start = 100 * epoch + (10_000 if sink.writer != "w" else 0)
            rows = (start, start + 1)
        self.truth.rows.setdefault((sink.writer, epoch), rows)
        txn = sink.begin(epoch, **options)
        if rows:
            txn.write(rows_table(rows))
        return txn

    def prepare(self, sink: Sink, epoch: int, rows: tuple[int, ...] | None = None, **options: Any) -> Transaction:
        """Stage and prepare."""
        txn = self.begin(sink, epoch, rows, **options)
        txn.prepare()
        self.tell("prepared", sink.writer, epoch)
        return txn

    def commit(self, sink: Sink, epoch: int, rows: tuple[int, ...] | None = None, **options: Any) -> None:
        """One whole epoch."""
        txn = self.begin(sink, epoch, rows, **options)
        txn.commit()
        self.tell("prepared", sink.writer, epoch)
        self.tell("committed", sink.writer, epoch)

    def tell(self, what: str, writer: str, epoch: int) -> None:
        """Note what a call has just promised."""
        self.truth.told.add(Told(what, writer, epoch))

    def remember(self) -> None:
        """Keep the entries as they are now: expiry is about to delete some."""
        start = f"{ROOT}/{layout.LOG_DIRECTORY}/"
        for path, data in self.disk.files().items():
            if path.startswith(start) and (version := layout.parse_version(path[len(start) :])) is not None:
                self.truth.history[version] = data


class Scenario(NamedTuple):
    """A program, and who recovers after its crash. `is_small`: summaries every 4 entries, merged by twos."""

    name: str
    run: Callable[[World], None]
    writers: tuple[str, ...] = ("w",)
    is_small: bool = False


SCENARIOS: dict[str, Scenario] = {}


def scenario(*writers: str, is_small: bool = False) -> Callable[[Callable[[World], None]], Callable[[World], None]]:
    """Register a program."""

    def register(run: Callable[[World], None]) -> Callable[[World], None]:
        name = run.__name__
        SCENARIOS[name] = Scenario(name, run, writers or ("w",), is_small)
        return run

    return register


_decode_entry, _decode_segment = lru_cache(1 << 15)(entry.decode), lru_cache(1 << 13)(segment.decode)


@contextmanager
def setting(chosen: Scenario) -> Iterator[None]:
    """The sizes the scenario runs with; pure functions of bytes remember what they said."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entry, "decode", _decode_entry)
        patch.setattr(segment, "decode", _decode_segment)
        if chosen.is_small:
            # Both modules name the constant: they must agree.
            patch.setattr(segment, "BLOCK", 4)
            patch.setattr(log, "BLOCK", 4)
            patch.setattr(segment, "FANOUT", 2)
            patch.setattr(log, "HINT_EVERY", 3)
        yield


# -- the programs -----------------------------------------------------------------------------------------


@scenario()
def first_open(world: World) -> None:
    world.open()


@scenario()
def append_one_epoch(world: World) -> None:
    world.commit(world.open(), 0)


@scenario()
def append_an_empty_epoch(world: World) -> None:
    sink = world.open()
    world.commit(sink, 0, ())
    world.commit(sink, 1)


@scenario()
def append_two_partitions(world: World) -> None:
    sink = world.open(partition_by=["day"])
    world.commit(sink, 0, (0, 1))
    world.commit(sink, 1, (100, 101, 102))


@scenario()
def two_pending_then_commit_each(world: World) -> None:
    sink = world.open()
    for epoch in (0, 1):
        world.prepare(sink, epoch)
    for epoch in (0, 1, 0):
        sink.commit(epoch)
        world.tell("committed", "w", epoch)


@scenario()
def commit_takes_earlier_pending_along(world: World) -> None:
    sink = world.open()
    world.prepare(sink, 0)
    world.prepare(sink, 1, ())
    world.commit(sink, 2)
    for epoch in (0, 1):
        world.tell("committed", "w", epoch)
    world.commit(sink, 5)


@scenario()
def abort_a_prepared_epoch(world: World) -> None:
    sink = world.open(partition_by=["day"])
    world.commit(sink, 0)
    world.prepare(sink, 1).abort()
    world.tell("aborted", "w", 1)
    world.commit(sink, 1)


@scenario()
def abort_an_open_transaction(world: World) -> None:
    sink = world.open()
    txn = world.begin(sink, 0)
    txn.abort()
    world.begin(sink, 0)
    sink.close()
    world.commit(world.open(), 0)


@scenario()
def overwrite_the_table(world: World) -> None:
    sink = world.open()
    world.commit(sink, 0, (0, 1))
    world.commit(sink, 1, (2, 3))
    world.commit(sink, 2, (0, 1, 5), mode="overwrite")
    world.commit(sink, 3)


@scenario()
def overwrite_with_nothing(world: World) -> None:
    sink = world.open(partition_by=["day"])
    world.commit(sink, 0, (0, 1))
    world.commit(sink, 1, (), mode="overwrite")
    world.commit(sink, 2, (2,))
    world.commit(sink, 3, (5,), mode="overwrite")


@scenario()
def overwrite_some_partitions(world: World) -> None:
    sink = world.open(partition_by=["day"])
    world.commit(sink, 0, (0, 1))
    world.commit(sink, 1, (0, 2), mode="overwrite", partition_overwrite="dynamic")
    world.prepare(sink, 2, (4, 7))
    world.prepare(sink, 3, (7, 9), mode="overwrite", partition_overwrite="dynamic")
    world.prepare(sink, 4, (11,))
    sink.commit(4)
    for epoch in (2, 3, 4):
        world.tell("committed", "w", epoch)


@scenario()
def rewind_to_an_earlier_epoch(world: World) -> None:
    sink = world.open()
    for epoch in (0, 1, 2):
        world.commit(sink, epoch)
    again = world.open(recover=False)
    again.recover(up_to=0, on_newer="rewind")
    world.tell("rewound", "w", 0)
    world.commit(again, 1)


@scenario()
def recover_commits_some_and_aborts_others(world: World) -> None:
    sink = world.open()
    for epoch in (0, 1, 2):
        world.prepare(sink, epoch)
    again = world.open(recover=False)
    again.recover(up_to=1)
    for what, epoch in (("committed", 0), ("committed", 1), ("aborted", 2)):
        world.tell(what, "w", epoch)
    world.commit(again, 2)


@scenario()
def sweep_what_a_dead_run_left(world: World) -> None:
    world.commit(world.open(), 0)
    dead = world.open(partition_by=[])
    world.begin(dead, 1).write(rows_table((100,)))
    txn = world.begin(dead, 2)
    txn._stager.finish()  # type: ignore[union-attr] # died between staging and preparing
    never = world.open(is_one_shot=True)
    world.begin(never, 1)._stager.finish()  # type: ignore[union-attr]
    world.open().sweep()


@scenario()
def write_once_and_replay(world: World) -> None:
    for epoch in (0, 1, 0, 1):
        sink = world.open(is_one_shot=True)
        world.commit(sink, epoch)
        sink.close()


@scenario("w", "v")
def two_writers_in_turn(world: World) -> None:
    first, second = world.open(), world.open("v")
    world.prepare(first, 0)
    world.commit(second, 0)
    world.begin(second, 1)
    first.commit(0)
    world.tell("committed", "w", 0)
    world.prepare(second, 3)


@scenario("w", "v")
def overwrite_while_another_appends(world: World) -> None:
    first, second = world.open(partition_by=["day"]), world.open("v")
    world.commit(first, 0, (0, 1))
    world.prepare(second, 0, (10_000, 10_001))
    world.prepare(first, 1, (0, 3), mode="overwrite")
    second.commit(0)
    world.tell("committed", "v", 0)
    first.commit(1)
    world.tell("committed", "w", 1)


@scenario(is_small=True)
def summaries_and_merges(world: World) -> None:
    sink = world.open()
    for epoch in range(7):
        world.commit(sink, epoch)
    world.open()


@scenario(is_small=True)
def expire_what_is_old(world: World) -> None:
    sink = world.open()
    for epoch in range(3):
        world.commit(sink, epoch)
    world.commit(sink, 3, (0, 7), mode="overwrite")
    world.commit(sink, 4)
    world.commit(sink, 5)
    world.remember()
    recovery.expire(sink.log, 12)
    world.commit(sink, 6)
    world.remember()
    recovery.expire(sink.log, 16)


@scenario("w", "v", is_small=True)
def expire_while_something_is_pending(world: World) -> None:
    sink, other = world.open(), world.open("v")
    world.commit(sink, 0)
    world.commit(sink, 1)
    world.prepare(other, 0)
    for epoch in (2, 3, 4):
        world.commit(sink, epoch)
    world.remember()
    recovery.expire(sink.log, 12)
    other.commit(0)
    world.tell("committed", "v", 0)
