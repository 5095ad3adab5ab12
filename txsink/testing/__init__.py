"""Proof for programs that must write exactly once: faults, crash states, schedules, and a checker of what is left.

Promises: what stands here works on any `Store`, needs the base install only, and is never imported by the engine.
Relies on: the engine's seams, and those only: a `Store`, clock and ids that are handed in.
Does not promise: an interface as stable as `txsink` itself; changes stand in the change log.
"""

from txsink.testing.crash_book import Truth, Violation
from txsink.testing.crash_check import check_healed, check_wounded
from txsink.testing.crash_judge import judge
from txsink.testing.crash_world import World
from txsink.testing.every import Case, every_fault, open_on, table_on
from txsink.testing.faults import (
    Fault,
    FaultyStore,
    crash_after,
    crash_before,
    delay,
    fail_after,
    fail_before,
    hide_from_list,
    lose_answer,
    lose_request,
    reorder,
    repeat,
    stale,
    tear,
)
from txsink.testing.names import Names
from txsink.testing.objects import Objects
from txsink.testing.schedule import Schedule, Search, Setting
from txsink.testing.simdisk import Crash, SimDisk

__all__ = [
    "Case",
    "Crash",
    "Fault",
    "FaultyStore",
    "Names",
    "Objects",
    "Schedule",
    "Search",
    "Setting",
    "SimDisk",
    "Truth",
    "Violation",
    "World",
    "check_healed",
    "check_wounded",
    "crash_after",
    "crash_before",
    "delay",
    "every_fault",
    "fail_after",
    "fail_before",
    "hide_from_list",
    "judge",
    "lose_answer",
    "lose_request",
    "open_on",
    "reorder",
    "repeat",
    "stale",
    "table_on",
    "tear",
]
