"""The values that options may have, and what a value that cannot be is told.

Promises: each set of values stands here once: type checkers, checks at run time, the CLI and the format all go by it;
the error about a value names the option and lists what it may be.
Relies on: `errors`; msgspec, which knows whether a value is of a type.
Does not promise: that values which are fine one by one go together.
"""

from __future__ import annotations

import types
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin

import msgspec

from txsink.errors import InvalidRequestError, did_you_mean

Layout: TypeAlias = Literal["parquet", "delta"]
Types: TypeAlias = Literal["spark", "arrow"]
Compression: TypeAlias = Literal["gzip", "lz4", "none", "snappy", "zstd"]  # what Spark reads without another jar
Mode: TypeAlias = Literal["append", "overwrite"]
PartitionOverwrite: TypeAlias = Literal["static", "dynamic"]
OnNewer: TypeAlias = Literal["fail", "skip", "rewind"]
OnNewCheckpoint: TypeAlias = Literal["fail", "resume"]
Guarantee: TypeAlias = Literal["exactly-once", "at-least-once", "at-most-once"]

_WORDS = {
    bool: "True or False",
    int: "an integer",
    str: "a string",
    tuple[str, ...]: "names of columns",
    type(None): "None",
}
_SHOWN = (str, bytes, int, float, tuple, list, type(None))  # of what else is given, its type says enough


def values_of(kind: object) -> tuple[str, ...]:
    """The values of a `Literal`, also of one that may be None; none of another type."""
    return tuple(value for part in _parts(kind) if get_origin(part) is Literal for value in get_args(part))


def require_choice(what: str, name: str, value: object, kind: object) -> None:
    """Refuse a value that is none of those of a `Literal`."""
    values = values_of(kind)
    if value not in values:
        found = f"{name} is {_shown(value)}, not one of {', '.join(map(repr, values))}"
        raise InvalidRequestError(what, found, did_you_mean(value, values, "Give one of these"))


def converted(what: str, name: str, value: object, kind: Any, *, is_strict: bool = True) -> Any:
    """The value as its type wants it; numbers may be given as text unless `is_strict`."""
    is_none = value is None and type(None) in _parts(kind)
    if values_of(kind) and not is_none:
        require_choice(what, name, value, kind)
    try:
        return msgspec.convert(value, kind, strict=is_strict)
    except msgspec.ValidationError as error:
        words = " or ".join(_WORDS[part] for part in _parts(kind))
        raise InvalidRequestError(what, f"{name} is {_shown(value)}", f"Give {words}") from error


def _parts(kind: object) -> tuple[Any, ...]:
    """The types of which a value may be one."""
    return get_args(kind) if get_origin(kind) in {Union, types.UnionType} else (kind,)


def _shown(value: object) -> str:
    return repr(value) if isinstance(value, _SHOWN) else f"of type {type(value).__name__}"
