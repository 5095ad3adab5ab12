"""The ledger of faults: how a part reports what it did, and the page that is made of all reports.

Promises: `report` is the one way to be counted, a line `FAULTS {json}` on standard output (any program may print one,
in any language); `problems` names whatever makes a run prove less than it claims: fewer faults delivered than planned,
a failure, a cell that a part promised and did not fill; `page` hides none of them. `kept` and `found_again` carry the
last run of each part from one run of the suite to the next.
Relies on: parts that count a fault when it happened, and not when it was planned.
Does not promise: to run anything. That is `faults_run.py`.

One line, in the names below (`skipped`: classes that could not be tried here, each with the reason; `counts`: whatever
else the part counts, such as seeds, states, schedules, kills; `seconds` may be left out):

    FAULTS {"part":"swarm","store":"memory","faults":{"crash before a call":[912,912]},"counts":{"seeds":500},
            "failures":0,"skipped":{},"seconds":1.5}
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

LINE = re.compile(r"FAULTS (\{.*\})\s*$")

STORES = ("memory", "disk model", "bucket model", "local disk", "S3", "HDFS", "Delta")

Cell = tuple[str, str]  # fault class, store


class Report(NamedTuple):
    """What one part did on one store."""

    part: str
    store: str
    faults: dict[str, tuple[int, int]]  # by class: planned, delivered
    counts: dict[str, int]
    failures: int = 0
    skipped: dict[str, str] = {}  # noqa: RUF012 -- never changed
    seconds: float = 0.0


class Ran(NamedTuple):
    """One part that was run: its name, what it promised to fill, and how it ended."""

    name: str
    covers: frozenset[Cell]
    reports: list[Report]
    exit_code: int
    seconds: float
    told: str = ""  # when, and at which size


def report(
    part: str,
    store: str,
    faults: Mapping[str, tuple[int, int]],
    counts: Mapping[str, int],
    *,
    failures: int = 0,
    skipped: Mapping[str, str] | None = None,
    seconds: float = 0.0,
) -> None:
    """Tell the runner what was done. A run of pytest shows it with `-s`."""
    said = Report(part, store, dict(faults), dict(counts), failures, dict(skipped or {}), round(seconds, 1))
    print(f"\nFAULTS {json.dumps(said._asdict(), separators=(',', ':'))}", flush=True)


def is_full() -> bool:
    """Whether the part runs for the ledger, at its full size, and not within `make test`."""
    return os.environ.get("FAULTS_SCALE") == "full"


def seconds(within_tests: float) -> float:
    """How long a part that could go on for ever is to last."""
    return float(os.environ.get("FAULTS_SECONDS", within_tests))


def parsed(line: str) -> Report | None:
    """The report in a line of output; None when it holds none."""
    found = LINE.search(line)
    if found is None:
        return None
    said = Report(**json.loads(found[1]))
    if said.store not in STORES:
        message = f"{said.part} reports for the store {said.store!r}, not one of {STORES}"
        raise ValueError(message)
    return said._replace(faults=_pairs(said.faults))


def _pairs(faults: Mapping[str, Iterable[int]]) -> dict[str, tuple[int, int]]:
    return {fault: (planned, done) for fault, (planned, done) in faults.items()}


def cells(reports: Iterable[Report]) -> dict[Cell, tuple[int, int]]:
    """Planned and delivered of each class on each store."""
    planned, delivered = Counter[Cell](), Counter[Cell]()
    for one in reports:
        for fault, (wanted, done) in one.faults.items():
            planned[fault, one.store] += wanted
            delivered[fault, one.store] += done
    return {cell: (planned[cell], delivered[cell]) for cell in planned}


def problems(parts: Iterable[Ran]) -> list[str]:
    """Why the run does not count; nothing when it does."""
    found = []
    for part in parts:
        if part.exit_code:
            found.append(f"{part.name}: ended with {part.exit_code}")
        found += [f"{part.name}: {one.failures} failures on {one.store}" for one in part.reports if one.failures]
        done = cells(part.reports)
        for (fault, store), (planned, delivered) in done.items():
            if planned != delivered:
                found.append(f"{part.name}: {fault} on {store}: {planned} planned, {delivered} delivered")
        skipped = {(fault, one.store) for one in part.reports for fault in one.skipped}
        for fault, store in sorted(part.covers - skipped):
            if done.get((fault, store), (0, 0))[1] == 0:
                found.append(f"{part.name}: {fault} on {store}: none was delivered, and no reason given")
    return found


def kept(parts: Iterable[Ran]) -> str:
    """Parts as text, but for what they promise: that is for the suite to say anew."""
    return json.dumps([{**one._asdict(), "covers": None} for one in parts], indent=1)


def found_again(text: str, covers: Mapping[str, frozenset[Cell]]) -> dict[str, Ran]:
    """The parts in such a text that there still are, by name."""
    found = {}
    for one in json.loads(text):
        if one["name"] in covers:
            reports = [Report(*report)._replace(faults=_pairs(report[2])) for report in one["reports"]]
            found[one["name"]] = Ran(**{**one, "reports": reports, "covers": covers[one["name"]]})
    return found


def page(parts: list[Ran], reasons: Mapping[Cell, str], header: str) -> str:
    """The ledger as a page of the documents."""
    reports = [one for part in parts for one in part.reports]
    wrong = problems(parts)
    verdict = "**It does not count:**\n\n" + "\n".join(f"- {one}" for one in wrong) if wrong else "Failures: 0."
    return "\n".join(
        [
            "# Faults: the ledger",
            "",
            "Written by `make faults`; every number was counted when the fault happened. A run that delivered fewer",
            "faults than it planned fails. How the suite is built: [testing](testing.md).",
            "",
            header,
            "",
            verdict,
            "",
            "## Parts",
            "",
            *_parts_table(parts),
            "",
            "## Fault classes and stores",
            "",
            *_cells_table(reports, reasons),
            "",
        ]
    )


def _parts_table(parts: list[Ran]) -> list[str]:
    lines = [
        "| part | run | counted | faults planned | delivered | failures | minutes |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for part in parts:
        counts = Counter[str]()
        for one in part.reports:
            counts.update(one.counts)
        told = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items())
        done = cells(part.reports).values()
        planned, delivered = (sum(numbers) for numbers in zip(*done, strict=True)) if done else (0, 0)
        failures = sum(one.failures for one in part.reports) + bool(part.exit_code)
        numbers = f"{planned:,} | {delivered:,} | {failures} | {part.seconds / 60:.1f}"
        lines.append(f"| {part.name} | {part.told} | {told} | {numbers} |")
    return lines


def _cells_table(reports: list[Report], reasons: Mapping[Cell, str]) -> list[str]:
    done = cells(reports)
    skipped = {(fault, one.store): reason for one in reports for fault, reason in one.skipped.items()}
    notes: list[str] = []

    def shown(fault: str, store: str) -> str:
        if (fault, store) in done:
            return f"{done[fault, store][1]:,}"
        reason = skipped.get((fault, store)) or reasons.get((fault, store)) or "not in this run"
        if reason not in notes:
            notes.append(reason)
        return f"[{notes.index(reason) + 1}]"

    rows = dict.fromkeys([*(fault for fault, _ in reasons), *(fault for fault, _ in done)])
    lines = [f"| fault class | {' | '.join(STORES)} |", "| --- |" + " --- |" * len(STORES)]
    lines += [f"| {fault} | {' | '.join(shown(fault, store) for store in STORES)} |" for fault in rows]
    return [*lines, "", *(f"{number}. {reason}" for number, reason in enumerate(notes, 1))]
