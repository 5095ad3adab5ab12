"""The examples end well: each proves its own result and says so by its exit code.

Promises: those on Spark are skipped, with the reason, where Java or pyspark is missing.
Relies on: `examples/demo.py`, which knows what Spark needs.
Does not promise: the demo on Spark. `make demo` runs it.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from programs import is_on_spark, programs_of

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
MISSING = runpy.run_path(str(EXAMPLES / "demo.py"))["missing"]()


def run(script: str | Path, directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    found = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "formats")]),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TMPDIR": str(directory),
        **environment,
    }
    command = [sys.executable, str(EXAMPLES / script)]
    return subprocess.run(command, cwd=directory, env=found, capture_output=True, text=True, check=False, timeout=900)


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.parametrize("script", sorted(path.name for path in EXAMPLES.glob("spark_*.py")))
def test_an_example_proves_its_result(script: str, tmp_path: Path) -> None:
    done = run(script, tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "exactly once" in done.stdout.splitlines()[-1]


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_the_programs_of_the_guide_run_in_their_order(tmp_path: Path) -> None:
    script = tmp_path / "guide.py"
    script.write_text("".join(programs_of("docs/spark.md")))
    done = run(script, tmp_path, PYSPARK_PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines() == ["committed", "33"]


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_the_programs_of_the_readme_on_spark_run(tmp_path: Path) -> None:
    script = tmp_path / "readme.py"
    script.write_text("".join(filter(is_on_spark, programs_of("README.md"))))
    done = run(script, tmp_path, PYSPARK_PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines() == ["committed", "100"]


@pytest.mark.parametrize(
    ("version", "advice"),
    [(None, "does not run"), ("1.8.0_452", "is Java 8"), ("11.0.27", "is Java 11"), ("unknown", "is Java ?")],
)
def test_the_demo_runs_in_plain_python_where_spark_does_not_and_says_what_to_install(
    version: str | None, advice: str, tmp_path: Path
) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    if version is not None:
        java = tmp_path / "bin" / "java"
        java.parent.mkdir()
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        java.chmod(0o755)
    done = run("demo.py", tmp_path, JAVA_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert advice in done.stdout
    assert "install Java 17 or later" in done.stdout
    assert done.stdout.endswith("every row exactly once\n")
