"""Messages -> prompt text in segments that say who wrote them: the template (scaffold) or somebody else (content).

Owns the marking of content through a template, SmolLM-style flags, the frozen date and how a template is told of
tools. Knows no token ids. Called by the builder; thread-safe after construction.

Content goes into the template between two noncharacters (which cannot occur in it: they are replaced), and the
rendered text is cut there. The system message has an opening one of its own, so that it is known again. A template
that trims or searches content would be misled by the marks, so trimming is measured once with a probe and done here
beforehand; and special tokens' texts inside content are broken by a further noncharacter, so that even a template that
cuts a mark off cannot turn content into scaffold.

Tools, calls and results reach our own template as such content. Another template gets tools and calls as plain values
to look into, with no marks but every special token's text broken. What a template cannot write is learnt from probes
when it is compiled: tools and calls are then told in words, turns placed where it has a place for them
(`prompt.placing`). Nothing that was sent is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from jinja2.exceptions import TemplateError

from inference.errors import InvalidRequest, ModelFileError
from inference.messages.generation import ChatMessage, Role, ToolCall, ToolSpec
from inference.prompt import messages as message_rules
from inference.prompt import placing, tool_texts
from inference.prompt.kit import PromptKit
from inference.prompt.sandbox import RefusedByTemplate, TemplateSandbox, clock, refuse
from inference.prompt.tokenizer import BREAKER
from inference.prompt.tool_texts import Dialect

OPEN, CLOSE, OPEN_SYSTEM = "\ufdd0", "\ufdd1", "\ufdd3"
_MARKS = re.compile(f"[{OPEN}{CLOSE}{OPEN_SYSTEM}{BREAKER}]")
_CUT = re.compile(f"([{OPEN}{CLOSE}{OPEN_SYSTEM}])")

# A flag is a word of its own: "/think-tank", "/thinking" and "https://x/think" are none, nor is anything in code.
_FLAG = re.compile(
    r"(?P<code>^ {0,3}(?P<fence>`{3,}|~{3,})[\s\S]*?(?:^ {0,3}(?P=fence)[`~]*[ \t]*$|\Z)|`[^`\n]+`)"
    r"|(?<!\S)/(?P<flag>think|no_think|system_override)(?=[.,;:!?)]*(?:\s|$)) ?",
    re.MULTILINE,
)
_OWN_VARIABLE = "xml_tool_texts"  # a template that reads it is one of ours
_TOOL_VARIABLES: dict[Dialect, frozenset[str]] = {
    "xml": frozenset({"tools", "xml_tools"}),
    "python": frozenset({"python_tools"}),
}
_PROBE_TOOL = ToolSpec(name="probe_tool", description="A probe.")
_PROBE_CALL = ToolCall("call12345", "probe_tool", "{}")  # some want an id of nine letters and digits

# What a template's own mistakes raise while it runs; the sandbox turns some into SecurityError itself.
_TEMPLATE_FAULTS = (TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError,
                    RecursionError, MemoryError)  # fmt: skip


@dataclass(frozen=True)
class Segment:
    """Text of the template, or (not `is_scaffold`) of one message; `is_system` of the system message."""

    text: str
    is_scaffold: bool
    is_system: bool = False


class ChatTemplate:
    """The chat template of `kit`, compiled. `broken` puts breakers into content (Tokenizer.broken)."""

    def __init__(self, kit: PromptKit, broken: Callable[[str], str]) -> None:
        """Raises ModelFileError: the template is none, or cannot render one plain question."""
        self._kit = kit
        self._broken = broken
        self._sandbox = TemplateSandbox()
        self._reads: frozenset[str] = frozenset()
        try:
            self._reads = self._sandbox.variables_of(kit.chat_template)
            self._template = self._sandbox.compile_bounded(kit.chat_template)
        except _TEMPLATE_FAULTS as error:
            raise ModelFileError(f"The chat template of {kit.model} is not a template: {error}.") from error
        self._trims: dict[Role, tuple[bool, bool]] = {}
        try:
            question = ChatMessage(role=Role.USER, content="(hello)")
            rendered = self._run([{"role": question.role.value, "content": question.content}], None, date(2025, 1, 1))
        except _TEMPLATE_FAULTS as error:
            raise ModelFileError(f"The chat template of {kit.model} fails on a plain question: {error}.") from error
        if "hello" not in rendered:
            raise ModelFileError(f"The chat template of {kit.model} leaves a plain question out.")
        for role in (Role.SYSTEM, Role.USER, Role.ASSISTANT):
            self._trims[role] = self._probe_trimming(role)
        self._means = placing.Means.of(self._arrives)
        self._shown_tools = frozenset(dialect for dialect in _TOOL_VARIABLES if self._shows_tools(dialect))
        self._shows_calls = self._probe_calls()

    @property
    def is_own(self) -> bool:
        """Whether every text of other people's is a segment of its own, tools included."""
        return _OWN_VARIABLE in self._reads

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        thinking: bool | None,
        date: str,
        tools: Sequence[ToolSpec] = (),
        dialect: Dialect = "xml",
    ) -> list[Segment]:
        """The prompt up to where the answer begins.

        `date` is ISO (2026-11-27), "" means today in UTC. A /think or /no_think flag in the system message wins over
        `thinking`; None leaves it to the model (which thinks, if it can). `markdown` is that of `tools` and of the
        calls among the messages.

        Raises:
            InvalidRequest: the list is not sound, or the template refuses it.
        """
        messages = message_rules.check(messages)
        today = _day(date)
        forms = [(messages, tools)] if self.is_own else list(self._within_its_means(messages, tools, dialect))
        for number, (turns, offered) in enumerate(forms, 1):
            try:
                return _segments(self._rendered(turns, offered, dialect, thinking, today))
            except RefusedByTemplate as error:
                if number == len(forms):
                    raise InvalidRequest(
                        f"This model's chat template refuses the messages: {error}", param="messages"
                    ) from error
            except _TEMPLATE_FAULTS as error:
                if number == len(forms):
                    raise InvalidRequest(
                        f"This model's chat template cannot render these messages ({type(error).__name__}: {error}).",
                        param="messages",
                    ) from error
        raise AssertionError("there is at least one form")

    def _rendered(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec],
        dialect: Dialect,
        thinking: bool | None,
        today: date,
    ) -> str:
        """Raises whatever the template raises."""
        context = self._tool_context(tools, dialect)
        plain: list[dict[str, Any]] = []
        for index, message in enumerate(placing.placed(messages, self._means)):
            content = message.content
            if message.tool_calls:
                content = content.rstrip("\n")  # the template writes the line end between content and calls
            if self._kit.thinking is not None and message.role is Role.SYSTEM:
                content, flags = _without_flags(content, keeps_override=not self.is_own)
                if flags & {"think", "no_think"}:
                    thinking = "no_think" not in flags
                if self.is_own and "system_override" in flags:
                    if tools:
                        raise InvalidRequest(
                            f"messages[{index}]: /system_override leaves no place for tools; expected one of both.",
                            param=f"messages[{index}]",
                        )
                    context["system_override"] = True
            fields = {"role": message.role.value, "content": self._marked(message.role, content)}
            plain.append(fields | self._call_fields(message, dialect))
        return self._run(plain, thinking, today, context)

    def _within_its_means(
        self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec], dialect: Dialect
    ) -> Iterator[tuple[Sequence[ChatMessage], Sequence[ToolSpec]]]:
        """Messages and tools with what the template would pass over told in words; then, for a template that refuses
        these calls after all, with everything told so."""
        has_calls = any(message.tool_calls or message.role is Role.TOOL for message in messages)
        if tools and dialect not in self._shown_tools:
            yield tool_texts.told_as_text(messages, tools, dialect), ()
        elif has_calls and not self._shows_calls:
            yield tool_texts.told_as_text(messages, (), dialect), tools
        else:
            yield messages, tools
            if has_calls or tools:
                yield tool_texts.told_as_text(messages, tools, dialect), ()

    def _tool_context(self, tools: Sequence[ToolSpec], dialect: Dialect) -> dict[str, Any]:
        """What the template reads of tools; its variables for none stay undefined, but `tools`, which is None."""
        context: dict[str, Any] = {"tools": None}
        if self.is_own:
            context["call_opener"], context["call_closer"] = tool_texts.TAGS[dialect]
            if tools:
                context[f"{dialect}_tool_texts"] = [self._enclosed(tool_texts.spec_json(tool), OPEN) for tool in tools]
        elif tools:
            flat = [self._safe(tool_texts.plain_spec(tool)) for tool in tools]
            if f"{dialect}_tools" in self._reads:
                context[f"{dialect}_tools"] = flat
            else:
                context["tools"] = [{"type": "function", "function": tool} for tool in flat]
        return context

    def _call_fields(self, message: ChatMessage, dialect: Dialect) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if message.tool_calls and self.is_own:
            fields["call_texts"] = [
                self._enclosed(tool_texts.call_text(call, dialect), OPEN) for call in message.tool_calls
            ]
        elif message.tool_calls:
            fields["tool_calls"] = [self._plain_call(call) for call in message.tool_calls]
        if message.tool_call_id:
            fields["tool_call_id"] = self._safe(message.tool_call_id)
        return fields

    def _plain_call(self, call: ToolCall) -> dict[str, Any]:
        function = {"name": call.name, "arguments": self._safe(tool_texts.plain_arguments(call))}
        return {"id": self._safe(call.id), "type": "function", "function": function}

    def _safe(self, value: Any) -> Any:
        """`value` with no mark in it, and every special token's text broken, wherever it is hidden."""
        if isinstance(value, str):
            return self._broken(_MARKS.sub("\ufffd", value))
        if isinstance(value, dict):
            return {self._safe(key): self._safe(item) for key, item in value.items()}
        return [self._safe(item) for item in value] if isinstance(value, list) else value

    def _run(
        self,
        messages: list[dict[str, Any]],
        thinking: bool | None,
        today: date,
        more: dict[str, Any] | None = None,
    ) -> str:
        context: dict[str, Any] = {
            "messages": messages,
            "add_generation_prompt": True,
            "bos_token": self._kit.bos_text,
            "eos_token": self._kit.eos_text,
            "strftime_now": clock(today),
            "raise_exception": refuse,
            **(more or self._tool_context((), "xml")),
        }
        if self._kit.thinking is not None:
            context["enable_thinking"] = thinking is not False
        return self._sandbox.render_bounded(self._template, context)

    def _marked(self, role: Role, content: str) -> str:
        left, right = self._trims.get(role, (False, False))
        content = content.lstrip() if left else content
        content = content.rstrip() if right else content
        if not content:
            return ""  # templates ask whether there is content
        return self._enclosed(content, OPEN_SYSTEM if role is Role.SYSTEM else OPEN)

    def _enclosed(self, content: str, opening: str) -> str:
        return opening + self._broken(_MARKS.sub("\ufffd", content)) + CLOSE

    def _probe_trimming(self, role: Role) -> tuple[bool, bool]:
        """Whether the template strips this role's content on the left and on the right."""
        probe = {"role": role.value, "content": "\n  pröbe \n "}
        others = {
            Role.SYSTEM: [probe, {"role": "user", "content": "x"}],
            Role.USER: [probe],
            Role.ASSISTANT: [{"role": "user", "content": "x"}, probe, {"role": "user", "content": "x"}],
        }
        try:
            text = self._run(others[role], None, date(2025, 1, 1))
        except _TEMPLATE_FAULTS:  # a template without system messages, say: render() tells whoever sends one
            return False, False
        return "pröbe" in text and "\n  pröbe" not in text, "pröbe" in text and "pröbe \n " not in text

    def _arrives(self, turns: placing.Turns) -> bool:
        """Whether the texts of `turns` are all in the prompt, in their order."""
        return self._shows([{"role": role.value, "content": text} for role, text in turns], [text for _, text in turns])

    def _shows_tools(self, dialect: Dialect) -> bool:
        if not self._reads & _TOOL_VARIABLES[dialect]:
            return self.is_own
        question = [{"role": "user", "content": "(hello)"}]
        context = self._tool_context([_PROBE_TOOL], dialect)
        return self._shows(question, ["probe_tool"], context) and self._shows(question, ["(hello)"], context)

    def _probe_calls(self) -> bool:
        if "tool_calls" not in self._kit.chat_template:
            return self.is_own
        called = ChatMessage(role=Role.ASSISTANT, content="", tool_calls=(_PROBE_CALL,))
        told = ChatMessage(role=Role.TOOL, content="(rain)", tool_call_id=_PROBE_CALL.id)
        messages = [
            {"role": message.role.value, "content": message.content} | self._call_fields(message, "xml")
            for message in (ChatMessage(role=Role.USER, content="(hello)"), called, told)
        ]
        return self._shows(messages, ["(hello)", "probe_tool", "(rain)"])

    def _shows(
        self, messages: list[dict[str, Any]], texts: Sequence[str], context: dict[str, Any] | None = None
    ) -> bool:
        try:
            rendered = self._run(messages, None, date(2025, 1, 1), context)
        except _TEMPLATE_FAULTS:  # it refuses them, or has a mistake just there
            return False
        at = 0
        for text in texts:
            at = rendered.find(text, at) + 1
            if not at:
                return False
        return True


