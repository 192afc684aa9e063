"""Request and response bodies of `/v1`, compatible with OpenAI's chat completions.

Decoding checks types; `ChatCompletionRequest.check` refuses what we would otherwise drop in silence; parameters we do
not know are ignored, as OpenAI's clients expect. Knows nothing of HTTP, the database or Redis.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from inference.errors import InvalidRequest
from inference.protocol import ChatMessage, FinishReason, Role, SamplingParams, Usage

ROLES = {"system": Role.SYSTEM, "developer": Role.SYSTEM, "user": Role.USER, "assistant": Role.ASSISTANT}
MAX_MESSAGES = 4096


class ContentPart(msgspec.Struct):
    type: str
    text: str | None = None


class RequestMessage(msgspec.Struct):
    role: str
    content: str | list[ContentPart] | None = None
    tool_calls: list[Any] | None = None


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class ResponseFormat(msgspec.Struct):
    type: str = "text"


class TemplateOptions(msgspec.Struct):
    enable_thinking: bool | None = None


class ChatCompletionRequest(msgspec.Struct):
    """The body of POST /v1/chat/completions. null means the same as absent, everywhere."""

    model: str
    messages: list[RequestMessage]
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    user: str | None = None
    prompt_cache_key: str | None = None
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    logit_bias: dict[str, float] | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    modalities: list[str] | None = None
    reasoning_effort: str | None = None
    thinking: bool | None = None
    chat_template_kwargs: TemplateOptions | None = None

    @property
    def is_stream(self) -> bool:
        return bool(self.stream)

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def check(self, *, max_completion_tokens: int) -> ChatCompletionRequest:
        """Return self.

        Raises:
            InvalidRequest: something is asked for that is not offered, or a value is out of range; `param` names it.
        """
        if not self.model:
            raise InvalidRequest("model must not be empty.", param="model")
        if not self.messages:
            raise InvalidRequest("messages must have at least one message.", param="messages")
        if len(self.messages) > MAX_MESSAGES:
            raise InvalidRequest(f"messages may have at most {MAX_MESSAGES:,} messages.", param="messages")
        for name, is_refused, sentence in (
            ("n", self.n not in (None, 1), "n must be 1: one answer per request."),
            ("tools", bool(self.tools), "tools are not offered yet; leave them out."),
            ("functions", bool(self.functions), "functions are not offered; leave them out."),
            (
                "response_format",
                self.response_format is not None and self.response_format.type != "text",
                'response_format must be {"type": "text"}: nothing else is offered.',
            ),
            ("logprobs", bool(self.logprobs), "logprobs are not offered; leave them out."),
            ("top_logprobs", bool(self.top_logprobs), "top_logprobs are not offered; leave them out."),
            ("logit_bias", bool(self.logit_bias), "logit_bias is not offered; leave it out."),
            ("modalities", self.modalities not in (None, [], ["text"]), 'modalities must be ["text"].'),
            (
                "stream_options",
                self.stream_options is not None and not self.is_stream,
                "stream_options is only allowed when stream is true.",
            ),
        ):
            if is_refused:
                raise InvalidRequest(sentence, param=name)
        for name in ("max_completion_tokens", "max_tokens"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= max_completion_tokens:
                raise InvalidRequest(
                    f"{name} must be between 1 and {max_completion_tokens:,}, not {value}.", param=name
                )
        self.chat_messages()
        self.sampling(max_completion_tokens)
        return self

    def chat_messages(self) -> tuple[ChatMessage, ...]:
        """The turns as the model will see them.

        Raises:
            InvalidRequest: a role, or a kind of content, that is not offered.
        """
        return tuple(_chat_message(message, f"messages[{i}]") for i, message in enumerate(self.messages))

    def sampling(self, max_completion_tokens: int) -> SamplingParams:
        """How tokens are chosen; without a limit of its own the answer gets the site's.

        Raises:
            InvalidRequest: a value is out of range.
        """
        limit = self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens
        return SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            seed=self.seed,
            max_tokens=max_completion_tokens if limit is None else limit,
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()),
        ).check()

    @property
    def wants_thinking(self) -> bool | None:
        """Whether the model is to think first; None leaves it to the model. The most explicit wish wins."""
        if self.thinking is not None:
            return self.thinking
        if self.chat_template_kwargs is not None and self.chat_template_kwargs.enable_thinking is not None:
            return self.chat_template_kwargs.enable_thinking
        return None if self.reasoning_effort is None else self.reasoning_effort != "none"

    def conversation_key(self, user_key: str) -> str:
        """Names the caller's thread, so that a worker that holds its prefix is preferred; empty when none is named."""
        if not self.prompt_cache_key:
            return ""
        return f"{user_key}:{hashlib.sha256(self.prompt_cache_key.encode()).hexdigest()[:32]}"


