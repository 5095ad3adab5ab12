"""Four S3 servers for tests, each an ordinary process on 127.0.0.1 and a free port, with its data in a directory.

    with started("minio", directory) as server:
        bucket = server.make_bucket()
        S3FileSystem(**server.storage_options)
        server.kill(); server.restart()          # the same data (where it keeps data), the same port

    python tests/s3_servers.py build [NAME...]   fetch or build what is missing; never fails, says why
    python tests/s3_servers.py serve             build, start all, print addresses and options, stop at Ctrl-C

Promises: `start` returns when the server answers a signed request, or raises `NotHereError` (it is not built: a reason
to skip) or `RuntimeError` (it is built and does not start: a failure, with the end of its log). A server dies with the
process that started it, also when that is killed (Linux). The credentials are made up for the test.
Relies on: tools below `.servers/` (or $TXSINK_SERVERS, so that several clones share one build), put there by `build`
alone.
Does not promise: to be S3. `TRAITS` says what is known to differ; test_s3_servers.py shows it.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import botocore.config
import botocore.exceptions
import botocore.session
import pytest

import installs

ROOT = Path(__file__).parents[1]
SERVERS = Path(os.environ.get("TXSINK_SERVERS", ROOT / ".servers"))
HDFS = Path(__file__).with_name("hdfs_cluster.py")
VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
MINIO = "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c"
ACCESS_KEY, SECRET_KEY, REGION = "made-up-key", "made-up-secret", "us-east-1"
START_SECONDS_MAX, STOP_SECONDS_MAX, BUILD_SECONDS_MAX = 180.0, 30.0, 1800.0
CLUSTER_STOP_SECONDS_MAX = 60.0
STARTS_MAX = 3
POLL_SECONDS = 0.05
# The parent's id and a command: becomes the command, and is killed when the parent ends (Linux only).
RUN = """
import ctypes, os, sys
prctl = getattr(ctypes.CDLL(None), "prctl", None)
if prctl is not None:
    prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class NotHereError(Exception):
    """The server is not built on this machine; its text is the reason to skip."""


class Traits(NamedTuple):
    """What is known to differ between the servers."""

    is_atomic: bool  # of many conditional puts or completes at once, one wins
    keeps_data: bool  # objects survive kill -9
    keeps_uploads: bool  # staged parts survive kill -9
    is_done_when_answered: bool  # 200 to a complete means that the object is there
    checks_credentials: bool


class Recipe(NamedTuple):
    """How a server is built and started."""

    tool: Callable[[], Path]
    build: Callable[[Path], None]  # to that path, or NotHereError
    command: Callable[[Path, int, Path], tuple[list[str], dict[str, str]]]  # of tool, port, directory


# -- building ----------------------------------------------------------------------------------------------


def _bin(module: str) -> Path:
    """Where the binary of a Go module lies; its name carries the version, so another pin is another file."""
    name, _, version = module.partition("@")
    return SERVERS / "bin" / f"{name.rpartition('/')[2]}-{version}"


def _go_install(module: str, tool: Path) -> None:
    if reason := installs.missing("go"):
        raise NotHereError(f"it is built by Go, and {reason}")
    with tempfile.TemporaryDirectory(dir=SERVERS) as made:
        environment = {**os.environ, "GOBIN": made, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"}
        _run(tool, ["go", "install", "-trimpath", "-ldflags=-s -w", module], environment)
        tool.parent.mkdir(exist_ok=True)
        next(Path(made).iterdir()).replace(tool)


def _pip_install(tool: Path) -> None:
    """An environment of its own: its dependencies and ours need not agree."""
    environment = tool.parents[1]
    shutil.rmtree(environment, ignore_errors=True)
    try:
        _run(tool, [sys.executable, "-m", "venv", str(environment)])
        pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run(tool, [*pip, "--require-hashes", "-r", str(ROOT / "requirements" / "ministack.txt")])
    except NotHereError:
        shutil.rmtree(environment, ignore_errors=True)
        raise


def _run(tool: Path, command: list[str], environment: dict[str, str] | None = None) -> None:
    log = SERVERS / f"build-{tool.name}.log"
    with log.open("ab") as output:
        try:
            subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, check=True,
                timeout=BUILD_SECONDS_MAX,
            )  # fmt: skip
        except (subprocess.SubprocessError, OSError):
            raise NotHereError(f"{Path(command[0]).name} could not fetch or build it, see {log.name}") from None


