"""The HDFS store on a real NameNode and DataNodes: the contracts, and what only HDFS can go wrong in."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any, ClassVar, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import txsink
from broken import rewrite
from contract_publish import PublishContract, Site
from contract_store import MIB, MoveContract, StoreRaces, contents, stage
from hdfs_cluster import Cluster
from hdfs_proxy import HdfsProxy
from logs import claim_by
from place import begin_publish, rows
from txsink import paths
from txsink.environment import stamps
from txsink.errors import (
    InternalError,
    InvalidRequestError,
    OutcomeUnknownError,
    TxsinkError,
    UnavailableError,
)
from txsink.log.entry import Claim, Prepare
from txsink.log.log import Log
from txsink.protocol import blank, sweeping
from txsink.publish.rename import RenamePublisher
from txsink.records import DataFile
from txsink.store.opening import open_store
from txsink.store.protocol import Store
from txsink.writing.writer import Writer

pytest.importorskip("hdfs_native", reason="the client of HDFS is not installed")
from hdfs_native import Client

from txsink.store.hdfs import calls
from txsink.store.hdfs.calls import Calls
from txsink.store.hdfs.store import HdfsStore

ROOTS = itertools.count()
CHILD_SECONDS = 120
NO_LIMIT = 10**15


@pytest.fixture
def root() -> str:
    """A directory that is not there yet."""
    return f"/test-{next(ROOTS)}/a täble"


@pytest.fixture
def store(hdfs_cluster: Cluster) -> Store:
    return open_store(hdfs_cluster.uri)


@pytest.fixture
def proxy(hdfs_cluster: Cluster) -> Iterator[HdfsProxy]:
    with HdfsProxy(hdfs_cluster.port) as running:
        yield running


def ids_of(uri: str) -> list[int]:
    """The ids that a reader of the log gets, which must be those in the files below the root."""
    table = txsink.open_table(uri)
    store = table.log.store
    paths = [path for path in store.list(table.path) if path.endswith(".parquet")]
    assert sorted(paths) == sorted(file.path for file in table.files())
    found = table.to_arrow()
    in_files = itertools.chain.from_iterable(
        pq.ParquetFile(pa.BufferReader(store.read(f"{table.path}/{path}", 64 * MIB)))
        .read(columns=["id"])["id"]
        .to_pylist()
        for path in paths
    )
    assert Counter(found["id"].to_pylist()) == Counter(in_files)
    return sorted(found["id"].to_pylist())


def left_behind(uri: str) -> list[str]:
    """What is staged, and what is half-made, once a writer has recovered and swept."""
    table = txsink.open_table(uri)
    store = table.log.store
    return [
        *(name.path for name in table.publisher.left(None, ())),
        *(path for path in store.list(table.path) if paths.is_temporary(path)),
    ]


# -- the contracts -------------------------------------------------------------------------------------------


class TestHdfs(MoveContract, StoreRaces):
    race_names = 100

    @pytest.fixture
    def opened(self, hdfs_cluster: Cluster) -> Callable[[], Store]:
        return partial(open_store, hdfs_cluster.uri)

    @pytest.fixture
    def store(self, hdfs_cluster: Cluster) -> Store:
        return open_store(hdfs_cluster.uri)

    @pytest.fixture
    def other(self, hdfs_cluster: Cluster) -> Store:
        return open_store(hdfs_cluster.uri)

    @pytest.fixture
    def root(self) -> str:
        return f"/test-{next(ROOTS)}/a täble"

    def test_put_leaves_no_temporary_file(self, store: Store, root: str) -> None:
        store.put_if_absent(f"{root}/0", b"first", "a")
        store.put_if_absent(f"{root}/0", b"second", "b")
        store.put_hint(f"{root}/1", b"", "c")
        store.replace(f"{root}/2", b"", "d")
        assert store.list(root) == ["0", "1", "2"]

    def test_the_stamp_changes_when_another_file_takes_the_name(self, store: Store, root: str) -> None:
        stage(store, f"{root}/f", b"1")
        before = store.tail(f"{root}/f", 1)
        store.replace(f"{root}/f", b"1", "a")
        assert store.tail(f"{root}/f", 1) != before

    def test_prune_removes_empty_parents_below_the_root_and_never_the_root(self, store: Store, root: str) -> None:
        stage(store, f"{root}/keep", b"")
        stage(store, f"{root}/w/r/1/k=v/f", b"1")
        store.delete(f"{root}/w/r/1/k=v/f")
        store.prune(f"{root}/w/r/1/k=v", f"{root}/w")
        assert directories(store, root) == [f"{root}/w"]
        store.prune(f"{root}/w", root)
        assert directories(store, root) == []

    def test_a_temporary_file_that_an_attempt_left_is_passed_by(self, store: Store, root: str) -> None:
        """It may be renamed yet, by that attempt: it must stay as it is."""
        stage(store, f"{root}/.a.tmp", b"whole")
        for number in (1, 2):
            store.create(f"{root}/.a-{number}.tmp").write(b"open")
        assert store.put_if_absent(f"{root}/0", b"whole", "a") is True
        assert contents(store, root) == {"0": b"whole"}


def directories(store: Store, root: str) -> list[str]:
    entries = calls_of(store).do("list", lambda client: list(client.list_status(root, recursive=True)))
    return [entry.path for entry in entries if entry.isdir]


def calls_of(store: Store) -> Calls:
    return cast("HdfsStore", store)._calls


class HdfsSite(Site):
    """A table and its staging root in HDFS."""

    def __init__(self, uri: str, root: str) -> None:
        self.uri = uri
        self.store = open_store(uri)
        self.root = root
        self.staging_root = paths.default_staging_root(root)
        self.publisher = self.rename = RenamePublisher(self.store, root, self.staging_root)

    def __reduce__(self) -> tuple[type[HdfsSite], tuple[str, str]]:
        return HdfsSite, (self.uri, self.root)

    def again(self) -> HdfsSite:
        return HdfsSite(self.uri, self.root)

    def staged(self, prepare: Prepare, file: DataFile) -> bytes | None:
        return self.store.read(self.rename.staged_path(prepare, file), MIB)

    def target(self, file: DataFile) -> bytes | None:
        return self.store.read(f"{self.root}/{file.path}", MIB)

    def put_target(self, file: DataFile, data: bytes) -> None:
        self.store.replace(f"{self.root}/{file.path}", data, "another")

    def drop_staged(self, prepare: Prepare, file: DataFile) -> None:
        assert self.store.delete(self.rename.staged_path(prepare, file))


class TestRename(PublishContract):
    @pytest.fixture
    def site(self, hdfs_cluster: Cluster, root: str) -> HdfsSite:
        return HdfsSite(hdfs_cluster.uri, root)


PROCESSES, VERSIONS = 8, 6


def append_many(uri: str, root: str, barrier: Barrier, answer: Connection) -> None:
    """One process: append, with the house work a sink does."""
    log = Log(open_store(uri), root, stamps())
    log.load()
    writer = f"w{multiprocessing.current_process().name}"
    won = []
    barrier.wait(timeout=CHILD_SECONDS)
    for _ in range(VERSIONS):
        entry = log.append(claim_by(writer))
        assert isinstance(entry, Claim)
        won.append((entry.version, entry.write_id))
        log.maintain()
    answer.send(won)


def test_processes_that_append_to_one_log_have_one_winner_a_version(hdfs_cluster: Cluster, root: str) -> None:
    """F21, I7."""
    log = Log(open_store(hdfs_cluster.uri), root, stamps())
    log.load()
    blank.create(log, "parquet", (), None, "a table")
    context = multiprocessing.get_context("forkserver")
    barrier = context.Barrier(PROCESSES)
    answers, running = [], []
    for number in range(PROCESSES):
        answer, told = context.Pipe(duplex=False)
        given = (hdfs_cluster.uri, root, barrier, told)
        process = context.Process(target=append_many, args=given, name=str(number))
        process.start()
        told.close()
        answers.append(answer)
        running.append(process)
    try:
        won = [answer.recv() for answer in answers]
    finally:
        for process in running:
            process.join()
    last = PROCESSES * VERSIONS
    assert log.refresh().version == last
    assert {(entry.version, entry.write_id) for entry in log.entries(1, last)} == {one for mine in won for one in mine}
    assert sorted(version for mine in won for version, _ in mine) == list(range(1, last + 1))


# -- from end to end -----------------------------------------------------------------------------------------


def test_a_table_is_written_recovered_and_read_whatever_its_name(hdfs_cluster: Cluster, root: str) -> None:
    uri = f"{hdfs_cluster.uri}{root}/a%20b/日本 (1)"
    texts = ["a b", "ü/%:?", None]
    data = {"id": [1, 2, 3], "p": texts}
    assert txsink.write(uri, data, writer="nightly", epoch=1, partition_by=["p"]).outcome == "committed"
    assert txsink.write(uri, data, writer="nightly", epoch=1).outcome == "already-committed"
    with txsink.open_writer(uri, writer="ördérs") as sink:
        txn = sink.begin(7, metadata={"next": 4})
        txn.write({"id": [4], "p": ["c"]})
        txn.prepare()
    with txsink.open_writer(uri, writer="ördérs") as sink:
        assert (sink.last_epoch, sink.last_metadata) == (7, {"next": 4})
        txn = sink.begin(8)
        txn.add(txn.stager().stage({"id": [5], "p": ["d"]}))
        txn.commit()
    table = txsink.open_table(uri)
    assert ids_of(uri) == [1, 2, 3, 4, 5]
    assert sorted(table.to_arrow()["p"].to_pylist(), key=str) == sorted([*texts, "c", "d"], key=str)
    assert table.verify(deep=True) == []
    assert left_behind(uri) == []


def test_the_default_file_system_and_the_settings_come_from_hadoop_conf_dir(
    hdfs_cluster: Cluster, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs_cluster.conf))
    txsink.write(f"hdfs://{root}", rows(1), writer="w", epoch=1)
    assert ids_of(f"{hdfs_cluster.uri}{root}") == [1]
    monkeypatch.delenv("HADOOP_CONF_DIR")
    options: dict[str, object] = {"config_dir": str(hdfs_cluster.conf)}
    assert txsink.open_table(f"hdfs://{root}", storage_options=options).version


def test_a_name_service_is_served_by_the_name_node_that_answers(hdfs_cluster: Cluster, root: str) -> None:
    options: dict[str, object] = {
        "dfs.ha.namenodes.cluster": "dead,alive",
        "dfs.namenode.rpc-address.cluster.dead": "127.0.0.1:1",
        "dfs.namenode.rpc-address.cluster.alive": f"127.0.0.1:{hdfs_cluster.port}",
    }
    txsink.write(f"hdfs://cluster{root}", rows(1), writer="w", epoch=1, storage_options=options)
    assert ids_of(f"{hdfs_cluster.uri}{root}") == [1]


def test_mounts_of_a_viewfs_are_different_places_and_a_table_within_one_is_fine(
    hdfs_cluster: Cluster, store: Store, root: str
) -> None:
    mount = root.partition("/a")[0]
    stage(store, f"{mount}/.here", b"")
    options: dict[str, object] = {
        "fs.viewfs.mounttable.c.linkFallback": f"{hdfs_cluster.uri}/",
        f"fs.viewfs.mounttable.c.link.{mount}": f"{hdfs_cluster.uri}{mount}",
    }
    with pytest.raises(InvalidRequestError, match=r"its staging root .* lies on another file system"):
        txsink.write(f"viewfs://c{mount}", rows(1), writer="w", epoch=1, storage_options=options)
    txsink.write(f"viewfs://c{root}", rows(1), writer="w", epoch=1, storage_options=options)
    assert ids_of(f"{hdfs_cluster.uri}{root}") == [1]
    view = open_store("viewfs://c", options)
    with pytest.raises(InvalidRequestError, match="Cannot rename across"):
        view.move([(f"{mount}/.here", "/there")])
    assert ".same-place.tmp" not in str(directories(store, "/"))


def test_places_whose_directories_exist_apart_are_one_place(store: Store, root: str) -> None:
    stage(store, f"{root}/f", b"")
    assert store.same_place(root, f"{root.partition('/a')[0]}/.a")
    assert store.list(root) == ["f"]
    assert directories(store, root.partition("/a")[0]) == [root]


# -- paths and options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("hdfs://h:1/a", "/a"),
        ("hdfs://h:1//a//b/", "/a/b"),
        ("hdfs://h:1/a/./b/../c", "/a/c"),
        ("hdfs://h:1/a%20b?c#d e", "/a%20b?c#d e"),
        ("/a/b/", "/a/b"),
    ],
)
def test_a_path_is_taken_literally_and_normalised(uri: str, path: str) -> None:
    assert open_store("hdfs://h:1").resolve(uri) == path


@pytest.mark.parametrize("uri", ["hdfs://h:1", "hdfs://h:1/", "hdfs://h:1/a/..", "a/b", "/a:b", "/a\0", "/\ud800", ""])
def test_a_path_that_hdfs_cannot_have_is_refused(uri: str) -> None:
    with pytest.raises(InvalidRequestError, match="no absolute path below the root"):
        open_store("hdfs://h:1").resolve(uri)


@pytest.mark.parametrize("uri", ["hdfs://other:1/a", "hdfs://h/a", "hdfs:///a", "viewfs://h:1/a"])
def test_a_path_of_another_store_is_refused(uri: str) -> None:
    with pytest.raises(InvalidRequestError, match="the store is hdfs://h:1"):
        open_store("hdfs://h:1").resolve(uri)


def test_a_user_in_the_authority_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        open_store("hdfs://me:secret@h:1/a")
    assert "secret" not in repr(caught.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"deadline": 3}, "unknown storage option 'deadline'. Did you mean 'deadline_seconds'"),
        ({"kerberos_princpal": "x"}, "Did you mean 'kerberos_principal'"),
        ({7: "x"}, "a name in storage_options is no string"),
        ({"deadline_seconds": 0}, "deadline_seconds is 0"),
        ({"deadline_seconds": float("nan")}, "deadline_seconds is nan"),
        ({"deadline_seconds": True}, "deadline_seconds is True"),
        ({"deadline_seconds": "60"}, "deadline_seconds is '60'"),
        ({"dfs.secret": ["hunter2"]}, "the storage option dfs.secret is of type list"),
    ],
)
def test_an_option_that_nobody_knows_is_refused(options: dict[str, object], told: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        open_store("hdfs://h:1", options)
    assert told in str(caught.value)
    assert "hunter2" not in repr(caught.value)


@pytest.mark.parametrize("uri", ["hdfs://nobody-knows-it/a", "viewfs://nobody-knows-it/a", "hdfs:///a"])
def test_a_name_service_that_is_not_configured_is_a_wrong_call(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_CONF_DIR", "HADOOP_HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidRequestError, match="Check the storage options and HADOOP_CONF_DIR"):
        txsink.open_table(uri)


# -- what HDFS refuses ---------------------------------------------------------------------------------------

RPC = 'RPCError("org.apache.hadoop.{}", "{}\\n\\tat org.apache.hadoop.X.y(X.java:1)")'
REFUSALS: list[tuple[Exception, type[TxsinkError], str]] = [
    (RuntimeError(RPC.format("hdfs.server.namenode.SafeModeException", "no")), UnavailableError, "left safe mode"),
    (RuntimeError(RPC.format("ipc.RetriableException", "Name node is in safe mode")), UnavailableError, "safe mode"),
    (RuntimeError(RPC.format("ipc.StandbyException", "no")), UnavailableError, "name service"),
    (RuntimeError(RPC.format("security.AccessControlException", "user=x")), UnavailableError, "that right"),
    (
        RuntimeError(RPC.format("security.AccessControlException", "SIMPLE authentication is not enabled")),
        UnavailableError,
        "kinit",
    ),
    (RuntimeError('SASLError("no ticket")'), UnavailableError, "kinit"),
    (RuntimeError('GSSAPIError(GSS_S_FAILURE, 0, "no ticket")'), UnavailableError, "kinit"),
    (RuntimeError("NoSASLMechanism"), UnavailableError, "kinit"),
    (RuntimeError(RPC.format("security.token.SecretManager$InvalidToken", "old")), UnavailableError, "kinit"),
    (RuntimeError(RPC.format("hdfs.protocol.NSQuotaExceededException", "no")), UnavailableError, "quota"),
    (RuntimeError(RPC.format("hdfs.protocol.DSQuotaExceededException", "no")), UnavailableError, "quota"),
    (
        RuntimeError('RPCError("java.io.IOException", "/a can\'t be moved into an encryption zone.\\n\\tat x")'),
        InvalidRequestError,
        "encryption zone",
    ),
    (
        RuntimeError('OperationFailed("File is in an HDFS encryption zone but no KMS provider is configured")'),
        InvalidRequestError,
        "key.provider",
    ),
    (
        RuntimeError('UnsupportedFeature("hsync is not supported for erasure-coded files")'),
        InvalidRequestError,
        "hdfs ec",
    ),
    (
        RuntimeError(RPC.format("hdfs.server.namenode.LeaseExpiredException", "no")),
        UnavailableError,
        "deleted the file",
    ),
    (RuntimeError(RPC.format("fs.ParentNotDirectoryException", "no")), InvalidRequestError, "another path"),
    (RuntimeError('RPCError("java.lang.Whatever", "no")'), UnavailableError, "Retry"),
    (RuntimeError("SomethingNew"), UnavailableError, "Retry"),
    (OSError("Connection refused (os error 111)"), UnavailableError, "address of the NameNode"),
    (OSError("failed to lookup address information: Name or service not known"), UnavailableError, "address"),
    (OSError("RPC listener disconnected"), OutcomeUnknownError, "recovers"),
    (OSError("Connection reset by peer (os error 104)"), OutcomeUnknownError, "recovers"),
    (RuntimeError('FatalRPCError("org.apache.hadoop.ipc.RpcServerException", "no")'), OutcomeUnknownError, "recovers"),
    (TypeError("a panic, say"), InternalError, "Report"),
]


@pytest.mark.parametrize(("error", "kind", "advice"), REFUSALS, ids=lambda value: str(value)[:60])
def test_each_error_of_the_client_says_what_the_caller_does_next(
    error: Exception, kind: type[TxsinkError], advice: str
) -> None:
    def fail(_: object) -> None:
        raise error

    with pytest.raises(kind, match=advice) as caught:
        calls_of(open_store("hdfs://h:1")).do("try", fail, changes=True)
    assert type(caught.value) is kind
    assert "\tat" not in str(caught.value)
    assert "\\n" not in str(caught.value)
    if kind is OutcomeUnknownError:
        with pytest.raises(UnavailableError):
            calls_of(open_store("hdfs://h:1")).do("try", fail)


def test_a_name_node_in_safe_mode_refuses_writes_and_serves_reads(
    hdfs_cluster: Cluster, store: Store, root: str
) -> None:
    uri = f"{hdfs_cluster.uri}{root}"
    txsink.write(uri, rows(1), writer="w", epoch=1)
    hdfs_cluster.dfsadmin("-safemode", "enter")
    try:
        for act in mutations(store, root):
            with pytest.raises(UnavailableError, match="Retry when the NameNode has left safe mode"):
                act()
        with pytest.raises(UnavailableError, match="safe mode"):
            txsink.write(uri, rows(2), writer="w", epoch=2)
        assert ids_of(uri) == [1]
    finally:
        hdfs_cluster.dfsadmin("-safemode", "leave")
    txsink.write(uri, rows(2), writer="w", epoch=2)
    assert ids_of(uri) == [1, 2]


def mutations(store: Store, root: str) -> list[Callable[[], object]]:
    """Each of the verbs that change something, on a table that exists."""
    return [
        lambda: store.put_if_absent(f"{root}/x", b"1", "a"),
        lambda: store.replace(f"{root}/x", b"1", "b"),
        lambda: store.create(f"{root}/y"),
        lambda: store.move([(f"{root}/{paths.entry_path(0)}", f"{root}/z")]),
        lambda: store.delete(f"{root}/{paths.entry_path(0)}"),
    ]


def test_a_user_without_rights_is_refused_and_changes_nothing(
    hdfs_cluster: Cluster, store: Store, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"{hdfs_cluster.uri}{root}"
    txsink.write(uri, rows(1), writer="w", epoch=1)
    before = store.list("/")
    monkeypatch.setenv("HADOOP_USER_NAME", "stranger")
    for act in mutations(open_store(hdfs_cluster.uri), root):
        with pytest.raises(UnavailableError, match=r"Permission denied: user=stranger.*Give the user that right"):
            act()
    with pytest.raises(UnavailableError, match="Permission denied"):
        txsink.write(uri, rows(2), writer="w", epoch=2)
    assert ids_of(uri) == [1]
    assert store.list("/") == before


@pytest.mark.parametrize(("names", "bytes_"), [(4, NO_LIMIT), (NO_LIMIT, 1)])
def test_a_quota_that_is_exceeded_is_told_and_leaves_no_half_made_file(
    hdfs_cluster: Cluster, store: Store, root: str, names: int, bytes_: int
) -> None:
    stage(store, f"{root}/f", b"")
    hdfs_cluster.set_quota(root, names, bytes_)
    with pytest.raises(UnavailableError, match=r"quota .*Raise the quota or make room"):
        put_names(store, root, 4)
    with pytest.raises(UnavailableError, match="Raise the quota"):
        stage_or_discard(store, f"{root}/g")
    assert [name for name in store.list(root) if not name.isdigit()] == ["f"]
    hdfs_cluster.set_quota(root, NO_LIMIT, NO_LIMIT)
    assert store.put_if_absent(f"{root}/9", b"x", "a")


def put_names(store: Store, root: str, count: int) -> None:
    for number in range(count):
        assert store.put_if_absent(f"{root}/{number}", b"x", "a")


def stage_or_discard(store: Store, path: str) -> None:
    output = store.create(path)
    try:
        output.write(b"x" * 3 * MIB)
        output.seal()
    finally:
        output.discard()


def test_a_file_in_the_way_is_a_wrong_call(hdfs_cluster: Cluster, store: Store, root: str) -> None:
    stage(store, root, b"a file")
    with pytest.raises(InvalidRequestError, match=r"is not a directory.*Name another path"):
        txsink.write(f"{hdfs_cluster.uri}{root}", rows(1), writer="w", epoch=1)
    with pytest.raises(InvalidRequestError, match="Name another path"):
        store.put_if_absent(f"{root}/{'x' * 300}", b"", "a")


def test_a_name_node_that_is_not_there_is_told_before_the_deadline() -> None:
    """I11: a connection that is refused carried nothing."""
    store = open_store("hdfs://127.0.0.1:1", {"deadline_seconds": 1})
    reads: list[Callable[[], object]] = [lambda: store.read("/t", 1), lambda: store.list("/t")]
    for act in (*mutations(store, "/t"), *reads):
        with pytest.raises(UnavailableError, match=r"Connection refused.*address of the NameNode"):
            act()
    patient = open_store("hdfs://127.0.0.1:1", {"deadline_seconds": 2})  # time for a second attempt
    with pytest.raises(UnavailableError, match="Connection refused"):
        patient.move([("/a", "/b")])


def test_what_is_slept_between_attempts_stays_below_the_deadline() -> None:
    for deadline in (0.1, 1, 2, 5, 60, 600):
        attempts = calls._attempts(deadline)
        slept = sum(min(15, 0.75 * 2**number) for number in range(1, attempts + 1))
        assert slept < deadline <= max(2, 2 * slept + 2), (deadline, attempts)


# -- answers that are lost, or never come --------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["cut", "drop"])
def test_a_connection_lost_at_any_call_loses_and_doubles_nothing(
    hdfs_cluster: Cluster, proxy: HdfsProxy, root: str, fault: str
) -> None:
    """F22, I1, I11: one run for each call of the NameNode, which is carried out (cut) or not (drop)."""
    uri = f"{hdfs_cluster.uri}{root}"
    txsink.write(uri, {"id": [0], "p": [0]}, writer="w", epoch=0, partition_by=["p"])
    failed = Counter[str]()
    for epoch in itertools.count(1):
        proxy.plan(fault, epoch)
        try:
            commit(proxy.uri + root, epoch)
        except (UnavailableError, OutcomeUnknownError) as error:
            failed[error.kind] += 1
            commit(uri, epoch)
        if not proxy.delivered:
            break
    assert ids_of(uri) == list(range(epoch + 1))
    # Reads are made again by the client, and what was lost of an append is found out by reading it back.
    assert epoch > 40, failed
    assert failed["unavailable"] > 5, failed
    with txsink.open_writer(uri, writer="w") as sink:
        sink.sweep()
        sweeping.temporaries(sink.log)
    assert left_behind(uri) == []


def commit(uri: str, epoch: int) -> str:
    with txsink.open_writer(uri, writer="w") as sink, sink.begin(epoch) as txn:
        txn.write({"id": [epoch], "p": [epoch % 2]})
    return txn.outcome


@pytest.mark.parametrize("fault", ["cut", "drop"])
def test_a_lost_answer_is_resolved_by_looking(store: Store, proxy: HdfsProxy, root: str, fault: str) -> None:
    """Whether the call was carried out (cut) or not (drop)."""
    through = open_store(proxy.uri)
    stage(store, f"{root}/f", b"1")
    stage(store, f"{root}/t/taken", b"2")
    through.read(f"{root}/f", 1)
    proxy.plan(fault, "rename2")
    undone = through.move([(f"{root}/f", f"{root}/t/f")])
    assert proxy.delivered
    assert undone == ([(f"{root}/f", f"{root}/t/f")] if fault == "cut" else [])
    assert contents(store, root) == {"t/f": b"1", "t/taken": b"2"}
    proxy.plan(fault, "rename2")
    assert through.move([(f"{root}/t/f", f"{root}/t/taken")]) == [(f"{root}/t/f", f"{root}/t/taken")]
    assert proxy.delivered
    proxy.plan(fault, "delete")
    assert through.delete(f"{root}/t/f") is True
    assert proxy.delivered
    assert through.delete(f"{root}/t/f") is False
    through.replace(f"{root}/h", b"old", "a")
    proxy.plan(fault, "rename2")
    if fault == "cut":
        through.replace(f"{root}/h", b"new", "b")
        assert store.read(f"{root}/h", 9) == b"new"
    else:
        with pytest.raises(OutcomeUnknownError):
            through.replace(f"{root}/h", b"new", "b")
        assert store.read(f"{root}/h", 9) == b"old"
    assert proxy.delivered


@pytest.mark.parametrize("fault", ["cut", "drop"])
def test_a_put_whose_answer_is_lost_is_unknown_and_can_be_put_again(
    store: Store, proxy: HdfsProxy, root: str, fault: str
) -> None:
    """I11."""
    through = open_store(proxy.uri)
    through.put_if_absent(f"{root}/0", b"0", "0")
    proxy.plan(fault, "rename2")
    assert through.put_if_absent(f"{root}/1", b"mine", "a") is None
    assert (proxy.delivered, proxy.calls[0]) == (True, "create")
    assert store.read(f"{root}/1", 9) == (b"mine" if fault == "cut" else None)
    assert through.put_if_absent(f"{root}/1", b"mine", "a") is (fault == "drop")
    assert contents(store, root) == {"0": b"0", "1": b"mine"}


def test_an_answer_that_never_comes_ends_with_the_deadline(store: Store, proxy: HdfsProxy, root: str) -> None:
    through = open_store(proxy.uri, {"deadline_seconds": 1})
    stage(store, f"{root}/f", b"1")
    reads: list[Callable[[], object]] = [
        lambda: through.read(f"{root}/f", 1),
        lambda: through.tail(f"{root}/f", 1),
        lambda: through.list(root),
        lambda: through.create(f"{root}/g"),
    ]
    for act in reads:
        proxy.plan("swallow", 1)
        with pytest.raises(UnavailableError, match="did not answer within 1 s"):
            act()
        assert proxy.delivered
    changes: list[Callable[[], object]] = [
        lambda: through.move([(f"{root}/f", f"{root}/h")]),
        lambda: through.delete(f"{root}/none"),
    ]
    for act in changes:
        proxy.plan("swallow", 1)
        with pytest.raises(OutcomeUnknownError, match="did not answer within 1 s"):
            act()
        assert proxy.delivered
    # On a new connection, since the silent one may stay silent.
    assert through.read(f"{root}/h", 9) == b"1"
    proxy.plan("swallow", "rename2")
    assert through.put_if_absent(f"{root}/p", b"1", "a") is None
    assert proxy.delivered


class LateReports:
    """A client whose DataNodes report the last block of a file only when it was asked for three times."""

    def __init__(self, *given: Any, **named: Any) -> None:
        self._client = Client(*given, **named)
        self._asked = Counter[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def read(self, path: str) -> Any:
        self._asked[path] += 1
        return b"" if self._asked[path] <= 3 else self._client.read(path)

    def rename(self, source: str, target: str, overwrite: bool) -> None:
        assert len(self.read(source)) == self._client.get_file_info(source).length, "named before it could be read"
        self._asked[target] = self._asked[source]
        self._client.rename(source, target, overwrite)


def test_a_file_gets_its_name_once_it_can_be_read_whole(
    hdfs_cluster: Cluster, store: Store, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I13: a closed file's last block counts when a DataNode has reported it; until then its entry looks empty."""
    assert contents(store, root) == {}
    monkeypatch.setattr(calls, "Client", LateReports)
    late = open_store(hdfs_cluster.uri)
    assert late.put_if_absent(f"{root}/0", b"entry", "a") is True
    late.replace(f"{root}/1", b"hint", "b")
    stage(late, f"{root}/2", b"staged")
    tail = open_store(hdfs_cluster.uri).tail(f"{root}/2", 3)
    assert tail is not None
    assert (tail.bytes, tail.data) == (6, b"ged")
    assert late.move([(f"{root}/2", f"{root}/3")]) == []
    assert contents(store, root) == {"0": b"entry", "1": b"hint", "3": b"staged"}


