"""The Delta layout on S3, where it is the default: its contracts, a table's life, what it costs, and who reads it.

`moto` and `ministack` run with every `make test`; versitygw and MinIO, which take minutes to build, with the mark
`stores`. Faults and kills stand in test_delta_faults_s3.py.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import deltalake
import pytest

import txsink
from contract_delta import DeltaContract, DeltaSite, ObjectContract, Opened
from s3_proxy import Proxy, proxied
from s3_servers import SECRET_KEY, Server, parameters
from test_table_s3 import ESCAPED, Lake, bucket_of, opened_once, options_of, prepare, put, put_rows, stage_only
from txsink import paths
from txsink.delta import checkpoints as delta_upkeep
from txsink.errors import CorruptError, UnavailableError
from txsink.log import log
from txsink.store.opening import open_store
from txsink.store.s3.store import S3Store
from txsink.writing import writer as writers

COUNT = itertools.count(1)
GET, PUT, LIST = "GetObject", "PutObject", "ListObjectsV2"
on_all = pytest.mark.parametrize("server", parameters(), indirect=True)
on_three = pytest.mark.parametrize("server", parameters("ministack", "versitygw", "minio"), indirect=True)


@pytest.fixture
def server(request: pytest.FixtureRequest, s3_server: Callable[[str], Server]) -> Server:
    return s3_server(request.param)


@pytest.fixture
def root(server: Server) -> str:
    """A directory that nobody has used."""
    return f"/{bucket_of(server.endpoint, server.make_bucket)}/delta {next(COUNT)}/Grüße % +&@#?/a table"


@on_all
class TestPublish(DeltaContract):
    @pytest.fixture
    def site(self, server: Server, root: str) -> DeltaSite:
        return DeltaSite(partial(open_store, "s3://any-bucket", options_of(server)), root, f"s3:/{root}")


@on_all
class TestObject(ObjectContract):
    @pytest.fixture
    def opened(self, server: Server) -> Opened:
        return partial(opened_once, json.dumps(options_of(server)), 1)

    @pytest.fixture
    def root(self, root: str) -> str:
        return root


# -- a table's whole life ---------------------------------------------------------------------------------


class DeltaLake(Lake):
    """A table of the Delta layout, and what deltalake sees of it."""

    layout = "delta"

    def by_deltalake(self, version: int | None = None) -> Any:
        store = opened_once(json.dumps(self.options), 1)
        told = dict(store.object_store_options(self.root))
        return deltalake.DeltaTable(store.object_store_uri(self.root), version, told)

    def seen(self) -> list[int]:
        return sorted(self.by_deltalake().to_pyarrow_table()["id"].to_pylist())

    def unnamed(self) -> list[str]:
        """Data files that no version of Delta's log names, and marks. What was replaced stays until a VACUUM."""
        facts = self.table().log.facts().to_pylist()
        named = {fact["path"] for fact in facts if fact["kind"] == "add"}
        names = [name for name in self.names() if name.endswith(".parquet") and "_delta_log/" not in name]
        marks = [name for name in self.names() if name.startswith(paths.MARK_DIRECTORY)]
        return sorted({*names, *marks} - named)


@pytest.fixture
def lake(server: Server, root: str) -> DeltaLake:
    return DeltaLake(server, root)


@on_all
def test_a_new_table_on_s3_has_the_delta_layout_and_an_epoch_is_there_once(lake: DeltaLake) -> None:
    given: dict[str, Any] = {"writer": "w", "storage_options": lake.options}
    assert txsink.write(lake.uri, {"id": [1, 2]}, epoch=7, **given).outcome == "committed"
    before = lake.names()
    assert txsink.write(lake.uri, {"id": [3]}, epoch=7, **given).outcome == "already-committed"
    assert lake.table().layout == "delta"
    assert lake.names() == before
    assert lake.rows() == lake.seen() == [1, 2]
    assert (lake.uploads(), lake.unnamed()) == ([], [])


@on_all
def test_a_crash_after_prepare_is_committed_and_what_was_only_staged_goes(lake: DeltaLake) -> None:
    """I9, I15: another writer's files stay."""
    with lake.writer() as sink:
        put(sink, 0, 1)
    stage_only(lake.writer("v"), 0, 50)
    dead = lake.writer()
    prepare(dead, 1, 2, 3)
    stage_only(dead, 2, 99)
    assert lake.rows() == lake.seen() == [1]
    assert len(lake.unnamed()) == 3 + 2
    with lake.writer() as again:
        assert again.recovered == ([1], [], None)
        # The mark stays where files were found: a request of the dead run may be done as late as now.
        assert len(lake.unnamed()) == 1 + 2
    assert lake.rows() == lake.seen() == [1, 2, 3]
    for writer in ("w", "v", "v"):
        lake.writer(writer).close()
    assert lake.unnamed() == []


