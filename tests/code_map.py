"""The one map from the names that tests use of the engine's code to the code: a rename or a move is one edit, here.

The broken variants, the mutants and the lists of what killed them, the page of the formal model and the coverage gate
name a function `transaction.roll_forward` and find it through this map: renaming a module is one changed row of
`MODULES`, and renaming or moving a function is one new line of `MOVED`.

Promises: `function` finds what a name stands for; `name_of` says the name of what lies somewhere now; nothing of txsink
is imported before `function` is asked.
Relies on: nothing but the tree.
Does not promise: to follow tests that import what they call. A rename changes those as it changes every caller.
"""

from __future__ import annotations

import importlib
from functools import reduce
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Module(NamedTuple):
    """A module by its dotted name, and the test modules (`test_` left out) that could kill a mutant of it, quick first.

    `is_gated`: every branch of it must be taken by a test. `is_cut`: mutants leave out and swap its store calls.
    """

    name: str
    tests: str
    is_gated: bool = False
    is_cut: bool = False

    @property
    def path(self) -> str:
        """The file, below the root of the repository."""
        start = self.name.replace(".", "/")
        root = "" if self.name.startswith("txsink") else "formats/"
        return next(path for path in (f"{root}{start}.py", f"{root}{start}/__init__.py") if (ROOT / path).exists())


# Whatever the call: what most modules' mutants show in.
PUBLISHES = "publish publish_uploads"
WRITES = "each_call counted recovery sink"

MODULES: dict[str, Module] = {
    "admission": Module("txsink.admission", f"transaction {WRITES} bad_input"),
    "adopt": Module("txsink.adopt", "adopt stager"),
    "audit": Module("txsink.audit", "audit found"),
    "blank": Module("txsink.blank", "blank"),
    "calls": Module("txsink.calls", "caller"),
    "cli": Module("txsink.cli", "cli"),
    "commands": Module("txsink.commands", "cli convert traversal"),
    "commands_repair": Module("txsink.commands_repair", "repair"),
    "convert": Module("txsink.convert", "convert"),
    "decision": Module("txsink.decision", "decision publish publish_uploads", is_gated=True),
    "delta": Module("txsink.delta", "delta_state delta_publish delta_foreign delta_cleanup delta_durable", is_cut=True),
    "delta_actions": Module("txsink.delta_actions", "delta_publish delta_state delta_foreign delta_upkeep"),
    "delta_agreement": Module("txsink.delta_agreement", "delta_older_log delta_border"),
    "delta_back": Module("txsink.delta_back", "delta_restore"),
    "delta_files": Module("txsink.delta_files", "delta_columns stats"),
    "delta_overwrite": Module("txsink.delta_overwrite", "delta_state delta_foreign delta_border"),
    "delta_state": Module("txsink.delta_state", "delta_state delta_foreign delta_publish delta_upkeep"),
    "delta_upkeep": Module("txsink.delta_upkeep", "delta_upkeep delta_cleanup delta_border"),
    "delta_view": Module("txsink.delta_view", "delta_state delta_foreign delta_publish delta_border"),
    "entry": Module("txsink.entry", "entry hostile", is_gated=True),
    "errors": Module("txsink.errors", "errors"),
    "file_sink": Module("txsink.file_sink", "two_phase"),
    "gaps": Module("txsink.gaps", "log_gaps log_damage log_old", is_gated=True),
    "history": Module("txsink.history", "table found cli"),
    "layout": Module("txsink.layout", f"layout hostile traversal delta_publish {PUBLISHES} sweep", is_gated=True),
    "log": Module(
        "txsink.log", "log log_old log_damage log_gaps log_race expiry each_call counted", is_gated=True, is_cut=True
    ),
    "outcome": Module("txsink.outcome", "caller transaction"),
    "parquet": Module("txsink.parquet", "parquet stage"),
    "place": Module("txsink.place", "stager stage"),
    "publish": Module("txsink.publish", "publish publish_uploads sweep delta_publish", is_cut=True),
    "publish.delta": Module(
        "txsink.publish.delta", "delta_publish delta_foreign delta_state delta_cleanup convert sweep", is_cut=True
    ),
    "publish.multipart": Module("txsink.publish.multipart", "publish_uploads", is_cut=True),
    "publish.rename": Module("txsink.publish.rename", "publish overwrite abort_unfinished sweep recovery", is_cut=True),
    "recovery": Module(
        "txsink.recovery",
        f"recovery sweep expiry runs abort_unfinished each_call overwrite {PUBLISHES} survivors folding",
        is_gated=True,
        is_cut=True,
    ),
    "repair": Module("txsink.repair", "repair"),
    "rows": Module("txsink.rows", "rows columns bad_input"),
    "schema": Module("txsink.schema", "schema columns rows"),
    "segment": Module("txsink.segment", "segment log log_old expiry", is_gated=True),
    "sink": Module("txsink.sink", "sink runs sweep unknown transaction blank", is_cut=True),
    "slots": Module("txsink.slots", "log log_old expiry counted", is_gated=True, is_cut=True),
    "snapshot": Module("txsink.snapshot", "found table"),
    "stage": Module("txsink.stage", "stage stager"),
    "stager": Module("txsink.stager", "stager"),
    "state": Module("txsink.state", "state transaction", is_gated=True),
    "stats": Module("txsink.stats", "stats parquet"),
    "store": Module("txsink.store", "store_open store_memory"),
    "store.hdfs": Module("txsink.store.hdfs", ""),
    "store.hdfs_calls": Module("txsink.store.hdfs_calls", ""),
    "store.local": Module("txsink.store.local", "store_local simdisk"),
    "store.local_errors": Module("txsink.store.local_errors", "store_local"),
    "store.local_mounts": Module("txsink.store.local_mounts", "mounts"),
    "store.memory": Module("txsink.store.memory", "store_memory"),
    "store.s3": Module("txsink.store.s3", "store_s3 endpoint"),
    "store.s3_calls": Module("txsink.store.s3_calls", "store_s3 endpoint"),
    "store.s3_object_store": Module("txsink.store.s3_object_store", "store_s3"),
    "table": Module("txsink.table", "table found"),
    "transaction": Module(
        "txsink.transaction", f"transaction {WRITES} overwrite runs unknown", is_gated=True, is_cut=True
    ),
    "two_phase": Module("txsink.two_phase", "two_phase two_phase_sqlite"),
    "txn": Module("txsink.txn", "transaction sink stager rescale"),
    "workplace": Module("txsink.workplace", "stager stage"),
    "writer": Module("txsink.writer", "sink transaction runs recovery rescale delta_foreign publish_uploads"),
    **{
        f"spark.{name}": Module(f"pyspark_txsink.{name}", tests)
        for name, tests in {
            "arrow": "spark_parts", "counted_rows": "spark_parts", "fast": "spark_parts", "identity": "spark_parts",
            "listener": "spark", "options": "spark_parts", "parcel": "spark_parts", "reader": "spark_parts",
            "session": "spark_parts", "table": "spark_parts", "types": "spark_parts", "writers": "spark_parts",
        }.items()
    },
}  # fmt: skip

