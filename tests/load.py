"""Runs a command while something else keeps every core busy, as the machine of whoever tries it may be.

Promises: one process a core computes, at the priority of the tests, from before the command begins until it has ended;
then they are stopped, by their ids, and the exit code is the command's. A command that takes longer than it may is
stopped with all it started, and the exit code is 124. Should this program be killed, the others end by themselves.
Relies on: nothing.
Does not promise: a busy disk, or little memory.

    python tests/load.py [--seconds NUMBER] COMMAND WORD...
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

SECONDS_MAX = 4 * 3600.0
TOO_LONG = 124
_STEPS = 200_000  # between two looks at the clock: some milliseconds


def burn(parent: int, seconds: float) -> None:
    """Compute until the parent is gone or the time is up."""
    until = time.monotonic() + seconds
    while os.getppid() == parent and time.monotonic() < until:
        for _ in range(_STEPS):
            pass


@contextmanager
def busy(seconds: float) -> Iterator[list[int]]:
    """Every core has something else to do; who does it."""
    command = [sys.executable, __file__, "--burn", str(os.getpid()), str(seconds)]
    burners = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    try:
        yield [one.pid for one in burners]
    finally:
        for one in burners:
            one.kill()
        for one in burners:
            one.wait()


def run(command: list[str], seconds: float) -> int:
    """The exit code of the command, which leads a session of its own."""
    process = subprocess.Popen(command, start_new_session=True)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        print(f"stopped after {seconds:g} s: {' '.join(command)}", flush=True)
        return TOO_LONG
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main(words: list[str]) -> int:
    """Run the command under load."""
    if words[:1] == ["--burn"]:
        burn(int(words[1]), float(words[2]))
        return 0
    seconds = SECONDS_MAX
    if words[:1] == ["--seconds"]:
        seconds, words = float(words[1]), words[2:]
    if not words:
        raise SystemExit(__doc__)
    with busy(seconds + 60) as burners:
        print(f"{len(burners)} processes keep the cores busy: {' '.join(words)}", flush=True)
        code = run(words, seconds)
        # Had one ended, part of the run would have been a quiet one.
        is_whole = all(_is_there(one) for one in burners)
    print(f"under load: exit code {code}", flush=True)
    return code if is_whole or code else 1


def _is_there(process: int) -> bool:
    return os.waitpid(process, os.WNOHANG) == (0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
