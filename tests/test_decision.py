"""The table of recovery: every input has one answer, and the page that people read says the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product

import pytest

from txsink.publish import decision
from txsink.publish.decision import TABLE, Action, End, LogFact, decide

INPUTS = list(product(LogFact, End, End))
ANY = frozenset(End)


@pytest.mark.parametrize(("log", "staged", "target"), INPUTS)
def test_exactly_one_row_answers_every_input(log: LogFact, staged: End, target: End) -> None:
    matching = [action for fact, source, goal, action in TABLE if fact is log and staged in source and target in goal]
    assert len(matching) == 1
    assert decide(log, staged, target) is matching[0]


def test_the_page_says_what_the_table_says() -> None:
    """Each line of the docstring's table, parsed, is the row of TABLE in that place."""
    text = str(decision.__doc__)
    row = re.compile(r"^ {4}([A-Z]{4,})\b.*? {2,}(any|[A-Z]+) +(any|[A-Z]+) +([A-Z_]+)\b", re.MULTILINE)
    read = [
        (LogFact[fact], _ends(staged), _ends(target), Action[action])
        for fact, staged, target, action in row.findall(text)
    ]
    assert tuple(read) == TABLE


def _ends(word: str) -> frozenset[End]:
    return ANY if word == "any" else frozenset({End[word]})


def test_no_file_is_deleted_that_may_be_the_only_copy() -> None:
    """I8: a drop needs either the same file under the other name, or a log that names it nowhere."""
    for log, staged, target in INPUTS:
        action = decide(log, staged, target)
        if log in {LogFact.PENDING, LogFact.COMMITTED} and target is not End.SAME:
            assert action in {Action.MOVE, Action.CORRUPT}
        if log is LogFact.LIVE:
            assert action is Action.KEEP


def test_a_published_file_is_deleted_only_for_an_abort_and_only_when_it_is_ours() -> None:
    for log, staged, target in INPUTS:
        if decide(log, staged, target) is Action.DROP_BOTH:
            assert (log, target) == (LogFact.ABORTED, End.SAME)


def test_doing_what_the_table_says_leads_to_an_answer_that_changes_nothing_more() -> None:
    """I12: after its action, each state either stays or is an error; nothing goes round in circles."""
    after: dict[Action, Callable[[End, End], tuple[End, End]]] = {
        Action.MOVE: lambda staged, target: (End.ABSENT, staged),
        Action.DROP_STAGED: lambda staged, target: (End.ABSENT, target),
        Action.DROP_BOTH: lambda staged, target: (End.ABSENT, End.ABSENT),
    }
    for log, staged, target in INPUTS:
        action = decide(log, staged, target)
        if action in after:
            ends = after[action](staged, target)
            second = decide(log, *ends)
            assert second in {Action.DROP_STAGED, Action.KEEP, Action.CORRUPT}
            if second is Action.DROP_STAGED:
                assert after[second](*ends) == ends
            if second is Action.CORRUPT:
                assert action is second
