"""Whether a new table may begin in a directory. Reads only.

Promises: a table is refused where names cannot be made durable, and where, among the first names below its directory,
there is a file that a reader of the directory would take for data, a Delta table, or what is left of a table whose log
is gone. It costs one bounded listing (S3: one request) when a table is created, and nothing ever after. Nor may it
begin inside a table: one look at each directory above.
Relies on: `Store.list` with a limit; `Store.settle`, which refuses before anything is written.
Does not promise: to see what lies beyond these names, or what comes later; to look for tables below: a table may be
made above others, and no delete enters them (`paths.in_no_other_table`).

What is data is decided by the readers' own rule, and not by a list of formats: Spark, Hive and pyarrow take every file
whose path has no part that begins with `_` or `.`; Spark also takes directories such as `_day=1`. A table on top of
such files would be two tables in one directory: the log would tell of some of the rows, the directory of all.
"""

from __future__ import annotations

from txsink import paths
from txsink.errors import CorruptError, InvalidRequestError, TxsinkError
from txsink.log.log import Log

NAMES_LOOKED_AT = 1000

_OURS, _DELTA = "_txsink/", f"{paths.DELTA_DIRECTORY}/"
_FOLDER = "_$folder$"  # Hadoop's object in the place of a directory on S3: it holds nothing


def require(log: Log, *, has_delta: bool) -> None:
    """Refuse a directory in which no table can begin; one that `has_delta` is a table already."""
    # Before the first entry has its name: from then on, a sync that is refused would leave an unknown outcome.
    log.store.settle([f"{log.root}/{paths.LOG_DIRECTORY}"])
    if not has_delta:
        _require_free(log)


def _require_free(log: Log) -> None:
    """Refuse to create a table over what others, or a table that lost its log, have left there."""
    names = log.store.list(log.root, NAMES_LOOKED_AT)
    data = next(filter(is_data, names), None)
    commit = next(filter(_is_delta_log, names), None)
    left = next((name for name in names if name.startswith(_OURS) and not paths.is_temporary(name)), None)
    # Made by another process since we looked for the log, perhaps: then it is a table as any other.
    if not (data or commit or left) or log.refresh().version >= 0:
        return
    what = f"create the table {log.root}"
    if left is not None:
        advice = f"Put {_OURS} back from a copy, delete it if its rows are to be forgotten, or name another path"
        raise CorruptError(what, f"a table was there: {left} is, and its log is not", advice, path=left)
    if commit is not None:
        advice = "Open it without layout='parquet' to write into the Delta table, or name another path"
        raise InvalidRequestError(what, f"a Delta table is there ({commit})", advice, path=commit)
    raise InvalidRequestError(
        what,
        f"files that no log names are there, {data!r} for one: readers of the directory take them for its rows",
        f"Name another path; if it was a txsink table, put its {_OURS} back from a copy",
        path=data,
    )


def require_apart(log: Log) -> None:
    """Refuse to create a table in another one, in a table's own files, or where tables stage: they would be swept."""
    what, advice = f"create the table {log.root}", "Name a path beside it"
    parts = log.root.split("/")
    for part in parts:
        if part in paths.LOG_NAMES or (part.startswith(".") and part.endswith(paths.STAGING_SUFFIX)):
            raise InvalidRequestError(what, f"it lies in a directory {part}, which belongs to a table", advice)
    for at in range(len(parts) - 1, 1, -1):
        above = "/".join(parts[:at])
        try:
            is_table = bool(log.store.list(f"{above}/{paths.LOG_DIRECTORY}", 1))
        except TxsinkError:
            if log.store.traits.moves:
                raise
            return  # a bucket may let this caller see nothing but his own part of it
        if is_table:
            raise InvalidRequestError(what, f"it lies in the table {above}", advice, path=above)


def is_data(path: str) -> bool:
    """Whether readers of a directory take the file at this relative path for data."""
    return not path.endswith(_FOLDER) and not any(map(_is_hidden, path.split("/")))


def _is_hidden(part: str) -> bool:
    return part.startswith(".") or (part.startswith("_") and "=" not in part)


def _is_delta_log(path: str) -> bool:
    name = path.removeprefix(_DELTA)
    return name != path and (paths.parse_version(name) is not None or name == "_last_checkpoint")