def test_a_file_that_gets_its_name_before_it_can_be_read_is_seen(
    hdfs_cluster: Cluster, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the order that the test above is about."""
    monkeypatch.setattr(calls, "Client", LateReports)
    rewrite(monkeypatch, "store.hdfs.store.HdfsStore._write_new", ("_whole(client, path, len(data))", "pass"))
    with pytest.raises(InternalError, match="named before it could be read"):
        open_store(hdfs_cluster.uri).put_if_absent(f"{root}/0", b"entry", "a")


class Planned:
    """A client whose calls fail as planned, the next ones first."""

    plan: ClassVar[dict[str, list[Exception]]] = {}

    def __init__(self, *given: Any, **named: Any) -> None:
        self._client = Client(*given, **named)

    def __getattr__(self, name: str) -> Any:
        if self.plan.get(name):
            raise self.plan[name].pop()
        return getattr(self._client, name)

    def list_status(self, path: str, *, recursive: bool) -> Iterator[Any]:
        yield from itertools.islice(self._client.list_status(path, recursive), 1)
        if self.plan.get("list_status"):
            raise self.plan["list_status"].pop()
        yield from itertools.islice(self._client.list_status(path, recursive), 1, None)


@pytest.fixture
def planned(hdfs_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(calls, "Client", Planned)
    monkeypatch.setattr(Planned, "plan", {})
    return open_store(hdfs_cluster.uri)


def test_a_file_that_is_replaced_while_it_is_read_is_read_anew(planned: Store, root: str) -> None:
    gone = RuntimeError('DataTransferError("All DataNodes failed")')
    stage(planned, f"{root}/f", b"new")
    Planned.plan["read"] = [gone, gone]
    assert planned.read(f"{root}/f", 9) == b"new"
    Planned.plan["read"] = [gone]
    assert planned.tail(f"{root}/f", 9) is not None
    Planned.plan["read"] = [gone] * 9
    with pytest.raises(UnavailableError, match="DataNodes"):
        planned.read(f"{root}/f", 9)


def test_a_directory_that_vanishes_while_it_is_listed_is_no_failure(planned: Store, root: str) -> None:
    for name in ("a/f", "b/f", "c"):
        stage(planned, f"{root}/{name}", b"")
    Planned.plan["list_status"] = [FileNotFoundError("pruned"), FileNotFoundError("pruned")]
    assert planned.list(root) == ["a/f", "b/f", "c"]
    Planned.plan["list_status"] = [FileNotFoundError("pruned")] * 9
    with pytest.raises(UnavailableError, match="vanished"):
        planned.list(root)


def test_a_put_whose_temporary_file_is_swept_is_unknown_and_a_move_whose_directory_is_pruned_is_made_again(
    planned: Store, root: str
) -> None:
    Planned.plan["rename"] = [FileNotFoundError("swept")]
    assert planned.put_if_absent(f"{root}/0", b"x", "a") is None
    Planned.plan["rename"] = [FileNotFoundError("swept")]
    with pytest.raises(UnavailableError, match="vanished"):
        planned.replace(f"{root}/0", b"x", "b")
    stage(planned, f"{root}/f", b"x")
    Planned.plan["rename"] = [FileNotFoundError("pruned")] * 3
    assert planned.move([(f"{root}/f", f"{root}/t/g")]) == []
    Planned.plan["rename"] = [FileNotFoundError("pruned")] * 4
    with pytest.raises(UnavailableError, match="vanished"):
        planned.move([(f"{root}/t/g", f"{root}/f")])


def test_an_error_after_a_lost_answer_leaves_the_outcome_unknown(planned: Store, root: str) -> None:
    """I11: the first attempt may land yet."""
    lost, refused = OSError("RPC listener disconnected"), OSError("Connection refused (os error 111)")
    stage(planned, f"{root}/f", b"x")
    move = [(f"{root}/f", f"{root}/g")]
    plans: list[dict[str, list[Exception]]] = [
        {"rename": [refused, lost]},
        {"rename": [lost], "get_file_info": [refused]},
        {"rename": [lost] * 4},
    ]
    for plan in plans:
        Planned.plan.update(plan)
        with pytest.raises(OutcomeUnknownError, match="RPC listener disconnected"):
            planned.move(move)
    Planned.plan["delete"] = [refused, lost]
    with pytest.raises(OutcomeUnknownError, match="RPC listener disconnected"):
        planned.delete(f"{root}/f")
    assert contents(planned, root) == {"f": b"x"}


class Dying(Planned):
    """A client that answers nothing more once it has failed."""

    is_dead = False

    def __getattr__(self, name: str) -> Any:
        if self.plan.get(name):
            self.plan[name].pop()
            self.is_dead = True
        if self.is_dead:
            raise OSError("RPC listener disconnected")
        return super().__getattr__(name)


def test_a_call_after_a_lost_connection_is_made_on_a_new_one(
    hdfs_cluster: Cluster, store: Store, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I11: for a moment the client takes its dying connection for a living one, and loses a second call on it."""
    stage(store, f"{root}/f", b"x")
    monkeypatch.setattr(calls, "Client", Dying)
    monkeypatch.setattr(Planned, "plan", {"delete": [OSError("lost")]})
    assert open_store(hdfs_cluster.uri).delete(f"{root}/f") is True
    assert store.list(root) == []


def test_an_output_that_failed_stays_failed(planned: Store, root: str) -> None:
    """Nobody knows how much a failed write wrote."""
    output = planned.create(f"{root}/f")
    writer = cast("Any", output)._writer
    real, writer.inner = writer.inner, None
    with pytest.raises(InternalError):
        output.write(b"x" * 2 * MIB)
    writer.inner = real
    for act in (lambda: output.write(b"x" * 2 * MIB), output.seal, output.seal):
        with pytest.raises(InternalError):
            act()
    output.discard()
    assert planned.list(root) == []


def test_a_store_that_is_forgotten_leaves_no_thread(hdfs_cluster: Cluster) -> None:
    gc.collect()
    before = set(threading.enumerate())
    forgotten = open_store(hdfs_cluster.uri)
    forgotten.list("/none")
    (thread,) = set(threading.enumerate()) - before
    del forgotten
    gc.collect()
    thread.join(CHILD_SECONDS)
    assert not thread.is_alive()


def test_settings_reach_the_client_as_hadoop_writes_them(
    hdfs_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[Any, ...]] = []

    def note(*place: Any, **named: Any) -> Client:
        given.append((*place, named))
        return Client(*place)

    monkeypatch.setattr(calls, "Client", note)
    options: dict[str, object] = {"dfs.a": True, "dfs.b": 3, "dfs.c": "x", "config_dir": "/conf"}
    open_store(hdfs_cluster.uri, {**options, "dfs.client.failover.max.attempts": 2}).list("/none")
    config = {"dfs.a": "true", "dfs.b": "3", "dfs.c": "x", "dfs.client.failover.max.attempts": "2"}
    assert given == [(f"{hdfs_cluster.uri}/", config, {"config_dir": "/conf"})]


def test_an_output_that_nobody_sealed_stays_unfinished_when_it_is_forgotten(store: Store, root: str) -> None:
    """The client's writer would close a half-written file when it is collected."""
    store.create(f"{root}/f").write(b"x" * 3 * MIB)
    gc.collect()
    is_closed = calls_of(open_store(calls_of(store).place)).do("x", lambda client: client.recover_lease(f"{root}/f"))
    assert not is_closed


# -- processes that die --------------------------------------------------------------------------------------

OPEN_AND_WAIT = """
import sys
import txsink
from txsink.paths import temporary_path
from txsink.store.opening import open_store
uri, root = sys.argv[1:]
store = open_store(uri)
staged = store.create(root + "/staged")
staged.write(b"x" * (3 << 20))
half = store.create(temporary_path(root + "/slot", "token"))
half.write(b"half")
sink = txsink.open_writer(uri + root + "/T", writer="w", row_group_rows=10)
txn = sink.begin(1)
txn.write({"id": list(range(1000))})
print("open", flush=True)
sys.stdin.read()
"""
FORK = """
import os, signal, sys
from txsink.errors import UnavailableError
from txsink.store.opening import open_store
uri, root = sys.argv[1:]
store = open_store(uri)
assert store.put_if_absent(root + "/0", b"before", "a")
output = store.create(root + "/staged")
child = os.fork()
if child == 0:
    signal.alarm(60)
    assert store.read(root + "/0", 99) == b"before"
    assert store.put_if_absent(root + "/1", b"child", "b")
    try:
        output.write(b"x" * (2 << 20))
    except UnavailableError as error:
        assert "forked" in str(error)
    else:
        raise SystemExit("written")
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
output.write(b"parent")
output.seal()
assert store.read(root + "/1", 99) == b"child"
print(store.read(root + "/staged", 99))
"""


def program(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-W", "ignore", "-c", code, *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def test_what_a_killed_writer_had_open_is_in_nobodys_way(hdfs_cluster: Cluster, store: Store, root: str) -> None:
    """I9: its leases last for a minute; nobody waits for them."""
    command = program(OPEN_AND_WAIT, hdfs_cluster.uri, root)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"open\n"
        writer.kill()
        writer.wait(CHILD_SECONDS)
    assert store.put_if_absent(f"{root}/slot", b"whole", "token") is True
    assert store.delete(f"{root}/staged") is True
    stage(store, f"{root}/staged", b"new")
    assert contents(store, root)["staged"] == b"new"
    uri = f"{hdfs_cluster.uri}{root}/T"
    assert left_behind(uri) != []
    with txsink.open_writer(uri, writer="w") as sink:
        assert sink.last_epoch is None
        assert left_behind(uri) == []
        with sink.begin(1) as txn:
            txn.write(rows(1))
    assert ids_of(uri) == [1]


def test_a_forked_child_connects_anew_and_ends(hdfs_cluster: Cluster, root: str) -> None:
    done = subprocess.run(
        program(FORK, hdfs_cluster.uri, root),
        check=False,
        capture_output=True,
        timeout=CHILD_SECONDS,
        env=environment(),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"b'parent'\n", b"")


def test_without_a_data_node_nothing_is_committed_and_with_one_again_it_is(hdfs_cluster: Cluster, root: str) -> None:
    uri = f"{hdfs_cluster.uri}{root}"
    txsink.write(uri, rows(1), writer="w", epoch=1)
    for node in hdfs_cluster.datanodes:
        node.kill()
    with pytest.raises(UnavailableError, match="DataNodes"):
        txsink.write(uri, rows(2), writer="w", epoch=2)
    hdfs_cluster.resume()
    assert ids_of(uri) == [1]
    txsink.write(uri, rows(2), writer="w", epoch=2)
    assert ids_of(uri) == [1, 2]


def test_kill_9_of_every_node_between_the_phases_loses_and_doubles_nothing(hdfs_cluster: Cluster, root: str) -> None:
    """I3, I12: one writer stands before each phase and goes on; another one does not, and its successor recovers."""
    uri = f"{hdfs_cluster.uri}{root}"
    phases = ("begun", "staged", "prepared", "published", "committed")
    writers = [f"{phase}-{fate}" for phase in phases for fate in ("lives", "dies")]
    sinks = {writer: brought_to(uri, writer, writers.index(writer)) for writer in writers}
    for node in (hdfs_cluster.namenode, *hdfs_cluster.datanodes):
        node.kill()
    hdfs_cluster.resume()
    for number, (writer, (sink, finish)) in enumerate(sinks.items()):
        if writer.endswith("lives"):
            try:
                finish()
            except UnavailableError:  # an open file does not outlive its DataNodes
                assert writer.startswith(("begun", "staged"))
                write_again(uri, writer, number)
        else:
            write_again(uri, writer, number)
        assert sink.writer == writer
    assert ids_of(uri) == list(range(len(writers)))
    assert left_behind(uri) == []


def brought_to(uri: str, writer: str, number: int) -> tuple[Writer, Callable[[], object]]:
    """A writer in the phase its name tells, and what it does next."""
    sink = txsink.open_writer(uri, writer=writer)
    txn = sink.begin(1)
    phase = writer.partition("-")[0]
    if phase == "begun":
        txn.write(rows(number))
        return sink, txn.commit
    if phase == "staged":
        txn.add(txn.stager().stage(rows(number)))
        return sink, txn.commit
    txn.write(rows(number))
    txn.prepare()
    if phase == "published":
        prepare = sink.log.prepare_entry(sink.log.state.pending_of(writer)[0].prepared)
        begin_publish(sink, prepare)
        sink.publisher.publish(prepare)
    if phase == "committed":
        txn.commit()
        return sink, lambda: None
    return sink, txn.commit


def write_again(uri: str, writer: str, number: int) -> None:
    with txsink.open_writer(uri, writer=writer) as sink, sink.begin(1) as txn:
        txn.write(rows(number))


def test_a_name_node_killed_while_it_owes_an_answer_leaves_an_unknown_outcome_that_recovery_resolves(
    hdfs_cluster: Cluster, root: str
) -> None:
    """I11."""
    uri = f"{hdfs_cluster.uri}{root}"
    sink = txsink.open_writer(uri, writer="w", storage_options={"deadline_seconds": 2})
    txn = sink.begin(1)
    txn.write(rows(1))
    txn.prepare()
    hdfs_cluster.namenode.pause()
    with pytest.raises((OutcomeUnknownError, UnavailableError), match="did not answer within 2 s"):
        txn.commit()
    hdfs_cluster.namenode.kill()
    hdfs_cluster.resume()
    with txsink.open_writer(uri, writer="w") as after:
        assert after.last_epoch == 1
    assert ids_of(uri) == [1]
