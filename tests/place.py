"""A table in a temporary directory, with counted ids and a counted clock, and the states a test wants it in."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from txsink import transaction
from txsink.entry import Prepare, Publishing
from txsink.sink import BEGIN_OPTIONS, open_sink
from txsink.slots import Stamps
from txsink.store import Store
from txsink.store.local import LocalStore
from txsink.table import Table, open_log
from txsink.writer import Sink


class Place:
    """A table to be, with counted ids and a counted clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        ids, clock = itertools.count(1), itertools.count(1_760_000_000_000, 1000)
        self.stamps = Stamps(lambda: next(clock), lambda: f"{next(ids):032x}", lambda attempt: None)

    def sink(self, writer: str = "w", **options: Any) -> Sink:
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


def prepared(sink: Sink, epoch: int, data: Any, **options: Any) -> Prepare:
    txn = sink.begin(epoch, **options)
    txn.write(data)
    txn.prepare()
    return sink.log.prepare_entry(sink.log.state.pending_of(sink.writer)[-1].prepared)


def begin_publish(sink: Sink, prepare: Prepare) -> None:
    """As far as `roll_forward` goes before it moves a file."""
    pending = sink.log.state.pending_of(sink.writer)[0]
    sink.log.append(transaction._resolving(sink.log, sink.identity, pending, Publishing))
