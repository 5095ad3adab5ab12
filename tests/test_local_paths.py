"""How the local store takes paths, and which file systems it refuses by name before anything is written."""

from __future__ import annotations

import errno
import os
from collections import Counter
from pathlib import Path, PureWindowsPath
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import txsink
from place import Place, rows, tree
from txsink.errors import InvalidRequestError
from txsink.store.local.darwin import Darwin, system_of
from txsink.store.local.store import LocalStore
from txsink.store.opening import open_store
from txsink.testing.simdisk import SimDisk
from txsink.writing.opening import open_sink


class System(ModuleType):
    """`os`, with some functions of a test's own."""

    def __init__(self, **changed: Any) -> None:
        super().__init__("a stand-in for os")
        self.__dict__.update(changed)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


# -- paths ---------------------------------------------------------------------------------------------


def test_the_home_directory_is_meant_by_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pandas, Polars and DuckDB take it. Seen: a directory that was called `~`."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    paths: list[Any] = ["~/t", Path("~/t"), "~//t/"]
    for epoch, path in enumerate(paths):
        txsink.write(path, rows(epoch), writer="w", epoch=epoch)
    assert txsink.open_table(tmp_path / "home/t").to_arrow().num_rows == 3
    assert txsink.open_table("~/t").path == str(tmp_path / "home/t")
    assert os.listdir(tmp_path) == ["home"]  # noqa: PTH208
    txsink.write("./~/t", rows(1), writer="w", epoch=1)
    assert (tmp_path / "~/t/_txsink").is_dir()


def test_the_home_of_an_unknown_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidRequestError, match=r"no such user.* Write the whole path, or \./~nobody-of-that-name/t"):
        txsink.write("~nobody-of-that-name/t", rows(1), writer="w", epoch=1)
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("path", [r"C:\data\t", "C:/data/t", "c:\\t", r"\\server\share\t", PureWindowsPath(r"D:\x")])
def test_a_path_of_windows_is_refused_and_makes_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for act in (
        lambda: txsink.write(path, rows(1), writer="w", epoch=1),
        lambda: txsink.open_table(path),
        lambda: open_store(str(path)),
    ):
        with pytest.raises(InvalidRequestError, match="it is a path of Windows"):
            act()
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("prefix", ["file:", "file://", "file://localhost"])
def test_every_form_of_a_file_uri_names_the_same_directory(tmp_path: Path, prefix: str) -> None:
    """Hadoop writes `file:/data/t`."""
    txsink.write(f"{prefix}{tmp_path}/a%20b", rows(1), writer="w", epoch=1)
    assert txsink.open_table(tmp_path / "a b").to_arrow().num_rows == 1


def test_a_staging_path_may_be_a_path_object(tmp_path: Path) -> None:
    staging = tmp_path / "staging"
    for epoch in (1, 2):
        with txsink.open_writer(tmp_path / "t", "w", staging_path=staging) as sink, sink.begin(epoch) as txn:
            txn.write(rows(epoch))
    assert staging.is_dir()
    with pytest.raises(InvalidRequestError, match="staging_path"):
        txsink.open_writer(tmp_path / "t", "w", staging_path=7)  # type: ignore[arg-type]


