"""What `/v1` answers when it cannot: an exception becomes a status, headers and OpenAI's error object.

    ApiError                  status, code, type, param, retry_after_seconds
    ├── BadRequest            400  the request can never work as it stands; `param` names the field
    ├── Unauthorized          401  no key, an unknown, expired or revoked one, or its user is switched off
    ├── ScopeMissing          403  a good key that may not do this; names the scope that is needed
    ├── ModelUnknown          404  no live worker serves that model
    ├── NothingHere           404  no such path
    ├── MethodRefused         405  `allowed` is the one method of this path
    ├── BodyTooLarge          413
    ├── Busy                  429  the user has as many answers under way as allowed
    ├── OverQuota             429  not enough tokens are left of the user's day or month, or of a group's
    ├── AnswerFailed          500  the answer broke off for good; `code` and text are those of its generation
    └── Unavailable           503  no worker, no store or no database just now

`of` turns what other parts raise into one of these. Knows nothing of ASGI; used by the consumers, any thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import structlog
from django.db import InterfaceError, OperationalError

from chatsite.api.responses import ErrorBody, ErrorObject
from chatsite.chat.errors import QuotaExceeded
from inference.errors import InferenceError, InvalidRequest, ModelNotServed, PromptTooLong, StoreUnavailable
from inference.messages.generation import ErrorFacts

log = structlog.get_logger(__name__)

CONTEXT_LENGTH = "context_length_exceeded"  # OpenAI's word, which clients look for
CONTEXT_WORDS = "This model's maximum context length is"  # these words others look for, without the code
RETRY_STORE_SECONDS = 2
RETRY_BUSY_SECONDS = 1
RETRY_WORKER_SECONDS = 5  # a worker that was killed is back, its model loaded, no earlier


class ApiError(Exception):
    """Base of all. `code` is stable; `param` is the field of the request that is to blame, if one is."""

    status = 500
    type = "server_error"
    code: str | None = "internal_error"
    retry_after_seconds: int | None = None

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """What this answer carries beside the usual headers."""
        if self.retry_after_seconds is None:
            return []
        return [(b"retry-after", str(self.retry_after_seconds).encode())]

    @property
    def body(self) -> bytes:
        error = ErrorObject(message=self.message, type=self.type, param=self.param, code=self.code)
        return msgspec.json.encode(ErrorBody(error=error))


class BadRequest(ApiError):
    status = 400
    type = "invalid_request_error"
    code = "invalid_request"


class Unauthorized(ApiError):
    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"www-authenticate", b"Bearer")]


class ScopeMissing(ApiError):
    status = 403
    type = "invalid_request_error"
    code = "insufficient_scope"

    def __init__(self, needed: str, scopes: Sequence[str]) -> None:
        own = " and ".join(repr(scope) for scope in scopes) or "none"
        super().__init__(
            f"This API key may not do that: it needs the scope {needed!r}, and the key's scopes are {own}."
        )
        self._needed = needed

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"www-authenticate", f'Bearer error="insufficient_scope", scope="{self._needed}"'.encode())]


class ModelUnknown(ApiError):
    status = 404
    type = "invalid_request_error"
    code = "model_not_found"

    def __init__(self, model: str) -> None:
        super().__init__(
            f"The model {model[:80]!r} is not served here; GET /v1/models lists those that are.", param="model"
        )


class NothingHere(ApiError):
    status = 404
    type = "invalid_request_error"
    code = "unknown_url"


class MethodRefused(ApiError):
    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"This path takes {allowed}, not {method}.")
        self.allowed = allowed

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"allow", self.allowed.encode())]


class BodyTooLarge(ApiError):
    status = 413
    type = "invalid_request_error"
    code = "request_too_large"

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"The request body may have at most {max_bytes:,} bytes.")


class Busy(ApiError):
    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"
    retry_after_seconds = RETRY_BUSY_SECONDS


class OverQuota(ApiError):
    status = 429
    type = "insufficient_quota"
    code = "insufficient_quota"

    def __init__(self, refusal: QuotaExceeded) -> None:
        super().__init__(refusal.message)
        self.retry_after_seconds = refusal.retry_after_seconds
        self._is_held = refusal.is_held

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """OpenAI's clients repeat any 429: in vain until the quota is new, but not where only answers under way are in
        the way."""
        return super().headers if self._is_held else [*super().headers, (b"x-should-retry", b"false")]


class AnswerFailed(ApiError):
    """The answer ended without its end. Said in the stream when it has begun, with status 500 when not."""

    code = "answer_failed"

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"x-should-retry", b"false")]  # OpenAI's clients would repeat any 500, and pay for it twice


class Unavailable(ApiError):
    status = 503
    code = "unavailable"

    def __init__(self, message: str, *, code: str, retry_after_seconds: int) -> None:
        super().__init__(message, code=code)
        self.retry_after_seconds = retry_after_seconds


def no_worker() -> Unavailable:
    return Unavailable(
        "No worker that could answer is running just now.", code="no_worker", retry_after_seconds=RETRY_WORKER_SECONDS
    )


def site_busy() -> Unavailable:
    return Unavailable(
        "Too many answers are waiting already.", code="site_busy", retry_after_seconds=RETRY_WORKER_SECONDS
    )


def ended_badly(facts: ErrorFacts) -> ApiError:
    """What to say of an answer that its worker, the sweeper or an operator ended."""
    if facts.code == PromptTooLong.code:
        said = f"{CONTEXT_WORDS} less than what your messages resulted in. {facts.message}"
        return BadRequest(said, code=CONTEXT_LENGTH, param="messages")
    if facts.code == InvalidRequest.code:
        return BadRequest(facts.message)
    if facts.retryable:
        return Unavailable(facts.message, code=facts.code, retry_after_seconds=RETRY_WORKER_SECONDS)
    return AnswerFailed(facts.message, code=facts.code)


def of(error: Exception) -> ApiError:
    """The answer to `error`; one that nobody foresaw is logged and becomes a 500 that reveals nothing."""
    match error:
        case ApiError():
            return error
        case QuotaExceeded():
            return OverQuota(error)
        case PromptTooLong():
            said = (
                f"{CONTEXT_WORDS} {error.context_tokens} tokens. However, your messages resulted in "
                f"{error.prompt_tokens} tokens, and {error.limit_tokens} are the most that leave room for an answer. "
                "Please reduce the length of the messages."
            )
            return BadRequest(said, code=CONTEXT_LENGTH, param=error.param)
        case InvalidRequest():
            return BadRequest(error.message, param=error.param)
        case ModelNotServed():
            return no_worker()
        case StoreUnavailable():
            return Unavailable(
                "The queue cannot be reached just now.", code=error.code, retry_after_seconds=RETRY_STORE_SECONDS
            )
        case OperationalError() | InterfaceError():
            log.warning("database cannot be reached", reason=type(error).__name__)
            return Unavailable(
                "The database cannot be reached just now.",
                code="database_unavailable",
                retry_after_seconds=RETRY_STORE_SECONDS,
            )
        case InferenceError():
            log.error("request failed", code=error.code, exc_info=error)
            return ApiError(error.message, code=error.code)
        case _:
            log.error("request failed", code="internal_error", exc_info=error)
            return ApiError("Something went wrong on our side.")
