"""Find the store for a URI.

Promises: a URI that holds a secret is never repeated; what no store serves is refused with what does.
Relies on: the extras: each store brings its client along, and is imported when it is asked for.
Does not promise: that the store answers. Only stores whose put-if-absent and publish are shown to be atomic are served.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from importlib import import_module
from typing import Protocol, TypeAlias, cast

from txsink.errors import InvalidRequestError, did_you_mean
from txsink.store.protocol import StorageOptions, Store

# By scheme: the module, whose package is named like the extra that brings the client, and the class in it.
_STORES = {
    "file": ("local.store", "LocalStore"),
    "hdfs": ("hdfs.store", "HdfsStore"),
    "viewfs": ("hdfs.store", "HdfsStore"),
    "s3": ("s3.store", "S3Store"),
    "s3a": ("s3.store", "S3Store"),
    "memory": ("memory", "MemoryStore"),
}
_SERVED = "a local path or file://, hdfs://, s3:// (s3a://), memory:// (tests and notebooks)"
_IN_DELTA = ("gs", "gcs", "az", "azure", "abfs", "abfss", "adl")  # what deltalake serves besides
# A colon before the first slash that begins no port (nor is an ARN), and later an @: secrets hold slashes, too.
_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\")
_PASSWORD = re.compile(r"[^/]*://(?!arn:)[^/:]*:(?![0-9]+(?:/|$)).*@", re.DOTALL)


class PathLike(Protocol):
    """A path object, of `pathlib` or another kind."""

    def __fspath__(self) -> str: ...


AnyPath: TypeAlias = str | PathLike


def uri_of(path: object) -> str:
    """A path as text: a string, or anything with `__fspath__`."""
    text = path.__fspath__() if hasattr(path, "__fspath__") else path
    if not isinstance(text, str):
        found = f"it is of type {type(path).__name__}, not a string or a path"
        raise InvalidRequestError(f"open {reprlib.repr(path)}", found, "Give a path")
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise InvalidRequestError(
            f"open {text!r}", "the path is not UTF-8, and no reader takes it", "Name another path"
        )
    return text


def open_store(uri: str, storage_options: Mapping[str, object] | None = None) -> Store:
    """The store that serves `uri`."""
    options = StorageOptions.of(storage_options)
    scheme = _scheme(uri)
    module, name = _STORES[scheme]
    kind = module.partition(".")[0]
    takes_options = kind not in {"local", "memory"}
    if options and not takes_options:
        found = f"the {kind} store takes no storage options, got {sorted(options)}"
        raise InvalidRequestError(f"open {uri}", found, "Drop them")
    try:
        # Only now, and by name: each store brings its client along.
        store = getattr(import_module(f"txsink.store.{module}"), name)
        return cast("Store", store(uri, dict(options)) if takes_options else store())
    except ImportError as error:
        is_missing = isinstance(error, ModuleNotFoundError)
        found = f"the package {error.name} is missing" if is_missing else f"its client cannot be imported: {error}"
        advice = f"Install it: pip install 'txsink[{kind}]'"
        raise InvalidRequestError(f"open a {scheme}:// path", found, advice, scheme=scheme) from error


def _scheme(uri: str) -> str:
    """The scheme of a URI that some store serves, else the reason why none does; the URI may hold a secret."""
    if _WINDOWS.match(uri):
        raise InvalidRequestError(f"open {uri}", "it is a path of Windows", "Give a path of Linux or macOS")
    if "://" not in uri:
        scheme = uri.partition(":/")[0] if ":/" in uri else "file"
        if scheme == "file" or scheme not in {*_STORES, *_IN_DELTA}:
            return "file"
        raise InvalidRequestError(f"open {scheme}:/", "it has one slash", f"Write {scheme}://")
    scheme = uri.partition("://")[0]
    if _PASSWORD.match(uri):
        found = "it seems to hold a user and a password"
        advice = "Give credentials in storage_options, a profile or the environment"
        raise InvalidRequestError(f"open a {scheme}:// path", found, advice)
    if scheme in _STORES:
        return scheme
    found = (
        f"no store serves the scheme {scheme!r}: files must appear whole and never in the place of others, in one step,"
        " and of that store nobody has proved it"
    )
    otherwise = f"Use {_SERVED}"
    advice = did_you_mean(scheme, _STORES, otherwise, or_else=True, likeness=0.7)
    if scheme in _IN_DELTA:
        advice = f"{otherwise}; {scheme}:// is not served yet, in either layout"
    raise InvalidRequestError(f"open a {scheme}:// path", found, advice, scheme=scheme)
