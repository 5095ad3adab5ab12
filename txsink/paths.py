"""Every path txsink ever writes: made here, parsed here, nowhere else. Pure strings.

Promises: `parse_x(make_x(...))` gives the parts back; a name that `parse_x` accepts is exactly one that
`make_x` makes; no path made here leaves its root, whatever a partition value or a writer's name holds.
Relies on: `/` as separator on every store.
Does not promise: anything about what lies behind a path.

Grammar, relative to the table root T:

    entry      = "_txsink/log/" version20 ".json"            version20 = 20 decimal digits
    summary    = "_txsink/state/" version20 ".json"
    segment    = "_txsink/files/" version20 "-" version20 ".segment"
    head       = "_txsink/head"
    temporary  = any of these directories "/." token ".tmp"         half-made, never read; token: hexadecimal
    removed    = "_txsink/removed/" version20 "/" data ".removed"
    stray      = "_txsink/strays/" any                       what `repair` has set aside, never read
    mark       = "_txsink/staged/" writer "/" run            a run has staged files under their final names (Delta)
    commit     = "_delta_log/" version20 ".json"             Delta's own log, under its own numbers
    data       = { partition "/" } "part-" epoch "-" sequence "-" id ".parquet"
    partition  = column "=" value                            both escaped as Spark does

and relative to the staging root S (by default the hidden sibling `<parent>/.<name>.txsink`), which tables may share:

    own        = key "/" ( staged | scratch )                key: 16 hexadecimal digits, of one table and of no copy
    staged     = writer "/" run "/" ( data | guest )         writer and run: a-z, 0-9, "-", "_"; others as "%" and two
                                                             hexadecimal digits for each byte of UTF-8
    scratch    = ".checkpoint-" id "/_delta_log/" any        where a checkpoint of Delta's log is made
    guest      = "guest-" epoch "-" id "/" any               where another program writes, until its files are adopted

A store that cannot move files stages a pending upload to the final name. Its id begins with the tags of the writer
and the run, 16 hexadecimal digits each, so that a sweep knows whose it is.

Worked example: epoch 7 of the writer `nightly` (run `9f2c`) in `/data/events`, partitioned by day, is staged at
`/data/.events.txsink/<key>/nightly/9f2c/day=2026-01-31/part-7-0-51ad.parquet` and published as
`/data/events/day=2026-01-31/part-7-0-51ad.parquet`.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

LOG_DIRECTORY = "_txsink/log"
STATE_DIRECTORY = "_txsink/state"
SEGMENT_DIRECTORY = "_txsink/files"
REMOVED_DIRECTORY = "_txsink/removed"
STRAY_DIRECTORY = "_txsink/strays"
MARK_DIRECTORY = "_txsink/staged"
DELTA_DIRECTORY = "_delta_log"
LOG_NAMES = ("_txsink", DELTA_DIRECTORY)
STAGING_SUFFIX = ".txsink"
SCRATCH_PREFIX = ".checkpoint-"
DELTA_POINTER_PATH = f"{DELTA_DIRECTORY}/_last_checkpoint"
HEAD_PATH = "_txsink/head"

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
NAME_BYTES_MAX = 255
VERSION_MAX = 2**63 - 1
_TAG_CHARS = 16
_KEY_CHARS = 16

# Spark's ExternalCatalogUtils escapes exactly these; escaping more (non-ASCII, say) makes Spark read other values.
_ESCAPED = frozenset([*map(chr, range(1, 32)), *"\"#%'*/:=?\\{[]^", "\x7f"])
# In names of directories that tell writers and runs apart: file systems may fold case, the forms of a character, or
# drop a dot at the end.
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_")
_OWN_NAME = re.compile(r"(?:[a-z0-9_-]|%[0-9a-f]{2})+")
_OWN_STAGING = re.compile(rf"(?:[^/\x00]+/)*[0-9a-f]{{{_KEY_CHARS}}}")
# [0-9] and not \d, which takes every script's digits.
_ENTRY = re.compile(r"([0-9]{20})\.json")
_SEGMENT = re.compile(r"([0-9]{20})-([0-9]{20})\.segment")
_REMOVED = re.compile(r"([0-9]{20})/(.*)\.removed", re.DOTALL)
_TEMPORARY = re.compile(r"\.[0-9a-f]+(-[0-9]+)?\.tmp")  # other programs have theirs in Delta's log
_EPOCH = re.compile(r"0|[1-9][0-9]{0,18}")
_RESERVED = ("txsink:", "txsink-abort-")  # how the names begin that Delta's log keeps outcomes under
_GUEST = re.compile(rf"guest-({_EPOCH.pattern})-([0-9a-f]{{4,64}})/.+", re.DOTALL)
_DELTA_NAME = re.compile(
    r"[0-9]{20}\.[^/]*(?:json|parquet|crc)|_last_checkpoint|_(?:sidecars|commits|staged_commits)/[^/]+\.(?:parquet|json)"
    r"|_commit_[0-9a-f-]+\.json\.tmp|\.[^/]+\.crc"
)
_DATA_NAME = re.compile(rf"part-({_EPOCH.pattern})-(0|[1-9][0-9]{{0,8}})-([0-9a-f]{{4,64}})\.parquet")

#: For RE2, which looks at a million paths at once: none that leaves its root fits. `is_data_path` says the whole truth.
DATA_PATH = (
    r"^(?:[^/=._\x00][^/=\x00]*=[^/\x00]+/)*"
    rf"part-(?:{_EPOCH.pattern})-(?:0|[1-9][0-9]{{0,8}})-[0-9a-f]{{4,64}}\.parquet$"
)


class StagedName(NamedTuple):
    """What a staged file's path says of it. Of a pending upload (its id) the path tells the run by a tag only."""

    writer: str
    run: str
    epoch: int
    path: str
    upload: str = ""

    def is_of(self, run: str) -> bool:
        """Whether this run of the writer staged it."""
        return is_same_run(self.run, run)

    @property
    def is_mark(self) -> bool:
        """Whether it is no staged file, but what leads to those of its run."""
        return self.path.startswith(f"{MARK_DIRECTORY}/")


