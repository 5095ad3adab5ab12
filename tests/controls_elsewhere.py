"""Negative controls whose searches are tests of other modules: each line that keeps an order, broken, fails its test.

Promises: `main` runs the tests as they are, which must pass, and each on the engine with its line broken, in a copy of
the tree; it prints what failed of each control (nothing: what is broken is not seen), as JSON.
Relies on: `mutation_trials`.
Does not promise: that a test fails for the right reason. Its name says what it promises.

    python tests/controls_elsewhere.py
"""

from __future__ import annotations

import ast
import json
from typing import NamedTuple

import code_map
from mutation_trials import trials


class Control(NamedTuple):
    """The function with the comment, what stands there once and what instead, and the test that sees it."""

    order_in: str
    before: str
    after: str
    test: str


# By the beginning of the `# ORDER:` comment that is broken.
CONTROLS: dict[str, Control] = {
    # Not a search: the logs of the searches are so short that the look beyond their end finds what went out of order.
    "newest state durable as the hint before the first entry": Control(
        "log.expiry._expire_below",
        "    log.keep_hint()\n",
        "",
        "test_expiry.py::test_entries_go_after_what_repeats_them_is_durable_and_are_durably_gone_at_the_end",
    ),
    "newest entry known looked at before ours gets its name": Control(
        "log.log.Log.append",
        'if not self.is_as_read(slot["time_ms"]):',
        "if False:",
        "test_log_gaps.py::test_a_writer_of_a_table_that_was_restored_plants_nothing_and_says_so",
    ),
    "newest entry known looked at before the first file is published": Control(
        "writing.writer.Writer._look_and_claim",
        "is_as_read = self.log.is_as_read(self.log.stamps.now_ms(), to_the_end=False)",
        "is_as_read = True",
        "test_look.py::test_a_writer_of_a_table_that_is_another_publishes_and_removes_nothing",
    ),
    "newest entry known looked at before an aborted file goes": Control(
        "protocol.recovery.finish_aborts",
        "log.is_as_read(log.stamps.now_ms(), to_the_end=False)",
        "pass",
        "test_look.py::test_what_was_aborted_keeps_its_files_in_a_table_that_was_restored",
    ),
    "maintenance entry before the names beyond it go": Control(
        "upkeep.repair.set_aside",
        "if not log.slots.put(entry.version, entries.encode(entry), entry.write_id):",
        "if False:",
        "test_repair.py::test_two_repairs_at_once_do_not_both_act",
    ),
    "names beyond seen before the slot is read again": Control(
        "log.log.Log._require_whole",
        "if self.refresh().version == before:",
        "if True:",
        "test_log_gaps.py::test_entries_that_land_while_the_end_is_looked_at_are_no_gap",
    ),
    "an entry seen missing before what tells of it is listed again": Control(
        "log.gaps.newest_known",
        "if _last_told(slots, directory) == told:",
        "if True:",
        "test_log_gaps.py::test_a_summary_that_expires_while_it_is_looked_for_tells_of_no_loss",
    ),
    "the commit we build on looked at again before ours gets its name": Control(
        "delta.log.DeltaLog.commit",
        "if base >= 0 and self._end(base) != self._newest:",
        "if False:",
        "test_delta_cleanup.py::test_a_table_made_anew_under_the_path_takes_nothing_of_an_open_writer",
    ),
    "the last checkpoint looked at before ours counts": Control(
        "delta.log.DeltaLog.commit",
        "checkpoint = self._pointed()",
        "checkpoint = None",
        "test_delta_cleanup.py::test_a_commit_into_a_slot_that_was_cleaned_up_is_made_again",
    ),
    "commits read before the one we started from is looked at once more": Control(
        "delta.log.DeltaLog.refresh",
        "and self._end(start) != newest",
        "and False",
        "test_delta_cleanup.py::test_a_dead_commit_of_another_sleeper_is_not_believed",
    ),
    "Delta's record read before our log is read on": Control(
        "publish.delta.agreement.ahead",
        "    log.refresh()\n",
        "",
        "test_delta_older_log.py::test_what_another_run_has_prepared_and_published_meanwhile_is_not_lost",
    ),
    "names beyond seen before the log is loaded anew": Control(
        "publish.delta.agreement.require_whole",
        "if delta.load().version < lost:",
        "if True:",
        "test_delta_older_log.py::test_commits_of_others_that_land_while_the_end_is_looked_at_are_no_hole",
    ),
    "the number compared before the commit gets its name": Control(
        "publish.delta.again._PublisherThen.commit_at.make",
        "_require_next(found, version, what)",
        "pass",
        "test_delta_again.py::test_a_commit_of_another_program_that_comes_first_stops_it",
    ),
    "checkpoint durable before the pointer to it": Control(
        "delta.checkpoints._move_in",
        'store.settle([f"{log}/{name}" for name in checkpoints])',
        "pass",
        "test_delta_upkeep.py::test_a_power_cut_never_leaves_a_pointer_to_a_torn_checkpoint",
    ),
    "mark durable before a worker's first file": Control(
        "staging.stager.Stager.stage",
        "leave_mark(store, self.mark, self.new_id())",
        "pass",
        "test_stager.py::test_a_worker_that_dies_anywhere_leaves_a_mark_that_leads_to_its_files",
    ),
    "attempt durable before the first row is staged": Control(
        "two_phase.file_sink.ParquetFileSink._is_writable",
        "self._attempts.begin(txn.epoch).commit()",
        "pass",
        "test_two_phase.py::test_at_most_once_never_writes_an_epoch_that_was_begun_before",
    ),
    "newest entry known looked at before the mark goes": Control(
        "writing.writer.Writer._leaves_nothing",
        "not self.settings.place.mark or self.log.is_as_read(to_the_end=False)",
        "True",
        "test_sweep.py::test_a_writer_that_is_closed_after_a_restore_leaves_the_mark_that_leads_to_what_it_had_staged",
    ),
    "Delta's commit before the entry that makes it count": Control(
        "conversion.to_delta",
        "delta.commit(",
        "_append(log, at, DELTA, 0); delta.commit(",
        "test_convert.py::test_a_conversion_may_crash_at_any_store_call_and_is_finished_by_doing_it_again",
    ),
    "converted before staged files go": Control(
        "conversion.to_delta",
        'what = f"convert {log.root} to the layout delta"',
        'what = f"convert {log.root} to the layout delta"; _drop_staged(log)',
        "test_convert.py::test_a_conversion_that_dies_just_before_an_epoch_is_prepared_takes_none_of_its_files",
    ),
    "closed to writers before a file goes": Control(
        "conversion.to_parquet",
        "if at.layout == CLOSED or _append(",
        "if [_put_away(log, leaving(log, delta))] and at.layout == CLOSED or _append(",
        "test_convert.py::test_an_epoch_that_is_committed_at_any_store_call_of_a_conversion_is_in_it",
    ),
    "gone durably before the entry": Control(
        "conversion._put_away",
        'log.store.settle([f"{log.root}/{path}" for path in (*found.moved, *found.deleted)])',
        "pass",
        "test_convert.py::test_no_power_cut_in_a_conversion_shows_a_directory_reader_what_was_replaced",
    ),
    "converted before Delta's log goes": Control(
        "conversion.to_parquet",
        "_put_away(log, leaving(log, delta))",
        "_put_away(log, leaving(log, delta))\n"
        "            for name in delta_log_names(log, delta):\n"
        '                log.store.delete(f"{log.root}/{paths.DELTA_DIRECTORY}/{name}")',
        "test_convert.py::test_a_conversion_may_crash_at_any_store_call_and_is_finished_by_doing_it_again",
    ),
    "an abort's files deleted before its epoch is published anew": Control(
        "writing.writer.Writer.publish",
        "recovery.finish_aborts(self.log, self.identity, self.publisher)",
        "pass",
        "test_abort_unfinished.py::test_the_abort_is_finished_before_what_was_aborted_is_replaced",
    ),
    "aborts finished before the next prepare entry": Control(
        "writing.transaction.Transaction._prepare",
        "recovery.finish_aborts(sink.log, sink.identity, sink.publisher)",
        "pass",
        "test_abort_unfinished.py::test_a_writer_opened_without_recovery_finishes_an_abort_before_it_writes",
    ),
}

