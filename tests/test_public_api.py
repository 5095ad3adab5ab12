"""The public names and how they are called. A change here is a change for every user."""

from __future__ import annotations

import inspect
from pathlib import Path

import txsink
from txsink.options import Options
from txsink.writing.writer import Writer

FILES = (
    "compression",
    "compression_level",
    "target_file_bytes",
    "row_group_rows",
    "row_group_bytes",
    "file_rows_max",
    "open_partitions_max",
)


def test_the_public_names_are_these() -> None:
    assert sorted(txsink.__all__) == [
        "ConflictError",
        "CorruptError",
        "FencedError",
        "InternalError",
        "InvalidRequestError",
        "OutcomeUnknownError",
        "ParquetFileSink",
        "Result",
        "StageOptions",
        "StagedFile",
        "Stager",
        "Table",
        "Transaction",
        "TwoPhaseCommitSink",
        "TxsinkError",
        "UnavailableError",
        "Writer",
        "__version__",
        "open_table",
        "open_writer",
        "write",
    ]


def test_every_public_name_is_there_and_says_what_it_is() -> None:
    assert [name for name in txsink.__all__ if not inspect.getdoc(getattr(txsink, name))] == []


def test_calls_keep_their_form() -> None:
    forms = {call.__name__: list(inspect.signature(call).parameters) for call in (txsink.write, txsink.open_writer)}
    forms["begin"] = list(inspect.signature(Writer.begin).parameters)
    forms["recover"] = list(inspect.signature(Writer.recover).parameters)
    forms["open_table"] = list(inspect.signature(txsink.open_table).parameters)
    opening, beginning = [*Options.__struct_fields__, *FILES], ["mode", "partition_overwrite", "metadata", "parts"]
    assert forms == {
        "write": ["path", "data", "writer", "epoch", *beginning, *opening],
        "open_writer": ["path", "writer", *opening],
        "begin": ["self", "epoch", *beginning],
        "recover": ["self", "up_to", "on_newer"],
        "open_table": ["path", "storage_options"],
    }


def test_options_keep_their_names() -> None:
    assert Options.__struct_fields__ == (
        "partition_by",
        "layout",
        "types",
        "merge_schema",
        "staging_path",
        "storage_options",
        "run",
        "recover",
    )
    assert txsink.StageOptions.__struct_fields__ == FILES


def test_a_life_cycle_calls_a_target_as_flink_does() -> None:
    steps = ("begin_transaction", "invoke", "pre_commit", "commit", "abort", "recover_and_commit", "recover_and_abort")
    forms = {step: list(inspect.signature(getattr(txsink.TwoPhaseCommitSink, step)).parameters)[1:] for step in steps}
    assert forms == {
        "begin_transaction": [],
        "invoke": ["txn", "value"],
        "pre_commit": ["txn"],
        "commit": ["txn"],
        "abort": ["txn"],
        "recover_and_commit": ["txn"],
        "recover_and_abort": ["txn"],
    }


def test_a_path_may_be_text_or_a_path_object(tmp_path: Path) -> None:
    table = tmp_path / "t"
    paths: tuple[str | Path, ...] = (table, str(table), table.as_uri())
    for number, path in enumerate(paths):
        txsink.write(path, {"id": [number]}, writer="w", epoch=number)
        with txsink.open_writer(path, "w") as sink:
            assert sink.last_epoch == number
        assert txsink.open_table(path).to_arrow()["id"].to_pylist() == list(range(number + 1))
