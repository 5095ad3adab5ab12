"""A table in a temporary directory, with counted ids and a counted clock, and the states a test wants it in."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

from seen import names, staging
from txsink.environment import Stamps
from txsink.log.entry import Prepare, Publishing
from txsink.options import BEGIN_OPTIONS
from txsink.protocol import resolving
from txsink.reading.table import Table, open_log
from txsink.store.local.store import LocalStore
from txsink.store.protocol import Store
from txsink.writing.opening import open_sink
from txsink.writing.writer import Writer


class Place:
    """A table to be, with counted ids and a counted clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        ids, clock = itertools.count(1), itertools.count(1_760_000_000_000, 1000)
        self.stamps = Stamps(lambda: next(clock), lambda: f"{next(ids):032x}", lambda attempt: None)

    def sink(self, writer: str = "w", **options: Any) -> Writer:
        return open_sink(LocalStore(), self.stamps, str(self.path), writer, options)

    def write(self, epoch: int, data: Any = None, writer: str = "w", **options: Any) -> None:
        of_begin = {name: options.pop(name) for name in BEGIN_OPTIONS if name in options}
        with (
            open_sink(LocalStore(), self.stamps, str(self.path), writer, options, is_one_shot=True) as sink,
            sink.begin(epoch, **of_begin) as txn,
        ):
            if data is not None:
                txn.write(data)

    def table(self, store: Store | None = None) -> Table:
        return open_log(store or LocalStore(), self.stamps, str(self.path))


def tree(path: Path) -> dict[str, bytes]:
    return {one.relative_to(path).as_posix(): one.read_bytes() for one in path.rglob("*") if one.is_file()}


def prepared(sink: Writer, epoch: int, data: Any, **options: Any) -> Prepare:
    txn = sink.begin(epoch, **options)
    txn.write(data)
    txn.prepare()
    return sink.log.prepare_entry(sink.log.state.pending_of(sink.writer)[-1].prepared)


def begin_publish(sink: Writer, prepare: Prepare) -> None:
    """As far as `roll_forward` goes before it moves a file."""
    pending = sink.log.state.pending_of(sink.writer)[0]
    sink.log.append(resolving._resolving(sink.log, sink.identity, pending, Publishing))


def rows(*ids: int) -> dict[str, list[int]]:
    return {"id": list(ids)}


def kinds(place: Place) -> list[str]:
    return [one.kind for one in place.table().history()][::-1]


def staged_files(place: Place) -> list[str]:
    root = staging(place.path)
    return names(root) if root.exists() else []


def commit(sink: Writer, *epochs: int) -> None:
    for epoch in epochs:
        with sink.begin(epoch) as txn:
            txn.write(rows(epoch))


def stage_only(sink: Writer, epoch: int) -> None:
    """A worker staged a file, and its coordinator died."""
    txn = sink.begin(epoch)
    txn.stager().stage(rows(epoch))


def copied(place: Place, number: int) -> Place:
    """The table without what is staged for it, somewhere else; ids go on."""
    there = Place(place.path.parent / f"{place.path.name}{number}")
    there.stamps = place.stamps
    shutil.copytree(place.path, there.path)
    return there


def restored(place: Place, before: dict[str, bytes]) -> Place:
    """The same table, with the files there were below its parent; its directories stay: a copy is another table."""
    for path in tree(place.path.parent):
        (place.path.parent / path).unlink()
    for path, data in before.items():
        (place.path.parent / path).parent.mkdir(parents=True, exist_ok=True)
        (place.path.parent / path).write_bytes(data)
    there = Place(place.path)
    there.stamps = place.stamps
    return there
