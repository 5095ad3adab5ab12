"""The memory store: the contracts, threads instead of processes, and a table's whole life at `memory://`."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pandas as pd
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import txsink
from contract_publish import PublishContract, Site, staged
from contract_store import MoveContract, contents, stage
from txsink import paths
from txsink.errors import CorruptError, InternalError, InvalidRequestError, UnavailableError
from txsink.log import entry as entries
from txsink.log.entry import Prepare
from txsink.publish.rename import RenamePublisher
from txsink.records import DataFile
from txsink.store.memory import MemoryStore
from txsink.store.opening import open_store
from txsink.store.protocol import Store


@pytest.fixture
def root(tmp_path: Path) -> Iterator[str]:
    """A name that no other test has; what was left below it goes."""
    yield f"/{tmp_path.name}/T"
    files = MemoryFileSystem.store
    for name in [name for name in files if name.startswith(f"/{tmp_path.name}/")]:
        del files[name]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


class TestMemory(MoveContract):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()

    @pytest.fixture
    def other(self) -> Store:
        return MemoryStore()

    @pytest.fixture
    def root(self, root: str) -> str:
        return root


# -- the publish contract -----------------------------------------------------------------------------------


class MemorySite(Site):
    """A table and its staging root below a name."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.store = MemoryStore()
        self.staging_root = paths.default_staging_root(root)
        self.rename = RenamePublisher(self.store, root, self.staging_root)
        self.publisher = self.rename

    def again(self) -> MemorySite:
        return MemorySite(self.root)

    def staged(self, prepare: Prepare, file: DataFile) -> bytes | None:
        return self.store.read(self.rename.staged_path(prepare, file), 1 << 20)

    def target(self, file: DataFile) -> bytes | None:
        return self.store.read(f"{self.root}/{file.path}", 1 << 20)

    def put_target(self, file: DataFile, data: bytes) -> None:
        self.store.replace(f"{self.root}/{file.path}", data, "another")

    def drop_staged(self, prepare: Prepare, file: DataFile) -> None:
        assert self.store.delete(self.rename.staged_path(prepare, file))


class TestRenameInMemory(PublishContract):
    @pytest.fixture
    def site(self, root: str) -> MemorySite:
        return MemorySite(root)

    def test_a_new_process_publishes_what_this_one_staged(self, site: Site) -> None:
        """F11, as far as it goes here: another thread, which has the prepare entry only."""
        prepare = staged(site, 1, [1, 2])
        before = site.staged(prepare, prepare.files[0])
        data = entries.encode(prepare)

        def publish() -> None:
            read = entries.decode(data, prepare.version)
            assert isinstance(read, Prepare)
            site.again().publisher.publish(read)

        with ThreadPoolExecutor(1) as pool:
            pool.submit(publish).result()
        assert site.target(prepare.files[0]) == before
        assert site.staged(prepare, prepare.files[0]) is None


# -- threads ------------------------------------------------------------------------------------------------


