"""One log entry: a frozen record, its bytes, and the chain that ties it to the entry before. Pure.

Promises: `decode(encode(e), e.version) == e`; encoding is canonical, so any other spelling of an entry
(white space, a repeated key, a key this format does not have, NaN) is refused; an altered, torn or empty
entry is CorruptError naming its version; an entry of a later format says which format it needs; `encode`
refuses an entry that could not be read back.
Relies on: SHA-256; msgspec for JSON.
Does not promise: protection against a forger. The digests find accidents, not enemies with write access.

Grammar: one line of JSON, keys in the order of the fields below, then the digest of all before it. Every later
format ends its line the same way: its number is believed only when the checksum fits.

    line   = "{" '"kind":' kind "," fields "," '"checksum":"' sha256 '"}' LF

On stores where every name is used once an expired entry is overwritten by a line of the kind `expired` (`EXPIRED`).

Worked example (shortened):

    {"kind":"commit","format":1,"version":2,"time_ms":1760000000000,"write_id":"9f…","previous":"c0…",
     "table_id":"7a…","birth":"3b…","writer":"nightly","run":"51…","generation":1,"epoch":7,"prepared":1,"checksum":"8a…"}
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal, TypeAlias

import msgspec

from txsink.errors import CorruptError, InvalidRequestError
from txsink.paths import is_own_staging, name_problem
from txsink.records import Column, Count, DataFile, Digest, Upload

FORMAT = 1
ENTRY_BYTES_MAX = 64 << 20
METADATA_DEPTH_MAX = 100  # far below where any Python gives up: all of them read the same entries
GENESIS = ""  # what the first entry names as its previous digest

_CHECKSUM_PREFIX = b',"checksum":"'
_END = b'"}\n'
_END_BYTES = 64 + len(_END)
_SUFFIX_BYTES = len(_CHECKSUM_PREFIX) + _END_BYTES


class Entry(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    """What every entry holds. `birth`: the write id of the log's first entry, which no other log has.

    A table deleted and made anew has another birth, also under the same id: its entries are told apart by it.
    """

    format: Count
    version: Count
    time_ms: Count
    write_id: Digest
    previous: Digest
    table_id: str
    birth: Digest


class Create(Entry, frozen=True, kw_only=True, tag="create", forbid_unknown_fields=True):
    """Version 0: what the table is. `staging` is relative to the table; null: the hidden sibling.

    `types`: whose every type of a column is: Spark's reader's, or Arrow's.
    """

    layout: str
    partition_columns: tuple[str, ...]
    staging: str | None
    types: Literal["spark", "arrow"] = "spark"


class WriterEntry(Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry that one run of a writer appended."""

    writer: str
    run: str
    generation: Count

    def __post_init__(self) -> None:
        for name in (self.writer, self.run):
            if problem := name_problem(name):
                message = f"the name {name!r} cannot be: {problem}"
                raise ValueError(message)


class Claim(WriterEntry, frozen=True, kw_only=True, tag="claim", forbid_unknown_fields=True):
    """`run` holds the writer from here on. `retires`: runs that staged files without ever claiming."""

    retires: tuple[str, ...]


class Prepare(WriterEntry, frozen=True, kw_only=True, tag="prepare", omit_defaults=True, forbid_unknown_fields=True):
    """The sealed content of one epoch. `claims`: this entry is the run's claim as well.

    `uploads`, on stores that cannot move files: one for each of `files`. `base`: where the Delta table was when it was
    prepared, if there was one. `staging`, where files are moved: the table's own directory that its run staged below,
    relative to the table.
    """

    epoch: Count
    claims: bool
    mode: str
    files: tuple[DataFile, ...]
    removes: tuple[DataFile, ...]
    columns: tuple[Column, ...]
    metadata: dict[str, Any]
    uploads: tuple[Upload, ...] = ()
    base: Count | None = None
    staging: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.staging and not is_own_staging(self.staging):
            message = f"{self.staging!r} is no directory that a table stages in"
            raise ValueError(message)
        if len(self.uploads) not in {0, len(self.files)}:
            message = f"it names {len(self.uploads)} uploads of {len(self.files)} files"
            raise ValueError(message)


class Publishing(WriterEntry, frozen=True, kw_only=True, tag="publishing", forbid_unknown_fields=True):
    """From here on the transaction can only roll forward: its removals may have begun."""

    epoch: Count
    prepared: Count


class Commit(WriterEntry, frozen=True, kw_only=True, tag="commit", omit_defaults=True, forbid_unknown_fields=True):
    """The epoch is committed: everything its prepare entry names is published.

    `delta`: a version of Delta's log that has it.
    """

    epoch: Count
    prepared: Count
    delta: Count | None = None


class Abort(WriterEntry, frozen=True, kw_only=True, tag="abort", omit_defaults=True, forbid_unknown_fields=True):
    """The epoch is dropped. Its files are deleted after this entry, and a `cleaned` entry says when that is done.

    `delta`: a version of Delta's log that has the commit behind which nobody can publish it.
    """

    epoch: Count
    prepared: Count
    delta: Count | None = None


class Maintenance(Entry, frozen=True, kw_only=True, tag="maintenance", forbid_unknown_fields=True):
    """House work: `cleaned` aborts (their prepare versions), the `boundary` expiry raised, or neither: a repair."""

    action: str
    cleaned: tuple[Count, ...]
    boundary: Count | None


class Convert(Entry, frozen=True, kw_only=True, tag="convert", omit_defaults=True, forbid_unknown_fields=True):
    """From here on the table has another layout. `delta`: the version of Delta's log that holds its files.

    `partition_columns`, of a table that has no columns yet: how it is partitioned from here on.
    """

    layout: str
    delta: Count | None = None
    partition_columns: tuple[str, ...] | None = None


