"""A secret in storage_options reaches the store and the workers, and nothing else: a canary tells where it went."""

from __future__ import annotations

import io
import logging
import pickle
import pprint
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

import txsink
from txsink.errors import TxsinkError, UnavailableError
from txsink.options import Options
from txsink.store.memory import MemoryStore
from txsink.store.protocol import StorageOptions

CANARY = "canary-4f1b"
OPTIONS = {"secret": CANARY, "client_kwargs": {"nested": [CANARY]}}
ROWS = {"id": [1, 2]}


class Vault(MemoryStore):
    """A store that opens for those who know the secret."""

    opened = 0
    is_down = False

    def __init__(self, uri: str, options: dict[str, object]) -> None:
        if options != OPTIONS:
            raise UnavailableError(f"open {uri}", "the credentials are wrong", "Give the right ones")
        super().__init__()
        type(self).opened += 1

    def resolve(self, uri: str) -> str:
        return super().resolve(uri.replace("s3://", "memory://"))

    def put_if_absent(self, path: str, data: bytes, token: str) -> bool | None:
        if self.is_down:
            raise UnavailableError(f"write {path}", "the vault is down", "Retry")
        return super().put_if_absent(path, data, token)


@pytest.fixture(autouse=True)
def vault(monkeypatch: pytest.MonkeyPatch) -> type[Vault]:
    """Stands for S3; its files are nobody else's."""
    kind = type("Vault", (Vault,), {})
    monkeypatch.setitem(sys.modules, "txsink.store.s3.store", SimpleNamespace(S3Store=kind))
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    return kind


@pytest.fixture
def uri() -> str:
    return "s3://lake/T"


def texts(thing: object) -> str:
    """Every text of a thing that people and tools print."""
    return "\n".join([repr(thing), str(thing), f"{thing}", pprint.pformat(thing), f"{[thing]!r}"])


def texts_of(error: BaseException) -> str:
    """Everything an error says, to whoever looks at it, here or where it was sent."""
    trace = "".join(traceback.format_exception(error))
    more = [repr(error.args), repr(vars(error)), repr(pickle.dumps(error)), trace]
    return "\n".join([texts(error), *more, repr(getattr(error, "context", None))])


def opened(uri: str, **options: Any) -> txsink.Writer:
    return txsink.open_writer(uri, "w", storage_options=dict(OPTIONS), **options)


def test_the_canary_is_seen_where_nothing_hides_it() -> None:
    """Else its absence below would prove nothing."""
    assert CANARY in texts(dict(OPTIONS))
    assert CANARY in texts_of(ValueError(OPTIONS))


def test_the_text_of_the_options_is_their_names() -> None:
    hidden = StorageOptions.of(dict(OPTIONS))
    assert repr(hidden) == "StorageOptions(client_kwargs, secret)"
    assert hidden == OPTIONS
    assert StorageOptions.of(hidden) is hidden
    assert type(pickle.loads(pickle.dumps(hidden))) is StorageOptions
    assert CANARY not in texts(hidden)


def test_what_a_program_holds_in_its_hands_says_nothing(uri: str, vault: type[Vault]) -> None:
    with opened(uri) as sink, sink.begin(0, parts=1) as txn:
        stager = txn.stager(0)
        staged = stager.stage(ROWS)
        txn.add(staged)
        by_hand = txsink.Stager(**{name: getattr(stager, name) for name in stager.__struct_fields__})
        held = [sink, sink.settings, txn, stager, by_hand, staged, sink.recovered, sink.log.store]
    table = txsink.open_table(uri, storage_options=dict(OPTIONS))
    held += [txn.result(), table, table._repr_html_(), table.files(), table.history(), table.log]
    held += [Options(storage_options=StorageOptions.of(dict(OPTIONS)))]
    assert CANARY not in "\n".join(map(texts, held))
    assert vault.opened == 3, "nobody was let in"


