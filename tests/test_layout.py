"""Every path is made and parsed in one place, and none leaves its root."""

from __future__ import annotations

import posixpath

import pytest
from hypothesis import given, strategies as st

from txsink import paths

VERSIONS = st.integers(0, paths.VERSION_MAX)
# What Arrow can hold in a string column: no half characters. NUL is refused before a path is made.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
NASTY = st.sampled_from(
    ["..", ".", "../../x", "/etc/passwd", "%2E%2E", "..%2F", "a/../b", "=", "%", "-", "\n", "\\..\\"]
)
NAMES = (NASTY | TEXT).filter(lambda name: paths.name_problem(name) is None)
VALUES = st.none() | NASTY | TEXT
COLUMNS = TEXT.filter(lambda name: name != "" and name[0] not in "._")
DATA_NAMES = st.builds(
    paths.data_name,
    VERSIONS,
    st.integers(0, 999_999_999),
    st.text("0123456789abcdef", min_size=4, max_size=64),
)
PARTITIONS = st.lists(st.tuples(COLUMNS, VALUES), max_size=3, unique_by=lambda item: item[0])


def data_path(partitions: list[tuple[str, str | None]], name: str) -> str:
    directory = paths.partition_directory([column for column, _ in partitions], [value for _, value in partitions])
    return f"{directory}/{name}" if directory else name


DATA_PATHS = st.builds(data_path, PARTITIONS, DATA_NAMES)
NAME = "part-7-0-51ad.parquet"


def stays_below_its_root(path: str) -> bool:
    return posixpath.normpath(f"/t/{path}") == f"/t/{path}" and "\x00" not in path


@given(VERSIONS)
def test_entry_and_summary_paths_parse_back(version: int) -> None:
    for path, directory in (
        (paths.entry_path(version), paths.LOG_DIRECTORY),
        (paths.summary_path(version), paths.STATE_DIRECTORY),
    ):
        parent, _, name = path.rpartition("/")
        assert parent == directory
        assert paths.parse_version(name) == version


@given(VERSIONS, VERSIONS)
def test_entry_names_sort_as_their_versions_do(one: int, two: int) -> None:
    assert (paths.entry_path(one) < paths.entry_path(two)) == (one < two)


@given(VERSIONS, VERSIONS)
def test_segment_paths_parse_back(first: int, last: int) -> None:
    parent, _, name = paths.segment_path(first, last).rpartition("/")
    assert parent == paths.SEGMENT_DIRECTORY
    assert paths.parse_segment(name) == (first, last)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "head",
        "1.json",
        f"{1:020d}.json\n",
        f"{1:020d}.json.tmp",
        f".{1:020d}.json",
        f"{1:021d}.json",
        f"{1:020d}",
        "-0000000000000000001.json",
        "\u0661" * 20 + ".json",  # digits to Unicode, not to us
        "\u0661" * 20 + "-" + "\u0661" * 20 + ".segment",
        f"{1:020d}-{2:020d}.segments",
        f"{1:020d}-.segment",
    ],
)
def test_a_name_that_was_not_made_here_does_not_parse(name: str) -> None:
    assert paths.parse_version(name) is None
    assert paths.parse_segment(name) is None


@given(VERSIONS, DATA_PATHS)
def test_removed_paths_parse_back(version: int, path: str) -> None:
    removed = paths.removed_path(version, path)
    assert not removed.endswith(".parquet")
    assert paths.parse_removed(removed.removeprefix(f"{paths.REMOVED_DIRECTORY}/")) == (version, path)


@pytest.mark.parametrize(
    "path",
    [
        "",
        NAME,
        f"7/{NAME}.removed",
        f"{7:020d}/{NAME}",
        f"{7:020d}/.removed",
        f"{7:020d}/../{NAME}.removed",
        "\u0667" * 20 + f"/{NAME}.removed",
    ],
)
def test_a_removed_path_that_was_not_made_here_does_not_parse(path: str) -> None:
    assert paths.parse_removed(path) is None


