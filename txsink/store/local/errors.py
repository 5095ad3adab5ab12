"""What an error of the operating system means to the caller of the local store.

Promises: an OSError becomes one of `txsink.errors`, and says "nothing was changed" only where that is certain.
Relies on: errno.
Does not promise: to know more than the system says.
"""

from __future__ import annotations

import errno
import os

from txsink.errors import InvalidRequestError, OutcomeUnknownError, TxsinkError, UnavailableError

_NO_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}

# What the system says when it refuses: nothing was done.
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
_WRONG_PATH = {errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EINVAL, errno.ENODEV, errno.EXDEV}
_REFUSALS: tuple[tuple[set[int], type[TxsinkError], str], ...] = (
    (_NO_ROOM, UnavailableError, "Make room, then retry"),
    ({errno.EACCES, errno.EPERM, errno.EROFS}, InvalidRequestError, "Make it writable, then call again"),
    (_WRONG_PATH, InvalidRequestError, "Name another path"),
)


class mapped:  # noqa: N801 -- used like a function; as a class it costs a third of a generator
    """Foreign errors become ours; `changed`: whether it is done by now, None: unless the system refuses."""

    def __init__(self, attempted: str, *, changed: bool | None = False) -> None:
        self._attempted, self._changed = attempted, changed

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, OSError):
            return
        attempted, changed, code = self._attempted, self._changed, error.errno
        found = f"{error.strerror or error} (errno {errno.errorcode.get(code or 0, code)})"
        for codes, failure, advice in _REFUSALS:
            if code in codes and not changed:
                raise failure(attempted, found, advice, errno=code) from error
        if changed is False:
            raise UnavailableError(attempted, found, "Retry when the disk answers again", errno=code) from error
        raise OutcomeUnknownError(attempted, found, "Open the writer again: it recovers", errno=code) from error


def refuse_without_links(path: str, error: OSError) -> None:
    """InvalidRequestError, when the file system makes no hard links."""
    if error.errno in _NO_LINKS:
        raise InvalidRequestError(
            f"create {path}",
            f"the file system makes no hard link here ({error.strerror})",
            "Use a file system with hard links (ext4, xfs, APFS, NFS), or another store",
        ) from error


def refuse_foreign(path: str, error: OSError, owner: int) -> None:
    """InvalidRequestError, when it is the file's owner that matters: Linux guards the files of others from links."""
    if error.errno == errno.EPERM and owner != os.geteuid():
        raise InvalidRequestError(
            f"create {path}",
            f"its file belongs to another user (id {owner}), and only who may write it may link it"
            " (fs.protected_hardlinks)",
            "Run as the user who staged it, or give this one the right to write it",
        ) from error


def refuse_without_directory_sync(path: str, error: OSError) -> None:
    """InvalidRequestError, when the file system cannot sync a directory: nothing it names would be durable."""
    if error.errno in _NO_SYNC:
        raise InvalidRequestError(
            f"make the names in {path} durable",
            f"the file system cannot sync a directory ({error.strerror}), as some FUSE and CIFS mounts cannot",
            "Use a file system that can (ext4, xfs, APFS, NFS), or another store",
        ) from error
