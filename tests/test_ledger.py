"""The ledger counts what was delivered, and nothing that was only planned."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import faults_run
from faults_run import PARTS, REASONS, Part, on
from ledger import STORES, Ran, Report, found_again, kept, page, parsed, problems, report

CRASH = "crash before a call"
COVERS = on("memory", CRASH)


def ran(*reports: Report, exit_code: int = 0) -> Ran:
    return Ran("swarm", COVERS, list(reports), exit_code, 60)


def counted(planned: int, delivered: int, failures: int = 0, skipped: dict[str, str] | None = None) -> Report:
    return Report("swarm", "memory", {CRASH: (planned, delivered)}, {"seeds": 5}, failures, skipped or {})


def test_a_report_is_one_line_that_is_read_back(capsys: pytest.CaptureFixture[str]) -> None:
    report("swarm", "memory", {CRASH: (3, 3)}, {"seeds": 5}, skipped={"power cut": "no disk"}, seconds=1.26)
    lines = capsys.readouterr().out.splitlines()
    assert [parsed(line) for line in lines if "FAULTS" in line] == [
        Report("swarm", "memory", {CRASH: (3, 3)}, {"seeds": 5}, 0, {"power cut": "no disk"}, 1.3)
    ]
    assert parsed(f".{lines[-1]}") is not None, "pytest has printed its dot first"
    assert parsed("other output") is None


def test_a_store_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="tape"):
        parsed('FAULTS {"part":"x","store":"tape","faults":{},"counts":{}}')


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        (ran(counted(3, 3)), None),
        (ran(counted(3, 2)), "3 planned, 2 delivered"),
        (ran(counted(3, 4)), "3 planned, 4 delivered"),
        (ran(counted(3, 3, failures=1)), "1 failures"),
        (ran(counted(3, 3), exit_code=1), "ended with 1"),
        (ran(counted(0, 0)), "none was delivered"),
        (ran(), "none was delivered"),
        (ran(Report("swarm", "memory", {}, {}, 0, {CRASH: "needs root"})), None),
    ],
)
def test_a_run_that_proves_less_than_it_claims_fails(part: Ran, problem: str | None) -> None:
    found = problems([part])
    assert len(found) == (problem is not None)
    assert problem is None or problem in found[0]
    assert ("Failures: 0." in page([part], {}, "x")) is (problem is None)


def test_the_page_shows_counts_reasons_and_what_was_left_out() -> None:
    other = counted(1, 1)._replace(faults={"kill -9": (1, 1)}, store="local disk")
    text = page([ran(counted(1200, 1200)), ran(other)], {(CRASH, "S3"): "no answer can be torn"}, "on 2 cores")
    assert "| swarm |  | 5 seeds | 1,200 | 1,200 | 0 | 1.0 |" in text
    assert "| crash before a call | 1,200 | [1] | [1] | [1] | [2] | [1] | [1] |" in text
    assert "2. no answer can be torn" in text
    assert "| kill -9 | [1] | [1] | [1] | 1 |" in text


def test_what_parts_told_is_kept_until_they_run_again() -> None:
    before = [ran(counted(3, 3), counted(2, 1))._replace(told="yesterday"), ran()._replace(name="gone")]
    assert found_again(kept(before), {"swarm": COVERS, "new": COVERS}) == {"swarm": before[0]}


def test_every_cell_is_filled_by_a_part_or_has_a_reason() -> None:
    covered = {cell for part in PARTS for cell in part.covers}
    classes = {fault for fault, _ in (*covered, *REASONS)}
    missing = [(fault, store) for fault in classes for store in STORES if (fault, store) not in {*covered, *REASONS}]
    assert missing == []
    assert not covered & set(REASONS), "a cell is filled, and has a reason why it is not"


def test_every_part_names_tests_or_programs_that_are_there() -> None:
    root = Path(__file__).parents[1]
    for part in PARTS:
        for argument in part.command:
            path = argument.partition("::")[0]
            assert not path.endswith(".py") or (root / path).exists(), part
    assert len({part.name for part in PARTS}) == len(PARTS)


SAYS = """print('.FAULTS {"part":"p","store":"memory","faults":{"f":[2,%d]},"counts":{}}')"""


@pytest.mark.parametrize(
    ("part", "code", "said"),
    [
        (Part("p", ("-c", SAYS % 2), on("memory", "f")), 0, "no failure"),
        (Part("p", ("-c", SAYS % 1), frozenset()), 1, "1 delivered"),
        (Part("p", ("-c", "raise SystemExit(3)"), frozenset()), 1, "ended with 3"),
        (Part("p", ("-c", "import time; time.sleep(60)"), frozenset(), seconds_max=0.5), 1, "ended with -9"),
    ],
    ids=["good", "fewer", "failing", "hanging"],
)
def test_the_runner_believes_what_parts_print_and_ends_those_that_hang(
    part: Part, code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults_run, "PARTS", (part,))
    monkeypatch.setattr(sys, "argv", ["faults_run.py", "--page", str(tmp_path / "page.md")])
    printed: list[str] = []
    monkeypatch.setattr("builtins.print", lambda *words, **_: printed.append(" ".join(words)))
    assert faults_run.main() == code
    assert said in printed[-1]
    assert (tmp_path / "page.md").read_text().startswith("# Faults")


def test_a_part_nobody_knows_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, faults_run.__file__, "--only", "nobody"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "no such part: nobody" in done.stderr
