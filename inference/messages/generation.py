"""What crosses processes about a generation: its request, its events, its finish. Typed, frozen, versioned.

Knows nothing of Redis, Celery or a model. Web code and workers both import it; a change here is a change of the
protocol, so `serialization.PROTOCOL_VERSION` rises with it. What workers say of themselves is in `cards`, how their
model is changed in `swap`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Literal, Self
from uuid import UUID

import msgspec

from inference.errors import InvalidRequest
from inference.messages.serialization import PROTOCOL_VERSION, crosses_processes

Cut = Literal["", "max_tokens", "context", "time", "loop"]  # which limit ended an answer

MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 256
MAX_TOP_LOGPROBS = 20
MAX_LOGIT_BIASES = 1024
MAX_SCHEMA_CHARS = 100_000
MAX_TOOLS = 128
MAX_TOOL_CHARS = 20_000  # of one tool's description
MAX_THINKING_BUDGET = 1_000_000  # tokens
CALL_TRUNCATED = "tool_call_truncated"  # the code of a call in whose middle the answer ended


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class FinishReason(StrEnum):
    """Why an answer ended. `cancelled` and `error` are ours; the API maps them."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CANCELLED = "cancelled"
    ERROR = "error"


class EventKind(StrEnum):
    STARTED = "started"  # a worker took it: `worker`, and the attempt begins (or goes on)
    PROGRESS = "progress"  # reading the prompt: `num_done` of `num_total` tokens, `num_cached` of them from the cache
    DELTA = "delta"  # new text, with the token ids it came from
    FINISH = "finish"  # the answer ended: `finish`
    RECORDED = "recorded"  # the answer is in Postgres; the last event, the only one viewers close on


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool that the model may call. `parameters` is the JSON Schema of its arguments as JSON text; "" is none.

    `is_strict`: also where the model is free to call, its calls in JSON follow the schema.
    """

    name: str
    description: str = ""
    parameters: str = ""
    is_strict: bool = False


class ToolCall(msgspec.Struct, frozen=True):
    """A call that the model made: `arguments` is the JSON text of an object."""

    id: str
    name: str
    arguments: str


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One turn as the model will see it. Reasoning of earlier turns is never sent.

    `tool_calls` are those an assistant message made; `tool_call_id` says which of them a tool message answers.
    """

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


@crosses_processes
class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to choose tokens. None means: the model's own default from the catalog.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1, `min_p` 0 and `typical_p` 1 switch these off, and so does
    `dry_multiplier` 0 for the whole of DRY (as in llama.cpp: a token that would lengthen a repetition of n tokens
    loses dry_multiplier * dry_base ** (n - dry_allowed_length)). `logit_bias` adds to a token's logit; -100 or less
    forbids it. `seed` fixes the draws of this generation. `max_tokens` None means: as many as the context has room
    for, up to the site's cap. `ignore_eos` forbids the tokens that end an answer. `logprobs` None reports none; n
    reports the chosen token's and the n best of each position. `json_schema` is a JSON Schema as JSON text that the
    content must follow ("{}": any JSON). After `thinking_budget` tokens of thought the model is made to answer.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    typical_p: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool | None = None
    logprobs: int | None = None
    json_schema: str | None = None
    thinking_budget: int | None = None

    _RANGES: ClassVar = {
        "temperature": (0.0, 2.0),
        "top_k": (0, 1_000_000),
        "top_p": (0.0, 1.0),
        "min_p": (0.0, 1.0),
        "repetition_penalty": (0.01, 10.0),
        "presence_penalty": (-2.0, 2.0),
        "frequency_penalty": (-2.0, 2.0),
        "typical_p": (0.0, 1.0),
        "dry_multiplier": (0.0, 10.0),
        "dry_base": (1.0, 10.0),
        "dry_allowed_length": (1, 1_000),
        "logprobs": (0, MAX_TOP_LOGPROBS),
        "thinking_budget": (1, MAX_THINKING_BUDGET),
        "seed": (-(2**63), 2**64 - 1),
        "max_tokens": (1, 10_000_000),
    }

    def check(self) -> Self:
        """Return self, or raise InvalidRequest that names the first value out of range."""
        for name, (low, high) in self._RANGES.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:  # also refuses NaN
                raise InvalidRequest(f"{name} must be between {low} and {high}, not {value}.", param=name)
        for name in ("top_p", "typical_p"):
            if getattr(self, name) == 0.0:
                raise InvalidRequest(f"{name} must be above 0.", param=name)
        if self.logit_bias is not None:
            if len(self.logit_bias) > MAX_LOGIT_BIASES:
                raise InvalidRequest(f"logit_bias takes at most {MAX_LOGIT_BIASES:,} tokens.", param="logit_bias")
            for token, bias in self.logit_bias.items():
                if token < 0 or not -100.0 <= bias <= 100.0:
                    raise InvalidRequest(
                        f"logit_bias must map token ids to numbers between -100 and 100, not {token} to {bias}.",
                        param="logit_bias",
                    )
        if self.json_schema is not None and len(self.json_schema) > MAX_SCHEMA_CHARS:
            raise InvalidRequest(f"a schema may have at most {MAX_SCHEMA_CHARS:,} characters.", param="response_format")
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidRequest(f"stop takes at most {MAX_STOP_STRINGS} strings, not {len(self.stop)}.", param="stop")
        for text in self.stop:
            if not 1 <= len(text) <= MAX_STOP_STRING_CHARS:
                raise InvalidRequest(
                    f"a stop string must have 1 to {MAX_STOP_STRING_CHARS} characters, not {len(text)}.", param="stop"
                )
        return self

    def over(self, defaults: SamplingParams) -> SamplingParams:
        """These values where set, else those of `defaults`."""
        mine = {f: getattr(self, f) for f in self.__struct_fields__ if getattr(self, f) is not None}
        if not self.stop:
            mine.pop("stop", None)
        return msgspec.structs.replace(defaults, **mine)


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """Text that an answer begins with instead of the model's own: what an earlier answer had already said.

    `is_whole`: the answer ends with it, no model is asked, and it leaves at `tokens_per_second`.
    """

    content: str = ""
    reasoning: str = ""
    is_whole: bool = False
    tokens_per_second: float = 0.0  # 0 = as fast as it can be written