def entry_path(version: int) -> str:
    """Where the log entry of `version` lies."""
    return f"{LOG_DIRECTORY}/{version:020d}.json"


def summary_path(version: int) -> str:
    """Where the summary of the log up to `version` lies."""
    return f"{STATE_DIRECTORY}/{version:020d}.json"


def parse_version(name: str) -> int | None:
    """Version of an entry's or a summary's file name; None for any other name."""
    match = _ENTRY.fullmatch(name)
    return int(match[1]) if match else None


def segment_path(first: int, last: int) -> str:
    """Where the facts of entries `first` to `last` lie."""
    return f"{SEGMENT_DIRECTORY}/{first:020d}-{last:020d}.segment"


def parse_segment(name: str) -> tuple[int, int] | None:
    """First and last version of a segment's file name; None for any other name."""
    match = _SEGMENT.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def temporary_path(path: str, token: str) -> str:
    """Where the object `path` is made before it gets its name: in the same directory, hidden."""
    parent, slash, _ = path.rpartition("/")
    return f"{parent}{slash}.{token}.tmp"


def is_temporary(path: str) -> bool:
    """Whether `temporary_path` made this name."""
    return _TEMPORARY.fullmatch(path.rpartition("/")[2]) is not None


def removed_path(version: int, path: str) -> str:
    """Where the data file `path`, removed by the transaction prepared at `version`, waits for expiry."""
    return f"{REMOVED_DIRECTORY}/{version:020d}/{path}.removed"


def parse_removed(path: str) -> tuple[int, str] | None:
    """The inverse of `removed_path`, for a path relative to the directory of removed files."""
    match = _REMOVED.fullmatch(path)
    return (int(match[1]), match[2]) if match and is_data_path(match[2]) else None


