"""A forked child has all that its parent opened, and takes nothing of it away, whichever way it ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from place import Place, prepared, rows, staged_files
from seen import rows_of
from txsink.errors import InvalidRequestError
from txsink.writing.transaction import Transaction
from txsink.writing.writer import Writer

LEFT, REFUSED, ENDED = 3, 4, 5


def in_child(act: Callable[[], object]) -> int:
    """The exit code of a forked process that does it: as a program in a pool does, it leaves by what comes up."""
    child = os.fork()
    if not child:
        try:
            act()
        except InvalidRequestError as error:
            os._exit(REFUSED if "of which this one is a fork" in str(error) else 1)
        except KeyError:
            os._exit(LEFT)
        except BaseException:  # noqa: BLE001 -- pytest is not to go on in this process
            os._exit(1)
        os._exit(ENDED)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("table_layout", ["parquet", "delta"])
@pytest.mark.parametrize("is_large", [False, True])
def test_a_child_that_leaves_by_an_exception_deletes_nothing_of_its_parent(
    place: Place, table_layout: str, is_large: bool
) -> None:
    """I8, I15: staged rows in files and buffers, through `with`, `abort` and `close`."""
    count = 300_000 if is_large else 3
    sink = place.sink(layout=table_layout, row_group_rows=1000)
    with sink, sink.begin(0) as txn:
        txn.write(pa.table({"id": range(count)}))
        txn.add(txn.stager().stage(rows(-1)))

        def leave() -> None:
            with sink, txn:
                raise KeyError

        assert in_child(leave) == LEFT
        assert in_child(sink.close) == ENDED
    assert rows_of(place.path) == [-1, *range(count)] if table_layout == "parquet" else txn.outcome == "committed"
    assert sorted(place.table().to_arrow()["id"].to_pylist()) == [-1, *range(count)]


VERBS: dict[str, Callable[[Writer, Transaction], object]] = {
    "write": lambda sink, txn: txn.write(rows(9)),
    "add": lambda sink, txn: txn.add([]),
    "prepare": lambda sink, txn: txn.prepare(),
    "commit a transaction": lambda sink, txn: txn.commit(),
    "abort a transaction": lambda sink, txn: txn.abort(),
    "begin": lambda sink, txn: sink.begin(7),
    "commit": lambda sink, txn: sink.commit(0),
    "abort": lambda sink, txn: sink.abort(0),
    "recover": lambda sink, txn: sink.recover(),
    "sweep": lambda sink, txn: sink.sweep(),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_child_is_refused_every_verb_and_its_parent_goes_on(place: Place, verb: str) -> None:
    """I10."""
    sink = place.sink()
    prepared(sink, 0, rows(0))
    txn = sink.begin(1)
    txn.write(rows(1))
    assert in_child(lambda: VERBS[verb](sink, txn)) == REFUSED
    txn.commit()
    sink.close()
    assert (rows_of(place.path), staged_files(place)) == ([0, 1], [])


def test_data_that_forks_while_it_is_written_and_fails_in_the_child_takes_no_file_of_the_parent(place: Place) -> None:
    def batches(ends: list[int]) -> Iterator[Any]:
        yield pa.record_batch({"id": range(20_000)})
        child = os.fork()
        if not child:
            message = "the child fails"
            raise KeyError(message)
        ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        yield pa.record_batch({"id": range(20_000, 20_003)})

    sink, ends, parent = place.sink(row_group_rows=1000), list[int](), os.getpid()
    txn = sink.begin(0)
    try:
        txn.add(txn.stager().stage(batches(ends)))
    except KeyError:
        os._exit(LEFT if os.getpid() != parent else 1)
    txn.commit()
    assert ends == [LEFT]
    assert rows_of(Path(place.path)) == [*range(20_003)]