AnyEntry: TypeAlias = Create | Claim | Prepare | Publishing | Commit | Abort | Maintenance | Convert


class _Header(msgspec.Struct):
    """What is looked at before the rest: the format, and the keys that later releases give a meaning (`RESERVED`)."""

    format: int
    positions: msgspec.Raw = msgspec.Raw()
    watermark: msgspec.Raw = msgspec.Raw()
    table: msgspec.Raw = msgspec.Raw()


#: An entry that holds one of these is of a later release. This one cannot know what it would leave out: it refuses.
RESERVED = ("positions", "watermark", "table")


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyEntry)
_header_decoder = msgspec.json.Decoder(_Header)


def encode(entry: AnyEntry) -> bytes:
    """The one spelling of an entry; InvalidRequestError when it could not be read back."""
    what = f"write log entry {entry.version}"
    try:
        body = _encoder.encode(entry)
        same: AnyEntry = _decoder.decode(body)
        is_same = same == entry and entry.format == FORMAT
    except (ValueError, TypeError, RecursionError) as error:
        raise _unfit(what, str(error)) from error
    if not is_same:
        raise _unfit(what, "it would be read back as another: JSON has no NaN, tuple, bytes, time, or key but text")
    if isinstance(entry, Prepare) and _is_deeper(entry.metadata, METADATA_DEPTH_MAX):
        raise _unfit(what, f"its metadata is nested more than {METADATA_DEPTH_MAX} deep")
    data = seal(body)
    if len(data) > ENTRY_BYTES_MAX:
        raise InvalidRequestError(
            what,
            f"it is larger than {ENTRY_BYTES_MAX} bytes",
            "Write fewer files per epoch (a larger target_file_bytes) or less metadata; nothing was written",
        )
    return data


def decode(data: bytes, version: int) -> AnyEntry:
    """The entry in slot `version`, or CorruptError."""
    what = f"read log entry {version}"
    try:
        body = unseal(data)
        refuse_later_format(body, what)
        entry: AnyEntry = _decoder.decode(body)
        is_canonical = _spell(entry) == data
    except InvalidRequestError:
        raise
    except (ValueError, RecursionError) as error:
        raise _corrupt(what, str(error), version) from error
    if not is_canonical:
        raise _corrupt(what, "it is not spelled as txsink spells entries (a repeated key, say)", version)
    if entry.format != FORMAT:
        raise _corrupt(what, f"it says it is of format {entry.format}, which never was", version)
    if entry.version != version:
        raise _corrupt(what, f"it says it is version {entry.version}", version)
    if isinstance(entry, Prepare) and _is_deeper(entry.metadata, METADATA_DEPTH_MAX):
        raise _corrupt(what, f"its metadata is nested more than {METADATA_DEPTH_MAX} deep", version)
    return entry


def digest(data: bytes) -> str:
    """The name of an entry's bytes in the chain: its checksum, so that the end of a file is enough to tell it."""
    return data[-_END_BYTES : -len(_END)].decode("ascii", "replace")


def seal(body: bytes) -> bytes:
    """`body`, a JSON object, as one line that carries the digest of what stands before it."""
    kept = body[:-1]
    return kept + _CHECKSUM_PREFIX + hashlib.sha256(kept).hexdigest().encode() + _END


def unseal(data: bytes) -> bytes:
    """The JSON object in a sealed line; ValueError when a byte of it is not as written."""
    if not data:
        message = "it is empty"
        raise ValueError(message)
    if len(data) > ENTRY_BYTES_MAX:
        message = f"it is larger than {ENTRY_BYTES_MAX} bytes"
        raise ValueError(message)
    kept = data[:-_SUFFIX_BYTES]
    if data != seal(kept + b"}"):
        message = "its checksum does not fit its bytes: it is torn or altered"
        raise ValueError(message)
    return kept + b"}"


#: What is left in the slot of an expired entry where every name is used once (`Traits.keeps_names`).
EXPIRED = seal(b'{"kind":"expired","format":1}')


def refuse_later_format(body: bytes, what: str) -> None:
    """Refuse a sealed object of a later format with a message that says which one; also one with a reserved key."""
    header = _header_decoder.decode(body)
    found = header.format
    if held := [name for name in RESERVED if bytes(getattr(header, name))]:
        raise InvalidRequestError(
            what,
            f"it holds {held[0]!r}, which this txsink does not know yet",
            "Upgrade txsink to a release that reads it",
            reserved=held[0],
        )
    if found > FORMAT:
        raise InvalidRequestError(
            what,
            f"it is of format {found}, this txsink reads format {FORMAT}",
            f"Upgrade txsink to a release that reads format {found}",
            format=found,
            supported=FORMAT,
        )


def _spell(entry: AnyEntry) -> bytes:
    return seal(_encoder.encode(entry))


def _is_deeper(value: object, room: int) -> bool:
    """Whether lists and dictionaries are nested more than `room` deep."""
    if not isinstance(value, (dict, list)):
        return False
    items = value.values() if isinstance(value, dict) else value
    return room == 0 or any(_is_deeper(item, room - 1) for item in items)


def _unfit(what: str, found: str) -> InvalidRequestError:
    advice = f"Give metadata that JSON can hold, at most {METADATA_DEPTH_MAX} deep; nothing was written"
    return InvalidRequestError(what, found, advice)


def _corrupt(what: str, found: str, version: int) -> CorruptError:
    return CorruptError(
        what, found, "Restore the entry from a copy; nothing was changed and nothing may be appended", version=version
    )