def data_name(epoch: int, sequence: int, file_id: str) -> str:
    """File name of a data file."""
    return f"part-{epoch}-{sequence}-{file_id}.parquet"


def tag(name: str) -> str:
    """A writer's or a run's name in the id of a pending upload."""
    return hashlib.sha256(name.encode()).hexdigest()[:_TAG_CHARS]


def is_same_run(one: str, other: str) -> bool:
    """Whether two names are of one run; either may be its tag."""
    return other in {one, tag(one)} or one == tag(other)


def parse_upload(path: str, upload: str, writer: str) -> StagedName | None:
    """What a pending upload is, if `writer` staged it: its file's id begins with the tags of writer and run."""
    if not is_data_path(path):
        return None
    file_id = path.rpartition("-")[2].removesuffix(".parquet")
    if file_id[:_TAG_CHARS] != tag(writer) or len(file_id) <= 2 * _TAG_CHARS:
        return None
    return StagedName(writer, file_id[_TAG_CHARS : 2 * _TAG_CHARS], data_epoch(path), path, upload)


def parse_in_place(path: str, writer: str, run: str) -> StagedName | None:
    """What a file below the table is, if this run staged it there: its id begins with the tags of writer and run."""
    guest = _GUEST.fullmatch(path)
    if not guest and not is_data_path(path):
        return None
    file_id = guest[2] if guest else path.rpartition("-")[2].removesuffix(".parquet")
    if not file_id.startswith(tag(writer) + tag(run)):
        return None
    return StagedName(writer, run, int(guest[1]) if guest else data_epoch(path), path)


def partition_directory(columns: list[str], values: list[str | None]) -> str:
    """`k=v/…` for the values in text form; empty without partition columns."""
    return "/".join(
        f"{escape(column)}={escape(value) if value else NULL_PARTITION}"
        for column, value in zip(columns, values, strict=True)
    )


def parse_partitions(path: str) -> dict[str, str | None]:
    """Partition columns and values of a data file's path."""
    found: dict[str, str | None] = {}
    for part in path.split("/")[:-1]:
        column, equals, value = part.partition("=")
        if equals:
            found[unescape(column)] = None if value == NULL_PARTITION else unescape(value)
    return found


def mark_path(writer: str, run: str) -> str:
    """What says that a run has staged files under their final names."""
    return f"{MARK_DIRECTORY}/{run_directory(writer, run)}"


def parse_mark(path: str) -> tuple[str, str] | None:
    """Writer and run of a mark, for a path relative to the directory of marks."""
    writer, _, run = path.partition("/")
    if not (writer and run) or "/" in run:
        return None
    names = _named_by(writer), _named_by(run)
    return (names[0], names[1]) if names[0] and names[1] else None


def delta_commit_path(version: int) -> str:
    """Where commit `version` of Delta's log lies."""
    return f"{DELTA_DIRECTORY}/{version:020d}.json"


def default_staging_root(table_root: str) -> str:
    """The hidden sibling of the table: same file system, seen by no reader of the table."""
    parent, slash, name = table_root.rpartition("/")
    return f"{parent}{slash}.{name}{STAGING_SUFFIX}"


def staging_key(birth: str, origin: str) -> str:
    """The name of the directory that one table stages in; `origin`: what every road to it shares, and no copy has."""
    return hashlib.sha256(f"{birth} {origin}".encode("utf-8", "surrogatepass")).hexdigest()[:_KEY_CHARS]


def is_own_staging(path: str) -> bool:
    """Whether a prepare entry may name this, relative to the table, as the directory its run staged below."""
    return _OWN_STAGING.fullmatch(path) is not None


def writer_directory(writer: str) -> str:
    """Where a writer stages, relative to the table's own staging directory: no two writers share it on any disk."""
    return "".join(chr(one) if one in _PLAIN else f"%{one:02x}" for one in writer.encode("utf-8", "surrogatepass"))


def run_directory(writer: str, run: str) -> str:
    """Where one run of a writer stages, relative to the table's own staging directory."""
    return f"{writer_directory(writer)}/{writer_directory(run)}"


