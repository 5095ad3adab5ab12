"""The delete fence: in every test, whatever txsink takes away, on whatever store, bears a table's own name.

Promises: `raised` puts the fence into the stores of this process; a delete of any other name by a module of txsink is
an `OutsideError` at the call, and is counted, so that a test that swallows it fails as well. `seen` counts the rest,
by store. On S3 it stands before every request that deletes objects, whichever verb of the store sends it.
Relies on: the grammar in `txsink.paths`, read once more here, in words of the test's own.
Does not promise: to know of which of two tables a name is. That is what `test_whose_files.py` and the swarm find out.
Uploads that are dropped have no fence: no reader ever saw one, and the server takes no upload's id for another's.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from txsink.store.local.store import LocalStore

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

seen: Counter[str] = Counter()  # by store
outside: list[str] = []
also: list[re.Pattern[str]] = []  # names that a test has given to its table


class OutsideError(AssertionError):
    """A delete of what no table has as its own."""


def check(path: str, store: str) -> None:
    """Count a delete, or refuse it."""
    if OWN.fullmatch(path) or any(name.fullmatch(path) for name in also):
        seen[store] += 1
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
    LocalStore.delete = _fenced(LocalStore.delete, "local")  # type: ignore[method-assign, assignment]
    # Where Spark 4.1 is tested there is none of these.
    if importlib.util.find_spec("fsspec") is not None:
        memory = importlib.import_module("txsink.store.memory").MemoryStore
        memory.delete = _fenced(memory.delete, "memory")
    if importlib.util.find_spec("hdfs_native") is not None:
        hdfs = importlib.import_module("txsink.store.hdfs.store").HdfsStore
        hdfs.delete = _fenced(hdfs.delete, "HDFS")
    if importlib.util.find_spec("s3fs") is not None:
        calls = importlib.import_module("txsink.store.s3.calls").Calls
        calls.once = _fenced_requests(calls.once)


def told() -> str:
    """What the fence saw."""
    by_store = ", ".join(f"{store} {count}" for store, count in sorted(seen.items()))
    kinds = f" ({by_store})" if seen else ""
    return f"delete fence: {seen.total()} deletes by txsink seen{kinds}, {len(outside)} outside of tables"


def _fenced(delete: Callable[[Any, str], bool], store: str) -> Callable[[Any, str], bool]:
    def fenced(self: Any, path: str) -> bool:
        # Tests of the stores themselves delete what they like, also through a store that injects faults.
        caller = _caller(("txsink.testing.",))
        if caller.startswith(("txsink.", "pyspark_txsink")) and not caller.startswith("txsink.store."):
            check(path, store)
        return delete(self, path)

    return fenced


def _fenced_requests(once: Callable[..., Any]) -> Callable[..., Any]:
    def fenced(self: Any, method: str, keywords: dict[str, Any], *more: Any) -> Any:
        if method in {"delete_object", "delete_objects"}:
            # What an upload's own thread sends is the engine's as well: no test stands above it.
            caller = _caller(("txsink.testing.", "txsink.store.", "concurrent.", "threading"))
            if not caller or caller.startswith(("txsink.", "pyspark_txsink")):
                many = [one["Key"] for one in keywords.get("Delete", {}).get("Objects", [])]
                for key in many or [keywords["Key"]]:
                    check(f"/{keywords['Bucket']}/{key}", "S3")
        return once(self, method, keywords, *more)

    return fenced


def _caller(passed: tuple[str, ...]) -> str:
    """The module that called, beyond those whose names begin so; empty where the stack begins there."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and _module(frame).startswith(passed):
        frame = frame.f_back
    return "" if frame is None else _module(frame)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))
