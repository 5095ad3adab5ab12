"""The rename strategy: the contract on a real disk, and what only moves can go wrong in."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract_publish import PublishContract, Site, staged
from seen import names
from txsink import paths
from txsink.errors import CorruptError, UnavailableError
from txsink.log.entry import Prepare
from txsink.publish.rename import RenamePublisher
from txsink.records import DataFile
from txsink.store.local.store import LocalStore
from txsink.store.protocol import Store
from txsink.testing.faults import FaultyStore, delay


class LocalSite(Site):
    """A table and its staging root in a directory."""

    def __init__(self, path: Path, store: Store | None = None) -> None:
        self.path = path
        self.store = store or LocalStore()
        self.root = str(path / "T")
        self.staging_root = paths.default_staging_root(self.root)
        self.rename = RenamePublisher(self.store, self.root, self.staging_root)
        self.publisher = self.rename

    def __reduce__(self) -> tuple[type[LocalSite], tuple[Path]]:
        return LocalSite, (self.path,)

    def again(self) -> LocalSite:
        return LocalSite(self.path)

    def staged(self, prepare: Prepare, file: DataFile) -> bytes | None:
        return LocalStore().read(self.rename.staged_path(prepare, file), 1 << 20)

    def target(self, file: DataFile) -> bytes | None:
        return LocalStore().read(f"{self.root}/{file.path}", 1 << 20)

    def put_target(self, file: DataFile, data: bytes) -> None:
        LocalStore().replace(f"{self.root}/{file.path}", data, "another")

    def drop_staged(self, prepare: Prepare, file: DataFile) -> None:
        assert LocalStore().delete(self.rename.staged_path(prepare, file))


@pytest.fixture
def local(tmp_path: Path) -> LocalSite:
    return LocalSite(tmp_path)


class TestRename(PublishContract):
    @pytest.fixture
    def site(self, local: LocalSite) -> LocalSite:
        return local


def faulty(local: LocalSite) -> tuple[FaultyStore, LocalSite]:
    """The same place, through a store to plan faults in."""
    store = FaultyStore(LocalStore())
    return store, LocalSite(local.path, store)


def test_publish_prunes_what_it_emptied_and_leaves_the_runs_directory(local: LocalSite) -> None:
    prepare = staged(local, 1, [1, 2], partition=("p",))
    local.publisher.publish(prepare)
    assert names(Path(local.staging_root)) == []
    assert list((Path(local.staging_root) / "w/r").iterdir()) == []
    assert names(Path(local.root)) == [file.path for file in prepare.files]


def test_withdrawing_what_was_never_published_needs_no_directory_in_the_table(local: LocalSite) -> None:
    prepare = staged(local, 1, [1, 2], partition=("p",))
    local.publisher.withdraw(prepare)
    assert names(local.path) == []
    assert not Path(local.root).exists()


def test_replaced_files_wait_where_no_reader_looks(local: LocalSite) -> None:
    old = staged(local, 1, [1, 2], partition=("p",))
    local.publisher.publish(old)
    bytes_of = {file.path: local.target(file) for file in old.files}
    new = staged(local, 2, [3], partition=("p",))
    replacing = type(new)(**{name: getattr(new, name) for name in Prepare.__struct_fields__} | {"removes": old.files})
    local.publisher.replace(replacing)
    assert names(Path(local.root)) == sorted(paths.removed_path(2, path) for path in bytes_of)
    assert not list(Path(local.root).rglob("*.parquet"))
    for path, data in bytes_of.items():
        assert (Path(local.root) / paths.removed_path(2, path)).read_bytes() == data


def test_another_run_that_publishes_at_the_same_time_is_no_failure(local: LocalSite) -> None:
    """F12: both find the staged file; one moves it."""
    prepare = staged(local, 1, [1], [2])
    store, slow = faulty(local)
    store.plan.append(delay(5, lambda: local.publisher.publish(prepare)))
    slow.publisher.publish(prepare)
    store.check_delivered()
    assert store.trace[4][0] == "move"
    assert sorted(names(Path(local.root))) == sorted(file.path for file in prepare.files)
    assert names(Path(local.staging_root)) == []


def test_a_name_taken_between_the_look_and_the_move_is_corruption_and_both_files_stay(local: LocalSite) -> None:
    """F14."""
    prepare = staged(local, 1, [1])
    file = prepare.files[0]
    store, slow = faulty(local)
    store.plan.append(delay(3, lambda: local.put_target(file, b"theirs")))
    with pytest.raises(CorruptError, match="the file under its name in the table is other"):
        slow.publisher.publish(prepare)
    store.check_delivered()
    assert store.trace[2][0] == "move"
    assert local.target(file) == b"theirs"
    assert local.staged(prepare, file) is not None


def test_an_abort_between_the_look_and_the_move_is_an_error_and_nothing_comes_back(local: LocalSite) -> None:
    """I10."""
    prepare = staged(local, 1, [1])
    store, slow = faulty(local)
    store.plan.append(delay(3, lambda: local.publisher.withdraw(prepare)))
    with pytest.raises(CorruptError, match="staged file is absent, the file under its name in the table is absent"):
        slow.publisher.publish(prepare)
    assert local.target(prepare.files[0]) is None


@pytest.mark.parametrize("verb", ["move", "settle", "delete", "tail"])
def test_an_error_of_the_store_is_raised_and_a_repetition_finishes(local: LocalSite, verb: str) -> None:
    """F28: never swallowed."""
    prepare = staged(local, 1, [1])
    local.put_target(prepare.files[0], local.staged(prepare, prepare.files[0]) or b"")
    store, failing = faulty(local)
    real = getattr(store, verb)

    def fail(*args: object) -> object:
        raise UnavailableError(f"{verb}", "a planned fault", "Retry")

    setattr(store, verb, fail)
    with pytest.raises(UnavailableError, match="a planned fault"):
        failing.publisher.publish(prepare)
    setattr(store, verb, real)
    failing.publisher.publish(prepare)
    assert local.target(prepare.files[0]) is not None
    assert local.staged(prepare, prepare.files[0]) is None
