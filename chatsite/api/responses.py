"""What `/v1` answers, in the shapes of OpenAI's chat completions. Plain data; knows nothing of HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from inference.messages.generation import FinishReason, TokenLogprob, ToolCall, ToolCallDelta, Usage


class ErrorObject(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct):
    error: ErrorObject


class PromptDetails(msgspec.Struct):
    cached_tokens: int


class CompletionDetails(msgspec.Struct):
    reasoning_tokens: int


class UsageBody(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails

    @classmethod
    def of(cls, usage: Usage) -> UsageBody:
        return cls(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            total_tokens=usage.total_tokens,
            prompt_tokens_details=PromptDetails(cached_tokens=usage.cached_tokens),
            completion_tokens_details=CompletionDetails(reasoning_tokens=usage.reasoning_tokens),
        )


FinishWord = Literal["stop", "length", "tool_calls"]
FINISH_WORDS: dict[FinishReason, FinishWord] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TOOL_CALLS: "tool_calls",
}


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobBody(msgspec.Struct):
    """`bytes` are exact; `token` shows U+FFFD where a token holds a part of a character."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]

    @classmethod
    def of(cls, told: TokenLogprob) -> TokenLogprobBody:
        return cls(
            token=told.data.decode(errors="replace"),
            logprob=told.logprob,
            bytes=list(told.data),
            top_logprobs=[TopLogprob(data.decode(errors="replace"), value, list(data)) for data, value in told.top],
        )


class LogprobsBody(msgspec.Struct):
    content: list[TokenLogprobBody]
    refusal: None = None

    @classmethod
    def of(cls, told: Sequence[TokenLogprob]) -> LogprobsBody:
        return cls([TokenLogprobBody.of(one) for one in told])


class FunctionPiece(msgspec.Struct, omit_defaults=True):
    arguments: str
    name: str | UnsetType = UNSET


class ToolCallPiece(msgspec.Struct, omit_defaults=True):
    """The first piece of a call has its id, type and name; the arguments of all add up to JSON."""

    index: int
    function: FunctionPiece
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET

    @classmethod
    def of(cls, call: ToolCallDelta, index: int) -> ToolCallPiece:
        if not call.id:
            return cls(index, FunctionPiece(call.arguments))
        return cls(index, FunctionPiece(call.arguments, call.name), call.id, "function")


class ChunkDelta(msgspec.Struct, omit_defaults=True):
    """`reasoning_content` is what the model thinks, as DeepSeek and vLLM name it; OpenAI itself has no such field."""

    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallPiece] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct):
    delta: ChunkDelta
    index: int = 0
    logprobs: LogprobsBody | None = None
    finish_reason: FinishWord | None = None


class Chunk(msgspec.Struct):
    """`usage` is absent unless asked for; then it is null in every chunk but the last, whose choices are empty."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    object: str = "chat.completion.chunk"
    usage: UsageBody | UnsetType | None = UNSET


class CalledFunction(msgspec.Struct):
    name: str
    arguments: str


class CalledTool(msgspec.Struct):
    id: str
    function: CalledFunction
    type: str = "function"

    @classmethod
    def of(cls, call: ToolCall) -> CalledTool:
        return cls(call.id, CalledFunction(call.name, call.arguments))


class AnswerMessage(msgspec.Struct):
    """`content` is null where there are but calls."""

    content: str | None
    role: str = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[CalledTool] | UnsetType = UNSET


class AnswerChoice(msgspec.Struct):
    message: AnswerMessage
    finish_reason: FinishWord
    index: int = 0
    logprobs: LogprobsBody | None = None


class ChatCompletion(msgspec.Struct):
    """`warnings` are ours: sentences about what could not be done just as it was asked; absent where there are none."""

    id: str
    created: int
    model: str
    choices: list[AnswerChoice]
    usage: UsageBody
    object: str = "chat.completion"
    warnings: tuple[str, ...] | UnsetType = UNSET


class ModelObject(msgspec.Struct):
    """`context_length` is ours (tokens of one conversation); the rest is OpenAI's."""

    id: str
    created: int
    context_length: int
    object: str = "model"
    owned_by: str = "smolfleet"


class ModelList(msgspec.Struct):
    data: list[ModelObject]
    object: str = "list"
