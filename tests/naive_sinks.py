"""Sinks as people write them: a careful one, and fifteen that each get one thing wrong. Small real programs.

Promises: `Careful` is exactly-once on one disk with one live run at a time: the checkers find nothing. Every other sink
here does real work, and what is wrong with it is said in its first line.
Relies on: `Shell`, the few calls of a disk they make. They write the log of the on-disk format, or none at all, so that
the checkers of the crash proof can judge them like the engine.
Does not promise: speed, several writers, anything the engine has beyond append, commit and recover.
"""

from __future__ import annotations

import os
import posixpath
from contextlib import suppress
from functools import cache
from typing import Any, cast

from crash_scenarios import parquet_of
from txsink import paths
from txsink.log import entry as entries
from txsink.log.entry import AnyEntry, Claim, Commit, Create, Prepare
from txsink.records import DataFile
from txsink.testing.crash_book import ROOT, STAGING
from txsink.testing.crash_check import identity_of
from txsink.testing.simdisk import SimDisk

WRITER = "w"
LOG = f"{ROOT}/{paths.LOG_DIRECTORY}"
STAGED = f"{STAGING}/{paths.writer_directory(WRITER)}"


class FencedOff(Exception):  # noqa: N818 -- the sink stops, as it should
    """Another run has taken over."""


@cache
def file_of(*rows: int) -> bytes:
    """A Parquet file of these rows."""
    return parquet_of({"id": list(rows)})


