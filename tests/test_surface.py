"""The signature of `open_writer` defines the options: all else that names one is held to it (decision 19)."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import tokenize
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import click
import pytest

import pyspark_txsink
import txsink
from place import Place
from pyspark_txsink import fast, options as format_options
from surface import ALIASES, CALLS, HELP, PAGE, keywords_of, options_of, page
from txsink import choices
from txsink.cli import main as cli
from txsink.errors import InvalidRequestError
from txsink.options import BEGIN_OPTIONS, OPTIONS, Options
from txsink.staging.epoch_stager import StageOptions

ROOT = Path(__file__).parents[1]
DEFINED = keywords_of(txsink.open_writer)
OF_BEGIN = keywords_of(txsink.Writer.begin)
CANARY = "canary-4711"

# By call and option: what differs from the definition on purpose.
MEANT = {
    ("pyspark_txsink.each_batch", "target_file_bytes"),
    ("pyspark_txsink.write", "target_file_bytes"),
    ("pyspark_txsink.read", "path"),
    ("open_table", "path"),
}
# What a call of the plug-in takes besides the options of txsink.
OF_SPARK = {
    "pyspark_txsink.each_batch": {"max_records_per_file", "txn_app_id", "on_new_checkpoint"},
    "pyspark_txsink.write": {"writer", "epoch", "max_records_per_file"},
    "pyspark_txsink.read": set[str](),
}
# Spark's writer, session and query decide on these.
NOT_OF_SPARK = {
    "types", "run", "recover", "compression_level", "row_group_rows", "row_group_bytes", "file_rows_max",
    "open_partitions_max", "parts",
}  # fmt: skip


# -- the definition, and what repeats it ---------------------------------------------------------------------


@pytest.mark.parametrize("name", CALLS)
def test_every_argument_has_a_type_and_one_line_of_help_in_the_order_of_the_signature(name: str) -> None:
    known = options_of(CALLS[name])
    assert [told for told, _ in HELP.findall(inspect.getdoc(CALLS[name]) or "")] == [*known]
    for one in known.values():
        assert one.help.endswith("."), one
        assert one.type != str(inspect.Parameter.empty), one
        assert not re.search(r"\bAny\b", one.type) or one.name == "metadata", one
    assert not any(one.kind is one.VAR_KEYWORD for one in inspect.signature(CALLS[name]).parameters.values())


@pytest.mark.parametrize("name", [name for name in CALLS if name != "open_writer"])
def test_an_option_is_the_same_wherever_it_is_taken(name: str) -> None:
    shared = 0
    for one in keywords_of(CALLS[name]).values():
        defined = {**OF_BEGIN, **DEFINED}.get(one.name)
        if defined is not None and (name, one.name) not in MEANT:
            assert one == defined
            shared += 1
    assert shared or name == "Writer.recover"


def test_write_takes_all_options_of_open_writer_and_of_begin() -> None:
    assert [*keywords_of(txsink.write)] == ["writer", "epoch", *OF_BEGIN, *DEFINED]


@pytest.mark.parametrize("name", OF_SPARK)
def test_the_plug_in_takes_what_spark_leaves_open(name: str) -> None:
    taken = {*keywords_of(CALLS[name])} - OF_SPARK[name]
    if name == "pyspark_txsink.read":
        assert taken == {"storage_options"}
    else:
        assert taken == {*DEFINED, *OF_BEGIN} - NOT_OF_SPARK
        assert {*fast.OPTIONS} == taken | {"max_records_per_file"}


def test_what_the_engine_reads_is_what_open_writer_takes() -> None:
    assert (*Options.__struct_fields__, *StageOptions.__struct_fields__) == OPTIONS
    assert {*OPTIONS} == {*DEFINED}
    assert tuple(OF_BEGIN) == BEGIN_OPTIONS
    for fields in (Options(), StageOptions()):
        for name in fields.__struct_fields__:
            assert (getattr(fields, name) or None) == (DEFINED[name].default or None), name


def test_the_help_of_an_option_with_few_values_names_each() -> None:
    seen = 0
    for call in CALLS.values():
        for one in options_of(call).values():
            for value in ALIASES.get(one.type.partition(" |")[0], ()):
                assert f"`{value}`" in one.help, (one.name, value)
                seen += 1
    assert seen > 20


def test_the_page_of_options_is_made_from_the_signatures() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()
    assert "docs/options.md" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_command_line_takes_the_values_and_defaults_of_the_library() -> None:
    commands: Any = cli._group()
    known = {(name, one.name): one for name, command in commands.commands.items() for one in command.params}
    recover = options_of(txsink.Writer.recover)
    for name in recover:
        option = known["recover", name]
        given = commands.commands["recover"].make_context("recover", ["/t"]).params
        assert given[name] == recover[name].default
        told = recover[name].help.replace("`up_to`", "--up-to").replace("`", "").capitalize()
        assert option.help.lower() == told.lower()
    for (command, name), kind in {("recover", "on_newer"): choices.OnNewer, ("convert", "to"): choices.Layout}.items():
        kind_of_click = known[command, name].type
        assert isinstance(kind_of_click, click.Choice)
        assert tuple(kind_of_click.choices) == choices.values_of(kind)


def test_the_format_takes_options_of_the_calls_under_sparks_names() -> None:
    called = {**DEFINED, **OF_BEGIN, **keywords_of(pyspark_txsink.each_batch), **options_of(pyspark_txsink.read)}
    meant = {*called, "writer", "epoch"}
    assert {one.removeprefix("storage_") for one in format_options.MEANING.values()} <= {
        one.removeprefix("storage_") for one in meant
    }
    assert [*format_options.NAMES] == [name.lower() for name in format_options.MEANING if "<" not in name]
    for name, kind in format_options.CHOICES.items():
        assert called[format_options.MEANING[name]].type.partition(" |")[0] == next(
            alias for alias, values in ALIASES.items() if values == choices.values_of(kind)
        )


def test_one_function_says_did_you_mean() -> None:
    for folder in ("txsink", "formats"):
        for path in (ROOT / folder).rglob("*.py"):
            with tokenize.open(path) as file:
                text = file.read()
            if path.name != "errors.py":
                assert "did you mean" not in text.lower(), path
                assert "difflib" not in text, path


# -- at run time ------------------------------------------------------------------------------------------


class Frame:
    """What stands for Spark's objects: a wrong keyword is refused before any is looked at."""


