"""`make load` keeps the cores busy for as long as its command runs, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import installs
import load
from code_map import ROOT

LOAD = [sys.executable, str(Path(load.__file__))]
# Says which processes its parent, the program under test, started besides it, and what they have computed so far.
BESIDE = """
import os, pathlib, time
def others():
    for one in pathlib.Path("/proc").iterdir():
        if one.name.isdecimal() and int(one.name) != os.getpid():
            try:
                fields = (one / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it ended meanwhile
                continue
            if int(fields[1]) == os.getppid():
                yield int(one.name), int(fields[11])
def ticks():
    found = {}
    while not found or min(found.values()) == 0:
        found = dict(others())
    return found
print(*ticks())
"""
needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc to look into")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*LOAD, *words], capture_output=True, text=True, check=False, timeout=600)


@needs_proc
def test_every_core_is_busy_while_the_command_runs_and_no_longer() -> None:
    done = run(sys.executable, "-c", BESIDE)
    assert done.returncode == 0, done.stderr
    burners = [int(word) for word in done.stdout.splitlines()[-2].split()]
    assert len(burners) == os.cpu_count()
    for one in burners:
        assert not Path(f"/proc/{one}").exists() or "load.py" not in Path(f"/proc/{one}/cmdline").read_text()


def test_the_exit_code_is_that_of_the_command() -> None:
    assert run(sys.executable, "-c", "raise SystemExit(7)").returncode == 7


def test_a_command_that_takes_too_long_is_stopped_with_what_it_started() -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    done = run("--seconds", "0.5", sys.executable, "-c", program)
    assert done.returncode == load.TOO_LONG
    assert "stopped after 0.5 s" in done.stdout


def test_a_burner_without_its_parent_ends() -> None:
    assert subprocess.run([*LOAD, "--burn", "1", "600"], check=False, timeout=120).returncode == 0


def test_without_a_command_it_says_how_it_is_called() -> None:
    done = run()
    assert done.returncode == 1
    assert "COMMAND" in done.stderr


def test_make_load_runs_the_targets_of_make_under_load() -> None:
    done = subprocess.run(["make", "-n", "load", "TARGETS=lint"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.search(r"tests/load\.py \S*make --no-print-directory lint", done.stdout), done.stdout


def test_what_is_not_installed_is_said_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    for program, package in installs.PACKAGES.items():
        assert installs.missing(program) == f"{program} is not installed: apt-get install {package}"
    monkeypatch.undo()
    monkeypatch.setitem(installs.PACKAGES, "sh", "dash")
    assert installs.missing("sh") == ""


def test_every_program_that_a_test_looks_for_is_said_with_its_line() -> None:
    """A test that asks for a program by itself would skip without a word on how to come by it."""
    asks = re.compile(r"""which\(["'](go|java|strace|mkfs)""")
    found = [path.name for path in Path(__file__).parent.glob("*.py") if asks.search(path.read_text(encoding="utf-8"))]
    assert found == []
