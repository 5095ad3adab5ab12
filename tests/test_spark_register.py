"""The format in an environment that is not activated: Spark looks for it with the first `python3` of the PATH.

Promises: skipped, with the reason, where Java or pyspark is missing.
Relies on: a session in a process of its own.
Does not promise: what Spark's own message says in other versions than the one that is installed.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import spark_processes
from spark_processes import ROOT

if reason := spark_processes.missing():
    pytest.skip(reason, allow_module_level=True)

# What a user of it searches for.
MARKS = ["[DATA_SOURCE_NOT_FOUND]", "java.lang.ClassNotFoundException: txsink"]


def test_register_makes_the_format_known_and_the_guide_holds_the_error_without_it(tmp_path: Path) -> None:
    other = tmp_path / "bin" / "python3"  # a Python without any package
    other.parent.mkdir()
    other.write_text(f'#!/bin/sh\nexec "{Path(sys.executable).resolve()}" -S "$@"\n')
    other.chmod(0o755)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "PYTHONPATH"))}
    env |= {"PATH": f"{other.parent}{os.pathsep}{env['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, str(ROOT / "tests" / "spark_register_driver.py"), str(tmp_path / "table")]
    ended = spark_processes.run(command, tmp_path, env)
    assert ended.code == 0, ended.errors
    told = json.loads(ended.output.splitlines()[-1])
    assert told["rows"] == 3
    guide = " ".join((ROOT / "docs" / "spark.md").read_text().split())
    found = [line.partition(mark)[1:] for mark in MARKS for line in told["before"].splitlines() if mark in line]
    assert {mark for mark, _ in found} == set(MARKS)
    assert all("".join(line) in guide for line in found), found
