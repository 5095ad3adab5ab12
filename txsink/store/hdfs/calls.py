"""Calls of the HDFS client: each with a deadline, each error as one of ours.

Promises: `Calls.do` answers within the deadline (the client alone waits for ever for an answer that does not come); a
call whose answer was lost is OutcomeUnknownError when it changes what others see, UnavailableError when it does not; a
refusal of HDFS says what to do about it. In a forked child the client is made anew.
Relies on: `hdfs-native` 0.14.7 or later, which sends a mutation once and tells a refused connection from a lost one.
Does not promise: that a call it gave up on is not carried out later. Whoever calls uses no name twice.

The user is whom the client takes: the ticket of `kinit` or a keytab (`kerberos_principal`, `kerberos_keytab`,
`kerberos_cache`), a token file (HADOOP_TOKEN_FILE_LOCATION), or HADOOP_USER_NAME on a cluster without Kerberos.
"""

from __future__ import annotations

import errno
import re
import threading
import weakref
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, TypeVar

from hdfs_native import Client

from txsink.errors import (
    InternalError,
    InvalidRequestError,
    OutcomeUnknownError,
    TxsinkError,
    UnavailableError,
    did_you_mean,
)

_T = TypeVar("_T")
_Answer: TypeAlias = "SimpleQueue[tuple[Any, BaseException | None]]"
_Inbox: TypeAlias = "SimpleQueue[tuple[Callable[[Client], Any], _Answer] | None]"

SCHEMES = ("hdfs", "viewfs")
DEADLINE_SECONDS, _DEADLINE_SECONDS_MAX = 60.0, 86_400.0
_CLIENT_OPTIONS = ("config_dir", "kerberos_principal", "kerberos_keytab", "kerberos_cache")
_ATTEMPTS = "dfs.client.failover.max.attempts"

ONE_PLACE = "Take the mount or the encryption zone away and call it again, or drop the epoch with `txsink abort`"
_RPC_ERROR = re.compile(r'(?:Fatal)?RPCError\("(?:[\w$]+[.$])*(\w+)", "(.*?)(?:\\n|"\)$)', re.DOTALL)
_CLIENT_ERROR = re.compile(r'(\w+)(?:\("?(.*?)"?\))?$', re.DOTALL)
# The Java class or the client's own kind of error, words of the message -> what the caller does next.
# With each of them HDFS has answered, and nothing was done.
_REFUSALS: tuple[tuple[set[str], tuple[str, ...], type[TxsinkError], str], ...] = (
    ({"SafeModeException"}, ("is in safe mode",), UnavailableError, "Retry when the NameNode has left safe mode"),
    (
        {"SaslException", "GSSException", "InvalidToken", "SASLError", "GSSAPIError", "NoSASLMechanism"},
        ("authentication is not enabled",),
        UnavailableError,
        "Renew the Kerberos ticket (kinit) or the delegation token, then retry",
    ),
    (
        {"StandbyException", "ObserverRetryOnActiveException"},
        (),
        UnavailableError,
        "Retry; name the name service rather than one NameNode, so that the client finds the active one",
    ),
    (
        {"ParentNotDirectoryException", "InvalidPathException", "PathComponentTooLongException", "IsADirectoryError"},
        ("(is not a directory)", "must both be directories"),
        InvalidRequestError,
        "Name another path",
    ),
    (
        {"AccessControlException", "AuthorizationException"},
        (),
        UnavailableError,
        "Give the user that right, then retry",
    ),
    (
        {"NSQuotaExceededException", "DSQuotaExceededException", "QuotaByStorageTypeExceededException"},
        (),
        UnavailableError,
        "Raise the quota or make room, then retry",
    ),
    (
        {"DataTransferError", "BlocksNotFound", "ChecksumError"},
        ("could only be written to", "could only be found"),
        UnavailableError,
        "Retry when enough DataNodes serve and have room",
    ),
    ({"LeaseExpiredException"}, (), UnavailableError, "Somebody deleted the file while it was written: begin again"),
    (set(), ("can't be moved", "Cannot rename across"), InvalidRequestError, ONE_PLACE),
    (set(), ("no KMS provider",), InvalidRequestError, "Set hadoop.security.key.provider.path"),
    (
        {"UnsupportedErasureCodingPolicy", "ErasureCodingError"},
        ("erasure-coded",),
        InvalidRequestError,
        "Have files replicated there: `hdfs ec -setPolicy -replicate -path DIRECTORY`",
    ),
)
_UNSENT = {errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL}