def _chat_message(message: RequestMessage, where: str) -> ChatMessage:
    if message.role in ("tool", "function"):
        raise InvalidRequest(f"{where}: the role {message.role!r} is not offered yet.", param=f"{where}.role")
    role = ROLES.get(message.role)
    if role is None:
        raise InvalidRequest(f"{where}: unknown role {message.role!r}.", param=f"{where}.role")
    if message.tool_calls:
        raise InvalidRequest(f"{where}: tool calls are not offered yet.", param=f"{where}.tool_calls")
    if message.content is None:
        raise InvalidRequest(f"{where} has no content.", param=f"{where}.content")
    if isinstance(message.content, str):
        return ChatMessage(role=role, content=message.content)
    texts = []
    for i, part in enumerate(message.content):
        if part.type != "text" or part.text is None:
            raise InvalidRequest(
                f"{where}.content[{i}]: only text parts are offered, not {part.type!r}.", param=f"{where}.content[{i}]"
            )
        texts.append(part.text)
    return ChatMessage(role=role, content="".join(texts))


_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_EXPECTED = re.compile(r"Expected `(?P<expected>[^`]+)`, got `(?P<got>[^`]+)`(?: - at `\$\.(?P<path>[^`]+)`)?")
_MISSING = re.compile(r"Object missing required field `(?P<name>\w+)`(?: - at `\$\.(?P<path>[^`]+)`)?")
_AT = re.compile(r" - at `\$\.(?P<path>[^`]+)`")
_decoder = msgspec.json.Decoder(ChatCompletionRequest)


def parse(body: bytes) -> ChatCompletionRequest:
    """The request in `body`.

    Raises:
        InvalidRequest: not UTF-8, not JSON, or a field has the wrong type; `param` names the field.
    """
    try:
        body.decode()  # the JSON decoder alone lets through bytes that are not UTF-8
        return _decoder.decode(body)
    except UnicodeDecodeError:
        raise InvalidRequest("The body is not UTF-8.") from None
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.") from None
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error)) from None
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The body is not JSON: {error}.") from None


def _wrong_type(report: str) -> InvalidRequest:
    """msgspec's report in the caller's words."""
    if match := _MISSING.match(report):
        param = f"{match['path']}.{match['name']}" if match["path"] else match["name"]
        return InvalidRequest(f"{param} is missing.", param=param)
    if match := _EXPECTED.match(report):
        expected = [_KINDS.get(kind, kind) for kind in match["expected"].split(" | ") if kind != "null"]
        got = _KINDS.get(match["got"], match["got"])
        subject = match["path"] or "The body"
        return InvalidRequest(f"{subject} must be {' or '.join(expected)}, not {got}.", param=match["path"])
    where = _AT.search(report)
    return InvalidRequest(f"{report}.", param=where["path"] if where else None)


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


class ChunkDelta(msgspec.Struct, omit_defaults=True):
    """`reasoning_content` is what the model thinks, as DeepSeek and vLLM name it; OpenAI itself has no such field."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET


class ChunkChoice(msgspec.Struct):
    delta: ChunkDelta
    index: int = 0
    logprobs: None = None
    finish_reason: FinishWord | None = None


class Chunk(msgspec.Struct):
    """`usage` is absent unless asked for; then it is null in every chunk but the last, whose choices are empty."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    object: str = "chat.completion.chunk"
    usage: UsageBody | UnsetType | None = UNSET


class AnswerMessage(msgspec.Struct):
    content: str
    role: str = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET


class AnswerChoice(msgspec.Struct):
    message: AnswerMessage
    finish_reason: FinishWord
    index: int = 0
    logprobs: None = None


class ChatCompletion(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[AnswerChoice]
    usage: UsageBody
    object: str = "chat.completion"


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
