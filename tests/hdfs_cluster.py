"""HDFS for tests: one NameNode and two DataNodes, each a process of its own, from the jars that pyspark brings.

    python tests/hdfs_cluster.py          starts it, says how to reach it, and stops it when its input ends

Promises: every address is on 127.0.0.1 and every port free; starting, restarting and stopping end within a time-out;
each process can be killed and started again with its data kept; all of them die with the process that started them.
Relies on: Java, pyspark, and once the download of one jar into `.servers/`. `missing()` says which is not there.
Does not promise: durability on a power cut of this machine.

Worked example:

    cluster = Cluster(directory)
    cluster.start()
    cluster.namenode.kill()
    cluster.namenode.start()
    cluster.wait()                        # all nodes live, no safe mode
"""

from __future__ import annotations

import atexit
import contextlib
import getpass
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pytest

import installs

SERVERS = Path(__file__).parents[1] / ".servers"
START_SECONDS = 300
DOWNLOAD_SECONDS = 300
DATANODES = 2
_POLL_SECONDS = 0.1
_JAVA = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Djava.net.preferIPv4Stack=true")
_SERVER = "org.apache.hadoop.hdfs.server"


def missing() -> str | None:
    """Why no cluster can be started here; None when one can."""
    if reason := installs.missing("java"):
        return f"HDFS needs Java: {reason}"
    if importlib.util.find_spec("pyspark") is None:
        return "HDFS runs from the jars of pyspark, which is not installed"
    try:
        _minicluster_jar()
    except (OSError, subprocess.SubprocessError) as error:
        return f"one jar of HDFS could not be fetched: {error}"
    return None


@pytest.fixture(scope="session")
def hdfs_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A running cluster, shared by all tests of a run. Who kills a node starts it again."""
    if reason := missing():
        pytest.skip(reason)
    cluster = Cluster(tmp_path_factory.mktemp("hdfs"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


class Node:
    """One server process."""

    def __init__(self, kind: str, conf: Path, log: Path) -> None:
        self._kind = kind
        self._conf = conf
        self._log = log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process; it keeps what an earlier one left."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*_dies_with_us(), *_java(self._conf), self._kind],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._log.parent,
            )

    def kill(self) -> None:
        """Kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(START_SECONDS)
            self.process = None

    def pause(self) -> None:
        """Stop answering, and keep the connections."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Answer again."""
        self._signal(signal.SIGCONT)

    def idle(self) -> None:
        """Wait a moment; fail when the process has died."""
        if self.process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_POLL_SECONDS)
            raise OSError(f"{self._kind} has died:\n{self.told()}")

    def told(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-4000:] if self._log.exists() else ""

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None:
            os.kill(self.process.pid, number)


