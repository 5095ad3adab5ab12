"""A standalone cluster of Spark for tests: a master and two workers, each a process of its own.

Promises: everything is on this machine's loopback, on ports that were free; starting ends within a time-out; all
processes end with `stop`, and where `setpriv` is there also when the process that started them is killed.
Relies on: Java and pyspark, see `spark_processes.missing`.
Does not promise: two disks. Both workers see the files of this machine.
"""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import spark_processes
from s3_servers import free_port

START_SECONDS = 300
_POLL_SECONDS = 0.1
# By two names, for Spark runs no second attempt of a task on the host of the first.
_HOSTS = ("127.0.0.1", "localhost")
_JAVA = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


class Cluster:
    """Started by `start`; `master` is what a session connects to."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._home = spark_processes.home(directory)
        self._processes: list[subprocess.Popen[bytes]] = []
        self.master = f"spark://127.0.0.1:{free_port()}"

    def start(self, **environment: str) -> None:
        """Start all; what executors inherit is `environment`."""
        host, port = self.master.removeprefix("spark://").split(":")
        self._run("master", "Master", "--host", host, "--port", port, "--webui-port", "0")
        self._wait("master", "Starting Spark master at")
        for number, name in enumerate(_HOSTS):
            place = self._directory / f"work{number}"
            options = ("--host", name, "--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", str(place))
            self._run(f"worker{number}", "Worker", *options, self.master, **environment)
        for number in range(len(_HOSTS)):
            self._wait(f"worker{number}", "Successfully registered with master")

    def stop(self) -> None:
        for process in self._processes:
            spark_processes.end(process.pid)
            process.wait(START_SECONDS)

    def _run(self, name: str, kind: str, *options: str, **environment: str) -> None:
        more = {"SPARK_HOME": str(self._home), **_JAVA, **environment}
        dies_with_us = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        command = [str(self._home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind.lower()}.{kind}", *options]
        with (self._directory / name).open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [*dies_with_us, *command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=spark_processes.environment(**more),
                    cwd=self._directory,
                    start_new_session=True,
                )
            )

    def _wait(self, name: str, words: str) -> None:
        """Wait until a process says it is ready."""
        process = self._processes[-1]
        for _ in range(int(START_SECONDS / _POLL_SECONDS)):
            told = (self._directory / name).read_text(errors="replace")
            if words in told:
                return
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_SECONDS)
                raise OSError(f"{name} has died:\n{told}")
        raise OSError(f"{name} did not say {words!r} within {START_SECONDS} s:\n{told}")
