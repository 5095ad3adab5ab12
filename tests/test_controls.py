"""Negative controls: the crash proof reports what is broken, else its silence would prove nothing (I1-I14).

Every variant breaks one line of the engine; the enumeration of crashes or races that the proof uses must stop at a
violation of the expected kind. Every `# ORDER:` comment of the engine has a variant. On the engine as it is no search
reports anything, else a false alarm would pass for a catch.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

import crash_races
from broken import Swap, rewrite
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


def variant(target: str, before: str, after: str, search: Search, kinds: str) -> Variant:
    return Variant([(target, [(before, after)])], search, kinds)


# By the beginning of the `# ORDER:` comment that the variant breaks, where it breaks one.
VARIANTS: dict[str, Variant] = {
    "bytes durable before the record exists": variant(  # no file fsync
        "parquet.ParquetOutput.seal", "self._output.seal()", "self._output._empty()", APPENDS, "I6|I8"
    ),
    "adopted bytes durable before their record exists": variant(
        "store.local.LocalStore.adopt",
        "self._os.fsync(handle)",
        "pass",
        crashes("adopt_what_another_program_wrote"),
        "I6|I8",
    ),
    "content durable before its name": variant(
        "store.local.LocalStore._put_once", "durable=True", "durable=False", APPENDS, "I13"
    ),
    "name durable before return, else a power cut takes back": variant(
        "store.local.LocalStore._put_once", "self._sync_names(_parent(path))", "pass", APPENDS, "I3|I13"
    ),
    "name durable before return, else a power cut brings": variant(
        "store.local.LocalStore.replace", "self._sync_names(_parent(path))", "pass", replaced_for_good, "I3"
    ),
    "new names durable before old ones go": Variant(
        [
            (
                "store.local.LocalStore.move",
                [
                    ("    self.settle([target for _, target in moves])\n", ""),
                    ("    return undone", "    self.settle([target for _, target in moves])\n    return undone"),
                ],
            )
        ],
        APPENDS,
        "I6|I8",
    ),
    "no directory fsync": variant(
        "store.local.LocalStore._sync_directory", "self._os.fsync(handle)", "pass", APPENDS, "I13"
    ),
    "append overwrites": variant(
        "store.local.LocalStore._put_once",
        "self._os.link",
        "self._os.replace",
        race(ACTS["commit"], crash_races.appends),
        "I7",
    ),
    "publish overwrites": variant(
        "store.local.LocalStore._link", "self._os.link", "self._os.replace", nothing_is_overwritten, "F14"
    ),
    "names of staged files durable before the prepare entry": variant(
        "transaction.prepare", "    publisher.settle(content.staged)\n", "", APPENDS, "I8"
    ),
    "`publishing` entry before the first removal": Variant(
        [
            (
                "transaction.roll_forward",
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
                "transaction.roll_forward",
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
        "transaction.roll_forward",
        "    except CorruptError:\n",
        "    except Exception as error:\n        if type(error) is not CorruptError:\n"
        "            publisher.withdraw(prepared)\n            raise\n",
        refusals("append_two_partitions"),
        "I8",
    ),
    "abort deletes before its entry": variant(
        "writer.Sink.abort",
        "            is_meant = pending.epoch == epoch\n",
        "            is_meant = pending.epoch == epoch\n"
        "            self.publisher.withdraw(self.log.prepare_entry(pending.prepared))\n",
        crashes("abort_a_prepared_epoch"),
        "I8",
    ),
    "replay unchecked": Variant(
        [
            ("transaction.is_committed", [("last is None or epoch > last", "True")]),
            ("log.Log.append", [("self._require_fit(entry)", "pass")]),  # which would refuse the entry
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
                    ("    for path in staged:\n        self.store.delete(path)\n", ""),
                    (
                        "    self._prune",
                        "    for path in staged:\n        self.store.delete(path)\n    self._prune",
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
                "recovery.finish_aborts",
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
                "log.Log.refresh",
                [
                    ("    before = self.state\n", "    before = self.state\n    stands = self._stands(before)\n"),
                    ("if self._is_behind(before, problem):", "if not stands:"),
                ],
            )
        ],
        race(Act(with_a_sleeper, {}, catch_up_and_commit), log_expires_and_sleeper_commits),
        "I3|I7",
    ),
    "entries read durable before the next one gets its name": variant(
        "log.Log.append", "    self.settle()\n", "    pass\n", survival(crash_races.survivor_commits), "I13|I3|I7"
    ),
    "the entry before looked at again before the append counts": variant(
        "log.Log.append", "if stands:", "if True:", race(ACTS["commit"], crash_races.appends_and_expires), "I3|I7"
    ),
    "entries read durable before segments that repeat them": variant(
        "log.Log.maintain", "self.settle()\n", "pass\n", survival(crash_races.survivor_gets_a_late_notice), "I7"
    ),
    "entries read durable before the hint that counts on them": variant(
        "log.Log.hint", "self.settle()\n", "pass\n", survival(crash_races.survivor_gets_a_late_notice, 1), "I13"
    ),
    "entries read durable before the answer": variant(
        "writer.Sink._is_committed", "    self.log.settle()\n", "", survival(crash_races.survivor_replays), "I3"
    ),
    "staged listed before the log is read, else an entry that lands": Variant(
        [
            (
                "recovery.forget",
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
        "recovery.sweep", "    log.refresh()\n", "", race(SWEEP, same_run_goes_back), "I8"
    ),
    "retired before swept": variant(  # unfenced sweep
        "recovery.sweep",
        "        claim(log, run, tuple(sorted(unclaimed)))\n",
        "        pass\n",
        race(SLOW, sweeps),
        "I8|I6",
    ),
    "boundary in the log before the first deletion": variant(
        "recovery.expire",
        "    log.append(make)\n    _expire_below(log, first, log.state.boundary)\n",
        "    _expire_below(log, first, min(before, base.version) if base else 0)\n    log.append(make)\n",
        crashes("expire_what_is_old"),
        "I8|I13",
    ),
    "segments and summary durable before the entries": variant(
        "recovery._expire_below",
        '    log.store.settle([f"{log.root}/{path}" for path',
        '    print([f"{log.root}/{path}" for path',
        survival(crash_races.survivor_expires),
        "I13",
    ),
    "newest state durable as the hint before the first entry": variant(
        "recovery._expire_below",
        "    log.keep_hint()\n",
        "",
        crashes("expire_while_something_is_pending"),
        "I13",
    ),
    "older names before newer ones": variant(
        "recovery._expire_below",
        "    for name in sorted(log.store.list(at)):",
        "    for name in sorted(log.store.list(at), reverse=True):",
        race(EXPIRE, sleeper_commits),
        "I1|I3|I7",
    ),
    "commits read durable before the next one gets its name": variant(
        "delta.DeltaLog.commit",
        "    self.settle()\n",
        "    pass\n",
        survival(crash_races.survivor_commits, table_layout="delta"),
        "I13|I1|I6",
    ),
    "publish made impossible before the abort entry": variant(
        "transaction.abort",
        "if not publisher.forbid(log.prepare_entry(pending.prepared)):",
        "if False:",
        race(RESTORE, zombie_publishes, table_layout="delta"),
        "I1",
    ),
    "mark durable before the first file": variant(
        "writer.Sink.about_to_stage",
        "leave_mark(",
        "print(",
        crashes("delta_append_one_epoch"),
        "I9",
    ),
    "files durably gone before the marks that lead to them": variant(
        "publish.delta.DeltaPublisher.drop",
        "    self.store.settle(files)\n",
        "",
        crashes("delta_sweep_what_a_dead_run_left"),
        "I9",
    ),
    "files durably gone before the `cleaned` entry": variant(
        "publish.delta.DeltaPublisher.withdraw",
        "self.store.settle(paths)",
        "pass",
        crashes("delta_recover_commits_some_and_aborts_others"),
        "I9",
    ),
    "aborts that share one record": variant(  # an abort of a later epoch takes earlier ones along
        "publish.delta.DeltaPublisher._poison",
        "_app_id(prepare) if is_next else _abort_id(prepare)",
        "_app_id(prepare)",
        crashes("delta_abort_an_overwrite"),
        "I1|I14",
    ),
    "a retired run's files without a mark": variant(
        "publish.delta.DeltaPublisher.remain",
        "leave_mark(",
        "print(",
        race(ACTS["commit"], crash_races.takes_over, table_layout="delta"),
        "I9",
    ),
}


# Comments whose swap is caught by a test of its own module.
ELSEWHERE = {
    "the commit we build on looked at again before ours gets its name": (
        "test_delta_cleanup.py",
        "test_a_table_made_anew_under_the_path_takes_nothing_of_an_open_writer",
    ),
    "the last checkpoint looked at before ours counts": (
        "test_delta_cleanup.py",
        "test_a_commit_into_a_slot_that_was_cleaned_up_is_made_again",
    ),
    "commits read before the one we started from is looked at once more": (
        "test_delta_cleanup.py",
        "test_a_dead_commit_of_another_sleeper_is_not_believed",
    ),
    "checkpoint durable before the pointer to it": (
        "test_delta_upkeep.py",
        "test_a_power_cut_never_leaves_a_pointer_to_a_torn_checkpoint",
    ),
    "mark durable before a worker's first file": (
        "test_stager.py",
        "test_a_worker_that_dies_anywhere_leaves_a_mark_that_leads_to_its_files",
    ),
    "attempt durable before the first row is staged": (
        "test_two_phase.py",
        "test_at_most_once_never_writes_an_epoch_that_was_begun_before",
    ),
    "Delta's commit before the entry that makes it count": (
        "test_convert.py",
        "test_a_conversion_may_crash_at_any_store_call_and_is_finished_by_doing_it_again",
    ),
    "converted before staged files go": (
        "test_convert.py",
        "test_a_conversion_that_dies_just_before_an_epoch_is_prepared_takes_none_of_its_files",
    ),
    "closed to writers before a file goes": (
        "test_convert.py",
        "test_an_epoch_that_is_committed_at_any_store_call_of_a_conversion_is_in_it",
    ),
    "gone durably before the entry": (
        "test_convert.py",
        "test_no_power_cut_in_a_conversion_shows_a_directory_reader_what_was_replaced",
    ),
    "converted before Delta's log goes": (
        "test_convert.py",
        "test_a_conversion_may_crash_at_any_store_call_and_is_finished_by_doing_it_again",
    ),
    "an abort's files deleted before its epoch is published anew": (
        "test_abort_unfinished.py",
        "test_the_abort_is_finished_before_what_was_aborted_is_replaced",
    ),
    "aborts finished before the next prepare entry": (
        "test_abort_unfinished.py",
        "test_a_writer_opened_without_recovery_finishes_an_abort_before_it_writes",
    ),
    "a file read whole before it gets its name": (
        "test_store_hdfs.py",
        "test_a_file_gets_its_name_once_it_can_be_read_whole",
    ),
}


def orders() -> list[str]:
    """Every `# ORDER:` comment of the engine, without its mark."""
    engine = Path(__file__).parents[1] / "txsink"
    lines = (line for path in sorted(engine.rglob("*.py")) for line in path.read_text(encoding="utf-8").splitlines())
    return [line.partition("# ORDER: ")[2] for line in lines if "# ORDER: " in line]


def test_every_order_that_the_engine_keeps_has_a_variant_that_breaks_it() -> None:
    known = [*VARIANTS, *ELSEWHERE]
    for text in orders():
        assert sum(text.startswith(name) for name in known) == 1, text
    for file, name in ELSEWHERE.values():
        assert f"def {name}(" in Path(__file__).with_name(file).read_text(encoding="utf-8")


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
