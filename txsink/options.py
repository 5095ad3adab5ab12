"""The options of the public calls: which there are, and what is refused before anything is opened.

Promises: a name that a call does not take is refused with the one that may be meant, or with the call that takes it; a
value that cannot be, with those that can; no frame of ours holds storage options as they were given.
Relies on: `choices`; signatures, of which that of `open_writer` is the definition (tests/test_surface.py).
Does not promise: that the table agrees with what is asked for. `writing.opening` sees to that.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache, wraps
from typing import Any, TypeVar, cast, get_type_hints

import msgspec

from txsink.choices import Layout, Types, converted
from txsink.errors import InvalidRequestError, did_you_mean
from txsink.staging.parquet import StageOptions
from txsink.store.opening import uri_of
from txsink.store.protocol import StorageOptions

_Call = TypeVar("_Call", bound=Callable[..., Any])


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What `open_writer` takes besides the options of files, as the engine reads it."""

    partition_by: tuple[str, ...] | None = None
    layout: Layout | None = None
    types: Types | None = None
    merge_schema: bool = False
    staging_path: str | None = None
    storage_options: StorageOptions = msgspec.field(default_factory=StorageOptions)
    run: str | None = None
    recover: bool = True


_KINDS = get_type_hints(Options)
OPTIONS = (*Options.__struct_fields__, *StageOptions.__struct_fields__)
BEGIN_OPTIONS = ("mode", "partition_overwrite", "metadata", "parts")
# By the call that does not take them: the one that does.
_ELSEWHERE = {"open_writer": ("Writer.begin", BEGIN_OPTIONS), "begin": ("open_writer", OPTIONS)}


def public(call: _Call) -> _Call:
    """The call, which refuses keywords that are not its own before anything happens."""

    @wraps(call)
    def checked(*args: Any, **given: Any) -> Any:
        require_known(call, given)
        return call(*args, **given)

    return cast("_Call", checked)


def require_known(call: Callable[..., Any], given: dict[str, Any]) -> None:
    """Refuse keywords that the call does not take. Storage options lose their text, in place."""
    if "storage_options" in given:
        given["storage_options"] = StorageOptions.of(given["storage_options"])
    known = _names_of(call)
    for name in given:
        if name not in known:
            raise unknown(f"call {call.__name__}", name, known, call.__name__)


@cache
def _names_of(call: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(name for name in inspect.signature(call).parameters if name != "self")


def unknown(what: str, name: str, known: Collection[str], call: str = "") -> InvalidRequestError:
    """The error about a name that is no option of the call."""
    taker, taken = _ELSEWHERE.get(call, ("", ()))
    advice = did_you_mean(name, [*known, *taken], f"Known options: {', '.join(sorted(known))}")
    if name in taken:
        advice = f"Give {name!r} to `{taker}`, which takes it"
    return InvalidRequestError(what, f"unknown option {name!r}", advice)


def parse(path: str, given: Mapping[str, Any]) -> tuple[Options, StageOptions]:
    """What `open_writer` was given, by name, as the engine reads it."""
    what = f"open {path}"
    for name in given:
        if name not in OPTIONS:
            raise unknown(what, name, OPTIONS, "open_writer")
    chosen = dict(given)
    if isinstance(chosen.get("staging_path"), str) or hasattr(chosen.get("staging_path"), "__fspath__"):
        chosen["staging_path"] = uri_of(chosen["staging_path"])
    by = chosen.get("partition_by")
    if isinstance(by, str):
        chosen["partition_by"] = (by,)
    elif isinstance(by, Iterable):
        chosen["partition_by"] = tuple(by)
    chosen["storage_options"] = StorageOptions.of(chosen.get("storage_options"))
    own = {
        name: value if name == "storage_options" else converted(what, name, value, _KINDS[name])
        for name, value in chosen.items()
        if name in Options.__struct_fields__
    }
    stage = {name: value for name, value in chosen.items() if name in StageOptions.__struct_fields__}
    return Options(**own), StageOptions.of(**stage)
