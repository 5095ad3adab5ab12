"""Ask pip-audit for known vulnerabilities of what a requirements file pins, and never take silence for an answer.

python vulnerabilities.py REQUIREMENTS [--may-skip]      exits with 0: clean, 1: found, 2: not scanned

With `--may-skip`, where no advisories are to be had, "not scanned" exits with 0 as well; the closing line counts it as
a skip and not as a pass.

pip-audit says "No known vulnerabilities found", and exits with 0, also when the index it asked knew none of the
packages or sent no advisories. Here every pinned package must have been looked up, or the answer is "not scanned".
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

CLEAN, FOUND, NOT_SCANNED = 0, 1, 2
SECONDS_MAX = 600
_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*\])?==(\S+)( *;)?", re.MULTILINE)


class Ran(NamedTuple):
    """What became of a program."""

    status: int
    output: str
    errors: str


Run = Callable[[list[str]], Ran]


def scan(requirements: Path, run: Run) -> tuple[int, str]:
    """The exit code, and what it means in words."""
    # Those with a marker may have nothing to do with this interpreter.
    pinned = {_plain(name) for name, _, marker in _PIN.findall(requirements.read_text()) if not marker}
    options = ["--requirement", str(requirements), "--require-hashes", "--disable-pip", "--format", "json"]
    ran = run(["pip_audit", *options, "--progress-spinner", "off"])
    try:
        known = {_plain(one["name"]): one for one in json.loads(ran.output)["dependencies"]}
        affected = {f"{one['name']} {one['version']}": one["vulns"] for one in known.values() if one.get("vulns")}
        missing = {name for name in pinned if "vulns" not in known.get(name, {})}
    except (ValueError, KeyError, TypeError) as error:
        said = (ran.errors.strip().splitlines() or [f"exit code {ran.status}, {error!r}"])[-1]
        return NOT_SCANNED, f"not scanned: {said}"
    if affected:
        lines = [f"{name}: {', '.join(one['id'] for one in found)}" for name, found in sorted(affected.items())]
        return FOUND, "\n".join([f"vulnerabilities in {len(affected)} packages", *lines])
    if missing or not pinned:
        return NOT_SCANNED, f"not scanned: no advisories were to be had for {len(missing)} of {len(pinned)} packages"
    if ran.status != 0:
        return NOT_SCANNED, f"not scanned: pip-audit ended with {ran.status}"
    return CLEAN, f"clean: {len(pinned)} packages, no known vulnerability"


def _plain(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


def _run(command: list[str]) -> Ran:
    try:
        ran = subprocess.run(
            [sys.executable, "-m", *command], capture_output=True, text=True, timeout=SECONDS_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Ran(1, "", str(error))
    return Ran(ran.returncode, ran.stdout, ran.stderr)


def closing(status: int, said: str) -> str:
    """The last line, which counts the scan: a skip is no pass."""
    counts = {CLEAN: "1 passed, 0 failed, 0 skipped", FOUND: "0 passed, 1 failed, 0 skipped"}
    shown = counts.get(status, "0 passed, 0 failed, 1 skipped: NOT SCANNED, nothing is known of vulnerabilities")
    return f"{said}\naudit of what users install: {shown}"


def main(arguments: list[str], run: Run) -> int:
    """Scan and say so; the exit code."""
    requirements, *rest = arguments
    if rest not in ([], ["--may-skip"]):
        raise SystemExit(__doc__)
    status, said = scan(Path(requirements), run)
    print(closing(status, said))
    return 0 if rest and status == NOT_SCANNED else status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], _run))
