"""What can go wrong on the way of a message, as types.

    InferenceError                  code, facts for people and programs, retryable
    ├── ConfigError                 a setting has a bad value; the start stops
    ├── ModelFileError              a model file is missing, cut, not a GGUF, or of an unsupported kind
    ├── InvalidRequest              what the caller sent can never work: 400
    │   └── PromptTooLong           the prompt does not fit the context, with both numbers
    ├── ModelNotServed              no live worker serves this model
    ├── StoreUnavailable            Redis cannot be reached, or is loading
    ├── EventsExpired               the log no longer reaches back that far (or is unknown): ask the database
    ├── TicketRefused               somebody else holds the lease now; the attempt ends silently
    └── EngineError                 the engine could not go on with one sequence
        ├── EngineStopped           the engine is draining or gone; another worker may go on
        ├── EngineDied              the engine broke under its answers; each of them counts a lost attempt
        └── BadLogits               a row came back without a finite value

Whoever catches one decides by `code` and `retryable`, never by the text.
"""

from __future__ import annotations


class InferenceError(Exception):
    """Base of all. `code` is stable snake_case; `facts` are the numbers and names behind the sentence."""

    code: str = "inference_error"
    retryable: bool = False

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts


class ConfigError(InferenceError):
    code = "config_error"


class ModelFileError(InferenceError):
    code = "model_file_error"


class InvalidRequest(InferenceError):
    code = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None, **facts: object) -> None:
        super().__init__(message, **facts)
        self.param = param


class PromptTooLong(InvalidRequest):
    """`prompt_tokens` were sent, `limit_tokens` fit; `context_tokens` are for prompt and answer together."""

    code = "prompt_too_long"

    def __init__(self, *, prompt_tokens: int, limit_tokens: int, context_tokens: int) -> None:
        super().__init__(
            f"The prompt has {prompt_tokens:,} tokens; this model takes at most {limit_tokens:,}.",
            param="messages",
            prompt_tokens=prompt_tokens,
            limit_tokens=limit_tokens,
            context_tokens=context_tokens,
        )
        self.prompt_tokens = prompt_tokens
        self.limit_tokens = limit_tokens
        self.context_tokens = context_tokens


class ModelNotServed(InferenceError):
    code = "model_not_served"
    retryable = True


class StoreUnavailable(InferenceError):
    code = "store_unavailable"
    retryable = True


class EventsExpired(InferenceError):
    code = "events_expired"


class LogUnreadable(EventsExpired):
    """What lies in its place no worker of ours writes. For readers it is gone; whoever records ends the answer."""

    code = "log_unreadable"


class TicketRefused(InferenceError):
    code = "ticket_refused"


class EngineError(InferenceError):
    code = "engine_error"
    retryable = True


class EngineStopped(EngineError):
    code = "engine_stopped"


class EngineDied(EngineError):
    code = "engine_died"


class BadLogits(EngineError):
    code = "bad_logits"
