"""Negative controls: the crash proof reports what is broken, else its silence would prove nothing (I1-I14).

Every variant breaks one line of the engine; the enumeration of crashes or races that the proof uses must stop at a
violation of the expected kind. Every `# ORDER:` comment of the engine has a control of its own: here or, where the
search is a test of another module, in `controls_elsewhere.py`. On the engine as it is no search reports anything, else
a false alarm would pass for a catch.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import crash_races
from broken import Swap, rewrite
from code_map import MODULES, name_of, path_of
from controls_elsewhere import CONTROLS, ON_SERVERS, UNCOVERED
from crash_races import ACTS, SURVIVORS, Act
from crash_searches import (
    APPENDS,
    CRASH_STATES_MAX,
    EXPIRE,
    FORGET,
    RESTORE,
    SLOW,
    SWEEP,
    Search,
    catch_up_and_commit,
    crashes,
    log_expires_and_sleeper_commits,
    nothing_is_overwritten,
    race,
    refusals,
    replaced_for_good,
    same_run_goes_back,
    same_run_prepares,
    sleeper_commits,
    survival,
    sweeps,
    with_a_sleeper,
    zombie_publishes,
)
from txsink.testing.crash_book import Violation
from txsink.testing.objects import Objects

# -- variants ---------------------------------------------------------------------------------------------


CANCEL = "[self.store.cancel(self._path(f.path), u.id) for f, u in zip(prepare.files, prepare.uploads)]"


class Variant(NamedTuple):
    """What is broken, where that shows, and as what."""

    broken: list[tuple[str, list[Swap]]]
    search: Search
    kinds: str
    order_in: str = ""  # the function with the comment, where it is not the first that is broken


def variant(target: str, before: str, after: str, search: Search, kinds: str) -> Variant:
    return Variant([(target, [(before, after)])], search, kinds)


# By the beginning of the `# ORDER:` comment that the variant breaks, where it breaks one.
VARIANTS: dict[str, Variant] = {
    "bytes durable before the record exists": variant(  # no file fsync
        "staging.parquet.ParquetOutput.seal", "self._output.seal()", "self._output._empty()", APPENDS, "I6|I8"
    ),
    "adopted bytes durable before their record exists": variant(
        "store.local.store.LocalStore.adopt",
        "self._sync_opened(path, os.O_RDONLY)",
        "pass",
        crashes("adopt_what_another_program_wrote"),
        "I6|I8",
    ),
    "content durable before its name": variant(
        "store.local.store.LocalStore._put_once", "durable=True", "durable=False", APPENDS, "I13"
    ),
    "name durable before return, else a power cut takes back": variant(
        "store.local.store.LocalStore._put_once", "self._sync_names(_parent(path))", "pass", APPENDS, "I3|I13"
    ),
    "name durable before return, else a power cut brings": variant(
        "store.local.store.LocalStore.replace", "self._sync_names(_parent(path))", "pass", replaced_for_good, "I3"
    ),
    "new names durable before old ones go": Variant(
        [
            (
                "store.local.store.LocalStore.link",
                [("    self.settle([target for _, target in moves])\n", "")],
            ),
            (
                "store.local.store.LocalStore.move",
                [("    return undone", "    self.settle([target for _, target in moves])\n    return undone")],
            ),
        ],
        APPENDS,
        "I6|I8",
        order_in="store.local.store.LocalStore.move",
    ),
    "no directory fsync": variant(
        "store.local.store.LocalStore._sync_directory",
        "self._sync_opened(path, os.O_RDONLY | os.O_DIRECTORY)",
        "pass",
        APPENDS,
        "I13",
    ),
    "append overwrites": variant(
        "store.local.store.LocalStore._put_once",
        "self._os.link",
        "self._os.replace",
        race(ACTS["commit"], crash_races.appends),
        "I7",
    ),
    "publish overwrites": variant(
        "store.local.store.LocalStore._link", "self._os.link", "self._os.replace", nothing_is_overwritten, "F14"
    ),
    "names of staged files durable before the prepare entry": variant(
        "protocol.preparing.prepare", "    publisher.settle(content.staged)\n", "", APPENDS, "I8"
    ),
    "`publishing` entry before the first removal": Variant(
        [
            (
                "protocol.resolving.roll_forward",
                [
                    ("log.append(_resolving(log, run, pending, Publishing))\n", "publisher.replace(prepared)\n"),
                    (
                        "            publisher.replace(prepared)\n        published",
                        "            log.append(_resolving(log, run, pending, Publishing))\n        published",
                    ),
                ],
            )
        ],
        race(ACTS["overwrite"], crash_races.takes_over_and_aborts),
        "I1|I6",
    ),
    "all files published before the commit entry": Variant(  # log before data
        [
            (
                "protocol.resolving.roll_forward",
                [
                    ("        published = publisher.publish(prepared)\n", "        pass\n"),
                    ("    if not published.is_visible:\n", "    if False:\n"),
                    (", Commit, **published.told)", ", Commit)"),
                    ("    last = ", "    publisher.publish(prepared)\n    last = "),
                ],
            )
        ],
        APPENDS,
        "I1|I6",
    ),
    "delete on commit error": variant(
        "protocol.resolving.roll_forward",
        "    except (CorruptError, UnavailableError):\n",
        "    except Exception as error:\n        if type(error) is not CorruptError:\n"
        "            publisher.withdraw(prepared)\n            raise\n",
        refusals("append_two_partitions"),
        "I8",
    ),
    "abort deletes before its entry": variant(
        "writing.writer.Writer.drop",
        "        is_meant = pending.epoch == epoch\n",
        "        is_meant = pending.epoch == epoch\n"
        "        self.publisher.withdraw(self.log.prepare_entry(pending.prepared))\n",
        crashes("abort_a_prepared_epoch"),
        "I8",
    ),
    "replay unchecked": Variant(
        [
            ("protocol.preparing.is_committed", [("last is None or epoch > last", "True")]),
            ("log.log.Log.append", [("self._require_fit(entry)", "pass")]),  # which would refuse the entry
        ],
        crashes("write_once_and_replay"),
        "I4",
    ),
    "names found in place durable before the commit entry": variant(
        "publish.rename.RenamePublisher.publish",
        "self.store.settle([target for _, target in published])",
        "pass",
        crashes("append_two_partitions", quota=CRASH_STATES_MAX),
        "I1|I3|I6|I8",
    ),
    "old names durably gone before new files come": variant(
        "publish.rename.RenamePublisher.replace",
        "    self.store.settle([path for path, _ in moves])\n",
        "",
        crashes("overwrite_the_table"),
        "I1",
    ),
    "staged deleted before published": Variant(
        [
            (
                "publish.rename.RenamePublisher.withdraw",
                [
                    ("        self.store.delete(path)\n", "        pass\n"),
                    (
                        "        self._prune",
                        (
                            "        for file in prepare.files:\n"
                            "            self.store.delete(self.staged_path(prepare, file))\n"
                            "        self._prune"
                        ),
                    ),
                ],
            )
        ],
        race(RESTORE, zombie_publishes),
        "I1|I9",
    ),
    "uploads dropped before completed files are deleted": Variant(
        [
            (
                "publish.multipart.MultipartPublisher.withdraw",
                [
                    ("        self.store.cancel(self._path(file.path), upload.id)\n", "        pass\n"),
                    (
                        "            self.store.delete(path)\n",
                        f"            self.store.delete(path)\n    {CANCEL}\n",
                    ),
                ],
            )
        ],
        race(RESTORE, zombie_publishes, Objects),
        "I1|I9",
    ),
    "published names durably gone before the `cleaned` entry": variant(
        "publish.rename.RenamePublisher.withdraw",
        "    self.store.settle(",
        "    print(",
        crashes("abort_what_was_half_published"),
        "I1",
    ),
    "all files deleted before the `cleaned` entry": Variant(
        [
            (
                "protocol.recovery.finish_aborts",
                [
                    ("    for item in mine:\n        publisher", "    for item in ():\n        publisher"),
                    (
                        "    log.append(make)",
                        "    log.append(make)\n    [publisher.withdraw(log.prepare_entry(x.prepared)) for x in mine]",
                    ),
                ],
            )
        ],
        crashes("abort_what_was_half_published"),
        "I1|I9",
    ),
    "slots read before the entry we started from is looked at": Variant(
        [
            (
                "log.log.Log.refresh",
                [
                    ("    before = self.state\n", "    before = self.state\n    stands = self._stands(before)\n"),
                    ("if self._is_behind(before, problem):", "if not stands:"),
                ],
            ),
            # Else the sleeper, which looks before it puts, would seldom leave anything to be misread.
            ("log.log.Log.append", [('if not self.is_as_read(slot["time_ms"]):', "if False:")]),
        ],
        race(Act(with_a_sleeper, {}, catch_up_and_commit), log_expires_and_sleeper_commits),
        "I3|I7",
        order_in="log.log.Log._is_behind",
    ),
    "entries read durable before the next one gets its name": variant(
        "log.log.Log.append", "    self.settle()\n", "    pass\n", survival(crash_races.survivor_commits), "I13|I3|I7"
    ),
    "the entry before looked at again before the append counts": variant(
        "log.log.Log.append", "if stands:", "if True:", race(ACTS["commit"], crash_races.appends_and_expires), "I3|I7"
    ),
    "entries read durable before segments that repeat them": variant(
        "log.log.Log.maintain", "self.settle()\n", "pass\n", survival(crash_races.survivor_gets_a_late_notice), "I7"
    ),
    "entries read durable before the hint that counts on them": variant(
        "log.log.Log.hint", "self.settle()\n", "pass\n", survival(crash_races.survivor_gets_a_late_notice, 1), "I13"
    ),
    "entries read durable before the answer": variant(
        "writing.writer.Writer._is_committed",
        "    self.log.settle()\n",
        "",
        survival(crash_races.survivor_replays),
        "I3",
    ),
    "staged listed before the log is read, else an entry that lands": Variant(
        [
            (
                "protocol.sweeping.forget",
                [
                    ("    log.refresh()\n", ""),
                    ("    found = own\n", "    log.refresh()\n    found = own\n"),
                ],
            )
        ],
        race(FORGET, same_run_prepares),
        "I8",
    ),
    "staged listed (by the caller) before the log is read": variant(
        "protocol.sweeping.sweep", "    log.refresh()\n", "", race(SWEEP, same_run_goes_back), "I8"
    ),
    "retired before swept": variant(  # unfenced sweep
        "protocol.sweeping.sweep",
        "        claim(log, run, tuple(sorted(unclaimed)))\n",
        "        pass\n",
        race(SLOW, sweeps),
        "I8|I6",
    ),
    "boundary in the log before the first deletion": variant(
        "log.expiry.expire",
        "    log.append(make)\n    _expire_below(log, first, log.state.boundary)\n",
        "    _expire_below(log, first, min(before, base.version) if base else 0)\n    log.append(make)\n",
        crashes("expire_what_is_old"),
        "I8|I13",
    ),
    # What is irreplaceable stands twice, and to write the second copy syncs the first: here there is none.
    "segments and summary durable before the entries": Variant(
        [
            (
                "log.expiry._expire_below",
                [
                    ('    log.store.settle([f"{log.root}/{path}" for path', '    str([f"{log.root}/{path}" for path'),
                    ("for one in (*segment.children(*pair), pair)]", "for one in (pair,)]"),
                    ("log.ensure_segments(twice=True)", "log.ensure_segments()"),
                ],
            )
        ],
        survival(crash_races.survivor_expires),
        "I13",
    ),
    "older names before newer ones": variant(
        "log.expiry._expire_below",
        "    for name in sorted(log.store.list(at)):",
        "    for name in sorted(log.store.list(at), reverse=True):",
        race(EXPIRE, sleeper_commits),
        "I1|I3|I7",
    ),
    "commits read durable before the next one gets its name": variant(
        "delta.log.DeltaLog.commit",
        "    self.settle()\n",
        "    pass\n",
        survival(crash_races.survivor_commits, table_layout="delta"),
        "I13|I1|I6",
    ),
    "publish made impossible before the abort entry": variant(
        "protocol.resolving.abort",
        "if (forbidden := publisher.forbid(log.prepare_entry(pending.prepared))).is_visible:",
        "forbidden = type('', (), {'told': {}})\n    if False:",
        race(RESTORE, zombie_publishes, table_layout="delta"),
        "I1",
    ),
    "mark durable before the first file": variant(
        "writing.writer.Writer.about_to_stage",
        "leave_mark(",
        "print(",
        crashes("delta_append_one_epoch"),
        "I9",
    ),
    "files durably gone before the marks that lead to them": variant(
        "publish.delta.publisher.DeltaPublisher.drop",
        "    self.store.settle(files)\n",
        "",
        crashes("delta_sweep_what_a_dead_run_left"),
        "I9",
    ),
    "files durably gone before the `cleaned` entry": variant(
        "publish.delta.publisher.DeltaPublisher.withdraw",
        "self.store.settle(paths)",
        "pass",
        crashes("delta_recover_commits_some_and_aborts_others"),
        "I9",
    ),
    "aborts that share one record": variant(  # an abort of a later epoch takes earlier ones along
        "publish.delta.publisher.DeltaPublisher._poison",
        "states.app_id(prepare.writer) if is_next else states.abort_id(prepare.writer, prepare.version)",
        "states.app_id(prepare.writer)",
        crashes("delta_abort_an_overwrite"),
        "I1|I14",
    ),
    "a retired run's files without a mark": variant(
        "publish.delta.publisher.DeltaPublisher.remain",
        "leave_mark(",
        "print(",
        race(ACTS["commit"], crash_races.takes_over, table_layout="delta"),
        "I9",
    ),
}


class Comment(NamedTuple):
    """An `# ORDER:` comment: the function it stands in, by the map, and what it says."""

    function: str
    text: str


def orders() -> Iterator[Comment]:
    """Every `# ORDER:` comment of the engine and of the plug-in."""
    for module in MODULES:
        text = path_of(module).read_text(encoding="utf-8")
        spans = [*functions_of(ast.parse(text), "")]
        for number, line in enumerate(text.splitlines(), 1):
            if "# ORDER: " in line:
                inner = [name for first, last, name in spans if first <= number <= last][-1]
                yield Comment(name_of(module, inner), line.partition("# ORDER: ")[2])


def functions_of(node: ast.AST, outer: str) -> Iterator[tuple[int, int, str]]:
    """First line, last line and name of each function and class, the inner ones after those they lie in."""
    for one in ast.iter_child_nodes(node):
        name = outer
        if isinstance(one, (ast.FunctionDef, ast.ClassDef)):
            name = f"{outer}.{one.name}".lstrip(".")
            yield one.lineno, one.end_lineno or one.lineno, name
        yield from functions_of(one, name)


# By the beginning of the comment, and the function it stands in: what is broken there.
KNOWN = [
    *((one.order_in or one.broken[0][0], text) for text, one in VARIANTS.items()),
    *((one.order_in, text) for text, one in CONTROLS.items()),
    *((where, text) for text, (where, _) in (ON_SERVERS | UNCOVERED).items()),
]


def test_every_order_that_the_engine_keeps_has_a_control_of_its_own_that_breaks_it_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = [*orders()]
    matched: list[tuple[str, str]] = []
    for comment in found:
        mine = [one for one in KNOWN if comment.function == one[0] and comment.text.startswith(one[1])]
        assert len(mine) == 1, (comment, mine)
        matched += mine
    assert len(matched) == len({*matched}), "one control for two comments"
    for stale in (CONTROLS, ON_SERVERS, UNCOVERED):
        assert {*stale} <= {text for _, text in matched}, "no comment says so any more"
    for reason in (reason for _, reason in UNCOVERED.values()):
        assert len(reason) > 40
    for file, _, name in (test.partition("::") for _, test in ON_SERVERS.values()):
        assert f"def {name}(" in Path(__file__).with_name(file).read_text(encoding="utf-8")
    with capsys.disabled():
        print(f"\norders: {len(found)} comments, {len(UNCOVERED)} without a control")


def test_a_comment_is_known_by_the_function_it_stands_in() -> None:
    text = "class A:\n    def f(self):\n        def g():\n            pass\n        x\n"
    assert [*functions_of(ast.parse(text), "")] == [(1, 5, "A"), (2, 5, "A.f"), (3, 4, "A.f.g")]


@cache
def seen_elsewhere() -> dict[str, str]:
    """What fails of each control whose search is a test of another module."""
    program = Path(__file__).with_name("controls_elsewhere.py")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("name", CONTROLS)
def test_the_test_of_another_module_reports_what_is_broken(name: str) -> None:
    failed = seen_elsewhere()[name]
    print(name, "=>", failed)
    assert failed.partition("[")[0] == f"tests/{CONTROLS[name].test}"


def searches() -> dict[str, Search]:
    """Each search once, by the name of a variant, but for those that `test_crash_races.py` runs as they are."""
    found: dict[str, Search] = {}
    for name, chosen in VARIANTS.items():
        if chosen.search not in [*found.values(), *map(survival, SURVIVORS)]:
            found[name] = chosen.search
    return found


@pytest.mark.parametrize("name", searches())
def test_the_search_for_it_reports_nothing_on_the_engine_as_it_is(name: str) -> None:
    VARIANTS[name].search()


def test_every_variant_names_the_invariants_or_scenarios_it_must_be_caught_by() -> None:
    for name, chosen in VARIANTS.items():
        assert re.fullmatch(r"[IF]\d+(\|[IF]\d+)*", chosen.kinds), name


@pytest.mark.parametrize("name", VARIANTS)
def test_the_proof_reports_what_is_broken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = VARIANTS[name]
    for target, swaps in chosen.broken:
        rewrite(monkeypatch, target, *swaps)
    with pytest.raises(Violation) as found:
        chosen.search()
    print(name, "=>", found.value)
    assert found.value.kind.split()[0] in chosen.kinds.split("|"), found.value