class Cluster:
    """A NameNode and two DataNodes below one directory."""

    def __init__(self, directory: Path, block_bytes: int = 1 << 20) -> None:
        self.directory = directory
        self.port, self._http_port = _free_ports(2)
        self._block_bytes = block_bytes
        self.conf = self._configure("namenode")
        self.namenode = Node(f"{_SERVER}.namenode.NameNode", self.conf, directory / "namenode.log")
        self.datanodes = [
            Node(f"{_SERVER}.datanode.DataNode", self._configure(name), directory / f"{name}.log")
            for name in (f"datanode{number}" for number in range(DATANODES))
        ]

    @property
    def uri(self) -> str:
        """The root of the file system."""
        return f"hdfs://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Format and start everything."""
        atexit.register(self.stop)
        subprocess.run(
            [*_java(self.conf), f"{_SERVER}.namenode.NameNode", "-format", "-nonInteractive"],
            check=True,
            capture_output=True,
            timeout=START_SECONDS,
        )
        self.resume()

    def resume(self) -> None:
        """Start what does not run, and wait until all of it serves."""
        for node in (self.namenode, *self.datanodes):
            if node.process is None:
                node.start()
        self.wait()

    def stop(self) -> None:
        """Kill -9 of every process."""
        for node in (self.namenode, *self.datanodes):
            node.kill()

    def wait(self) -> None:
        """Wait until the NameNode has left safe mode and every running DataNode serves."""
        expected = sum(node.process is not None for node in self.datanodes)
        for _ in range(int(START_SECONDS / _POLL_SECONDS)):
            if self._serving() >= expected:
                return
            self.namenode.idle()
        raise TimeoutError(f"HDFS did not start in {START_SECONDS} s:\n{self.namenode.told()}")

    def dfsadmin(self, *command: str) -> str:
        """What an administrator does."""
        done = subprocess.run(
            [*_java(self.conf), "org.apache.hadoop.hdfs.tools.DFSAdmin", *command],
            check=True,
            capture_output=True,
            timeout=START_SECONDS,
        )
        return done.stdout.decode()

    def set_quota(self, path: str, names: int, size: int) -> None:
        """What an administrator does: so many names, so many bytes with all replicas."""
        query = urllib.parse.urlencode(
            {"op": "SETQUOTA", "namespacequota": names, "storagespacequota": size, "user.name": getpass.getuser()}
        )
        url = f"http://127.0.0.1:{self._http_port}/webhdfs/v1{urllib.parse.quote(path)}?{query}"
        urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=5).close()

    def _serving(self) -> int:
        """How many DataNodes the NameNode can send clients to; -1: it serves nobody."""
        try:
            info = self._jmx("NameNodeInfo")
        except (OSError, LookupError, ValueError):
            return -1
        if info["Safemode"]:
            return -1
        return sum(_listens(node["xferaddr"]) for node in json.loads(info["LiveNodes"]).values())

    def _jmx(self, name: str) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self._http_port}/jmx?qry=Hadoop:service=NameNode,name={name}"
        with urllib.request.urlopen(url, timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)["beans"][0]
            return found

    def _configure(self, name: str) -> Path:
        """Write the configuration of one node."""
        conf = self.directory / f"{name}.conf"
        conf.mkdir(parents=True)
        here = "127.0.0.1"
        _write_configuration(
            conf / "core-site.xml", {"fs.defaultFS": self.uri, "hadoop.tmp.dir": self.directory / "tmp"}
        )
        _write_configuration(
            conf / "hdfs-site.xml",
            {
                "dfs.namenode.rpc-address": f"{here}:{self.port}",
                "dfs.namenode.http-address": f"{here}:{self._http_port}",
                "dfs.namenode.name.dir": f"file://{self.directory}/name",
                "dfs.datanode.data.dir": f"file://{self.directory}/{name}",
                "dfs.datanode.address": f"{here}:0",
                "dfs.datanode.http.address": f"{here}:0",
                "dfs.datanode.ipc.address": f"{here}:0",
                "dfs.datanode.hostname": here,
                "dfs.namenode.datanode.registration.ip-hostname-check": "false",
                "dfs.replication": DATANODES,
                "dfs.blocksize": self._block_bytes,
                "dfs.namenode.fs-limits.min-block-size": 0,
                # So that a close need not wait for the report of the last DataNode.
                "dfs.namenode.file.close.num-committed-allowed": 1,
                "dfs.namenode.safemode.extension": 0,
                "dfs.heartbeat.interval": 1,
                "dfs.namenode.heartbeat.recheck-interval": 1000,
                "dfs.namenode.handler.count": 8,
                "ipc.client.connect.retry.interval": 200,
            },
        )
        return conf


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        taken = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in taken:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in taken]


def _write_configuration(path: Path, values: dict[str, object]) -> None:
    lines = (
        f"<property><name>{name}</name><value>{escape(str(value))}</value></property>" for name, value in values.items()
    )
    path.write_text(f"<configuration>{''.join(lines)}</configuration>\n", encoding="utf-8")


def _java(conf: Path) -> list[str]:
    jars = [str(conf), str(_minicluster_jar()), *map(str, _spark_jars("hadoop-client-*", "*slf4j*", "log4j-*"))]
    return ["java", *_JAVA, "-cp", os.pathsep.join(jars)]


def _dies_with_us() -> list[str]:
    """The kernel kills the server when we are killed ourselves; elsewhere only `atexit` does."""
    return ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []


def _spark_jars(*patterns: str) -> list[Path]:
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise FileNotFoundError("pyspark")
    return [jar for pattern in patterns for jar in sorted((Path(found.origin).parent / "jars").glob(pattern))]


def _minicluster_jar() -> Path:
    """The jar that pyspark lacks, fetched once by the Ivy that pyspark brings."""
    (api,) = _spark_jars("hadoop-client-api-*.jar")
    version = api.stem.rpartition("-")[2]
    jar = SERVERS / f"hadoop-client-minicluster-{version}.jar"
    if not jar.exists():
        SERVERS.mkdir(exist_ok=True)
        (ivy,) = _spark_jars("ivy-*.jar")
        with tempfile.TemporaryDirectory(dir=SERVERS) as fetched:
            subprocess.run(
                ["java", "-jar", str(ivy), "-cache", f"{fetched}/cache", "-notransitive", "-types", "jar",
                 "-dependency", "org.apache.hadoop", "hadoop-client-minicluster", version,
                 "-retrieve", f"{fetched}/[artifact]-[revision].[ext]"],
                check=True, capture_output=True, timeout=DOWNLOAD_SECONDS,
            )  # fmt: skip
            (Path(fetched) / jar.name).rename(jar)
    return jar


def main() -> None:
    if reason := missing():
        sys.exit(reason)
    with tempfile.TemporaryDirectory() as directory:
        cluster = Cluster(Path(directory), block_bytes=128 << 20)
        try:
            cluster.start()
            print(
                f"HDFS serves {cluster.uri}\nHADOOP_CONF_DIR={cluster.conf}\nIt stops when its input ends", flush=True
            )
            with contextlib.suppress(KeyboardInterrupt):
                sys.stdin.read()
        finally:
            cluster.stop()


if __name__ == "__main__":
    main()
