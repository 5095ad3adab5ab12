"""The S3 store behind a proxy that breaks any one of its requests: what it says is true, nothing is lost or twice."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import pytest

from contract_store import MIB, contents
from s3_proxy import (
    Fault,
    delay,
    deliver_twice,
    fail_after,
    lose_answer,
    lose_request,
    proxied,
    slow_down,
    tear_answer,
)
from s3_servers import Server
from txsink.store.opening import open_store
from txsink.store.protocol import Store
from txsink.store.s3.store import S3Store

DATA = bytes(9 * MIB)  # two parts
FAULTS: dict[str, Callable[[int], Fault]] = {
    "lose_answer": lose_answer,
    "fail_after": fail_after,
    "tear_answer": tear_answer,
    "deliver_twice": deliver_twice,
    "lose_request": lose_request,
    "slow_down": slow_down,
    "delay": functools.partial(delay, after=1, hangs=False),
}


class Said(NamedTuple):
    """What the store answered."""

    created: bool | None
    completed: bool
    cancelled: bool
    deleted: bool


def opened(options: dict[str, Any]) -> S3Store:
    return cast("S3Store", open_store("s3://any-bucket", {**options, "deadline_seconds": 30}))


def run(store: S3Store, root: str) -> Said:
    """Every verb that changes something, and what reads what it has made."""
    created = store.put_if_absent(f"{root}/log/0", b"entry", "id")
    assert store.read(f"{root}/log/0", 99) == b"entry"
    output = store.create(f"{root}/f")
    output.write(DATA)
    upload = output.seal()
    assert upload is not None
    assert store.parts(f"{root}/f", upload.id) == upload.parts
    completed = store.complete(f"{root}/f", upload)
    tail = store.tail(f"{root}/f", 8)
    assert tail is not None
    assert (tail.bytes, tail.data) == (len(DATA), bytes(8))
    output = store.create(f"{root}/g")
    output.write(b"dropped")
    dropped = output.seal()
    assert dropped is not None
    cancelled = store.cancel(f"{root}/g", dropped.id)
    assert store.complete(f"{root}/g", dropped) is False
    store.replace(f"{root}/state", b"2", "id")
    store.put_hint(f"{root}/gone", b"3", "id")
    deleted = store.delete(f"{root}/gone")
    assert store.list(root) == ["f", "log/0", "state"]
    return Said(created, completed, cancelled, deleted)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ministack", "lose_answer"),  # the others give it nothing new to do, and it is slow
        *(pytest.param(name, kind, marks=pytest.mark.stores) for name in ("versitygw", "minio") for kind in FAULTS),
    ],
)
def test_any_one_request_may_fail_and_all_is_told_as_it_is(
    s3_server: Callable[[str], Server], name: str, kind: str
) -> None:
    """F22, I11, I14: crash or fault at the 1st, 2nd, 3rd … request, until a run has fewer."""
    server = s3_server(name)
    direct, bucket = opened(server.storage_options), server.make_bucket()
    lost_beginnings = 0
    with proxied(server) as proxy:
        store = opened(proxy.storage_options)
        for call in itertools.count(1):
            root = f"/{bucket}/{call}"
            proxy.plan(FAULTS[kind](call))
            said = run(store, root)
            if len(proxy.requests) < call:
                break
            proxy.check_delivered()
            proxy.release()
            broken = next(request for request in proxy.requests if request.fault)
            check(direct, root, said, broken.operation, is_unclear=kind not in {"lose_request", "slow_down"})
            orphans = direct.uploads(root)
            assert not orphans or broken.operation == "CreateMultipartUpload"
            lost_beginnings += len(orphans)
        assert said == Said(created=True, completed=True, cancelled=True, deleted=True)
        assert call > 15
    assert (lost_beginnings > 0) is (kind not in {"lose_request", "slow_down"})


def check(direct: Store, root: str, said: Said, operation: str, *, is_unclear: bool) -> None:
    """The content is exact; what was done is denied only where the answer was lost, or the request was repeated."""
    assert contents(direct, root) == {"f": DATA, "log/0": b"entry", "state": b"2"}
    may_be_denied = {
        "PutObject": {"created"},
        "CompleteMultipartUpload": {"completed"},
        "AbortMultipartUpload": {"cancelled"},
        "DeleteObject": set(),
    }
    denied = {field for field, answer in said._asdict().items() if answer is not True}
    if operation == "CompleteMultipartUpload" or is_unclear:
        denied -= may_be_denied.get(operation, set())
    assert not denied
