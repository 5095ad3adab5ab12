"""A store that misbehaves as planned: the engine has no test hook, the store has.

Promises: calls are counted from 1 over all verbs and over `seal` and `discard` of staged files (not over their
`write`: a crash inside a write is `SimDisk`'s to show); each planned fault happens at its call, once; `trace` holds
every call that was begun; `check_delivered` fails the test whose plan did not come about.
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

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar, cast

from txsink.entry import Upload
from txsink.errors import OutcomeUnknownError, UnavailableError
from txsink.store import Moves, Output, Paths, Pending, Store, Tail, Traits, Uploads
from txsink.testing.simdisk import Crash

_T = TypeVar("_T")
_READS = {"resolve", "read", "tail", "list", "same_place", "uploads", "parts"}


class Fault(NamedTuple):
    """One planned fault: at which call (0: at each), what, and the detail it needs."""

    call: int
    kind: str
    hook: Callable[[], object] | None = None
    text: str = ""


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


def delay(call: int, hook: Callable[[], object]) -> Fault:
    """Others get their turn, `hook`, before the call."""
    return Fault(call, "delay", hook)


def hide_from_list(part: str) -> Fault:
    """Every listing leaves out the paths that contain `part`."""
    return Fault(0, "hide", text=part)


class FaultyStore:
    """A `Store` over another one."""

    def __init__(self, store: Store, plan: Iterable[Fault] = ()) -> None:
        self._store = store
        self._is_dead = False
        self.plan = list(plan)
        self.delivered: list[Fault] = []
        self.trace: list[tuple[str, str]] = []

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

    def list(self, path: str) -> Paths:
        names = self.call("list", path, lambda: self._store.list(path))
        for fault in self.plan:
            if fault.kind == "hide":
                seen = [name for name in names if fault.text not in name]
                if len(seen) < len(names) and fault not in self.delivered:
                    self.delivered.append(fault)
                names = seen
        return names

    def put_if_absent(self, path: str, data: bytes, token: str) -> bool | None:
        return self.call("put_if_absent", path, lambda: self._store.put_if_absent(path, data, token))

    def put_hint(self, path: str, data: bytes, token: str) -> None:
        self.call("put_hint", path, lambda: self._store.put_hint(path, data, token))

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
        return self.call("move", targets, lambda: self._store.move(moves))

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

    def call(self, verb: str, path: str, act: Callable[[], _T]) -> _T:
        """Do one counted call, with what is planned for it."""
        if self._is_dead:
            raise Crash
        self.trace.append((verb, path))
        due = {fault.kind: fault for fault in self.plan if fault.call == self.calls}
        if fault := due.get("delay"):
            self._deliver(fault)
            if fault.hook:
                fault.hook()
        if fault := due.get("crash-before"):
            self._die(fault)
        if fault := due.get("fail-before"):
            self._deliver(fault)
            raise UnavailableError(f"{verb} {path}", "a planned fault: nothing was done", "Retry")
        if fault := due.get("lose-request"):
            return cast("_T", self._lose(fault, verb, path))
        answer = act()
        if fault := due.get("crash-after"):
            self._die(fault)
        if fault := due.get("lose-answer"):
            return cast("_T", self._lose(fault, verb, path))
        return answer

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
        if verb in _READS:
            raise UnavailableError(f"{verb} {path}", "a planned fault: the answer was lost", "Retry")
        raise OutcomeUnknownError(f"{verb} {path}", "a planned fault: the answer was lost", "Recover")


class _FaultyOutput:
    """A staged file of a faulty store."""

    def __init__(self, store: FaultyStore, path: str, output: Output) -> None:
        self._store = store
        self._path = path
        self._output = output
        self.closed = False

    def write(self, data: bytes, /) -> int:
        return self._output.write(data)

    def flush(self) -> None:
        self._output.flush()

    def seal(self) -> Upload | None:
        upload = self._store.call("seal", self._path, self._output.seal)
        self.closed = self._output.closed
        return upload

    def discard(self) -> None:
        self._store.call("discard", self._path, self._output.discard)
        self.closed = self._output.closed
