"""Faults at the nth system call of a real process, put there by strace, and counted from what strace wrote.

Promises: `Faults.hit` says whether the fault was delivered; a kill comes before the call has its effect, an error
instead of it. Calls are counted by name, from the moment the child goes on, in each of its threads.
Relies on: strace attached to a stopped child. Never `--seccomp-bpf`, which drops injections without a word.
Does not promise: short writes of a chosen size: strace cannot change a call, only replace it. `short` is a write that
takes nothing; writes that take a part come from full disks.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import installs
from forks import Child, Forks

# By what a fault can do to them. What a machine does not have (`?`) is left out by strace.
CHANGES = (
    "openat", "write", "pwrite64", "fsync", "fdatasync", "link", "linkat", "rename", "renameat", "renameat2", "unlink",
    "unlinkat", "mkdir", "mkdirat", "rmdir", "close", "ftruncate",
)  # fmt: skip
READS = ("pread64", "read", "getdents64", "newfstatat", "fstat", "lseek")
TRACED = ",".join(f"?{name}" for name in (*CHANGES, *READS))

_FULL = ("ENOSPC", "EDQUOT", "EIO", "EINTR")
ERRORS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("openat", "mkdir", "mkdirat"), (*_FULL, "EMFILE", "EROFS")),
    **dict.fromkeys(("write", "pwrite64"), (*_FULL, "short")),
    **dict.fromkeys(("fsync", "fdatasync", "link", "linkat", "rename", "renameat", "renameat2", "ftruncate"), _FULL),
    **dict.fromkeys(("unlink", "unlinkat", "rmdir", "close", "pread64", "read"), ("EIO", "EINTR")),
    **dict.fromkeys(("getdents64", "newfstatat", "fstat", "lseek"), ("EIO",)),
}
_CALL = re.compile(r"^\d+ +(\w+)\(")


class Fault(NamedTuple):
    """What happens at the nth call of that name: `kill`, the name of an error, or `short`."""

    kind: str
    call: str
    number: int

    @property
    def injection(self) -> str:
        what = {"kill": "signal=SIGKILL", "short": "retval=0"}.get(self.kind, f"error={self.kind}")
        return f"inject={self.call}:{what}:when={self.number}"


class Trace(NamedTuple):
    """What strace saw of a child."""

    status: int
    text: str

    def delivered(self, fault: Fault) -> int:
        """How often the fault came about."""
        if fault.kind == "kill":
            return int(self.status == -signal.SIGKILL)
        lines = [line for line in self.text.splitlines() if line.endswith("(INJECTED)")]
        return sum(f" {fault.call}(" in line or f"<... {fault.call} resumed" in line for line in lines)

    def calls(self) -> Counter[str]:
        """How many calls of each name the child's first thread made."""
        first = self.text.split(" ", 1)[0]
        own = (line for line in self.text.splitlines() if line.startswith(f"{first} "))
        return Counter(match[1] for line in own if (match := _CALL.match(line)))


def traced(child: Child, output: Path, *faults: Fault) -> Trace:
    """Let a stopped child go on, under strace."""
    command = ["strace", "-f", "-p", str(child.pid), "-o", str(output), "-e", f"trace={TRACED}"]
    for fault in faults:
        command += ["-e", fault.injection]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
        assert strace.stderr is not None
        said = strace.stderr.readline()
        os.kill(child.pid, signal.SIGCONT)
        status = child.wait()
        strace.wait(timeout=60)
    if "attached" not in said:
        raise PermissionError(errno.EPERM, said.strip())
    return Trace(status, output.read_text(errors="replace"))


def plan(calls: Counter[str]) -> list[Fault]:
    """Every fault at every call."""
    return [
        Fault(kind, call, number)
        for call in (*CHANGES, *READS)
        for kind in ("kill", *ERRORS[call])
        for number in range(1, calls[call] + 1)
    ]


def hindrance(parent: Forks, output: Path) -> str:
    """Why no child can be traced here; empty when it can."""
    if reason := installs.missing("strace"):
        return reason
    try:
        traced(parent.start("idle", stops=True), output)
    except PermissionError as error:
        return f"strace may not attach to a process here: {error.strerror}"
    return ""
