"""Who may append as a writer: one run at a time; a newer one retires the one before.

Promises: `standing` raises FencedError for a run that another one has retired; a claim is one entry (I10).
Relies on: `Log.append`, which decides again after every lost race.
Does not promise: to stop the retired process. Its next append fails.
"""

from __future__ import annotations

from txsink.errors import FencedError
from txsink.log.entry import Claim
from txsink.log.log import Log, Slot
from txsink.log.state import State


class Run:
    """One life of a writer. `generation` is None until it has claimed; `opened` is the version it began to read at."""

    def __init__(self, writer: str, run: str, opened: int) -> None:
        self.writer = writer
        self.run = run
        self.opened = opened
        self.generation: int | None = None


def claim(log: Log, run: Run, retires: tuple[str, ...] = ()) -> None:
    """Make the run the holder of its writer, and retire runs that staged without ever claiming."""

    def make(state: State, slot: Slot) -> Claim | None:
        claims, generation = standing(log, state, run)
        if not claims and not retires:
            return None
        return Claim(**slot, writer=run.writer, run=run.run, generation=generation, retires=retires)

    log.append(make)
    hold(log.state, run)


def standing(log: Log, state: State, run: Run) -> tuple[bool, int]:
    """Whether the run has yet to claim, and its generation; FencedError when another run holds the writer."""
    known = state.writers.get(run.writer)
    if known is not None and known.run == run.run:
        return False, known.generation
    if run.generation is None and not log.is_retired(run.writer, run.run, run.opened):
        return True, 1 if known is None else known.generation + 1
    by = "a sweep" if known is None else f"run {known.run} (generation {known.generation}, at version {known.claimed})"
    raise FencedError(
        f"write as {run.writer!r} (run {run.run})",
        f"the run was retired by {by}",
        "Stop this process: the newer run has taken over, and finishes or drops what this one left",
        writer=run.writer,
        run=run.run,
        by=None if known is None else known.run,
    )


def hold(state: State, run: Run) -> None:
    """Remember that the run has claimed."""
    known = state.writers.get(run.writer)
    if known is not None and known.run == run.run:
        run.generation = known.generation
