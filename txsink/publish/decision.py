"""What to do with one staged file after a crash, or at publish: a table, not code paths. Pure.

Promises: `decide` answers every combination of what the log and the two file names say, from exactly one row.
Relies on: its caller for the facts, taken in this order: staging listed, then the log read, then both ends looked at.
Does not promise: that doing it succeeds. Every action may be repeated, and may crash half-way.

A file end is ABSENT, SAME (its identity is the recorded one) or OTHER. `any` stands for each of them.

    the log says of the transaction          staged      target      action
    ---------------------------------------  ----------  ----------  ---------------------------------------------
    LIVE       its run holds the writer      any         any         KEEP       it may still be prepared
    UNCLAIMED  its run is not in the log     any         any         RETIRE     then look again: it is retired
    ORPHAN     nothing names it any more     any         any         DROP_STAGED
    PENDING    to be rolled forward          SAME        ABSENT      MOVE
    PENDING                                  any         SAME        DROP_STAGED  published already
    PENDING                                  ABSENT      ABSENT      CORRUPT    lost
    PENDING                                  OTHER       ABSENT      CORRUPT    altered
    PENDING                                  any         OTHER       CORRUPT    the name is somebody else's
    COMMITTED  and in the table              any         SAME        DROP_STAGED
    COMMITTED                                any         ABSENT      CORRUPT    perhaps the only copy
    COMMITTED                                any         OTHER       CORRUPT
    ABORTED                                  any         SAME        DROP_BOTH  staged first, or it could be moved again
    ABORTED                                  any         ABSENT      DROP_STAGED
    ABORTED                                  any         OTHER       DROP_STAGED  the target is not ours
"""

from __future__ import annotations

from enum import Enum


class LogFact(Enum):
    """What the log says of the transaction a staged file belongs to."""

    LIVE = "live"
    UNCLAIMED = "unclaimed"
    ORPHAN = "orphan"
    PENDING = "pending"
    COMMITTED = "committed"
    ABORTED = "aborted"


class End(Enum):
    """What lies under one of a file's two names."""

    ABSENT = "absent"
    SAME = "same"
    OTHER = "other"


class Action(Enum):
    """What to do."""

    KEEP = "keep"
    RETIRE = "retire"
    MOVE = "move"
    DROP_STAGED = "drop staged"
    DROP_BOTH = "drop both"
    CORRUPT = "corrupt"


_ANY = frozenset(End)
_ABSENT, _SAME, _OTHER = frozenset({End.ABSENT}), frozenset({End.SAME}), frozenset({End.OTHER})

TABLE: tuple[tuple[LogFact, frozenset[End], frozenset[End], Action], ...] = (
    (LogFact.LIVE, _ANY, _ANY, Action.KEEP),
    (LogFact.UNCLAIMED, _ANY, _ANY, Action.RETIRE),
    (LogFact.ORPHAN, _ANY, _ANY, Action.DROP_STAGED),
    (LogFact.PENDING, _SAME, _ABSENT, Action.MOVE),
    (LogFact.PENDING, _ANY, _SAME, Action.DROP_STAGED),
    (LogFact.PENDING, _ABSENT, _ABSENT, Action.CORRUPT),
    (LogFact.PENDING, _OTHER, _ABSENT, Action.CORRUPT),
    (LogFact.PENDING, _ANY, _OTHER, Action.CORRUPT),
    (LogFact.COMMITTED, _ANY, _SAME, Action.DROP_STAGED),
    (LogFact.COMMITTED, _ANY, _ABSENT, Action.CORRUPT),
    (LogFact.COMMITTED, _ANY, _OTHER, Action.CORRUPT),
    (LogFact.ABORTED, _ANY, _SAME, Action.DROP_BOTH),
    (LogFact.ABORTED, _ANY, _ABSENT, Action.DROP_STAGED),
    (LogFact.ABORTED, _ANY, _OTHER, Action.DROP_STAGED),
)


def decide(log: LogFact, staged: End, target: End) -> Action:
    """The action of the one row that matches."""
    return next(action for fact, source, goal, action in TABLE if fact is log and staged in source and target in goal)
