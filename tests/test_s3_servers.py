"""What txsink relies on in an S3 server, shown with plain clients, and where the servers differ.

A server that changes one of these with an upgrade fails here, before it fails somewhere else in a strange way.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import select
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from botocore.exceptions import ClientError
from s3fs import S3FileSystem

import s3_servers
from s3_servers import NAMES, TRAITS, Server, client, parameters, started

MIB = 1 << 20
IF_ABSENT = {"IfNoneMatch": "*"}
RACERS = 16
# 20 MB takes minutes: TXSINK_RACE_BYTES=20000000 TXSINK_RACE_KEYS=40
RACE_KEYS = int(os.environ.get("TXSINK_RACE_KEYS", "5"))
RACE_BYTES = int(os.environ.get("TXSINK_RACE_BYTES", "1000"))


class Staged(NamedTuple):
    """A multipart upload that has its parts and is not complete."""

    key: str
    upload_id: str
    etags: tuple[str, ...]

    @property
    def parts(self) -> dict[str, Any]:
        return {"Parts": [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(self.etags, 1)]}


class Bucket:
    """A bucket, and what is tried on it: every answer is an HTTP status."""

    def __init__(self, s3: Any, name: str) -> None:
        self.s3 = s3
        self.name = name

    def status(self, operation: str, **arguments: Any) -> int:
        try:
            answer = getattr(self.s3, operation)(**{"Bucket": self.name, **arguments})
        except ClientError as error:
            return status_of(error)
        return int(answer["ResponseMetadata"]["HTTPStatusCode"])

    def put(self, key: str, data: bytes = b"x", **conditions: Any) -> int:
        return self.status("put_object", Key=key, Body=data, **conditions)

    def stage(self, key: str, *parts: bytes, **arguments: Any) -> Staged:
        upload_id = self.s3.create_multipart_upload(Bucket=self.name, Key=key, **arguments)["UploadId"]
        etags = [self.part(key, upload_id, number, data) for number, data in enumerate(parts, 1)]
        return Staged(key, upload_id, tuple(etags))

    def part(self, key: str, upload_id: str, number: int, data: bytes) -> str:
        answer = self.s3.upload_part(Bucket=self.name, Key=key, UploadId=upload_id, PartNumber=number, Body=data)
        return str(answer["ETag"])

    def complete(self, staged: Staged, **conditions: Any) -> int:
        return self.status(
            "complete_multipart_upload", Key=staged.key, UploadId=staged.upload_id, MultipartUpload=staged.parts,
            **conditions,
        )  # fmt: skip

    def abort(self, staged: Staged) -> int:
        return self.status("abort_multipart_upload", Key=staged.key, UploadId=staged.upload_id)

    def delete(self, key: str) -> int:
        return self.status("delete_object", Key=key)

    def read(self, key: str, **arguments: Any) -> bytes | None:
        try:
            return bytes(self.s3.get_object(Bucket=self.name, Key=key, **arguments)["Body"].read())
        except self.s3.exceptions.NoSuchKey:
            return None

    def keys(self, **arguments: Any) -> list[str]:
        found = self.s3.list_objects_v2(Bucket=self.name, **arguments)
        return [one["Key"] for one in found.get("Contents", [])]

    def uploads(self, prefix: str) -> list[str]:
        found = self.s3.list_multipart_uploads(Bucket=self.name, Prefix=prefix)
        return sorted(one["Key"] for one in found.get("Uploads", []))

    def head(self, key: str) -> Any:
        return self.s3.head_object(Bucket=self.name, Key=key)


def status_of(error: ClientError) -> int:
    return int(error.response["ResponseMetadata"]["HTTPStatusCode"])


def md5(data: bytes) -> bytes:
    return hashlib.md5(data).digest()


@pytest.fixture(params=parameters())
def server(request: pytest.FixtureRequest, s3_server: Callable[[str], Server]) -> Server:
    return s3_server(request.param)


@pytest.fixture
def bucket(server: Server) -> Iterator[Bucket]:
    with client(server.endpoint) as s3:
        yield Bucket(s3, server.make_bucket())


# -- where all agree ---------------------------------------------------------------------------------------


def test_put_if_absent_takes_the_first_and_refuses_the_second_with_412(bucket: Bucket) -> None:
    assert bucket.put("k", b"first", **IF_ABSENT) == 200
    assert bucket.put("k", b"second", **IF_ABSENT) == 412
    assert bucket.read("k") == b"first"


def test_put_if_match_takes_the_known_and_refuses_the_changed(bucket: Bucket) -> None:
    bucket.put("k", b"1")
    known = bucket.head("k")["ETag"]
    assert bucket.put("k", b"2", IfMatch=known) == 200
    assert bucket.put("k", b"3", IfMatch=known) == 412
    assert bucket.put("none", b"3", IfMatch=known) == 404
    assert bucket.read("k") == b"2"


def test_nobody_sees_a_staged_upload_until_it_is_complete(bucket: Bucket) -> None:
    staged = bucket.stage("d/k", b"data")
    assert bucket.read("d/k") is None
    assert bucket.keys(Prefix="d/") == []
    assert bucket.complete(staged, **IF_ABSENT) == 200
    assert bucket.read("d/k") == b"data"
    assert bucket.keys(Prefix="d/") == ["d/k"]


def test_complete_if_absent_refuses_with_412_and_keeps_both_the_object_and_the_upload(bucket: Bucket) -> None:
    bucket.put("k", b"theirs")
    staged = bucket.stage("k", b"mine")
    assert bucket.complete(staged, **IF_ABSENT) == 412
    assert bucket.read("k") == b"theirs"
    assert bucket.complete(staged) == 200
    assert bucket.read("k") == b"mine"


def test_complete_with_an_altered_part_is_refused_with_400_and_the_upload_stays(bucket: Bucket) -> None:
    staged = bucket.stage("k", b"old")
    new = bucket.part("k", staged.upload_id, 1, b"new")
    assert bucket.complete(staged) == 400
    assert bucket.complete(staged._replace(etags=(new,))) == 200
    assert bucket.read("k") == b"new"


def test_an_aborted_upload_never_makes_an_object(bucket: Bucket) -> None:
    staged = bucket.stage("k", b"data")
    assert bucket.abort(staged) == 204
    assert bucket.complete(staged, **IF_ABSENT) in {404, 500}
    assert bucket.complete(staged) in {404, 500}
    assert bucket.read("k") is None


def test_abort_of_a_completed_upload_keeps_the_object(bucket: Bucket) -> None:
    staged = bucket.stage("k", b"data")
    assert bucket.complete(staged) == 200
    assert bucket.abort(staged) in {204, 404}
    assert bucket.read("k") == b"data"


def test_the_parts_of_a_completed_upload_cannot_be_listed(bucket: Bucket) -> None:
    staged = bucket.stage("k", b"data")
    assert bucket.status("list_parts", Key="k", UploadId=staged.upload_id) == 200
    bucket.complete(staged)
    assert bucket.status("list_parts", Key="k", UploadId=staged.upload_id) == 404


def test_etags_are_the_md5_of_a_part_and_of_all_parts(bucket: Bucket) -> None:
    parts = b"a" * 5 * MIB, b"b"
    staged = bucket.stage("k", *parts)
    assert staged.etags == tuple(f'"{md5(part).hex()}"' for part in parts)
    assert bucket.complete(staged) == 200
    assert bucket.head("k")["ETag"] == f'"{md5(b"".join(map(md5, parts))).hex()}-2"'
    bucket.put("p", b"a")
    assert bucket.head("p")["ETag"] == f'"{md5(b"a").hex()}"'


def test_a_single_part_may_be_empty(bucket: Bucket) -> None:
    assert bucket.complete(bucket.stage("k", b""), **IF_ABSENT) == 200
    assert bucket.head("k")["ContentLength"] == 0
    assert bucket.read("k") == b""


def test_a_suffix_range_of_a_small_object_is_all_of_it(bucket: Bucket) -> None:
    bucket.put("k", b"abc")
    expected = {2: ("bytes 1-2/3", b"bc"), 3: ("bytes 0-2/3", b"abc"), 9: ("bytes 0-2/3", b"abc")}
    for last, answer in expected.items():
        found = bucket.s3.get_object(Bucket=bucket.name, Key="k", Range=f"bytes=-{last}")
        assert (found["ContentRange"], found["Body"].read()) == answer


def test_a_range_from_the_start_of_an_empty_object_is_416_and_a_suffix_is_empty(bucket: Bucket) -> None:
    bucket.put("k", b"")
    assert bucket.status("get_object", Key="k", Range="bytes=0-9") == 416
    assert bucket.read("k", Range="bytes=-9") == b""


def test_metadata_comes_back_with_every_read_and_its_names_in_lower_case(bucket: Bucket) -> None:
    expected = {"write-id": "Ab c"}
    bucket.put("p", b"data", Metadata={"Write-Id": "Ab c"})
    bucket.complete(bucket.stage("m", b"data", Metadata={"Write-Id": "Ab c"}))
    for key in ("p", "m"):
        assert bucket.head(key)["Metadata"] == expected
        assert bucket.s3.get_object(Bucket=bucket.name, Key=key, Range="bytes=-2")["Metadata"] == expected


def test_keys_are_listed_in_the_order_of_their_bytes_and_from_any_of_them(bucket: Bucket) -> None:
    keys = sorted(("u/Z", "u/a", "u/é a+b&c;d'%20", "u/日本", "u/\U0001f701", "u/_x=1", "u/.h"), key=str.encode)
    for key in reversed(keys):
        assert bucket.put(key, b"x", **IF_ABSENT) == 200
    assert bucket.keys(Prefix="u/") == keys
    assert bucket.keys(Prefix="u/", StartAfter="u/Z", MaxKeys=2) == ["u/_x=1", "u/a"]


def test_what_is_absent_is_404_and_deleting_it_is_204(bucket: Bucket) -> None:
    assert bucket.status("head_object", Key="k") == 404
    assert bucket.status("get_object", Key="k", Range="bytes=-9") == 404
    assert bucket.delete("k") == 204
    missing = {"Bucket": "no-such-bucket", "Key": "k"}
    assert bucket.status("put_object", **missing, Body=b"") == 404
    assert bucket.status("create_multipart_upload", **missing) == 404


def test_s3fs_tells_a_lost_race_by_the_status_of_the_cause_on_every_server(server: Server) -> None:
    """Its exception types differ: FileExistsError here, OSError there."""
    bucket = server.make_bucket()
    s3 = S3FileSystem(**server.storage_options, skip_instance_cache=True, use_listings_cache=False)
    s3.pipe_file(f"{bucket}/k", b"first", mode="create")
    with pytest.raises(OSError, match=r".") as lost:
        s3.pipe_file(f"{bucket}/k", b"second", mode="create")
    assert isinstance(lost.value.__cause__, ClientError)
    assert status_of(lost.value.__cause__) == 412


def test_another_s3fs_completes_what_one_staged(server: Server) -> None:
    bucket = server.make_bucket()
    options = {**server.storage_options, "skip_instance_cache": True, "use_listings_cache": False}
    one, other = S3FileSystem(**options), S3FileSystem(**options)
    handle = one.open(f"{bucket}/k", "wb", autocommit=False)
    handle.write(b"data")
    handle.close()
    token = {"UploadId": handle.mpu["UploadId"], "MultipartUpload": {"Parts": handle.parts}}
    assert not other.exists(f"{bucket}/k")
    other.call_s3("complete_multipart_upload", Bucket=bucket, Key="k", **token, **IF_ABSENT)
    assert other.cat_file(f"{bucket}/k") == b"data"


# -- where they differ -------------------------------------------------------------------------------------


def complete_twice(bucket: Bucket) -> int:
    staged = bucket.stage("k", b"data")
    bucket.complete(staged)
    return bucket.complete(staged)


def complete_twice_if_absent(bucket: Bucket) -> int:
    staged = bucket.stage("k", b"data")
    bucket.complete(staged, **IF_ABSENT)
    return bucket.complete(staged, **IF_ABSENT)


def complete_again_after_the_object_was_deleted(bucket: Bucket) -> tuple[int, bool]:
    staged = bucket.stage("k", b"data")
    bucket.complete(staged)
    bucket.delete("k")
    return bucket.complete(staged, **IF_ABSENT), bucket.read("k") is not None


def complete_after_abort(bucket: Bucket) -> int:
    staged = bucket.stage("k", b"data")
    bucket.abort(staged)
    return bucket.complete(staged)


def complete_after_abort_when_others_made_the_object(bucket: Bucket) -> tuple[int, bytes | None]:
    staged = bucket.stage("k", b"mine")
    bucket.abort(staged)
    bucket.put("k", b"theirs")
    return bucket.complete(staged, **IF_ABSENT), bucket.read("k")


def abort_twice(bucket: Bucket) -> int:
    staged = bucket.stage("k", b"data")
    bucket.abort(staged)
    return bucket.abort(staged)


def complete_of_no_parts(bucket: Bucket) -> int:
    return bucket.complete(bucket.stage("k"))


def complete_of_two_small_parts(bucket: Bucket) -> int:
    return bucket.complete(bucket.stage("k", b"1", b"2"))


def suffix_of_an_empty_object(bucket: Bucket) -> int:
    bucket.put("k", b"")
    return bucket.status("get_object", Key="k", Range="bytes=-9")


def below_an_object(bucket: Bucket) -> tuple[int, int]:
    bucket.put("a", b"x")
    return bucket.put("a/b", b"x"), bucket.put("a/b", b"x", **IF_ABSENT)


def above_an_object(bucket: Bucket) -> tuple[int, int]:
    bucket.put("a/b", b"x")
    return bucket.put("a", b"x"), bucket.put("a", b"x", **IF_ABSENT)


def uploads_of_a_key(bucket: Bucket) -> list[str]:
    return stage_three(bucket).uploads("d/k")


def uploads_of_a_directory(bucket: Bucket) -> list[str]:
    return stage_three(bucket).uploads("d/")


def uploads_of_the_bucket(bucket: Bucket) -> list[str]:
    return stage_three(bucket).uploads("")


def stage_three(bucket: Bucket) -> Bucket:
    for key in ("d/k", "d/k2", "e"):
        bucket.stage(key, b"data")
    return bucket


def by_server(moto: Any, ministack: Any, versitygw: Any, minio: Any) -> dict[str, Any]:
    return dict(zip(NAMES, (moto, ministack, versitygw, minio), strict=True))


ALL_THREE = ["d/k", "d/k2", "e"]
DIFFERENCES: dict[Callable[[Bucket], Any], dict[str, Any]] = {
    complete_twice: by_server(200, 200, 200, 404),
    complete_twice_if_absent: by_server(200, 200, 200, 412),
    # 200 and no object: what "complete" answers proves nothing, look at the object.
    complete_again_after_the_object_was_deleted: by_server((500, False), (200, False), (404, False), (404, False)),
    complete_after_abort: by_server(500, 404, 404, 404),
    # 200 for an upload that is no more, because there is an object: whoever made it.
    complete_after_abort_when_others_made_the_object: by_server(
        (412, b"theirs"), (404, b"theirs"), (200, b"theirs"), (412, b"theirs")
    ),
    abort_twice: by_server(404, 404, 404, 204),
    complete_of_no_parts: by_server(400, 200, 400, 400),
    complete_of_two_small_parts: by_server(400, 200, 400, 400),
    suffix_of_an_empty_object: by_server(200, 206, 200, 206),
    # Directories on a disk: 409 for ever, not the 409 of a race that one may try again.
    below_an_object: by_server((200, 412), (200, 412), (409, 409), (200, 412)),
    above_an_object: by_server((200, 412), (200, 412), (409, 409), (200, 412)),
    # MinIO finds uploads by the exact key, and by no prefix at all until it is restarted.
    uploads_of_a_key: by_server(["d/k", "d/k2"], ["d/k", "d/k2"], ["d/k", "d/k2"], ["d/k"]),
    uploads_of_a_directory: by_server(["d/k", "d/k2"], ["d/k", "d/k2"], ["d/k", "d/k2"], []),
    uploads_of_the_bucket: by_server(ALL_THREE, ALL_THREE, ALL_THREE, ALL_THREE),
}


def test_a_wrong_secret_is_refused_where_the_traits_say_so(server: Server, bucket: Bucket) -> None:
    with client(server.endpoint, secret="not-the-secret") as s3:
        status = Bucket(s3, bucket.name).put("k")
    assert status == (403 if server.traits.checks_credentials else 200)


@pytest.mark.parametrize("observe", DIFFERENCES, ids=lambda observe: observe.__name__)
def test_servers_differ_as_they_did(server: Server, bucket: Bucket, observe: Callable[[Bucket], Any]) -> None:
    assert observe(bucket) == DIFFERENCES[observe][server.name]


# -- many at once ------------------------------------------------------------------------------------------


class Contest(NamedTuple):
    """What each racer was answered for each key, and what the key then held."""

    statuses: list[list[int]]  # by key
    held: list[bytes | None]


def content(who: int, key: int) -> bytes:
    return f"{who} {key} ".encode().ljust(RACE_BYTES, b".")


def _put(bucket: Bucket, kind: str, who: int, barrier: Barrier) -> list[int]:
    answers = []
    for key in range(RACE_KEYS):
        data = content(who, key)
        name = f"{kind}/{key}"
        condition: dict[str, str] = dict(IF_ABSENT)
        staged = None
        if kind == "replace":
            condition = {"IfMatch": bucket.head(name)["ETag"]}
        elif kind == "complete" or (kind == "either" and who % 2):
            staged = bucket.stage(name, data)
        barrier.wait(timeout=120)
        answers.append(bucket.complete(staged, **condition) if staged else bucket.put(name, data, **condition))
    return answers


CONTESTS = ("put", "complete", "either", "replace")


def _race(endpoint: str, name: str, who: int, barrier: Barrier, question: Connection) -> None:
    with client(endpoint) as s3:
        bucket = Bucket(s3, name)
        question.send({kind: _put(bucket, kind, who, barrier) for kind in CONTESTS})


@pytest.fixture(scope="module")
def contests(s3_server: Callable[[str], Server]) -> Callable[[str], dict[str, Contest]]:
    """All contests on a server, held once."""
    results: dict[str, dict[str, Contest]] = {}

    def held(name: str) -> dict[str, Contest]:
        if name not in results:
            results[name] = hold(s3_server(name))
        return results[name]

    return held


def hold(server: Server) -> dict[str, Contest]:
    name = server.make_bucket()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest", "s3_servers", "txsink.store.local.store"])
    barrier = context.Barrier(RACERS)
    running, answers = [], []
    with client(server.endpoint) as s3:
        bucket = Bucket(s3, name)
        for key in range(RACE_KEYS):
            bucket.put(f"replace/{key}", b"before")
        for who in range(RACERS):
            answer, question = context.Pipe(duplex=False)
            process = context.Process(target=_race, args=(server.endpoint, name, who, barrier, question))
            process.start()
            question.close()  # so that a process that dies ends the wait for its answer
            running.append(process)
            answers.append(answer)
        try:
            said = [answer.recv() for answer in answers]
        finally:
            for process, answer in zip(running, answers, strict=True):
                answer.close()
                process.join()
        return {
            kind: Contest(
                [[one[kind][key] for one in said] for key in range(RACE_KEYS)],
                [bucket.read(f"{kind}/{key}") for key in range(RACE_KEYS)],
            )
            for kind in CONTESTS
        }


@pytest.mark.parametrize("kind", CONTESTS)
@pytest.mark.parametrize("name", parameters(*(name for name in NAMES if TRAITS[name].is_atomic)))
def test_of_sixteen_processes_at_once_one_wins_each_key(
    contests: Callable[[str], dict[str, Contest]], name: str, kind: str
) -> None:
    held = contests(name)
    contest = held[kind]
    for key, statuses in enumerate(contest.statuses):
        assert Counter(statuses)[200] == 1, Counter(statuses)
        assert set(statuses) <= {200, 409, 412}, Counter(statuses)
        assert contest.held[key] == content(statuses.index(200), key)
    # Without a real race nothing was shown.
    assert len({statuses.index(200) for one in held.values() for statuses in one.statuses if 200 in statuses}) > 1


@pytest.mark.parametrize("name", parameters(*(name for name in NAMES if TRAITS[name].is_atomic)))
def test_many_that_complete_one_upload_leave_it_whole(s3_server: Callable[[str], Server], name: str) -> None:
    """Some are told 404 or 412. On versitygw some are told 200 while another is still at it and may yet fail."""
    server = s3_server(name)
    data = bytes(range(256)) * (40 * MIB // 256)
    with ExitStack() as clients:
        racers = [Bucket(clients.enter_context(client(server.endpoint)), "") for _ in range(4)]
        racers[0].name = server.make_bucket()
        staged = racers[0].stage("k", data)
        barrier = threading.Barrier(len(racers))

        def complete(racer: Bucket) -> tuple[int, int]:
            racer.name = racers[0].name
            barrier.wait(timeout=60)
            return racer.complete(staged, **IF_ABSENT), racer.status("head_object", Key="k")

        with ThreadPoolExecutor(len(racers)) as pool:
            answers = list(pool.map(complete, racers))
        said = {status for status, _ in answers}
        assert 200 in said
        assert said <= {200, 404, 412}
        if server.traits.is_done_when_answered:
            assert {there for status, there in answers if status == 200} == {200}
        assert racers[0].read("k") == data


# -- killed servers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", parameters())
def test_what_survives_kill_9_is_what_the_traits_say(tmp_path: Path, name: str) -> None:
    with started(name, tmp_path) as server, client(server.endpoint) as s3:
        bucket = Bucket(s3, server.make_bucket())
        bucket.put("k", b"data", Metadata={"write-id": "1"})
        staged = bucket.stage("d/k", b"a" * 5 * MIB, b"b", Metadata={"write-id": "2"})
        server.kill()
        server.restart()
        assert bucket.status("get_object", Key="k") == (200 if server.traits.keeps_data else 404)
        if server.traits.keeps_data:
            assert bucket.read("k") == b"data"
            assert bucket.head("k")["Metadata"] == {"write-id": "1"}
        if server.traits.keeps_uploads:
            assert bucket.uploads("d/k") == ["d/k"]
            # MinIO lists a bucket's uploads from memory.
            assert bucket.uploads("") == ([] if name == "minio" else ["d/k"])
            assert bucket.complete(staged, **IF_ABSENT) == 200
            assert bucket.read("d/k") == b"a" * 5 * MIB + b"b"
            assert bucket.head("d/k")["Metadata"] == {"write-id": "2"}
        else:
            assert bucket.complete(staged, **IF_ABSENT) in {404, 500}


@pytest.mark.stores
def test_versitygw_forgets_an_upload_whose_complete_was_killed_and_still_answers_200(tmp_path: Path) -> None:
    """It renames the upload first; what a kill leaves then counts as another's complete that is still at it."""
    with started("versitygw", tmp_path) as server, client(server.endpoint) as s3:
        bucket = Bucket(s3, server.make_bucket())
        staged = bucket.stage("k", b"data")
        server.kill()
        (upload,) = (tmp_path / "data").rglob(staged.upload_id)
        etag = f"{md5(md5(b'data')).hex()}-1"
        upload.rename(upload.with_name(f"{staged.upload_id}.{etag}.inprogress"))
        server.restart()
        assert bucket.complete(staged, **IF_ABSENT) == 200
        assert bucket.read("k") is None
        assert bucket.status("list_parts", Key="k", UploadId=staged.upload_id) == 404
        assert bucket.uploads("") == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux tells a process that its parent ended")
