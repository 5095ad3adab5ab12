"""Where a table stages, where a run does, and the mark it leaves where that is the final place of its files.

Promises: no two tables stage in one directory, be one a copy of the other, or their staging root the same; one table
stages in one directory, whatever link or mount leads to it. So the name of that directory proves whose the files in it
are. Whoever finds no mark of a run finds no file of it in the table that no entry names.
Relies on: its callers, who leave the mark before the first file, and take it away after the last orphan.
Does not promise: that a mark leads to anything; that a table which was restored from a copy still has its directory:
then what lies in the former one carries no proof, and stays.
"""

from __future__ import annotations

import posixpath
from typing import NamedTuple

from txsink import paths
from txsink.errors import UnavailableError
from txsink.store.protocol import Store

_MARK, _MARK_TRIES = b"files of this run may lie in the table that no entry names\n", 5


class Place(NamedTuple):
    """Where a run creates its files: the directory, and how their ids begin.

    `mark`, where that is their final place: what has to be there first, so that a later run finds what is left.
    """

    directory: str
    id_prefix: str = ""
    mark: str = ""


def staging_root_of(root: str, staging: str | None) -> str:
    """Where tables whose files are moved stage; `staging`: relative to the table, None for its hidden sibling."""
    return paths.default_staging_root(root) if staging is None else posixpath.normpath(f"{root}/{staging}")


def own_staging(store: Store, root: str, staging: str | None, birth: str) -> str:
    """The directory below the staging root that is this table's alone."""
    origin = store.origin(f"{root}/{paths.LOG_DIRECTORY}")
    return f"{staging_root_of(root, staging)}/{paths.staging_key(birth, origin)}"


def place_in_table(root: str, writer: str, run: str) -> Place:
    """Where a run creates its files under their final names."""
    return Place(root, f"{paths.tag(writer)}{paths.tag(run)}", f"{root}/{paths.mark_path(writer, run)}")


def leave_mark(store: Store, path: str, token: str) -> None:
    """Say that a run is about to stage files under their final names."""
    for _ in range(_MARK_TRIES):
        if store.put_if_absent(path, _MARK, token) is not None:
            return
    raise UnavailableError(f"write {path}", "the store did not say that it is there", "Retry")
