"""Python values -> one Arrow array that holds exactly these values, or the value that it would not hold.

The problem: pyarrow makes 1 of 1.5, drops the fields a struct does not have, the time of a datetime and the zone of
another, when it is told the type, and guesses a type by the first values when it is not.
Promises: `exact` and `check` are the one place that decides what a Python value is as a stored value; each value is
stored as it was, or `UnfitError` names where it stands, the value and the type.
Relies on: pyarrow to refuse integers and decimals out of range, and text that is no Unicode.
Does not promise: to keep a zone (the instant is kept), the scale of a decimal or the kind of a sequence.

    type                  takes                    and refuses
    integer               int                      bool, float
    float, double         float, int               what another number would be stored for
    decimal               Decimal, int             float
    string, binary        str; bytes and the like  each other
    date                  date                     datetime
    timestamp             datetime without a zone  date, datetime with one
    timestamp of UTC      datetime of any zone     date, datetime without one
    list                  a sequence, array or set text, mappings
    struct                a mapping                one with a field that the struct does not have
    map                   a mapping, or pairs      a key twice

None is null everywhere.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa

_SHOWN_CHARS = 80
_EPOCH_START = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)
_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


class UnfitError(ValueError):
    """A value that its column would not hold exactly; `path` names the column or the part of it."""

    def __init__(self, path: str, value: object, kind: pa.DataType, why: str = "") -> None:
        try:
            shown = repr(value)
        except RecursionError:
            shown = "a value of many levels"
        self.path = path
        self.value = shown if len(shown) <= _SHOWN_CHARS else f"{shown[:_SHOWN_CHARS]}…"
        self.type = str(kind)
        self.given = type(value).__name__
        self.why = why
        of_type = "has no type yet" if pa.types.is_null(kind) else f"is {kind}"
        super().__init__(f"column {path!r} {of_type} and would not hold {self.value} ({self.given}) exactly{why}")


def exact(values: list[Any], path: str, kind: pa.DataType | None = None) -> pa.Array[Any]:
    """The values as an array of `kind`, or of the type that all of them have."""
    try:
        array: pa.Array[Any] = pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise UnfitError(path, _culprit(values, kind), kind or _type_of_first(values), f": {error}") from error
    if isinstance(array, pa.ChunkedArray):  # more than 2 GiB of text
        array = pa.concat_arrays(array.chunks)
    check(values, array, path)
    return array


def check(values: list[Any], array: pa.Array[Any], path: str) -> None:
    """Refuse an array, made of the values, that holds something else."""
    if any(issubclass(one, pa.Scalar) for one in set(map(type, values))):
        values = [value.as_py() if isinstance(value, pa.Scalar) else value for value in values]
    types, kind = pa.types, array.type
    if types.is_list(kind):
        _check_list(values, array, path)
    elif types.is_map(kind):
        _check_map(values, array, path)
    elif types.is_struct(kind):
        _check_struct(values, array, path)
    else:
        _check_plain(values, array, path)


# -- values that hold others ------------------------------------------------------------------------------


def _check_list(values: list[Any], array: Any, path: str) -> None:
    parts = _parts(values, array.type, path, lambda value: not isinstance(value, (str, bytes, bytearray, Mapping)))
    check(list(chain.from_iterable(parts)), array.flatten(), f"{path}.element")


def _check_map(values: list[Any], array: Any, path: str) -> None:
    parts = _parts(values, array.type, path, lambda value: not isinstance(value, (str, bytes, bytearray)))
    pairs = [list(part.items()) if isinstance(part, Mapping) else list(part) for part in parts]
    for part, given in zip(pairs, parts, strict=True):
        if not isinstance(given, Mapping) and _has_repeated([key for key, _ in part]):
            raise UnfitError(path, given, array.type, ": a key stands twice in it")
    check([key for part in pairs for key, _ in part], array.keys, f"{path}.key")
    check([value for part in pairs for _, value in part], array.items, f"{path}.value")


def _has_repeated(keys: list[Any]) -> bool:
    try:
        return len(set(keys)) < len(keys)
    except TypeError:  # keys that are mappings or lists
        return any(key in keys[:index] for index, key in enumerate(keys))


def _check_struct(values: list[Any], array: Any, path: str) -> None:
    kind = array.type
    names = {field.name for field in kind}
    parts = _parts(values, kind, path, lambda value: isinstance(value, Mapping))
    for part in parts:
        if not part.keys() <= names:
            other = next(key for key in part if key not in names)
            raise UnfitError(path, part, kind, f": the struct has no field {other!r}")
    held = array.filter(array.is_valid())
    for index, field in enumerate(kind):
        check([part.get(field.name) for part in parts], held.field(index), f"{path}.{field.name}")


def _parts(values: list[Any], kind: pa.DataType, path: str, is_one: Callable[[Any], bool]) -> list[Any]:
    """The values that are not null, each of which must be of the right form."""
    found = [value for value in values if value is not None]
    for value in found:
        if not is_one(value) or not isinstance(value, Iterable):
            raise UnfitError(path, value, kind)
    return found


# -- plain values -----------------------------------------------------------------------------------------


class _Rule(NamedTuple):
    """What a type takes. `is_same` compares a given value with what is stored; None where the type's range is all."""

    takes: Callable[[type], bool]
    is_same: Callable[[Any, Any], bool] | None = None


