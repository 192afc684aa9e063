"""Messages -> prompt text in segments that say who wrote them: the template (scaffold) or somebody else (content).

Owns the marking of content through a template, SmolLM-style thinking flags and the frozen date. Knows no token ids.
Called by the builder; thread-safe after construction.

Content goes into the template between two noncharacters (which cannot occur in it: they are replaced), and the
rendered text is cut there. A template that trims or searches content would be misled by the marks, so trimming is
measured once with a probe and done here beforehand; and special tokens' texts inside content are broken by a third
noncharacter, so that even a template that cuts a mark off cannot turn content into scaffold.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from jinja2.exceptions import TemplateError

from inference.errors import InvalidRequest, ModelFileError
from inference.prompt import messages as message_rules
from inference.prompt.kit import PromptKit
from inference.prompt.sandbox import RefusedByTemplate, TemplateSandbox, clock, refuse
from inference.prompt.tokenizer import BREAKER
from inference.protocol import ChatMessage, Role

OPEN, CLOSE = "\ufdd0", "\ufdd1"
_MARKS = re.compile(f"[{OPEN}{CLOSE}{BREAKER}]")
_CUT = re.compile(f"([{OPEN}{CLOSE}])")

# A flag is a word of its own: "/think-tank", "/thinking" and "https://x/think" are none.
_FLAG = re.compile(r"(?<!\S)/(no_)?think(?=[.,;:!?)]*(?:\s|$))")

# What a template's own mistakes raise while it runs; the sandbox turns some into SecurityError itself.
_TEMPLATE_FAULTS = (TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError,
                    RecursionError, MemoryError)  # fmt: skip


@dataclass(frozen=True)
class Segment:
    text: str
    is_scaffold: bool


class ChatTemplate:
    """The chat template of `kit`, compiled. `broken` puts breakers into content (Tokenizer.broken)."""

    def __init__(self, kit: PromptKit, broken: Callable[[str], str]) -> None:
        """Raises ModelFileError: the template is none, or cannot render one plain question."""
        self._kit = kit
        self._broken = broken
        self._sandbox = TemplateSandbox()
        try:
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

    def render(self, messages: Sequence[ChatMessage], *, thinking: bool | None, date: str) -> list[Segment]:
        """The prompt up to where the answer begins.

        `date` is ISO (2026-11-27), "" means today in UTC. A /think or /no_think flag in the system message wins over
        `thinking`; None leaves it to the model (which thinks, if it can).

        Raises:
            InvalidRequest: the list is not sound, or the template refuses it.
        """
        messages = message_rules.check(messages)
        today = _day(date)
        plain: list[dict[str, Any]] = []
        for message in messages:
            content = message.content
            if self._kit.thinking is not None and message.role is Role.SYSTEM:
                content, flag = _without_flags(content)
                thinking = thinking if flag is None else flag
            plain.append({"role": message.role.value, "content": self._marked(message.role, content)})
        try:
            text = self._run(plain, thinking, today)
        except RefusedByTemplate as error:
            raise InvalidRequest(
                f"This model's chat template refuses the messages: {error}", param="messages"
            ) from error
        except _TEMPLATE_FAULTS as error:
            raise InvalidRequest(
                f"This model's chat template cannot render these messages ({type(error).__name__}: {error}).",
                param="messages",
            ) from error
        return _segments(text)

    def _run(self, messages: list[dict[str, Any]], thinking: bool | None, today: date) -> str:
        context: dict[str, Any] = {
            "messages": messages,
            "add_generation_prompt": True,
            "bos_token": self._kit.bos_text,
            "eos_token": self._kit.eos_text,
            "strftime_now": clock(today),
            "raise_exception": refuse,
            "tools": None,
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
        return OPEN + self._broken(_MARKS.sub("\ufffd", content)) + CLOSE

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


def _segments(text: str) -> list[Segment]:
    """Cut at the marks. Where a template dropped or doubled one, all is scaffold; breakers still keep content text."""
    pieces = _CUT.split(text)
    marks = pieces[1::2]
    if len(marks) % 2 or any(mark != (OPEN, CLOSE)[i % 2] for i, mark in enumerate(marks)):
        return [Segment(_CUT.sub(BREAKER, text), True)]
    out = []
    for index, piece in enumerate(pieces[0::2]):
        if piece:
            is_scaffold = index % 2 == 0
            out.append(Segment(piece if is_scaffold else piece.replace(BREAKER, ""), is_scaffold))
    return out


def _without_flags(system: str) -> tuple[str, bool | None]:
    """The system text without thinking flags, and what they say; /no_think wins over /think."""
    flags = [match[1] for match in _FLAG.finditer(system)]
    if not flags:
        return system, None
    return _FLAG.sub("", system).rstrip(), "no_" not in flags


def _day(text: str) -> date:
    if not text:
        return datetime.now(UTC).date()
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(f"date must look like 2026-11-27, not {text!r}.", param="date") from None
