"""Turns in an order that a template can write: what it has no place for joins a neighbour, and nothing is left out.

Owns what is asked of a template to learn what it can place (`Means.of`), and the joining. Knows no template engine:
`chat_template` hands in a function that says whether a list of turns arrives in the prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from inference.messages.generation import ChatMessage, Role

BETWEEN = "\n\n"  # two texts that became one turn

Turns = Sequence[tuple[Role, str]]
_JOINABLE = (Role.USER, Role.ASSISTANT)


@dataclass(frozen=True)
class Means:
    """What a template writes as it is given: a system turn at the beginning, one further on, one role twice in a row,
    an assistant's turn before any user's, and no user's turn at all."""

    system_first: bool = True
    system_later: bool = True
    in_a_row: bool = True
    answer_first: bool = True
    no_user: bool = True

    @classmethod
    def of(cls, arrives: Callable[[Turns], bool]) -> Means:
        """`arrives` renders turns and says whether their texts are all there, in order."""
        system, user, answer, again, more = "(mind)", "(hello)", "(well)", "(so)", "(then)"
        return cls(
            system_first=arrives([(Role.SYSTEM, system), (Role.USER, user)]),
            system_later=arrives(
                [(Role.USER, user), (Role.ASSISTANT, answer), (Role.SYSTEM, system), (Role.USER, again)]
            ),
            in_a_row=arrives([(Role.USER, user), (Role.USER, more), (Role.ASSISTANT, answer)])
            and arrives([(Role.USER, user), (Role.ASSISTANT, answer), (Role.ASSISTANT, again), (Role.USER, more)]),
            answer_first=arrives([(Role.ASSISTANT, answer), (Role.USER, user)]),
            no_user=arrives([(Role.SYSTEM, system)]),
        )


def with_one_head(messages: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """The system messages at the beginning as one: every template has at most one place for them."""
    num_heads = next((i for i, message in enumerate(messages) if message.role is not Role.SYSTEM), len(messages))
    if num_heads < 2:
        return tuple(messages)
    return (_joined(messages[:num_heads]), *messages[num_heads:])


def placed(messages: Sequence[ChatMessage], means: Means) -> tuple[ChatMessage, ...]:
    """`messages` as a template of these `means` can write them.

    A system message without a place becomes part of the user's turn beside it, or a user's turn where there is none.
    """
    groups: list[list[ChatMessage]] = []  # what becomes one turn
    was_folded = False
    for index, message in enumerate(with_one_head(messages)):
        has_place = means.system_later if index else means.system_first
        is_folded = message.role is Role.SYSTEM and not has_place
        if is_folded:
            message = msgspec.structs.replace(message, role=Role.USER)
        if groups and _may_join(groups[-1][0], message) and (is_folded or was_folded or not means.in_a_row):
            groups[-1].append(message)
            was_folded = was_folded and is_folded
        else:
            groups.append([message])
            was_folded = is_folded
    return tuple(_with_a_user([_joined(group) for group in groups], means))


def _joined(group: Sequence[ChatMessage]) -> ChatMessage:
    if len(group) == 1:
        return group[0]
    return msgspec.structs.replace(group[0], content=_text(*(message.content for message in group)))


def _with_a_user(turns: list[ChatMessage], means: Means) -> list[ChatMessage]:
    if not means.no_user and not any(turn.role is Role.USER for turn in turns):
        if turns and turns[0].role is Role.SYSTEM:
            return [msgspec.structs.replace(turns[0], role=Role.USER), *turns[1:]]
        return [ChatMessage(role=Role.USER, content=""), *turns]
    first = next((i for i, turn in enumerate(turns) if turn.role is not Role.SYSTEM), len(turns))
    if not means.answer_first and first < len(turns) and turns[first].role is Role.ASSISTANT:
        return [*turns[:first], ChatMessage(role=Role.USER, content=""), *turns[first:]]
    return turns


def _may_join(first: ChatMessage, second: ChatMessage) -> bool:
    return first.role is second.role and first.role in _JOINABLE and not (first.tool_calls or second.tool_calls)


def _text(*parts: str) -> str:
    return BETWEEN.join(part for part in parts if part)
