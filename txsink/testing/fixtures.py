"""Fixtures for pytest: `pytest_plugins = ["txsink.testing.fixtures"]` in your conftest.py.

Promises: `faulty_store` fails a test whose planned faults did not all happen; `sim_disk` is a disk of the test's own.
Relies on: pytest, which this module alone imports.
Does not promise: to be loaded by itself. Whoever installs txsink to write data gets no plug-in of pytest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import cast

import pytest

from txsink.store.local.store import LocalStore
from txsink.store.protocol import Store
from txsink.testing.faults import Fault, FaultyStore
from txsink.testing.names import Names
from txsink.testing.simdisk import SimDisk


@pytest.fixture
def sim_disk() -> SimDisk:
    """A POSIX disk in memory, whose power can be cut: `disk.after_power_cut("lost")`."""
    return SimDisk()


@pytest.fixture
def local_store(sim_disk: SimDisk) -> Store:
    """Txsink's local store on `sim_disk`."""
    return LocalStore(cast("ModuleType", sim_disk))


@pytest.fixture
def memory_store() -> Store:
    """A store in memory that moves files, of the test's own."""
    return Names().store()


@pytest.fixture
def faulty_store() -> Iterator[Callable[..., FaultyStore]]:
    """Make one: `faulty_store(store, crash_before(3), ...)`. The test fails when a planned fault did not happen."""
    made: list[FaultyStore] = []

    def make(store: Store, *plan: Fault) -> FaultyStore:
        made.append(FaultyStore(store, plan))
        return made[-1]

    yield make
    for one in made:
        one.check_delivered()