def test_a_stager_takes_the_options_to_its_worker_and_brings_nothing_back(uri: str) -> None:
    with opened(uri) as sink, sink.begin(0) as txn:
        sent = pickle.dumps(txn.stager())
        assert CANARY.encode() in sent, "a worker could not stage without it"
        stager: txsink.Stager = pickle.loads(sent)
        assert CANARY not in texts(stager)
        staged = stager.stage(ROWS)
        assert CANARY.encode() not in pickle.dumps(staged)
        assert CANARY not in repr([one.to_dict() for one in staged])
        txn.add(staged)
    assert CANARY.encode() not in pickle.dumps(txn.result())
    assert txsink.open_table(uri, storage_options=dict(OPTIONS)).to_arrow().num_rows == 2


def test_a_stager_made_by_hand_of_plain_options_hides_them(uri: str) -> None:
    with opened(uri) as sink:
        stager = sink.begin(0).stager()
        plain: dict[str, Any] = {name: getattr(stager, name) for name in stager.__struct_fields__}
    stager = txsink.Stager(**{**plain, "storage_options": dict(OPTIONS)})
    assert CANARY not in texts(stager)


def test_a_two_phase_sink_and_its_state_say_nothing(uri: str) -> None:
    for guarantee in ("exactly-once", "at-most-once"):
        sink = txsink.ParquetFileSink(f"{uri}-{guarantee}", "w", guarantee=guarantee, storage_options=dict(OPTIONS))
        sink.write(ROWS)
        state = sink.snapshot_state(1)
        sink.notify_checkpoint_complete(1)
        assert CANARY not in texts(sink) + texts(state) + repr(pickle.dumps(state)) + repr(vars(sink))
        sink.close()


def test_nothing_that_is_stored_holds_it(uri: str) -> None:
    with opened(uri, partition_by=["id"]) as sink:
        for epoch in range(20):
            with sink.begin(epoch, metadata={"offset": epoch}) as txn:
                txn.write({"id": [epoch % 3], "x": [1]})
        sink.begin(20).stager().stage({"id": [1], "x": [1]})  # and one that is only staged
        files: dict[str, io.BytesIO] = MemoryFileSystem.store
        stored = {name: file.getvalue() for name, file in files.items()}
    assert len([name for name in stored if "/_txsink/log/" in name]) > 20
    assert len([name for name in stored if name.endswith(".parquet")]) > 20
    assert [name for name, data in stored.items() if CANARY.encode() in name.encode() + data] == []


