"""The body that asks `/v1` for a chat completion, compatible with OpenAI's.

Decoding checks types; `ChatCompletionRequest.check` refuses what we would otherwise drop in silence; parameters we do
not know are ignored, as OpenAI's clients expect. Knows nothing of HTTP, the database or Redis. Whether a JSON schema
can be followed and a token exists is not seen here, but where the prompt is counted (`completion.admit`).
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Literal

import msgspec

from chatsite.api import tools
from chatsite.api.formats import ResponseFormat
from chatsite.api.reasoning import ReasoningForm, TemplateOptions, ThinkingForm, Wish, wish
from chatsite.api.tools import Choice, ChoiceForm, ToolForm
from chatsite.api.turns import RequestMessage
from inference.errors import InvalidRequest
from inference.messages.generation import MAX_TOP_LOGPROBS, ChatMessage, SamplingParams, ToolSpec

MAX_MESSAGES = 4096
_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


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
    typical_p: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
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
    tools: list[ToolForm] | None = None
    tool_choice: str | ChoiceForm | None = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    modalities: list[str] | None = None
    reasoning_effort: str | None = None
    reasoning: ReasoningForm | None = None
    thinking: bool | ThinkingForm | None = None
    enable_thinking: bool | None = None
    thinking_budget: int | None = None
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
            ("functions", bool(self.functions), "functions are not offered; use tools."),
            ("function_call", self.function_call is not None, "function_call is not offered; use tool_choice."),
            (
                "top_logprobs",
                self.top_logprobs is not None and not self.logprobs,
                "top_logprobs is only allowed when logprobs is true.",
            ),
            (
                "top_logprobs",
                self.top_logprobs is not None and not 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS,
                f"top_logprobs must be between 0 and {MAX_TOP_LOGPROBS}, not {self.top_logprobs}.",
            ),
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
            if value is not None and value < 1:
                raise InvalidRequest(f"{name} must be at least 1, not {value}.", param=name)
        self.chat_messages()
        tools.choice(self.tool_choice, self.tool_specs())
        self.sampling(max_completion_tokens)
        return self

    @property
    def json_schema(self) -> str | None:
        """The JSON Schema that the answer must follow, None for free text. Raises InvalidRequest."""
        return None if self.response_format is None else self.response_format.json_text()

    def chat_messages(self) -> tuple[ChatMessage, ...]:
        """The turns as the model will see them.

        Raises:
            InvalidRequest: a role, or a kind of content, that is not offered.
        """
        return tuple(message.chat_message(f"messages[{i}]") for i, message in enumerate(self.messages))

    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """Raises InvalidRequest: a kind of tool that is not offered."""
        return tools.specs(self.tools)

    @property
    def choice(self) -> Choice:
        """Which tool, if any, must be called. Raises InvalidRequest."""
        return tools.choice(self.tool_choice, self.tool_specs())

    @property
    def tool_dialect(self) -> Literal["", "xml", "python"]:
        return (self.chat_template_kwargs and self.chat_template_kwargs.tool_dialect) or ""

    @property
    def is_schema_strict(self) -> bool:
        return self.response_format is not None and self.response_format.is_strict

    @property
    def asked_max_tokens(self) -> int | None:
        """The newer name goes before the older one."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    def is_cap_asked(self, max_completion_tokens: int) -> bool:
        """Whether the client named a cap that is to be kept; one beyond the site's only says: as much as there is."""
        return self.asked_max_tokens is not None and self.asked_max_tokens <= max_completion_tokens

    def sampling(self, max_completion_tokens: int) -> SamplingParams:
        """How tokens are chosen. The site's limit holds for a client that names none, or a larger one.

        Raises:
            InvalidRequest: a value is out of range.
        """
        limit = self.asked_max_tokens
        return SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            typical_p=self.typical_p,
            dry_multiplier=self.dry_multiplier,
            dry_base=self.dry_base,
            dry_allowed_length=self.dry_allowed_length,
            logit_bias=_biases(self.logit_bias),
            seed=self.seed,
            max_tokens=max_completion_tokens if limit is None else min(limit, max_completion_tokens),
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()),
            ignore_eos=self.ignore_eos,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            json_schema=self.json_schema,
            thinking_budget=self._wish.budget,
        ).check()

    @property
    def wants_thinking(self) -> bool | None:
        """Whether the model is to think first; None leaves it to the model. Before an answer in JSON only if asked."""
        is_on = self._wish.is_on
        return bool(is_on) if self.json_schema is not None else is_on

    @property
    def _wish(self) -> Wish:
        return wish(
            thinking=self.thinking,
            template=self.chat_template_kwargs,
            enable_thinking=self.enable_thinking,
            reasoning=self.reasoning,
            effort=self.reasoning_effort,
            budget=self.thinking_budget,
        )

    def conversation_key(self, user_key: str) -> str:
        """Names the caller's thread, so that a worker that holds its prefix is preferred; empty when none is named."""
        if not self.prompt_cache_key:
            return ""
        return f"{user_key}:{hashlib.sha256(self.prompt_cache_key.encode()).hexdigest()[:32]}"


def _biases(by_name: dict[str, float] | None) -> dict[int, float] | None:
    """JSON has no numbers for keys."""
    if not by_name:
        return None
    for name in by_name:
        if not _TOKEN_ID.fullmatch(name):
            raise InvalidRequest(f"logit_bias: {name[:40]!r} is not a token id.", param="logit_bias")
    return {int(name): bias for name, bias in by_name.items()}


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
