"""The delete fence: in every test, whatever txsink takes away on a local disk or in memory bears a table's own name.

Promises: `raised` puts the fence into the stores of this process; a delete of any other name by a module of txsink is
an `OutsideError` at the call, and is counted, so that a test that swallows it fails as well. `seen` counts the rest.
Relies on: the grammar in `txsink.layout`, read once more here, in words of the test's own.
Does not promise: to know of which of two tables a name is. That is what `test_whose_files.py` and the swarm find out.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from txsink.store.local import LocalStore

PART = r"part-\d+-\d+-[0-9a-f]+\.parquet"
NAME = r"(?:[a-z0-9_-]|%[0-9a-f]{2})+"
OWN = re.compile(
    "|".join(
        (
            rf".*/{PART}",  # data, staged or published
            r".*/\.[0-9a-f]+(?:-\d+)?\.tmp",  # half-made
            r".*/_txsink/(?:log|state)/\d{20}\.json",
            r".*/_txsink/files/\d{20}-\d{20}\.segment",
            r".*/_txsink/removed/\d{20}/.*\.removed",
            rf".*/_txsink/staged/{NAME}/{NAME}",
            r".*/_delta_log/.*",
            r".*/guest-\d+-[0-9a-f]+/.*",
            r".*/\.checkpoint-[0-9a-f]+/_delta_log/.*",
        )
    ),
    re.DOTALL,
)

seen = 0
outside: list[str] = []
also: list[re.Pattern[str]] = []  # names that a test has given to its table


class OutsideError(AssertionError):
    """A delete of what no table has as its own."""


def check(path: str) -> None:
    """Count a delete, or refuse it."""
    global seen  # noqa: PLW0603 -- one count for the whole run
    if OWN.fullmatch(path) or any(name.fullmatch(path) for name in also):
        seen += 1
        return
    outside.append(path)
    raise OutsideError(path)


@contextmanager
def holding(name: str) -> Iterator[None]:
    """Meanwhile names of this form are the table's too: files of another program that Delta's log says are its own."""
    also.append(re.compile(name))
    try:
        yield
    finally:
        also.pop()


def raised() -> None:
    """Put the fence up, once for each process."""
    LocalStore.delete = _fenced(LocalStore.delete)  # type: ignore[method-assign, assignment]
    if importlib.util.find_spec("fsspec") is not None:  # where Spark 4.1 is tested there is none
        memory = importlib.import_module("txsink.store.memory").MemoryStore
        memory.delete = _fenced(memory.delete)


def _fenced(delete: Callable[[Any, str], bool]) -> Callable[[Any, str], bool]:
    def fenced(self: Any, path: str) -> bool:
        # Tests of the stores themselves delete what they like, also through a store that injects faults.
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and _module(frame).startswith("txsink.testing."):
            frame = frame.f_back
        caller = "" if frame is None else _module(frame)
        if caller.startswith(("txsink.", "pyspark_txsink")) and not caller.startswith("txsink.store."):
            check(path)
        return delete(self, path)

    return fenced


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))
