"""Every schedule of the real code for two and three runs that meet, reads included as switch points (I1-I15)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

import schedules
from broken import Swap, rewrite
from ledger import is_full, report
from schedules import MEETINGS, search, sizes
from txsink.testing.crash_book import Violation
from txsink.testing.crash_world import World
from txsink.testing.names import Names
from txsink.testing.objects import Objects
from txsink.testing.schedule import Search, Setting

Disk = Callable[[], Names | Objects]
Ends = set[tuple[str, frozenset[object]]]
DISKS: list[Disk] = [Names, Objects]
OLD_LOGS = {"expiry, stalled append", "commit, expiry, append"}  # summaries cost most of the time
STORES = {Names: "memory", Objects: "bucket model"}

told: dict[str, Counter[str]] = {store: Counter() for store in STORES.values()}


def bound_of(name: str) -> int:
    """How many preemptions: more for two runs than for three."""
    bound = (3 if len(MEETINGS[name].runs) == 2 else 2) - (name in OLD_LOGS)
    return bound + 1 if is_full() else bound


@pytest.mark.parametrize("disk", DISKS)
@pytest.mark.parametrize("name", MEETINGS)
def test_whatever_the_schedule_no_promise_is_broken(name: str, disk: Disk) -> None:
    found = search(name, bound_of(name), disk)
    with sizes(name):
        runs = sum(1 for _ in found)
    assert runs == found.schedules + found.pruned
    assert found.schedules > 20
    told[STORES[disk]].update(  # type: ignore[index]
        schedules=found.schedules, schedules_cut_short=found.pruned, states=found.states, switch_points=found.points
    )


def test_the_schedules_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        for store, counts in told.items():
            count = counts["schedules"] + counts["schedules_cut_short"]
            report("schedules", store, {"chosen schedule": (count, count)}, counts)


@pytest.mark.parametrize("disk", DISKS)
def test_what_is_cut_short_would_have_ended_as_another_schedule_did(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "claim, commit"
    ends: dict[bool, Ends] = {True: set(), False: set()}
    for prunes, seen in ends.items():

        def end(_name: str, _meeting: object, world: World, *_: object, seen: Ends = seen) -> None:
            seen.add((world.disk.fingerprint(), frozenset(world.truth.told)))

        monkeypatch.setattr(schedules, "_end", end)
        found = search(name, 2, disk)
        if not prunes:
            make = found._make
            found = Search(lambda make=make: make()._replace(mark=None), 2)  # type: ignore[misc]
        with sizes(name):
            assert sum(1 for _ in found) > 50
    assert ends[True] == ends[False]


def test_a_failure_tells_how_to_replay_it(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "commit, sweep"
    rewrite(monkeypatch, *PLANTED[name][:2])
    with (
        sizes(name),
        pytest.raises(Violation, match=r"replay: python tests/schedules.py 'commit, sweep' Names") as found,
    ):
        list(search(name, 2))
    decisions = [int(one) for one in str(found.value).rpartition("Names ")[2].split()]
    with sizes(name), pytest.raises(Violation) as again:
        search(name, 2).replay(decisions)
    assert str(again.value) == str(found.value)


#: What is broken, and as what the meeting of that name must show it.
PLANTED: dict[str, tuple[str, Swap, str]] = {
    "commit, sweep": (
        "protocol.sweeping.sweep",
        ("        claim(log, run, tuple(sorted(unclaimed)))\n", "        pass\n"),
        "I6 I8 I10 I14",
    ),
    "abort, replace": (
        "protocol.resolving.roll_forward",
        ("            log.append(_resolving(log, run, pending, Publishing))\n", "            pass\n"),
        "I1 I6 I8",
    ),
    "commit, commit": (
        "protocol.fencing.standing",
        ("if run.generation is None and not log.is_retired", "if True or log.is_retired"),
        "I10 I14",
    ),
    "expiry, stalled append": ("log.log.Log.append", ("if stands:", "if True:"), "I3 I6 I7 I14"),
    "overwrite, open": ("protocol.sweeping._swept", ("and _was_replaced(log, run, name.path)", "and False"), "I14"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_the_schedules_show_what_is_broken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, swap, kinds = PLANTED[name]
    rewrite(monkeypatch, target, swap)
    with sizes(name), pytest.raises(Violation) as found:
        list(search(name, 2))
    print(found.value)
    assert found.value.kind.split()[0] in kinds.split(), found.value


# -- the search itself -------------------------------------------------------------------------------------


def counters(bound: int) -> tuple[list[int], Search]:
    """Two programs that each read a number, and then write it back increased by one: the ends of all schedules."""
    ends = []

    def make() -> Setting:
        numbers = [0]

        def act(point: Callable[..., None]) -> None:
            point()
            seen = numbers[0]
            point()
            numbers[0] = seen + 1

        return Setting([act, act], None, lambda *_: ends.append(numbers[0]))

    found = Search(make, bound)
    for _ in found:
        pass
    return ends, found


def test_without_preemptions_one_runs_after_the_other() -> None:
    assert counters(0)[0] == [2, 2]


def test_one_preemption_between_read_and_write_loses_an_update_and_every_schedule_comes_once() -> None:
    ends, found = counters(1)
    assert sorted(ends) == [1] * 2 + [2] * 4
    assert found.schedules == 6
    assert len(counters(9)[0]) == 6 + 4 + 4 + 6


def test_an_error_of_an_act_reaches_the_end_and_the_others_go_on() -> None:
    def fails(point: Callable[..., None]) -> None:
        point()
        message = "as planned"
        raise ValueError(message)

    seen: list[dict[int, BaseException]] = []
    for _ in Search(lambda: Setting([fails, lambda point: point()], None, lambda _, errors: seen.append(errors)), 1):
        pass
    assert all(isinstance(errors[0], ValueError) and len(errors) == 1 for errors in seen)


def test_the_same_decisions_give_the_same_run() -> None:
    assert counters(2)[0] == counters(2)[0]
