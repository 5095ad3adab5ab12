"""Spark with Delta's own jars beside txsink, on one table: what each writes the other reads, and a stream moves.

Promises: skipped, with the reason, where there is no `.venv-bench-delta` (make .venv-bench-delta/made), no Java, or
Spark cannot fetch the jars.
Relies on: `delta_spark_child`, which runs there: no release of Delta runs whole on the newest Spark.
Does not promise: other versions of Delta's jars.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import installs

pytestmark = pytest.mark.stores  # it downloads, and takes minutes
ROOT = Path(__file__).parents[1]
PYTHON = ROOT / ".venv-bench-delta" / "bin" / "python"
CHILD_SECONDS = 900


def told(script: str, *arguments: str) -> list[dict[str, Any]]:
    """What a child with Delta's jars tells."""
    if not PYTHON.exists():
        pytest.skip("there is no .venv-bench-delta: make .venv-bench-delta/made")
    if reason := installs.missing("java"):
        pytest.skip(f"Spark needs Java: {reason}")
    paths = os.pathsep.join(str(ROOT / name) for name in (".", "formats", "tests"))
    python = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), str(PYTHON))
    done = subprocess.run(
        [str(PYTHON), str(Path(__file__).with_name(script)), *arguments],
        env={**os.environ, **python, "PYTHONPATH": paths, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=CHILD_SECONDS,
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if found and "missing" in found[0]:
        pytest.skip(found[0]["missing"])
    assert done.returncode == 0, done.stderr[-3000:]
    return found


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the child tells."""
    return told("delta_spark_child.py", str(tmp_path_factory.mktemp("delta")))


def test_sparks_delta_reads_every_version_and_every_type(seen: list[dict[str, Any]]) -> None:
    """S2, S3."""
    found = [one for one in seen if "version" in one]
    assert [one["version"] for one in found] == [0, 1, 2, 3, 4, 5, 6, "types"]
    for one in found:
        assert one["spark"] == one["ours"]
    assert len(found[-1]["spark"]) == 3


def test_what_only_deltas_reader_applies_is_refused_with_that_advice(seen: list[dict[str, Any]]) -> None:
    for one in (one for one in seen if "refused" in one):
        assert one["told"], f"{one['refused']}: it was read"
        assert {"vectors": "deletionVectors", "mapped": "columnMapping"}[one["refused"]] in one["told"][0]
    assert len([one for one in seen if "refused" in one]) == 2


def test_a_stream_moves_from_deltas_sink_to_txsink_and_back_and_every_row_is_there_once(
    seen: list[dict[str, Any]],
) -> None:
    """I1, I5: each replays to the other what that has committed; OPTIMIZE and RESTORE come in between."""
    moved = [one for one in seen if "moved" in one]
    assert [one["moved"] for one in moved] == ["delta", "txsink", "delta", "txsink", "txsink", "delta"]
    for number, one in enumerate(moved[:5], 1):
        assert one["rows"] == list(range(20 * number))
        assert one["ours"] in (None, one["rows"])
    (optimized,) = (one for one in seen if "optimized" in one)
    assert optimized["optimized"] == optimized["ours"] == list(range(80))
    (restored,) = (one for one in seen if "restored" in one)
    assert restored["restored"] == restored["ours"] == list(range(10))
    # What RESTORE took away is gone; the epochs stay committed, and what comes then is there once.
    assert moved[5]["rows"] == moved[5]["ours"] == [*range(10), *range(100, 120)]
