"""Broken variants of the engine, made by rewriting one function for the length of a test: the engine has no hook.

Promises: `rewrite` replaces text in the source of a function that `code_map` finds, wherever it was imported to, until
the patch is undone; it refuses text that is not there exactly once, so a variant never outlives the line it breaks.
Relies on: `inspect.getsource`; functions without closures.
Does not promise: that a variant makes sense. The checkers have to say what is wrong with it.
"""

from __future__ import annotations

import inspect
import textwrap
from types import FunctionType
from typing import cast

import pytest

import code_map

Swap = tuple[str, str]


def rewrite(patch: pytest.MonkeyPatch, target: str, *swaps: Swap) -> None:
    """Give the function of that name (`code_map`) the code it has after the swaps."""
    function = cast("FunctionType", code_map.function(target))
    source = textwrap.dedent(inspect.getsource(function))
    for before, after in swaps:
        if source.count(before) != 1:
            message = f"{function.__qualname__} holds {before!r} {source.count(before)} times"
            raise AssertionError(message)
        source = source.replace(before, after)
    names: dict[str, object] = {}
    exec(
        compile(f"from __future__ import annotations\n{source}", function.__code__.co_filename, "exec"),
        function.__globals__,
        names,
    )
    patch.setattr(function, "__code__", cast("FunctionType", names[function.__name__]).__code__)
