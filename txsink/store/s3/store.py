"""Amazon S3 and what speaks its protocol: MinIO, versitygw and others with conditional writes.

Promises: those of `txsink.store.Uploads`. A path is `/bucket/key`, taken as it is spelled: `%`, spaces and all of
Unicode are themselves, as in s3fs and Spark. A file is a multipart upload to its final name: one request to begin, one
for each part, one to complete; nobody sees it before. No listing is needed to write, and none is cached.
Relies on: If-None-Match on PUT and CompleteMultipartUpload being atomic (AWS S3, MinIO, versitygw; Garage ignores it);
an acknowledged write being durable and seen by the next read.
Does not promise: to find uploads that a server does not list by prefix (MinIO lists those begun since it was started).

The options are those of `s3fs.S3FileSystem`, and two of ours: `deadline_seconds` (60) bounds one request with its
repeats; `part_bytes` (8 MiB) is the size of an upload's parts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any, TypeAlias, cast

from txsink.errors import InternalError, InvalidRequestError, OutcomeUnknownError, TxsinkError, UnavailableError
from txsink.records import Upload
from txsink.store.protocol import Moves, Output, Paths, StorageOptions, Tail, Traits
from txsink.store.s3 import object_store
from txsink.store.s3.calls import ATTEMPTS, Answer, Calls, Codes, Failure

_MIB = 1 << 20
_PART_BYTES, _PART_BYTES_MAX, _GROWS_AFTER = 8 * _MIB, 64 * _MIB, 1000
_LAST_SECONDS = 5.0

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_UNFIT = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")  # a listing, which is XML, cannot say them

_NO_OBJECT: Codes = frozenset({"NoSuchKey"})  # a bare 404 may come from what is no S3 at all
_NO_HEAD: Codes = frozenset({404})  # a HEAD has no code
_TAKEN: Codes = frozenset({412})
_EMPTY: Codes = frozenset({416})  # no byte is in range: there are none
_NO_UPLOAD: Codes = frozenset({"NoSuchUpload"})
_NOT_MADE: Codes = frozenset({412, "NoSuchUpload", "NoSuchKey", "InvalidPart", "InvalidPartOrder"})

# Of the next request, from which field of the page before.
_OBJECT_MARKERS = {"ContinuationToken": "NextContinuationToken"}
_UPLOAD_MARKERS = {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"}
_PART_MARKERS = {"PartNumberMarker": "NextPartNumberMarker"}

Uploaded: TypeAlias = list[tuple[str, str]]  # in the class, `list` is a verb


class S3Store:
    """The verbs of `Uploads` on S3."""

    traits = Traits(moves=False, keeps_names=True, hints_always=True)

    def __init__(self, uri: str, options: dict[str, object]) -> None:
        self.resolve(uri)
        given = dict(options)
        self._part_bytes = _part_bytes(given.pop("part_bytes", _PART_BYTES))
        self._calls = Calls(given)

    def __repr__(self) -> str:
        return f"S3Store({self._calls.endpoint})"

    def __reduce__(self) -> tuple[object, ...]:
        raise InternalError("pickle an S3 store", "it holds credentials", "Report it: stores are opened where used")

    def resolve(self, uri: str) -> str:
        scheme, separator, rest = uri.partition("://")
        path = (f"/{rest}" if separator and scheme in {"s3", "s3a"} else uri).rstrip("/")
        bucket, *parts = path[1:].split("/")
        if path.startswith("/") and set(bucket) & set("@:") and not bucket.startswith("arn:"):
            # Not repeated: it may be a key and its secret.
            advice = "Give credentials by storage_options, a profile or the environment"
            raise InvalidRequestError("open an S3 path", "it has an @ or a colon in its bucket", advice)
        if not path.startswith("/") or not _BUCKET.fullmatch(bucket):
            found = "it names no bucket" + " (an ARN has an alias that does)" * bucket.startswith("arn:")
            raise InvalidRequestError(f"open {uri!r}", found, "Give s3://bucket/path")
        if _UNFIT.search(path) or any(part in {"", ".", ".."} for part in parts):
            found = "it has an empty part, a part `.` or `..`, or a control character"
            raise InvalidRequestError(f"open {uri!r}", found, "Give s3://bucket/path, spelled as the keys are")
        return path

    def read(self, path: str, limit: int) -> bytes | None:
        found = self._get(path, f"bytes=0-{limit}", limit + 1)
        if isinstance(found, Failure):
            return b"" if found.is_in(_EMPTY) else None
        return bytes(found["Body"])

    def tail(self, path: str, count: int) -> Tail | None:
        # No stamp: an ETag is a digest of the content, the same for another file of the same bytes.
        if not count:
            head = self._ask("read", path, "head_object", _NO_HEAD)
            return None if isinstance(head, Failure) else Tail(head["ContentLength"], b"", "")
        found = self._get(path, f"bytes=-{count}", -count)
        if isinstance(found, Failure):
            return Tail(0, b"", "") if found.is_in(_EMPTY) else None
        whole = found.get("ContentRange", "").rpartition("/")[2]
        return Tail(int(whole) if whole.isdecimal() else found["ContentLength"], found["Body"], "")

    def list(self, path: str, limit: int | None = None) -> Paths:
        pages = self._pages(path, _prefix(path), "list", "list_objects_v2", _OBJECT_MARKERS)
        # Consoles and Hadoop make empty objects that stand for directories.
        looked_at = pages if limit is None else islice(pages, 1)
        return sorted(name for name, _ in _below(path, looked_at, "Contents") if not name.endswith("/"))[:limit]

    def present(self, paths: Paths) -> Paths:
        directory, at = paths[0].rpartition("/")[0], _at(paths[0])  # a name comes after its own beginning
        given = {"Bucket": at["Bucket"], "Prefix": _prefix(directory), "StartAfter": at["Key"][:-1]}
        page = cast("Answer", self._calls.ask(f"list s3:/{directory}", "list_objects_v2", given))  # or it has raised
        return [f"{directory}/{name}" for name, _ in _below(directory, [page], "Contents")]

    def put_if_absent(self, path: str, data: bytes, token: str) -> bool | None:
        try:
            content = _content(data, token)
            found = self._ask("write", path, "put_object", _TAKEN, changes=True, IfNoneMatch="*", **content)
        except OutcomeUnknownError as error:
            if error.context["refused"]:
                raise  # to read it back would be refused as well
            return None
        return not isinstance(found, Failure)

    def put_hint(self, path: str, data: bytes, token: str) -> None:
        self._told("write", path, "put_object", **_content(data, token))  # a hint is nobody's truth: no `changes`

    def replace(self, path: str, data: bytes, token: str) -> None:
        self._told("write", path, "put_object", changes=True, **_content(data, token))

    def create(self, path: str) -> Output:
        # Nothing is asked: the name is free when it is given, by `complete`, or not at all.
        return _S3Output(self, path, self._part_bytes)

    def adopt(self, path: str, staged: str) -> None:  # noqa: ARG002
        raise InternalError("move files on S3", "S3 cannot", "Report it: traits.moves says so")

    def sync(self, path: str) -> None:
        """Nothing: what S3 has is durable."""

    def settle(self, paths: Paths) -> None:
        """Nothing: what S3 has acknowledged is durable."""

    def move(self, moves: Moves) -> Moves:  # noqa: ARG002
        raise InternalError("move files on S3", "S3 cannot", "Report it: traits.moves says so")

    def origin(self, path: str) -> str:
        return path

    def delete(self, path: str) -> bool:
        # DELETE answers the same whether or not there was something.
        if isinstance(self._ask("delete", path, "head_object", _NO_HEAD), Failure):
            return False
        self._ask("delete", path, "delete_object")
        return True

    def prune(self, path: str, root: str) -> None:
        """Nothing: S3 has no directories."""

    def same_place(self, path: str, other: str) -> bool:
        return _at(path)["Bucket"] == _at(other)["Bucket"]

    # -- uploads --------------------------------------------------------------------------------------

    def create_object(self, path: str) -> Output:
        return _S3Object(self, path, self._part_bytes)

    def complete(self, path: str, upload: Upload) -> bool:
        parts = [{"PartNumber": number, "ETag": f'"{tag}"'} for number, tag in enumerate(upload.parts, 1)]
        given = {"UploadId": upload.id, "MultipartUpload": {"Parts": parts}, "IfNoneMatch": "*"}
        try:
            found = self._ask("publish", path, "complete_multipart_upload", _NOT_MADE, changes=True, **given)
        except OutcomeUnknownError:
            # Some servers fail for ever on an upload that is gone: made or dropped, the caller can tell.
            pending = self._calls.once("list_parts", {**_at(path), "UploadId": upload.id}, _LAST_SECONDS)
            if isinstance(pending, Failure) and pending.is_in(_NO_UPLOAD):
                return False
            raise
        # A yes to a repeated request may come while the first one is still at work (versitygw): then the caller looks.
        return isinstance(found, dict) and found[ATTEMPTS] == 1

    def cancel(self, path: str, upload: str) -> bool:
        # Some servers answer the same whether or not there was one.
        what = "drop the upload to"
        if isinstance(self._ask(what, path, "list_parts", _NO_UPLOAD, UploadId=upload, MaxParts=1), Failure):
            return False
        return not isinstance(self._ask(what, path, "abort_multipart_upload", _NO_UPLOAD, UploadId=upload), Failure)

    def uploads(self, path: str) -> Uploaded:
        listing = ("list the uploads below", "list_multipart_uploads", _UPLOAD_MARKERS)
        pages = list(self._pages(path, _prefix(path), *listing))
        if any(_server(page) == "MinIO" for page in pages):
            # It takes a prefix for a whole name. Without one, it says what was begun since it was started.
            pages = list(self._pages(path, "", *listing))
        return sorted((name, found["UploadId"]) for name, found in _below(path, pages, "Uploads"))

    def parts(self, path: str, upload: str) -> tuple[str, ...] | None:
        where = {**_at(path), "UploadId": upload}
        tags: dict[int, str] = {}
        for page in self._calls.pages(f"read the upload to s3:/{path}", "list_parts", where, _PART_MARKERS, _NO_UPLOAD):
            if isinstance(page, Failure):
                return None
            tags.update((part["PartNumber"], _tag(part)) for part in page.get("Parts", []))
        return tuple(tags[number] for number in sorted(tags))

    def begin_upload(self, path: str) -> str:
        """Begin an upload to this name. When the answer is lost, one without a part is left: `uploads` lists it."""
        return str(self._told("create", path, "create_multipart_upload")["UploadId"])

    def upload_part(self, path: str, upload: str, number: int, data: bytes | bytearray) -> str:
        """The tag of a part. Sent again, it is the same part."""
        keywords = {"UploadId": upload, "PartNumber": number, "Body": data}
        return _tag(self._told("write", path, "upload_part", **keywords))

    def put_object(self, path: str, data: bytes | bytearray) -> None:
        """An object in one request. Its name is nobody else's, so it may be sent again."""
        self._told("write", path, "put_object", Body=bytes(data))

    def forget_object(self, path: str) -> None:
        """Try once to delete an object; never raises. What is left is an orphan."""
        self._calls.once("delete_object", _at(path), _LAST_SECONDS)

    def forget_upload(self, path: str, upload: str) -> None:
        """Try once to drop an upload; never raises. What is left is an orphan."""
        self._calls.once("abort_multipart_upload", {**_at(path), "UploadId": upload}, _LAST_SECONDS)

    def object_store_uri(self, path: str) -> str:
        """The path as deltalake's client has it."""
        return object_store.uri_of(path)

    def object_store_options(self, path: str) -> StorageOptions:
        """How deltalake's client gets there, with the credentials that this one has."""
        tell = partial(object_store.told, _at(path)["Bucket"], self._calls.deadline_seconds)
        return self._calls.with_client(f"read s3:/{path}", tell)

    # -- pieces ---------------------------------------------------------------------------------------

    def _ask(
        self, verb: str, path: str, method: str, expects: Codes = frozenset(), *, changes: bool = False, **keywords: Any
    ) -> Answer | Failure:
        return self._calls.ask(f"{verb} s3:/{path}", method, {**_at(path), **keywords}, expects, changes=changes)

    def _told(self, verb: str, path: str, method: str, **keywords: Any) -> Answer:
        found = self._ask(verb, path, method, **keywords)
        if isinstance(found, Failure):
            raise InternalError(f"{verb} s3:/{path}", f"{found.code} was not expected", "Report it")
        return found

    def _get(self, path: str, span: str, keep: int) -> Answer | Failure:
        keywords = {**_at(path), "Range": span}
        return self._calls.ask(f"read s3:/{path}", "get_object", keywords, _NO_OBJECT | _EMPTY, keep=keep)

    def _pages(self, path: str, prefix: str, verb: str, method: str, markers: dict[str, str]) -> Iterator[Answer]:
        keywords = {"Bucket": _at(path)["Bucket"], "Prefix": prefix}
        for page in self._calls.pages(f"{verb} s3:/{path}", method, keywords, markers):
            if not isinstance(page, Failure):
                yield page