def guest_directory(epoch: int, guest_id: str) -> str:
    """Where another program writes files of an epoch, relative to the run's directory."""
    return f"guest-{epoch}-{guest_id}"


def parse_staged(path: str) -> StagedName | None:
    """The inverse of `run_directory` plus a data path or a guest's; None for a path txsink did not make."""
    writer, _, rest = path.partition("/")
    run, _, data = rest.partition("/")
    guest = _GUEST.fullmatch(data)
    names = _named_by(writer), _named_by(run)
    if not names[0] or not names[1] or not (guest or is_data_path(data)):
        return None
    return StagedName(names[0], names[1], int(guest[1]) if guest else data_epoch(data), data)


def told_path(root: str, path: str) -> str:
    """How people are told of a file: by its path in the table, or by the full one where it does not lie there."""
    return path.removeprefix(f"{root}/")


def in_no_other_table(paths: list[str]) -> list[str]:
    """Those of all paths below a table that lie in no directory which holds a log of its own, ours or Delta's."""
    others = set()
    for path in paths:
        parts = path.split("/")
        at = next((at for at, part in enumerate(parts) if part in LOG_NAMES), 0)
        if at:
            others.add("/".join(parts[:at]))
    if not others:
        return paths
    return [path for path in paths if not any(above in others for above in directories_above(path))]


def directories_above(path: str) -> list[str]:
    """The directories a path lies in, the outermost first."""
    parts = path.split("/")
    return ["/".join(parts[:at]) for at in range(1, len(parts))]


def is_delta_log_name(name: str) -> bool:
    """Whether a name, relative to `_delta_log`, is one that Delta's protocol, or a program that follows it, makes."""
    return _DELTA_NAME.fullmatch(name) is not None or is_temporary(name)


def data_epoch(path: str) -> int:
    """The epoch in a data path."""
    return int(path.rpartition("/")[2].split("-")[1])


def is_data_path(path: str) -> bool:
    """Whether `path` is a relative data path that stays under its root."""
    *directories, name = path.split("/")
    return _DATA_NAME.fullmatch(name) is not None and all(map(_is_partition, directories))


def escape(text: str) -> str:
    """Percent-escape exactly what Spark escapes in a partition path."""
    if _ESCAPED.isdisjoint(text):
        return text
    return "".join(f"%{ord(char):02X}" if char in _ESCAPED else char for char in text)


def unescape(text: str) -> str:
    """The inverse of `escape`."""
    if "%" not in text:
        return text
    return re.sub("%([0-9A-Fa-f]{2})", lambda match: chr(int(match[1], 16)), text)


@lru_cache(maxsize=256)  # asked of the same few names with every entry
def name_problem(text: str) -> str | None:
    """Why `text` cannot be the name of a writer or a run; None when it can."""
    if not text:
        return "it is empty"
    if "\x00" in text:
        return "it holds a NUL character"
    if any("\ud800" <= char <= "\udfff" for char in text):
        return "it holds half of a character (a lone surrogate)"
    if text.startswith(_RESERVED):
        return "it begins as the names do under which Delta's log keeps the outcomes of writers"
    if len(writer_directory(text).encode()) > NAME_BYTES_MAX:
        return f"it is longer than {NAME_BYTES_MAX} bytes once escaped"
    return None


def _named_by(directory: str) -> str | None:
    """The writer or run whose directory this is; None when `writer_directory` makes no such name."""
    if not _OWN_NAME.fullmatch(directory):
        return None
    try:
        name = unquote_to_bytes(directory).decode()
    except UnicodeDecodeError:
        return None
    return name if writer_directory(name) == directory else None


def _is_partition(part: str) -> bool:
    """Whether `partition_directory` makes this directory, of a column that a table may have."""
    column, _, value = part.partition("=")
    is_named = column != "" and value != "" and not column.startswith((".", "_")) and "\x00" not in part
    return is_named and part == f"{escape(unescape(column))}={escape(unescape(value))}"