@pytest.mark.parametrize("name", ["moto", "ministack"])
def test_a_server_dies_with_the_process_that_started_it(tmp_path: Path, name: str) -> None:
    if reason := s3_servers.missing(name):
        pytest.skip(f"{name}: {reason}")
    program = "import sys, s3_servers, pathlib\n"
    program += "server = s3_servers.start(sys.argv[1], pathlib.Path(sys.argv[2]))\n"
    program += "print(server.process.pid, flush=True)\nsys.stdin.read()"
    command = [sys.executable, "-c", program, name, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parent) as parent:
        assert parent.stdout is not None
        server = os.pidfd_open(int(parent.stdout.readline()))
        try:
            parent.kill()
            ended, _, _ = select.select([server], [], [], 60)
        finally:
            os.close(server)
    assert ended, "it lives on"


# -- what is not there -------------------------------------------------------------------------------------


@pytest.fixture
def nothing_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(s3_servers, "SERVERS", tmp_path / "servers")
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", ["ministack", "versitygw", "minio"])
def test_a_server_that_is_not_built_is_a_skip_that_says_how(nothing_built: Path, name: str) -> None:
    with pytest.raises(pytest.skip.Exception, match=f"{name}: it is not built: make servers"):  # noqa: SIM117
        with started(name, nothing_built):
            raise AssertionError


@pytest.mark.parametrize("name", ["versitygw", "minio"])
def test_without_go_the_build_says_so_and_so_does_the_skip(nothing_built: Path, name: str) -> None:
    assert s3_servers.build(name) == "it is built by Go, and go is not installed: apt-get install golang-go"
    with pytest.raises(s3_servers.NotHereError, match="go is not installed"):
        s3_servers.start(name, nothing_built)


def test_a_fetch_that_fails_says_where_its_log_is_and_leaves_nothing(
    nothing_built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert s3_servers.build("ministack") == "false could not fetch or build it, see build-ministack.log"
    assert sorted(path.name for path in (nothing_built / "servers").iterdir()) == [
        "build-ministack.log",
        "ministack.missing",
    ]


def test_a_server_that_ends_at_once_is_a_failure_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = s3_servers.RECIPES["moto"]._replace(
        command=lambda tool, port, directory: ([str(tool), "-c", "raise SystemExit('no disk')"], {})
    )
    monkeypatch.setitem(s3_servers.RECIPES, "moto", recipe)
    with pytest.raises(RuntimeError, match=r"moto ended; its log ends:\nno disk"):
        s3_servers.start("moto", tmp_path)
