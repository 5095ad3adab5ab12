"""One request to S3, repeated until its outcome is clear or its time is up; what a refusal means to the user.

Promises: an answer, a failure the caller said it expects, or an error of `txsink.errors` that says how often was tried
and within which time; OutcomeUnknownError wherever an attempt may have changed what a reader sees, also when a later
attempt was refused. Decided by HTTP status and S3 error code, never by the type of an exception. An error holds no
option's value, no exception of a client, and of the server's words only its code and the request's number: no secret.
Relies on: s3fs for the options and the client of botocore, whose own retries are off: attempts are counted and bounded
here and nowhere else. aiohttp still sends a PUT or DELETE again when the connection drops, so that even "connection
refused" may follow an attempt that landed: without an answer nothing is certain.
Does not promise: to know whether a request may be repeated. The verbs of `s3.py` do.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from functools import cache, partial
from threading import Event
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast
from urllib.parse import urlsplit

from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import AioSession
from botocore.exceptions import (
    BotoCoreError,
    ConnectionError as BotoConnectionError,
    HTTPClientError,
    IncompleteReadError,
)
from botocore.loaders import create_loader
from fsspec.asyn import sync
from s3fs import S3FileSystem

from txsink.errors import InvalidRequestError, OutcomeUnknownError, TxsinkError, UnavailableError

Answer: TypeAlias = dict[str, Any]
Codes: TypeAlias = frozenset[str | int]
_T = TypeVar("_T")

_DEADLINE_SECONDS, _DEADLINE_SECONDS_MAX = 60.0, 3600.0
_ATTEMPT_SECONDS_MIN, _LAST_START = 0.05, 0.9
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.05, 5.0
_READ_BYTES = 1 << 20
_TIMEOUTS = {"connect_timeout": 5, "read_timeout": 20}
_FORCED = {"use_listings_cache": False, "skip_instance_cache": True, "asynchronous": False}

_NEVER_SENT = 0  # in place of an HTTP status
_SERVER_ERROR, _NOT_IMPLEMENTED = 500, 501
# Somebody else is at it. Other codes of status 409 say that a name can never be given.
_CONFLICTS = {"ConditionalRequestConflict", "OperationAborted", "409"}
_TRANSIENT = {"RequestTimeout", "TooManyRequests", "429", "CredentialRetrievalError", "MetadataRetrievalError"}
# Said before anything is done. Others answer 503 when they are half through.
_TURNED_AWAY = {"SlowDown"}

_REGION = "Give the bucket's region: storage_options={'client_kwargs': {'region_name': ...}}"
_CREDENTIALS = "Open it again with valid credentials, by storage_options, a profile or the environment"
_RIGHTS = (
    "Grant s3:GetObject, PutObject, DeleteObject, AbortMultipartUpload and ListMultipartUploadParts on its objects, "
    "s3:ListBucket and ListBucketMultipartUploads on the bucket (without ListBucket, S3 hides that an object is not "
    "there), then retry"
)
_LATER = "Retry when the store answers again; deadline_seconds in storage_options is the bound"
# What the codes mean to the user. A HEAD has no code in its answer, only the number.
_REFUSALS: tuple[tuple[set[str], type[TxsinkError], str, str], ...] = (
    ({"NoSuchBucket"}, InvalidRequestError, "there is no such bucket", "Create the bucket, or name another"),
    (
        {"PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed", "301", "307"},
        InvalidRequestError, "the bucket is in another region", _REGION,
    ),
    ({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"},
     InvalidRequestError, "the credentials have expired", _CREDENTIALS),
    ({"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "InvalidSecurity", "XAdminUserNotFound"},
     InvalidRequestError, "the credentials are not accepted", _CREDENTIALS),
    ({"NoCredentialsError", "PartialCredentialsError"},
     InvalidRequestError, "there are no complete credentials", f"{_CREDENTIALS}, or anon=True"),
    ({"AccessDenied", "AllAccessDisabled", "AccountProblem", "403"}, UnavailableError, "access is denied", _RIGHTS),
    ({"RequestTimeTooSkewed"}, UnavailableError, "the clocks of this machine and of the store differ too much",
     "Set the clock, then retry"),
    ({"SlowDown", "TooManyRequests", "429"}, UnavailableError, "the store is throttling", _LATER),
    ({"QuotaExceeded", "XMinioStorageFull"}, UnavailableError, "the store has no room", "Make room, then retry"),
    ({"InvalidObjectState"}, UnavailableError, "the object is archived", "Restore it, then retry"),
    ({"KeyTooLongError", "XMinioInvalidObjectName"}, InvalidRequestError, "the store does not take this name",
     "Name a shorter path"),
    ({"ExistingObjectIsDirectory", "ObjectParentIsFile", "XMinioParentIsObject", "XMinioObjectExistsAsDirectory"},
     InvalidRequestError, "an object has the name of a directory, or the reverse: this store cannot hold both",
     "Name another path"),
    ({"EntityTooLarge"}, InvalidRequestError, "it is too large", "Write smaller files (target_file_bytes)"),
    ({"InvalidRequest"}, InvalidRequestError, "the store does not take such a request",
     "Look at the bucket's object lock, encryption and checksum rules and at s3_additional_kwargs"),
    ({"NotImplemented", "MethodNotAllowed", "405", "501"}, InvalidRequestError, "the store cannot do this",
     "Use a store with conditional writes, such as AWS S3 or MinIO"),
)  # fmt: skip


ATTEMPTS = "txsink-attempts"  # in an answer: how many requests it took


class Failure(NamedTuple):
    """Why one attempt has no good answer. Without one, `code` is the name of the exception."""

    status: int | None
    code: str
    request: str = ""

    def is_in(self, codes: Codes) -> bool:
        """Whether the caller expects it."""
        return self.code in codes or self.status in codes

    @property
    def is_transient(self) -> bool:
        """Whether the same request may fare better later."""
        return self.may_have_landed or self.code in _TRANSIENT or self.code in _TURNED_AWAY

    @property
    def may_have_landed(self) -> bool:
        """Whether it may have been done, or be done any moment."""
        if self.status is None or self.code in _CONFLICTS:
            return True
        return self.status >= _SERVER_ERROR and self.status != _NOT_IMPLEMENTED and self.code not in _TURNED_AWAY


def failure_of(error: BaseException) -> Failure:
    """What an exception of the client says, with nothing in it that a server or a user wrote freely."""
    cause: BaseException | None = error
    while cause is not None:  # s3fs raises a translation from the original
        response = getattr(cause, "response", None)
        if isinstance(response, dict):
            answer = response.get("ResponseMetadata", {})
            status = answer.get("HTTPStatusCode")
            code = _word(response.get("Error", {}).get("Code"))
            return Failure(status if isinstance(status, int) else None, code, _word(answer.get("RequestId")))
        cause = cause.__cause__
    local = isinstance(error, BotoCoreError)
    if local and not isinstance(error, HTTPClientError | BotoConnectionError | IncompleteReadError):
        return Failure(_NEVER_SENT, type(error).__name__)
    return Failure(None, type(error).__name__)


class Calls:
    """A client of s3fs that tries as often as its deadline allows."""

    def __init__(self, options: dict[str, object]) -> None:
        self._options = dict(options)
        self.deadline_seconds = _deadline(self._options.pop("deadline_seconds", _DEADLINE_SECONDS))
        self._client = _client(self._options)
        where = urlsplit(self._client.s3.meta.endpoint_url)
        self.endpoint = f"{where.scheme}://{where.hostname}" + (f":{where.port}" if where.port else "")
        # Of processes we were forked from: to drop one is to close connections that are not ours.
        self._inherited: list[S3FileSystem] = []

    def ask(
        self,
        attempted: str,
        method: str,
        keywords: dict[str, Any],
        expects: Codes = frozenset(),
        *,
        changes: bool = False,
        keep: int = 0,
    ) -> Answer | Failure:
        """The answer, or a failure that is expected. `changes`: whether readers see what it does."""
        clock = self._now().loop.time
        start = clock()
        end = start + self.deadline_seconds
        last = start + self.deadline_seconds * _LAST_START  # later, an attempt has no time to be answered
        is_unclear, attempt = False, 0
        while True:
            attempt += 1
            found = self.once(method, keywords, end - clock(), keep)
            if isinstance(found, dict):
                return {**found, ATTEMPTS: attempt}
            if found.is_in(expects):
                return found
            is_unclear = is_unclear or (changes and found.may_have_landed)
            pause = _pause(attempt, attempted)
            if not found.is_transient or clock() + pause > last:
                raise self._error(attempted, found, attempt, is_unclear=is_unclear)
            Event().wait(pause)

    def once(self, method: str, keywords: dict[str, Any], seconds: float, keep: int = 0) -> Answer | Failure:
        """One attempt; never raises."""
        client = self._now()
        seconds = max(seconds, _ATTEMPT_SECONDS_MIN)
        try:
            found = sync(client.loop, _request, client, method, keywords, keep, timeout=seconds)
        except Exception as error:  # noqa: BLE001 -- whatever it is, the outcome is what counts
            return failure_of(error)
        # A cancelled request ends in None.
        return found if isinstance(found, dict) else Failure(None, "Cancelled")

    def pages(
        self,
        attempted: str,
        method: str,
        keywords: dict[str, Any],
        markers: dict[str, str],
        expects: Codes = frozenset(),
    ) -> Iterator[Answer | Failure]:
        """Every page of a listing; `markers`: what the next request takes from which field of the page before."""
        while True:
            page = self.ask(attempted, method, keywords, expects)
            yield page
            if isinstance(page, Failure) or not page.get("IsTruncated"):
                return
            following = {name: page[field] for name, field in markers.items() if field in page}
            if following.items() <= keywords.items():
                raise UnavailableError(attempted, "the store repeats a page of its listing", _LATER)
            keywords = {**keywords, **following}

    def with_client(self, attempted: str, act: Callable[[S3FileSystem], Awaitable[_T]]) -> _T:
        """What `act` says of the client itself, on the thread that the client lives on."""
        client = self._now()
        try:
            return cast("_T", sync(client.loop, act, client, timeout=self.deadline_seconds))
        except Exception as error:  # noqa: BLE001 -- of whatever resolves credentials; its text may hold them
            failure = failure_of(error)
        raise self._error(attempted, failure, 1, is_unclear=False)

    def _now(self) -> S3FileSystem:
        """The client of this process: its threads and connections do not survive a fork."""
        try:
            self._client.loop  # noqa: B018 -- raises in a forked child
        except RuntimeError:
            self._inherited.append(self._client)
            self._client = _client(self._options)
        return self._client

    def _error(self, attempted: str, failure: Failure, attempts: int, *, is_unclear: bool) -> TxsinkError:
        kind, meaning, advice = _meaning(failure)
        said = " ".join(dict.fromkeys(str(word) for word in (failure.status, failure.code) if word))
        tried = f"{attempts} attempt{'s' if attempts > 1 else ''} within {self.deadline_seconds:g} s"
        found = f"{meaning} ({said}, {tried}, {self.endpoint})"
        context: dict[str, object] = {
            "status": failure.status, "code": failure.code, "attempts": attempts, "endpoint": self.endpoint,
            "deadline_seconds": self.deadline_seconds, "request": failure.request, "refused": not failure.is_transient,
        }  # fmt: skip
        if is_unclear:
            found = f"it may have been done, but then: {found}"
            return OutcomeUnknownError(attempted, found, "Open the writer again: it recovers", **context)
        return kind(attempted, found, advice, **context)


async def _request(client: S3FileSystem, method: str, keywords: dict[str, Any], keep: int) -> Answer:
    """One request and the whole of its answer; `keep`: so many bytes of a body, the last ones when negative."""
    await client.set_session()
    s3 = await client.get_s3(keywords["Bucket"])
    # What `client.call_s3` does, without its pauses, and without dropping what botocore does not know: a condition.
    known = s3.meta.service_model.operation_model(s3.meta.method_to_api_mapping[method]).input_shape.members
    usual = {**client.s3_additional_kwargs, **client.req_kw}
    usual = {name: value for name, value in usual.items() if name in known}
    answer: Answer = await getattr(s3, method)(**{**usual, **keywords})
    if "Body" in answer:
        data = bytearray()
        async with answer["Body"] as body:
            # Not all a server sends: it may not know about ranges.
            while (keep < 0 or len(data) < keep) and (more := await body.read(_READ_BYTES)):
                data += more
                if keep < 0:
                    del data[:keep]
        answer["Body"] = bytes(data[:keep] if keep > 0 else data)
    return answer


def _client(options: dict[str, object]) -> S3FileSystem:
    try:
        config: dict[str, object] = {**_TIMEOUTS, **(options.get("config_kwargs") or {})}  # type: ignore[dict-item]
        config["retries"] = {"total_max_attempts": 1}
        config.setdefault("http_session_cls", _Straight)
        client = S3FileSystem(**{**options, **_FORCED, "config_kwargs": config})
        if client.session is None:
            client.session = AioSession(**client.kwargs)
            client.session.register_component("data_loader", _loader(client.session.get_config_variable("data_path")))
        client.connect()
    except Exception as error:  # noqa: BLE001 -- its text may hold the value of an option
        text, kind = str(error), type(error).__name__
    else:
        return client
    nested = [value for value in options.values() if isinstance(value, dict)]
    names = [str(name) for given in (options, *nested) for name in given]
    named = sorted(name for name in names if f"'{name}'" in text)
    found = f"the S3 client refuses {', '.join(named) or 'one of ' + ', '.join(sorted(names))} ({kind})"
    raise InvalidRequestError("open an S3 store", found, "Fix storage_options: s3fs.S3FileSystem takes the same")


class _Straight(AIOHTTPSession):  # type: ignore[misc]
    """Asks the configured endpoint and nobody else: aiohttp goes, with a signed request, wherever a server sends it."""

    async def _get_session(self, proxy_url: str | None) -> Any:
        session = await super()._get_session(proxy_url)
        return SimpleNamespace(request=partial(session.request, allow_redirects=False))


@cache
def _loader(data_path: str | None) -> Any:
    """What knows the model of S3: reading that is most of what it costs to open a client after the first."""
    return create_loader(data_path)


def _deadline(value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= _DEADLINE_SECONDS_MAX:  # type: ignore[operator]
        advice = f"Give a number of seconds, at most {_DEADLINE_SECONDS_MAX:g}"
        raise InvalidRequestError("open an S3 store", "deadline_seconds is no such number", advice)
    return float(value)  # type: ignore[arg-type]


def _meaning(failure: Failure) -> tuple[type[TxsinkError], str, str]:
    for codes, kind, meaning, advice in _REFUSALS:
        if failure.code in codes:
            return kind, meaning, advice
    if failure.status == _NEVER_SENT:
        return InvalidRequestError, "the S3 client sends no such request", "Look at storage_options and the path"
    if failure.is_transient:
        return UnavailableError, "the store did not answer" if failure.status is None else "the store failed", _LATER
    return InvalidRequestError, "the store refused it", "Look at storage_options (endpoint_url) and the path"


def _pause(attempt: int, salt: str) -> float:
    """Twice as long each time; spread by a hash, which differs between processes, as many may wait for one slot."""
    spread = 0.5 + hash((salt, attempt)) % 64 / 128
    return min(_PAUSE_SECONDS * 2**attempt, _PAUSE_SECONDS_MAX) * spread


def _word(text: object) -> str:
    """One word of a server's, or nothing: whatever else it says may repeat what we sent."""
    return text if isinstance(text, str) and re.fullmatch(r"[A-Za-z0-9]{1,64}", text) else ""
