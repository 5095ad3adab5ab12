"""The door: open a writer, write once. Wires the parts; owns clock, ids and chance.

Promises: what README promises of `write` and `open_writer`; an option nobody knows is refused with a suggestion.
Relies on: the modules it wires. Every rule about when what may happen stands there. The signature of `open_writer` is
the definition of the options: what repeats one is held to it (tests/test_surface.py).
Does not promise: two live runs of one writer. The newer one wins and the older one gets FencedError.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from typing import Any

from txsink import paths
from txsink.choices import Compression, Layout, Mode, PartitionOverwrite, Types
from txsink.delta.log import DeltaLog, is_local
from txsink.delta.state import require_writable
from txsink.environment import Stamps, new_id, stamps
from txsink.errors import ConflictError, InvalidRequestError
from txsink.log.log import Log
from txsink.options import BEGIN_OPTIONS, OPTIONS, Options, parse, public
from txsink.protocol import admission, blank, fencing, recovery, sweeping
from txsink.protocol.blank import is_blank, lay_anew
from txsink.protocol.fencing import Run
from txsink.protocol.outcome import Result
from txsink.publish.choose import former_of, publisher_of
from txsink.publish.protocol import DELTA, PARQUET, Publisher
from txsink.staging.place import staging_root_of
from txsink.staging.stager import Settings
from txsink.store.opening import AnyPath, open_store, uri_of
from txsink.store.protocol import StorageOptions, Store
from txsink.writing import ground
from txsink.writing.workplace import Workplace
from txsink.writing.writer import Writer

_ESCAPE = re.compile("%[0-9A-Fa-f]{2}")


@public
def write(
    path: AnyPath,
    data: object,
    *,
    writer: str,
    epoch: int,
    mode: Mode = "append",
    partition_overwrite: PartitionOverwrite = "static",
    metadata: Mapping[str, Any] | None = None,
    parts: int | None = None,
    partition_by: str | Iterable[str] | None = None,
    layout: Layout | None = None,
    types: Types | None = None,
    merge_schema: bool = False,
    staging_path: AnyPath | None = None,
    storage_options: Mapping[str, object] | None = None,
    run: str | None = None,
    recover: bool = True,
    compression: Compression = "zstd",
    compression_level: int | None = None,
    target_file_bytes: int = 256 << 20,
    row_group_rows: int = 1 << 20,
    row_group_bytes: int = 128 << 20,
    file_rows_max: int = 1 << 62,
    open_partitions_max: int = 64,
) -> Result:
    """Write one epoch in one call. Calling it again with the same writer and epoch writes nothing.

    - `path`: the table: a local path, `file://`, `hdfs://`, `s3://` or `memory://`.
    - `data`: rows of any kind that `Transaction.write` takes.
    - `writer`: the name of who writes; a newer run of it fences this one.
    - `epoch`: the number of what is written; the writer's epochs grow, and each is committed once.
    - `mode`: `append`, or `overwrite` what was committed when the epoch is prepared.
    - `partition_overwrite`: `static`: an overwrite replaces all; `dynamic`: only the partitions that it writes to.
    - `metadata`: plain JSON that is kept with the epoch, such as the offsets of a source.
    - `parts`: how many parts workers add; `prepare` refuses any other number.
    - `partition_by`: the columns that are kept in the paths of files; set when the table is made.
    - `layout`: of a new table: `parquet` or `delta`; `delta` by default on S3 and where a Delta table is.
    - `types`: of a new table: `spark`, those that Spark reads (the default), or all of `arrow`.
    - `merge_schema`: accept columns that the table does not have yet; they are added to it.
    - `staging_path`: another place for the staged files of a new table, on the table's file system.
    - `storage_options`: credentials, endpoint and other settings of the store; never shown.
    - `run`: an id of your own for this life of the writer; by default a new one.
    - `recover`: commit what the last run has prepared; False leaves it to `Writer.recover`.
    - `compression`: `zstd`, `snappy`, `gzip`, `lz4` or `none`.
    - `compression_level`: of `zstd` and `gzip`; by default that of the codec.
    - `target_file_bytes`: how large a file should become, in bytes.
    - `row_group_rows`: rows of a row group, at most.
    - `row_group_bytes`: bytes of a row group in memory, about.
    - `file_rows_max`: rows of a file, at most.
    - `open_partitions_max`: how many partitions have an open file at a time.
    """
    given = locals()
    of_begin = {name: given[name] for name in BEGIN_OPTIONS}
    with _opened(path, writer, {name: given[name] for name in OPTIONS}, is_one_shot=True) as opened:
        txn = opened.begin(epoch, **of_begin)
        with txn:
            txn.write(data)
        return txn.result()


@public
def open_writer(
    path: AnyPath,
    writer: str,
    *,
    partition_by: str | Iterable[str] | None = None,
    layout: Layout | None = None,
    types: Types | None = None,
    merge_schema: bool = False,
    staging_path: AnyPath | None = None,
    storage_options: Mapping[str, object] | None = None,
    run: str | None = None,
    recover: bool = True,
    compression: Compression = "zstd",
    compression_level: int | None = None,
    target_file_bytes: int = 256 << 20,
    row_group_rows: int = 1 << 20,
    row_group_bytes: int = 128 << 20,
    file_rows_max: int = 1 << 62,
    open_partitions_max: int = 64,
) -> Writer:
    """Claim the writer's name, finish or drop what its last run left, and be ready to write.

    - `path`: the table: a local path, `file://`, `hdfs://`, `s3://` or `memory://`.
    - `writer`: the name of who writes; a newer run of it fences this one.
    - `partition_by`: the columns that are kept in the paths of files; set when the table is made.
    - `layout`: of a new table: `parquet` or `delta`; `delta` by default on S3 and where a Delta table is.
    - `types`: of a new table: `spark`, those that Spark reads (the default), or all of `arrow`.
    - `merge_schema`: accept columns that the table does not have yet; they are added to it.
    - `staging_path`: another place for the staged files of a new table, on the table's file system.
    - `storage_options`: credentials, endpoint and other settings of the store; never shown.
    - `run`: an id of your own for this life of the writer; by default a new one.
    - `recover`: commit what the last run has prepared; False leaves it to `Writer.recover`.
    - `compression`: `zstd`, `snappy`, `gzip`, `lz4` or `none`.
    - `compression_level`: of `zstd` and `gzip`; by default that of the codec.
    - `target_file_bytes`: how large a file should become, in bytes.
    - `row_group_rows`: rows of a row group, at most.
    - `row_group_bytes`: bytes of a row group in memory, about.
    - `file_rows_max`: rows of a file, at most.
    - `open_partitions_max`: how many partitions have an open file at a time.
    """
    given = locals()
    return _opened(path, writer, {name: given[name] for name in OPTIONS})


def _opened(path: AnyPath, writer: str, options: dict[str, Any], *, is_one_shot: bool = False) -> Writer:
    uri = uri_of(path)
    store = open_store(uri, options["storage_options"])
    return open_sink(store, stamps(), uri, writer, options, is_one_shot=is_one_shot)


def open_sink(
    store: Store, parts: Stamps, path: str, writer: str, options: dict[str, Any], *, is_one_shot: bool = False
) -> Writer:
    """`open_writer` over a given store, clock and ids. A one-shot writer claims with its first prepare entry."""
    chosen, stage = parse(path, options)
    run = chosen.run if chosen.run is not None else parts.new_id()
    for name in (writer, run):
        _require_name(path, name)
    log, publisher = _open_table(store, parts, path, chosen, is_followed=store.traits.moves or is_one_shot)
    # Listed here, and not in `sweep`: the log is read in between, and once more there.
    names = publisher.left(writer, ())
    other = former_of(log)
    astray = other.left(writer, ()) if other is not None else []  # also by this very run, before the conversion
    with admission.unless_converted(log, publisher.layout) as converted:
        if store.traits.moves:  # else the claim's append finds out what came after the hint: a request less
            log.refresh()
        publisher.require_agreement(writer, is_lenient=not chosen.recover)
    opened = log.state
    identity = Run(writer, run, -1 if chosen.run is not None else opened.version)
    settings = Settings(path, chosen.storage_options, publisher.place(writer, run), chosen.merge_schema, stage)
    recovered = None
    left = [name for name in names if not name.is_of(run)]
    unfinished = [item for item in (*opened.pending, *opened.aborting) if item.writer == writer]
    if not is_one_shot or left or astray or unfinished:
        fencing.claim(log, identity)
        admission.require_unconverted(log, publisher.layout, converted)
        if log.state.version == opened.version:  # this very run has claimed before
            log.refresh()
        if chosen.recover:
            recovered = recovery.recover(log, identity, publisher)
        if left:
            sweeping.sweep(log, identity, publisher, left)
        if other is not None and astray:
            sweeping.sweep(log, identity, other, astray)
        for former in dict.fromkeys(item.run for item in unfinished if item.run != run):
            publisher.tidy(writer, former)
        # A writer that starts again and again without a commit must not leave a longer way to each next start.
        log.hint()
    sink = Writer(log, identity, publisher, settings)
    sink.recovered = recovered
    return sink


def open_workplace(path: AnyPath, **options: Any) -> Workplace:
    """What workers need that learn only where they run what they stage for. Makes the table, unless somebody has."""
    uri = uri_of(path)
    options["storage_options"] = StorageOptions.of(options.get("storage_options"))
    chosen, stage = parse(uri, options)
    store = open_store(uri, chosen.storage_options)
    log, publisher = _open_table(store, stamps(), uri, chosen)
    state = log.state
    return Workplace(
        uri=log.root if is_local(uri) else uri,  # workers may run in another directory
        storage_options=chosen.storage_options,
        layout=state.layout,
        staging=publisher.staging,
        partition_columns=state.partition_columns,
        columns=publisher.columns(state),
        merge_schema=chosen.merge_schema,
        types=state.types,
        options=stage,
        new_id=new_id,
    )


def _open_table(
    store: Store, parts: Stamps, path: str, chosen: Options, *, is_followed: bool = True
) -> tuple[Log, Publisher]:
    root = store.resolve(path)
    log = Log(store, root, parts)
    log.load(is_followed=is_followed)
    if log.exists and chosen.layout not in {None, log.state.layout}:
        log.refresh()  # it may have been converted since the hint
    delta = DeltaLog(store, root, parts, path)
    if not log.exists:
        ground.require_apart(log)
        if chosen.layout != PARQUET:
            delta.load()
        ground.require(log, has_delta=delta.exists)
        _create(log, delta, chosen)
    else:
        if log.state.layout == DELTA:
            delta.load()
        if is_blank(log.state) and not delta.exists:
            _correct(log, delta, chosen)
    _require_agreement(log, delta, chosen)
    return log, publisher_of(log, delta if log.state.layout == DELTA else None)


def _correct(log: Log, delta: DeltaLog, chosen: Options) -> None:
    """Give a table that never held a row what it was to be: the first writer's word is no trap for the next."""
    at = log.state
    wanted = chosen.layout or at.layout
    by = at.partition_columns if chosen.partition_by is None else chosen.partition_by
    if at.layout not in {PARQUET, DELTA} or (wanted, by) == (at.layout, at.partition_columns):
        return
    _require_columns(log.root, by)
    if wanted != at.layout:
        left = publisher_of(log, delta if at.layout == DELTA else None).left(None, at.writers)
        if left:
            # They are found by the rules of the layout they were staged in.
            found = f"files of former runs of {left[0].writer!r} lie staged in the layout {at.layout}"
            advice = f"Open the writer {left[0].writer!r} without layout first: that drops them, and stops such a run"
            raise ConflictError(f"change {log.root} to the layout {wanted}", found, advice)
        if wanted == DELTA:
            _require_readable(log.root)
            admission.require_types_of_delta(at.types, f"change {log.root} to the layout {wanted}")
            delta.load()
    if not delta.exists:
        lay_anew(log, at, wanted, by)


