"""What errors of HDFS advise, done word for word before a NameNode in memory: every row is there once."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import txsink
from advice import advised
from seen import small_blocks
from txsink.cli import main as cli
from txsink.log import expiry
from txsink.protocol import sweeping

pytest.importorskip("hdfs_native", reason="the client of HDFS is not installed")

from hdfs_stand_in import NameNode, rpc
from txsink.store.hdfs import calls, store as hdfs
from txsink.store.opening import open_store

__all__ = ["small_blocks"]

HOST = "hdfs://nn:8020"
ROOT = "/lake/t"
URI = f"{HOST}{ROOT}"
SOON: dict[str, Any] = {"deadline_seconds": 0.3}


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> NameNode:
    running = NameNode()
    monkeypatch.setattr(calls, "Client", running.client)
    return running


def ids(node: NameNode, uri: str = URI, **options: Any) -> list[int]:
    """The ids that a reader of the log gets, which must be those in the files below the root."""
    root = "/" + uri.partition("://")[2].partition("/")[2]
    found = sorted(txsink.open_table(uri, storage_options=options).to_arrow()["id"].to_pylist())
    paths = [path for path in node.below(root) if path.endswith(".parquet")]
    assert found == sorted(
        value for path in paths for value in pq.read_table(io.BytesIO(node.files[path]))["id"].to_pylist()
    )
    return found


def write(epoch: int, uri: str = URI, **options: Any) -> None:
    txsink.write(uri, {"id": [epoch]}, writer="w", epoch=epoch, storage_options=options)


# -- what HDFS refuses, until the advised thing is done ------------------------------------------------------

NAMENODE, SECURITY = "org.apache.hadoop.hdfs.server.namenode", "org.apache.hadoop.security"
TOKEN, IPC = f"{SECURITY}.token", "org.apache.hadoop.ipc"
IN_SAFE_MODE = rpc("SafeModeException", "Cannot create file. Name node is in safe mode.", NAMENODE)
DENIED = rpc("AccessControlException", "Permission denied: user=me, access=WRITE, inode=/lake", SECURITY)
STANDBY = rpc("StandbyException", "Operation category WRITE is not supported in state standby", IPC)
TOO_FEW = rpc("IOException", "File could only be written to 0 of the 1 minReplication nodes.", "java.io")
OF_BYTES = rpc("DSQuotaExceededException", "The DiskSpace quota of /lake is exceeded")


def refusals() -> list[Any]:
    """What is refused until it is done, at every call that HDFS says it of."""
    found: list[Any] = []
    for verb in ("create", "rename"):
        found += [
            (advised("store.hdfs.calls._mapped", "Retry when the NameNode has left safe mode"), IN_SAFE_MODE, verb),
            (advised("store.hdfs.calls._mapped", "Give the user that right, then retry"), DENIED, verb),
            (
                advised("store.hdfs.calls._mapped", "Raise the quota or make room, then retry"),
                rpc("NSQuotaExceededException", "The NameSpace quota of /lake is exceeded: quota=3"),
                verb,
            ),
        ]
    for verb in ("status", "create", "rename", "read"):
        found += [
            (
                advised("store.hdfs.calls._mapped", "Renew the Kerberos ticket (kinit) or the delegation token"),
                rpc("SecretManager$InvalidToken", "token for me is expired", TOKEN),
                verb,
            ),
            (advised("store.hdfs.calls._mapped", "Retry; name the name service rather than one"), STANDBY, verb),
            (
                advised("store.hdfs.calls._mapped", "Retry when HDFS serves again"),
                rpc("RetriableException", "NameNode still not started", IPC),
                verb,
            ),
            (
                advised("store.hdfs.calls._mapped", "Check the address of the NameNode, and retry when it answers"),
                OSError("Connection refused (os error 111)"),
                verb,
            ),
        ]
    for verb in ("write", "hsync", "close"):
        found += [
            (advised("store.hdfs.calls._mapped", "Raise the quota or make room, then retry"), OF_BYTES, verb),
            (
                advised("store.hdfs.calls._mapped", "Retry when enough DataNodes serve and have room"),
                TOO_FEW,
                verb,
            ),
        ]
    for verb in ("write", "hsync", "close"):
        found += [
            (
                advised("store.hdfs.calls._mapped", "Somebody deleted the file while it was written: begin again"),
                rpc("LeaseExpiredException", "File does not exist: /lake/x (inode 7)", NAMENODE),
                verb,
            )
        ]
    for verb in ("create", "read"):
        found += [
            (
                advised("store.hdfs.calls._lost", "Retry when HDFS answers again"),
                OSError("RPC listener disconnected"),
                verb,
            ),
            (advised("store.hdfs.calls._lost", "Retry when HDFS answers again"), None, verb),
        ]
    policy = RuntimeError('UnsupportedFeature("hsync is not supported for erasure-coded files")')
    advice = "Have files replicated there: `hdfs ec -setPolicy -replicate -path DIRECTORY`"
    return [*found, (advised("store.hdfs.calls._mapped", advice), policy, "hsync")]


@pytest.mark.parametrize(("block", "error", "verb"), refusals(), ids=lambda value: str(value)[:70])
def test_what_hdfs_refuses_is_called_again_once_it_is_done(
    node: NameNode, block: Any, error: Exception, verb: str
) -> None:
    """On the objects that met it; another program finds nothing of the epoch meanwhile."""
    write(0)
    with txsink.open_writer(URI, writer="w", storage_options=SOON) as sink:
        txn = sink.begin(1)
        with node.refusing(error, verb), block as caught:
            txn.write({"id": [1]})
            txn.commit()
        assert ids(node) == [0]
        if "Begin" in caught.value.advice:
            txn = sink.begin(1)
            txn.write({"id": [1]})
        txn.commit()
        assert ids(node) == [0, 1]


@pytest.mark.parametrize(("block", "error", "verb"), refusals(), ids=lambda value: str(value)[:70])
def test_what_hdfs_refuses_is_written_again_by_another_process(
    node: NameNode, block: Any, error: Exception, verb: str
) -> None:
    with node.refusing(error, verb), block:
        write(1, **SOON)
    write(1)
    assert ids(node) == [1]


NAMES = {"dfs.ha.namenodes.lake": "a,b"}
NAMES.update({f"dfs.namenode.rpc-address.lake.{name}": f"{name}:8020" for name in "ab"})
SERVED = f"hdfs://lake{ROOT}"
EVERY = ("status", "list", "read", "create", "rename", "delete", "mkdirs")


def of_lake(client: Any) -> bool:
    return bool(client.url.startswith("hdfs://lake"))


def test_the_name_service_is_served_where_one_name_node_is_not(node: NameNode) -> None:
    write(1)
    with node.refusing(STANDBY, *EVERY, unless=of_lake):
        with advised("store.hdfs.calls._mapped", "name the name service rather than one NameNode"):
            write(2)
        write(2, SERVED, **NAMES)
        assert ids(node, SERVED, **NAMES) == [1, 2]
    assert ids(node) == [1, 2]


@pytest.mark.parametrize("does", ["options", "directory", "address"])
def test_a_name_service_that_is_not_known_is_configured_or_its_name_node_named(
    node: NameNode, does: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HADOOP_CONF_DIR", "HADOOP_HOME"):
        monkeypatch.delenv(name, raising=False)
    with advised("store.hdfs.calls.line", "Check the storage options and HADOOP_CONF_DIR, or name the NameNode: hdfs"):
        write(1, SERVED)
    if does == "directory":
        told = "".join(f"<property><name>{name}</name><value>{text}</value></property>" for name, text in NAMES.items())
        (tmp_path / "hdfs-site.xml").write_text(f"<configuration>{told}</configuration>", encoding="utf-8")
        monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    options = NAMES if does == "options" else {}
    write(1, URI if does == "address" else SERVED, **options)
    assert ids(node) == [1]


def test_the_address_of_a_name_node_is_corrected(node: NameNode) -> None:
    refused = OSError("Connection refused (os error 111)")
    with node.refusing(refused, *EVERY, unless=lambda client: client.url == f"{HOST}/"):
        with advised("store.hdfs.calls._mapped", "Check the address of the NameNode"):
            write(1, f"hdfs://nn:9000{ROOT}")
        write(1)
    assert ids(node) == [1]


def test_a_path_below_a_file_is_another_path(node: NameNode) -> None:
    node.put("/lake/file", b"x")
    with advised("store.hdfs.calls._mapped", "Name another path"):
        write(1, f"{HOST}/lake/file/t")
    write(1)
    assert ids(node) == [1]


def test_the_provider_of_keys_is_set_where_a_zone_is_encrypted(node: NameNode) -> None:
    name = "hadoop.security.key.provider.path"
    locked = RuntimeError('OperationFailed("File is in an HDFS encryption zone but no KMS provider is configured")')
    options = {name: "kms://http@kms:9600/kms"}
    with node.refusing(locked, "read", "create", unless=lambda client: name in client.config):
        with advised("store.hdfs.calls._mapped", "Set hadoop.security.key.provider.path"):
            write(1)
        write(1, **options)
        assert ids(node, **options) == [1]


@pytest.mark.parametrize("does", ["away", "drop"])
def test_a_zone_that_came_after_the_prepare_is_taken_away_or_the_epoch_dropped(node: NameNode, does: str) -> None:
    with txsink.open_writer(URI, writer="w", partition_by="day") as sink:
        txn = sink.begin(1)
        txn.write({"id": [1], "day": ["a"]})
        txn.prepare()
        node.make_directory(f"{ROOT}/day=a")
        node.zones.add(f"{ROOT}/day=a")
        with advised("store.hdfs.calls._mapped", "Take the mount or the encryption zone away and call it again, or"):
            txn.commit()
        if does == "away":
            node.zones.clear()
            txn.commit()
    if does == "drop":
        assert cli.main(["abort", URI, "w", "1", "--yes"]) == 0
        txsink.write(URI, {"id": [2], "day": ["b"]}, writer="w", epoch=2)
    assert ids(node) == ([1] if does == "away" else [2])


def test_what_no_error_of_hdfs_is_is_reported_and_has_changed_nothing(node: NameNode) -> None:
    write(0)
    for number, verb in enumerate(("create", "write", "rename"), 1):
        with node.refusing(TypeError("a panic, say"), verb), advised("store.hdfs.calls._mapped", "Report it"):
            write(number)
        assert ids(node) == [*range(number)]
        write(number)
        assert ids(node) == [*range(number + 1)]


LOST = OSError("RPC listener disconnected")


# A lost answer alone is found out by looking: only a rename that is lost each time stays unknown.
@pytest.mark.parametrize(("error", "is_done"), [(None, False), (None, True), (LOST, False)])
def test_a_move_whose_answer_is_lost_is_finished_by_the_writer_that_is_opened_again(
    node: NameNode, error: Exception | None, is_done: bool
) -> None:
    sink = txsink.open_writer(URI, writer="w", storage_options=SOON)
    txn = sink.begin(1)
    txn.write({"id": [1]})
    with (
        node.refusing(error, "rename", where=lambda path: path.endswith(".parquet"), is_done=is_done),
        advised("store.hdfs.calls._lost", "Open the writer again: it recovers"),
    ):
        txn.commit()
    sink.close()
    txsink.open_writer(URI, writer="w").close()
    assert ids(node) == [1]


# -- paths and options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "uri", "options", "staging"),
    [
        (advised("store.hdfs.store._split", "Give hdfs://host:port/path"), f"hdfs://me@nn:8020{ROOT}", {}, None),
        (advised("store.hdfs.store.resolve", "Give hdfs://host:port/path"), f"{HOST}/", {}, None),
        (advised("store.hdfs.store.resolve", "Give hdfs://host:port/path"), f"{HOST}/lake/a:b", {}, None),
        (
            advised("store.hdfs.store.resolve", "Name both in the same way"),
            URI,
            {},
            "hdfs://nn.example.com:8020/lake/s",
        ),
        (advised("store.hdfs.calls._options", "Did you mean {}?"), URI, {"deadline": 9}, None),
        (
            advised("store.hdfs.calls._options", "Give deadline_seconds, or Hadoop settings such as dfs.x"),
            URI,
            {"zzz": 1},
            None,
        ),
        (advised("store.hdfs.calls._options", "Give seconds, up to a day"), URI, {"deadline_seconds": 0}, None),
        (advised("store.hdfs.calls._options", "Give text or a number"), URI, {"dfs.x": [1]}, None),
    ],
    ids=lambda value: str(value)[:50],
)
def test_paths_and_options_of_hdfs_are_given_as_the_message_says(
    node: NameNode, block: Any, uri: str, options: dict[str, Any], staging: str | None
) -> None:
    with block:
        txsink.write(uri, {"id": [1]}, writer="w", epoch=1, storage_options=options, staging_path=staging)
    right = {"deadline_seconds": 9, "dfs.client.x": 1}
    near = staging and f"{HOST}/lake/s"
    txsink.write(URI, {"id": [1]}, writer="w", epoch=1, storage_options=right, staging_path=near)
    assert ids(node) == [1]


# -- what others do meanwhile --------------------------------------------------------------------------------


def test_directories_that_vanish_each_time_are_there_at_the_next_call(node: NameNode) -> None:
    with txsink.open_writer(URI, writer="w", partition_by="day") as sink:
        txn = sink.begin(1)
        txn.write({"id": [1], "day": ["a"]})
        txn.prepare()
    gone = FileNotFoundError("its directory")
    with (
        node.refusing(gone, "rename", where=lambda path: "/day=a/" in path),
        advised("store.hdfs.store._move", "Retry"),
    ):
        txsink.open_writer(URI, writer="w")
    with txsink.open_writer(URI, writer="w") as sink:
        with node.refusing(gone, "list"), advised("store.hdfs.store.list", "Retry"):
            sink.sweep()
        assert sink.sweep() == []
    assert ids(node) == [1]


@pytest.mark.parametrize("which", [".parquet", ".tmp"])
def test_a_file_that_no_data_node_reports_is_written_when_one_does(
    node: NameNode, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdfs, "_REPORT_TRIES", 2)
    write(0)
    with txsink.open_writer(URI, writer="w") as sink:
        txn = sink.begin(1)
        node.is_unreported = lambda path: path.endswith(which)
        with advised("store.hdfs.store._whole", "Retry when enough DataNodes serve") as caught:
            txn.write({"id": [1]})
            txn.commit()
        node.is_unreported = lambda path: False
        assert ids(node) == [0]
        if "Begin" in caught.value.advice:
            txn = sink.begin(1)
            txn.write({"id": [1]})
        txn.commit()
        sink.sweep()
        sweeping.temporaries(sink.log)
    assert ids(node) == [0, 1]
    assert [path for path in node.files if path.endswith(".tmp") or "/.t.txsink" in path] == []


def test_an_entry_whose_attempts_left_their_files_is_put_by_the_next_call(node: NameNode) -> None:
    def left(path: str) -> bool:
        if "/log/" not in path:
            return False
        node.put(path, b"half")
        return True

    with txsink.open_writer(URI, writer="w") as sink:
        txn = sink.begin(1)
        txn.write({"id": [1]})
        with (
            node.refusing(FileExistsError("it"), "create", where=left),
            advised("store.hdfs.store.put_if_absent", "Retry"),
        ):
            txn.commit()
        assert len([path for path in node.files if path.endswith(".tmp")]) == 16
        txn.commit()
    assert ids(node) == [1]


@pytest.mark.usefixtures("small_blocks")
def test_a_state_whose_temporary_is_swept_is_written_when_nothing_sweeps(node: NameNode) -> None:
    with txsink.open_writer(URI, writer="w") as sink:
        for epoch in range(30):
            with sink.begin(epoch) as txn:
                txn.write({"id": [epoch]})
        swept = node.refusing(FileNotFoundError("it"), "rename", where=lambda path: path.endswith("/head"))
        with swept, advised("store.hdfs.store.replace", "Retry when nothing sweeps the table"):
            expiry.expire(sink.log, sink.log.state.version)
        assert expiry.expire(sink.log, sink.log.state.version)
    assert ids(node) == [*range(30)]


def test_names_that_are_not_random_are_what_is_to_be_reported(node: NameNode) -> None:
    store = open_store(URI)
    for name in "ab":
        store.create(f"{ROOT}/{name}").seal()
    with advised("store.hdfs.store.create", "Report it: names are random"):
        store.create(f"{ROOT}/a")
    with advised("store.hdfs.store.adopt", "Report it: names are random"):
        store.adopt(f"{ROOT}/a", f"{ROOT}/b")
    assert store.list(ROOT) == ["a", "b"]  # nothing was taken for the other


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_an_output_that_was_begun_before_a_fork_is_begun_again_by_the_child(node: NameNode, tmp_path: Path) -> None:
    """The child has the names and bytes that there were: what it writes is told by a file of this machine."""
    output = open_store(URI).create("/lake/.begun")
    output.write(b"1")
    pid = os.fork()
    if pid == 0:
        try:
            with advised("store.hdfs.calls.do", "Begin the epoch again"):
                output.seal()
            write(1)
            (tmp_path / "told").write_text(str(ids(node)), encoding="utf-8")
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert (tmp_path / "told").read_text(encoding="utf-8") == "[1]"
