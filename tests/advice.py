"""The registry of messages: every advice that an error of txsink gives, what it asks for, and the test that follows it.

Promises: `sites` finds every place in `txsink/` that makes one of the seven errors; `kind_of` says what an advice asks
for, by its first words, or None; `FOLLOWED` names tests that do what the advice says and reach a green end, or the
state that it describes.
Relies on: `ast`; advice written where the error is made, or as a constant beside it.
Does not promise: to know text that is put together elsewhere: such places are named in `ELSEWHERE`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from txsink import errors

ENGINE = Path(__file__).parents[1] / "txsink"
CLASSES = {name for name in vars(errors) if name.endswith("Error")} - {"TxsinkError"}

AGAIN, VERB, CALL, ROOM, RESTORE, REPORT = (
    "call again", "call another verb", "change the call", "make room or rights", "restore", "report",
)  # fmt: skip

# First words, the longest that fits counts.
WORDS: dict[str, str] = {
    **dict.fromkeys(
        ("Retry", "Try again", "Call it when", "Call restore_state", "Begin", "Write the epoch again"), AGAIN
    ),
    **dict.fromkeys(("Open it again", "Open the writer again", "Open another", "Look again", "Let one write"), AGAIN),
    **dict.fromkeys(("Recover", "Commit", "Finish", "Sweep", "See `", "Drop the epoch", "Abort", "Prepare"), VERB),
    **dict.fromkeys(("Convert it", "Leave it, or", "`txsink", "Stop", "Go on after", "Restore the newest state"), VERB),
    **dict.fromkeys(("Restore the state", "Take checkpoint", "Use the txsink", "Open it without"), VERB),
    **dict.fromkeys(("Give", "Name", "Choose", "Leave", "Use", "Pass", "Write", "Add", "Send", "Number", "Cast"), CALL),
    **dict.fromkeys(("Stage", "Rename", "Partition", "Read", "Epochs", "Drop them", "Drop the feature", "Fill"), CALL),
    **dict.fromkeys(("Cut", "Append", "Unset", "Let encode", "Did you mean", "Check", "Fix", "Convert the"), CALL),
    **dict.fromkeys(("Stage them", "Purge", "Install", "Upgrade", "Make checkpoints", "Another program", "Copy"), CALL),
    **dict.fromkeys(("Open a writer in", "Change", "Look at", "Remove", "Move", "Open with"), CALL),
    **dict.fromkeys(("Make room", "Run as", "Take the mount"), ROOM),
    **dict.fromkeys(("Restore", "Put", "Inspect", "Delete"), RESTORE),
    "Report": REPORT,
}

# Advice that is put together elsewhere, by module: the words of another error, or of several, each in the registry.
ELSEWHERE = {"commands": 1, "parquet": 1, "schema": 2, "stage": 1, "table": 1}

# By module and first words: what follows the advice. The others of these modules are counted, and not followed yet.
LOG_MODULES = ("entry", "state", "slots", "gaps", "log", "segment", "recovery", "repair", "audit")
_LED_OUT = "test_repair.py::test_a_repair_leads_out_of_the_state_and_destroys_nothing"
_REBUILT = "test_repair.py::test_a_list_of_files_that_is_lost_twice_is_rebuilt_from_their_footers"
_RESTORED = "test_log_gaps.py::test_a_writer_of_a_table_that_was_restored_plants_nothing_and_says_so"
_MADE_ANEW = "test_log_gaps.py::test_a_writer_of_a_table_that_was_made_anew_plants_nothing_and_says_so"
_RENAMED = "test_log_gaps.py::test_a_writer_of_a_table_that_was_renamed_is_not_sent_to_a_new_one"
_PUT_BACK = "test_bad_input.py::test_a_damaged_entry_is_named_and_once_restored_the_table_goes_on"
_RECOVERED = "test_log.py::test_an_unknown_outcome_of_a_prepare_deletes_nothing_and_recovery_commits"
_ADVICE = "test_advice_log.py::test_"
FOLLOWED: dict[tuple[str, str], str] = {
    ("entry", "Write fewer files"): f"{_ADVICE}fewer_files_per_epoch_are_written_by_the_same_writer",
    (
        "entry",
        "Upgrade txsink to a release that reads format",
    ): f"{_ADVICE}a_later_release_is_what_reads_a_later_format",
    (
        "gaps",
        "Restore it from a copy; nothing",
    ): f"{_ADVICE}an_entry_that_is_missing_in_the_middle_is_restored_from_a_copy",
    ("log", "Name a later version"): f"{_ADVICE}a_later_version_is_there_where_an_earlier_one_has_expired",
    ("recovery", "Choose on_newer"): f"{_ADVICE}either_choice_leads_on_where_later_epochs_are_committed",
    ("recovery", "Choose one of"): f"{_ADVICE}either_choice_leads_on_where_later_epochs_are_committed",
    ("recovery", "Inspect it"): (
        f"{_ADVICE}the_only_copy_of_a_committed_file_is_kept_and_put_back_by_hand_the_table_is_whole"
    ),
    ("gaps", "Restore it from a copy, or {}"): _LED_OUT,
    ("gaps", "Restore the log"): "test_repair.py::test_a_log_whose_first_entry_is_lost_is_told_to_be_restored",
    ("gaps", "Open it again: it goes on"): _RESTORED,
    ("gaps", "Open it again if"): _RESTORED,
    ("gaps", "Open it again: what"): _MADE_ANEW,
    ("gaps", "Name the path where"): _RENAMED,
    ("gaps", "Restore {} from a copy"): _REBUILT,
    ("segment", "Restore"): _REBUILT,
    ("state", "Restore the log from a copy, or"): _LED_OUT,
    ("entry", "Restore the entry"): _PUT_BACK,
    ("repair", "Look again: `txsink repair`"): "test_repair.py::test_two_repairs_at_once_do_not_both_act",
    ("log", "Retry with fewer"): "test_log.py::test_whoever_loses_every_race_is_told_to_retry",
    ("slots", "Open the writer again"): _RECOVERED,
}


class Site(NamedTuple):
    """A place that makes an error: where, of which class, and the advice it may give (`{}` for what is put in)."""

    module: str
    line: int
    error: str
    advice: tuple[str, ...]


def sites() -> Iterator[Site]:
    """All of them, but those of the shipped tests' own stores."""
    for path in sorted(ENGINE.rglob("*.py")):
        module = path.relative_to(ENGINE).with_suffix("").as_posix().removesuffix("/__init__")
        if module.startswith("testing"):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        named = {
            node.targets[0].id: (*_texts(node.value),)
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in CLASSES and len(node.args) > 2:
                given = node.args[2]
                advice = named.get(given.id, ()) if isinstance(given, ast.Name) else (*_texts(given),)
                yield Site(module, node.lineno, node.func.id, advice)  # type: ignore[attr-defined]


def _texts(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(one.value) if isinstance(one, ast.Constant) else "{}" for one in node.values)
    elif isinstance(node, ast.IfExp):
        yield from (*_texts(node.body), *_texts(node.orelse))


def kind_of(advice: str) -> str | None:
    """What the caller is asked to do."""
    fitting = [words for words in WORDS if advice.startswith(words)]
    return WORDS[max(fitting, key=len)] if fitting else None