@pytest.mark.parametrize(
    ("path", "temporary"),
    [
        ("/t/_txsink/log/00000000000000000001.json", "/t/_txsink/log/.9f.tmp"),
        ("_txsink/head", "_txsink/.9f.tmp"),
        ("/head", "/.9f.tmp"),
        ("head", ".9f.tmp"),
    ],
)
def test_a_temporary_lies_hidden_beside_its_object(path: str, temporary: str) -> None:
    assert paths.temporary_path(path, "9f") == temporary
    assert paths.is_temporary(temporary)


@pytest.mark.parametrize("name", ["head", ".tmp", "..tmp", "9f.tmp", ".9f", f"{paths.LOG_DIRECTORY}/{1:020d}.json"])
def test_nothing_else_is_temporary(name: str) -> None:
    assert not paths.is_temporary(name)


def test_exactly_the_characters_that_spark_escapes_are_escaped() -> None:
    # ExternalCatalogUtils.charToEscape, without the characters it adds on Windows.
    expected = {*range(1, 32), 0x7F, *map(ord, "\"#%'*/:=?\\{[]^")}
    escaped = {code for code in range(0x110000) if paths.escape(chr(code)) != chr(code)}
    assert escaped == expected
    assert paths.escape("a/b=c%\x07\x7f}ü") == "a%2Fb%3Dc%25%07%7F}ü"


@given(NASTY | TEXT)
def test_escaping_is_undone_exactly(text: str) -> None:
    assert paths.unescape(paths.escape(text)) == text


@given(PARTITIONS, DATA_NAMES)
def test_partition_values_parse_back_and_empty_is_null(partitions: list[tuple[str, str | None]], name: str) -> None:
    found = paths.parse_partitions(data_path(partitions, name))
    assert found == {
        column: None if value in {None, "", paths.NULL_PARTITION} else value for column, value in partitions
    }


def test_directories_without_a_value_are_no_partitions() -> None:
    assert paths.parse_partitions(f"data/day=1/{NAME}") == {"day": "1"}


def test_a_partition_column_without_its_value_is_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        paths.partition_directory(["a", "b"], ["1"])


@given(PARTITIONS, DATA_NAMES)
def test_no_partition_value_leaves_the_root(partitions: list[tuple[str, str | None]], name: str) -> None:
    path = data_path(partitions, name)
    assert stays_below_its_root(path)
    assert path.count("/") == len(partitions)
    assert paths.is_data_path(path)


@given(NAMES, NAMES, DATA_PATHS)
def test_staged_paths_parse_back_and_stay_below_the_staging_root(writer: str, run: str, path: str) -> None:
    directory = paths.run_directory(writer, run)
    staged = f"{directory}/{path}"
    assert stays_below_its_root(staged)
    assert directory.count("/") == 1
    assert paths.run_directory(writer, run).startswith(f"{paths.writer_directory(writer)}/")
    assert paths.parse_staged(staged) == paths.StagedName(writer, run, paths.data_epoch(path), path)


@given(NAMES, NAMES)
def test_two_writers_never_share_a_directory(one: str, two: str) -> None:
    assert (paths.writer_directory(one) == paths.writer_directory(two)) == (one == two)


@given(st.text("./=%_a07-part\n\x00", max_size=40) | TEXT)
def test_a_path_that_parses_is_one_that_was_made(path: str) -> None:
    for candidate in (path, f"{path}/{NAME}", f"w/r/7/{path}/{NAME}"):
        if paths.is_data_path(candidate):
            assert stays_below_its_root(candidate)
            partitions = paths.parse_partitions(candidate)
            assert candidate == data_path(list(partitions.items()), candidate.rpartition("/")[2])
        if (found := paths.parse_staged(candidate)) is not None:
            assert candidate == f"{paths.run_directory(*found[:2])}/{found.path}"


@pytest.mark.parametrize(
    "path",
    [
        "",
        NAME,
        f"w/{NAME}",
        f"w/r/7/{NAME}",
        f"/r/{NAME}",
        f"w//{NAME}",
        f"w/r/part-{'9' * 5000}-0-51ad.parquet",  # Python refuses to read such a number
        f"../r/{NAME}",
        f"w/../{NAME}",
        f"%77/r/{NAME}",  # an escaped `w`: this would be another directory of the same writer
    ],
)
def test_a_staged_path_that_was_not_made_here_does_not_parse(path: str) -> None:
    assert paths.parse_staged(path) is None


