"""The one map from the names that tests use of the engine's code to the code: a rename or a move is one edit, here.

The broken variants, the mutants and the lists of what killed them, the page of the formal model and the coverage gate
name a function `protocol.resolving.roll_forward` and find it through this map: renaming a module is one changed row of
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

# The tests of each module of the engine; a module that is not here has none of its own.
TESTS: dict[str, str] = {
    "chain.put_once": "log log_old expiry counted",
    "choices": "surface bad_input",
    "cli.commands": "cli convert traversal",
    "cli.commands_repair": "repair",
    "cli.main": "cli",
    "conversion": "convert",
    "delta.actions": "delta_publish delta_state delta_foreign delta_upkeep",
    "delta.checkpoints": "delta_upkeep delta_cleanup delta_border",
    "delta.files": "delta_columns stats",
    "delta.log": "delta_state delta_publish delta_foreign delta_cleanup delta_durable",
    "delta.state": "delta_state delta_foreign delta_publish delta_upkeep",
    "environment": "fork sink",
    "errors": "errors",
    "log.entry": "entry hostile",
    "log.expiry": "expiry each_call runs",
    "log.gaps": "log_gaps log_damage log_old",
    "log.log": "log log_old log_damage log_gaps log_race expiry each_call counted",
    "log.segment": "segment log log_old expiry",
    "log.slots": "log log_old expiry counted",
    "log.state": "state transaction",
    "options": "surface sink bad_input",
    "paths": f"layout hostile traversal delta_publish {PUBLISHES} sweep",
    "protocol.admission": f"transaction {WRITES} bad_input",
    "protocol.blank": "blank transaction sink",
    "protocol.fencing": f"transaction {WRITES} runs unknown",
    "protocol.outcome": "caller transaction",
    "protocol.preparing": f"transaction {WRITES} overwrite runs unknown",
    "protocol.recovery": (
        f"recovery sweep expiry runs abort_unfinished each_call overwrite {PUBLISHES} survivors folding"
    ),
    "protocol.resolving": f"transaction {WRITES} overwrite runs unknown",
    "protocol.sweeping": (
        f"sweep recovery expiry runs abort_unfinished each_call overwrite {PUBLISHES} survivors folding"
    ),
    "publish.choose": "publish publish_uploads delta_publish",
    "publish.decision": "decision publish publish_uploads",
    "publish.delta.again": "delta_again",
    "publish.delta.agreement": "delta_older_log delta_again delta_border",
    "publish.delta.brought_back": "delta_restore",
    "publish.delta.overwrite": "delta_state delta_foreign delta_border",
    "publish.delta.publisher": "delta_publish delta_foreign delta_state delta_cleanup convert sweep",
    "publish.multipart": "publish_uploads",
    "publish.protocol": "publish publish_uploads sweep delta_publish",
    "publish.rename": "publish overwrite abort_unfinished sweep recovery",
    "reading.audit": "audit found",
    "reading.delta_view": "delta_state delta_foreign delta_publish delta_border",
    "reading.history": "table found cli",
    "reading.table": "table found",
    "reading.versions": "found table",
    "records": "entry layout",
    "schema": "schema columns rows",
    "staging.adopt": "adopt stager",
    "staging.conform": "schema stage",
    "staging.epoch_stager": "stage stager",
    "staging.parquet": "parquet stats stage",
    "staging.place": "stager stage",
    "staging.rows": "rows columns bad_input",
    "staging.stager": "stager",
    "staging.statistics": "stats parquet",
    "staging.values": "values rows",
    "store.local.errors": "store_local",
    "store.local.mounts": "mounts",
    "store.local.store": "store_local simdisk",
    "store.memory": "store_memory",
    "store.opening": "store_open store_memory",
    "store.protocol": "store_open store_memory",
    "store.s3.calls": "store_s3 endpoint",
    "store.s3.object_store": "store_s3",
    "store.s3.store": "store_s3 endpoint",
    "two_phase.file_sink": "two_phase",
    "two_phase.sink": "two_phase two_phase_sqlite",
    "upkeep.repair": "repair",
    "writing.calls": "caller",
    "writing.opening": "sink runs sweep unknown transaction blank",
    "writing.transaction": "transaction sink stager rescale",
    "writing.workplace": "stager stage",
    "writing.writer": "sink transaction runs recovery rescale delta_foreign publish_uploads",
}

GATED_NAMES = (
    "chain.put_once", "log.entry", "log.expiry", "log.gaps", "log.log", "log.segment", "log.slots", "log.state",
    "paths", "protocol.fencing", "protocol.preparing", "protocol.recovery", "protocol.resolving",
    "protocol.sweeping", "publish.decision", "records",
)  # fmt: skip
CUT_NAMES = (
    "chain.put_once", "delta.log", "log.expiry", "log.log", "log.slots", "protocol.blank", "protocol.fencing",
    "protocol.preparing", "protocol.recovery", "protocol.resolving", "protocol.sweeping",
    "publish.delta.publisher", "publish.multipart", "publish.protocol", "publish.rename", "writing.opening",
)  # fmt: skip

MODULES: dict[str, Module] = {
    **{name: Module(f"txsink.{name}", tests, name in GATED_NAMES, name in CUT_NAMES) for name, tests in TESTS.items()},
    **{
        f"spark.{name}": Module(f"pyspark_txsink.{name}", tests)
        for name, tests in {
            "arrow": "spark_parts", "counted_rows": "spark_parts spark_expressions", "fast": "spark_parts",
            "identity": "spark_parts", "listener": "spark", "options": "spark_parts", "parcel": "spark_parts",
            "reader": "spark_parts", "session": "spark_parts", "table": "spark_parts",
            "types": "spark_parts spark_expressions", "writers": "spark_parts",
        }.items()
    },
}  # fmt: skip

# Packages: they hand on names, or hold a sentence.
DOORS = {
    path.relative_to(ROOT).as_posix() for top in ("txsink", "formats") for path in (ROOT / top).rglob("__init__.py")
}


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

# Functions that are called, or lie, otherwise than their names say: `"log.log.Log.append": "chain.append.append"`.
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
