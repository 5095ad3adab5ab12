"""A table on S3 under faults: of the network, of the server, of the writer, and of whoever set the bucket up.

What must hold after each: a call that succeeded told the truth; one that failed says UnavailableError only when
nothing had happened, OutcomeUnknownError otherwise; a program that opens the writer again and finishes its work has
every row once (I1), by the log and by the directory, and no upload is left (I9).

The matrix breaks each request of each step, in each way. It prints how many faults it planned and delivered; a run
that delivered fewer fails. versitygw and MinIO disagree on lost answers, so both are asked; the other ways they share
between them, but for the ledger.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import botocore.session
import pytest

import ledger
import txsink
from killed_s3 import POINTS, ROWS, TWO_FILES, Doomed
from s3_proxy import (
    Fault,
    Proxy,
    delay,
    deliver_twice,
    fail_after,
    lose_answer,
    lose_request,
    proxied,
    slow_down,
    tear_answer,
)
from s3_servers import ACCESS_KEY, REGION, SECRET_KEY, Server, client, started
from tally import Tally
from test_table_s3 import Lake, bucket_of, prepare, put
from txsink.cli.main import main
from txsink.environment import Stamps, stamps
from txsink.errors import CorruptError, InvalidRequestError, OutcomeUnknownError, TxsinkError, UnavailableError
from txsink.reading.table import open_log
from txsink.store.opening import open_store
from txsink.store.protocol import StorageOptions
from txsink.store.s3.store import S3Store
from txsink.writing.opening import open_sink
from txsink.writing.transaction import new_stager

pytestmark = pytest.mark.stores
COUNT = itertools.count(1)
SERVERS = ("versitygw", "minio")

# A request that the proxy holds costs the read time-out; one that fails for ever, the deadline.
HASTY: dict[str, Any] = {"config_kwargs": {"connect_timeout": 2, "read_timeout": 0.4}}
PATIENT = {**HASTY, "deadline_seconds": 20}
IMPATIENT = {**HASTY, "deadline_seconds": 0.5}  # only where the server is away, or a slower plan follows


def unhurried() -> Stamps:
    """A clock that moves on when it is asked: a look at the log is good for a second, however busy the machine is."""
    return stamps()._replace(now_ms=itertools.count(stamps().now_ms()).__next__)


@cache
def direct(options: str) -> S3Store:
    """What looks and tidies up, past the proxy."""
    return cast("S3Store", open_store("s3://any-bucket", json.loads(options)))


class Ground(Lake):
    """A table of one writer, whose epoch 0 has two rows in two files."""

    files: ClassVar[dict[str, Any]] = TWO_FILES

    def __init__(self, server: Server, bucket: str = "") -> None:
        bucket = bucket or bucket_of(server.endpoint, server.make_bucket)
        super().__init__(server, f"/{bucket}/faults {next(COUNT)}/täble")
        self.first = ROWS[0]  # what is left of epoch 0 in the end

    def quiet(self) -> txsink.Writer:
        """A new run, over the store that nobody breaks."""
        store = direct(json.dumps(self.server.storage_options))
        return open_sink(store, stamps(), self.uri, "w", dict(self.files))

    def table(self) -> txsink.Table:
        return open_log(direct(json.dumps(self.server.storage_options)), stamps(), self.uri)

    def epochs(self) -> tuple[int | None, list[int]]:
        """The last one committed, and those pending."""
        table = self.table()
        return table.writers()["w"].last_epoch, [one.epoch for one in table.pending()]

    def begin(self) -> txsink.Writer:
        sink = self.quiet()
        put(sink, 0, *ROWS[0])
        return sink

    def stage_orphan(self, sink: txsink.Writer) -> None:
        stager = new_stager(sink, 1)
        stager.write({"id": [99]})
        assert len(stager.finish()) == 1

    def finish(self) -> None:
        """What a program does that starts anew: it recovers, and writes what is not committed."""
        with self.quiet() as sink:
            for epoch in range(-1 if sink.last_epoch is None else sink.last_epoch, 2):
                put(sink, epoch + 1, *ROWS.get(epoch + 1, [5]))

    def check(self) -> None:
        """Every row once, nothing left."""
        assert self.rows() == self.seen() == [*self.first, 3, 4, 5]
        assert self.uploads() == []
        assert [one.kind for one in self.table().history()].count("commit") == 3


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, s3_server: Callable[[str], Server]) -> Server:
    return s3_server(request.param)


@pytest.fixture
def ground(server: Server) -> Ground:
    return Ground(server)


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with proxied(server) as made:
        yield made


@pytest.fixture
def own(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ground]:
    """A table on a server of its own, which may be killed; by name."""
    with started(request.param, tmp_path) as server:
        yield Ground(server)


def on(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("own", names, indirect=True)


# -- the matrix -------------------------------------------------------------------------------------------


class Case:
    """One fault at one request of one step: the table, the door that is broken, and what the step begins with."""

    ground_kind: type[Ground] = Ground

    def __init__(self, server: Server, proxy: Proxy, options: dict[str, Any]) -> None:
        self.ground, self.proxy = self.ground_kind(server), proxy
        self._options = {**proxy.storage_options, **options}
        self.txn: txsink.Transaction | None = None

    def open(self) -> txsink.Writer:
        options = StorageOptions.of(self._options)
        store, files = open_store(self.ground.uri, options), dict(self.ground.files)
        return open_sink(store, unhurried(), self.ground.uri, "w", {**files, "storage_options": options})

    def stage(self) -> None:
        assert self.txn is not None
        self.txn.add(self.txn.stager().stage({"id": ROWS[1]}))

    def prepare(self) -> None:
        assert self.txn is not None
        self.txn.prepare()

    def commit(self) -> None:
        assert self.txn is not None
        self.txn.commit()

    def abort(self) -> None:
        assert self.txn is not None
        self.txn.abort()

    # What is there before the step.

    def begun(self) -> None:
        self.ground.begin().close()
        self.txn = self.open().begin(1)

    def staged(self) -> None:
        self.begun()
        self.stage()

    def prepared(self) -> None:
        self.staged()
        self.prepare()

    def replacing(self) -> None:
        """An overwrite is prepared whose publish deletes the two files of epoch 0."""
        self.ground.begin().close()
        self.ground.first = []
        self.txn = self.open().begin(1, mode="overwrite")
        self.txn.add(self.txn.stager().stage({"id": ROWS[1]}))
        self.prepare()

    def left(self) -> None:
        """A run died that had staged a file."""
        self.ground.stage_orphan(self.ground.begin())

    def waiting(self) -> None:
        """A run died that had prepared an epoch."""
        prepare(self.ground.begin(), 1, *ROWS[1])


class Step(NamedTuple):
    """One step of a writer's life, and what is so when it says that it succeeded."""

    ready: Callable[[Case], None]
    act: Callable[[Case], object]
    epochs: tuple[int, list[int]]


