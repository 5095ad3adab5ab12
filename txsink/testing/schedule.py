"""Several real programs, one awake at a time, in an order that is chosen and can be repeated.

Promises: between two calls of `point` exactly one act runs; who goes on at a point is decided by the `choose` that was
given, and by nothing else, so the same decisions give the same run (I16). `every_schedule` runs all schedules with at
most `bound` preemptions (a preemption takes the turn from an act that could have gone on), each once; where `mark`
says that a state is one that was seen before, what follows it is not run again.
Relies on: acts whose every step that others can see passes a point (a `FaultyStore` whose `pause` is `point`), and
that wait for nobody.
Does not promise: preemptions within a call of a store.

Each act has a thread, and the threads hand a baton on: the code under test is the real one, with locks and all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple

from txsink.testing.simdisk import Crash

Act = Callable[[], object]
Choose = Callable[[Sequence[int], "int | None"], int]  # of those ready, whose turn; and who had it, if it could go on


class Schedule:
    """Runs acts, one at a time."""

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self._acts: list[Act] = []
        self._workers: list[_Worker | None] = []
        self._ready: list[int] = []
        self._end = threading.Lock()
        self._end.acquire()
        self.current = -1
        self.is_stopped = False
        #: What each act raised, other than Crash.
        self.errors: dict[int, BaseException] = {}

    def add(self, act: Act) -> int:
        """One more act, also while others run. Returns its number."""
        number = len(self._acts)
        self._acts.append(act)
        self._workers.append(None)
        self._ready.append(number)
        return number

    def run(self) -> None:
        """Run until every act has ended."""
        if self._ready:
            self._wake(self._choose(self._ready, None))
            self._end.acquire()

    def point(self, *_: object) -> None:
        """Others may have their turn now. Called by the act that is awake."""
        if self.is_stopped:
            raise Crash
        here = self.current
        chosen = self._choose(self._ready, here)
        if chosen != here:
            worker = self._workers[here]
            self._wake(chosen)
            if worker is not None:
                worker.go.acquire()
        if self.is_stopped:
            raise Crash

    def stop(self) -> None:
        """Every act dies at the point where it is, or at its next one."""
        self.is_stopped = True

    def _wake(self, number: int) -> None:
        self.current = number
        worker = self._workers[number]
        if worker is None:
            worker = self._workers[number] = _IDLE.pop() if _IDLE else _Worker()
            worker.task = lambda: self._live(number)
        worker.go.release()

    def _live(self, number: int) -> None:
        """All of an act, in its thread."""
        try:
            if not self.is_stopped:
                self._acts[number]()
        except Crash:
            pass
        except BaseException as error:  # noqa: BLE001 -- whoever runs the schedule decides what it means
            self.errors[number] = error
        self._ready.remove(number)
        worker, self._workers[number] = self._workers[number], None
        if worker is not None:
            _IDLE.append(worker)
        if self._ready:
            self._wake(self._ready[0] if self.is_stopped else self._choose(self._ready, None))
        else:
            self._end.release()


class _Worker(threading.Thread):
    """A thread that does one task each time it gets the baton. Threads are kept: making one costs more than a run."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.go = threading.Lock()
        self.go.acquire()
        self.task: Act = int
        self.start()

    def run(self) -> None:
        """Wait for a task, for ever."""
        while True:
            self.go.acquire()
            task, self.task = self.task, int
            task()


_IDLE: list[_Worker] = []


# -- all schedules ----------------------------------------------------------------------------------------


class Setting(NamedTuple):
    """One fresh run: the acts, and what tells its state: everything the future depends on but whose turn it is."""

    acts: Sequence[Callable[[Callable[..., None]], object]]  # each gets the point to call
    mark: Callable[[], Hashable] | None
    end: Callable[[list[int], dict[int, BaseException]], object]  # judges a run that went to its end


class Search:
    """All schedules of a setting with at most `bound` preemptions, depth first."""

    def __init__(self, make: Callable[[], Setting], bound: int) -> None:
        self._make = make
        self._bound = bound
        self._decisions: list[tuple[int, list[int]]] = []  # taken, and the options that are left
        self._seen: dict[Hashable, int] = {}
        self.schedules = self.pruned = self.points = 0

    @property
    def states(self) -> int:
        """How many distinct states stood at a decision."""
        return len(self._seen)

    def __iter__(self) -> Iterator[None]:
        """Each step runs one schedule."""
        while True:
            self._run()
            yield
            while self._decisions and not self._decisions[-1][1]:
                self._decisions.pop()
            if not self._decisions:
                return
            _, options = self._decisions.pop()
            self._decisions.append((options[0], options[1:]))

    def replay(self, decisions: Sequence[int]) -> None:
        """One schedule again: the decisions that `Setting.end` was given."""
        self._decisions = [(one, []) for one in decisions]
        self._run(is_replay=True)

    def _run(self, *, is_replay: bool = False) -> None:
        setting = self._make()
        at = preemptions = 0
        taken: list[int] = []

        def choose(ready: Sequence[int], current: int | None) -> int:
            nonlocal at, preemptions
            self.points += 1
            left = self._bound - preemptions
            if len(ready) == 1:
                return ready[0]
            if current is not None and not left:
                if not is_replay and self._is_known(setting, ready, current, left):
                    schedule.stop()
                return current
            options = list(ready) if current is None else [current, *(one for one in ready if one != current)]
            if at == len(self._decisions):
                if not is_replay and self._is_known(setting, ready, current, left):
                    schedule.stop()
                    return options[0]
                self._decisions.append((options[0], options[1:]))
            chosen = self._decisions[at][0]
            at += 1
            taken.append(chosen)
            preemptions += current is not None and chosen != current
            return chosen

        schedule = Schedule(choose)
        for act in setting.acts:
            schedule.add(lambda act=act: act(schedule.point))  # type: ignore[misc]
        schedule.run()
        if schedule.is_stopped:
            self.pruned += 1
        else:
            self.schedules += 1
            setting.end(taken, schedule.errors)

    def _is_known(self, setting: Setting, ready: Sequence[int], current: int | None, left: int) -> bool:
        if setting.mark is None:
            return False
        key = (current, *ready, setting.mark())
        known = self._seen.get(key, -1)
        if known >= left:
            return True
        self._seen[key] = left
        return False