class Dawdling(dict[str, Any]):
    """Files of which each look gives other threads a turn."""

    def __contains__(self, name: object) -> bool:
        found = super().__contains__(name)
        for _ in range(1000):
            pass
        return found


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Threads take turns after a few steps, so that a look and what follows from it come apart if they can."""
    monkeypatch.setattr(MemoryFileSystem, "store", Dawdling())
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def race(threads: int, names: int, act: Callable[[int, int], bool]) -> list[set[int]]:
    """The names for which `act` answered True, by thread; each thread takes them in an order of its own."""
    barrier = threading.Barrier(threads, timeout=60)

    def run(who: int) -> set[int]:
        order = list(range(names))
        random.Random(who // 2).shuffle(order)  # two threads each go the same way
        barrier.wait()
        return {name for name in order if act(who, name)}

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(run, range(threads)))


@pytest.mark.usefixtures("restless")
def test_each_name_has_one_winner_among_threads_and_holds_what_the_winner_wrote(root: str) -> None:
    """F21."""

    def put(who: int, name: int) -> bool:
        created = MemoryStore().put_if_absent(f"{root}/log/{name}", f"{who} {name}".encode(), f"{who}-{name}")
        assert created is not None
        return created

    winners = race(16, 200, put)
    assert sorted(name for won in winners for name in won) == list(range(200))
    expected = {f"log/{name}": f"{who} {name}".encode() for who, won in enumerate(winners) for name in won}
    assert contents(MemoryStore(), root) == expected
    assert sum(bool(won) for won in winners) > 1


@pytest.mark.usefixtures("restless")
def test_one_name_is_given_to_one_of_the_files_that_threads_move_to_it(root: str) -> None:
    for who in range(16):
        for name in range(200):
            stage(MemoryStore(), f"{root}/s/{who}/{name}", f"{who} {name}".encode())

    winners = race(16, 200, lambda who, name: not MemoryStore().move([(f"{root}/s/{who}/{name}", f"{root}/t/{name}")]))
    assert sorted(name for won in winners for name in won) == list(range(200))
    assert contents(MemoryStore(), f"{root}/t") == {
        f"{name}": f"{who} {name}".encode() for who, won in enumerate(winners) for name in won
    }
    assert len(MemoryStore().list(f"{root}/s")) == 15 * 200


# -- what only memory can go wrong in -----------------------------------------------------------------------


def test_an_open_transaction_of_a_user_of_fsspec_holds_nothing_back(store: MemoryStore, root: str) -> None:
    users = fsspec.filesystem("memory")
    with users.transaction:
        assert store.put_if_absent(f"{root}/0", b"x", "a") is True
        stage(store, f"{root}/1", b"y")
        assert contents(MemoryStore(), root) == {"0": b"x", "1": b"y"}


def test_each_store_has_an_instance_of_fsspecs_of_its_own() -> None:
    """What one is in the middle of, a transaction for one, is nothing to the others."""
    one, other = MemoryStore(), MemoryStore()
    assert one._system is not other._system
    assert fsspec.filesystem("memory") not in (one._system, other._system)


def test_fsspec_sees_the_files_under_the_same_names(store: MemoryStore, root: str) -> None:
    stage(store, f"{root}/a/f", b"data")
    assert fsspec.filesystem("memory").find(f"memory:/{root}") == [f"{root}/a/f"]
    with fsspec.open(f"memory:/{root}/a/f") as file:
        assert file.read() == b"data"


def test_a_file_cannot_take_the_place_of_a_directory_nor_lie_below_a_file(store: MemoryStore, root: str) -> None:
    fsspec.filesystem("memory").mkdir(f"{root}/d")
    store.replace(f"{root}/f", b"", "a")
    for path in (f"{root}/d", f"{root}/f/g"):
        with pytest.raises(InvalidRequestError, match="Name another path"):
            store.put_if_absent(path, b"x", "b")
        with pytest.raises(InvalidRequestError, match="Name another path"):
            stage(store, path, b"x")
    assert contents(store, root) == {"f": b""}
    fsspec.filesystem("memory").rmdir(f"{root}/d")


def test_a_name_taken_while_a_file_was_staged_is_kept(store: MemoryStore, root: str) -> None:
    output = store.create(f"{root}/f")
    output.write(b"mine")
    store.replace(f"{root}/f", b"theirs", "a")
    with pytest.raises(InternalError, match="the name is taken"):
        output.seal()
    output.discard()
    assert contents(store, root) == {"f": b"theirs"}


def test_no_memory_left_is_unavailable_and_changes_nothing(store: MemoryStore, root: str) -> None:
    def fail(*args: object) -> None:
        raise MemoryError

    store._system.pipe_file = fail
    with pytest.raises(UnavailableError, match="no memory left"):
        store.put_if_absent(f"{root}/0", b"x", "a")
    output = store.create(f"{root}/1")
    output._buffer = type("Full", (), {"write": fail})()  # type: ignore[attr-defined]
    with pytest.raises(UnavailableError, match="no memory left"):
        output.write(b"x")
    output.discard()
    assert store.list(root) == []


@pytest.mark.parametrize(
    "uri",
    ["memory://", "memory:///", "memory://a//b", "memory://a/../b", "memory://a/.", "memory://a::b", "a/b", "s3://a"],
)
def test_what_is_no_place_in_memory_is_refused(store: MemoryStore, uri: str) -> None:
    with pytest.raises(InvalidRequestError, match="Give memory://name"):
        store.resolve(uri)


def test_a_path_is_what_fsspec_makes_of_it(store: MemoryStore) -> None:
    for uri in ("memory://a/b", "memory:///a/b", "memory://a/b/", "/a/b"):
        assert store.resolve(uri) == "/a/b" == MemoryFileSystem._strip_protocol(uri)


def test_a_file_is_no_table(store: MemoryStore, root: str) -> None:
    store.replace(root, b"", "a")
    with pytest.raises(InvalidRequestError, match="it is a file"):
        txsink.open_table(f"memory:/{root}")
    store.delete(root)


def test_storage_options_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"the memory store takes no storage options, got \['key'\]"):
        open_store("memory://t", {"key": "secret"})


# -- a table's life -----------------------------------------------------------------------------------------


def ids(uri: str) -> list[int]:
    return sorted(txsink.open_table(uri).to_arrow()["id"].to_pylist())


def rows(*numbers: int) -> dict[str, list[object]]:
    return {"id": [*numbers], "day": ["ab"[number % 2] for number in numbers]}


def test_a_table_in_memory_is_written_recovered_and_read_as_any_other(root: str) -> None:
    """I1, I5, I9."""
    uri = f"memory:/{root}"
    assert txsink.write(uri, rows(1, 2), writer="w", epoch=0, partition_by=["day"]).outcome == "committed"
    assert txsink.write(uri, rows(9), writer="w", epoch=0).outcome == "already-committed"

    lost = txsink.open_writer(uri, "w")
    prepared = lost.begin(1, metadata={"offset": 3})
    prepared.write(rows(3))
    prepared.prepare()
    left = lost.begin(2)
    left.add(left.stager().stage(rows(4)))
    assert ids(uri) == [1, 2]

    with txsink.open_writer(uri, "w") as sink:
        assert (sink.last_epoch, sink.last_metadata) == (1, {"offset": 3})
        assert ids(uri) == [1, 2, 3]
        assert MemoryStore().list(paths.default_staging_root(root)) == []
        with sink.begin(2, mode="overwrite", partition_overwrite="dynamic") as txn:
            txn.write(rows(5))
    with pytest.raises(txsink.FencedError):
        left.prepare()
    assert ids(uri) == [2, 5]
    assert txsink.open_table(uri).verify(deep=True) == []
    assert {name.partition("/")[0] for name in MemoryStore().list(root)} == {"_txsink", "day=a", "day=b"}


def test_other_readers_see_the_rows_of_a_table_in_memory(root: str) -> None:
    uri = f"memory:/{root}"
    for epoch in range(3):
        txsink.write(uri, pd.DataFrame({"id": [epoch], "x": ["a"]}), writer="w", epoch=epoch)
    assert sorted(pd.read_parquet(uri)["id"]) == [0, 1, 2]
    assert pq.read_table(root, filesystem=fsspec.filesystem("memory")).num_rows == 3


def test_threads_stage_for_one_transaction(root: str) -> None:
    uri = f"memory:/{root}"
    with txsink.open_writer(uri, "w") as sink, sink.begin(0, parts=8) as txn:

        def work(part: int) -> list[txsink.StagedFile]:
            stager: txsink.Stager = pickle.loads(pickle.dumps(txn.stager(part)))
            return stager.stage({"id": [part]})

        with ThreadPoolExecutor(8) as pool:
            for staged_files in pool.map(work, range(8)):
                txn.add(staged_files)
    assert ids(uri) == list(range(8))


def test_what_another_process_staged_is_missing_and_prepare_says_so(root: str) -> None:
    uri = f"memory:/{root}"
    program = (
        "import pickle, sys; sys.stdout.buffer.write(pickle.dumps(pickle.load(sys.stdin.buffer).stage({'id': [1]})))"
    )
    with txsink.open_writer(uri, "w") as sink:
        txn = sink.begin(0)
        answer = subprocess.run(
            [sys.executable, "-c", program],
            input=pickle.dumps(txn.stager()),
            stdout=subprocess.PIPE,
            check=True,
            timeout=120,
        )
        txn.add(pickle.loads(answer.stdout))
        with pytest.raises(CorruptError, match="missing"):
            txn.prepare()
    assert txsink.open_table(uri).files() == []