def _segments(text: str) -> list[Segment]:
    """Cut at the marks. Where a template dropped or doubled one, all is scaffold; breakers still keep content text."""
    pieces = _CUT.split(text)
    marks = pieces[1::2]
    if len(marks) % 2 or any((mark == CLOSE) != bool(i % 2) for i, mark in enumerate(marks)):
        return [Segment(_CUT.sub(BREAKER, text), True)]
    out = []
    for index, piece in enumerate(pieces[0::2]):
        if not piece:
            continue
        if index % 2 == 0:
            out.append(Segment(piece, True))
        else:
            out.append(Segment(piece.replace(BREAKER, ""), False, is_system=marks[index - 1] == OPEN_SYSTEM))
    return out


def _without_flags(system: str, *, keeps_override: bool) -> tuple[str, frozenset[str]]:
    """The system text without its flags, and which there were. A template may look for /system_override itself."""
    flags = {match["flag"] for match in _FLAG.finditer(system) if match["flag"]}
    kept = {None, "system_override"} if keeps_override else {None}
    if flags <= kept:
        return system, frozenset(flags)
    first = _FLAG.match(system.lstrip())
    text = _FLAG.sub(lambda match: match[0] if match["flag"] in kept else "", system).rstrip()
    return text.lstrip() if first is not None and first["flag"] not in kept else text, frozenset(flags)


def _day(text: str) -> date:
    if not text:
        return datetime.now(UTC).date()
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(f"date must look like 2026-11-27, not {text!r}.", param="date") from None
