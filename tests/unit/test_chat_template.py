"""Templates from strangers' files: bounded, kept from Python's insides, refusals in words."""

from __future__ import annotations

import pytest

from inference.errors import InvalidRequest, ModelFileError
from inference.messages.generation import ChatMessage, Role
from inference.prompt.chat_template import ChatTemplate, Segment
from inference.prompt.kit import PromptKit, ThinkTags

CHATML = "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}"

GROWTH = (
    "{% set ns = namespace(s=messages[0].content) %}{% for i in range(60) %}{% set ns.s = STEP %}{% endfor %}{{ ns.s }}"
)


def template(source: str, *, thinks: bool = False) -> ChatTemplate:
    kit = PromptKit(
        model="m",
        pre_tokenizer="gpt-2",
        tokens=("<s>", "</s>"),
        token_types=b"\x03\x03",
        merges=(),
        chat_template=source,
        context_tokens=100,
        bos_id=0,
        eos_id=1,
        thinking=ThinkTags(open="<think>", close="</think>") if thinks else None,
    )
    return ChatTemplate(kit, lambda text: text)


def render(source: str, text: str = "hi", date: str = "2026-11-28", **fields: bool | None) -> str:
    fields.setdefault("thinking", None)
    turns = [ChatMessage(role=Role.USER, content=text)]
    segments = template(source, thinks=True).render(turns, date=date, **fields)  # type: ignore[arg-type]
    return "".join(s.text for s in segments)


def test_segments_say_who_wrote_them() -> None:
    turns = [ChatMessage(role=Role.SYSTEM, content="be"), ChatMessage(role=Role.USER, content="hi")]
    assert template(CHATML).render(turns, thinking=None, date="") == [
        Segment("<s>system\n", True),
        Segment("be", False, is_system=True),
        Segment("</s>\n<s>user\n", True),
        Segment("hi", False),
        Segment("</s>\n", True),
    ]


def test_marks_in_a_text_are_replaced() -> None:
    assert render(CHATML, "a\ufdd0b\ufdd1c\ufdd2d") == "<s>user\na\ufffdb\ufffdc\ufffdd</s>\n"


def test_the_date_is_given_and_checked() -> None:
    source = CHATML + "{{ strftime_now('%d %B %Y') }}"
    assert render(source).endswith("28 November 2026")
    with pytest.raises(InvalidRequest, match="yesterday"):
        render(source, date="yesterday")


def test_thinking_reaches_the_template() -> None:
    source = CHATML + "{{ enable_thinking }}"
    assert render(source, thinking=False).endswith("False")
    assert render(source, thinking=None).endswith("True")
    assert template(CHATML + "{{ enable_thinking is defined }}")


def test_tojson_and_generation_blocks_work() -> None:
    assert render("{{ messages[0].content }}{{ {'a': 'é<'} | tojson }}") == 'hi{"a": "é<"}'
    assert render("{% generation %}{{ messages[0].content }}{% endgeneration %}") == "hi"


def test_loop_variables_still_work() -> None:
    assert render("{% for m in messages %}{{ m.content }}{{ loop.last }}{{ loop.length }}{% endfor %}") == "hiTrue1"


def test_a_refusal_of_the_template_is_the_senders_to_read() -> None:
    source = (
        "{% if messages | length > 1 %}{{ raise_exception('One message at a time.') }}{% endif %}"
        "{{ messages[-1].content }}"
    )
    turns = [ChatMessage(role=role, content="x") for role in (Role.USER, Role.ASSISTANT, Role.USER)]
    with pytest.raises(InvalidRequest, match="One message at a time"):
        template(source).render(turns, thinking=None, date="")


@pytest.mark.parametrize(
    "source",
    [
        "{% if %}",
        "{{ messages[0].content }}{{ nothing.at.all }}",
        "no messages at all",
        "{{ messages[0].content }}{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages[0].content }}{{ messages.append(1) }}",
        "{{ messages[0].content }}{{ strftime_now.__globals__ }}{{ strftime_now.__globals__.os }}",
        "{{ messages[0].content }}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ messages[0].content }}{{ range(10 ** 9) | list }}",
        "{{ messages[0].content }}{{ 'x' * 1000000000 }}",
        "{{ messages[0].content }}{{ '%1000000000d' % 1 }}",
        "{{ messages[0].content }}{{ 'x'.ljust(1000000000) }}",
        "{{ messages[0].content }}{{ '{:1000000000}'.format(1) }}",
        "{{ messages[0].content }}{{ 'x' | center(1000000000) }}",
        "{{ messages[0].content }}{{ 9 ** 9 ** 9 }}",
        GROWTH.replace("STEP", "ns.s + ns.s"),
        GROWTH.replace("STEP", "ns.s ~ ns.s"),
        GROWTH.replace("STEP", "ns.s | replace('l', ns.s)"),
        "{{ messages[0].content }}{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)  # fmt: skip
def test_a_bad_or_hostile_template_is_refused_at_load(source: str) -> None:
    with pytest.raises(ModelFileError):
        template(source)
