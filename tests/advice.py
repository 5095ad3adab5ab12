"""The registry of messages: every advice that an error of txsink gives, what it asks for, and the tests that follow it.

Promises: `sites` finds every place in `txsink/` and `formats/` that makes one of the seven errors; `kind_of` says what
an advice asks for, by its first words, or None; `advised` is the one way to follow an advice: the block must fail with
an error that is made at the place it names, and with these words; `followed` is the list of all such blocks, read from
the tests themselves.
Relies on: `ast`; advice written where the error is made, as a name beside it, or in a function of the same module.
Does not promise: to know text that is put together elsewhere: such places are named in `ELSEWHERE`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from txsink import errors
from txsink.errors import TxsinkError

ROOT = Path(__file__).parents[1]
CODE = (ROOT / "txsink", ROOT / "formats" / "pyspark_txsink")
CLASSES = {name for name in vars(errors) if name.endswith("Error")} - {"TxsinkError"}

AGAIN, VERB, CALL, ROOM, RESTORE, REPORT = (
    "call again", "call another verb", "change the call", "make room or rights", "restore", "report",
)  # fmt: skip

# First words, the longest that fits counts.
WORDS: dict[str, str] = {
    **dict.fromkeys(
        ("Retry", "Try again", "Call it when", "Call restore_state", "Begin", "Write the epoch again"), AGAIN
    ),
    **dict.fromkeys(("Open it again", "Open the writer", "Open another", "Look again", "Let one write"), AGAIN),
    **dict.fromkeys(("{}Begin", "{}Call it again", "{}{}", "Restart", "Somebody deleted"), AGAIN),
    **dict.fromkeys(("Recover", "Commit", "Finish", "Sweep", "See `", "Drop the epoch", "Abort", "Prepare"), VERB),
    **dict.fromkeys(("Convert it", "Leave it, or", "`txsink", "Stop", "Go on after", "Restore the newest state"), VERB),
    **dict.fromkeys(("Restore the state", "Take checkpoint", "Use the txsink", "Open it without"), VERB),
    **dict.fromkeys(("Give", "Name", "Choose", "Leave", "Use", "Pass", "Write", "Add", "Send", "Number", "Cast"), CALL),
    **dict.fromkeys(("Stage", "Rename", "Partition", "Read", "Epochs", "Drop them", "Drop the feature", "Fill"), CALL),
    **dict.fromkeys(("Cut", "Append", "Unset", "Let encode", "Did you mean", "Check", "Fix", "Convert the"), CALL),
    **dict.fromkeys(("Stage them", "Purge", "Install", "Upgrade", "Make checkpoints", "Another program", "Copy"), CALL),
    **dict.fromkeys(("Open a writer in", "Change", "Look at", "Remove", "Move", "Open with", "Known", "Drop"), CALL),
    **dict.fromkeys(("Call it from", "Go on with that", "Set", "Have files"), CALL),
    **dict.fromkeys(("Make room", "Make it", "Renew", "Raise", "Create the bucket"), ROOM),
    **dict.fromkeys(("Grant", "Run as", "Take the mount"), ROOM),
    **dict.fromkeys(("Restore", "Put", "Inspect", "Delete"), RESTORE),
    **dict.fromkeys(("Report", "Nothing was committed. Report"), REPORT),
}  # fmt: skip

# Advice that is put together elsewhere, by module: the words of another error, each in the registry.
ELSEWHERE = {"schema": 1, "staging.epoch_stager": 1}

BLOCKS = ("advised", "advised_in_print", "Wrong")  # the last is the row of a table: `advised_calls.py`


class Site(NamedTuple):
    """A place that makes an error: in which function, of which class, and its advice (`{}` for what is put in)."""

    module: str
    function: str
    line: int
    end: int
    error: str
    advice: tuple[str, ...]

    @property
    def place(self) -> str:
        """The module and the function."""
        return f"{self.module}.{self.function}"


class Followed(NamedTuple):
    """A block of a test that follows an advice."""

    place: str
    words: str
    test: str


# -- the code -----------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def sites() -> tuple[Site, ...]:
    """All of them, but those of the shipped tests' own stores."""
    return tuple(
        site
        for code in CODE
        for path in sorted(code.rglob("*.py"))
        if not (module := _module(code, path)).startswith("testing")
        for site in sites_in(module, ast.parse(path.read_text(encoding="utf-8")))
    )


def _module(code: Path, path: Path) -> str:
    start = code if code == CODE[0] else code.parent
    return ".".join(path.relative_to(start).with_suffix("").parts).removesuffix(".__init__")


