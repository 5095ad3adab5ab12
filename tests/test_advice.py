"""Every advice of every error asks for one of six things, and a test follows it; what none follows is listed."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from advice import ELSEWHERE, advised, followed, kind_of, says, sites, sites_in
from txsink.errors import ConflictError, InvalidRequestError
from txsink.writing import calls

SITES_MIN = 320
LEFT = Path(__file__).with_name("advice_left.txt")


def test_every_advice_asks_for_one_of_six_things(capsys: pytest.CaptureFixture[str]) -> None:
    found = [*sites()]
    unknown = [(site, text) for site in found for text in site.advice if kind_of(text) is None]
    assert unknown == []
    silent = Counter(site.module for site in found if not site.advice)
    assert all(count <= ELSEWHERE.get(module, 0) for module, count in silent.items()), silent
    kinds = Counter(kind_of(text) for site in found for text in site.advice)
    with capsys.disabled():
        print(f"\nadvice: {len(found)} places, {dict(kinds)}")
    assert sum(kinds.values()) >= SITES_MIN


def test_every_advice_is_followed_by_a_test_or_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """A new one belongs into a test; the list is of those that had none when it was made, and only gets shorter."""
    told = Counter((site.place, text) for site in sites() for text in site.advice)
    done = followed()
    by_test = {one: [case.test for case in done if case.place == one[0] and says(one[1], case.words)] for one in told}
    left = sorted(f"{place} | {text}" for (place, text), tests in by_test.items() if not tests)
    with capsys.disabled():
        print(f"\nadvice: {len(told) - len(left)} of {len(told)} followed, by {len(done)} blocks of tests")
    assert left == LEFT.read_text(encoding="utf-8").splitlines()


def test_a_test_follows_an_advice_that_is_there() -> None:
    for case in followed():
        assert any(case.place == site.place and says(text, case.words) for site in sites() for text in site.advice), (
            case
        )


def test_an_advice_that_asks_for_nothing_known_is_seen() -> None:
    assert kind_of("Hope for the best") is None
    assert kind_of("Restore the newest state") != kind_of("Restore it from a copy")
    assert says("Give 3 of them", "Give {} of")
    assert not says("Give 3 of them", "Take {} of")


WRITTEN = {
    "from itself": """
def act(is_far):
    advice = "Retry"
    if is_far:
        advice = advice + " later"
    raise ConflictError("a", "b", advice)
""",
    "handed through": """
def act():
    advice = "Retry"
    through(advice)
def through(advice):
    fail(advice)
def fail(advice):
    raise ConflictError("a", "b", advice)
""",
    "handed to itself": """
def act():
    fail("Retry", 3)
def fail(advice, tries):
    if tries:
        fail(advice, tries - 1)
    raise ConflictError("a", "b", advice)
""",
    "returned by itself": """
def said(tries):
    if tries:
        return said(tries - 1)
    return "Retry"
def act():
    raise ConflictError("a", "b", said(3))
""",
}


@pytest.mark.parametrize("written", WRITTEN)
def test_an_advice_that_leads_back_to_its_own_name_is_read_to_its_end(written: str) -> None:
    """Found: the reader went round for ever."""
    (site,) = sites_in("m", ast.parse(WRITTEN[written]))
    assert site.advice == (("Retry", "Retry later") if written == "from itself" else ("Retry",))


def test_an_error_of_another_place_or_with_other_words_is_not_taken_for_the_one_that_was_meant() -> None:
    shared = calls.Calls()

    def fail() -> None:
        with shared.whole("one"), shared.whole("two"):
            pass

    with advised("writing.calls.whole", "Call it when that has returned"):
        fail()
    for place, words in (
        ("writing.calls.between", "Call it when that has returned"),
        ("writing.calls.whole", "Call it twice"),
    ):
        with pytest.raises(AssertionError), advised(place, words):
            fail()
    for error in (InvalidRequestError, ConflictError):  # made by the test, and not by the place it names
        with pytest.raises(AssertionError), advised("writing.calls.whole", "Call it when that has returned"):
            raise error("one", "two", "Call it when that has returned")
