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

from collections.abc import Mapping
from typing import NamedTuple, Protocol, TypeAlias

from txsink.errors import InvalidRequestError
from txsink.records import Upload

Bytes: TypeAlias = bytes
Paths: TypeAlias = list[str]
Moves: TypeAlias = list[tuple[str, str]]
Pending: TypeAlias = list[tuple[str, str]]


class Traits(NamedTuple):
    """What a store is like, as far as those above it have to know."""

    moves: bool = True  # a staged file has a name that `move` changes; if not, it is a pending upload (`Uploads`)
    links: bool = False  # a file can have two names (`Links`)
    keeps_names: bool = False  # what has expired is overwritten and not deleted: no name is ever used twice
    hints_always: bool = False  # reads cost so much that the hint follows every commit


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

    @property
    def traits(self) -> Traits:
        """What those above have to know of it."""

    def resolve(self, uri: str) -> str:
        """The absolute path of `uri`."""

    def read(self, path: str, limit: int) -> bytes | None:
        """The whole object, at most `limit` + 1 bytes of it; None when there is none."""

    def tail(self, path: str, count: int) -> Tail | None:
        """Size and the last `count` bytes; None when there is no such file."""

    def list(self, path: str, limit: int | None = None) -> Paths:
        """All files below a directory, as sorted relative paths; empty when there is none.

        With `limit`, a look and no inventory: at most so many files, found among about as many names, in one request.
        """

    def present(self, paths: Paths) -> Paths:
        """Which of these names of one directory, given in order, there are.

        A store that lists a directory in the order of names, for one request, tells of those after the first as well.
        """

    def put_if_absent(self, path: str, data: bytes, token: str) -> bool | None:
        """Create `path` whole and durable, or find it there: True / False; None: unknown, read it back.

        What it finds may be this call's own, by an attempt whose answer was lost. `token` is unique to this call (the
        entry's write_id).
        """

    def put_hint(self, path: str, data: bytes, token: str) -> None:
        """Replace `path` whole; readers see old or new. Not durable: a power cut may leave anything."""

    def replace(self, path: str, data: bytes, token: str) -> None:
        """Replace `path` whole and durably."""

    def create(self, path: str) -> Output:
        """A new file (its directories too); InternalError when it exists."""

    def adopt(self, path: str, staged: str) -> None:
        """Make the file at `path`, which another program wrote and closed, durable under the new name `staged`."""

    def sync(self, path: str) -> None:
        """Make the content of a file durable that another program wrote; its name is `settle`'s."""

    def settle(self, paths: Paths) -> None:
        """Make it durable, up to the file system's root, that these names are there, or that they are gone."""

    def move(self, moves: Moves) -> Moves:
        """Give each file its new name unless that is taken, durably.

        Returns the moves that were not made: the source was missing, or the name is another file's.
        """

    def origin(self, path: str) -> str:
        """What every road to the directory at `path` shares and no copy of it has, as long as both are there."""

    def delete(self, path: str) -> bool:
        """Delete one file: True; False when there is none. Not durable: a power cut may bring it back."""

    def prune(self, path: str, root: str) -> None:
        """Remove the directory `path` and its empty parents below `root`; what holds something stays."""

    def same_place(self, path: str, other: str) -> bool:
        """Whether files can be moved between the two directories without copying."""


class Links(Store, Protocol):
    """A store where a file can have two names (`Traits.links`)."""

    def link(self, moves: Moves) -> Moves:
        """Like `move`, but the files keep their old names too."""


class Uploads(Store, Protocol):
    """A store that cannot move files. What `create` makes is an upload to its final name, unseen until `complete`."""

    def create_object(self, path: str) -> Output:
        """A new file that is there under this name once it is sealed."""

    def complete(self, path: str, upload: Upload) -> bool:
        """Make the uploaded file appear under its name, durably, unless the name is taken: True.

        False: it was not made by this call, for whatever clear reason; the caller looks at `path`.
        """

    def cancel(self, path: str, upload: str) -> bool:
        """Drop a pending upload: True; False when there is none of that id. Afterwards it cannot be completed."""

    def uploads(self, path: str) -> Pending:
        """The pending uploads to names below a directory: (relative path, id), sorted."""

    def parts(self, path: str, upload: str) -> tuple[str, ...] | None:
        """The tags of the parts of a pending upload, in order; None when there is none of that id."""


class StorageOptions(dict[str, object]):
    """What opens a store. It may hold secrets: as text it is its names alone."""

    def __repr__(self) -> str:
        return f"StorageOptions({', '.join(sorted(self))})"

    @classmethod
    def of(cls, given: object) -> StorageOptions:
        """What a caller gave, from here on without its values in any text."""
        if isinstance(given, cls):
            return given
        if not isinstance(given, Mapping | None):
            found = f"storage_options is of type {type(given).__name__}"
            raise InvalidRequestError("open a store", found, "Give a dictionary")
        if not all(isinstance(name, str) for name in given or ()):
            raise InvalidRequestError("open a store", "a name in storage_options is no string", "Give names as strings")
        return cls(given or {})