# Comments whose control needs a server, and is a test beside the one that must fail.
ON_SERVERS: dict[str, tuple[str, str]] = {
    "a file read whole before it gets its name": (
        "store.hdfs.store.HdfsStore._write_new.whole",
        "test_store_hdfs.py::test_a_file_that_gets_its_name_before_it_can_be_read_is_seen",
    ),
}

# Comments that nothing breaks, each with its reason.
UNCOVERED: dict[str, tuple[str, str]] = {}


def broken(control: Control) -> tuple[str, str]:
    """The module and its source after the change."""
    module, inner = code_map.split(code_map.MOVED.get(control.order_in, control.order_in))
    text = code_map.path_of(module).read_text(encoding="utf-8")
    first, last = lines_of(ast.parse(text), inner)
    lines = text.splitlines(keepends=True)
    source = "".join(lines[first - 1 : last])
    if source.count(control.before) != 1:
        message = f"{control.order_in} holds {control.before!r} {source.count(control.before)} times"
        raise AssertionError(message)
    return module, "".join([*lines[: first - 1], source.replace(control.before, control.after), *lines[last:]])


def lines_of(tree: ast.AST, inner: str) -> tuple[int, int]:
    """Where a function, also one inside another, begins and ends."""
    for name in inner.split("."):
        tree = next(one for one in ast.walk(tree) if getattr(one, "name", "") == name and hasattr(one, "body"))
    return tree.lineno, tree.end_lineno  # type: ignore[attr-defined]


def main() -> None:
    tests = sorted({f"tests/{one.test}" for one in CONTROLS.values()})
    with trials() as made:
        sound = made.run(tests, {})
        if sound is None or sound.exit_code:
            raise SystemExit(f"they fail with nothing broken:\n{made.output.read_text()[-4000:]}")
        found = {}
        for name, control in CONTROLS.items():
            module, source = broken(control)
            outcome = made.run([f"tests/{control.test}"], {module: source})
            found[name] = "it came to no end" if outcome is None else outcome.failed
    print(json.dumps(found))


if __name__ == "__main__":
    main()
