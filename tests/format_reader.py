"""A reader of tables, written from `docs/format.md` alone.

Promises: the files of a table at its head and at every retained version, or `RefusedError`; numbers of sections in the
comments are those of the page.
Relies on: the page. It imports nothing of txsink: `test_format.py` looks.
Does not promise: rows, nor to be fast. It reads one local directory.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote

import msgspec
import pyarrow.parquet as pq

# 1. Names.
ENTRIES, SUMMARIES, SEGMENTS = "_txsink/log", "_txsink/state", "_txsink/files"
HINT, REMOVED, DELTA_LOG = "_txsink/head", "_txsink/removed", "_delta_log"

FORMAT, BLOCK, FANOUT, LINE_BYTES_MAX, DEPTH_MAX = 1, 64, 8, 64 << 20, 100
MARK = b',"checksum":"'
TRIES = 5

Json: TypeAlias = dict[str, Any]


class RefusedError(Exception):
    """The table cannot be read: section 9 says when."""


class _AgainError(Exception):
    """Expiry passed by."""


class File(NamedTuple):
    """One data file of the table at a version, with the commit that brought it."""

    path: str
    bytes: int
    rows: int | None
    partition: dict[str, str | None]
    epoch: int | None
    writer: str | None
    version: int


# -- 2. Sealed lines ----------------------------------------------------------------------------------


def unsealed(data: bytes) -> Json:
    """The object in a sealed line, without its checksum."""
    body, rest = data[:-80], data[-80:]
    sealed = MARK + hashlib.sha256(body).hexdigest().encode() + b'"}\n'
    if len(data) > LINE_BYTES_MAX or rest != sealed:
        raise ValueError("the checksum does not fit")
    found = msgspec.json.decode(body + b"}", type=dict[str, Any])
    if held := [name for name in ("positions", "watermark", "table") if name in found]:
        raise RefusedError(f"{held[0]} is of a later release")
    if found.get("format", 0) > FORMAT:
        raise RefusedError(f"format {found['format']} is not known")
    if msgspec.json.encode(found) != body + b"}":
        raise ValueError("it is not spelled as it has to be")
    return found


def checksum_of(data: bytes) -> str:
    """What names a sealed line."""
    return data[-67:-3].decode("ascii", "replace")


EXPIRED = b'{"kind":"expired","format":1'
EXPIRED += MARK + hashlib.sha256(EXPIRED).hexdigest().encode() + b'"}\n'


# -- 3. Entries ---------------------------------------------------------------------------------------


def is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def is_text(value: object) -> bool:
    return isinstance(value, str)


def is_digest(value: object) -> bool:
    return isinstance(value, str) and len(value) <= 64


def each(rule: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(rule, value))


def is_name(value: object) -> bool:
    if not isinstance(value, str) or not value or "\0" in value or value.startswith(("txsink:", "txsink-abort-")):
        return False
    plain = b"abcdefghijklmnopqrstuvwxyz0123456789-_"
    return sum(1 if one in plain else 3 for one in value.encode()) <= 255


NAME = re.compile(r"part-(?:0|[1-9][0-9]{0,18})-(?:0|[1-9][0-9]{0,8})-[0-9a-f]{4,64}\.parquet")
ESCAPED = {*map(chr, range(1, 32)), *"\"#%'*/:=?\\{[]^", "\x7f"}


def is_path(value: object) -> bool:
    """Whether this is a data path."""
    *directories, name = str(value).split("/")
    return bool(NAME.fullmatch(name)) and all(map(is_partition, directories))


def is_partition(part: str) -> bool:
    column, _, value = part.partition("=")
    again = [_escaped(re.sub("%([0-9A-Fa-f]{2})", lambda one: chr(int(one[1], 16)), text)) for text in (column, value)]
    return "" not in again and column[0] not in "._" and "\0" not in part and part == "=".join(again)


def _escaped(text: str) -> str:
    return "".join(f"%{ord(one):02X}" if one in ESCAPED else one for one in text)


def has(required: Json, **optional: Any) -> Callable[[Any], bool]:
    """An object with these keys in this order; an optional one, given with its default, is left out when it has it."""
    rules = {**required, **{name: rule for name, (rule, _) in optional.items()}}

    def check(value: Any) -> bool:
        if not isinstance(value, dict) or [name for name in rules if name in value] != [*value]:
            return False
        if any(name not in value for name in required):
            return False
        return all(
            rules[name](one) and not (name in optional and one == optional[name][1]) for name, one in value.items()
        )

    return check


is_column = has({"name": is_text, "type": is_text, "arrow": is_text})
is_file = has(
    {
        "path": is_path,
        "bytes": is_count,
        "digest": is_digest,
        "rows": is_count,
        "partition": lambda found: (
            isinstance(found, dict) and all(one is None or is_text(one) for one in found.values())
        ),
    },
    stats=(is_text, ""),
)
is_upload = has(
    {
        "id": lambda one: is_text(one) and 1 <= len(one) <= 2048,
        "parts": each(lambda one: is_text(one) and len(one) <= 256),
    }
)
is_staging = re.compile(r"(?:[^/\x00]+/)*[0-9a-f]{16}").fullmatch


def is_metadata(value: object, room: int = DEPTH_MAX) -> bool:
    if not isinstance(value, (dict, list)):
        return room < DEPTH_MAX
    inner = value.values() if isinstance(value, dict) else value
    return (
        room > 0 and (room < DEPTH_MAX or isinstance(value, dict)) and all(is_metadata(one, room - 1) for one in inner)
    )


EVERY = {
    "kind": is_text,
    "format": lambda value: value == FORMAT,
    "version": is_count,
    "time_ms": is_count,
    "write_id": is_digest,
    "previous": is_digest,
    "table_id": is_text,
    "birth": is_digest,
}
OF_WRITERS = {**EVERY, "writer": is_name, "run": is_name, "generation": is_count}
OF_EPOCHS = {**OF_WRITERS, "epoch": is_count, "prepared": is_count}
KINDS = {
    "create": has(
        {
            **EVERY,
            "layout": is_text,
            "partition_columns": each(is_text),
            "staging": lambda value: value is None or is_text(value),
            "types": lambda value: value in {"spark", "arrow"},
        }
    ),
    "claim": has({**OF_WRITERS, "retires": each(is_text)}),
    "prepare": has(
        {
            **OF_WRITERS,
            "epoch": is_count,
            "claims": lambda value: isinstance(value, bool),
            "mode": is_text,
            "files": each(is_file),
            "removes": each(is_file),
            "columns": each(is_column),
            "metadata": is_metadata,
        },
        uploads=(each(is_upload), []),
        base=(is_count, None),
        staging=(lambda value: is_text(value) and is_staging(value), ""),
    ),
    "publishing": has(OF_EPOCHS),
    "commit": has(OF_EPOCHS, delta=(is_count, None)),
    "abort": has(OF_EPOCHS, delta=(is_count, None)),
    "maintenance": has(
        {
            **EVERY,
            "action": is_text,
            "cleaned": each(is_count),
            "boundary": lambda value: value is None or is_count(value),
        }
    ),
    "convert": has({**EVERY, "layout": is_text}, delta=(is_count, None), partition_columns=(each(is_text), None)),
}


def entry_in(data: bytes, version: int) -> Json:
    """The entry in a slot."""
    try:
        found = unsealed(data)
    except ValueError as error:
        raise RefusedError(f"entry {version}: {error}") from error
    rule = KINDS.get(found.get("kind", ""))
    if rule is None or not rule(found) or found["version"] != version:
        raise RefusedError(f"entry {version}: it is none")
    if "uploads" in found and len(found["uploads"]) != len(found["files"]):
        raise RefusedError(f"entry {version}: files without uploads")
    return found


# -- 4. The law, and 5. the state ---------------------------------------------------------------------

BEFORE: Json = {
    "format": FORMAT, "version": -1, "digest": "", "table_id": "", "birth": "", "layout": "",
    "partition_columns": [], "staging": None, "types": "spark", "columns": [], "writers": {}, "pending": [],
    "aborting": [], "boundary": 0, "converted": 0, "delta": None,
}  # fmt: skip


def follow(state: Json, entry: Json, checksum: str) -> Json:
    """The state after an entry."""
    kind, is_first = entry["kind"], state["version"] == -1
    is_next = entry["version"] == state["version"] + 1 and entry["previous"] == state["digest"]
    is_same = (entry["table_id"], entry["birth"]) == (state["table_id"], state["birth"])
    require(is_next and (is_same or is_first) and (kind == "create") is is_first, entry)
    changed = LAW[kind](state, entry)
    return {**state, "version": entry["version"], "digest": checksum, **changed}


def require(is_so: bool, entry: Json) -> None:
    if not is_so:
        raise RefusedError(f"entry {entry['version']} ({entry['kind']}) may not stand where it stands")


def _create(state: Json, entry: Json) -> Json:
    require(entry["birth"] == entry["write_id"], entry)
    return {name: entry[name] for name in ("table_id", "birth", "layout", "partition_columns", "staging", "types")}


def _is_holder(state: Json, entry: Json) -> bool:
    known = state["writers"].get(entry["writer"])
    return known is not None and (known["run"], known["generation"]) == (entry["run"], entry["generation"])


def _claim(state: Json, entry: Json) -> Json:
    if entry["kind"] == "claim" and _is_holder(state, entry):
        return {}
    new: Json = {"last_epoch": None, "last_version": None, "last_metadata": {}, "rewound": None, "in_delta": None}
    known = state["writers"].get(entry["writer"], {"generation": 0, **new})
    require(entry["generation"] == known["generation"] + 1, entry)
    own = {
        "run": entry["run"],
        "generation": entry["generation"],
        "claimed": entry["version"],
        "claimed_ms": entry["time_ms"],
    }
    return {"writers": {**state["writers"], entry["writer"]: {**own, **{name: known[name] for name in new}}}}


def _prepare(state: Json, entry: Json) -> Json:
    changed = _claim(state, entry) if entry["claims"] else {}
    require(entry["claims"] or _is_holder(state, entry), entry)
    last = {**state, **changed}["writers"][entry["writer"]]["last_epoch"]
    waiting = [one["epoch"] for one in state["pending"] if one["writer"] == entry["writer"]]
    if entry["mode"] == "rewind":
        require(not waiting and last is not None and entry["epoch"] <= last, entry)
    else:
        require(entry["epoch"] > max([-1 if last is None else last, *waiting]), entry)
    require(not entry["files"] or bool(entry["columns"] or state["columns"]), entry)
    kept = {name: entry[name] for name in ("writer", "run", "epoch")} | {
        "prepared": entry["version"],
        "mode": entry["mode"],
    }
    kept |= {"is_publishing": False, "columns": entry["columns"], "metadata": entry["metadata"]}
    return {**changed, "pending": [*state["pending"], kept]}


def _pending(state: Json, entry: Json) -> Json:
    require(_is_holder(state, entry), entry)
    wanted = tuple(entry[name] for name in ("writer", "epoch", "prepared"))
    found = [one for one in state["pending"] if (one["writer"], one["epoch"], one["prepared"]) == wanted]
    require(len(found) == 1, entry)
    return dict(found[0])


def _publishing(state: Json, entry: Json) -> Json:
    found = _pending(state, entry)
    return {"pending": [{**one, "is_publishing": True} if one == found else one for one in state["pending"]]}


def _commit(state: Json, entry: Json) -> Json:
    found = _pending(state, entry)
    require(next(one for one in state["pending"] if one["writer"] == entry["writer"]) == found, entry)
    known = dict(state["writers"][entry["writer"]])
    if found["mode"] == "rewind":
        known["rewound"] = max(known["rewound"] or 0, known["last_epoch"] or 0)
    known |= {"last_epoch": entry["epoch"], "last_version": entry["version"], "last_metadata": found["metadata"]}
    delta = state["delta"]
    if "delta" in entry:
        known["in_delta"], delta = entry["prepared"], max(entry["delta"], delta or 0)
    return {
        "delta": delta,
        "writers": {**state["writers"], entry["writer"]: known},
        "pending": [one for one in state["pending"] if one != found],
        "columns": _union(state["columns"], found["columns"]),
    }


def _union(columns: list[Json], more: list[Json]) -> list[Json]:
    new = {one["name"]: one for one in more}
    kept = [new.get(one["name"], one) if one["type"] == "null" else one for one in columns]
    return kept + [one for one in more if one["name"] not in {known["name"] for known in columns}]


def _abort(state: Json, entry: Json) -> Json:
    found = _pending(state, entry)
    require(not found["is_publishing"], entry)
    return {"pending": [one for one in state["pending"] if one != found], "aborting": [*state["aborting"], found]}


def _maintenance(state: Json, entry: Json) -> Json:
    left = [one for one in state["aborting"] if one["prepared"] not in entry["cleaned"]]
    return {"aborting": left, "boundary": max(state["boundary"], entry["boundary"] or 0)}


def _convert(state: Json, entry: Json) -> Json:
    require(not state["pending"] and not state["aborting"], entry)
    writers = {name: {**one, "in_delta": None} for name, one in state["writers"].items()}
    changed = {
        "layout": entry["layout"],
        "converted": entry["version"],
        "delta": entry.get("delta"),
        "writers": writers,
    }
    if "partition_columns" in entry:
        require(not state["columns"], entry)
        changed["partition_columns"] = entry["partition_columns"]
    return changed


LAW: dict[str, Callable[[Json, Json], Json]] = {
    "create": _create,
    "claim": _claim,
    "prepare": _prepare,
    "publishing": _publishing,
    "commit": _commit,
    "abort": _abort,
    "maintenance": _maintenance,
    "convert": _convert,
}


# -- 6. Segments --------------------------------------------------------------------------------------


class Fact(NamedTuple):
    """One row of a segment."""

    version: int
    kind: str
    writer: str
    run: str
    epoch: int | None
    prepared: int | None
    time_ms: int
    path: str | None = None
    bytes: int | None = None
    digest: str | None = None
    rows: int | None = None
    partition: str | None = None


def facts_in(entry: Json, prepare: Json | None) -> list[Fact]:
    """The facts of one entry; `prepare` is the entry that a commit resolves."""

    def fact(kind: str, run: str, **more: Any) -> Fact:
        given = {"epoch": None, "prepared": None, **more}
        return Fact(
            version=entry["version"],
            kind=kind,
            writer=entry.get("writer", ""),
            run=run,
            time_ms=entry["time_ms"],
            **given,
        )

    end = {name: entry.get(name) for name in ("epoch", "prepared")}
    kind = entry["kind"]
    if kind == "claim":
        return [*(fact("retire", run) for run in entry["retires"]), fact("claim", entry["run"])]
    if kind == "prepare" and entry["claims"]:
        return [fact("claim", entry["run"])]
    if kind == "abort":
        return [fact("abort", entry["run"], **end)]
    if kind == "convert":
        return [fact("convert", "", path=entry["layout"])]
    if kind != "commit" or prepare is None:
        return []
    files = [("remove", file) for file in prepare["removes"]] + [("add", file) for file in prepare["files"]]
    rows = [fact("commit", entry["run"], **end)]
    for way, file in files:
        texts = msgspec.json.encode(file["partition"]).decode()
        own = {name: file[name] for name in ("path", "bytes", "digest", "rows")}
        rows.append(fact(way, prepare["run"], **end, **own, partition=texts))
    return rows


def ranges(count: int) -> list[tuple[int, int]]:
    """The segments that cover the whole blocks of the versions below `count`."""
    found, start, size = [], 0, BLOCK
    while size * FANOUT <= count:
        size *= FANOUT
    while size >= BLOCK:
        while start + size <= count:
            found.append((start, start + size - 1))
            start += size
        size //= FANOUT
    return found


# -- 7. Reading ---------------------------------------------------------------------------------------


class Reader:
    """A table in a local directory, as it is when this is made."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for _ in range(TRIES):
            try:
                self.state = self._head()
                self.facts = self._facts()
                break
            except _AgainError:
                continue
        else:
            raise RefusedError("expiry passed by each time")

    def read(self, path: str) -> bytes | None:
        """An object's bytes; None when it is not there."""
        at = self.root / path
        return at.read_bytes() if at.is_file() else None

    def names(self, directory: str) -> list[str]:
        """What lies in a directory."""
        at = self.root / directory
        return sorted(one.name for one in at.iterdir()) if at.is_dir() else []

    # Step 1: where to begin.

    def _begin(self) -> Json:
        hint = self._state_in(HINT)
        if hint is not None and self._checksum(hint["version"]) == hint["digest"]:
            return hint
        known = BEFORE
        for name in reversed(self._numbered(SUMMARIES)):
            found = self._state_in(f"{SUMMARIES}/{name:020d}.json")
            if found is not None and self._checksum(found["version"]) == found["digest"]:
                known = found
                break
        told = [*self._numbered(SUMMARIES), *(last for _, last in self._segments())]
        if hint is not None and hint["birth"] == (known["birth"] or self._birth() or hint["birth"]):
            told.append(hint["version"])
        for version in told:
            if version > known["version"] and self.read(self._slot(version)) is None:
                raise RefusedError(f"entry {version} is missing, and something tells of it")
        return known

    # Steps 2 to 4: the entries after it.

    def _head(self) -> Json:
        begun = state = self._begin()
        while (data := self.read(self._slot(state["version"] + 1))) is not None:
            if data == EXPIRED:
                raise _AgainError
            state = follow(state, entry_in(data, state["version"] + 1), checksum_of(data))
        if begun["version"] >= 0 and self._checksum(begun["version"]) != begun["digest"]:
            raise _AgainError
        whole = (state["version"] + 1) // BLOCK * BLOCK
        there = [number for number in self._numbered(ENTRIES) if number >= whole]
        if there != [*range(whole, state["version"] + 1)]:
            if self.read(self._slot(state["version"] + 1)) is not None:
                raise _AgainError
            raise RefusedError(f"an entry is missing: {there} are there, the log leads to {state['version']}")
        if state["version"] < 0:
            raise RefusedError("there is no table" if not self._numbered(ENTRIES) else "entry 0 is missing")
        return state

    # Step 5: the facts.

    def _facts(self) -> list[Fact]:
        count = self.state["version"] + 1
        found = [fact for pair in ranges(count) for fact in self._segment(*pair)]
        return [*found, *self._of_entries(count // BLOCK * BLOCK, count - 1)]

    def _segment(self, first: int, last: int) -> list[Fact]:
        data = self.read(f"{SEGMENTS}/{first:020d}-{last:020d}.segment")
        if data is not None:
            found = None
            with suppress(OSError, ValueError, TypeError):
                rows = pq.read_table(io.BytesIO(data), page_checksum_verification=True).to_pylist()
                found = [Fact(**row) for row in rows]
            if found is not None and all(_is_fact(fact, first, last) for fact in found):
                return found
        if last - first + 1 == BLOCK:
            return self._of_entries(first, last)
        step = (last - first + 1) // FANOUT
        return [fact for start in range(first, last, step) for fact in self._segment(start, start + step - 1)]

    def _of_entries(self, first: int, last: int) -> list[Fact]:
        found = []
        for version in range(first, last + 1):
            entry = self.entry(version)
            prepare = self.entry(entry["prepared"]) if entry["kind"] == "commit" else None
            found += facts_in(entry, prepare)
        return found

    # Steps 6 and 7: the files.

    def files(self, version: int | None = None) -> list[File]:
        """The files at a version, or at the head."""
        at = self.state["version"] if version is None else version
        if not self.state["boundary"] <= at <= self.state["version"]:
            raise RefusedError(f"version {at} is not retained")
        converted = max((fact.version for fact in self.facts if fact.kind == "convert"), default=0)
        if self.state["layout"] != "parquet" and at >= converted:
            newest = at == self.state["version"]
            return self._files_in_delta(None if newest else self._delta_at(at), is_newest=newest)
        return [_file_of(fact) for fact in self._live(at).values()]

    def _live(self, at: int) -> dict[str, Fact]:
        live: dict[str, Fact] = {}
        for fact in self.facts:
            if fact.version <= at and fact.kind == "add":
                live[fact.path or ""] = fact
            elif fact.version <= at and fact.kind == "remove":
                live.pop(fact.path or "", None)
        return live

    def bytes_of(self, file: File) -> bytes:
        """The bytes of a file at any retained version, wherever they lie."""
        removers = [fact.prepared for fact in self.facts if fact.kind == "remove" and fact.path == file.path]
        for pending in self.state["pending"]:
            removes = self.entry(pending["prepared"])["removes"]
            removers += [pending["prepared"] for one in removes if one["path"] == file.path]
        for path in (file.path, *(f"{REMOVED}/{one:020d}/{file.path}.removed" for one in removers)):
            if (data := self.read(path)) is not None:
                return data
        raise RefusedError(f"{file.path} is missing")

    def digest_of(self, path: str) -> str | None:
        """What the log has recorded of a file besides its size."""
        return next((fact.digest for fact in self.facts if fact.kind == "add" and fact.path == path), None)

    # Step 7: Delta.

    def _delta_at(self, version: int) -> int | None:
        for at in range(version, self.state["boundary"] - 1, -1):
            entry = self.entry(at)
            if "delta" in entry:
                return int(entry["delta"])
        entries = map(self.entry, range(self.state["boundary"], self.state["version"] + 1))
        first = next((one for one in entries if one["kind"] == "prepare"), {})
        return first.get("base")

    def _files_in_delta(self, version: int | None, *, is_newest: bool) -> list[File]:
        if version is None and not is_newest:
            return []
        ours = {fact.path: fact for fact in self.facts if fact.kind == "add"}
        found = []
        for body in self._delta_files(version):
            path = unquote(body["path"])
            if path in ours:
                found.append(_file_of(ours[path]))
            else:
                rows = msgspec.json.decode(body["stats"]).get("numRecords") if body.get("stats") else None
                texts = {name: text or None for name, text in body["partitionValues"].items()}
                found.append(File(path, body["size"], rows, texts, None, None, -1))
        return found

    def _delta_files(self, version: int | None) -> list[Json]:
        """By Delta's own protocol, as little of it as a test needs."""
        names = [name for name in self.names(DELTA_LOG) if name[:20].isdecimal()]
        commits = {int(name[:20]) for name in names if name[20:] == ".json"}
        last = max(commits, default=-1) if version is None else version
        bases = [int(name[:20]) for name in names if name[20:] == ".checkpoint.parquet" and int(name[:20]) <= last]
        live: dict[str, Json] = {}
        start = 0
        if 0 not in commits and bases:
            start = max(bases) + 1
            for row in pq.read_table(self.root / DELTA_LOG / f"{max(bases):020d}.checkpoint.parquet")[
                "add"
            ].to_pylist():
                if row is not None:
                    live[row["path"]] = {**row, "partitionValues": dict(row["partitionValues"] or ())}
        for number in range(start, last + 1):
            data = self.read(f"{DELTA_LOG}/{number:020d}.json")
            if data is None:
                raise RefusedError(f"version {number} of Delta's log is missing")
            actions = [msgspec.json.decode(line, type=dict[str, Any]) for line in data.splitlines()]
            for action in actions:
                live.pop(action.get("remove", {}).get("path"), None)
            live |= {action["add"]["path"]: action["add"] for action in actions if "add" in action}
        if any(body.get("deletionVector") for body in live.values()):
            raise RefusedError("the Delta table has deletion vectors")
        return [*live.values()]

    # -- pieces ---------------------------------------------------------------------------------------

    def entry(self, version: int) -> Json:
        """One retained entry."""
        data = self.read(self._slot(version))
        if data is None or data == EXPIRED:
            raise RefusedError(f"entry {version} is not there")
        return entry_in(data, version)

    def _slot(self, version: int) -> str:
        return f"{ENTRIES}/{version:020d}.json"

    def _checksum(self, version: int) -> str:
        data = self.read(self._slot(version))
        try:
            unsealed(data or b"")
        except ValueError:
            return ""
        return checksum_of(data or b"")

    def _state_in(self, path: str) -> Json | None:
        try:
            found = unsealed(self.read(path) or b"")
        except ValueError:
            return None
        return found if [*found] == [*BEFORE] else None

    def _numbered(self, directory: str) -> list[int]:
        found = (re.fullmatch(r"([0-9]{20})\.json", name) for name in self.names(directory))
        return [int(match[1]) for match in found if match]

    def _segments(self) -> Iterator[tuple[int, int]]:
        for name in self.names(SEGMENTS):
            if match := re.fullmatch(r"([0-9]{20})-([0-9]{20})\.segment", name):
                yield int(match[1]), int(match[2])

    def _birth(self) -> str | None:
        try:
            return str(self.entry(0)["birth"])
        except RefusedError:
            return None


def _is_fact(fact: Fact, first: int, last: int) -> bool:
    """Whether a segment of these versions may hold it."""
    is_known = fact.kind in {"add", "remove", "commit", "abort", "claim", "retire", "convert"}
    return is_known and first <= fact.version <= last and (fact.kind not in {"add", "remove"} or is_path(fact.path))


def _file_of(fact: Fact) -> File:
    texts = msgspec.json.decode(fact.partition or "{}", type=dict[str, str | None])
    return File(fact.path or "", fact.bytes or 0, fact.rows or 0, texts, fact.epoch, fact.writer or None, fact.version)


def digest(data: bytes) -> str:
    """What is recorded of a Parquet file: the SHA-256 of its footer region."""
    size = int.from_bytes(data[-8:-4], "little") + 8
    return hashlib.sha256(data[-size:]).hexdigest()