def sites_in(module: str, tree: ast.Module) -> Iterator[Site]:
    """Those of one module."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or len(node.args) < 3 or not _is_error(node.func):
            continue
        own = _around(functions, node)
        known = _Known(tree, functions, own, node)
        advice = tuple(dict.fromkeys(known.texts(node.args[2])))
        error = getattr(node.func, "id", "as it was")
        yield Site(module, own.name, node.lineno, node.end_lineno or node.lineno, error, advice)


def _is_error(called: ast.expr) -> bool:
    is_as_it_was = isinstance(called, ast.Call) and getattr(called.func, "id", "") == "type"
    return getattr(called, "id", "") in {*CLASSES, "failure", "kind"} or is_as_it_was


class _Known(NamedTuple):
    """What the names beside an error stand for: at `error`, or at a value that leads there, within `own`."""

    tree: ast.Module
    functions: list[Any]
    own: Any
    error: ast.expr
    met: frozenset[ast.expr] = frozenset()  # on the way here: what leads back to one of these says nothing more

    def texts(self, node: ast.expr) -> Iterator[str]:
        if node in self.met:
            return
        if isinstance(node, ast.Name | ast.Call):
            yield from self._replace(met=self.met | {node})._looked_up(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(map(self._part, node.values))
        elif isinstance(node, ast.Tuple):  # a table, whose rows end with the advice
            for one in node.elts:
                yield from [*(self.texts(one.elts[-1]) if isinstance(one, ast.Tuple) else ())]
        elif isinstance(node, ast.IfExp):
            yield from (*self.texts(node.body), *self.texts(node.orelse))
        elif isinstance(node, ast.BinOp):
            yield from (f"{left}{right}" for left in self.texts(node.left) for right in self.texts(node.right))

    def _looked_up(self, node: ast.Name | ast.Call) -> Iterator[str]:
        if isinstance(node, ast.Call):
            yield from self._of_call(node)
            return
        for known, value in self._values(node.id):
            yield from known.texts(value)

    def _part(self, node: ast.expr) -> str:
        """A piece of a text: as it is written, or as a name beside it says."""
        if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Name):
            values = self._values(node.value.id)
            found = (
                [*self.texts(node.value)]
                if all(isinstance(one, ast.Constant | ast.JoinedStr) for _, one in values)
                else []
            )
            return found[0] if len(found) == 1 else "{}"
        return str(node.value) if isinstance(node, ast.Constant) else "{}"

    def _of_call(self, node: ast.Call) -> Iterator[str]:
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name == "did_you_mean":
            yield from ("Did you mean {}?", *self.texts(node.args[2]))
        if name == "get" and len(node.args) > 1:  # of a table of texts, with a default
            yield from self.texts(node.args[1])
            _, table = next(iter(self._values(node.func.value.id)), (None, None))  # type: ignore[attr-defined]
            for value in table.values if isinstance(table, ast.Dict) else ():
                yield from self.texts(value)
        for function in self.functions:
            if function.name == name:
                for one in ast.walk(function):
                    if isinstance(one, ast.Return) and one.value is not None:
                        said = one.value.elts[-1] if isinstance(one.value, ast.Tuple) else one.value
                        yield from self._replace(own=function).texts(said)

    def _values(self, name: str) -> list[tuple[_Known, ast.expr]]:
        """What the name may hold here: the last value it surely has, and those it may have got after it.

        Each with what the names in it stand for: what they held before it.
        """
        for scope in (self.own, self.tree):
            found: list[ast.expr] = []
            for one, block in sorted(_statements(scope), key=lambda pair: pair[0].lineno):
                value = _assigned(one, name)
                if value is None or value is self.error or (one.lineno > self.error.lineno and scope is self.own):
                    continue
                if any(self.error in ast.walk(beside) for beside in block):
                    found = [value]
                elif not isinstance(block[-1], ast.Raise | ast.Return) or scope is self.tree:
                    found.append(value)
            if found:
                return [(self._replace(error=value), value) for value in found]
        for loop in ast.walk(self.own):  # over a table of errors
            targets = loop.target.elts if isinstance(loop, ast.For) and isinstance(loop.target, ast.Tuple) else []
            if name in [getattr(target, "id", "") for target in targets]:
                return [(self, cast("ast.For", loop).iter)]
        names = [one.arg for one in self.own.args.args]
        calls = (one for one in ast.walk(self.tree) if isinstance(one, ast.Call))
        mine = [one for one in calls if name in names and getattr(one.func, "id", "") == self.own.name]
        return [
            (self._replace(own=_around(self.functions, one) or self.own, error=one), one.args[names.index(name)])
            for one in mine
        ]


def _around(functions: list[Any], node: ast.expr) -> Any:
    """The function that the code stands in; None where it stands in none."""
    within = [one for one in functions if one.lineno <= node.lineno <= (one.end_lineno or 0)]
    return max(within, key=lambda one: one.lineno, default=None)


def _statements(scope: ast.AST) -> Iterator[tuple[ast.stmt, list[ast.stmt]]]:
    """Each statement, with those of its block; of a module those of no function."""
    for node in [scope] if isinstance(scope, ast.Module) else ast.walk(scope):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            for one in block if isinstance(block, list) else ():
                yield one, block  # type: ignore[misc]


def _assigned(one: ast.stmt, name: str) -> ast.expr | None:
    """What the statement gives the name."""
    if not isinstance(one, ast.Assign | ast.AnnAssign):
        return None
    target, value = (one.target if isinstance(one, ast.AnnAssign) else one.targets[0]), one.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Call):
        return value if getattr(target.elts[-1], "id", "") == name else None
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = zip(target.elts, value.elts, strict=True)
        return next((given for part, given in pairs if getattr(part, "id", "") == name), None)
    return value if getattr(target, "id", "") == name else None


def kind_of(advice: str) -> str | None:
    """What the caller is asked to do."""
    fitting = [words for words in WORDS if advice.startswith(words)]
    return WORDS[max(fitting, key=len)] if fitting else None


# -- the tests ----------------------------------------------------------------------------------------


@contextmanager
def advised(place: str, words: str) -> Iterator[pytest.ExceptionInfo[TxsinkError]]:
    """The block fails with an error that is made at `place` and advises `words`. What follows it does what they say."""
    with _noted() as made, pytest.raises(TxsinkError) as caught:
        yield caught
    told = caught.value.advice
    assert says(told, words), (words, told)
    _require_made(made, place, words, told)


@contextmanager
def advised_in_print(place: str, words: str) -> Iterator[None]:
    """The block comes to an end, and told its caller of an error that is made at `place` and advises `words`."""
    with _noted() as made:
        yield
    _require_made(made, place, words, "\n".join(error.advice for _, error in made))


def _require_made(made: list[tuple[str, TxsinkError]], place: str, words: str, told: str) -> None:
    places = {at for at, error in made if says(error.advice, words) and error.advice in told}
    assert place in places, f"made at {sorted(places)}, not at {place}"


@contextmanager
def _noted() -> Iterator[list[tuple[str, TxsinkError]]]:
    """Where errors are made meanwhile."""
    made: list[tuple[str, TxsinkError]] = []
    begin = TxsinkError.__init__

    def noting(error: TxsinkError, *args: Any, **context: Any) -> None:
        begin(error, *args, **context)
        frame = sys._getframe(1)
        place = _place_of(frame.f_code.co_filename, frame.f_lineno)
        if place:
            made.append((place, error))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TxsinkError, "__init__", noting)
        yield made


def says(advice: str, words: str) -> bool:
    """Whether the words are in the advice, with anything for `{}`."""
    return re.search(re.escape(words).replace(r"\{\}", ".*?"), advice, re.DOTALL) is not None


def _place_of(file: str, line: int) -> str:
    path = Path(file).resolve()
    code = next((one for one in CODE if path.is_relative_to(one)), None)
    module = _module(code, path) if code else ""
    return next((one.place for one in sites() if one.module == module and one.line <= line <= one.end), "")


def followed() -> list[Followed]:
    """Every advice that a test follows, as its file says."""
    found = []
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if path.name == "test_advice.py" or not any(f"{block}(" in text for block in BLOCKS):
            continue
        tree = ast.parse(text)
        named = {  # by line: an advice that is too long for one has a name
            node.lineno: node.value.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and _assigned(node, "advice")
        }
        for node in ast.walk(tree):
            is_block = isinstance(node, ast.Call) and getattr(node.func, "id", "") in BLOCKS
            args = cast("ast.Call", node).args[:2] if is_block else []
            given = [
                one.value if isinstance(one, ast.Constant) else named[max(at for at in named if at < one.lineno)]
                for one in args
                if isinstance(one, ast.Constant) or getattr(one, "id", "") == "advice"
            ]
            if len(given) == 2:
                found.append(Followed(str(given[0]), str(given[1]), path.name))
    return found
