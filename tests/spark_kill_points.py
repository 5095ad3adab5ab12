"""Where a Spark process is killed: before or after the n-th call of a store verb, or in the middle of one.

    WHOM/DOOR/POINT/NUMBER    driver or executor, the table whose path ends in DOOR, the point, and which call of it

A `sleeper` is a driver that is not killed, but stopped until somebody sends SIGCONT to its processes.

Promises: the call is counted in the process that makes it, be it the driver or a worker of Python; the kill is a
SIGKILL, and is told in a file of its own before it happens, so that a test can count kills and miss none.
Relies on: `TXSINK_KILLS`, the directory of those files; for the driver, which leads a process group of its own with
its JVM, `TXSINK_DRIVER`; /proc.
Does not promise: anything without /proc.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from txsink.store.local import output, store as local

EXECUTOR = b"CoarseGrainedExecutorBackend"


def arm(plans: str) -> None:
    """Do what is planned, each plan once; `;` stands between two."""
    for plan in plans.split(";"):
        whom, door, point, number = plan.split("/")
        kill = {"driver": kill_driver, "executor": kill_executor, "sleeper": stop_driver}[whom]
        _POINTS[point](Plan(door, point, itertools.count(1 - int(number)), partial(kill, plan)))


def kill_driver(name: str) -> None:
    """Kill the driver with its JVM, and this very process."""
    if tell(name):
        os.killpg(int(os.environ["TXSINK_DRIVER"]), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def stop_driver(name: str) -> None:
    """Stop the driver with its JVM, and this very process, which may be a worker in a group of its own."""
    if tell(name):
        driver = int(os.environ["TXSINK_DRIVER"])
        os.killpg(driver, signal.SIGSTOP)
        if os.getpgrp() != driver:
            os.kill(os.getpid(), signal.SIGSTOP)


def kill_executor(name: str) -> None:
    """Kill the JVM that this worker serves, and wait for what follows from that."""
    if tell(name):
        os.kill(executor_of(os.getpid()), signal.SIGKILL)
        signal.pause()


def tell(name: str) -> bool:
    """Whether this kill is still to be delivered; it is now."""
    try:
        (Path(os.environ["TXSINK_KILLS"]) / name.replace("/", "-")).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def executor_of(process: int) -> int:
    """The executor among the parents of a process."""
    while EXECUTOR not in Path(f"/proc/{process}/cmdline").read_bytes():
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return process


# -- the points -------------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """A kill to be delivered when `calls` reaches 0."""

    door: str
    point: str
    calls: Iterator[int]
    kill: Callable[[], None]

    def is_due(self, path: str) -> bool:
        is_ours = f"/{self.door}/" in path or f"/.{self.door}.txsink/" in path
        return is_ours and next(self.calls) == 0


def _at_entry(plan: Plan) -> None:
    """`before-prepare`, `after-commit` and so on: the append of an entry of that kind."""
    when, _, kind = plan.point.partition("-")
    append = local.LocalStore.put_if_absent

    def put_if_absent(self: local.LocalStore, path: str, data: bytes, token: str) -> bool | None:
        is_due = f'"kind":"{kind}"'.encode() in data and plan.is_due(path)
        if is_due and when == "before":
            plan.kill()
        created = append(self, path, data, token)
        if is_due:
            plan.kill()
        return created

    local.LocalStore.put_if_absent = put_if_absent  # type: ignore[method-assign]


def _at_delta_commit(plan: Plan) -> None:
    """`delta-before` and `delta-after`: the commit in Delta's log."""
    append = local.LocalStore.put_if_absent

    def put_if_absent(self: local.LocalStore, path: str, data: bytes, token: str) -> bool | None:
        is_due = "/_delta_log/" in path and plan.is_due(path)
        if is_due and plan.point == "delta-before":
            plan.kill()
        created = append(self, path, data, token)
        if is_due:
            plan.kill()
        return created

    local.LocalStore.put_if_absent = put_if_absent  # type: ignore[method-assign]


def _at_publish(plan: Plan) -> None:
    """In the middle of a publish: one file has its name, the others have not."""
    move = local.LocalStore.move

    def moved(self: local.LocalStore, moves: Any) -> Any:
        if len(moves) > 1 and plan.is_due(moves[0][1]):
            move(self, moves[:1])
            plan.kill()
        return move(self, moves)

    local.LocalStore.move = moved  # type: ignore[method-assign]


def _at_adopt(plan: Plan) -> None:
    """One file that Spark wrote has its staged name, the rest of it has not."""
    adopt = local.LocalStore.adopt

    def adopted(self: local.LocalStore, path: str, staged: str) -> None:
        adopt(self, path, staged)
        if plan.is_due(path):
            plan.kill()

    local.LocalStore.adopt = adopted  # type: ignore[method-assign]


def _at_seal(plan: Plan) -> None:
    """A worker has staged a file, and nobody knows."""
    seal = output.LocalOutput.seal

    def sealed(self: Any) -> None:
        seal(self)
        if plan.is_due(self._path):
            plan.kill()

    output.LocalOutput.seal = sealed  # type: ignore[method-assign]


_POINTS: dict[str, Callable[[Plan], None]] = {
    **{f"{when}-{kind}": _at_entry for when in ("before", "after") for kind in ("claim", "prepare", "commit")},
    "delta-before": _at_delta_commit,
    "delta-after": _at_delta_commit,
    "publish": _at_publish,
    "adopt": _at_adopt,
    "seal": _at_seal,
}