def _create(log: Log, delta: DeltaLog, chosen: Options) -> None:
    what = f"create {log.root}"
    default = DELTA if delta.exists or not log.store.traits.moves else PARQUET
    chosen_layout = chosen.layout or default
    by = chosen.partition_by
    if delta.exists:
        by = delta.state.partition_columns if by is None else by
        require_writable(delta.state, what)
    _require_columns(log.root, by or ())
    if chosen.staging_path is not None and (chosen_layout == DELTA or not log.store.traits.moves):
        raise InvalidRequestError(
            what,
            "staging_path is given, but files of this table are staged under their final names",
            "Leave staging_path out",
        )
    types = chosen.types or "spark"
    if chosen_layout == DELTA:
        _require_readable(log.root)
        admission.require_types_of_delta(types, what)
    staging = _staging(log, chosen.staging_path) if chosen_layout == PARQUET and log.store.traits.moves else None
    table_id = delta.state.table_id or log.stamps.new_id()
    blank.create(log, chosen_layout, by or (), staging, table_id, types=types)


def _staging(log: Log, staging_path: str | None) -> str | None:
    """The staging root, relative to the table; None for the hidden sibling."""
    staging = None if staging_path is None else posixpath.relpath(log.store.resolve(staging_path), log.root)
    staging_root = staging_root_of(log.root, staging)
    if staging_root == log.root or staging_root.startswith(f"{log.root}/"):
        raise InvalidRequestError(
            f"create {log.root}",
            f"the staging root {staging_root} lies in the table",
            "Name one outside: readers look in",
        )
    _require_one_place(log, staging_root, "create")
    return staging