# Front doors that only hand on names.
DOORS = {"txsink/__init__.py", "formats/pyspark_txsink/__init__.py"}


def unlisted() -> dict[str, Module]:
    """Modules of the tree that have no row yet: in the map by the names they have, and without tests of their own."""
    listed = {module.path for module in MODULES.values()} | DOORS
    found = {}
    for package, start in (("txsink", ""), ("formats/pyspark_txsink", "spark.")):
        for path in sorted((ROOT / package).rglob("*.py")):
            inside = path.relative_to(ROOT / package).with_suffix("").as_posix().removesuffix("/__init__")
            if path.relative_to(ROOT).as_posix() not in listed and not inside.startswith("testing"):
                dotted = inside.replace("/", ".")
                found[f"{start}{dotted}"] = Module(f"{package.rpartition('/')[2]}.{dotted}", "")
    return found


MODULES |= unlisted()

# Functions that are called, or lie, otherwise than their names say: `"transaction.claim": "log.Log.take_over"`.
MOVED: dict[str, str] = {}

GATED = [name for name, module in MODULES.items() if module.is_gated]


def path_of(module: str) -> Path:
    """The file of a module."""
    return ROOT / MODULES[module].path


def split(name: str) -> tuple[str, str]:
    """The module and what it is called there, of something as it is now."""
    module = max((one for one in MODULES if name.startswith(f"{one}.")), key=len, default="")
    if not module:
        message = f"no module of the map holds {name!r}"
        raise LookupError(message)
    return module, name.removeprefix(f"{module}.")


def function(name: str) -> object:
    """What a name stands for: a function, a class, a method, a module's constant."""
    module, inner = split(MOVED.get(name, name))
    return reduce(getattr, inner.split("."), importlib.import_module(MODULES[module].name))


def name_of(module: str, inner: str) -> str:
    """The name of a function of a module, also of one inside another, where it lies now."""
    where = f"{module}.{inner}"
    for name, now in MOVED.items():
        if where == now or where.startswith(f"{now}."):
            return name + where.removeprefix(now)
    return where
