"""Skips that nobody expected fail CI; each reason that tests give is of a known kind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import installs
import skips
from code_map import ROOT

ALL = ",".join(skips.NEEDS)
WANTS = {
    "java": ["Spark needs Java: java is not installed: apt-get install openjdk-17-jre-headless"],
    "go": ["minio: it is built by Go, and go is not installed: apt-get install golang-go"],
    "root": ["only root mounts disks"],
    "pip": ["pyspark is not installed", "there is no .venv-readers: make .venv-readers/made"],
    "apt": ["mkfs.xfs is not installed: apt-get install xfsprogs"],
}


@pytest.mark.parametrize("need", skips.NEEDS)
def test_the_want_of_what_is_required_is_no_excuse(need: str) -> None:
    assert skips.unexpected(WANTS[need], need) == WANTS[need]
    assert skips.unexpected(WANTS[need], "") == []
    assert skips.unexpected(WANTS[need], ALL.replace(need, "")) == []


def test_what_the_machine_itself_lacks_is_an_excuse_and_an_unknown_reason_is_none() -> None:
    given = ["root may write everywhere; the simulated disk stands in, see below", "only root may mount"]
    assert skips.unexpected(given, ALL) == []
    assert skips.unexpected([*given, "it was flaky"], "") == ["it was flaky"]


@pytest.mark.parametrize("program", installs.PACKAGES)
def test_every_program_that_may_be_missing_is_of_a_kind(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    reason = installs.missing(program)
    if program == "go":
        reason = f"versitygw: it is built by Go, and {reason}"
    assert skips.unexpected([reason], "") == []
    assert skips.unexpected([reason], ALL) == [reason]


@pytest.mark.parametrize(("required", "ends"), [("java", 1), ("go", 0), (None, 0)])
def test_a_run_with_an_unexpected_skip_fails_where_something_is_required(
    required: str | None, ends: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["skips"]\n')
    module = tmp_path / "test_one.py"
    module.write_text(
        "import pytest\n\n\ndef test_one():\n    pytest.skip('java is not installed')\n\n\ndef test_two():\n    pass\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    monkeypatch.delenv(skips.VARIABLE, raising=False)
    if required is not None:
        monkeypatch.setenv(skips.VARIABLE, required)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(module)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == ends, done.stdout + done.stderr
    assert ("java is not installed" in done.stdout.rpartition("unexpected skips")[2]) is bool(ends)


def test_ci_says_what_its_machine_has() -> None:
    assert f"{skips.VARIABLE}=java,go,root,pip" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
