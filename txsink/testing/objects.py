"""An object store as a test wants it: a bucket in memory that can be copied, and whose every change can be watched.

Promises: the verbs of `Store` and `Uploads` as S3 has them: a put is whole or not there, a name is created once when
asked so, a pending upload is unseen until it is completed, completing or dropping it ends it; `files` shows pending
uploads as staged files, so that the checkers of the crash proof judge a bucket as they judge a disk.
Relies on: nothing.
Does not promise: anything about requests, time-outs and errors of a real server.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from txsink.errors import InternalError, InvalidRequestError
from txsink.records import Upload
from txsink.store.protocol import Moves, Output, Paths, Pending, Tail, Traits
from txsink.testing.crash_book import ROOT, STAGING


class Objects:
    """The bucket."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.pending: dict[tuple[str, str], dict[str, bytes]] = {}  # by name and id: parts by tag
        self.watch: Callable[[Objects], None] | None = None
        self.made = 0

    def store(self) -> ObjectStore:
        """The bucket as a new process has it."""
        return ObjectStore(self)

    def after_kill(self) -> Objects:
        """The bucket as the next process finds it."""
        found = Objects()
        found.objects, found.made = dict(self.objects), self.made
        found.pending = {key: dict(parts) for key, parts in self.pending.items()}
        return found

    def fingerprint(self) -> str:
        """A name for the whole bucket."""
        return hashlib.sha256(repr((sorted(self.objects.items()), sorted(self.pending.items()))).encode()).hexdigest()

    def files(self) -> dict[str, bytes]:
        """Path and content of every object; of pending uploads too, below the staging root."""
        staged = {
            f"{STAGING}/{upload}/{path.removeprefix(f'{ROOT}/')}": b"".join(parts.values())
            for (path, upload), parts in self.pending.items()
        }
        return {**self.objects, **staged}

    def change(self) -> None:
        """What comes now changes the bucket."""
        watch, self.watch = self.watch, None  # what the watcher does is not watched
        if watch:
            watch(self)
        self.watch = watch


class ObjectStore:
    """The bucket as one process has it."""

    traits = Traits(moves=False, keeps_names=True, hints_always=True)

    def __init__(self, bucket: Objects) -> None:
        self.bucket = bucket

    def resolve(self, uri: str) -> str:
        path = uri.rstrip("/")
        if not path.startswith("/"):
            raise InvalidRequestError(f"open {uri}", "it is no path", "Give one")
        return path

    def read(self, path: str, limit: int) -> bytes | None:
        data = self.bucket.objects.get(path)
        return None if data is None else data[: limit + 1]

    def tail(self, path: str, count: int) -> Tail | None:
        data = self.bucket.objects.get(path)
        return None if data is None else Tail(len(data), data[max(0, len(data) - count) :], "")

    def list(self, path: str, limit: int | None = None) -> Paths:
        return sorted(name[len(path) + 1 :] for name in self.bucket.objects if name.startswith(f"{path}/"))[:limit]

    def present(self, paths: Paths) -> Paths:
        directory = paths[0].rpartition("/")[0]
        return sorted(name for name in self.bucket.objects if name.startswith(f"{directory}/") and name >= paths[0])

    def put_if_absent(self, path: str, data: bytes, token: str) -> bool | None:
        if path in self.bucket.objects:
            return False
        self._put(path, data)
        return True

    def put_hint(self, path: str, data: bytes, token: str) -> None:
        self._put(path, data)

    def replace(self, path: str, data: bytes, token: str) -> None:
        self._put(path, data)

    def create(self, path: str) -> Output:
        if path in self.bucket.objects:
            raise InternalError(f"create {path}", "the name is taken", "Report it")
        return _ObjectOutput(self.bucket, path)

    def adopt(self, path: str, staged: str) -> None:
        raise InternalError("adopt", "an object has one name", "Report it")

    def sync(self, path: str) -> None: ...

    def settle(self, paths: Paths) -> None: ...

    def move(self, moves: Moves) -> Moves:
        raise InternalError("move", "an object has one name", "Report it")

    def origin(self, path: str) -> str:
        return path

    def delete(self, path: str) -> bool:
        self.bucket.change()
        return self.bucket.objects.pop(path, None) is not None

    def prune(self, path: str, root: str) -> None: ...

    def same_place(self, path: str, other: str) -> bool:
        return True

    def create_object(self, path: str) -> Output:
        return _WholeObject(self.bucket, path)

    def complete(self, path: str, upload: Upload) -> bool:
        parts = self.bucket.pending.get((path, upload.id))
        if parts is None or tuple(parts) != upload.parts or path in self.bucket.objects:
            return False
        self.bucket.change()
        self.bucket.objects[path] = b"".join(self.bucket.pending.pop((path, upload.id)).values())
        return True

    def cancel(self, path: str, upload: str) -> bool:
        self.bucket.change()
        return self.bucket.pending.pop((path, upload), None) is not None

    def uploads(self, path: str) -> Pending:
        return sorted((name[len(path) + 1 :], id_) for name, id_ in self.bucket.pending if name.startswith(f"{path}/"))

    def parts(self, path: str, upload: str) -> tuple[str, ...] | None:
        parts = self.bucket.pending.get((path, upload))
        return None if parts is None else tuple(parts)

    def _put(self, path: str, data: bytes) -> None:
        self.bucket.change()
        self.bucket.objects[path] = data


class _ObjectOutput:
    """One upload of a single part."""

    def __init__(self, bucket: Objects, path: str) -> None:
        self._bucket, self._path = bucket, path
        bucket.change()
        bucket.made += 1
        self._id = f"upload-{bucket.made}"
        bucket.pending[path, self._id] = {}
        self._data = b""
        self.closed = False

    def write(self, data: bytes, /) -> int:
        self._data += data
        return len(data)

    def flush(self) -> None: ...

    def seal(self) -> Upload | None:
        self._bucket.change()
        tag = hashlib.sha256(self._data).hexdigest()
        if (self._path, self._id) in self._bucket.pending:
            self._bucket.pending[self._path, self._id] = {tag: self._data}
        self.closed = True
        return Upload(self._id, (tag,))

    def discard(self) -> None:
        self.closed = True
        self._bucket.change()
        self._bucket.pending.pop((self._path, self._id), None)


class _WholeObject:
    """An object that is there once it is sealed."""

    def __init__(self, bucket: Objects, path: str) -> None:
        self._bucket, self._path = bucket, path
        self._data = b""
        self._is_made = False
        self.closed = False

    def write(self, data: bytes, /) -> int:
        self._data += data
        return len(data)

    def flush(self) -> None: ...

    def seal(self) -> None:
        self.closed = True
        self._bucket.change()
        self._bucket.objects[self._path] = self._data
        self._is_made = True

    def discard(self) -> None:
        self.closed = True
        if self._is_made:
            self._bucket.change()
            self._bucket.objects.pop(self._path, None)