class Shell:
    """What a program does with files."""

    def __init__(self, disk: SimDisk, life: int) -> None:
        self.disk = disk
        self.run = f"{life:08x}"
        self.made = 0

    def new_id(self) -> str:
        self.made += 1
        return f"{self.run}{self.made:06x}"

    def write(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """A new file; its name is durable once its directory was synced."""
        handle = self.disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        self.disk.write(handle, data)
        if sync:
            self.disk.fsync(handle)
        self.disk.close(handle)

    def sync(self, directory: str) -> None:
        handle = self.disk.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        self.disk.fsync(handle)
        self.disk.close(handle)

    def read(self, path: str) -> bytes:
        handle = self.disk.open(path, os.O_RDONLY)
        data = self.disk.pread(handle, 1 << 24, 0)
        self.disk.close(handle)
        return data

    def names(self, directory: str) -> list[str]:
        try:
            return sorted(self.disk.listdir(directory))
        except FileNotFoundError:
            return []

    def is_there(self, path: str) -> bool:
        return posixpath.basename(path) in self.names(posixpath.dirname(path))

    def mkdirs(self, path: str) -> None:
        above = posixpath.dirname(path)
        if above != "/":
            self.mkdirs(above)
        with suppress(FileExistsError):
            self.disk.mkdir(path)
        self.sync(above)

    def drop(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self.disk.unlink(path)


def entry_of(kind: type[AnyEntry], log: list[AnyEntry], raw: bytes, write_id: str, **fields: Any) -> AnyEntry:
    """The next entry of a log that was read as far as `raw`, the bytes of its last one."""
    previous = entries.digest(raw) if raw else entries.GENESIS
    birth = log[0].birth if log else write_id
    header: dict[str, Any] = {"format": entries.FORMAT, "version": len(log), "time_ms": len(log), "write_id": write_id}
    return kind(**header, previous=previous, table_id="t", birth=birth, **fields)


class Careful:
    """Stage, prepare, publish, commit; everything durable before the next; recovery rolls forward and sweeps."""

    has_log = True

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.generation = 0

    # -- what a program calls ---------------------------------------------------------------------------

    def open(self) -> None:
        """Claim the writer, finish what is prepared, delete what is left."""
        self.shell.mkdirs(LOG)
        self.shell.mkdirs(STAGED)
        if not self.log():
            self.append(Create, layout="parquet", partition_columns=(), staging=None)
        self.claim()
        for prepare in self.pending():
            self.finish(prepare)
        self.sweep()
        for name in self.shell.names(LOG):
            if paths.is_temporary(f"{paths.LOG_DIRECTORY}/{name}"):
                self.shell.drop(f"{LOG}/{name}")

    def commit(self, epoch: int, rows: tuple[int, ...]) -> None:
        """One epoch, unless it is committed."""
        if self.is_committed(epoch):
            return
        prepare = self.prepare(epoch, self.stage(epoch, rows))
        self.finish(prepare)

    # -- its steps, for others to get wrong ---------------------------------------------------------------

    def claim(self) -> None:
        log = self.log()
        self.generation = 1 + max([0, *(one.generation for one in log if isinstance(one, Claim))])
        self.append(Claim, writer=WRITER, run=self.shell.run, generation=self.generation, retires=())

    def is_committed(self, epoch: int) -> bool:
        return any(isinstance(one, Commit) and one.epoch == epoch for one in self.log())

    def stage(self, epoch: int, rows: tuple[int, ...]) -> DataFile:
        data = file_of(*rows)
        path = paths.data_name(epoch, 0, self.shell.new_id())
        self.shell.mkdirs(f"{STAGED}/{self.shell.run}")
        self.write_staged(f"{STAGED}/{self.shell.run}/{path}", data)
        size, digest = identity_of(data)
        return DataFile(path=path, bytes=size, digest=digest, rows=len(rows), partition={})

    def write_staged(self, path: str, data: bytes) -> None:
        self.shell.write(path, data)
        self.shell.sync(posixpath.dirname(path))

    def prepare(self, epoch: int, file: DataFile) -> Prepare:
        fields = {"epoch": epoch, "claims": False, "mode": "append", "files": (file,), "removes": (), "columns": ()}
        made = self.append(Prepare, **self.who(), **fields, metadata={})
        return cast("Prepare", made)

    def finish(self, prepare: Prepare) -> None:
        """Publish, then commit."""
        self.publish(prepare)
        self.append(Commit, **self.who(), epoch=prepare.epoch, prepared=prepare.version)

    def publish(self, prepare: Prepare) -> None:
        for file in prepare.files:
            source = f"{STAGED}/{prepare.run}/{file.path}"
            if not self.shell.is_there(f"{ROOT}/{file.path}"):
                self.shell.disk.link(source, f"{ROOT}/{file.path}")
            self.shell.sync(ROOT)
            self.shell.drop(source)

    def sweep(self) -> None:
        named = {file.path for prepare in self.pending() for file in prepare.files}
        for run in self.shell.names(STAGED):
            for name in self.shell.names(f"{STAGED}/{run}"):
                if name not in named:
                    self.shell.drop(f"{STAGED}/{run}/{name}")

    # -- its log ------------------------------------------------------------------------------------------

    def who(self) -> dict[str, Any]:
        return {"writer": WRITER, "run": self.shell.run, "generation": self.generation}

    def log(self) -> list[AnyEntry]:
        return [entries.decode(raw, at) for at, raw in enumerate(self.raw_log())]

    def raw_log(self) -> list[bytes]:
        names = [name for name in self.shell.names(LOG) if paths.parse_version(name) is not None]
        return [self.shell.read(f"{LOG}/{name}") for name in names]

    def pending(self) -> list[Prepare]:
        log = self.log()
        done = {one.prepared for one in log if isinstance(one, Commit)}
        return [one for one in log if isinstance(one, Prepare) and one.version not in done]

    def append(self, kind: type[AnyEntry], **fields: Any) -> AnyEntry:
        """Put-if-absent of the slot after everything that was read; who lost the race decides again."""
        while True:
            raw = self.raw_log()
            log = [entries.decode(one, at) for at, one in enumerate(raw)]
            self.check_fence(kind, log)
            self.shell.sync(LOG)  # what was read may be of a run that died before it could
            made = entry_of(kind, log, raw[-1] if raw else b"", self.shell.new_id(), **fields)
            with suppress(FileExistsError):
                self.put(f"{LOG}/{posixpath.basename(paths.entry_path(len(log)))}", entries.encode(made))
                return made

    def check_fence(self, kind: type[AnyEntry], log: list[AnyEntry]) -> None:
        newest = max([0, *(one.generation for one in log if isinstance(one, Claim))])
        if newest > self.generation or (kind is Claim and newest == self.generation):
            raise FencedOff

    def put(self, path: str, data: bytes) -> None:
        temporary = f"{ROOT}/{paths.temporary_path(path.removeprefix(f'{ROOT}/'), self.shell.new_id())}"
        self.shell.write(temporary, data)
        try:
            self.shell.disk.link(temporary, path)
        finally:
            self.shell.drop(temporary)
        self.shell.sync(LOG)


# -- with a log ---------------------------------------------------------------------------------------------


class LogFirst(Careful):
    """The commit entry comes before the files."""

    def finish(self, prepare: Prepare) -> None:
        self.append(Commit, **self.who(), epoch=prepare.epoch, prepared=prepare.version)
        self.publish(prepare)


class LogInPlace(Careful):
    """An entry gets its name before its bytes."""

    def put(self, path: str, data: bytes) -> None:
        self.shell.write(path, data)
        self.shell.sync(LOG)


class ReplayUnchecked(Careful):
    """An epoch that comes again is written again."""

    def is_committed(self, epoch: int) -> bool:
        return False


class Unfenced(Careful):
    """Two runs of one writer both append: nobody looks who has claimed."""

    def check_fence(self, kind: type[AnyEntry], log: list[AnyEntry]) -> None: ...


class SameGeneration(Unfenced):
    """A run claims with a number that it made up at its start."""

    def claim(self) -> None:
        self.generation = 1
        self.append(Claim, **self.who(), retires=())


class SweepEverything(Careful):
    """Recovery deletes what is staged without a look at what is prepared."""

    def open(self) -> None:
        for run in self.shell.names(STAGED):
            for name in self.shell.names(f"{STAGED}/{run}"):
                self.shell.drop(f"{STAGED}/{run}/{name}")
        super().open()


class DeleteOnCommitError(Careful):
    """When the commit raises, the files go: but the entry may have landed."""

    def finish(self, prepare: Prepare) -> None:
        self.publish(prepare)
        try:
            self.append(Commit, **self.who(), epoch=prepare.epoch, prepared=prepare.version)
        except OSError:
            for file in prepare.files:
                self.shell.drop(f"{ROOT}/{file.path}")
            raise


class ListThenPut(Careful):
    """The next version is the number of entries in a listing; the put takes whatever is there."""

    def put(self, path: str, data: bytes) -> None:
        temporary = f"{ROOT}/{paths.temporary_path(path.removeprefix(f'{ROOT}/'), self.shell.new_id())}"
        self.shell.write(temporary, data)
        self.shell.disk.replace(temporary, path)
        self.shell.sync(LOG)


class LockWithTimeout(ListThenPut):
    """Appends hold a lock, which others break when its holder was away for too long."""

    def put(self, path: str, data: bytes) -> None:
        lock = f"{ROOT}/_lock"
        for _ in range(2):
            with suppress(FileExistsError):
                self.shell.write(lock, self.shell.run.encode())
                break
            self.shell.drop(lock)  # its time is over
        super().put(path, data)
        self.shell.drop(lock)


# -- without a log: what lies in the directory is committed -------------------------------------------------


class RenameOnly(Careful):
    """Write beside the table, rename into it; no sync at all."""

    has_log = False
    syncs_data = syncs_names = False

    def open(self) -> None:
        self.shell.mkdirs(ROOT)
        self.shell.mkdirs(STAGED)
        for name in self.shell.names(STAGED):
            self.shell.drop(f"{STAGED}/{name}")

    def is_committed(self, epoch: int) -> bool:
        return any(name.startswith(f"part-{epoch}-") for name in self.shell.names(ROOT))

    def commit(self, epoch: int, rows: tuple[int, ...]) -> None:
        if not self.is_committed(epoch):
            name = paths.data_name(epoch, 0, self.shell.new_id())
            self.shell.write(f"{STAGED}/{name}", file_of(*rows), sync=self.syncs_data)
            self.shell.disk.replace(f"{STAGED}/{name}", f"{ROOT}/{name}")
        if self.syncs_names:
            self.shell.sync(ROOT)


class NoDataSync(RenameOnly):
    """The name is durable before the bytes."""

    syncs_names = True


class NoDirectorySync(RenameOnly):
    """The bytes are durable, under no durable name."""

    syncs_data = True


class AcknowledgeBeforeDurable(RenameOnly):
    """An epoch is synced when the next one comes."""

    def commit(self, epoch: int, rows: tuple[int, ...]) -> None:
        for name in self.shell.names(ROOT):
            handle = self.shell.disk.open(f"{ROOT}/{name}", os.O_RDONLY)
            self.shell.disk.fsync(handle)
            self.shell.disk.close(handle)
        self.shell.sync(ROOT)
        super().commit(epoch, rows)


class ForeachBatchAppend(RenameOnly):
    """`foreachBatch(lambda batch, _: batch.write.mode("append").parquet(path))`: durable, and deaf to replays."""

    syncs_data = syncs_names = True

    def is_committed(self, epoch: int) -> bool:
        return False


class FileSinkReadByListing(RenameOnly):
    """Spark's file sink: files under their names, then a manifest of the batch; read by a listing of the directory."""

    manifests = f"{ROOT}/_spark_metadata"

    def open(self) -> None:
        super().open()
        self.shell.mkdirs(self.manifests)

    def is_committed(self, epoch: int) -> bool:
        return str(epoch) in self.shell.names(self.manifests)

    def commit(self, epoch: int, rows: tuple[int, ...]) -> None:
        if not self.is_committed(epoch):
            for sequence, row in enumerate(rows):
                name = paths.data_name(epoch, sequence, self.shell.new_id())
                self.shell.write(f"{STAGED}/{name}", file_of(row))
                self.shell.disk.replace(f"{STAGED}/{name}", f"{ROOT}/{name}")
            self.shell.sync(ROOT)
            self.shell.write(f"{self.manifests}/{self.shell.new_id()}", b"v1")
            self.shell.disk.replace(
                f"{self.manifests}/{self.shell.run}{self.shell.made:06x}", f"{self.manifests}/{epoch}"
            )
            self.shell.sync(self.manifests)
