"""A store that misbehaves as planned: the engine has no test hook, the store has.

Promises: calls are counted from 1 over all verbs and over `seal` and `discard` of staged files (a crash inside a
`write` is a torn `seal`); each planned fault happens at its call, once; `trace` holds every call that was begun;
`check_delivered` fails the test whose plan did not come about: no such call came, or its verb cannot fail so.
Relies on: a real `Store` below, which does the work.
Does not promise: anything about names or bytes a power cut loses: that is `SimDisk`.

Worked example, the loop that crashes before every store call of a run:

    for call in itertools.count(1):
        store = FaultyStore(LocalStore(), [crash_before(call)])
        try:
            run(store)
        except Crash:
            recover_and_check()
        else:
            break
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar, cast

from txsink.errors import OutcomeUnknownError, TxsinkError, UnavailableError
from txsink.records import Upload
from txsink.store.protocol import Links, Moves, Output, Paths, Pending, Store, Tail, Traits, Uploads
from txsink.testing.simdisk import Crash

_T = TypeVar("_T")
READS = frozenset({"resolve", "read", "tail", "list", "present", "origin", "same_place", "uploads", "parts"})
REPEATABLE = frozenset({"put_if_absent", "put_hint", "replace", "move", "delete", "complete", "cancel", "settle"})
TEARABLE = frozenset({"seal", "put_hint", "move", "link"})


class Fault(NamedTuple):
    """One planned fault: at which call (0: at each), what, and the detail it needs."""

    call: int
    kind: str
    hook: Callable[[], object] | None = None
    text: str = ""
    later: int = 0


#: What a class of faults is called in reports, by the kind of a fault.
CLASSES = {
    "crash-before": "crash before a call",
    "crash-after": "crash after a call",
    "tear": "torn write",
    "fail-before": "error before",
    "fail-after": "error after",
    "lose-answer": "lost answer",
    "lose-request": "lost request",
    "repeat": "duplicate delivery",
    "stale": "stale listing",
    "reorder": "reordered listing",
    "delay": "delay",
    "hide": "names missing in listings",
}


def class_of(fault: Fault) -> str:
    """What the fault is called in reports."""
    return CLASSES["fail-after" if fault.kind == "lose-answer" and fault.text else fault.kind]


def crash_before(call: int) -> Fault:
    """The process dies before the call."""
    return Fault(call, "crash-before")


def crash_after(call: int) -> Fault:
    """The process dies after the call took effect."""
    return Fault(call, "crash-after")


def fail_before(call: int) -> Fault:
    """UnavailableError, and nothing is done."""
    return Fault(call, "fail-before")


def lose_answer(call: int, *, raises: bool = False) -> Fault:
    """It is done, and the caller cannot know: OutcomeUnknownError, or None from `put_if_absent` unless `raises`."""
    return Fault(call, "lose-answer", text="raises" if raises else "")


def lose_request(call: int, *, raises: bool = False) -> Fault:
    """It is not done, and the caller hears the same as from `lose_answer`."""
    return Fault(call, "lose-request", text="raises" if raises else "")


def fail_after(call: int) -> Fault:
    """It is done, and the call raises OutcomeUnknownError."""
    return lose_answer(call, raises=True)


def tear(call: int) -> Fault:
    """The process dies within the call: half the bytes of a `seal` or `put_hint`, half the files of a `move`."""
    return Fault(call, "tear")


def repeat(call: int, later: int = 0) -> Fault:
    """The request is delivered once more: at once, or after `later` further calls, whatever happened meanwhile."""
    return Fault(call, "repeat", later=later)


def stale(call: int) -> Fault:
    """The listing is the one that the same directory gave the last time; empty when it was never listed."""
    return Fault(call, "stale")


def reorder(call: int) -> Fault:
    """The listing comes backwards."""
    return Fault(call, "reorder")


def delay(call: int, hook: Callable[[], object]) -> Fault:
    """Others get their turn, `hook`, before the call."""
    return Fault(call, "delay", hook)


def hide_from_list(part: str) -> Fault:
    """Every listing leaves out the paths that contain `part`."""
    return Fault(0, "hide", text=part)


def faults_at(call: int, verb: str) -> Iterator[Fault]:
    """Every fault that a call of this verb can meet, but for those that need others: delays and listings."""
    yield crash_before(call)
    if verb in TEARABLE:
        yield tear(call)
    if verb not in READS:
        yield crash_after(call)
    yield fail_before(call)
    if verb not in READS:
        yield lose_answer(call)
        yield lose_request(call)
    if verb == "put_if_absent":
        yield fail_after(call)
    if verb in REPEATABLE:
        yield repeat(call)
        yield repeat(call, later=10)


class FaultyStore:
    """A `Store` over another one."""

    def __init__(self, store: Store, plan: Iterable[Fault] = ()) -> None:
        self._store = store
        self._is_dead = False
        self._late: list[tuple[int, Callable[[], object]]] = []  # requests to be delivered once more, and when
        self._listed: dict[str, Paths] = {}  # by directory, the last listing
        self._former: dict[str, Paths] = {}  # and the one before
        self.plan = list(plan)
        self.delivered: list[Fault] = []
        self.trace: list[tuple[str, str]] = []
        self.pause: Callable[[str, str], object] | None = None  # called before every call: others may run meanwhile
        self.told: Callable[[str, str, object], object] | None = None  # called with every answer

    @property
    def traits(self) -> Traits:
        return self._store.traits

    @property
    def calls(self) -> int:
        """How many calls were begun."""
        return len(self.trace)

    def check_delivered(self) -> None:
        """Fail when a planned fault did not happen: such a run proves nothing."""
        missing = [fault for fault in self.plan if fault not in self.delivered]
        if missing:
            message = f"{len(missing)} planned faults never happened in {self.calls} calls: {missing}"
            raise AssertionError(message)

    # -- the verbs --------------------------------------------------------------------------------------

    def resolve(self, uri: str) -> str:
        return self.call("resolve", uri, lambda: self._store.resolve(uri))

    def read(self, path: str, limit: int) -> bytes | None:
        return self.call("read", path, lambda: self._store.read(path, limit))

    def tail(self, path: str, count: int) -> Tail | None:
        return self.call("tail", path, lambda: self._store.tail(path, count))

    def list(self, path: str, limit: int | None = None) -> Paths:
        def act() -> Paths:
            names = self._store.list(path, limit)
            self._former[path], self._listed[path] = self._listed.get(path, []), names
            return self._hidden(names)

        return self.call("list", path, act)

    def present(self, paths: Paths) -> Paths:
        return self.call("present", paths[0], lambda: self._store.present(paths))

    def put_if_absent(self, path: str, data: bytes, token: str) -> bool | None:
        return self.call("put_if_absent", path, lambda: self._store.put_if_absent(path, data, token))

    def put_hint(self, path: str, data: bytes, token: str) -> None:
        put, half = self._store.put_hint, data[: len(data) // 2]
        self.call("put_hint", path, lambda: put(path, data, token), lambda: put(path, half, token))

    def replace(self, path: str, data: bytes, token: str) -> None:
        self.call("replace", path, lambda: self._store.replace(path, data, token))

    def create(self, path: str) -> Output:
        return _FaultyOutput(self, path, self.call("create", path, lambda: self._store.create(path)))

    def adopt(self, path: str, staged: str) -> None:
        self.call("adopt", staged, lambda: self._store.adopt(path, staged))

    def sync(self, path: str) -> None:
        self.call("sync", path, lambda: self._store.sync(path))

    def settle(self, paths: Paths) -> None:
        self.call("settle", " ".join(paths), lambda: self._store.settle(paths))

    def move(self, moves: Moves) -> Moves:
        targets = " ".join(target for _, target in moves)
        half = moves[: len(moves) // 2]
        return self.call("move", targets, lambda: self._store.move(moves), lambda: self._store.move(half))

    def link(self, moves: Moves) -> Moves:
        links, half = cast("Links", self._store), moves[: len(moves) // 2]
        targets = " ".join(target for _, target in moves)
        return self.call("link", targets, lambda: links.link(moves), lambda: links.link(half))

    def origin(self, path: str) -> str:
        return self.call("origin", path, lambda: self._store.origin(path))

    def delete(self, path: str) -> bool:
        return self.call("delete", path, lambda: self._store.delete(path))

    def prune(self, path: str, root: str) -> None:
        self.call("prune", path, lambda: self._store.prune(path, root))

    def same_place(self, path: str, other: str) -> bool:
        return self.call("same_place", path, lambda: self._store.same_place(path, other))

    # -- the verbs of `Uploads` -------------------------------------------------------------------------

    def create_object(self, path: str) -> Output:
        made = self.call("create_object", path, lambda: cast("Uploads", self._store).create_object(path))
        return _FaultyOutput(self, path, made)

    def complete(self, path: str, upload: Upload) -> bool:
        return self.call("complete", path, lambda: cast("Uploads", self._store).complete(path, upload))

    def cancel(self, path: str, upload: str) -> bool:
        return self.call("cancel", path, lambda: cast("Uploads", self._store).cancel(path, upload))

    def uploads(self, path: str) -> Pending:
        return self.call("uploads", path, lambda: cast("Uploads", self._store).uploads(path))

    def parts(self, path: str, upload: str) -> tuple[str, ...] | None:
        return self.call("parts", path, lambda: cast("Uploads", self._store).parts(path, upload))

    # -- the faults -------------------------------------------------------------------------------------

    def call(self, verb: str, path: str, act: Callable[[], _T], torn: Callable[[], object] | None = None) -> _T:
        """Do one counted call, with what is planned for it; `torn` does half of it."""
        if self._is_dead:
            raise Crash
        self.trace.append((verb, path))
        if self.pause is not None:
            self.pause(verb, path)
        if self._late:
            self._deliver_late()
        call = len(self.trace)
        due = {fault.kind: fault for fault in self.plan if fault.call == call} if self.plan else {}
        answer = self._with(due, verb, path, act, torn) if due else act()
        if self.told is not None:
            self.told(verb, path, answer)
        return answer

    def _with(
        self,
        due: dict[str, Fault],
        verb: str,
        path: str,
        act: Callable[[], _T],
        torn: Callable[[], object] | None,
    ) -> _T:
        if fault := due.get("delay"):
            self._deliver(fault)
            if fault.hook:
                fault.hook()
        if fault := due.get("crash-before"):
            self._die(fault)
        if (fault := due.get("tear")) and torn is not None:
            torn()
            self._die(fault)
        if fault := due.get("fail-before"):
            self._deliver(fault)
            raise UnavailableError(f"{verb} {path}", "a planned fault: nothing was done", "Retry")
        if fault := due.get("lose-request"):
            return cast("_T", self._lose(fault, verb, path))
        answer = act()
        if (fault := due.get("repeat")) and verb in REPEATABLE:
            self._late.append((self.calls + fault.later, act))
            self._deliver(fault)
            self._deliver_late()
        if verb == "list":
            answer = cast("_T", self._mislisted(due, path, cast("Paths", answer)))
        if fault := due.get("crash-after"):
            self._die(fault)
        if fault := due.get("lose-answer"):
            return cast("_T", self._lose(fault, verb, path))
        return answer

    def deliver_rest(self) -> None:
        """Deliver now what is still to be delivered once more: requests outlive the process that sent them."""
        self._deliver_late(at_all=True)

    def kill(self) -> None:
        """The process dies: it does nothing more."""
        self._is_dead = True

    def _deliver_late(self, *, at_all: bool = False) -> None:
        due = [act for at, act in self._late if at_all or at <= self.calls]
        self._late = [(at, act) for at, act in self._late if not at_all and at > self.calls]
        for act in due:
            with suppress(TxsinkError):
                act()

    def _hidden(self, names: Paths) -> Paths:
        for fault in self.plan:
            if fault.kind == "hide":
                seen = [name for name in names if fault.text not in name]
                if len(seen) < len(names) and fault not in self.delivered:
                    self.delivered.append(fault)
                names = seen
        return names

    def _mislisted(self, due: dict[str, Fault], path: str, names: Paths) -> Paths:
        if fault := due.get("stale"):
            self._deliver(fault)
            names = list(self._former[path])
        if fault := due.get("reorder"):
            self._deliver(fault)
            names = names[::-1]
        return names

    def _deliver(self, fault: Fault) -> None:
        self.delivered.append(fault)

    def _die(self, fault: Fault) -> None:
        self._deliver(fault)
        self._is_dead = True
        raise Crash

    def _lose(self, fault: Fault, verb: str, path: str) -> Any:
        self._deliver(fault)
        if verb == "put_if_absent" and not fault.text:
            return None
        if verb in READS:
            raise UnavailableError(f"{verb} {path}", "a planned fault: the answer was lost", "Retry")
        raise OutcomeUnknownError(f"{verb} {path}", "a planned fault: the answer was lost", "Recover")


class _FaultyOutput:
    """A staged file of a faulty store."""

    def __init__(self, store: FaultyStore, path: str, output: Output) -> None:
        self._store = store
        self._path = path
        self._output = output
        self._last = b""
        self.closed = False

    def write(self, data: bytes, /) -> int:
        if self._last:
            self._output.write(self._last)
        self._last = bytes(data)  # waits for `seal`, which may be torn
        return len(data)

    def flush(self) -> None:
        self._output.flush()

    def seal(self) -> Upload | None:
        upload = self._store.call("seal", self._path, self._whole, self._half)
        self.closed = self._output.closed
        return upload

    def _whole(self) -> Upload | None:
        if self._last:
            self._output.write(self._last)
        return self._output.seal()

    def _half(self) -> None:
        self._output.write(self._last[: len(self._last) // 2])

    def discard(self) -> None:
        self._store.call("discard", self._path, self._output.discard)
        self.closed = self._output.closed
