"""Every fault at every store call of a program of yours, on any store.

Promises: `every_fault` runs the program once without a fault, to see its calls, and then once for each fault at each of
them, on a fresh store each time; what it yields is the store as the next process finds it. A fault that was planned
and did not happen is an AssertionError. `open_on` and `table_on` open a writer and a table on a store at hand, with
ids and a clock that count, so that a run can be repeated call by call.
Relies on: a program that makes the same calls each time, which every program does that takes time, ids and chance from
elsewhere.
Does not promise: a verdict. Recover as your program does, and compare what is there with what you were told.

    for case in every_fault(new_store, program):
        sink = open_on(case.store, "/lake/orders", "orders", life=2)     # the next process recovers
        ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from txsink.errors import TxsinkError
from txsink.reading.table import Table, open_log
from txsink.store.protocol import Store
from txsink.testing.crash_world import stamps_of
from txsink.testing.faults import Fault, FaultyStore, faults_at
from txsink.testing.simdisk import Crash
from txsink.writing.opening import open_sink
from txsink.writing.writer import Writer


class Case(NamedTuple):
    """One fault: what it was, at a call of which verb, what the program raised (Crash: it died), and the store then."""

    fault: Fault
    verb: str
    error: BaseException | None
    store: Store


def every_fault(new_store: Callable[[], Store], program: Callable[[Store], object]) -> Iterator[Case]:
    """The program with every fault at every call."""
    seen = FaultyStore(new_store())
    program(seen)
    for call, (verb, _) in enumerate(seen.trace, 1):
        for fault in faults_at(call, verb):
            store = new_store()
            faulty = FaultyStore(store, [fault])
            error: BaseException | None = None
            try:
                program(faulty)
            except (Crash, TxsinkError) as raised:
                error = raised
            faulty.check_delivered()
            faulty.deliver_rest()
            yield Case(fault, verb, error, store)


def open_on(store: Store, path: str, writer: str, *, life: int = 1, **options: Any) -> Writer:
    """`open_writer` on this store. `life`: give every process of your test another number."""
    return open_sink(store, stamps_of(life), path, writer, options)


def table_on(store: Store, path: str) -> Table:
    """`open_table` on this store."""
    return open_log(store, stamps_of(0), path)
