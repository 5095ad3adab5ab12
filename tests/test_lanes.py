"""The rooms of the tests: what each covers is summed up, and the gate looks at the sum."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import coverage_sum
import lanes
from code_map import ROOT
from coverage_sum import sum_up

MODULE = "import sys\nif len(sys.argv) > 1:\n    print(1)\nelse:\n    print(2)\n"


@pytest.fixture
def rooms(tmp_path: Path) -> Path:
    """Two rooms, of which each takes one of two branches."""
    (tmp_path / "module.py").write_text(MODULE)
    for room, words in (("one", []), ("two", ["word"])):
        measure = [sys.executable, "-m", "coverage", "run", "--branch", f"--data-file={room}", "module.py", *words]
        subprocess.run(measure, cwd=tmp_path, check=True, capture_output=True)
    return tmp_path


def test_what_each_room_covers_is_summed_up(rooms: Path) -> None:
    assert sum_up(rooms, ["one", "two"], ["module.py"], rooms) == 0
    assert sum_up(rooms, ["two", "one"], ["module.py"], rooms) == 0


@pytest.mark.parametrize("room", ["one", "two"])
def test_the_gate_fails_for_a_branch_that_no_room_takes(room: str, rooms: Path) -> None:
    assert sum_up(rooms, [room], ["module.py"], rooms) != 0


def test_the_gate_fails_for_a_room_that_left_nothing(rooms: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sum_up(rooms, ["one", "two", "three"], ["module.py"], rooms) == 1
    assert "nothing of three" in capsys.readouterr().out


def test_what_a_room_kept_before_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage_sum, "DIRECTORY", tmp_path)
    (tmp_path / "one").write_text("of yesterday")
    assert coverage_sum.environment("one")["COVERAGE_FILE"] == str(tmp_path / "one")
    assert not (tmp_path / "one").exists()


def test_every_room_measures_and_the_sum_of_all_is_told_in_ci() -> None:
    assert [*lanes.ROOMS, *lanes.STORES] == ["others", "proof", "stores", "waits"]
    makefile, ci = (ROOT / "Makefile").read_text(), (ROOT / ".ci/run").read_text()
    assert "tests/lanes.py stores" in makefile
    assert "tests/coverage_sum.py others proof stores waits" in ci


def test_a_closing_line_is_added_up() -> None:
    texts = ["==== 3 passed, 1 skipped in 2.00s ====", "1 failed, 2 passed in 1.00s (0:00:01)", "no closing line"]
    assert lanes.counted(texts) == {"passed": 5, "skipped": 1, "failed": 1, "error": 1}


@pytest.mark.parametrize("failing", [None, "one", "two"])
def test_rooms_run_beside_each_other_and_are_added_up(
    failing: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(marks: str) -> list[str]:
        told = "1 failed, 2 passed" if marks == failing else "3 passed"
        return [sys.executable, "-c", f"print('{told} in 0.10s'); raise SystemExit({int(marks == failing)})"]

    monkeypatch.setattr(coverage_sum, "DIRECTORY", tmp_path)
    monkeypatch.setattr(lanes, "command", command)
    assert lanes.main({"one": "one", "two": "two"}, ()) == (failing is not None)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == ("6 passed, 0 failed, 0 skipped" if failing is None else "5 passed, 1 failed, 0 skipped")
