"""Where bytes live: the few verbs every store has, and what each one promises.

Promises (of every store, checked by `tests/contract_store.py`):
    paths are absolute strings of the store's own name space, with `/` between the parts;
    a verb that returns has taken durable effect, but for `put_hint`; a verb that raises UnavailableError has
    changed nothing that a reader of the log could see; OutcomeUnknownError says that it may have;
    errors of the store's client never pass through: they arrive as one of `txsink.errors`.
Relies on: nothing above it. Stores never import each other.
Does not promise: locks, time, or the order of listings.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeAlias

from txsink.entry import Upload
from txsink.errors import InvalidRequestError

Bytes: TypeAlias = bytes
Paths: TypeAlias = list[str]
Moves: TypeAlias = list[tuple[str, str]]


class Traits(NamedTuple):
    """What a store is like, as far as those above it have to know."""

    moves: bool = True  # a staged file has a name that `move` changes; if not, it is a pending upload (`Uploads`)
    keeps_names: bool = False  # what has expired is overwritten and not deleted: no name is ever used twice
    hint_every: int = 16  # versions: so many small objects may be read one by one to open a table


class Tail(NamedTuple):
    """The end of a file. `stamp` changes whenever the file was touched; empty where a store has none."""

    bytes: int
    data: Bytes
    stamp: str


class Output(Protocol):
    """A file being staged, as pyarrow wants a file: nobody sees it under its name's table before publish."""

    closed: bool

    def write(self, data: bytes, /) -> int:
        """Add bytes."""

    def flush(self) -> None:
        """Nothing: only `seal` makes bytes durable."""

    def seal(self) -> Upload | None:
        """Make the content durable and close. A store that cannot move files returns the upload that holds it."""

    def discard(self) -> None:
        """Close and delete what was written; never raises."""


class Store(Protocol):
    """The verbs. `root` arguments are directories the store may create and must make durable up to."""

    traits: Traits

    def resolve(self, uri: str) -> str:
        """The absolute path of `uri`."""

    def read(self, path: str, limit: int) -> bytes | None:
        """The whole object, at most `limit` + 1 bytes of it; None when there is none."""

    def tail(self, path: str, count: int) -> Tail | None:
        """Size and the last `count` bytes; None when there is no such file."""

    def list(self, path: str) -> Paths:
        """All files below a directory, as sorted relative paths; empty when there is none."""

    def put_if_absent(self, path: str, data: bytes, token: str) -> bool | None:
        """Create `path` whole and durable, or find it there: True / False; None: unknown, read it back.

        `token` is unique to this attempt (the entry's write_id).
        """

    def put_hint(self, path: str, data: bytes, token: str) -> None:
        """Replace `path` whole; readers see old or new. Not durable: a power cut may leave anything."""

    def replace(self, path: str, data: bytes, token: str) -> None:
        """Replace `path` whole and durably."""

    def create(self, path: str) -> Output:
        """A new file (its directories too); InternalError when it exists."""

    def settle(self, paths: Paths) -> None:
        """Make it durable, up to the file system's root, that these names are there, or that they are gone."""

    def move(self, moves: Moves) -> Moves:
        """Give each file its new name unless that is taken, durably.

        Returns the moves that were not made: the source was missing, or the name is another file's.
        """

    def delete(self, path: str) -> bool:
        """Delete one file: True; False when there is none. Not durable: a power cut may bring it back."""

    def prune(self, path: str, root: str) -> None:
        """Remove the directory `path` and its empty parents below `root`; what holds something stays."""

    def same_place(self, path: str, other: str) -> bool:
        """Whether files can be moved between the two directories without copying."""


class Uploads(Store, Protocol):
    """A store that cannot move files. What `create` makes is an upload to its final name, unseen until `complete`."""

    def complete(self, path: str, upload: Upload) -> bool:
        """Make the uploaded file appear under its name, durably, unless the name is taken: True.

        False: it was not made by this call, for whatever clear reason; the caller looks at `path`.
        """

    def cancel(self, path: str, upload: str) -> bool:
        """Drop a pending upload: True; False when there is none of that id. Afterwards it cannot be completed."""

    def uploads(self, path: str) -> list[tuple[str, str]]:
        """The pending uploads to names below a directory: (relative path, id), sorted."""

    def parts(self, path: str, upload: str) -> tuple[str, ...] | None:
        """The tags of the parts of a pending upload, in order; None when there is none of that id."""


class PathLike(Protocol):
    """A path object, of `pathlib` or another kind."""

    def __fspath__(self) -> str: ...


AnyPath: TypeAlias = str | PathLike


def uri_of(path: object) -> str:
    """A path as text: a string, or anything with `__fspath__`."""
    text = path.__fspath__() if hasattr(path, "__fspath__") else path
    if not isinstance(text, str):
        found = f"it is a {type(path).__name__}, not a string or a path"
        raise InvalidRequestError(f"open {path!r}", found, "Give a path")
    return text


def open_store(uri: str, storage_options: dict[str, object] | None = None) -> Store:
    """The store that serves `uri`."""
    if not isinstance(storage_options, dict | None):
        found = f"storage_options is a {type(storage_options).__name__}"
        raise InvalidRequestError(f"open {uri}", found, "Give a dictionary")
    scheme = uri.partition("://")[0] if "://" in uri else "file"
    if scheme == "file":
        from txsink.store.local import LocalStore  # noqa: PLC0415 -- stores are imported when opened

        if storage_options:
            raise InvalidRequestError(
                f"open {uri}", f"the local store takes no storage options, got {sorted(storage_options)}", "Drop them"
            )
        return LocalStore()
    if scheme in {"hdfs", "viewfs"}:
        try:
            from txsink.store.hdfs import HdfsStore  # noqa: PLC0415
        except ImportError as error:
            found = f"the client of HDFS is not there ({error})"
            raise InvalidRequestError(f"open {scheme}://", found, "Install txsink[hdfs]") from error
        return HdfsStore(uri, storage_options or {})
    raise InvalidRequestError(
        f"open {uri}",
        f"no store serves the scheme {scheme!r}",
        "Use a local path, or a file://, hdfs:// or viewfs:// URI",
    )