def _check_plain(values: list[Any], array: pa.Array[Any], path: str) -> None:
    kind = array.type
    rule = _rule_of(kind)
    if rule is None:
        return  # of a type that no table holds: refused by its name
    wrong = {one for one in set(map(type, values)) if one is not type(None) and not rule.takes(one)}
    if wrong:
        raise UnfitError(path, next(value for value in values if type(value) in wrong), kind)
    if rule.is_same is not None:
        held = array.cast(pa.int64()) if pa.types.is_timestamp(kind) else array
        for given, stored in zip(values, held.to_pylist(), strict=True):
            if given is not None and (stored is None or not rule.is_same(given, stored)):
                raise UnfitError(path, given, kind)


def _rule_of(kind: pa.DataType) -> _Rule | None:
    types = pa.types
    if types.is_boolean(kind):
        return _Rule(lambda one: issubclass(one, bool) or one.__name__ == "bool")  # numpy's has that name
    if types.is_integer(kind):
        return _Rule(_is_integer)
    if types.is_floating(kind):
        return _Rule(lambda one: issubclass(one, numbers.Real) and not issubclass(one, bool), _is_same_number)
    if types.is_decimal(kind):
        return _Rule(lambda one: issubclass(one, Decimal) or _is_integer(one), lambda given, stored: stored == given)
    if types.is_string(kind):
        return _Rule(lambda one: issubclass(one, str))
    if types.is_binary(kind):
        return _Rule(lambda one: issubclass(one, (bytes, bytearray, memoryview)))
    if types.is_date(kind):
        return _Rule(lambda one: issubclass(one, date) and not issubclass(one, datetime))
    if types.is_timestamp(kind):
        return _Rule(
            lambda one: issubclass(one, datetime) or one.__name__ == "datetime64",
            lambda given, stored: _is_same_moment(given, stored, kind),
        )
    if types.is_time(kind):
        return _Rule(lambda one: issubclass(one, time), lambda given, stored: bool(given == stored))
    return None


def _is_integer(one: type) -> bool:
    return issubclass(one, numbers.Integral) and not issubclass(one, bool)


def _is_same_number(given: Any, stored: float) -> bool:
    if stored != stored:  # noqa: PLR0124 -- not a number
        return bool(given != given)  # noqa: PLR0124
    if isinstance(given, numbers.Integral):
        return int(given) == stored
    return bool(given == stored) and math.copysign(1, given) == math.copysign(1, stored)


def _is_same_moment(given: Any, stored: int, kind: Any) -> bool:
    if not isinstance(given, datetime):  # numpy's has no zone
        moment: Any = given.astype(f"datetime64[{kind.unit}]")
        return kind.tz is None and bool(moment == given) and int(moment.astype("int64")) == stored
    if (given.utcoffset() is None) is not (kind.tz is None):
        return False
    plain: Any = given
    nanoseconds = getattr(plain, "nanosecond", 0)  # of a pandas Timestamp
    plain = plain.to_pydatetime(warn=False) if hasattr(plain, "to_pydatetime") else plain
    plain = plain.replace(tzinfo=timezone.utc) if kind.tz is None else plain
    since = (plain - _EPOCH_START) // _MICROSECOND * 1000 + nanoseconds
    return bool(since == stored * _NANOSECONDS[kind.unit])


# -- what to name in an error -----------------------------------------------------------------------------


def _culprit(values: list[Any], kind: pa.DataType | None) -> object:
    """The first value that cannot be of the type, or is of another kind than the first one."""
    first: type | None = None
    for value in values:
        try:
            pa.array([value], kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return value
        if value is not None and kind is None:
            first = first or type(value)
            if type(value) is not first:
                return value
    return next((value for value in values if value is not None), None)


def _type_of_first(values: list[Any]) -> pa.DataType:
    for value in values:
        try:
            found = pa.array([value]).type
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            continue
        if not pa.types.is_null(found):
            return found
    return pa.null()
