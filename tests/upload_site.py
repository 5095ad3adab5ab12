"""A place to publish to by completing uploads, on any store that has them: what the publish contract needs.

Promises: `staged` is what was written to an upload, for as long as the store knows the upload.
Relies on: a store's `parts`; the bytes themselves cannot be read back, so they are kept here.
Does not promise: bytes of uploads that another process made.
"""

from __future__ import annotations

from collections.abc import Callable

from contract_publish import Site
from txsink.log.entry import Prepare
from txsink.publish.multipart import MultipartPublisher
from txsink.records import DataFile, Upload
from txsink.store.protocol import Output, Uploads

READ_BYTES_MAX = 1 << 20


class UploadSite(Site):
    """`opened` makes the store, in this process and in another."""

    def __init__(self, opened: Callable[[], Uploads], root: str) -> None:
        self.opened, self.root = opened, root
        self.plain = opened()
        self.written: dict[str, bytes] = {}
        store = self.plain
        create, written = store.create, self.written
        store.create = lambda path: _Kept(create(path), written)  # type: ignore[method-assign]
        self.store = store
        self.publisher = MultipartPublisher(store, root)

    def __reduce__(self) -> tuple[type[UploadSite], tuple[Callable[[], Uploads], str]]:
        return UploadSite, (self.opened, self.root)

    def again(self) -> UploadSite:
        return UploadSite(self.opened, self.root)

    def staged(self, prepare: Prepare, file: DataFile) -> bytes | None:
        upload = prepare.uploads[prepare.files.index(file)]
        parts = self.plain.parts(f"{self.root}/{file.path}", upload.id)
        return None if parts is None else self.written[upload.id]

    def target(self, file: DataFile) -> bytes | None:
        return self.plain.read(f"{self.root}/{file.path}", READ_BYTES_MAX)

    def put_target(self, file: DataFile, data: bytes) -> None:
        self.plain.replace(f"{self.root}/{file.path}", data, "another")

    def drop_staged(self, prepare: Prepare, file: DataFile) -> None:
        assert self.plain.cancel(f"{self.root}/{file.path}", prepare.uploads[prepare.files.index(file)].id)


class _Kept:
    """An output that remembers what was written."""

    def __init__(self, output: Output, written: dict[str, bytes]) -> None:
        self._output, self._written = output, written
        self._data = b""
        self.closed = False

    def write(self, data: bytes, /) -> int:
        self._data += bytes(data)
        return self._output.write(data)

    def flush(self) -> None:
        self._output.flush()

    def seal(self) -> Upload | None:
        upload = self._output.seal()
        if upload is not None:
            self._written[upload.id] = self._data
        self.closed = True
        return upload

    def discard(self) -> None:
        self._output.discard()
        self.closed = True