class _S3Output:
    """A file being uploaded: one part is sent while the next one fills; once failed it stays failed."""

    def __init__(self, store: S3Store, path: str, part_bytes: int) -> None:
        self._store = store
        self._path = path
        self._part_bytes = part_bytes
        self._buffer = bytearray()
        self._upload = ""
        self._tags: list[str] = []
        self._threads: ThreadPoolExecutor | None = None
        self._sending: Future[None] | None = None
        self._failure: TxsinkError | None = None
        self._is_made = False
        self.closed = False

    def write(self, data: bytes, /) -> int:
        view = memoryview(data).cast("B")
        while len(self._buffer) + len(view) >= (size := self._size()):
            room = size - len(self._buffer)
            self._buffer += view[:room]
            view = view[room:]
            self._do(self._send_beside)
        self._buffer += view
        return memoryview(data).nbytes

    def flush(self) -> None:
        """Nothing: only `seal` makes bytes durable."""

    def seal(self) -> Upload | None:
        return self._sealed()

    def _sealed(self) -> Upload:
        self._do(self._wait)
        if self._buffer or not self._tags:  # an empty file has one empty part
            self._do(lambda: self._send(self._buffer))
        self._close()
        return Upload(self._upload, tuple(self._tags))

    def discard(self) -> None:
        self._close()
        if self._upload:
            self._store.forget_upload(self._path, self._upload)
            self._upload = ""

    def _size(self) -> int:
        # 10,000 parts hold 5 TiB, and none is larger than 64 MiB in a file below 100 GiB. All the same size to begin
        # with: some stores want that.
        return max(self._part_bytes, _PART_BYTES << (len(self._tags) // _GROWS_AFTER))

    def _send_beside(self) -> None:
        self._wait()
        self._threads = self._threads or ThreadPoolExecutor(1, "txsink-upload")
        part, self._buffer = self._buffer, bytearray()
        self._sending = self._threads.submit(self._send, part)

    def _send(self, part: bytearray) -> None:
        # Begun with its first part: a file that is never written costs no request.
        self._upload = self._upload or self._store.begin_upload(self._path)
        self._tags.append(self._store.upload_part(self._path, self._upload, len(self._tags) + 1, part))

    def _wait(self) -> None:
        sending, self._sending = self._sending, None
        if sending is not None:
            sending.result()

    def _close(self) -> None:
        self.closed = True
        self._buffer = bytearray()
        if self._threads is not None:
            self._threads.shutdown()  # waits: a part that arrives after its upload was dropped may stay for ever

    def _do(self, act: Callable[[], None]) -> None:
        if self._failure:
            raise self._failure
        try:
            act()
        except TxsinkError as error:
            self._failure = error
            raise


class _S3Object(_S3Output):
    """A file that is an object once it is sealed: of one request if it is small, of an upload if not."""

    def seal(self) -> None:
        if self._sending is None and not self._tags:
            self._do(lambda: self._store.put_object(self._path, self._buffer))
        else:
            self._do(self._complete)
        self._close()
        self._is_made = True

    def discard(self) -> None:
        super().discard()
        if self._is_made:
            self._store.forget_object(self._path)

    def _complete(self) -> None:
        upload = self._sealed()
        # The name is nobody else's: one that is there is this upload's, by an attempt whose answer was lost.
        if not self._store.complete(self._path, upload) and self._store.tail(self._path, 0) is None:
            found = "the store did not make the object of its upload"
            raise UnavailableError(f"write s3:/{self._path}", found, "Write the epoch again")
        self._upload = ""


def _at(path: str) -> dict[str, str]:
    bucket, _, key = path[1:].partition("/")
    return {"Bucket": bucket, "Key": key}


def _content(data: bytes, token: str) -> dict[str, object]:
    return {"Body": data, "Metadata": {"write-id": token}}


def _prefix(path: str) -> str:
    key = _at(path)["Key"]
    return f"{key}/" if key else ""


def _below(path: str, pages: Iterable[Answer], field: str) -> Iterator[tuple[str, Answer]]:
    """What a listing has below a directory, by relative path."""
    prefix = _prefix(path)
    for page in pages:
        for found in page.get(field, []):
            if found["Key"].startswith(prefix):
                yield found["Key"].removeprefix(prefix), found


def _server(answer: Answer) -> str:
    return str(answer["ResponseMetadata"]["HTTPHeaders"].get("server", ""))


def _tag(part: Answer) -> str:
    return str(part["ETag"]).strip('"')


def _part_bytes(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not _PART_BYTES <= value <= _PART_BYTES_MAX:
        advice = f"Give a number of bytes from {_PART_BYTES} to {_PART_BYTES_MAX}"
        raise InvalidRequestError("open an S3 store", "part_bytes is no such number", advice)
    return value
