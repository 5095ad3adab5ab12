"""The verdict on what a crash left: check it, let the writers recover it, check it again, write on.

Promises: `judge` raises `Violation` for the first promise that is broken: on the wounded disk, in what the recovery
answers, on the healed disk, in what readers see; when thorough also in a second recovery (I12) and in further work
(I14).
Relies on: `crash_check` for what must hold; `World` for disk, processes, and what was told.
Does not promise: to leave the world as it was. Give it a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from txsink.delta.log import DeltaLog
from txsink.errors import TxsinkError
from txsink.log import expiry
from txsink.log.log import Log
from txsink.protocol import sweeping
from txsink.reading import delta_view
from txsink.testing.crash_book import ROOT, STAGING, Book, Files, Violation
from txsink.testing.crash_check import check_healed, check_log_reader, check_same, check_wounded
from txsink.testing.crash_delta import check_delta_reader
from txsink.testing.crash_world import World

Heal = Callable[[World], object]


def judge(
    world: World,
    writers: Iterable[str],
    *,
    expires: bool = False,
    is_thorough: bool = True,
    run: Callable[[Heal], object] | None = None,
) -> Files:
    """Check, recover, check; `is_thorough`: once more, and write an epoch. Returns the healed files.

    `run` runs the recovery, for whoever wants to watch it.
    """
    before = world.disk.files()
    book = check_wounded(before, world.truth)
    read_log(world, before, book)

    def recovers(world: World) -> None:
        heal(world, writers, expires=expires)

    if run is None:
        recovers(world)
    else:
        run(recovers)
    clear(world)
    healed = world.disk.files()
    after = check_healed(healed, world.truth, before, book)
    if is_thorough:
        read_log(world, healed, after)
        converge(world, writers, healed)
    return healed


def heal(world: World, writers: Iterable[str], *, expires: bool) -> None:
    """What the program does when it starts again; what it is told by that it builds upon."""
    sink = None
    for writer in writers:
        try:
            sink = world.sink(writer)
        except TxsinkError as error:
            raise Violation("I14 recovery refused", f"{type(error).__name__}: {error}") from error
        if sink.last_epoch is not None:
            world.tell("committed", writer, sink.last_epoch)
    if expires and sink is not None:
        world.remember()
        try:
            expiry.expire(sink.log, sink.log.state.version)
        except TxsinkError as error:
            raise Violation("I14 expiry refused", f"{type(error).__name__}: {error}") from error


def read_log(world: World, files: Files, book: Book) -> None:
    """What a reader that goes through the log sees."""
    try:
        reader = world.reader()
        live = {path: fact.file() for path, fact in reader.live().items()} if reader.exists else {}
    except TxsinkError as error:
        raise Violation("I13 reader refused", f"{type(error).__name__}: {error}") from error
    check_log_reader(files, live, book, world.truth)
    if world.truth.is_delta and reader.exists:
        check_delta_reader(files, delta_files(reader))


def delta_files(reader: Log) -> set[str]:
    """The files that the engine's reader of Delta tables sees."""
    delta = DeltaLog(reader.store, ROOT, reader.stamps, ROOT)
    try:
        facts = delta_view.facts_in(reader, delta, delta_view.state_at(reader, delta, None))
    except TxsinkError as error:
        raise Violation("I13 reader refused", f"{type(error).__name__}: {error}") from error
    return {fact.path or "" for fact in facts}


def clear(world: World) -> None:
    """Delete half-made log objects, as `txsink sweep` does."""
    sweeping.temporaries(world.log())


def converge(world: World, writers: Iterable[str], healed: Files) -> None:
    """I12: opening again changes nothing more. I14: work goes on."""
    heal(world, writers, expires=False)
    clear(world)
    again = world.disk.files()
    check_same(again, healed)
    for writer in writers:
        try:
            program = world.open(writer)
            last = program.sink.last_epoch
            program.commit(1_000 if last is None else last + 1_000, (90_000 + ord(writer[0]), 91_000 + ord(writer[0])))
        except TxsinkError as error:
            raise Violation("I14 no further epoch", f"{type(error).__name__}: {error}") from error
    clear(world)
    files = world.disk.files()
    if staged := [path for path in files if path.startswith(STAGING)]:
        raise Violation("I9 staged left-over", f"{staged}")
    book = check_wounded(files, world.truth)
    read_log(world, files, book)