@on_all
def test_partitions_are_overwritten_and_every_version_stays_readable(lake: DeltaLake) -> None:
    """S3, S5."""
    lake.write(0, {"id": list(range(len(ESCAPED))), "p q": ESCAPED}, partition_by=["p q"])
    at = lake.table().version
    lake.write(1, {"id": [100], "p q": ["a/b"]}, mode="overwrite", partition_overwrite="dynamic")
    expected = [value or None for value in ESCAPED]
    old = lake.table().to_arrow(at).sort_by("id")
    assert old["p q"].to_pylist() == expected
    assert lake.by_deltalake(0).to_pyarrow_table().sort_by("id")["p q"].to_pylist() == expected
    assert lake.rows() == lake.seen() == sorted({*range(len(ESCAPED)), 100} - {ESCAPED.index("a/b")})
    lake.write(2, {"id": [200], "p q": [None]}, mode="overwrite")
    assert lake.rows() == lake.seen() == [200]


@on_all
def test_a_checkpoint_is_made_beside_the_commits_and_the_table_goes_on(
    lake: DeltaLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By single writes as well, none of which makes as many commits."""
    monkeypatch.setattr(delta_upkeep, "EVERY", 4)
    for epoch in range(10):
        lake.write(epoch, {"id": [epoch]}, metadata={"n": epoch})
    made = [name for name in lake.names() if name.endswith(".checkpoint.parquet")]
    assert [name.rpartition("/")[2][:20] for name in made] == ["00000000000000000003", "00000000000000000007"]
    assert lake.rows() == lake.seen() == list(range(10))
    with lake.writer() as sink:
        assert sink.last_epoch == 9
        put(sink, 10, 10, mode="overwrite")
    assert lake.rows() == lake.seen() == [10]
    assert lake.table().to_arrow(3)["id"].to_pylist() == [0]


@on_three
def test_a_file_that_somebody_deleted_is_corruption_that_names_the_epoch(lake: DeltaLake) -> None:
    with lake.writer() as sink:
        put(sink, 6, 1)
    txn = prepare(lake.writer(), 7, 2)
    store = opened_once(json.dumps(lake.options), 1)
    store.delete(f"{lake.root}/{next(name for name in lake.unnamed() if name.endswith('.parquet'))}")
    again = lake.writer
    for act in (again,):
        with pytest.raises(CorruptError, match=r"epoch 7 of 'w': its staged file is absent") as caught:
            act()
        assert caught.value.context["epoch"] == 7
    assert lake.seen() == [1]
    with lake.writer(recover=False) as newer:
        newer.abort(7)
        put(newer, 7, 3)
    assert lake.rows() == lake.seen() == [1, 3]
    with pytest.raises(txsink.FencedError):
        txn.commit()


# -- requests ---------------------------------------------------------------------------------------------


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with proxied(server) as made:
        yield made


OFF_THE_COMMIT_PATH = (f"/{paths.STATE_DIRECTORY}/", f"/{paths.SEGMENT_DIRECTORY}/")


def sent(proxy: Proxy, act: Callable[[], object]) -> list[str]:
    """What arrives while `act` runs, but for what is written once in a while, after the commit."""
    proxy.plan()
    act()
    return [one.operation for one in proxy.requests if not any(part in one.path for part in OFF_THE_COMMIT_PATH)]


# Of both logs: the newest Delta commit is looked for; prepare entry; is the Delta commit before ours still there?;
# ours; did a checkpoint pass it by?; commit entry; hint. And at our own log: after both entries, before publishing.
LOG = [GET, PUT, GET, PUT, GET, PUT, PUT, *[GET] * 3]
A_FILE = [PUT, GET]  # written; looked at before it is named


@on_three
def test_an_epoch_costs_two_requests_a_file_and_ten_for_the_logs_at_any_age(
    lake: DeltaLake, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No listing; the mark once for each run, and looked for once a second."""
    for module, name in ((log, "LOOK_AGE_MS"), (writers, "MARK_AGE_MS")):
        monkeypatch.setattr(module, name, 600_000)  # however slow the machine is, the writer is busy
    lake.options = proxy.storage_options
    one_file = {"id": [1], "day": ["a"]}
    with lake.writer(partition_by=["day"]) as sink:
        first = sent(proxy, partial(put_rows, sink, 0, one_file))
        assert Counter(first) == Counter([PUT, *A_FILE, *LOG]) - Counter([GET])
        for epoch in range(1, 40):  # 80 entries: past the first summary
            assert Counter(sent(proxy, partial(put_rows, sink, epoch, one_file))) == Counter([*A_FILE, *LOG])
        three = {"id": [1, 2, 3], "day": ["a", "b", "c"]}
        assert Counter(sent(proxy, partial(put_rows, sink, 40, three))) == Counter([*A_FILE * 3, *LOG])
        assert Counter(sent(proxy, partial(put_rows, sink, 41, None))) == Counter(LOG)
        txn = sink.begin(42)
        txn.add(txn.stager().stage(one_file))
        assert Counter(sent(proxy, txn.prepare)) == Counter([GET, GET, PUT, GET])
        assert Counter(sent(proxy, txn.commit)) == Counter([GET, PUT, GET, PUT, PUT, GET, GET])
        # What is replaced is neither looked at nor deleted.
        found = sent(proxy, partial(put_rows, sink, 43, one_file, mode="overwrite"))
        assert Counter(found) == Counter([*A_FILE, *LOG])


@on_three
def test_opening_lists_the_marks_alone_and_reads_what_came_since_the_last_checkpoint(
    lake: DeltaLake, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S12."""
    monkeypatch.setattr(delta_upkeep, "EVERY", 8)
    lake.options = proxy.storage_options
    counts = []
    for age in range(3):
        with lake.writer() as sink:
            for epoch in range(16 * age, 16 * age + 16):
                put_rows(sink, epoch, {"id": [epoch]})
            delta_upkeep.finish(sink.publisher.delta)  # type: ignore[attr-defined]
        proxy.plan()
        lake.writer().close()
        counts.append(Counter(one.operation for one in proxy.requests))
        lists = [one.query["prefix"] for one in proxy.requests if one.operation == LIST]
        own, marks = (one for one in lists if "_delta_log" not in one)
        assert own.endswith(f"/{paths.LOG_DIRECTORY}/")  # its names, from its end on
        assert marks.endswith(f"/{paths.MARK_DIRECTORY}/w/")
    # Of Delta's log: deltalake's, from the last checkpoint on, and the names after its end.
    assert counts[0][LIST] == counts[1][LIST] == counts[2][LIST] <= 4
    assert max(sum(one.values()) for one in counts) - min(sum(one.values()) for one in counts) <= 2


# -- secrets ----------------------------------------------------------------------------------------------


@on_three
def test_nothing_that_is_stored_holds_a_secret(lake: DeltaLake, caplog: pytest.LogCaptureFixture) -> None:
    """Entries, commit messages of Delta's log, its checkpoints, data files; nor does a logger hear of one."""
    caplog.set_level("DEBUG", "txsink")
    with lake.writer() as sink:
        put(sink, 0, 1)
        delta_upkeep.checkpoint(sink.publisher.delta)  # type: ignore[attr-defined]
        put(sink, 1, 2)
    store = lake.table().log.store
    names = lake.names()
    assert [name for name in names if "_delta_log/" in name and ".checkpoint" in name]
    assert [name for name in names if name.startswith("_txsink/")]
    for name in names:
        data = store.read(f"{lake.root}/{name}", 1 << 20)
        assert data is not None
        assert SECRET_KEY.encode() not in data, name
    assert SECRET_KEY not in caplog.text


@on_three
def test_what_deltalake_says_of_a_refusal_is_not_repeated(lake: DeltaLake, proxy: Proxy) -> None:
    """Its words may hold what was sent."""
    with lake.writer() as sink:
        put(sink, 0, 1)
        delta_upkeep.checkpoint(sink.publisher.delta)  # type: ignore[attr-defined]
    table = lake.table()
    assert table.delta is not None
    store = cast("S3Store", table.log.store)
    secret = "canary-4f1b"
    told = {**store.object_store_options(lake.root), "aws_secret_access_key": secret, "aws_session_token": secret}
    store.object_store_options = lambda path: told | {"aws_endpoint_url": "http://127.0.0.1:9", "retry_timeout": "1s"}  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(UnavailableError, match="deltalake cannot read it") as caught:
        table.delta.load()
    assert caught.value.__cause__ is None
    text = "\n".join([str(caught.value), repr(caught.value), repr(caught.value.context), repr(table.delta)])
    assert secret not in text
