"""A wrong call, the advice of its error, and the call as the advice says: a table of these is a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from advice import advised
from place import Place
from seen import rows_of


class Wrong(NamedTuple):
    """`wrong` fails at `place` with `words`; each of `rights` does what they say, on a table of its own."""

    place: str
    words: str
    wrong: Callable[[Place], object]
    rights: tuple[Callable[[Place], object], ...]
    first: Any = None  # rows that the table holds before, as epoch 0
    ids: tuple[int | None, ...] = (1,)  # what it holds in the end


def follow(case: Wrong, place: Place) -> None:
    """Make the mistake, do what its error says; in the end every row is there once, whoever reads."""
    for number, right in enumerate(case.rights):
        there = Place(place.path.with_name(f"T{number}"))
        there.stamps = place.stamps
        if case.first is not None:
            there.write(0, case.first)
        with advised(case.place, case.words):
            case.wrong(there)
        right(there)
        assert rows_of(there.path) == [*case.ids], (case.place, case.words)


def gives(data: Any, **options: Any) -> Callable[[Place], object]:
    """The call that writes these rows as epoch 1."""
    return lambda place: place.write(1, data, **options)