STEPS = {
    "stage": Step(Case.begun, Case.stage, (0, [])),
    "prepare": Step(Case.staged, Case.prepare, (0, [1])),
    "publish and commit": Step(Case.prepared, Case.commit, (1, [])),
    "publish an overwrite": Step(Case.replacing, Case.commit, (1, [])),
    "abort": Step(Case.prepared, Case.abort, (0, [])),
    "open and claim": Step(Case.left, Case.open, (0, [])),
    "recover": Step(Case.waiting, Case.open, (1, [])),
}
READS = {"GET", "HEAD"}
# Once: the client asks again. For ever: it gives up, and has to say what it knows.
ONCE: dict[str, Callable[[int], Fault]] = {
    "answer lost": lose_answer,
    "answer torn": tear_answer,
    "reset in the middle": lose_request,
    "500 after": fail_after,
    "503 before": slow_down,
    "late": delay,
    "very late": delay,
    "twice": deliver_twice,
}
SHARING = ("minio", "versitygw")
FOR_EVER: dict[str, Callable[[int], Fault]] = {
    "answers lost": partial(lose_answer, times=0),
    "503 from then on": partial(slow_down, times=0),
}


@pytest.mark.parametrize("name", STEPS)
def test_any_one_request_of_a_step_may_fail_and_the_step_succeeds(
    server: Server, proxy: Proxy, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """F22, I1, I3, I5, I9, I14: also when the request arrives after all, before or after the writer is opened again."""
    with capsys.disabled():
        failed = run_all(server, proxy, name, is_once=True)
    assert not failed


@pytest.mark.parametrize("name", STEPS)
def test_from_any_request_of_a_step_on_all_may_fail_and_the_error_says_what_is_known(
    server: Server, proxy: Proxy, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """F22, I1, I3, I9, I11."""
    with capsys.disabled():
        failed = run_all(server, proxy, name, is_once=False)
    assert failed


def is_its_turn(server: str, number: int) -> bool:
    """Whether a server has a share in the fault: all of them have, but for the two that take longest."""
    return server not in SHARING or ledger.is_full() or number % len(SHARING) == SHARING.index(server)


def is_all_one(method: str, kind: str) -> bool:
    """To a question, whether its answer comes late or very late; to a change, how its answer is lost."""
    return kind == ("very late" if method in READS else "answer torn")


def run_all(
    server: Server,
    proxy: Proxy,
    name: str,
    *,
    is_once: bool,
    kind_of_case: type[Case] = Case,
    steps: dict[str, Step] = STEPS,
    skipped: Callable[[str, str], bool] = is_all_one,
    store: str = "S3",
) -> int:
    """Break every request of the step in each way that is this server's; how many calls failed, which is no failure."""
    faults, options = (ONCE, PATIENT) if is_once else (FOR_EVER, IMPATIENT)
    methods = methods_of(kind_of_case(server, proxy, PATIENT), steps[name])
    plan = [
        (call, kind)
        for call, method in enumerate(methods, 1)
        for number, kind in enumerate(faults, call)
        if not skipped(method, kind) and ("lost" in kind or is_its_turn(server.name, number))
    ]
    tally = Tally(f"requests of {name}, {server.name}", store, planned=Counter(f"request: {kind}" for _, kind in plan))
    failed = 0
    for call, kind in plan:
        try:
            slower = [{**options, "deadline_seconds": options["deadline_seconds"] * times} for times in (1, 4, 16)]
            cases = (kind_of_case(server, proxy, given) for given in slower)
            failed += break_one(cases, steps[name], faults[kind](call), kind)
        except (AssertionError, TxsinkError) as error:
            told = [f"{one.operation} {one.path[-30:]} {one.fault} {one.statuses}" for one in proxy.requests]
            error.args = (f"{kind}, at request {call} of {name!r}: {error}", *told)
            raise
        tally.delivered[f"request: {kind}"] += 1
    assert tally.planned == tally.delivered
    assert len(plan) * len(SHARING) >= len(methods) > 0
    tally.tell(calls_told_of_an_error=failed)
    return failed


def methods_of(case: Case, step: Step) -> list[str]:
    """The requests that the step makes when nothing is broken."""
    step.ready(case)
    case.proxy.plan()
    step.act(case)
    return [one.method for one in case.proxy.requests]


def break_one(cases: Iterator[Case], step: Step, fault: Fault, kind: str) -> bool:
    """Whether the call failed; in the first case whose deadline lets the fault have its turn."""
    error: TxsinkError | None = None
    for case in cases:
        ground, proxy = case.ground, case.proxy
        proxy.plan()
        try:
            step.ready(case)
        except UnavailableError as slow:  # a busy machine: even this passes the shortest deadline
            error = slow
            continue
        before = ground.epochs()
        proxy.plan(fault)
        done, error = None, None
        try:
            done = step.act(case)
        except (UnavailableError, OutcomeUnknownError) as raised:
            error = raised
        if error is None or proxy.delivered:
            break
    else:
        raise AssertionError(f"no deadline was long enough: {error}")
    proxy.check_delivered()
    # What the call said is so.
    found = ground.epochs()
    if error is None:
        assert found == step.epochs
        assert not isinstance(done, txsink.Writer) or ground.table().writers()["w"].run == done.run
    elif isinstance(error, UnavailableError):
        # Opening is several calls: what it had recovered stays so when it cannot sweep.
        assert found == before or (step.act is Case.open and found == step.epochs)
    if kind != "very late":
        proxy.release()
        proxy.plan()
    if isinstance(error, UnavailableError) and step.act in {Case.prepare, Case.commit, Case.abort}:
        # As it advises; on a slow machine a deadline as short as this may pass again.
        for _ in range(9):
            with suppress(UnavailableError, OutcomeUnknownError):
                step.act(case)
                break
        assert ground.epochs() == step.epochs
    ground.finish()
    proxy.release()
    ground.quiet().close()  # what came very late is swept by the next run
    ground.check()
    return error is not None


# -- kill -9 ----------------------------------------------------------------------------------------------


@pytest.fixture
def credentials(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    give(server, monkeypatch)


def give(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials for other programs, by the environment."""
    given = server.storage_options
    for name, value in (
        ("AWS_ACCESS_KEY_ID", given["key"]),
        ("AWS_SECRET_ACCESS_KEY", given["secret"]),
        ("AWS_ENDPOINT_URL_S3", given["endpoint_url"]),
        ("AWS_DEFAULT_REGION", REGION),
        ("PYTHONPATH", os.pathsep.join(sys.path)),
    ):
        monkeypatch.setenv(name, value)


# What the log and the directory have of epoch 1 just after, and what the next run does with it.
AFTER_KILL = {
    "before a part is sent": (False, 0, []),
    "between two files": (False, 0, []),
    "staged": (False, 0, []),
    "prepared": (True, 0, [1]),
    "half published": (True, 1, [1]),
    "published": (True, 2, [1]),
    "committed": (False, 2, []),
}


@pytest.mark.usefixtures("credentials")
@pytest.mark.parametrize("point", POINTS)
def test_a_writer_that_is_killed_leaves_what_the_next_one_finishes_or_drops(ground: Ground, point: str) -> None:
    """I1, I3, I9, I12."""
    command = [sys.executable, str(Path(__file__).with_name("killed_s3.py")), ground.uri, point]
    child = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert child.stdout == "committed 0\n"
    is_pending, published, committed = AFTER_KILL[point]
    assert ground.epochs() == (1 if point == "committed" else 0, [1] if is_pending else [])
    assert ground.seen() == [*ROWS[0], *ROWS[1][:published]]
    with ground.quiet() as sink:
        assert sink.recovered == (committed, [], None)
        assert ground.uploads() == []
    ground.finish()
    ground.check()


@on(*SERVERS)
@pytest.mark.parametrize("point", POINTS)
def test_a_server_that_is_killed_at_any_point_and_started_again_has_lost_nothing(own: Ground, point: str) -> None:
    """I1, I3, I11."""
    # Long enough for a busy machine to answer before the kill; after it, one call waits that long.
    store = Doomed(open_store(own.uri, {**own.options, **HASTY, "deadline_seconds": 5}))
    sink = open_sink(store, stamps(), own.uri, "w", dict(TWO_FILES))
    put(sink, 0, *ROWS[0])
    store.doom(*POINTS[point], own.server.kill)
    txn, error = sink.begin(1), None
    try:
        txn.write({"id": ROWS[1]})
        txn.commit()
    except (UnavailableError, OutcomeUnknownError) as raised:
        error = raised
    own.server.restart()
    is_pending = AFTER_KILL[point][0]
    assert own.epochs() == (1 if point == "committed" else 0, [1] if is_pending else [])
    assert (error is None) is (point == "committed")
    assert not isinstance(error, UnavailableError) or point != "published"  # the commit entry may have landed
    own.finish()
    if own.server.name == "minio" and not is_pending:
        assert own.rows() == own.seen() == [1, 2, 3, 4, 5]  # it lists no upload of before it was started
    else:
        own.check()
    assert own.table().verify(deep=True) == []


@on(*SERVERS)
def test_a_writer_outlives_a_server_that_is_away_for_a_while(own: Ground) -> None:
    """I14: it says where it asked and for how long; the same object goes on afterwards."""
    sink = own.writer()
    put(sink, 0, *ROWS[0])
    txn = sink.begin(1)
    txn.write({"id": ROWS[1]})
    txn.prepare()
    own.server.stop()
    away = {**own.options, **IMPATIENT}
    with pytest.raises(UnavailableError, match=rf"did not answer .* within 0\.5 s, {own.server.endpoint}\).*Retry wh"):
        txsink.open_writer(own.uri, "w", storage_options=away)
    with pytest.raises(UnavailableError, match="did not answer"):
        txsink.open_table(own.uri, storage_options=away)
    own.server.restart()
    txn.commit()
    put(sink, 2, 5)
    own.check()


@on("ministack")
def test_uploads_that_a_server_lost_are_corruption_that_names_the_epoch_which_can_be_written_again(
    own: Ground, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It keeps pending uploads in memory alone."""
    prepare(own.begin(), 1, *ROWS[1])
    own.server.kill()
    own.server.restart()
    with pytest.raises(CorruptError, match=r"epoch 1 of 'w': its staged file is absent.*txsink abort") as caught:
        own.writer()
    assert caught.value.context["epoch"] == 1
    assert (own.seen(), own.epochs()) == (ROWS[0], (0, [1]))
    give(own.server, monkeypatch)
    assert main(["abort", own.uri, "w", "1", "--yes"]) == 0
    assert "aborted" in capsys.readouterr().out
    own.finish()
    own.check()


@on("versitygw")
def test_a_server_that_was_killed_while_it_completed_an_upload_is_not_believed(own: Ground, tmp_path: Path) -> None:
    """I6: it says that the upload is complete, and has no object. Nothing is committed; an abort clears the way."""
    sink = own.begin()
    prepare(sink, 1, *ROWS[1])
    (pending,) = sink.log.state.pending
    upload = sink.log.prepare_entry(pending.prepared).uploads[0]
    own.server.kill()
    (directory,) = (tmp_path / "data").rglob(upload.id)
    digest = f"{hashlib.md5(b''.join(map(bytes.fromhex, upload.parts))).hexdigest()}-{len(upload.parts)}"
    directory.rename(directory.with_name(f"{upload.id}.{digest}.inprogress"))
    own.server.restart()
    with pytest.raises(UnavailableError, match="said that its upload is complete, but there is no such object"):
        own.writer()
    assert own.epochs() == (0, [1])
    with own.writer(recover=False) as again:
        again.abort(1)
    own.finish()
    own.check()


# -- what the user reads ----------------------------------------------------------------------------------


def refused(ground: Ground, kind: type[TxsinkError], words: str, uri: str = "", **options: Any) -> None:
    """Opening, and a single write, are refused in these words, which hold no secret."""
    # A refusal is told at once; only what is tried again takes the deadline.
    given = {**ground.options, "deadline_seconds": 20, **options}
    for act in (
        lambda: txsink.open_writer(uri or ground.uri, "w", storage_options=given),
        lambda: txsink.write(uri or ground.uri, {"id": [9]}, writer="w", epoch=9, storage_options=given),
    ):
        with pytest.raises(kind, match=words) as caught:
            act()
        assert type(caught.value) is kind
        assert str(given.get("secret", "none")) not in str(caught.value) + repr(caught.value)


def test_a_missing_bucket_and_credentials_that_are_not_accepted_are_told(ground: Ground) -> None:
    ground.begin().close()
    refused(ground, InvalidRequestError, "there is no such bucket .*Create the bucket", "s3://no-such-bucket/t")
    refused(ground, InvalidRequestError, "credentials are not accepted .*valid credentials", secret="not-the-secret")
    refused(ground, InvalidRequestError, "credentials are not accepted .*valid credentials", key="nobody")
    assert ground.rows() == ground.seen() == ROWS[0]


def test_a_store_that_throttles_is_told_with_the_number_of_attempts(ground: Ground, proxy: Proxy) -> None:
    proxy.plan(slow_down(1, times=0))
    # Long enough for a second attempt on a busy machine.
    words = r"the store is throttling \(503 SlowDown, [1-9]\d* attempts within 4 s, .*Retry when"
    refused(ground, UnavailableError, words, endpoint_url=proxy.endpoint, deadline_seconds=4)
    assert ground.names() == []


READING = ("s3:GetObject", "s3:ListBucket", "s3:ListBucketMultipartUploads")


def reading(bucket: str) -> dict[str, Any]:
    """A policy that lets one read and list."""
    (get, *lists), resource = READING, f"arn:aws:s3:::{bucket}"
    statements = [{"Action": [get], "Resource": [f"{resource}/*"]}, {"Action": lists, "Resource": [resource]}]
    return {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", **one} for one in statements]}


def anonymous(server: Server, bucket: str) -> dict[str, Any]:
    """Whoever comes without a key may read the bucket."""
    given = reading(bucket)
    for statement in given["Statement"]:
        statement["Principal"] = "*"
    with client(server.endpoint) as s3:
        s3.put_bucket_policy(Bucket=bucket, Policy=json.dumps(given))
    return {"anon": True, "endpoint_url": server.endpoint, "client_kwargs": {"region_name": REGION}}


def temporary(server: Server, bucket: str) -> dict[str, Any]:
    """Credentials of a session, with its token."""
    if server.name == "versitygw":
        pytest.skip("versitygw gives no temporary credentials")
    options = {"endpoint_url": server.endpoint, "aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY}
    sts = botocore.session.Session().create_client("sts", REGION, **options)
    role = {"RoleArn": "arn:aws:iam::000000000000:role/any", "RoleSessionName": "reader", "DurationSeconds": 900}
    given = sts.assume_role(**role, Policy=json.dumps(reading(bucket)))["Credentials"]
    sts.close()
    keys = {"key": given["AccessKeyId"], "secret": given["SecretAccessKey"], "token": given["SessionToken"]}
    return {**server.storage_options, **keys}


@pytest.mark.parametrize("reader", [anonymous, temporary])
def test_who_may_only_read_reads_and_is_told_which_rights_writing_takes(
    server: Server, reader: Callable[[Server, str], dict[str, Any]]
) -> None:
    ground = Ground(server, server.make_bucket())
    ground.begin().close()
    given = reader(server, ground.bucket)
    table = txsink.open_table(ground.uri, storage_options=given)
    assert sorted(table.to_arrow()["id"].to_pylist()) == ROWS[0]
    ground.options, ours = given, ground.options
    refused(ground, UnavailableError, "access is denied .*Grant s3:GetObject, PutObject, DeleteObject, AbortMultipart")
    ground.options = ours
    assert ground.epochs() == (0, [])
    assert ground.seen() == ROWS[0]