def build(name: str) -> str:
    """Builds the server if it is not there; the reason why it is still not there, or nothing."""
    recipe = RECIPES[name]
    tool = recipe.tool()
    if tool.exists():
        return ""
    SERVERS.mkdir(exist_ok=True)
    reason_path = SERVERS / f"{name}.missing"
    try:
        recipe.build(tool)
    except NotHereError as error:
        reason_path.write_text(f"{error}\n")
        return str(error)
    reason_path.unlink(missing_ok=True)
    return ""


def missing(name: str) -> str:
    """Why the server cannot be started here; nothing when it can."""
    if RECIPES[name].tool().exists():
        return ""
    reason_path = SERVERS / f"{name}.missing"
    return reason_path.read_text().strip() if reason_path.exists() else "it is not built: make servers"


# -- the servers -------------------------------------------------------------------------------------------


def _moto(tool: Path, port: int, directory: Path) -> tuple[list[str], dict[str, str]]:
    return [str(tool), "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], {}


def _ministack(tool: Path, port: int, directory: Path) -> tuple[list[str], dict[str, str]]:
    return [str(tool)], {
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "SERVICES": "s3",
        "S3_PERSIST": "1",
        "S3_DATA_DIR": str(directory / "data"),
        "LOG_LEVEL": "WARNING",
        "DOCKER_HOST": f"unix://{directory}/no-docker.sock",
    }


def _versitygw(tool: Path, port: int, directory: Path) -> tuple[list[str], dict[str, str]]:
    command = [str(tool), "--quiet", "--region", REGION, "--port", f"127.0.0.1:{port}", "posix", f"{directory}/data"]
    return command, {"ROOT_ACCESS_KEY_ID": ACCESS_KEY, "ROOT_SECRET_ACCESS_KEY": SECRET_KEY}


def _minio(tool: Path, port: int, directory: Path) -> tuple[list[str], dict[str, str]]:
    return [str(tool), "server", "--quiet", "--address", f"127.0.0.1:{port}", str(directory / "data")], {
        "MINIO_ROOT_USER": ACCESS_KEY,
        "MINIO_ROOT_PASSWORD": SECRET_KEY,
        "MINIO_REGION": REGION,
        "MINIO_BROWSER": "off",
        "MINIO_UPDATE": "off",
        "MINIO_CALLHOME_ENABLE": "off",
    }


def _built_with_the_tests(tool: Path) -> None:
    """`moto` is one of the tests' own requirements."""


TRAITS = {
    "moto": Traits(
        is_atomic=False, keeps_data=False, keeps_uploads=False, is_done_when_answered=True, checks_credentials=False
    ),
    "ministack": Traits(
        is_atomic=True, keeps_data=True, keeps_uploads=False, is_done_when_answered=True, checks_credentials=False
    ),
    "versitygw": Traits(
        is_atomic=True, keeps_data=True, keeps_uploads=True, is_done_when_answered=False, checks_credentials=True
    ),
    "minio": Traits(
        is_atomic=True, keeps_data=True, keeps_uploads=True, is_done_when_answered=True, checks_credentials=True
    ),
}
RECIPES = {
    "moto": Recipe(lambda: Path(sys.executable), _built_with_the_tests, _moto),
    "ministack": Recipe(lambda: SERVERS / "ministack" / "bin" / "ministack", _pip_install, _ministack),
    "versitygw": Recipe(lambda: _bin(VERSITYGW), lambda tool: _go_install(VERSITYGW, tool), _versitygw),
    "minio": Recipe(lambda: _bin(MINIO), lambda tool: _go_install(MINIO, tool), _minio),
}
NAMES = tuple(RECIPES)
SLOW_TO_BUILD = ("versitygw", "minio")


def parameters(*names: str) -> list[Any]:
    """The servers as pytest parameters; those that take minutes to build carry the mark `stores`."""
    return [pytest.param(name, marks=[pytest.mark.stores] if name in SLOW_TO_BUILD else []) for name in names or NAMES]


@dataclass
class Server:
    """One server and the address it keeps for life; the process changes with every restart."""

    name: str
    directory: Path
    port: int
    process: subprocess.Popen[bytes]
    buckets: int = 0

    @property
    def traits(self) -> Traits:
        return TRAITS[self.name]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def storage_options(self) -> dict[str, Any]:
        """What pandas and s3fs take."""
        return {
            "key": ACCESS_KEY,
            "secret": SECRET_KEY,
            "endpoint_url": self.endpoint,
            "client_kwargs": {"region_name": REGION},
        }

    def make_bucket(self, name: str | None = None) -> str:
        """A new bucket, by a counted name unless told."""
        self.buckets += 1
        bucket = name or f"bucket-{self.buckets}"
        with client(self.endpoint) as s3:
            s3.create_bucket(Bucket=bucket)
        return bucket

    def kill(self) -> None:
        """Nothing is flushed, nobody is told (kill -9)."""
        self.process.kill()
        self.process.wait(STOP_SECONDS_MAX)

    def stop(self) -> None:
        """Asks it to end, then kills it."""
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()

    def restart(self) -> None:
        """The same port and the same directory; it is stopped first where it runs."""
        if self.process.poll() is None:
            self.stop()
        self.process = _launch(self.name, self.directory, self.port)


def start(name: str, directory: Path) -> Server:
    """A server that answers; its data and its log lie in the directory."""
    reason = missing(name)
    if reason:
        raise NotHereError(f"{name}: {reason}")
    (directory / "data").mkdir(parents=True, exist_ok=True)
    for attempt in range(1, STARTS_MAX + 1):
        port = free_port()
        try:
            return Server(name, directory, port, _launch(name, directory, port))
        except RuntimeError:
            # Another process may have taken the port between our look and its bind.
            if attempt == STARTS_MAX:
                raise
    raise AssertionError("the last attempt returns or raises")


@contextmanager
def started(name: str, directory: Path) -> Iterator[Server]:
    """A server for the length of a block; the test is skipped when it is not here."""
    try:
        server = start(name, directory)
    except NotHereError as error:
        pytest.skip(str(error))
    try:
        yield server
    finally:
        server.stop()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@cache
def _session() -> Any:
    """Reads the model of the service once: that is most of what a client costs."""
    return botocore.session.Session()


_one_at_a_time = threading.Lock()  # a session makes one client at a time


@contextmanager
def client(endpoint: str, secret: str = SECRET_KEY, read_seconds_max: float = 20) -> Iterator[Any]:
    """A plain client that tries once."""
    config = botocore.config.Config(retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=read_seconds_max)
    with _one_at_a_time:
        s3 = _session().create_client(
            "s3", REGION, endpoint_url=endpoint, aws_access_key_id=ACCESS_KEY, aws_secret_access_key=secret,
            config=config,
        )  # fmt: skip
    try:
        yield s3
    finally:
        s3.close()


def _launch(name: str, directory: Path, port: int) -> subprocess.Popen[bytes]:
    recipe = RECIPES[name]
    command, settings = recipe.command(recipe.tool(), port, directory)
    # Nothing of ours: no credentials, no proxy, no user's configuration.
    environment = {"PATH": os.environ["PATH"], "HOME": str(directory), "TMPDIR": str(directory), **settings}
    log = directory / "server.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", RUN, str(os.getpid()), *command],
            cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        _wait_until_it_answers(name, process, port, log)
    except BaseException:
        process.kill()
        process.wait(STOP_SECONDS_MAX)
        raise
    return process


