"""The look for known vulnerabilities: "clean" is said only when every pinned package was looked up."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from vulnerabilities import CLEAN, FOUND, NOT_SCANNED, Ran, main, scan

ROOT = Path(__file__).parents[1]
PINS = """\
Click==8.3.1 \\
    --hash=sha256:00
    # via txsink
fsspec[http]==2026.9 \\
    --hash=sha256:00
tomli==2.5.0 ; python_full_version < '3.11' \\
    --hash=sha256:00
"""
GOOD = [{"name": "click", "version": "8.3.1", "vulns": []}, {"name": "fsspec", "version": "2026.9", "vulns": []}]
BAD = {"name": "fsspec", "version": "2026.9", "vulns": [{"id": "PYSEC-1", "fix_versions": []}]}
SKIPPED = {"name": "fsspec", "skip_reason": "Dependency not found on PyPI and could not be audited: fsspec (2026.9)"}


@pytest.fixture
def requirements(tmp_path: Path) -> Path:
    file = tmp_path / "requirements.txt"
    file.write_text(PINS)
    return file


def answer(*dependencies: Any, status: int = 0) -> Ran:
    return Ran(status, json.dumps({"dependencies": dependencies, "fixes": []}), "No known vulnerabilities found")


def test_clean_is_said_when_every_package_was_looked_up(requirements: Path) -> None:
    assert scan(requirements, lambda command: answer(*GOOD)) == (CLEAN, "clean: 2 packages, no known vulnerability")


def test_a_vulnerability_is_found_and_named(requirements: Path) -> None:
    status, said = scan(requirements, lambda command: answer(GOOD[0], BAD, status=1))
    assert status == FOUND
    assert "fsspec 2026.9: PYSEC-1" in said


UNREACHED: dict[str, Ran] = {
    "no network": Ran(1, "", "ERROR:pip_audit._cli:Could not connect to the vulnerability service"),
    "not installed": Ran(1, "", "No module named pip_audit"),
    "an index that knows no package": answer(GOOD[0], SKIPPED),
    "no package at all": answer(),
    "one package missing": answer(GOOD[0]),
    "no answer, and all is well": Ran(0, "", "No known vulnerabilities found"),
    "an answer in another form": Ran(0, "[]", ""),
    "a torn answer": Ran(0, '{"dependencies": [{"name": "cl', ""),
    "an answer without names": Ran(0, '{"dependencies": [{}]}', ""),
    "all looked up, and a failure": answer(*GOOD, status=1),
}


@pytest.mark.parametrize("what", UNREACHED)
def test_what_was_not_looked_up_is_not_scanned_and_never_clean(what: str, requirements: Path) -> None:
    status, said = scan(requirements, lambda command: UNREACHED[what])
    assert status == NOT_SCANNED
    assert said.startswith("not scanned: ")
    assert "clean" not in said


def test_an_empty_list_of_requirements_is_not_clean(tmp_path: Path) -> None:
    (tmp_path / "none.txt").write_text("# nothing\n")
    assert scan(tmp_path / "none.txt", lambda command: answer())[0] == NOT_SCANNED


def test_a_package_with_a_vulnerability_is_told_although_others_were_not_looked_up(requirements: Path) -> None:
    assert scan(requirements, lambda command: answer(BAD, status=1))[0] == FOUND


@pytest.mark.parametrize(
    ("ran", "codes", "counted"),
    [
        (answer(*GOOD), (CLEAN, CLEAN), "1 passed, 0 failed, 0 skipped"),
        (answer(GOOD[0], BAD, status=1), (FOUND, FOUND), "0 passed, 1 failed, 0 skipped"),
        (UNREACHED["no network"], (NOT_SCANNED, 0), "0 passed, 0 failed, 1 skipped: NOT SCANNED"),
    ],
)
def test_what_was_not_scanned_is_a_counted_skip_and_fails_where_none_is_expected(
    ran: Ran, codes: tuple[int, int], counted: str, requirements: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(requirements)], lambda command: ran) == codes[0]
    assert main([str(requirements), "--may-skip"], lambda command: ran) == codes[1]
    assert capsys.readouterr().out.count(f"audit of what users install: {counted}") == 2
    with pytest.raises(SystemExit, match="--may-skip"):
        main([str(requirements), "--quiet"], lambda command: ran)


def test_only_ci_expects_that_there_are_no_advisories() -> None:
    assert "--may-skip" not in (ROOT / "Makefile").read_text()
    assert "audit SCAN=--may-skip" in (ROOT / ".ci/run").read_text()


def test_the_real_file_of_what_users_install_is_read(requirements: Path) -> None:
    status, said = scan(ROOT / "requirements/runtime.txt", lambda command: answer(*GOOD))
    assert status == NOT_SCANNED
    found = re.search(r"for (\d+) of (\d+) packages", said)
    assert found
    assert int(found[2]) > 20


# -- bandit ---------------------------------------------------------------------------------------------------------

NOSEC = re.compile(r"#\s*nosec\b(.*)")


def unexplained(line: str) -> bool:
    """Whether the line silences bandit, but not for one rule and with a reason before it."""
    match = NOSEC.search(line)
    return match is not None and not (re.fullmatch(r" B\d{3}", match[1]) and re.search(r" -- \w+.* # nosec", line))


def test_every_line_that_bandit_may_not_look_at_says_which_rule_and_why() -> None:
    lines = [
        line
        for path in [*ROOT.glob("txsink/**/*.py"), *ROOT.glob("formats/**/*.py")]
        for line in path.read_text().split("\n")
    ]
    assert [line for line in lines if unexplained(line)] == []
    assert sum(NOSEC.search(line) is not None for line in lines) == 3, "a new one: is it needed?"
    section = (ROOT / "pyproject.toml").read_text().partition("[tool.bandit]")[2].partition("\n[")[0]
    assert "skips" not in section
    assert "exclude" not in section


@pytest.mark.parametrize("line", ["x  # nosec", "x  # nosec B301", "x  # noqa: S301 # nosec", "x # nosec B1 -- later"])
def test_a_skip_without_a_reason_is_seen(line: str) -> None:
    assert unexplained(line)
    assert not unexplained("x  # noqa: S301 -- Spark carried it # nosec B301")
