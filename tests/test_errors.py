"""The errors: seven classes for the caller's next step, pinned."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from txsink import errors
from txsink.errors import InvalidRequestError, TxsinkError, counted, did_you_mean, first_of_all

TREE = {
    "UnavailableError": ("unavailable", True),
    "OutcomeUnknownError": ("outcome-unknown", False),
    "ConflictError": ("conflict", False),
    "FencedError": ("fenced", False),
    "CorruptError": ("corrupt", False),
    "InvalidRequestError": ("invalid-request", False),
    "InternalError": ("internal", False),
}
CLASSES = [getattr(errors, name) for name in TREE]


def test_the_tree_has_one_base_and_seven_kinds() -> None:
    public = {
        name: found for name, found in vars(errors).items() if inspect.isclass(found) and issubclass(found, TxsinkError)
    }
    assert {name: (found.kind, found.retryable) for name, found in public.items()} == {
        "TxsinkError": ("error", False),
        **TREE,
    }
    for name in TREE:
        assert public[name].__bases__[0] is TxsinkError


def test_the_drawing_in_the_docstring_is_the_tree() -> None:
    drawing = errors.__doc__ or ""
    drawn = [line.split("── ")[1].split()[0] for line in drawing.splitlines() if "── " in line]
    assert drawn == list(TREE)


def test_only_unavailable_means_retry() -> None:
    assert [found.__name__ for found in CLASSES if found.retryable] == ["UnavailableError"]


def test_an_invalid_request_is_a_value_error_and_no_other_error_is() -> None:
    assert [found.__name__ for found in CLASSES if issubclass(found, ValueError)] == ["InvalidRequestError"]


@pytest.mark.parametrize("found", CLASSES)
def test_a_message_says_what_was_attempted_what_was_found_and_what_to_do(found: type[TxsinkError]) -> None:
    error = found("commit epoch 7 of nightly", "the disk is full", "Make room, then retry", epoch=7)
    assert str(error) == "commit epoch 7 of nightly: the disk is full. Make room, then retry."
    assert (error.attempted, error.found, error.advice) == (
        "commit epoch 7 of nightly",
        "the disk is full",
        "Make room, then retry",
    )
    assert error.context == {"epoch": 7}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("found", CLASSES)
def test_an_error_survives_pickling_with_all_it_says(found: type[TxsinkError], protocol: int) -> None:
    error = found("read log entry 3", "it is torn", "Restore it", version=3, paths=["a", "b"])
    for again in (pickle.loads(pickle.dumps(error, protocol)), copy.deepcopy(error)):
        assert type(again) is found
        assert str(again) == str(error)
        assert again.context == {"version": 3, "paths": ["a", "b"]}
        assert (again.kind, again.retryable) == (error.kind, error.retryable)


def test_a_context_may_use_any_key() -> None:
    error = errors.ConflictError("a", "b", "C", cls="x", context="y")
    assert pickle.loads(pickle.dumps(error)).context == {"cls": "x", "context": "y"}


@pytest.mark.parametrize(
    ("found", "advice", "expected"),
    [
        ("it is full", "Make room", "a: it is full. Make room."),
        ("there is no 'mod'", did_you_mean("mod", ["mode"], ""), "a: there is no 'mod'. Did you mean 'mode'?"),
        ("no 'Day'; did you mean 'day'?", "Rename it.", "a: no 'Day'; did you mean 'day'? Rename it."),
    ],
)
def test_a_message_ends_its_sentences_once(found: str, advice: str, expected: str) -> None:
    """Seen: `Did you mean 'mode'?.`."""
    assert str(InvalidRequestError("a", found, advice)) == expected


def test_a_name_like_no_other_gets_the_other_advice() -> None:
    assert did_you_mean("zzz", ["mode", "parts"], "Choose one") == "Choose one"
    assert did_you_mean(7, ["mode"], "Choose one") == "Choose one"


@pytest.mark.parametrize(
    ("advice", "expected"),
    [
        ("Retry", ""),
        ("Retry when the NameNode has left safe mode", "Retry when the NameNode has left safe mode. "),
        ("Retry; name the name service", "Retry; name the name service. "),
        ("Retry. If it stays so, drop the epoch", "Retry. If it stays so, drop the epoch. "),
        ("Begin the epoch again", ""),
        ("Write the epoch again", ""),
        ("Make room, then retry", "Make room, then retry. "),
        ("Grant s3:GetObject, then retry.", "Grant s3:GetObject, then retry. "),
    ],
)
def test_what_is_to_be_done_or_awaited_before_the_call_is_made_again_is_said_first(advice: str, expected: str) -> None:
    assert first_of_all(errors.UnavailableError("write x", "it is full", advice)) == expected


def test_one_is_no_plural() -> None:
    """Seen: `1 files`."""
    assert [counted(number, "file") for number in (0, 1, 2, 1000)] == ["0 files", "1 file", "2 files", "1,000 files"]
