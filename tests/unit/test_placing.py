"""Message lists of every order reach templates of every kind, with no text left out and in their order."""

from __future__ import annotations

import pytest

from inference.messages.generation import ChatMessage, Role, ToolCall, ToolSpec
from inference.prompt.chat_template import ChatTemplate
from inference.prompt.kit import PromptKit

CHATML = (
    "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
ALTERNATING = (  # as Gemma's and Mistral's
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "<s>{{ 'model' if m.role == 'assistant' else 'user' }}\n{{ m.content | trim }}</s>\n{% endfor %}"
)
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
SYSTEM_FIRST = (  # the rest alternates
    "{% if messages[0].role == 'system' %}<s>system\n{{ messages[0].content }}</s>\n"
    "{% set messages = messages[1:] %}{% endif %}" + ALTERNATING
)
DROPS_SYSTEM = "{% for m in messages if m.role != 'system' %}<s>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}"
NEEDS_USER = (
    "{% if messages | selectattr('role', 'equalto', 'user') | list | length == 0 %}"
    "{{ raise_exception('No user query found in messages.') }}{% endif %}" + CHATML
)
KNOWS_TOOLS = "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}" + CHATML
HIDES_TOOLS = "{% if tools and 'x' == 'y' %}{{ tools[0].function.name }}{% endif %}" + CHATML
HIDES_CALLS = CHATML + "{# tool_calls #}"
WANTS_IDS = (  # as Mistral's
    "{% for m in messages %}{% for call in m.tool_calls or [] %}{% if call.id | length != 9 %}"
    "{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif %}"
    "{{ call.function.name }}{% endfor %}{% endfor %}" + KNOWS_TOOLS
)

TEMPLATES = {
    "chatml": CHATML,
    "no system": NO_SYSTEM + ALTERNATING,
    "system first": SYSTEM_FIRST,
    "drops system": DROPS_SYSTEM,
    "needs a user": NEEDS_USER,
    "tools": KNOWS_TOOLS,
    "no tools": NO_SYSTEM + ALTERNATING,
    "hides tools": HIDES_TOOLS,
    "hides calls": HIDES_CALLS,
    "wants ids": WANTS_IDS,
}
CALL = ToolCall("call_1", "weather", '{"city": "Oslo"}')
WEATHER = ToolSpec(name="weather", description="Of a city.")
S, U, A, T = Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.TOOL


def template(source: str) -> ChatTemplate:
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
    )
    return ChatTemplate(kit, lambda text: text)


def turns(*roles: Role) -> list[ChatMessage]:
    return [ChatMessage(role=role, content=f"text {number}.") for number, role in enumerate(roles)]


def rendered(source: str, messages: list[ChatMessage], tools: tuple[ToolSpec, ...] = ()) -> str:
    return "".join(s.text for s in template(source).render(messages, thinking=None, date="2026-11-28", tools=tools))


@pytest.mark.parametrize("name", TEMPLATES)
def test_no_text_is_left_out_and_no_order_refused(name: str) -> None:
    made = template(TEMPLATES[name])
    for roles in (
        (S, U),
        (S, S, U),
        (S, S, S, U, A, U),
        (U, A, S, U),
        (S, U, A, S, S, U),
        (U, S),
        (U, A, S),
        (U, S, A, U),
        (S,),
        (S, S),
        (U, U),
        (U, U, A, A, U),
        (A, U),
        (S, A, U),
        (A, A, U, S, U),
        (S, A, S, U),
    ):
        messages = turns(*roles)
        text = "".join(s.text for s in made.render(messages, thinking=None, date="2026-11-28"))
        places = [text.find(message.content) for message in messages]
        assert -1 not in places, (roles, text)
        assert places == sorted(places), (roles, text)


def test_a_system_text_without_a_place_of_its_own_joins_the_question_behind_it() -> None:
    source = TEMPLATES["no system"]
    assert rendered(source, turns(S, S, U)) == "<s>user\ntext 0.\n\ntext 1.\n\ntext 2.</s>\n"
    assert rendered(source, turns(U, A, S, U)).endswith("<s>user\ntext 2.\n\ntext 3.</s>\n")
    assert rendered(SYSTEM_FIRST, turns(S, U, A, S, U)).startswith("<s>system\ntext 0.</s>\n<s>user\ntext 1.</s>\n")
    assert rendered(source, turns(U, S)) == "<s>user\ntext 0.\n\ntext 1.</s>\n"


def test_a_system_text_stays_where_the_template_can_write_it() -> None:
    assert "<s>system\ntext 2.</s>\n<s>user\ntext 3." in rendered(CHATML, turns(U, A, S, U))
    assert rendered(CHATML, turns(S, S, U)).startswith("<s>system\ntext 0.\n\ntext 1.</s>\n<s>user\n")


@pytest.mark.parametrize("name", TEMPLATES)
def test_tools_calls_and_results_are_always_told(name: str) -> None:
    messages = [
        *turns(S, U),
        ChatMessage(role=A, content="", tool_calls=(CALL,)),
        ChatMessage(role=T, content="rain all day", tool_call_id="call_1"),
    ]
    text = rendered(TEMPLATES[name], messages, (WEATHER,))
    assert text.count("weather") >= 2, "the tool and the call"
    assert text.index("text 0.") < text.index("text 1.") < text.index("rain all day")
    alone = rendered(TEMPLATES[name], turns(U), (WEATHER,))
    assert "weather" in alone
    assert "text 0." in alone


def test_a_template_without_tools_is_told_how_to_call_them() -> None:
    for name in ("chatml", "no tools", "hides tools"):
        assert "<tool_call>" in rendered(TEMPLATES[name], turns(U), (WEATHER,))
    assert "<tool_call>" not in rendered(KNOWS_TOOLS, turns(U), (WEATHER,))