# -- file systems --------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_that_cannot_sync_directories_is_refused_before_anything_is_written(
    tmp_path: Path, code: int
) -> None:
    """Some FUSE and CIFS mounts. Seen: every put was an unknown outcome."""

    def fsync(handle: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{handle}"):  # noqa: PTH112
            raise OSError(code, os.strerror(code))

    store, place = LocalStore(System(fsync=fsync)), Place(tmp_path / "t")
    expected = "the file system cannot sync a directory .* Use a file system that can"
    for layout in ("parquet", "delta"):
        with pytest.raises(InvalidRequestError, match=expected):
            open_sink(store, place.stamps, str(place.path), "w", {"layout": layout})
    assert tree(tmp_path) == {}
    place.write(1, rows(1))  # on a disk that could; then the table moved
    before = tree(tmp_path)
    with pytest.raises(InvalidRequestError, match=expected):
        open_sink(store, place.stamps, str(place.path), "w", {})
    assert tree(tmp_path) == before
    assert place.table(store).to_arrow().num_rows == 1


def test_the_link_of_another_users_file_is_not_taken_for_a_lack_of_hard_links(tmp_path: Path) -> None:
    """Linux: fs.protected_hardlinks. A run that recovers as another user than the one that staged meets it."""
    me = os.geteuid()

    def link(source: str, target: str) -> None:
        if "staged" in source:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        os.link(source, target)

    def stat(path: str) -> Any:
        found = Path(path).stat()
        theirs = me + 1 if "staged" in path else found.st_uid
        return SimpleNamespace(st_mode=found.st_mode, st_ino=found.st_ino, st_dev=found.st_dev, st_uid=theirs)

    (tmp_path / "staged").touch()
    move = [(str(tmp_path / "staged"), str(tmp_path / "t"))]
    with pytest.raises(InvalidRequestError, match=f"belongs to another user .id {me + 1}.* Run as the user who staged"):
        LocalStore(System(link=link, stat=stat)).move(move)
    with pytest.raises(InvalidRequestError, match="makes no hard link here"):  # its own: there is no other reason
        LocalStore(System(link=link)).move(move)
    assert sorted(tree(tmp_path)) == ["staged"]


# -- macOS, through stand-ins for `os` and `fcntl` -------------------------------------------------------


class Control:
    """`fcntl` of macOS: notes what was synced down to the platter."""

    F_FULLFSYNC = 51

    def __init__(self, fails: int = 0) -> None:
        self.synced: list[str] = []
        self._fails = fails

    def fcntl(self, handle: int, command: int) -> int:
        assert command == self.F_FULLFSYNC
        if self._fails:
            raise OSError(self._fails, os.strerror(self._fails))
        self.synced.append(os.readlink(f"/proc/self/fd/{handle}"))  # noqa: PTH115
        return 0


def test_on_macos_every_sync_of_an_epoch_reaches_the_platter(tmp_path: Path) -> None:
    plain: list[str] = []
    counted = System(fsync=lambda handle: plain.append(os.readlink(f"/proc/self/fd/{handle}")))  # noqa: PTH115

    def epoch(store: LocalStore, name: str) -> None:
        with open_sink(store, Place(tmp_path).stamps, str(tmp_path / name), "w", {}) as sink, sink.begin(1) as txn:
            txn.write(rows(1))

    epoch(LocalStore(counted), "linux")
    linux, control = list(plain), Control()
    plain.clear()
    epoch(LocalStore(Darwin(control, counted)), "macos")
    assert plain == []
    assert Counter(map(_kind, control.synced)) == Counter(map(_kind, linux))
    assert len(linux) > 10


def _kind(path: str) -> str:
    return Path(path).suffix or "directory"


@pytest.mark.parametrize("code", [errno.ENOTSUP, errno.EINVAL, errno.ENOTTY])
def test_on_macos_a_mount_that_does_not_know_the_call_is_synced_as_ever(tmp_path: Path, code: int) -> None:
    plain: list[int] = []
    store = LocalStore(Darwin(Control(code), System(fsync=plain.append)))
    assert store.put_if_absent(f"{tmp_path}/f", b"1", "a")
    assert len(plain) >= 2


def test_on_macos_a_sync_that_fails_is_a_failure_and_no_lesser_sync_hides_it(tmp_path: Path) -> None:
    plain: list[int] = []
    store = LocalStore(Darwin(Control(errno.EIO), System(fsync=plain.append)))
    with pytest.raises(txsink.UnavailableError, match="EIO"):
        store.put_if_absent(f"{tmp_path}/f", b"1", "a")
    assert plain == []
    assert tree(tmp_path) == {}


def test_the_platform_decides_what_syncs() -> None:
    assert system_of("linux") is os
    assert isinstance(system_of("darwin"), Darwin)
    assert not isinstance(SimDisk(), Darwin)
