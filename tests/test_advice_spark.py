"""What errors about the options of Spark's format and of `each_batch` advise, done word for word. Without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advice import advised

pytest.importorskip("pyspark")

from pyspark_txsink import options
from pyspark_txsink.fast import EachBatch

PATH = {"path": "/lake/t"}
GIVEN: list[tuple[Any, dict[str, str], dict[str, str], str, object]] = [
    (
        advised("pyspark_txsink.options.parse", "Use .save(path), .start(path) and .load(path), or for SQL"),
        {"compression": "zstd"},
        {**PATH, "compression": "zstd"},
        "path",
        "/lake/t",
    ),
    (
        advised("pyspark_txsink.options.parse", "Did you mean {}?"),
        {**PATH, "mergeSchemas": "true"},
        {**PATH, "mergeSchema": "true"},
        "merge_schema",
        True,
    ),
    (
        advised("pyspark_txsink.options.parse", "Known options: {}, storage.*"),
        {**PATH, "zzzzz": "1"},
        {**PATH, "storage.zzzzz": "1"},
        "storage_options",
        {"zzzzz": "1"},
    ),
    (
        advised("pyspark_txsink.options.parse", "Give both, or neither"),
        {**PATH, "txnAppId": "a"},
        {**PATH, "txnAppId": "a", "txnVersion": "3"},
        "app_version",
        3,
    ),
    (
        advised("pyspark_txsink.options.parse", "Give both, or neither"),
        {**PATH, "txnVersion": "3"},
        PATH,
        "app_version",
        None,
    ),
    (
        advised("pyspark_txsink.options.parse", "Give another name"),
        {**PATH, "txnAppId": "", "txnVersion": "3"},
        {**PATH, "txnAppId": "a", "txnVersion": "3"},
        "app_id",
        "a",
    ),
    (
        advised("pyspark_txsink.options._integer", "Give a number"),
        {**PATH, "txnAppId": "a", "txnVersion": "three"},
        {**PATH, "txnAppId": "a", "txnVersion": "3"},
        "app_version",
        3,
    ),
    (
        advised("pyspark_txsink.options._truth", "Give true or false"),
        {**PATH, "mergeSchema": "yes"},
        {**PATH, "mergeSchema": "true"},
        "merge_schema",
        True,
    ),
    (
        advised("pyspark_txsink.options._bytes", "Give bytes, or say 128m"),
        {**PATH, "targetFileSize": "big"},
        {**PATH, "targetFileSize": "128m"},
        "stage",
        {"target_file_bytes": 128 << 20},
    ),
    (
        advised("pyspark_txsink.options._bytes", "Give bytes, or say 128m"),
        {**PATH, "targetFileSize": "1.5g"},
        {**PATH, "targetFileSize": "1500"},
        "stage",
        {"target_file_bytes": 1500},
    ),
    (
        advised("choices.require_choice", "Give one of these"),
        {**PATH, "partitionOverwriteMode": "some"},
        {**PATH, "partitionOverwriteMode": "dynamic"},
        "partition_overwrite",
        "dynamic",
    ),
]


@pytest.mark.parametrize(("block", "wrong", "right", "name", "value"), GIVEN)
def test_an_option_that_is_changed_as_its_error_says_is_taken(
    block: Any, wrong: dict[str, str], right: dict[str, str], name: str, value: object
) -> None:
    with block:
        options.parse(wrong)
    assert getattr(options.parse(right), name) == value


def test_options_of_each_batch_are_those_that_the_message_names(tmp_path: Path) -> None:
    path = str(tmp_path / "T")
    with advised("options.unknown", "Did you mean {}?"):
        EachBatch(path, {"merge_schemas": True})
    with advised("options.unknown", "Known options: {}") as caught:
        EachBatch(path, {"zzzzz": True})
    with advised("pyspark_txsink.fast._require", "Give a number from 1 on"):
        EachBatch(path, {"max_records_per_file": 0})
    with advised("choices.require_choice", "Give one of these"):
        EachBatch(path, {"on_new_checkpoint": "go on"})
    assert "merge_schema" in caught.value.advice
    for choice in ("fail", "resume"):
        EachBatch(path, {"merge_schema": True, "max_records_per_file": 1, "on_new_checkpoint": choice})