@pytest.mark.parametrize(
    "path",
    [
        f"/{NAME}",
        f"../{NAME}",
        f"a=1/../{NAME}",
        f"./{NAME}",
        f"a=1//{NAME}",
        f"..=1/{NAME}",
        f".a=1/{NAME}",
        f"_a=1/{NAME}",
        f"=1/{NAME}",
        f"a=/{NAME}",
        f"a/{NAME}",
        f"a=b=c/{NAME}",
        f"a=\x00/{NAME}",
        f"a=\n/{NAME}",
        f"a=%C3%BC/{NAME}",
        f"a=%2f/{NAME}",
        f"{NAME}/",
        f"{NAME}\n",
        "part-7-0-51ad.parquet.tmp",
        "part-07-0-51ad.parquet",
        "part-7-00-51ad.parquet",
        "part-7-0-51AD.parquet",
        "part-\u0667-0-51ad.parquet",
        "part--7-0-51ad.parquet",
        "part-7-0-.parquet",
        "x.parquet",
        "",
    ],
)
def test_a_path_outside_the_grammar_is_no_data_path(path: str) -> None:
    assert not paths.is_data_path(path)


def test_the_staging_root_is_a_hidden_sibling_of_the_table() -> None:
    assert paths.default_staging_root("/data/events") == "/data/.events.txsink"
    assert paths.default_staging_root("/events") == "/.events.txsink"
    assert paths.default_staging_root("events") == ".events.txsink"
    assert paths.default_staging_root("lake/a/b") == "lake/a/.b.txsink"


def test_nothing_kept_for_txsink_itself_looks_like_parquet() -> None:
    made = [
        paths.entry_path(1),
        paths.summary_path(1),
        paths.segment_path(1, 2),
        paths.HEAD_PATH,
        paths.removed_path(1, NAME),
        paths.temporary_path(paths.entry_path(1), "9f"),
    ]
    assert all(path.startswith("_txsink/") and not path.endswith(".parquet") for path in made)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "it is empty"),
        ("a\x00b", "it holds a NUL character"),
        ("a\ud800", "it holds half of a character (a lone surrogate)"),
        ("x" * 256, "it is longer than 255 bytes once escaped"),
        ("ü" * 43, "it is longer than 255 bytes once escaped"),
        ("/" * 86, "it is longer than 255 bytes once escaped"),
        ("x" * 255, None),
        ("ü" * 42, None),
        ("X" * 86, "it is longer than 255 bytes once escaped"),
        ("X" * 85, None),
        ("/" * 85, None),
        ("..", None),
    ],
)
def test_a_name_must_fit_one_directory_name(name: str, problem: str | None) -> None:
    assert paths.name_problem(name) == problem


@pytest.mark.parametrize(
    ("name", "is_refused"),
    [("txsink:w", True), ("txsink-abort-w", True), ("txsink", False), ("my-txsink:w", False), ("txsink-w", False)],
)
def test_a_name_that_would_pass_for_an_outcome_in_deltas_log_is_refused(name: str, is_refused: bool) -> None:
    problem = paths.name_problem(name)
    assert (problem is not None and "keeps the outcomes of writers" in problem) is is_refused


def test_the_worked_example_of_the_docstring_is_true() -> None:
    path = data_path([("day", "2026-01-31")], paths.data_name(7, 0, "51ad"))
    staged = f"{paths.default_staging_root('/data/events')}/<key>/{paths.run_directory('nightly', '9f2c')}/{path}"
    assert paths.__doc__ is not None
    assert f"`{staged}`" in paths.__doc__
    assert f"`/data/events/{path}`" in paths.__doc__


@pytest.mark.parametrize("path", ["w", "w/", "/r", "w/r/more", "w%2Fx/r", "W/r", "w%ff/r", "%77/r"])
def test_what_is_no_mark_is_taken_for_none(path: str) -> None:
    assert paths.parse_mark(path) is None
    assert paths.parse_mark(paths.mark_path("w/x", "r").removeprefix(f"{paths.MARK_DIRECTORY}/")) == ("w/x", "r")