def test_no_logger_hears_of_it(uri: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        test_a_stager_takes_the_options_to_its_worker_and_brings_nothing_back(uri)
        test_a_two_phase_sink_and_its_state_say_nothing(uri)
        with pytest.raises(TxsinkError):
            opened(uri, partition_by=["other"])
    assert caplog.records, "nothing was logged, so nothing was shown"
    assert CANARY not in "\n".join(
        f"{record.getMessage()} {record.args} {record.exc_text}" for record in caplog.records
    )


# -- errors -------------------------------------------------------------------------------------------------


def fenced(uri: str) -> None:
    old = opened(uri)
    opened(uri).close()
    old.begin(0).prepare()


def unavailable(uri: str) -> None:
    sink = opened(uri)
    sink.log.store.is_down = True  # type: ignore[attr-defined]
    sink.begin(0).prepare()


def lost(uri: str) -> None:
    with opened(uri) as sink:
        txn = sink.begin(0)
        txn.write(ROWS)
        txn._stager and txn._stager.finish()
        txn.add(txn.stager().stage(ROWS))
        for name in [name for name in MemoryFileSystem.store if name.endswith(".parquet")]:
            del MemoryFileSystem.store[name]
        txn.prepare()


def torn(uri: str) -> None:
    opened(uri).close()
    for file in MemoryFileSystem.store.values():
        file.truncate(5)
    opened(uri)


def stage_elsewhere(uri: str) -> None:
    """The options are of no use to the store."""
    with opened(uri) as sink:
        stager = sink.begin(0).stager()
        given: dict[str, Any] = {name: getattr(stager, name) for name in stager.__struct_fields__}
        txsink.Stager(**{**given, "uri": "memory://x"}).stage(ROWS)


WRONG: dict[str, Any] = {
    "a string": CANARY,
    "a list": [CANARY],
    "pairs": [("secret", CANARY)],
    "bytes": CANARY.encode(),
    "a name that is no string": {5: CANARY},
    "another secret": {**OPTIONS, "secret": f"{CANARY}-another"},
}
FAILURES: dict[str, Callable[[str], object]] = {
    "fenced": fenced,
    "unavailable": unavailable,
    "lost": lost,
    "torn": torn,
    "stage elsewhere": stage_elsewhere,
    "unknown option": lambda uri: opened(uri, stroage_options={"secret": CANARY}),
    "wrong option": lambda uri: opened(uri, merge_schema="yes"),
    "wrong stage option": lambda uri: opened(uri, compression_level="high"),
    "wrong name": lambda uri: txsink.write(uri, ROWS, writer="", epoch=0, storage_options=dict(OPTIONS)),
    "wrong epoch": lambda uri: txsink.write(uri, ROWS, writer="w", epoch=-1, storage_options=dict(OPTIONS)),
    "wrong data": lambda uri: txsink.write(uri, {"id": object()}, writer="w", epoch=0, storage_options=dict(OPTIONS)),
    "no table": lambda uri: txsink.open_table(uri, storage_options=dict(OPTIONS)),
    "unserved scheme": lambda uri: txsink.open_writer("gs://b/t", "w", storage_options=dict(OPTIONS)),
    "options of no use": lambda uri: txsink.open_writer("memory://t", "w", storage_options=dict(OPTIONS)),
    "secret in the path": lambda uri: txsink.open_writer(f"s3://key:{CANARY}@bucket/t", "w"),
    "secret in the path of a table": lambda uri: txsink.open_table(f"s3://key:{CANARY}@bucket/t"),
    "two-phase": lambda uri: txsink.ParquetFileSink(uri, "w", recover=True, storage_options=dict(OPTIONS)),
    **{
        f"write with {name}": lambda uri, value=value: txsink.write(  # type: ignore[misc]
            uri, ROWS, writer="w", epoch=0, storage_options=value
        )
        for name, value in WRONG.items()
    },
    **{
        f"open a table with {name}": lambda uri, value=value: txsink.open_table(  # type: ignore[misc]
            uri, storage_options=value
        )
        for name, value in WRONG.items()
    },
    **{
        f"two-phase with {name}": lambda uri, value=value: txsink.ParquetFileSink(  # type: ignore[misc]
            uri, "w", storage_options=value
        )
        for name, value in WRONG.items()
    },
}


@pytest.mark.parametrize("name", FAILURES)
def test_no_error_says_it_here_or_elsewhere(name: str, uri: str) -> None:
    with pytest.raises(TxsinkError) as caught:
        FAILURES[name](uri)
    error: BaseException | None = caught.value
    while error is not None:
        assert CANARY not in texts_of(error)
        error = error.__cause__ or error.__context__


# Where what is given is no options at all, whoever shows local variables shows it.
MISPLACED = {"unknown option", "secret in the path", "secret in the path of a table"}
GIVEN_RIGHT = [name for name in FAILURES if name not in MISPLACED and (" with " not in name or "another" in name)]


@pytest.mark.parametrize("name", GIVEN_RIGHT)
def test_no_local_variable_of_ours_shows_it(name: str, uri: str) -> None:
    """Tools that report errors print the variables of every frame."""
    with pytest.raises(TxsinkError) as caught:
        FAILURES[name](uri)
    trace = traceback.walk_tb(caught.value.__traceback__)
    engine = str(Path(txsink.__file__).parent)
    frames = [frame for frame, _ in trace if frame.f_code.co_filename.startswith(engine)]
    assert frames
    assert CANARY not in "\n".join(repr(frame.f_locals) for frame in frames)
