"""The commands: what they print for people and for programs, their exit codes, and that a dry run is one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import txsink
from place import Place, begin_publish, prepared, tree
from seen import small_blocks, staging
from txsink import paths
from txsink.cli.main import main, printable
from txsink.errors import FencedError
from txsink.log import expiry
from txsink.protocol import resolving
from txsink.store.local.store import LocalStore
from txsink.writing.opening import open_sink
from txsink.writing.writer import Writer

__all__ = ["small_blocks"]

OK, ERROR, USAGE, UNHEALTHY = 0, 1, 2, 3
READING = ("status", "log", "files", "pending", "verify")


class Cli:
    """Runs one command on a table."""

    def __init__(self, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
        self._place = place
        self._capsys = capsys

    def __call__(self, command: str, *arguments: object, code: int = OK) -> tuple[str, str]:
        """Standard output and standard error."""
        given = main([command, str(self._place.path), *map(str, arguments)])
        out, err = self._capsys.readouterr()
        assert given == code, out + err
        assert bool(err) == (code in {ERROR, USAGE}), err
        return out, err

    def text(self, command: str, *arguments: object, code: int = OK) -> str:
        return self(command, *arguments, code=code)[0]

    def json(self, command: str, *arguments: object, code: int = OK) -> Any:
        return json.loads(self(command, *arguments, "--output", "json", code=code)[0])

    def refused(self, command: str, *arguments: object, code: int = ERROR) -> str:
        out, err = self(command, *arguments, code=code)
        assert out == ""
        return err


@pytest.fixture
def cli(place: Place, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(place, capsys)


def stage(sink: Writer, epoch: int) -> str:
    """Stage a file that is not prepared; its name."""
    data = {"id": [99], **{name: ["z"] for name in sink.log.state.partition_columns}}
    (one,) = sink.begin(epoch).stager().stage(data)
    return one.file.path.rpartition("/")[2]


def one_shot(place: Place, writer: str) -> Writer:
    """A run that has not claimed its writer."""
    return open_sink(LocalStore(), place.stamps, str(place.path), writer, {}, is_one_shot=True)


class Crowd:
    """A table in every state at once."""

    def __init__(self, place: Place, table_layout: str = "parquet") -> None:
        first = {"id": [1, 2], "p": ["a", "b"]}
        place.write(0, first, partition_by="p", metadata={"offset": 7}, layout=table_layout)
        place.write(1, {"id": [3], "p": ["a"]}, mode="overwrite")
        left = place.sink("left")
        prepared(left, 4, {"id": [4], "p": ["a"]})
        prepared(left, 5, {"id": [5], "p": ["a"]})
        place.sink("left", recover=False)
        half = place.sink("half")
        prepared(half, 1, {"id": [6], "p": ["a"]})
        resolving.abort(half.log, half.identity, half.publisher, half.log.state.pending_of("half")[0])
        self.waiting = place.sink("waiting")
        prepared(self.waiting, 1, {"id": [7], "p": ["a"]})
        zombie, self.live = place.sink("crowded"), place.sink("crowded")
        self.unclaimed_run = one_shot(place, "crowded")
        self.orphan, self.kept = stage(zombie, 1), stage(self.live, 1)
        self.unclaimed = stage(self.unclaimed_run, 2)
        temporary = place.path / paths.temporary_path(paths.entry_path(99), "cafe")
        temporary.write_bytes(b"half")


# -- looking ------------------------------------------------------------------------------------------


def test_status_tells_writers_pending_and_what_was_left(place: Place, cli: Cli) -> None:
    Crowd(place)
    found = cli.json("status", code=UNHEALTHY)
    assert (found["files"], found["rows"], found["is_healthy"]) == (1, 1, False)
    assert found["columns"] == [{"name": "id", "type": "int64"}, {"name": "p", "type": "string"}]
    assert found["partition_columns"] == ["p"]
    writers = {one["writer"]: one for one in found["writers"]}
    assert set(writers) == {"w", "left", "half", "waiting", "crowded"}
    assert (writers["w"]["last_epoch"], writers["w"]["last_version"], writers["w"]["generation"]) == (1, 5, 2)
    assert found["unfinished"] == [
        {"writer": "left", "epoch": 4, "state": "prepared"},
        {"writer": "left", "epoch": 5, "state": "prepared"},
        {"writer": "half", "epoch": 1, "state": "aborting"},
    ]
    assert {(one["writer"], one["epoch"]) for one in found["pending"]} == {
        ("left", 4),
        ("left", 5),
        ("half", 1),
        ("waiting", 1),
    }
    shown = cli.text("status", code=UNHEALTHY)
    assert "1 file, 1 row," in shown
    assert "3 transactions of retired runs or half-done aborts" in shown


def test_status_is_healthy_while_the_run_that_prepared_still_holds_its_writer(place: Place, cli: Cli) -> None:
    prepared(place.sink(), 1, {"id": [1]})
    assert cli.json("status")["is_healthy"]
    assert "prepared" in cli.text("status")


def test_log_tells_entries_newest_first_up_to_its_limit(place: Place, cli: Cli) -> None:
    Crowd(place)
    found = cli.json("log", "--limit", 0)
    versions = [one["version"] for one in found["entries"]]
    assert versions == list(range(found["version"], -1, -1))
    commit = next(one for one in found["entries"] if one["version"] == 2)
    assert (commit["kind"], commit["writer"], commit["epoch"], commit["files"], commit["rows"]) == (
        "commit",
        "w",
        0,
        2,
        2,
    )
    assert commit["metadata"] == {"offset": 7}
    assert commit["time"].endswith("Z")
    assert len(cli.json("log", "--limit", 3)["entries"]) == 3
    shown = cli.text("log", "--limit", 0).splitlines()
    assert len(shown) == len(versions) + 1
    assert "layout parquet, partitioned by p" in shown[-1]


def test_log_says_below_which_version_it_has_expired(place: Place, cli: Cli) -> None:
    with place.sink() as sink:
        for epoch in range(33):
            with sink.begin(epoch) as txn:
                txn.write({"id": [epoch]})
    expiry.expire(place.table().log, 63)
    assert cli.json("log")["boundary"] == 63
    assert "Versions below 63 have expired." in cli.text("log")
    assert "older ones have expired" in cli.refused("files", "--version", 5)


def test_a_version_that_never_was_is_not_said_to_have_expired(place: Place, cli: Cli) -> None:
    place.write(0, {"id": [1]})
    for version in (-1, 9):
        told = cli.refused("files", "--version", version)
        assert "versions 0 to 2 are there\n" in told
        assert "have expired" not in told


@pytest.mark.usefixtures("small_blocks")
def test_below_expired_versions_there_are_none(place: Place, cli: Cli) -> None:
    for epoch in range(12):
        place.write(epoch, {"id": [epoch]})
    expiry.expire(place.table().log, 16)
    assert "older ones have expired" in cli.refused("files", "--version", 0)
    assert "have expired" not in cli.refused("files", "--version", -1)


def test_the_mark_of_a_run_is_shown_as_what_it_is(place: Place, cli: Cli) -> None:
    """It has no epoch: the largest there can be stood in its place."""
    dead = place.sink(layout="delta")
    dead.begin(3).stager()
    place.sink(recover=False)
    dead.about_to_stage(by_others=True)
    mark = paths.mark_path("w", dead.run)
    (place.path / mark).parent.mkdir(parents=True, exist_ok=True)
    (place.path / mark).write_bytes(b"mark")
    (step,) = cli.json("sweep")["plan"]
    assert (step["action"], step["writer"], step["run"], step["epoch"]) == ("delete", "w", dead.run, None)
    assert (step["path"], step["bytes"]) == (mark, 4)
    assert str(paths.VERSION_MAX) not in cli.text("sweep")


def test_files_tells_each_file_at_head_and_at_a_version(place: Place, cli: Cli) -> None:
    Crowd(place)
    (only,) = cli.json("files")["files"]
    assert (only["rows"], only["epoch"], only["writer"], only["version"], only["partition"]) == (
        1,
        1,
        "w",
        5,
        {"p": "a"},
    )
    old = cli.json("files", "--version", 2)
    assert old["version"] == 2
    assert [one["partition"] for one in old["files"]] == [{"p": "a"}, {"p": "b"}]
    assert only["path"] in cli.text("files")
    assert cli.text("files", "--version", 0) == ""


def test_pending_tells_each_transaction_and_its_state(place: Place, cli: Cli) -> None:
    Crowd(place)
    states = [(one["writer"], one["epoch"], one["state"], one["rows"]) for one in cli.json("pending")["pending"]]
    assert states == [
        ("left", 4, "prepared", 1),
        ("left", 5, "prepared", 1),
        ("waiting", 1, "prepared", 1),
        ("half", 1, "aborting", 1),
    ]
    assert "aborting" in cli.text("pending")


def test_nothing_pending_is_said(place: Place, cli: Cli) -> None:
    place.write(0, {"id": [1]})
    assert cli.text("pending") == "Nothing is pending.\n"
    assert cli.json("pending")["pending"] == []


def test_explain_tells_what_became_of_an_epoch(place: Place, cli: Cli) -> None:
    Crowd(place)
    found = cli.json("explain", "w", 0)
    assert (found["outcome"], found["version"], found["files"]) == ("committed", 2, 2)
    assert "It was committed at version 2" in cli.text("explain", "w", 0)
    for writer, epoch, outcome in (
        ("left", 4, "pending"),
        ("half", 1, "aborted"),
        ("w", 9, "unknown"),
        ("x", 0, "unknown"),
    ):
        assert cli.json("explain", writer, epoch)["outcome"] == outcome
        assert outcome in cli.text("explain", writer, epoch)


def test_verify_of_a_sound_table_is_healthy(place: Place, cli: Cli) -> None:
    Crowd(place)
    for deep in ([], ["--deep"]):
        assert cli.json("verify", *deep)["problems"] == []
        assert cli.text("verify", *deep) == "0 problems found.\n"


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "options"),
    [(Path.unlink, []), (_truncate, []), (_flip, ["--deep"])],
    ids=["missing", "short", "flipped"],
)
def test_verify_finds_a_damaged_file(
    place: Place, cli: Cli, damage: Callable[[Path], object], options: list[str]
) -> None:
    place.write(0, {"id": [1, 2, 3]})
    path = place.table().files()[0].path
    damage(place.path / path)
    found = cli.json("verify", *options, code=UNHEALTHY)
    assert [one["where"] for one in found["problems"]] == [path]
    assert not found["is_healthy"]
    shown = cli.text("verify", *options, code=UNHEALTHY)
    assert path in shown
    assert "1 problem found." in shown


@pytest.mark.parametrize("damage", [_truncate, _flip, Path.unlink], ids=["torn", "altered", "missing"])
@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_verify_finds_a_damaged_entry_also_when_the_table_cannot_be_opened(
    place: Place, cli: Cli, version: int, damage: Callable[[Path], object]
) -> None:
    place.write(0, {"id": [1]})
    place.write(1, {"id": [2]})
    damage(place.path / paths.entry_path(version))
    found = cli.json("verify", code=UNHEALTHY)
    assert paths.entry_path(version) in [one["where"] for one in found["problems"]]


def test_verify_reports_a_log_cut_short_behind_its_hint(place: Place, cli: Cli) -> None:
    with place.sink() as sink:
        for epoch in range(33):
            with sink.begin(epoch) as txn:
                txn.write({"id": [epoch]})
    for version in range(60, place.table().version + 1):
        (place.path / paths.entry_path(version)).unlink()
    (place.path / paths.summary_path(63)).unlink()
    (problem,) = cli.json("verify", code=UNHEALTHY)["problems"]
    assert "it had been read before" in problem["what"]


# -- doing --------------------------------------------------------------------------------------------


DOING: list[tuple[str, ...]] = [
    ("recover",),
    ("recover", "--writer", "left"),
    ("recover", "--writer", "left", "--up-to", "4"),
    ("recover", "--writer", "w", "--up-to", "0", "--on-newer", "rewind"),
    ("abort", "left", "5"),
    ("abort", "half", "1"),
    ("sweep",),
    ("sweep", "--writer", "crowded"),
]


@pytest.mark.parametrize("command", [*((name,) for name in READING), ("explain", "w", "0"), *DOING], ids=" ".join)
@pytest.mark.parametrize("output", ["text", "json"])
def test_without_yes_nothing_is_changed(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...], output: str
) -> None:
    Crowd(place)
    before = tree(tmp_path)
    name, *arguments = command
    assert main([name, str(place.path), *arguments, "--output", output]) in {OK, UNHEALTHY}
    assert tree(tmp_path) == before
    out = capsys.readouterr().out
    if command in DOING:
        assert json.loads(out)["is_dry_run"] if output == "json" else "Add --yes to do it." in out


@pytest.mark.parametrize("command", [one for one in DOING if one[0] != "sweep"], ids=" ".join)
def test_a_dry_run_says_that_doing_it_fences_a_live_run(place: Place, cli: Cli, command: tuple[str, ...]) -> None:
    Crowd(place)
    assert "a run of it that is alive is fenced" in cli.text(*command)


def test_recover_finishes_what_all_writers_left(place: Place, cli: Cli) -> None:
    Crowd(place)
    plan = cli.json("recover")["plan"]
    assert [(one["action"], one["writer"], one["epoch"]) for one in plan] == [
        ("finish the abort of", "half", 1),
        ("commit", "left", 4),
        ("commit", "left", 5),
        ("commit", "waiting", 1),
    ]
    done = cli.json("recover", "--yes")
    assert not done["is_dry_run"]
    assert done["done"] == [
        {"writer": "half", "committed": [], "aborted": [], "rewound_from": None},
        {"writer": "left", "committed": [4, 5], "aborted": [], "rewound_from": None},
        {"writer": "waiting", "committed": [1], "aborted": [], "rewound_from": None},
    ]
    assert sorted(place.table().to_arrow()["id"].to_pylist()) == [3, 4, 5, 7]
    assert cli.json("status")["is_healthy"]
    assert cli.text("recover", "--yes") == "Nothing is to be done.\n"


def test_recover_up_to_an_epoch_drops_those_above(place: Place, cli: Cli) -> None:
    Crowd(place)
    plan = cli.json("recover", "--writer", "left", "--up-to", 4)["plan"]
    assert [(one["action"], one["epoch"]) for one in plan] == [("commit", 4), ("abort", 5)]
    assert "left: committed [4], aborted [5]" in cli.text("recover", "--writer", "left", "--up-to", 4, "--yes")
    assert cli.json("explain", "left", 5)["outcome"] == "aborted"
    assert "waiting" in cli.text("pending")


def test_recover_below_a_committed_epoch_asks_first_and_fences_nobody(place: Place, cli: Cli, tmp_path: Path) -> None:
    place.write(0, {"id": [1]})
    place.write(1, {"id": [2]})
    before = tree(tmp_path)
    for yes in ([], ["--yes"]):
        told = cli.refused("recover", "--writer", "w", "--up-to", 0, *yes)
        assert "epochs up to 1 are committed already" in told
        assert "do: Choose --on-newer skip" in told
        assert cli.json("recover", "--writer", "w", "--up-to", 0, "--on-newer", "skip", *yes)["plan"] == []
    assert tree(tmp_path) == before
    plan = cli.json("recover", "--writer", "w", "--up-to", 0, "--on-newer", "rewind")["plan"]
    assert [(one["files"], one["rows"]) for one in plan] == [(1, 1)]
    done = cli.json("recover", "--writer", "w", "--up-to", 0, "--on-newer", "rewind", "--yes")["done"]
    assert done == [{"writer": "w", "committed": [], "aborted": [], "rewound_from": 1}]
    assert place.table().to_arrow()["id"].to_pylist() == [1]


def test_recover_lists_and_deletes_what_the_writer_left_staged(place: Place, cli: Cli) -> None:
    sink = place.sink()
    prepared(sink, 1, {"id": [1]})
    name = stage(sink, 2)
    plan = cli.json("recover")["plan"]
    assert [one["action"] for one in plan] == ["commit", "delete"]
    assert plan[1]["path"].endswith(name)
    cli.json("recover", "--yes")
    assert not list(staging(place.path).rglob("*.parquet"))


def test_recover_of_an_unknown_writer_suggests_one_and_claims_nothing(place: Place, cli: Cli, tmp_path: Path) -> None:
    place.write(0, {"id": [1]}, writer="nightly")
    before = tree(tmp_path)
    assert "Did you mean 'nightly'" in cli.refused("recover", "--writer", "nihgtly", "--yes")
    assert "See `txsink status`" in cli.refused("recover", "--writer", "xyz", "--yes")
    assert tree(tmp_path) == before


def test_abort_drops_one_pending_epoch_and_leaves_the_others(place: Place, cli: Cli) -> None:
    Crowd(place)
    (step,) = cli.json("abort", "left", 5)["plan"]
    assert (step["action"], step["writer"], step["epoch"], step["rows"]) == ("abort", "left", 5, 1)
    assert cli.text("abort", "left", 5, "--yes") == "Epoch 5 of left is aborted and its files are deleted.\n"
    assert [(one["writer"], one["epoch"]) for one in cli.json("pending")["pending"]] == [
        ("left", 4),
        ("waiting", 1),
        ("half", 1),
    ]
    assert cli.json("abort", "half", 1, "--yes")["plan"][0]["action"] == "finish the abort of"
    assert [one["writer"] for one in cli.json("pending")["pending"]] == ["left", "waiting"]


def test_abort_refuses_what_is_not_pending_and_what_can_only_go_forward(place: Place, cli: Cli, tmp_path: Path) -> None:
    place.write(0, {"id": [1]})
    assert "found: It was committed at version 2" in cli.refused("abort", "w", 0, "--yes")
    assert "no writer of that name" in cli.refused("abort", "x", 0, "--yes")
    sink = place.sink()
    begin_publish(sink, prepared(sink, 1, {"id": [2]}, mode="overwrite"))
    before = tree(tmp_path)
    assert "begun to take away" in cli.refused("abort", "w", 1, "--yes")
    assert tree(tmp_path) == before


def test_sweep_deletes_orphans_and_leaves_live_runs_alone(place: Place, cli: Cli) -> None:
    """I9, I10."""
    crowd = Crowd(place)
    plan = {one["path"].rpartition("/")[2]: one["action"] for one in cli.json("sweep")["plan"]}
    assert plan[crowd.orphan] == "delete"
    assert plan[crowd.kept] == "keep"
    assert plan[crowd.unclaimed] == "retire its run, then delete"
    assert "it is fenced" in cli.text("sweep")
    before = place.table().to_arrow()
    done = cli.json("sweep", "--yes")
    assert done["deleted"] == 3
    names = {path.name for path in place.path.parent.rglob("*") if path.is_file()}
    assert crowd.kept in names
    assert not {crowd.orphan, crowd.unclaimed} & names
    assert not any(name.endswith(".tmp") for name in names)
    assert place.table().to_arrow() == before
    assert place.table().verify(deep=True) == []
    # The run that holds the writer goes on; the one that never claimed it is fenced.
    with crowd.live.begin(3) as txn:
        txn.write({"id": [8], "p": ["a"]})
    with pytest.raises(FencedError), crowd.unclaimed_run.begin(4) as txn:
        txn.write({"id": [9], "p": ["a"]})
    # Epochs up to 3 are committed now: what was staged for them, and by the fenced run, nobody can name any more.
    assert [one["action"] for one in cli.json("sweep", "--writer", "crowded")["plan"]] == ["delete", "delete"]
    assert cli.json("sweep", "--yes")["deleted"] == 2
    assert {one["action"] for one in cli.json("sweep")["plan"]} == {"keep"}
    assert cli.text("sweep") == "Nothing is to be done.\n"


@pytest.mark.parametrize("table_layout", ["parquet", "delta"])
def test_plans_name_files_by_paths_that_lead_to_them(place: Place, cli: Cli, table_layout: str) -> None:
    """Seen: files that lie in the table (Delta) were named as if they lay in a directory of their run."""
    Crowd(place, table_layout)
    dead = place.sink("dead")
    prepared(dead, 1, {"id": [1], "p": ["a"]})
    stage(dead, 2)
    for command, *suffixes in (["sweep", ".parquet", ".tmp"], ["recover", ".parquet"], ["abort", ".parquet"]):
        steps = cli.json(command, *(["dead", 1] if command == "abort" else []))["plan"]
        named = {step["path"]: step["bytes"] for step in steps if "path" in step}
        assert {path: (place.path / path).stat().st_size for path in named} == named
        marks = [""] if table_layout == "delta" else []
        assert {Path(path).suffix for path in named} == {*suffixes, *marks}


def test_the_plan_of_a_conversion_names_staged_files_by_paths_that_lead_to_them(place: Place, cli: Cli) -> None:
    place.write(0, {"id": [1]})
    name = stage(one_shot(place, "w"), 1)
    path, size = next(
        (step["path"], step["bytes"]) for step in cli.json("convert", "--to", "delta")["plan"] if "path" in step
    )
    assert (Path(path).name, Path(path).stat().st_size) == (name, size)


def test_sweep_of_one_writer_leaves_the_others_files(place: Place, cli: Cli) -> None:
    place.write(0, {"id": [1]})
    first, second = stage(one_shot(place, "a"), 1), stage(one_shot(place, "b"), 1)
    assert cli.json("sweep", "--writer", "a", "--yes")["deleted"] == 1
    names = {path.name for path in place.path.parent.rglob("*.parquet")}
    assert first not in names
    assert second in names
    assert cli.json("sweep", "--yes")["deleted"] == 1


def test_sweep_of_a_clean_table_has_nothing_to_do(place: Place, cli: Cli) -> None:
    place.write(0, {"id": [1]})
    assert cli.text("sweep", "--yes") == "Nothing is to be done.\n"


# -- errors, usage, printing --------------------------------------------------------------------------


@pytest.mark.parametrize("command", [*READING, "recover", "sweep"])
def test_a_path_without_a_table_is_an_error_and_nothing_is_created(place: Place, cli: Cli, command: str) -> None:
    told = cli.refused(command).splitlines()
    assert [line.partition(":")[0] for line in told] == ["error", "found", "do"]
    error = json.loads(cli.refused(command, "--output", "json"))["error"]
    assert (error["kind"], error["found"]) == ("invalid-request", "there is no txsink table")
    assert set(error) == {"kind", "retryable", "attempted", "found", "do", "context"}
    assert list(place.path.parent.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["status"],
        ["status", "T", "--output", "xml"],
        ["explain", "T", "w"],
        ["explain", "T", "w", "1.5"],
        ["explain", "T", "w", str(2**63)],
        ["files", "T", "--version", "x"],
        ["log", "T", "--limit", "-1"],
        ["recover", "T", "--up-to", "3"],
        ["recover", "T", "--on-newer", "maybe"],
        ["recover", "T", "--on-newre", "fail"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == USAGE
    assert "Usage: txsink" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["txsink", "txsink.cli.main"])
def test_a_module_is_run_as_the_command(place: Place, module: str) -> None:
    place.write(0, {"id": [1]})
    done = subprocess.run(
        [sys.executable, "-m", module, "files", str(place.path), "--output", "json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert len(json.loads(done.stdout)["files"]) == 1
    wrong = subprocess.run([sys.executable, "-m", module, "nonsense"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, "Usage: txsink" in wrong.stderr) == (USAGE, True)


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == OK
    shown = capsys.readouterr().out
    for name in (*READING, "recover", "abort", "sweep", "explain"):
        assert f"  {name} " in shown
    assert "traceback" not in shown


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == OK
    assert capsys.readouterr().out == f"txsink, version {txsink.__version__}\n"


def test_a_traceback_is_shown_only_when_asked_for(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(place.path)]) == ERROR
    assert "Traceback" not in capsys.readouterr().err
    assert main(["--traceback", "status", str(place.path)]) == ERROR
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["click", "rich"])
def test_without_the_extra_the_command_says_how_to_get_it(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert main(["status", "T"]) == ERROR
    assert "pip install 'txsink[cli]'" in capsys.readouterr().err


def test_hostile_names_reach_the_terminal_as_printable_text_only(place: Place, cli: Cli) -> None:
    evil = "[bold red]x[/]\x1b[31m\r\x07:smile:\n\u202eend [link=file:]"
    place.write(0, {"id": [1], "p": ["[red]\x1b]0;t\x07"]}, writer=evil, partition_by="p", metadata={"\x1b": "\x1b"})
    unclaimed = one_shot(place, evil)
    prepared(place.sink(evil), 1, {"id": [1], "p": ["a"]})
    stage(unclaimed, 2)
    shown = [cli.text(*command) for command in (*((name,) for name in READING), ("recover",), ("sweep",))]
    shown += [cli.text("explain", evil, 0), cli.text("abort", evil, 1), cli.refused("abort", evil, 7)]
    shown += [cli.refused("recover", "--writer", f"{evil}?")]
    for text in shown:
        assert all(char == "\n" or char.isprintable() for char in text)
    assert all(
        "[bold red]x[/]\\x1b[31m\\r\\x07:smile:\\n\\u202eend [link=file:]" in text for text in shown[:1] + shown[7:9]
    )
    assert cli.json("status")["writers"][0]["writer"] == evil


def test_what_cannot_be_printed_is_spelled_out() -> None:
    assert printable("a\tb\x00\u200b\ud800 ü") == "a\\tb\\x00\\u200b\\ud800 ü"


def test_a_stream_that_speaks_only_ascii_gets_escapes(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place.write(0, {"id": [1]}, writer="grün")
    with (tmp_path / "out").open("w", encoding="ascii") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert main(["status", str(place.path)]) == OK
    assert "gr\\xfcn" in (tmp_path / "out").read_text()


def test_what_is_no_terminal_gets_no_colour_and_one_line_a_row(
    place: Place, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "20")
    place.write(0, {"id": [1]}, writer="w" * 60)
    shown = cli.text("files")
    assert "\x1b" not in shown
    assert len(shown.splitlines()) == 2