@crosses_processes
class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a worker needs to answer one message. Stored in Redis until the answer is recorded.

    `user_key` is whom fairness counts for; `conversation_key` lets a worker that still holds the conversation's
    prefix be preferred. `priority` 0 is a person waiting; larger is less urgent. `date` is what the template may
    print as today, fixed per conversation so that midnight does not spoil the prefix cache. `thinking` None leaves
    it to the model's default. `is_system_shared` says that the system turn is the site's own text: its KV may then be
    shared between users, which a person's own instructions never are.

    `tools` are offered in the dialect `tool_dialect` ("": the model's own). `tool_choice` "required" makes the answer
    one or more calls, of the tool `required_tool` where that is named; "none" allows no call.

    An `opening` is shown and stored as the answer's beginning; the model goes on behind it. Its tokens are not counted
    as the answer's, neither in its usage nor against `sampling.max_tokens`.
    """

    id: UUID
    model: str
    user_key: str
    messages: tuple[ChatMessage, ...]
    conversation_key: str = ""
    thinking: bool | None = None
    is_system_shared: bool = False
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: Literal["auto", "none", "required"] = "auto"
    required_tool: str = ""
    is_parallel: bool = True  # several calls in one answer
    tool_dialect: Literal["", "xml", "python"] = ""
    sampling: SamplingParams = SamplingParams()
    opening: Opening | None = None
    priority: int = 0
    date: str = ""
    prompt_tokens: int = 0  # as counted before it was sent; 0 = not counted. An estimate of cost, nothing relies on it.
    version: int = PROTOCOL_VERSION

    @property
    def may_call(self) -> bool:
        """Whether calls are looked for in the answer."""
        return bool(self.tools) and self.tool_choice != "none"


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """`cached_tokens` of the prompt were not prefilled again; `reasoning_tokens` are part of the completion."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class ErrorFacts(msgspec.Struct, frozen=True, kw_only=True):
    """An error as people and programs see it: a stable code, one sentence, and whether trying again may help."""

    code: str
    message: str
    retryable: bool = False


class ToolCallDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of the answer's call number `index` (from 0): the first has its id and name, `arguments` add up to JSON.

    One with `error` is a call's last: what came of it before counts for nothing, and its text follows as content (but
    for a call that a limit cut: CALL_TRUNCATED).
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""
    error: ErrorFacts | None = None


class Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    """New text of one channel. The concatenation of all deltas of a kind is that part of the answer.

    A piece of a tool call has no `text`, but a `call`.
    """

    kind: Literal["content", "reasoning", "tool_call"]
    text: str
    call: ToolCallDelta | None = None


class TokenLogprob(msgspec.Struct, frozen=True):
    """Natural log of the probability that the model gave a token, before any filter or penalty; and of the best ones.

    `data` are the token's bytes: several tokens may make one character.
    """

    data: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()


@crosses_processes
class Finish(msgspec.Struct, frozen=True, kw_only=True):
    """How an answer ended. `content_sha256` covers content (UTF-8) alone; `num_chars` its length in code points.

    `cut` says which limit made the reason `length`: the tokens asked for, the context, the wall clock, or that the
    model only repeated itself.
    """

    reason: FinishReason
    cut: Cut = ""
    usage: Usage = Usage()
    content_sha256: str = ""
    num_chars: int = 0
    error: ErrorFacts | None = None
    worker: str = ""
    num_dropped_messages: int = 0  # the oldest of the path, which the model no longer saw
    decode_seconds: float = 0.0  # from the first to the last token of the last attempt


@crosses_processes
class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of a generation's log. `seq` counts from 1 without holes, across attempts; 0 = not yet in the log.

    `logprobs`, where they were asked for, are of the content tokens among `tokens`, in order.
    """

    kind: EventKind
    seq: int = 0
    deltas: tuple[Delta, ...] = ()
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    worker: str = ""
    num_done: int = 0
    num_total: int = 0
    num_cached: int = 0
    finish: Finish | None = None


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """Where a generation stands in Redis.

    `position` counts from 1 among those waiting for the same model; `eta_seconds` is None while nothing was measured.
    """

    state: Literal["unknown", "waiting", "leased", "lapsed", "finished"]
    position: int = 0
    num_waiting: int = 0
    eta_seconds: float | None = None
    worker: str = ""
    num_lost: int = 0
    stop_requested: bool = False
    is_recorded: bool = False
    waited_seconds: float = 0.0