def _wait_until_it_answers(name: str, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    with client(f"http://127.0.0.1:{port}") as s3:
        while time.monotonic() < deadline:
            try:
                process.wait(POLL_SECONDS)
                break
            except subprocess.TimeoutExpired:
                pass
            try:
                s3.list_buckets()
            except (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError):
                continue
            return
    state = "ended" if process.poll() is not None else f"did not answer in {START_SECONDS_MAX:.0f} s"
    raise RuntimeError(f"{name} {state}; its log ends:\n{log.read_text(errors='replace')[-2000:]}")


# -- the command -------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> None:
    verb, *rest = arguments
    if verb == "build":
        for name in rest or NAMES:
            reason = build(name)
            print(f"{name}: {reason or 'ready'}", flush=True)
    elif verb == "serve":
        serve()


def serve() -> None:
    """Every server there is, until Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ExitStack() as running, tempfile.TemporaryDirectory() as place, suppress(KeyboardInterrupt):
        for name in NAMES:
            reason = build(name)
            if reason:
                print(f"{name}: {reason}", flush=True)
                continue
            server = start(name, Path(place) / name)
            running.callback(server.stop)
            print(f"{name}: s3://{server.make_bucket()} {server.storage_options}", flush=True)
        if HDFS.exists():
            # It prints its own address, and stops when its input ends.
            cluster = subprocess.Popen([sys.executable, str(HDFS)], stdin=subprocess.PIPE)
            running.callback(_end_input, cluster)
        signal.pause()
    print("stopped", flush=True)


def _end_input(process: subprocess.Popen[bytes]) -> None:
    try:
        process.communicate(timeout=CLUSTER_STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_SECONDS_MAX)


if __name__ == "__main__":
    main(sys.argv[1:])