WRONG: dict[str, tuple[Callable[..., object], str, str]] = {
    "open_writer": (lambda path, **more: txsink.open_writer(path, "w", **more), "partion_by", "partition_by"),
    "write": (lambda path, **more: txsink.write(path, {"id": [1]}, writer="w", epoch=1, **more), "mod", "mode"),
    "begin": (lambda path, **more: txsink.open_writer(path, "w").begin(1, **more), "metadat", "metadata"),
    "recover": (lambda path, **more: txsink.open_writer(path, "w").recover(**more), "onnewer", "on_newer"),
    "open_table": (txsink.open_table, "storage_option", "storage_options"),
    "each_batch": (pyspark_txsink.each_batch, "partitionBy", "partition_by"),
    "plug-in write": (
        lambda path, **more: pyspark_txsink.write(Frame(), path, writer="w", epoch=0, **more),
        "Merge_schema",
        "merge_schema",
    ),
    "read": (lambda path, **more: pyspark_txsink.read(Frame(), path, **more), "versoin", "version"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_keyword_is_refused_with_the_one_that_may_be_meant(place: Place, name: str) -> None:
    act, wrong, right = WRONG[name]
    with pytest.raises(InvalidRequestError, match=rf"unknown option '{wrong}'\. Did you mean '{right}'\?$"):
        act(str(place.path), **{wrong: 1})
    with pytest.raises(InvalidRequestError, match=r"unknown option 'zzz'\. Known options: .*" + right) as caught:
        act(str(place.path), zzz=CANARY, storage_options={"secret": CANARY})
    assert CANARY not in str(caught.value)


def test_an_option_of_the_other_call_is_sent_there(place: Place) -> None:
    with pytest.raises(InvalidRequestError, match=r"Give 'mode' to `Writer\.begin`, which takes it"):
        txsink.open_writer(place.path, "w", mode="append")  # type: ignore[call-arg]
    with (
        txsink.open_writer(place.path, "w") as writer,
        pytest.raises(InvalidRequestError, match="Give 'partition_by' to `open_writer`, which takes it"),
    ):
        writer.begin(1, partition_by="p")  # type: ignore[call-arg]


def test_a_missing_argument_is_pythons_own_error(place: Place) -> None:
    with pytest.raises(TypeError, match="missing 2 required keyword-only arguments: 'writer' and 'epoch'"):
        txsink.write(place.path, {"id": [1]})  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "value", "listed"),
    [
        ("layout", "detla", ["layout is 'detla'", "'parquet'", "'delta'", "Did you mean 'delta'?"]),
        ("layout", "iceberg", ["layout is 'iceberg'", "'parquet'", "'delta'"]),
        ("layout", {"a": CANARY}, ["layout is of type dict", "'parquet'", "'delta'"]),
        ("types", "java", ["types is 'java'", "'spark'", "'arrow'"]),
        ("compression", "zst", ["compression is 'zst'", "'snappy'", "Did you mean 'zstd'?"]),
        ("compression", 5, ["compression is 5", "'snappy'", "'zstd'"]),
        ("merge_schema", "yes", ["merge_schema is 'yes'", "Give True or False"]),
        ("recover", None, ["recover is None", "Give True or False"]),
        ("run", 5, ["run is 5", "Give a string or None"]),
        ("staging_path", 5, ["staging_path is 5", "Give a string or None"]),
        ("partition_by", 5, ["partition_by is 5", "Give names of columns or None"]),
        ("partition_by", [5], ["partition_by is (5,)", "Give names of columns or None"]),
        ("target_file_bytes", "lots", ["target_file_bytes is 'lots'", "Give an integer"]),
        ("compression_level", "high", ["compression_level is 'high'", "Give an integer or None"]),
        ("mode", "upsert", ["mode is 'upsert'", "'append'", "'overwrite'"]),
        ("mode", "overwrit", ["'append'", "Did you mean 'overwrite'?"]),
        ("partition_overwrite", "dyn", ["partition_overwrite is 'dyn'", "'static'", "'dynamic'"]),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_those_that_can(
    place: Place, name: str, value: Any, listed: list[str]
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        txsink.write(place.path, {"id": [1]}, writer="w", epoch=1, **{name: value})
    assert [text for text in listed if text not in str(caught.value)] == []
    assert CANARY not in str(caught.value)


def test_a_value_of_the_plug_in_that_cannot_be_is_refused_with_those_that_can() -> None:
    with pytest.raises(InvalidRequestError, match=r"on_new_checkpoint is 'go', not one of 'fail', 'resume'"):
        pyspark_txsink.each_batch("/a", on_new_checkpoint="go")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match=r"layout is 'detla', not one of 'parquet', 'delta'. Did you mean"):
        format_options.parse({"path": "/a", "layout": "detla"})
    with pytest.raises(InvalidRequestError, match=r"on_newer is 'rewnd', not one of 'fail', 'skip', 'rewind'"):
        txsink.ParquetFileSink("/a", "w", on_newer="rewnd")  # type: ignore[arg-type]


def test_storage_options_may_be_any_mapping(place: Place) -> None:
    class Hidden(dict[str, object]):
        pass

    known: tuple[Mapping[str, object], ...] = ({}, Hidden(), types.MappingProxyType({}))
    for given in known:
        txsink.write(place.path, {"id": [1]}, writer="w", epoch=1, storage_options=given)
        assert txsink.open_table(place.path, storage_options=given).to_arrow().num_rows == 1


# -- reprs ------------------------------------------------------------------------------------------------


def test_what_a_program_holds_says_what_it_is_in_one_line(place: Place) -> None:
    path = str(place.path)
    with txsink.open_writer(path, "orders", run="r1") as writer:
        assert repr(writer) == f"<txsink.Writer 'orders' of {path!r}, run 'r1', version {writer.log.state.version}>"
        txn = writer.begin(7)
        assert repr(txn) == "<txsink.Transaction of 'orders', epoch 7: open>"
        txn.write({"id": [1]})
        txn.prepare()
        assert repr(txn) == "<txsink.Transaction of 'orders', epoch 7: prepared>"
        result = txn.commit()
        assert repr(txn) == "<txsink.Transaction of 'orders', epoch 7: committed>"
    version = writer.log.state.version
    assert repr(writer) == f"<txsink.Writer 'orders' of {path!r}, run 'r1', version {version}, closed>"
    assert repr(txsink.open_table(path)) == f"<txsink.Table {path!r} version {version}>"
    told = f"Result(outcome='committed', epoch=7, version={version}, files=1, rows=1, bytes={result.bytes})"
    assert repr(result) == told


def test_a_repr_asks_no_store_and_is_one_line_whatever_a_name_holds(place: Place, monkeypatch: Any) -> None:
    with place.sink("a\nb") as writer:
        txn = writer.begin(1)
        txn.write({"id": [1]})
        txn.prepare()
        with monkeypatch.context() as patch:
            for name in ("entry", "entries", "prepare_entry", "commit_of", "refresh", "load"):
                patch.setattr(type(writer.log), name, None)
            for name in [name for name in dir(writer.log.store) if not name.startswith("_") and name != "traits"]:
                patch.setattr(type(writer.log.store), name, None)
            assert "\n" not in repr(writer) + repr(txn)


# -- what a type checker sees -------------------------------------------------------------------------------

HEAD = """\
from pathlib import Path

import pyspark_txsink
import txsink
from txsink import Result, Transaction, Writer


def trial(df: object, spark: object, writer: Writer) -> None:
"""


class Line(NamedTuple):
    code: str
    error: str = ""


LINES = (
    Line('txsink.open_writer("t", "w", partion_by="p")', 'did you mean "partition_by"'),
    Line('txsink.open_writer("t", "w", layout="detla")', "incompatible type \"Literal['detla']\""),
    Line('txsink.open_writer("t", "w", target_file_bytes="lots")', 'incompatible type "str"; expected "int"'),
    Line('txsink.open_writer("t", "w", compression="zst")', "incompatible type"),
    Line('txsink.open_writer("t", "w", mode="append")', 'Unexpected keyword argument "mode"'),
    Line('txsink.write("t", {}, writer="w", epoch=1, partion_by="p")', 'did you mean "partition_by"'),
    Line('txsink.write("t", {}, writer="w", epoch=1, layout="detla")', "incompatible type \"Literal['detla']\""),
    Line('txsink.write("t", {}, writer="w", epoch=1, target_file_bytes="lots")', 'expected "int"'),
    Line('txsink.write("t", {}, writer="w", epoch=1, mode="upsert")', "incompatible type"),
    Line('txsink.write("t", {}, writer="w")', 'Missing named argument "epoch"'),
    Line('writer.begin(1, mode="upsert")', "incompatible type"),
    Line('writer.begin(1, partion_overwrite="static")', 'did you mean "partition_overwrite"'),
    Line('writer.recover(1, "rewnd")', "incompatible type"),
    Line('txsink.open_table("t", storage_option={})', 'did you mean "storage_options"'),
    Line('txsink.StageOptions(compression="zst")', "incompatible type"),
    Line('pyspark_txsink.each_batch("t", partion_by="p")', 'did you mean "partition_by"'),
    Line('pyspark_txsink.each_batch("t", layout="detla")', "incompatible type \"Literal['detla']\""),
    Line('pyspark_txsink.each_batch("t", target_file_bytes="lots")', 'expected "int | None"'),
    Line('pyspark_txsink.each_batch("t", on_new_checkpoint="go")', "incompatible type"),
    Line('pyspark_txsink.write(df, "t", writer="w", epoch=1, partion_by="p")', 'did you mean "partition_by"'),
    Line('pyspark_txsink.write(df, "t", writer="w", epoch=1, layout="detla")', "incompatible type"),
    Line('pyspark_txsink.write(df, "t", writer="w", epoch=1, target_file_bytes="lots")', 'expected "int | None"'),
    Line('pyspark_txsink.read(spark, "t", versoin=3)', 'did you mean "version"'),
    Line('txsink.open_writer(Path("t"), "w", partition_by="p", layout="delta", target_file_bytes=1 << 20)'),
    Line('txsink.open_writer("t", "w", partition_by=("p", "q"), storage_options={"key": "text"}, types="arrow")'),
    Line('done: Result = txsink.write("t", {}, writer="w", epoch=1, mode="overwrite", compression="zstd", run="r")'),
    Line('begun: Transaction = writer.begin(1, mode="overwrite", partition_overwrite="dynamic", metadata={"a": 1})'),
    Line('writer.recover(up_to=3, on_newer="rewind")'),
    Line('txsink.open_table("t", storage_options={"key": 1}).to_arrow(columns="id")'),
    Line('pyspark_txsink.each_batch("t", partition_by=["p"], max_records_per_file=5, on_new_checkpoint="resume")'),
    Line('pyspark_txsink.write(df, "t", writer="w", epoch=1, mode="overwrite", metadata={"a": 1})'),
    Line('pyspark_txsink.read(spark, "t", 3, storage_options={"key": "text"})'),
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[str]]:
    """What mypy says of each line."""
    folder = tmp_path_factory.mktemp("snippet")
    snippet = folder / "snippet.py"
    snippet.write_text(HEAD + "".join(f"    {line.code}\n" for line in LINES))
    options = [
        "--strict",
        "--config-file",
        "pyproject.toml",
        "--no-error-summary",
        "--cache-dir",
        str(folder / "cache"),
    ]
    path = os.pathsep.join([str(ROOT), str(ROOT / "formats"), *filter(None, [os.environ.get("MYPYPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(snippet)],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    said: dict[int, list[str]] = {}
    for one in done.stdout.splitlines():
        file, number, text = one.split(":", 2)
        assert file.endswith("snippet.py"), one
        if "error:" in text:
            said.setdefault(int(number) - HEAD.count("\n") - 1, []).append(text)
    assert done.returncode == 1, done.stderr
    return said


@pytest.mark.parametrize("number", range(len(LINES)), ids=lambda number: LINES[number].code)
def test_a_type_checker_sees_what_is_wrong_and_nothing_else(found: dict[int, list[str]], number: int) -> None:
    said = found.get(number, [])
    if LINES[number].error:
        assert any(LINES[number].error in one for one in said), said
    else:
        assert said == []


def test_every_type_of_a_signature_is_there_at_run_time() -> None:
    """Tools that read them, as documentation does, need no more than the module."""
    for name, call in CALLS.items():
        if not name.startswith("pyspark"):  # which imports nothing that it need not
            assert get_type_hints(inspect.unwrap(call))
