"""Fresh processes in milliseconds: one that has imported everything forks a child for each program.

python forks.py    answers a line of JSON on its input, {"program": ..., "arguments": [...], "stops": ...}, with two:
                   {"pid": ...} once the child is there (stopped, if so wished), {"status": ...} once it is gone.

A child knows nothing of any table: the parent never opens one. It dies by an alarm when it hangs.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import pickle
import signal
import stat
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn, cast

import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.pandas_compat as pc
import pyarrow.vendored.version as pv

import power
import roads
import txsink.publish.rename
from txsink.errors import TxsinkError
from txsink.staging.parquet import StageOptions

LOADED = (
    pd,
    pc,
    pv,
    txsink.publish.rename,
)  # which a child would load at first use, in hundreds of calls that are not ours
SECONDS_MAX = 120
DONE, OURS, ITS_OWN, FOREIGN = 0, 7, 8, 9  # how a child ends: well, by a TxsinkError, by its own fault, by another
_PR_SET_PTRACER, _ANY = 0x59616D61, -1


class Child:
    """A child that was forked: its id, and what became of it once it is gone."""

    def __init__(self, parent: subprocess.Popen[str], pid: int) -> None:
        self.pid = pid
        self._parent = parent

    def wait(self) -> int:
        """Its exit code; minus the signal that killed it."""
        assert self._parent.stdout is not None
        return int(json.loads(self._parent.stdout.readline())["status"])


class Forks:
    """The door to a parent: `start` a program, or `run` it to its end."""

    def __init__(self, parent: subprocess.Popen[str]) -> None:
        self._parent = parent

    def start(self, program: str, *arguments: object, stops: bool = False) -> Child:
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        request = {"program": program, "arguments": list(map(str, arguments)), "stops": stops}
        self._parent.stdin.write(json.dumps(request) + "\n")
        self._parent.stdin.flush()
        return Child(self._parent, int(json.loads(self._parent.stdout.readline())["pid"]))

    def run(self, program: str, *arguments: object) -> int:
        return self.start(program, *arguments).wait()


@contextmanager
def forks() -> Iterator[Forks]:
    command = [sys.executable, __file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        try:
            yield Forks(parent)
        finally:
            assert parent.stdin is not None
            parent.stdin.close()
            parent.wait(timeout=SECONDS_MAX)


# -- the programs ---------------------------------------------------------------------------------------------


def idle() -> None:
    """Nothing: whoever only wants to know whether it can be traced."""


def work(path: str, told: str, tries: str) -> None:
    """Travel all roads. With two tries the same process goes on after an error, as one does that retries."""
    try:
        roads.travel(Path(path), Path(told))
    except (TxsinkError, roads.OwnError):
        if tries == "1":
            raise
        roads.travel(Path(path), Path(told))


def check(path: str, told: str, report: str) -> None:
    """Recover, and write down all that is wrong."""
    try:
        found = roads.faults_of(Path(path), Path(told))
    except TxsinkError as error:
        found = [f"I14: recovery fails: {error}"]
    Path(report).write_text("\n".join(found))


def work_until(path: str, told: str, call: str, disk: str, ends: str) -> None:
    """Travel until the call of that number of the operating system, where the power of the disk goes."""
    roads.travel(Path(path), Path(told), power.cut_at(int(call), partial(power.go_dark, Path(disk), Path(ends))))


def work_unsynced(path: str, told: str, call: str, disk: str, ends: str) -> None:
    """The same on a system whose fsync does nothing: the checks have to notice."""
    _work_lying(path, told, call, disk, ends, fsync=lambda handle: None)


def work_unnamed(path: str, told: str, call: str, disk: str, ends: str) -> None:
    """The same on a system whose fsync does nothing for directories: files are durable, their last names are not."""
    _work_lying(
        path, told, call, disk, ends, fsync=lambda at: None if stat.S_ISDIR(os.fstat(at).st_mode) else os.fsync(at)
    )


def _work_lying(path: str, told: str, call: str, disk: str, ends: str, *, fsync: Callable[[int], None]) -> None:
    lying = SimpleNamespace(**{name: getattr(os, name) for name in dir(os)})
    lying.fsync = fsync
    dark = partial(power.go_dark, Path(disk), Path(ends))
    roads.travel(Path(path), Path(told), power.cut_at(int(call), dark, cast("ModuleType", lying)))


def count(path: str, told: str, counted: str) -> None:
    """Travel, and write down after how many calls each epoch was told, and how many there were."""
    calls, found = itertools.count(1), [0]

    def call() -> None:
        found[-1] = next(calls)

    roads.travel(Path(path), Path(told), power.counted(call), lambda: found.append(found[-1]))
    Path(counted).write_text(json.dumps(found))


def stage(parcel: str, first: str, count: str, dies_at: str, records: str) -> None:
    """A worker's share of an epoch, with a stager that was sent to it; killed before that row, if so wished."""

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, int(count), 10):
            if start <= int(dies_at) < start + 10:
                os.kill(os.getpid(), signal.SIGKILL)
            ids = range(int(first) + start, int(first) + min(start + 10, int(count)))
            yield pa.record_batch({"id": list(ids), "k": [one % 4 for one in ids]})

    stager = msgspec.structs.replace(pickle.loads(Path(parcel).read_bytes()), options=StageOptions(row_group_rows=100))
    staged = stager.stage(batches())
    if int(dies_at) >= int(count):
        os.kill(os.getpid(), signal.SIGKILL)
    Path(records).write_text(json.dumps([one.to_dict() for one in staged]))


PROGRAMS: dict[str, Callable[..., None]] = {
    one.__name__: one for one in (idle, work, check, work_until, work_unsynced, work_unnamed, count, stage)
}


def child(request: dict[str, Any]) -> NoReturn:
    status = FOREIGN
    try:
        signal.alarm(SECONDS_MAX)
        if request["stops"]:
            ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _ANY, 0, 0, 0)  # a tracer that is no parent of ours
            os.kill(os.getpid(), signal.SIGSTOP)
        PROGRAMS[request["program"]](*request["arguments"])
        status = DONE
    except TxsinkError:
        status = OURS
    except roads.OwnError:
        status = ITS_OWN
    except BaseException:  # noqa: BLE001 -- whatever it is, it is told and the child ends here
        traceback.print_exc()
    os._exit(status)


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            child(request)
        if request["stops"]:
            os.waitpid(pid, os.WUNTRACED)
        print(json.dumps({"pid": pid}), flush=True)
        _, status = os.waitpid(pid, 0)
        print(json.dumps({"status": os.waitstatus_to_exitcode(status)}), flush=True)


if __name__ == "__main__":
    main()