class Line:
    """A client, and the threads that wait for its answers: as many as there are calls at a time.

    The threads hold the client. In a forked child they are gone, but not what they held: that is what it takes, for
    the client hangs when it is dropped in a process that is not its own.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._idle: deque[_Inbox] = deque()
        self._is_over = threading.Event()
        self._first, inbox = self._hire()
        self._idle.append(inbox)
        weakref.finalize(self, _dismiss, self._idle, self._is_over)

    @property
    def is_whole(self) -> bool:
        """Whether this is still the process that made it."""
        return self._first.is_alive()

    def ask(self, act: Callable[[Client], Any], seconds: float) -> tuple[Any, BaseException | None]:
        """What `act` returned or raised; Empty when it did neither in time. It goes on, and nobody listens."""
        try:
            inbox = self._idle.pop()
        except IndexError:
            _, inbox = self._hire()
        answer: _Answer = SimpleQueue()
        inbox.put((act, answer))
        return answer.get(timeout=seconds)

    def _hire(self) -> tuple[threading.Thread, _Inbox]:
        inbox: _Inbox = SimpleQueue()
        given = (self._client, inbox, self._idle, self._is_over)
        thread = threading.Thread(target=_serve, args=given, name="txsink-hdfs", daemon=True)
        thread.start()
        return thread, inbox


class Calls:
    """How a store calls the client."""

    def __init__(self, place: str, options: dict[str, object]) -> None:
        self.place = place
        self._deadline, self._config, self._given = _options(place, options)
        self._line: Line | None = None

    def do(
        self,
        what: str,
        act: Callable[[Client], _T],
        *,
        expects: type[OSError] | tuple[type[OSError], ...] = (),
        changes: bool = False,
        line: Line | None = None,
    ) -> _T:
        """What `act` gets from the client. Errors become ours, but for those that the caller `expects`.

        `changes`: others can see what it does. `line`: the one that an open file was opened on.
        """
        line = line or self.line(what)
        if not line.is_whole:
            raise UnavailableError(what, "it was begun before this process was forked", "Begin the epoch again")
        try:
            value, error = line.ask(act, self._deadline)
        except Empty:
            self._leave(line)
            found = f"HDFS did not answer within {self._deadline:g} s"
            raise _lost(what, found, changes=changes, deadline_seconds=self._deadline) from None
        if error is None:
            return value
        if isinstance(error, (TxsinkError, expects)):
            raise error
        failure = _mapped(what, error, changes=changes)
        if not is_refusal(failure):
            self._leave(line)
        raise failure from error

    def _leave(self, line: Line) -> None:
        # A connection that is silent may stay silent; on one that is lost, the client may lose the next call as well.
        if self._line is line:
            self._line = None

    def line(self, what: str) -> Line:
        """The line for calls to come."""
        line = self._line
        if line is None or not line.is_whole:
            try:
                line = self._line = Line(Client(f"{self.place}/", self._config, **self._given))
            except (OSError, RuntimeError, ValueError) as error:
                found = f"no client of {self.place} could be made: {_told(error)[1]}"
                advice = "Check the storage options and HADOOP_CONF_DIR, or name the NameNode: hdfs://host:port/path"
                raise InvalidRequestError(what, found, advice) from error
        return line


def look(lost: OutcomeUnknownError, act: Callable[[], _T]) -> _T:
    """What `act` finds out after an answer was lost. Who cannot be asked again leaves it unknown."""
    if is_silence(lost):
        raise lost
    try:
        return act()
    except UnavailableError:
        raise lost from None


def is_silence(error: TxsinkError) -> bool:
    """Whether a deadline passed: the next call would wait as long."""
    return "deadline_seconds" in error.context


def is_refusal(error: TxsinkError) -> bool:
    """Whether HDFS answered."""
    return "exception" in error.context


def _serve(client: Client, inbox: _Inbox, idle: deque[_Inbox], is_over: threading.Event) -> None:
    while (job := inbox.get()) is not None:
        act, answer = job
        value, failure = None, None
        try:
            value = act(client)
        except BaseException as error:  # noqa: BLE001 -- a panic of the client is one
            failure = error.with_traceback(None)  # it would keep the client
        idle.append(inbox)
        answer.put((value, failure))
        del job, act, answer, value, failure
        if is_over.is_set():
            return


def _dismiss(idle: deque[_Inbox], is_over: threading.Event) -> None:
    is_over.set()
    while idle:
        idle.pop().put(None)


def _mapped(what: str, error: BaseException, *, changes: bool) -> TxsinkError:
    kind, found = _told(error)
    for kinds, words, failure, advice in _REFUSALS:
        if kind in kinds or any(part in found for part in words):
            return failure(what, found, advice, exception=kind)
    code = re.search(r"os error (\d+)", found)
    if (code and int(code[1]) in _UNSENT) or "failed to lookup address" in found:
        return UnavailableError(what, found, "Check the address of the NameNode, and retry when it answers")
    if type(error) is OSError or str(error).startswith(("FatalRPCError", "InvalidRPCResponse")):
        return _lost(what, found, changes=changes)
    if isinstance(error, OSError | RuntimeError):
        return UnavailableError(what, found, "Retry when HDFS serves again", exception=kind)
    return InternalError(what, found, "Report it")


def _lost(what: str, found: str, *, changes: bool, **context: object) -> TxsinkError:
    if changes:
        return OutcomeUnknownError(what, found, "Open the writer again: it recovers", **context)
    return UnavailableError(what, found, "Retry when HDFS answers again", **context)


def _told(error: BaseException) -> tuple[str, str]:
    """The Java class of an error, or the kind the client or Python gives it; and its message, without Java's stack."""
    text = str(error)
    match = _RPC_ERROR.match(text) or (_CLIENT_ERROR.match(text) if isinstance(error, RuntimeError) else None)
    kind, message = (match[1], match[2] or match[1]) if match else (type(error).__name__, text.partition("\n")[0])
    message = message.replace('\\"', '"')[:300].rstrip(". ")
    return kind, message if type(error) is OSError else f"{message} ({kind})"


