"""File systems are compared before a file is promised: at every open, and for every directory it is to be moved to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest

from place import Place, rows, staged_files
from seen import rows_of
from txsink.errors import InvalidRequestError
from txsink.store.local import mounts
from txsink.store.local.store import LocalStore
from txsink.testing.crash_world import stamps_of
from txsink.testing.simdisk import SimDisk
from txsink.writing.opening import open_sink

DAYS = {"id": [1, 2], "day": ["a", "b"]}
MOUNTS = """
import subprocess, sys, txsink
where, what = sys.argv[1:]
path = f"{where}/t"
if what == "root":
    subprocess.run(["mount", "--bind", path, path], check=True)
else:
    subprocess.run(["mount", "--bind", f"{path}/day=b", f"{path}/day=b"], check=True)
try:
    txsink.write(path, {"id": [3], "day": ["b"]}, writer="w", epoch=2)
except txsink.InvalidRequestError as error:
    print(error)
subprocess.run(["umount", path if what == "root" else f"{path}/day=b"], check=True)
print(txsink.write(path, {"id": [3], "day": ["b"]}, writer="w", epoch=2).outcome)
"""


def test_a_partition_that_lies_on_another_disk_is_refused_before_the_prepare_entry() -> None:
    disk = SimDisk()
    store = LocalStore(cast("ModuleType", disk))
    with open_sink(store, stamps_of(1), "/d/t", "w", {"partition_by": "day"}) as sink:
        with sink.begin(1) as txn:
            txn.write(DAYS)
        disk.mount("/d/t/day=c")
        txn = sink.begin(2)
        txn.write({"id": [3], "day": ["c"]})
        with pytest.raises(InvalidRequestError, match=r"/d/t/day=c lies on another file system.*nothing was prepared"):
            txn.commit()
        assert (txn.outcome, sink.pending) == ("open", [])
        txn.abort()
        with sink.begin(2) as again:
            again.write(DAYS)
        assert again.outcome == "committed"


def test_a_table_at_a_mount_point_is_refused() -> None:
    disk = SimDisk()
    disk.mkdir("/d")
    disk.mount("/d/t")
    with pytest.raises(InvalidRequestError, match=r"its staging root .* lies on another file system or mount"):
        open_sink(LocalStore(cast("ModuleType", disk)), stamps_of(2), "/d/t", "w", {})


def test_a_partition_that_is_a_link_to_another_disk_is_refused(place: Place) -> None:
    shm = Path("/dev/shm")
    if not shm.is_dir() or shm.stat().st_dev == place.path.parent.stat().st_dev:
        pytest.skip("/dev/shm is no other file system than the temporary directory")
    with place.sink(partition_by="day") as sink:
        (place.path / "day=b").symlink_to(shm)
        with pytest.raises(InvalidRequestError, match="day=b lies on another file system"), sink.begin(1) as txn:
            txn.write(DAYS)
    assert staged_files(place) == []


@pytest.mark.parametrize("what", ["root", "partition"])
def test_a_bind_mount_of_the_same_disk_is_another_place_too(tmp_path: Path, what: str) -> None:
    """`st_dev` is the same and `link` fails all the same."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode:
        pytest.skip("only root may mount, and only where namespaces are served")
    import txsink  # noqa: PLC0415

    txsink.write(tmp_path / "t", DAYS, writer="w", epoch=1, partition_by="day")
    done = subprocess.run(
        ["unshare", "-m", sys.executable, "-c", MOUNTS, str(tmp_path), what], check=True, capture_output=True, text=True
    )
    refusal, outcome = done.stdout.splitlines()
    assert "another file system or mount" in refusal
    assert outcome == "committed"
    assert rows_of(tmp_path / "t") == [1, 2, 3]


def test_without_proc_the_device_alone_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert mounts.mount_of(os, str(tmp_path)) == mounts.mount_of(os, str(tmp_path.parent))

    class NoProc:
        """A system whose /proc is not mounted."""

        O_PATH, O_DIRECTORY, O_RDONLY = getattr(os, "O_PATH", 0), os.O_DIRECTORY, os.O_RDONLY
        stat, read, close = staticmethod(os.stat), staticmethod(os.read), staticmethod(os.close)

        @staticmethod
        def open(path: str, flags: int) -> int:
            if path.startswith("/proc/"):
                raise FileNotFoundError(2, "No such file or directory", path)
            return os.open(path, flags)

    assert mounts.mount_of(cast("ModuleType", NoProc), str(tmp_path)) == (tmp_path.stat().st_dev, b"")


def test_a_directory_that_is_pruned_between_its_making_and_the_file_in_it_closes_no_stager(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another life of the writer removes what it finds empty."""
    with place.sink() as sink:
        made = os.mkdir
        left = [2]

        def mkdir(path: str, mode: int = 0o777) -> None:
            made(path, mode)
            if left[0]:
                left[0] -= 1
                Path(path).rmdir()

        monkeypatch.setattr(os, "mkdir", mkdir)
        with sink.begin(1) as txn:
            txn.write(rows(1))
    assert (left, rows_of(place.path)) == ([0], [1])