def _require_one_place(log: Log, staging_root: str, verb: str) -> None:
    if not log.store.same_place(log.root, staging_root):
        raise InvalidRequestError(
            f"{verb} {log.root}",
            f"its staging root {staging_root} lies on another file system or mount: files cannot be moved from it",
            "Name a table below the mount point, or for a new table a staging_path on the mount of the table",
        )


def _require_agreement(log: Log, delta: DeltaLog, chosen: Options) -> None:
    """Refuse options that are not those of the table."""
    if log.state.layout not in {PARQUET, DELTA}:
        raise ConflictError(
            f"open {log.root}",
            "it is being converted to the layout parquet, or that was stopped half-way",
            "Finish it: `txsink convert --to parquet`, or go back: `txsink convert --to delta`",
        )
    if chosen.layout not in {None, log.state.layout}:
        raise InvalidRequestError(
            f"open {log.root}",
            f"its layout is {log.state.layout}, not {chosen.layout}",
            "Leave layout out, or convert the table with `txsink convert`; one without rows takes another layout",
        )
    if delta.exists and delta.state.partition_columns != log.state.partition_columns:
        raise ConflictError(
            f"open {log.root}",
            f"its Delta table is partitioned by {list(delta.state.partition_columns)}, its log says"
            f" {list(log.state.partition_columns)}",
            "Another program made the Delta table anew: write to another path",
        )
    if chosen.types not in {None, log.state.types}:
        raise InvalidRequestError(
            f"open {log.root}", f"its types are {log.state.types!r}, set when it was created", "Leave types out"
        )
    found = log.state.partition_columns
    if chosen.partition_by is not None and chosen.partition_by != found:
        raise InvalidRequestError(
            f"open {log.root}",
            f"it is partitioned by {list(found)}, not by {list(chosen.partition_by)}",
            "Leave partition_by out, or write another table: only one without rows takes another partition_by",
        )
    staging_root = staging_root_of(log.root, log.state.staging)
    if chosen.staging_path is not None and log.store.resolve(chosen.staging_path) != staging_root:
        raise InvalidRequestError(
            f"open {log.root}", f"its staging root is {staging_root}, set when it was created", "Leave staging_path out"
        )
    if log.state.layout == PARQUET and log.store.traits.moves:
        _require_one_place(log, staging_root, "open")


def _require_readable(root: str) -> None:
    if _ESCAPE.search(root):
        found = "the path holds a percent sign and two digits, which Delta's readers take for an escaped character"
        raise InvalidRequestError(f"create {root}", found, "Name another path, or choose layout='parquet'")


def _require_columns(root: str, columns: tuple[str, ...]) -> None:
    for column in columns:
        if not column or column.startswith(("_", ".")) or columns.count(column) > 1:
            raise InvalidRequestError(
                f"create {root}",
                f"the partition column {column!r} is empty, given twice, or begins with '_' or '.'",
                "Partition by other columns: readers hide such directories",
            )


def _require_name(path: str, name: str) -> None:
    problem = paths.name_problem(name) if isinstance(name, str) else "it is no string"
    if problem is not None:
        raise InvalidRequestError(f"open {path}", f"the name {name!r} cannot be used: {problem}", "Give another name")
