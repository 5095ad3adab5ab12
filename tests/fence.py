"""A store that refuses any path outside of the places it was built around: what an escape would touch, it reports.

Promises: every path of every verb is looked at before the store below sees it; `seen` counts them.
Relies on: paths being the arguments that begin with a slash, alone, in lists or in pairs.
Does not promise: anything of what the store below does with a path; symbolic links are its business.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable
from typing import Any, cast

from txsink.store.protocol import Store


class EscapeError(AssertionError):
    """A path outside of every place."""


class Fence:
    """A `Store` around another, for these places."""

    def __init__(self, store: Store, *places: str) -> None:
        self._store, self._places = store, places
        self.seen: set[str] = set()

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self._store, verb)
        if verb in {"traits", "resolve"} or not callable(found):
            return found
        return self._listed if verb == "list" else self._guarded(found)

    def _listed(self, path: str, limit: int | None = None) -> list[str]:
        """A listing; whether a directory above a place is a table may be looked at, when one is made."""
        above, log, rest = path.rpartition("/_txsink/log")
        if rest or not log or not any(place.startswith(f"{above}/") for place in self._places):
            self._check(path)
        return self._store.list(path, limit)

    def _guarded(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            kept = [
                list(one) if isinstance(one, Iterable) and not isinstance(one, (str, bytes)) else one
                for one in arguments
            ]
            for one in kept:
                self._check(one)
            return verb(*kept, **named)

        return call

    def _check(self, argument: object) -> None:
        if isinstance(argument, (list, tuple)):
            for one in argument:
                self._check(one)
        elif isinstance(argument, str) and "/" in argument:
            is_inside = any(argument == place or argument.startswith(f"{place}/") for place in self._places)
            if posixpath.normpath(argument) != argument or not is_inside:
                raise EscapeError(argument)
            self.seen.add(argument)


def fenced(store: Store, *places: str) -> Store:
    """The store as `Store`, which a class that answers to any verb cannot say of itself."""
    return cast("Store", Fence(store, *places))