def _options(place: str, options: dict[str, object]) -> tuple[float, dict[str, str], dict[str, str]]:
    """The deadline, the Hadoop settings, and what else the client takes."""
    deadline = DEADLINE_SECONDS
    config: dict[str, str] = {}
    given: dict[str, str] = {}
    for name, value in options.items():
        if not isinstance(name, str) or not (name in (*_CLIENT_OPTIONS, "deadline_seconds") or "." in name):
            otherwise = "Give deadline_seconds, or Hadoop settings such as dfs.x"
            advice = did_you_mean(name, [*_CLIENT_OPTIONS, "deadline_seconds"], otherwise)
            raise InvalidRequestError(f"open {place}", f"unknown storage option {name!r}", advice)
        if name == "deadline_seconds":
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _DEADLINE_SECONDS_MAX:
                raise InvalidRequestError(
                    f"open {place}", f"deadline_seconds is {value!r}", "Give seconds, up to a day"
                )
            deadline = float(value)
        elif not isinstance(value, str | int | float):
            found = f"the storage option {name} is of type {type(value).__name__}"
            raise InvalidRequestError(f"open {place}", found, "Give text or a number")
        else:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            (config if "." in name else given)[name] = text
    if re.search(r":\d+$", place):
        config.setdefault(_ATTEMPTS, str(_attempts(deadline)))
    return deadline, config, given


def _attempts(deadline: float) -> int:
    """How often one NameNode that refuses connections may be tried before the deadline passes.

    Then it is known that nothing was done, which a deadline that passes would leave unknown.
    """
    slept, attempts = 0.0, 0
    # The client sleeps 0.5 s doubled each time, up to half as much again, and never more than 15 s.
    while (slept := slept + min(15.0, 1.5 * 2.0 ** min(attempts, 4))) < 0.9 * deadline:
        attempts += 1
    return attempts
