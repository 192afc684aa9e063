"""What crosses processes between web and workers: requests, events, cards. Typed, frozen, versioned.

Knows nothing of Redis, Celery or a model. Web code and workers both import it; a change here is a change of the
protocol, so `PROTOCOL_VERSION` rises with it and an older reader refuses a newer message by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, ClassVar, Literal, Self, TypeVar
from uuid import UUID

import msgspec

from inference.errors import InvalidRequest

PROTOCOL_VERSION = 2

T = TypeVar("T", bound=msgspec.Struct)

Cut = Literal["", "max_tokens", "context", "time", "loop"]  # which limit ended an answer

MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 256
MAX_TOP_LOGPROBS = 20
MAX_LOGIT_BIASES = 1024
MAX_SCHEMA_CHARS = 100_000
MAX_TOOLS = 128
MAX_TOOL_CHARS = 20_000  # of one tool's description
MAX_THINKING_BUDGET = 1_000_000  # tokens


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

    One with `error` is a call's last: what came of it before counts for nothing, and its text follows as content.
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


class Cursor(msgspec.Struct, frozen=True):
    """Where a viewer stands: the log's mark and the newest seq it has. Text form `<mark>:<seq>` is the SSE id."""

    mark: str
    seq: int

    _TEXT: ClassVar = re.compile(r"([0-9a-f]{1,32}):(\d{1,18})")

    def __str__(self) -> str:
        return f"{self.mark}:{self.seq}"

    @classmethod
    def parse(cls, text: str) -> Cursor | None:
        """The cursor that `text` spells, or None when it spells none (a viewer then starts from the beginning)."""
        match = cls._TEXT.fullmatch(text)
        return cls(match[1], int(match[2])) if match else None


class Log(msgspec.Struct, frozen=True):
    """A generation's log as read: its mark, and the events asked for, oldest first."""

    mark: str
    events: tuple[Event, ...]

    @property
    def finish(self) -> Finish | None:
        return next((e.finish for e in reversed(self.events) if e.kind is EventKind.FINISH), None)

    @property
    def is_recorded(self) -> bool:
        return any(e.kind is EventKind.RECORDED for e in self.events)

    def text(self, kind: Literal["content", "reasoning"]) -> str:
        return "".join(d.text for e in self.events for d in e.deltas if d.kind == kind)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The good calls so far, as far as they are written."""
        return tool_calls_of(delta for event in self.events for delta in event.deltas)


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


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says of the model it serves. `prompt_kit` is the key under which template and tokenizer lie;
    `adapters` are the LoRA adapters laid over it, each with its scale."""

    name: str
    title: str
    architecture: str
    context_tokens: int  # of one conversation
    prompt_kit: str
    thinking: bool = False
    tools: bool = False
    sampling: SamplingParams = SamplingParams()
    size_bytes: int = 0
    quantization: str = ""
    adapters: tuple[str, ...] = ()


class WorkerCard(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's heartbeat. `degradations` say where it is less than it should be, `notes` what else is worth knowing;
    one sentence each."""

    name: str
    model: ModelCard
    num_slots: int
    num_free_slots: int
    device: str
    started_at: float  # Unix seconds
    seen_at: float  # Unix seconds, by the worker's clock
    state: Literal["loading", "ready", "draining"] = "ready"
    next_model: str = ""  # what it is changing to (`SwapOrder`): its own model is leaving, new messages go elsewhere
    notes: tuple[str, ...] = ()
    degradations: tuple[str, ...] = ()
    num_decoded_tokens: int = 0
    engine_idle_seconds: float = 0.0  # since the engine last finished a step while it had work; 0 when it has none
    version: int = PROTOCOL_VERSION


class SwapOrder(msgspec.Struct, frozen=True, kw_only=True):
    """To one worker: serve `model` instead (a catalog name, a path there, or an address at the hub).

    `timeout_seconds` is how long what waits for the old model may take to be answered, where nobody else serves it.
    """

    id: UUID
    model: str
    timeout_seconds: float
    version: int = PROTOCOL_VERSION


class SwapReport(msgspec.Struct, frozen=True, kw_only=True):
    """How far a worker is with an order; the newest replaces the one before. `sentence` says why an order ended badly.

    `waiting`: the worker is the last of its old model and answers whoever waits for that. `draining`: it accepts
    nothing more. The ends: `ready`, `refused` (nothing has changed), `called_off` (it serves the old model as before),
    `failed` (the new model could not be loaded; it serves the old one again).
    """

    order: UUID
    state: Literal["checking", "waiting", "draining", "loading", "ready", "refused", "called_off", "failed"]
    model: str = ""  # the new model's catalog name, once it is known
    num_answers: int = 0  # that are still to be written before it goes on
    sentence: str = ""
    version: int = PROTOCOL_VERSION

    @property
    def is_end(self) -> bool:
        return self.state in ("ready", "refused", "called_off", "failed")


def tool_calls_of(deltas: Iterable[Delta]) -> tuple[ToolCall, ...]:
    """The calls that `deltas` add up to, in order; failed ones are left out."""
    calls: dict[int, ToolCall] = {}
    failed: set[int] = set()
    for piece in (delta.call for delta in deltas if delta.call is not None):
        before = calls.get(piece.index, ToolCall("", "", ""))
        calls[piece.index] = ToolCall(
            before.id + piece.id, before.name + piece.name, before.arguments + piece.arguments
        )
        if piece.error is not None:
            failed.add(piece.index)
    return tuple(call for index, call in sorted(calls.items()) if index not in failed)


_encoder = msgspec.json.Encoder()

# Made here, while the module is imported and one thread alone can be: when several threads meet a struct type for the
# first time at once, msgspec 0.22 crashes the process while it looks at the type's fields.
_decoders: dict[type[msgspec.Struct], msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind)
    for kind in (Event, Finish, GenerationRequest, ModelCard, SamplingParams, SwapOrder, SwapReport, WorkerCard)
}


def encode(value: msgspec.Struct) -> bytes:
    """JSON form of any struct of this module."""
    return _encoder.encode(value)


def decode(data: bytes | str, kind: type[T]) -> T:
    """The struct of one of the kinds that cross processes that `data` holds.

    Raises:
        InvalidRequest: it is not JSON of that kind; the sentence names the field.
    """
    try:
        decoded: T = _decoders[kind].decode(data)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"not a {kind.__name__}: {error}") from error
    return decoded
