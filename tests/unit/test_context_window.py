"""Which turns fit: whole turns go, oldest first; system and newest stay; the cut stands still for a while."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.errors import PromptTooLong
from inference.messages.generation import ChatMessage, Role, ToolCall
from inference.prompt import messages as message_rules
from inference.prompt.context_window import MIN_REPLY_TOKENS, fit


def count(messages: Sequence[ChatMessage]) -> int:
    return sum(len(m.content) for m in messages)


def turns(num: int, size: int = 50, *, system: str = "s" * 10) -> list[ChatMessage]:
    out = [ChatMessage(role=Role.SYSTEM, content=system)] if system else []
    for _ in range(num):
        out.append(ChatMessage(role=Role.USER, content="u" * size))
        out.append(ChatMessage(role=Role.ASSISTANT, content="a" * size))
    return [*out, ChatMessage(role=Role.USER, content="newest")]


def test_what_fits_is_left_alone() -> None:
    messages = turns(3)
    fitted = fit(messages, count=count, context_tokens=4096)
    assert fitted.messages == tuple(messages)
    assert (fitted.num_dropped, fitted.num_tokens) == (0, 316)


@pytest.mark.parametrize("num", range(4, 40))
def test_oldest_whole_turns_go_and_room_for_the_reply_stays(num: int) -> None:
    messages = turns(num)
    fitted = fit(messages, count=count, context_tokens=1000, max_tokens=300)
    assert fitted.num_tokens == count(fitted.messages) <= 700
    assert fitted.messages[0].role is Role.SYSTEM
    assert fitted.messages[1].role is Role.USER
    assert fitted.messages[-1].content == "newest"
    assert len(fitted.messages) + fitted.num_dropped == len(messages)
    assert fitted.messages[1:] == tuple(messages[1 + fitted.num_dropped :])


def test_the_cut_moves_rarely_so_the_prefix_cache_keeps_its_worth() -> None:
    drops = [fit(turns(n), count=count, context_tokens=2000, max_tokens=500).num_dropped for n in range(15, 60)]
    assert drops == sorted(drops)
    moves = sum(a != b for a, b in pairwise(drops))
    assert moves <= 45 // 3 + 1


def test_the_reply_never_takes_more_than_half() -> None:
    messages = [ChatMessage(role=Role.USER, content="x" * 490)]
    assert fit(messages, count=count, context_tokens=1000, max_tokens=100_000).num_tokens == 490


def test_a_long_newest_turn_may_use_the_reply_s_room_but_not_all_of_it() -> None:
    messages = [*turns(2)[:-1], ChatMessage(role=Role.USER, content="x" * 900)]
    fitted = fit(messages, count=count, context_tokens=1000, max_tokens=300)
    assert [m.content[0] for m in fitted.messages] == ["s", "x"]
    with pytest.raises(PromptTooLong) as refusal:
        fit([ChatMessage(role=Role.USER, content="x" * 950)], count=count, context_tokens=1000)
    assert refusal.value.prompt_tokens == 950
    assert refusal.value.limit_tokens == 1000 - MIN_REPLY_TOKENS


def test_a_tool_result_stays_with_its_turn() -> None:
    messages = [
        *turns(4, 100, system=""),
        ChatMessage(role=Role.ASSISTANT, content="call"),
        ChatMessage(role=Role.TOOL, content="result"),
    ]
    fitted = fit(messages, count=count, context_tokens=300)
    assert [m.content for m in fitted.messages] == ["newest", "call", "result"]


@st.composite
def conversations(draw: st.DrawFn) -> list[ChatMessage]:
    """Any sound one: plain turns, several calls at once, results in several rounds, answers missing."""
    text = st.text("x", min_size=1, max_size=120)
    found = [ChatMessage(role=Role.SYSTEM, content=draw(text))] if draw(st.booleans()) else []
    num_turns = draw(st.integers(1, 12))
    for turn in range(num_turns):
        found.append(ChatMessage(role=Role.USER, content=draw(text)))
        for step in range(draw(st.integers(0, 2))):
            calls = tuple(ToolCall(f"{turn}-{step}-{i}", "look", "{}") for i in range(draw(st.integers(1, 3))))
            found.append(ChatMessage(role=Role.ASSISTANT, content="", tool_calls=calls))
            found += [ChatMessage(role=Role.TOOL, content=draw(text), tool_call_id=call.id) for call in calls]
        if turn + 1 < num_turns and draw(st.booleans()):
            found.append(ChatMessage(role=Role.ASSISTANT, content=draw(text)))
    return found


@given(conversations(), st.integers(256, 2000), st.one_of(st.none(), st.integers(1, 3000)))
def test_a_turn_is_never_halved_and_a_call_never_parted_from_its_results(
    messages: list[ChatMessage], context_tokens: int, max_tokens: int | None
) -> None:
    message_rules.check(messages)
    try:
        fitted = fit(messages, count=count, context_tokens=context_tokens, max_tokens=max_tokens)
    except PromptTooLong:
        newest = max(i for i, message in enumerate(messages) if message.role is Role.USER)
        system = [message for message in messages[:1] if message.role is Role.SYSTEM]
        assert count([*system, *messages[newest:]]) > context_tokens // 2
        return
    kept = list(fitted.messages)
    head = 1 if messages[0].role is Role.SYSTEM else 0
    assert kept == messages[:head] + messages[head + fitted.num_dropped :]
    assert kept[head].role is Role.USER
    message_rules.check(kept)  # every call with its results, no result without its call
    assert fitted.num_tokens == count(kept) < context_tokens
